//! Defaults, then the file, then the command line; unknown keys are refused with the nearest known one.

use std::{fs, path::Path, sync::LazyLock};

use serde_json::Value as Json;
use toml::{Table, Value};

use super::{ConfigError, TrainConfig};

/// Options of the command line in the order given: `(key, value)`, the keys in their own spelling of `run.toml`.
pub type Overrides = Vec<(String, String)>;

/// Spellings of TRL, vLLM, verl, RLinf and OpenRLHF for options that have another name here and the same meaning.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("model_name_or_path", "model"),
    ("dataset_name", "dataset"),
    ("vllm_max_model_length", "max_model_len"),
    ("vllm_importance_sampling_correction", "importance_sampling_correction"),
    ("vllm_importance_sampling_mode", "importance_sampling_mode"),
    ("vllm_importance_sampling_clip_max", "importance_sampling_clip_max"),
    ("vllm_importance_sampling_clip_min", "importance_sampling_clip_min"),
    ("adv_estimator", "advantage_estimator"),
    ("adv_type", "advantage_estimator"),
    ("loss_agg_mode", "loss_aggregation"),
    ("loss_agg_func", "loss_aggregation"),
    ("kl_loss_type", "kl_estimator"),
    ("kl_penalty_type", "kl_estimator"),
    ("entropy_bonus", "entropy_coef"),
    ("group_size", "num_generations"),
    ("n_samples_per_prompt", "num_generations"),
    ("max_response_length", "max_completion_length"),
    ("max_num_gen_batches", "dynamic_sampling_max_attempts"),
    ("total_epochs", "num_train_epochs"),
    ("total_training_steps", "max_steps"),
    ("ppo_epochs", "num_iterations"),
    ("loss_mode", "loss_type"),
    ("clip_ratio", "epsilon"),
    ("clip_ratio_low", "epsilon"),
    ("ratio_clip_eps", "epsilon"),
    ("eps_clip", "epsilon"),
    ("clip_ratio_high", "epsilon_high"),
    ("eps_clip_high", "epsilon_high"),
    ("entropy_coeff", "entropy_coef"),
    ("kl_beta", "beta"),
    ("kl_loss_coef", "beta"),
    ("target_kl", "kl_target"),
    ("critic_warmup", "critic_warmup_steps"),
    ("use_decoupled_loss", "decoupled_objective"),
    ("grad_clip", "max_grad_norm"),
];

/// Options that are paths: relative ones in a file are relative to the file's folder.
const PATHS: &[&str] = &["model", "dataset", "eval_dataset", "output_dir", "critic_model"];

/// Options that are text although their default does not show it (absent, or an empty list).
const TEXTS: &[&str] = &["system_prompt", "resume_from_checkpoint", "reward_funcs", "stop", "loss_aggregation"];

const COMMAND_LINE: &str = "command line";

/// Splits the free-form part of a command line (`--key value` or `--key=value`) into overrides. Dashes in keys stand
/// for underscores; a yes-or-no option without a value is `true`.
///
/// # Errors
/// A word that is no `--key`, an unknown key, or an option without its value.
pub fn parse_overrides(words: &[String]) -> Result<Overrides, ConfigError> {
    let defaults = defaults();
    let mut list = Overrides::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else {
            return Err(ConfigError::Value(format!("unexpected `{word}`: options are written --key value")));
        };
        let (key, value) = match flag.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (flag, words.next_if(|next| !next.starts_with("--")).cloned()),
        };
        let key = canonical(&key.replace('-', "_"), COMMAND_LINE)?;
        let value = match value {
            Some(value) => value,
            None if defaults[&key].is_boolean() => "true".to_owned(),
            None => return Err(ConfigError::Value(format!("`--{key}` needs a value"))),
        };
        list.push((key, value));
    }
    Ok(list)
}

/// Loads a run's configuration. Relative paths in the file are relative to the file's folder, those of the command line
/// to the working directory. `none` takes an optional value back.
///
/// # Errors
/// A [`ConfigError`] that names the file or option, in one line.
pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    let mut config = TrainConfig::default();
    if let Some(path) = file {
        config = layer(config, read_table(path)?, &path.display().to_string())?;
    }
    for (key, text) in overrides {
        let key = canonical(key, COMMAND_LINE)?;
        let value = parse_value(&key, text);
        config = layer(config, Table::from_iter([(key, value)]), COMMAND_LINE)?;
    }
    Ok(config)
}

/// The configuration as `run.toml` text; [`load`] reads the same values back.
#[must_use]
pub fn to_toml(config: &TrainConfig) -> String {
    toml::to_string(config).expect("a flat structure of numbers, texts and lists is valid TOML")
}

/// Every key, in declaration order.
#[must_use]
pub fn known_keys() -> Vec<String> {
    defaults().keys().cloned().collect()
}

/// The option that a spelling stands for, if there is one.
#[must_use]
pub fn option_named(spelling: &str) -> Option<&'static str> {
    static KEYS: LazyLock<Vec<String>> = LazyLock::new(known_keys);
    let alias = ALIASES.iter().find(|(alias, _)| *alias == spelling).map(|(_, name)| *name);
    alias.or_else(|| KEYS.iter().map(String::as_str).find(|key| *key == spelling))
}

pub(super) fn defaults() -> serde_json::Map<String, Json> {
    match serde_json::to_value(TrainConfig::default()) {
        Ok(Json::Object(map)) => map,
        _ => unreachable!("a flat structure serialises to an object"),
    }
}

/// Reads a file's keys in their canonical spelling, with paths made relative to the working directory.
fn read_table(path: &Path) -> Result<Table, ConfigError> {
    let origin = path.display().to_string();
    let fail = |message: String| ConfigError::File { path: origin.clone(), message };
    let text = fs::read_to_string(path).map_err(|e| fail(format!("cannot be read: {e}")))?;
    let found: Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
        fail(format!("line {line}: {}", one_line(e.message())))
    })?;
    let mut table = Table::new();
    for (spelling, value) in found {
        let key = canonical(&spelling, &origin)?;
        let value = if PATHS.contains(&key.as_str()) { relative_to(path, value) } else { value };
        if table.insert(key.clone(), value).is_some() {
            return Err(fail(format!("`{key}` is given twice, once under another spelling")));
        }
    }
    Ok(table)
}

/// Puts the values of a table over a configuration.
fn layer(base: TrainConfig, values: Table, origin: &str) -> Result<TrainConfig, ConfigError> {
    let defaults = defaults();
    let mut table = Table::try_from(&base).expect("a flat structure of numbers, texts and lists is valid TOML");
    for (key, value) in values {
        if value.as_str() == Some("none") && defaults[&key].is_null() {
            table.remove(&key);
            continue;
        }
        // One option at a time, so that a wrong type is reported with its name.
        Value::Table(Table::from_iter([(key.clone(), value.clone())]))
            .try_into::<TrainConfig>()
            .map_err(|e| ConfigError::Value(format!("`{key}` ({origin}): {}", one_line(e.message()))))?;
        table.insert(key, value);
    }
    Value::Table(table).try_into().map_err(|e| ConfigError::Value(one_line(e.message())))
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn canonical(key: &str, origin: &str) -> Result<String, ConfigError> {
    if let Some(name) = option_named(key) {
        return Ok(name.to_owned());
    }
    let suggestion = known_keys()
        .into_iter()
        .map(|k| (strsim::jaro_winkler(&k, key), k))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score > 0.75)
        .map(|(_, k)| k);
    Err(ConfigError::UnknownKey { key: key.to_owned(), origin: origin.to_owned(), suggestion })
}

fn relative_to(file: &Path, value: Value) -> Value {
    match (&value, file.parent()) {
        (Value::String(text), Some(dir))
            if !text.is_empty() && text != "none" && Path::new(text).is_relative() && !dir.as_os_str().is_empty() =>
        {
            Value::String(dir.join(text).display().to_string())
        }
        _ => value,
    }
}

/// A command-line value in the type of its option: texts stay as they are, lists are split at commas unless written
/// as TOML lists.
fn parse_value(key: &str, text: &str) -> Value {
    let default = &defaults()[key];
    let is_text = TEXTS.contains(&key) || PATHS.contains(&key) || default.is_string();
    if default.is_array() && text.trim_start().starts_with('[') {
        return literal(text);
    }
    let one = |text: &str| if is_text { Value::String(text.to_owned()) } else { literal(text) };
    if default.is_array() {
        return Value::Array(text.split(',').map(str::trim).filter(|t| !t.is_empty()).map(one).collect());
    }
    one(text)
}

/// A TOML value, or the text itself when it is none.
fn literal(text: &str) -> Value {
    format!("v = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("v"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
