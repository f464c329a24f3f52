//! The options of a run, from which it can be made again.

use std::path::Path;

use shared::config::{OptionSpec, TrainConfig, ValueKind};
use toml::Value;

use super::{
    markdown::block,
    place::{Place, of_reward},
};

/// Options that change no results and belong to what the card tells.
const ALSO: [&str; 4] = ["eval_dataset", "dataset_test_split", "eval_steps", "metric_for_best_model"];

/// The options that differ from the defaults and change results, as a `run.toml`.
pub fn text(config: &TrainConfig) -> String {
    let told = |option: &OptionSpec| option.changes_results || ALSO.contains(&option.key);
    let given = config.given().into_iter().filter(|(option, _)| told(option));
    let mut options: Vec<(&str, Value)> =
        given.filter_map(|(option, value)| Some((option.key, public(option, Value::try_from(value).ok()?)))).collect();
    let commit = |path: &Path| match Place::of(path) {
        Place::Hub { commit, .. } => commit,
        Place::Local(_) => None,
    };
    // The run had this commit, whatever branch it was found by.
    let mut fix = |key: &'static str, commit: String| {
        options.retain(|(known, _)| *known != key);
        options.push((key, commit.into()));
    };
    if let Some(commit) = commit(&config.model) {
        fix("model_revision", commit);
    }
    let mut data: Vec<Option<String>> = config.dataset.iter().map(|path| commit(path)).collect();
    data.dedup();
    if let [Some(commit)] = &data[..] {
        fix("dataset_revision", commit.clone());
    }
    let lines: String = options.iter().map(|(key, value)| format!("{key} = {}\n", written(value))).collect();
    format!(
        "\n## Options\n\nThese are all options that differ from the defaults and change results. Written to \
         `run.toml`, with paths of your own, `tandem train run.toml` makes the run again.\n\n{}",
        block("toml", &lines)
    )
}

/// A value as a file has it; numbers as in the documentation, 1e-6 in place of 0.000001.
fn written(value: &Value) -> String {
    match value {
        Value::Float(number) if number.is_finite() => serde_json::Value::from(*number).to_string(),
        value => value.to_string(),
    }
}

/// A value without paths of this machine.
fn public(option: &OptionSpec, value: Value) -> Value {
    match value {
        Value::Array(list) => list.into_iter().map(|value| public(option, value)).collect::<Vec<_>>().into(),
        Value::String(text) if matches!(option.kind, ValueKind::Path | ValueKind::Paths) => {
            Place::of(Path::new(&text)).name().into()
        }
        Value::String(text) if option.key == "reward_funcs" => of_reward(&text).into(),
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use shared::config::layers;

    use super::*;

    #[test]
    fn options_make_the_run_again_and_name_nothing_of_this_machine() {
        let commit = "0123456789012345678901234567890123456789";
        let cached = |kind: &str| format!("/users/me/.cache/huggingface/hub/{kind}/snapshots/{commit}");
        let config = TrainConfig {
            model: cached("models--a--b").into(),
            dataset: [cached("datasets--c--d").into()].into_iter().collect(),
            eval_dataset: Some("/users/me/test.jsonl".into()),
            output_dir: "/users/me/runs/one".into(),
            chat_template: Some("/users/me/chat.jinja".into()),
            reward_funcs: vec!["/users/me/mine.py:f".into(), "accuracy".into()],
            reward_env: vec!["OPENAI_KEY".into()],
            token_file: Some("/users/me/secret".into()),
            learning_rate: 0.25,
            system_prompt: Some("Think in <think>.\n```".into()),
            ..TrainConfig::default()
        };
        let text = text(&config);
        assert!(!text.contains("/users") && !text.contains("secret") && !text.contains("OPENAI_KEY"), "{text}");
        let (_, rest) = text.split_once("````toml\n").unwrap();
        let (file, _) = rest.split_once("````\n").unwrap();
        let again = layers::parse(file, Path::new("run.toml"), &Vec::new()).unwrap();
        assert_eq!((again.learning_rate, again.system_prompt), (0.25, config.system_prompt));
        assert_eq!(again.model, std::path::PathBuf::from("hf://a/b"));
        assert_eq!((again.model_revision.as_str(), again.dataset_revision.as_str()), (commit, commit));
        assert_eq!(again.reward_funcs, ["mine.py:f", "accuracy"]);
    }
}
