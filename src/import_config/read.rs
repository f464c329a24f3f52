//! Reading a foreign configuration: YAML, JSON, a command of TRL or a list of Hydra overrides, as dotted keys with values.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use shared_bounds::read_text;

use super::{command, shell};

/// Most bytes of a configuration.
const MOST_BYTES: u64 = 1 << 20;

/// A dotted key and its value.
pub type Entry = (String, Value);

/// Reads a file; mappings within mappings become dotted keys.
///
/// # Errors
/// When it cannot be read, or is neither a mapping, nor a command of TRL, nor a list of overrides.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let text = read_text(path, MOST_BYTES).context("cannot be read")?;
    let mapped = mapping(&text);
    let entries = match mapped {
        Ok(entries) if is_named_as_mapping(path) => entries,
        mapped => {
            let commands = shell::commands(&text);
            match (command::entries(&commands, path)?, overrides(&commands)) {
                (Some(entries), _) => entries,
                (None, overrides) if overrides.is_empty() => mapped?,
                (None, overrides) => overrides,
            }
        }
    };
    if entries.is_empty() {
        bail!("holds no options");
    }
    Ok(resolved(entries))
}

/// Reads a file that holds a mapping.
///
/// # Errors
/// When it cannot be read or is none.
pub fn file(path: &Path) -> Result<Vec<Entry>> {
    mapping(&read_text(path, MOST_BYTES).context("cannot be read")?)
}

fn is_named_as_mapping(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|name| extension == *name))
}

fn mapping(text: &str) -> Result<Vec<Entry>> {
    let value: Value =
        serde_saphyr::from_str(text).map_err(|e| anyhow::anyhow!("is no valid YAML: {}", one_line(&e.to_string())))?;
    let Value::Object(map) = value else {
        bail!("must hold a mapping of options to values, a command of TRL, or overrides of the form a.b.c=value");
    };
    let mut entries = Vec::new();
    flatten("", map, &mut entries);
    Ok(entries)
}

fn one_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().trim_end_matches(':').to_owned()
}

fn flatten(prefix: &str, map: Map<String, Value>, entries: &mut Vec<Entry>) {
    for (key, value) in map {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&key, inner, entries),
            value => entries.push((key, value)),
        }
    }
}

/// The words of the form `a.b=value` of commands or a list; empty when there are none.
fn overrides(commands: &[Vec<String>]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for word in commands.iter().flatten() {
        let Some((key, value)) = word.split_once('=') else { continue };
        let key = key.trim_start_matches('+');
        let dotted = key.contains('.') && !key.starts_with('.');
        if !dotted || !key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/')) {
            continue;
        }
        // As in Hydra, the last one wins, and a value may have quotes of its own.
        entries.retain(|(known, _)| known != key);
        let value = serde_saphyr::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        entries.push((key.to_owned(), value));
    }
    entries
}

/// The value of a flag: a number, true or false, nothing, a list or a mapping as YAML has them, else the text.
pub fn scalar(word: &str) -> Value {
    let text = || Value::String(word.to_owned());
    match serde_saphyr::from_str(word) {
        Ok(Value::Object(_)) if !word.starts_with('{') => text(),
        Ok(Value::Array(_)) if !word.starts_with('[') => text(),
        Ok(Value::Null) if word.is_empty() => text(),
        Ok(Value::String(_)) | Err(_) => text(),
        Ok(value) => value,
    }
}

/// Replaces `${a.b.c}` by the value of that key.
fn resolved(entries: Vec<Entry>) -> Vec<Entry> {
    let known = entries.clone();
    let lookup = |value: &Value| -> Option<Value> {
        let key = value.as_str()?.strip_prefix("${")?.strip_suffix('}')?;
        known.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    };
    entries.into_iter().map(|(key, value)| (key, lookup(&value).unwrap_or(value))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn of(text: &str) -> Result<Vec<Entry>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    fn entry(key: &str, value: Value) -> Entry {
        (key.to_owned(), value)
    }

    #[test]
    fn mappings_become_dotted_keys_in_order() {
        let expected = [entry("a", json!(1e-6)), entry("b.c", json!([1, 2])), entry("b.d", json!(1e-6))];
        assert_eq!(of("a: 1e-6\nb:\n  c: [1, 2]\n  d: ${a}\n").unwrap(), expected);
        assert_eq!(of(r#"{"a": 1e-6, "b": {"c": [1, 2], "d": "${a}"}}"#).unwrap(), expected);
    }

    /// Spoilt files, as the targets of `tests/fuzz` are.
    #[test]
    fn whatever_a_file_holds_its_keys_are_found_or_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let seeds = [
            "a: 1e-6\nb:\n  c: [1, 2]\n  d: ${a}\nx: &x {y: |\n  text\n}\nz: *x\n",
            r#"{"a": 1e-6, "b": {"c": [1, 2], "d": "${a}"}}"#,
            "trl grpo --model_name_or_path m --learning_rate 1e-6 \\\n  --flag --list a b # words\n",
            "trl grpo \"a\nb\" --flag # a word of two lines, once shown as such\n",
            "python3 -m verl.trainer.main_ppo a.b=grpo +data.files=\"['a b.parquet']\" x.y=$HOME/z q.r='\"s t\"' $@\n",
        ];
        harness::fuzz::explore("import_config", &seeds.map(|seed| seed.as_bytes().to_vec()), |bytes| {
            fs::write(&path, bytes).unwrap();
            if let Err(error) = read(&path) {
                assert!(!error.to_string().contains('\n'), "{error:?}");
            }
        });
    }

    #[test]
    fn overrides_are_found_in_a_command() {
        let text = "python3 -m verl.trainer.main_ppo \\\n  algorithm.adv_estimator=grpo \\ # a comment=1\n  \
                    +data.files=\"['a b.parquet']\" data.n=1 data.n=2 actor.flag=True x.y=$HOME/z q.r='\"s t\"' $@\n";
        let found = of(text).unwrap();
        let expected = [
            entry("algorithm.adv_estimator", json!("grpo")),
            entry("data.files", json!(["a b.parquet"])),
            entry("data.n", json!(2)),
            entry("actor.flag", json!(true)),
            entry("x.y", json!("$HOME/z")),
            entry("q.r", json!("s t")),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn other_content_is_refused_in_one_line() {
        for (text, words) in [
            ("- a\n- b\n", "must hold a mapping"),
            ("just words", "must hold a mapping"),
            ("a: [1, 2\nb: 3", "no valid YAML"),
            ("a: 1\na: 2", "no valid YAML"),
            ("{}", "no options"),
        ] {
            let message = of(text).unwrap_err().to_string();
            assert!(message.contains(words) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
