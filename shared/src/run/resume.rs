//! What a checkpoint must have in common with the run that resumes from it, and what may differ.

mod foreign;

use std::{fmt, path::Path};

use serde_json::Value;

use crate::{
    ModelDir,
    config::{self, TrainConfig},
    model::model_dir::{ADAPTER_CONFIG_FILE, ModelDirError},
};

pub use foreign::foreign;

/// Most bytes of [`STATE_FILE`]: a configuration and some counters.
const MOST_STATE: u64 = 64 << 20;
/// File of a checkpoint with the state of the run.
pub const STATE_FILE: &str = "trainer_state.json";

/// A checkpoint that a run cannot go on from.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// An adapter cannot resume as a whole model, nor a whole model as an adapter; or the parameters differ from the
    /// model's.
    #[error("{path}: {message}")]
    Unfit {
        /// The checkpoint.
        path: String,
        /// The mismatch, and the way out.
        message: String,
    },
    /// The checkpoint is no model directory.
    #[error(transparent)]
    ModelDir(#[from] ModelDirError),
}

/// Checks that a run of `model` can resume from a checkpoint: both are whole models, or adapters, with the same
/// parameters.
///
/// # Errors
/// The mismatch, with the way out.
pub fn check(config: &TrainConfig, model: &ModelDir, checkpoint: &Path) -> Result<(), ResumeError> {
    let unfit = |message: String| ResumeError::Unfit { path: checkpoint.display().to_string(), message };
    let is_adapter = checkpoint.join(ADAPTER_CONFIG_FILE).is_file();
    match (is_adapter, config.use_peft) {
        (true, false) => {
            return Err(unfit(
                "holds an adapter, and the run has `use_peft` false; set it to true, or make the adapter's model with \
                 `tandem merge`"
                    .into(),
            ));
        }
        (false, true) => {
            return Err(unfit(
                "holds a whole model, and the run has `use_peft` true; begin a run with the checkpoint as its `model`"
                    .into(),
            ));
        }
        (true, true) => return Ok(()),
        (false, false) => {}
    }
    let saved = ModelDir::open(checkpoint)?.config().parameters();
    let wanted = model.config().parameters();
    let in_both = |parameter: &&(String, Vec<usize>)| saved.contains(parameter) && wanted.contains(parameter);
    let Some((name, _)) = wanted.iter().chain(&saved).find(|parameter| !in_both(parameter)) else {
        return Ok(());
    };
    let shape = |parameters: &[(String, Vec<usize>)]| {
        let found = parameters.iter().find(|(known, _)| known == name);
        found.map_or_else(|| "missing".to_owned(), |(_, shape)| format!("{shape:?}"))
    };
    Err(unfit(format!(
        "is of another model than `model` {}: {name} is {} in the checkpoint and {} in the model; name the model that \
         the run began with, or begin a run in another `output_dir`",
        model.path().display(),
        shape(&saved),
        shape(&wanted)
    )))
}

/// The configuration in a checkpoint; none if it has none.
#[must_use]
pub fn saved_config(checkpoint: &Path) -> Option<Value> {
    let state: Value =
        serde_json::from_slice(&shared_bounds::read(&checkpoint.join(STATE_FILE), MOST_STATE).ok()?).ok()?;
    state.get("config").cloned()
}

/// An option whose value has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The option.
    pub key: String,
    /// Its value before.
    pub before: Value,
    /// Its value now.
    pub now: Value,
}

/// `beta 0.1 -> 0.2`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Value| match value {
            Value::Null => "absent".to_owned(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        write!(f, "`{}` {} -> {}", self.key, shown(&self.before), shown(&self.now))
    }
}

/// Options that differ between the configuration of a checkpoint and `config`, and that change results. An option that
/// the checkpoint does not know counts as its default.
#[must_use]
pub fn changed_options(saved: &Value, config: &TrainConfig) -> Vec<Change> {
    let value = |config| serde_json::to_value(config).expect("a configuration is serialisable");
    let (now, defaults) = (value(config), value(&TrainConfig::default()));
    let before = |key: &str| saved.get(key).or_else(|| defaults.get(key)).cloned().unwrap_or_default();
    let matters = |key: &str| config::option(key).is_none_or(|option| option.changes_results);
    let options = now.as_object().into_iter().flatten().filter(|(key, _)| matters(key));
    let changes = options.map(|(key, now)| Change { key: key.clone(), before: before(key), now: now.clone() });
    changes.filter(|change| change.before != change.now).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn model(dir: &Path, hidden: usize) -> ModelDir {
        let config = serde_json::json!({
            "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 16, "hidden_size": hidden,
            "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true,
            "hidden_act": "silu", "eos_token_id": 1
        });
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
        ModelDir::open(dir).unwrap()
    }

    #[test]
    fn a_checkpoint_of_another_model_is_refused_with_a_parameter_that_differs() {
        let dir = tempfile::tempdir().unwrap();
        let (narrow, wide) = (model(&dir.path().join("narrow"), 32), model(&dir.path().join("checkpoint-3"), 64));
        let config = TrainConfig::default();
        check(&config, &wide, wide.path()).unwrap();
        let text = check(&config, &narrow, wide.path()).unwrap_err().to_string();
        for words in ["checkpoint-3: ", "narrow", "model.embed_tokens.weight is [16, 64]", "and [16, 32] in the model"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn an_adapter_and_a_model_do_not_go_on_as_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let model = model(&dir.path().join("checkpoint-3"), 32);
        let (whole, lora) = (TrainConfig::default(), TrainConfig { use_peft: true, ..TrainConfig::default() });
        let refusal = |config| check(config, &model, model.path()).unwrap_err().to_string();
        assert!(refusal(&lora).contains("holds a whole model"));
        fs::write(model.path().join(ADAPTER_CONFIG_FILE), "{}").unwrap();
        assert!(refusal(&whole).contains("holds an adapter"));
        check(&lora, &model, model.path()).unwrap();
    }

    #[test]
    fn changed_options_are_shown_with_both_values_and_those_that_change_nothing_are_not() {
        let config = TrainConfig::default();
        let mut saved = serde_json::to_value(&config).unwrap();
        saved.as_object_mut().unwrap().remove("beta");
        assert_eq!(changed_options(&saved, &config), [], "an option that a checkpoint does not know had its default");
        let reward_funcs = vec!["format".to_owned()];
        let other = TrainConfig { beta: 0.5, learning_rate: 1e-5, reward_funcs, save_steps: 7, ..config };
        let told: Vec<String> = changed_options(&saved, &other).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["`reward_funcs` [] -> [\"format\"]", "`beta` 0.0 -> 0.5", "`learning_rate` 1e-6 -> 0.00001"]);
    }
}
