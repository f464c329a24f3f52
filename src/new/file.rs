//! The text of a new `run.toml`.

use std::path::Path;

use shared::config::{OPTIONS, OptionSpec, TrainConfig, hub_name, layers, on_hub};
use toml::{Table, Value};

/// The options that most users look at first; a file also has those that are given. Their order is that of the
/// declarations.
const USUAL: &[&str] = &[
    "model",
    "dataset",
    "eval_dataset",
    "output_dir",
    "system_prompt",
    "reward_funcs",
    "reward_weights",
    "num_generations",
    "max_completion_length",
    "temperature",
    "per_device_train_batch_size",
    "generation_batch_size",
    "num_train_epochs",
    "max_steps",
    "gradient_checkpointing",
    "bf16",
    "use_peft",
    "advantage_estimator",
    "scale_rewards",
    "loss_type",
    "beta",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_staleness",
    "rollout_device",
    "learner_device",
    "seed",
    "save_steps",
    "save_total_limit",
    "eval_steps",
    "report_to",
    "num_completions_to_print",
];

/// Columns of a line of comment.
const COLUMNS: usize = 100;

/// The file at `path`: given values as keys, defaults as comments. `data` has lines about the datasets.
pub fn text(config: &TrainConfig, path: &Path, data: &[String]) -> String {
    let values: Table = layers::to_toml(config).parse().expect("a configuration is written as TOML");
    let given: Vec<&str> = config.given().into_iter().map(|(option, _)| option.key).collect();
    let mut text = comment(&format!(
        "A run of Tandem: `tandem train {file} --dry-run` makes every check, `tandem train {file}` trains. A line such \
         as `#key = value` has the default of an option; without its `#`, it is an option of the run. `tandem train \
         --help` lists all options.",
        file = path.display()
    ));
    let mut section = "";
    for option in OPTIONS.iter().filter(|option| USUAL.contains(&option.key) || given.contains(&option.key)) {
        if option.section != section {
            section = option.section;
            text.push_str(&format!("\n\n## {section}\n"));
        }
        let absent = option.absent.map_or_else(String::new, |meaning| format!(" Without it: {meaning}."));
        text.push_str(&format!("\n{}", comment(&format!("{}.{absent}", option.summary()))));
        if option.key == "dataset" {
            data.iter().for_each(|line| text.push_str(&comment(line)));
        }
        let value = values.get(option.key).map_or_else(String::new, |value| written(option, value, path));
        let mark = if given.contains(&option.key) { "" } else { "#" };
        text.push_str(format!("{mark}{} = {value}", option.key).trim_end());
        text.push('\n');
    }
    text
}

/// A value as a file has it.
fn written(option: &OptionSpec, value: &Value, file: &Path) -> String {
    match value {
        // As in the documentation: 1e-6, where TOML's own writer has 0.000001.
        Value::Float(number) if number.is_finite() => serde_json::Value::from(*number).to_string(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(option, item, file)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(path) if option.on_hub => Value::from(plain(path, file)).to_string(),
        value => value.to_string(),
    }
}

/// A name on the Hub without `hf://`, if it is taken for a name there without it too.
fn plain<'a>(path: &'a str, file: &Path) -> &'a str {
    let folder = file.parent().unwrap_or(Path::new(""));
    hub_name(Path::new(path)).filter(|name| on_hub(name, folder).as_deref() == Some(path)).unwrap_or(path)
}

/// Comment lines with a text in them.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width == 0 || width + 1 + length > COLUMNS {
            lines.push_str(if width == 0 { "#" } else { "\n#" });
            width = 1;
        }
        lines.push(' ');
        lines.push_str(word);
        width += 1 + length;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn config() -> TrainConfig {
        TrainConfig {
            model: "hf://owner/model".into(),
            dataset: ["a.jsonl", "b.jsonl"].map(Into::into).into_iter().collect(),
            reward_funcs: vec!["my \"own\".py:f".into()],
            learning_rate: 3e-6,
            gamma: 0.5,
            ..TrainConfig::default()
        }
    }

    #[test]
    fn a_file_has_what_is_given_and_says_what_the_defaults_are() {
        let config = config();
        let text = text(&config, Path::new("run.toml"), &["a.jsonl: JSON lines, 2 rows.".into()]);
        assert_eq!(layers::parse(&text, Path::new("run.toml"), &Vec::new()).unwrap(), config, "{text}");
        for line in [
            "model = \"owner/model\"",
            "learning_rate = 3e-6",
            "gamma = 0.5",
            "# a.jsonl: JSON lines, 2 rows.",
            "#num_generations = 8",
            "#max_steps =",
            "## Generation",
        ] {
            assert_eq!(text.lines().filter(|known| *known == line).count(), 1, "{line}: {text}");
        }
        assert!(text.lines().all(|line| line.len() <= COLUMNS + 20), "{text}");
    }

    #[test]
    fn a_default_is_taken_when_its_mark_is_removed() {
        let config = config();
        let text = text(&config, Path::new("run.toml"), &[]);
        fn bare(line: &str) -> Option<&str> {
            line.strip_prefix('#').filter(|line| line.contains(" = ") && !line.starts_with([' ', '#']))
        }
        let all: String = text.lines().map(|line| bare(line).unwrap_or(line).to_owned() + "\n").collect();
        assert!(all.lines().filter(|line| !line.starts_with('#') && line.contains(" = ")).count() > 20, "{all}");
        assert_eq!(layers::parse(&all, Path::new("run.toml"), &Vec::new()).unwrap(), config, "{all}");
    }

    #[test]
    fn usual_options_exist_and_stand_in_the_order_of_the_declarations() {
        let known: Vec<&str> = OPTIONS.iter().map(|option| option.key).filter(|key| USUAL.contains(key)).collect();
        let usual: HashSet<&str> = USUAL.iter().copied().collect();
        assert_eq!(known.len(), usual.len());
        assert_eq!(known, USUAL);
    }

    #[test]
    fn comments_are_lines_of_a_bounded_width() {
        let text = comment(&"word ".repeat(60));
        assert!(text.lines().all(|line| line.starts_with("# word") && line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(text.matches("word").count(), 60);
        assert_eq!(comment("a"), "# a\n");
    }
}
