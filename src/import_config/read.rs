//! Reading a foreign configuration: YAML, JSON, a command of TRL or a list of Hydra overrides, as dotted keys with
//! values.

use std::{env, ffi::OsString, path::Path, rc::Rc};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use shared_bounds::read_text;

use super::{
    command,
    dialect::Dialect,
    foreign, script,
    shell::{self, Unset, Word},
    yaml,
};

/// Most bytes of a configuration.
const MOST_BYTES: u64 = 1 << 20;

/// The error for a file in which nothing readable is found.
const NOTHING: &str =
    "must hold a mapping of options to values, a command of TRL, or overrides of the form a.b.c=value";

/// A dotted key and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Value,
    /// The unknown part of the value, where a script leaves it open.
    pub unset: Option<Rc<Unset>>,
    /// Whether an override takes the key away (`~key` in Hydra); `unset` has the words on it.
    pub deleted: bool,
}

impl Entry {
    /// A key with a value that is known.
    pub fn new(key: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { key: key.into(), value: value.into(), unset: None, deleted: false }
    }

    /// A key that `word` of a line takes away.
    pub fn deleted(key: &str, line: usize, word: &str) -> Self {
        let unset = Some(Rc::new(Unset::deleted(line, word)));
        Self { key: key.to_owned(), value: Value::Null, unset, deleted: true }
    }

    /// A key with a value that a Python script does not tell.
    pub fn unread(key: &str, unset: Unset) -> Self {
        Self { key: key.to_owned(), value: Value::Null, unset: Some(Rc::new(unset)), deleted: false }
    }

    /// A key with a word of a script as its value; the value is converted if the whole word is known.
    pub fn of_word(key: String, word: &Word, value: impl Fn(&str) -> Value) -> Self {
        match word.unset() {
            Some(unset) => {
                let unset = Some(Rc::clone(unset));
                Self { key, value: Value::String(word.to_string()), unset, deleted: false }
            }
            None => Self::new(key, value(word)),
        }
    }
}

/// The content of a file.
#[derive(Debug)]
pub struct Contents {
    /// Its keys, in order.
    pub entries: Vec<Entry>,
    /// Lines of a script that were not followed and may change the meaning of others.
    pub notes: Vec<String>,
    /// The system, where the kind of file tells it.
    pub dialect: Option<Dialect>,
}

impl Contents {
    fn new(entries: Vec<Entry>, notes: Vec<String>) -> Self {
        Self { entries, notes, dialect: None }
    }
}

/// Reads a file; mappings within mappings become dotted keys.
///
/// # Errors
/// When it cannot be read, belongs to a system that is refused, or is neither a mapping, nor a command of TRL, nor a
/// list of overrides.
pub fn read(path: &Path) -> Result<Contents> {
    let text = read_text(path, MOST_BYTES).context("cannot be read")?;
    foreign::refuse_file(path, &text)?;
    let source = if foreign::is_python(path) {
        script::read(&text, path)?
    } else {
        match mapping(&text) {
            Ok(entries) if is_named_as_mapping(path) => Contents::new(entries, Vec::new()),
            mapped => commands(&text, path, mapped)?,
        }
    };
    if source.entries.is_empty() {
        bail!("holds no options");
    }
    let entries = spread(source.entries);
    foreign::refuse_keys(&entries)?;
    Ok(Contents { entries: resolved(entries), ..source })
}

/// The command of a script, or the mapping if the file is one.
fn commands(text: &str, path: &Path, mapped: Result<Vec<Entry>>) -> Result<Contents> {
    let mapped = |error: Option<anyhow::Error>| match (mapped, error) {
        (Ok(entries), _) => Ok(Contents::new(entries, Vec::new())),
        (Err(_), Some(of_script)) if is_script(text, path) => Err(of_script),
        (Err(_), None) if is_script(text, path) => bail!(NOTHING),
        (Err(of_mapping), _) => Err(of_mapping),
    };
    let text_of = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let script = match shell::read(text, env::vars_os().filter_map(text_of)) {
        Ok(script) => script,
        Err(error) => return mapped(Some(error)),
    };
    foreign::refuse_commands(&script.commands)?;
    command::refuse_guesses(&script)?;
    if let Some(entries) = command::entries(&script.commands, path)? {
        return Ok(Contents::new(entries, script.notes));
    }
    let (entries, notes) = command::overrides(&script.commands)?;
    if entries.is_empty() {
        return mapped(command::unlike(&script.commands));
    }
    Ok(Contents::new(entries, [script.notes, notes].concat()))
}

/// Whether a file shows that it is a script.
fn is_script(text: &str, path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| ["sh", "bash"].iter().any(|name| extension == *name));
    named || text.starts_with("#!")
}

/// Reads a file that holds a mapping.
///
/// # Errors
/// When it cannot be read or is no mapping.
pub fn file(path: &Path) -> Result<Vec<Entry>> {
    mapping(&read_text(path, MOST_BYTES).context("cannot be read")?)
}

fn is_named_as_mapping(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|name| extension == *name))
}

fn mapping(text: &str) -> Result<Vec<Entry>> {
    let Value::Object(map) = yaml::value(text)? else {
        bail!(NOTHING);
    };
    let mut entries = Vec::new();
    flatten("", map, &mut entries);
    Ok(entries)
}

/// Mappings within a mapping as dotted keys.
pub fn flatten(prefix: &str, map: Map<String, Value>, entries: &mut Vec<Entry>) {
    for (key, value) in map {
        let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Object(inner) if !inner.is_empty() => flatten(&key, inner, entries),
            value => entries.push(Entry::new(key, value)),
        }
    }
}

/// With mappings that are values as dotted keys, and those that TRL takes as JSON (`generation_kwargs: '{"stop":
/// ["="]}'`).
fn spread(entries: Vec<Entry>) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    for entry in entries {
        let is_mapping = entry.key.rsplit('.').next().is_some_and(|name| name.ends_with("_kwargs"));
        let map = match &entry.value {
            _ if entry.unset.is_some() => None,
            Value::Object(map) => Some(map.clone()),
            Value::String(text) if is_mapping && text.trim_start().starts_with('{') => {
                serde_json::from_str(text).ok().or_else(|| serde_saphyr::from_str(text).ok())
            }
            _ => None,
        };
        let mut more = Vec::new();
        match map.filter(|map| !map.is_empty()) {
            Some(map) => flatten(&entry.key, map, &mut more),
            None => more.push(entry),
        }
        all.retain(|known| !more.iter().any(|other| other.key == known.key));
        all.extend(more);
    }
    all
}

/// The value of a flag: a number, true or false, null, a list or a mapping as in YAML, else the text.
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

/// Replaces `${a.b.c}` with the value of that key.
fn resolved(entries: Vec<Entry>) -> Vec<Entry> {
    let known = entries.clone();
    let lookup = |value: &Value| -> Option<Value> {
        let inner = value.as_str()?.strip_prefix("${")?.strip_suffix('}')?;
        // OmegaConf's `${oc.select:KEY,DEFAULT}`.
        let (key, default) = match inner.strip_prefix("oc.select:") {
            Some(words) => {
                words.split_once(',').map_or((words, Some(Value::Null)), |(key, text)| (key, Some(scalar(text))))
            }
            None => (inner, None),
        };
        let found =
            known.iter().find(|entry| entry.key == key && entry.unset.is_none()).map(|entry| entry.value.clone());
        found.or(default.filter(|_| !key.starts_with('.')))
    };
    let replaced = |entry: Entry| {
        // The value of a reference may be a reference again.
        let value = (0..8).try_fold(entry.value.clone(), |value, _| lookup(&value).ok_or(value));
        Entry { value: value.unwrap_or_else(|value| value), ..entry }
    };
    entries.into_iter().map(replaced).collect()
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
        read(&path).map(|source| source.entries)
    }

    fn entry(key: &str, value: Value) -> Entry {
        Entry::new(key, value)
    }

    #[test]
    fn mappings_become_dotted_keys_in_order() {
        let expected = [entry("a", json!(1e-6)), entry("b.c", json!([1, 2])), entry("b.d", json!(1e-6))];
        assert_eq!(of("a: 1e-6\nb:\n  c: [1, 2]\n  d: ${a}\n").unwrap(), expected);
        assert_eq!(of(r#"{"a": 1e-6, "b": {"c": [1, 2], "d": "${a}"}}"#).unwrap(), expected);
        let expected = [entry("a.b", json!(3)), entry("c", json!(3)), entry("d", json!(5))];
        assert_eq!(of("a: {b: 3}\nc: '${oc.select:a.b,4}'\nd: '${oc.select:x.y,5}'\n").unwrap(), expected);
    }

    #[test]
    fn mappings_that_are_values_become_dotted_keys_too() {
        let found = of("x_kwargs: '{\"stop\": [\"=\"], \"top_p\": 0.9}'\nname: '{a}'\n").unwrap();
        let expected =
            [entry("x_kwargs.stop", json!(["="])), entry("x_kwargs.top_p", json!(0.9)), entry("name", json!("{a}"))];
        assert_eq!(found, expected);
        let found = of("a.b.c=1 'a.b={c:2,d:{e: f}}' a.b.d.e=g\n").unwrap();
        assert_eq!(found, [entry("a.b.c", json!(2)), entry("a.b.d.e", json!("g"))]);
    }

    /// Damaged files, as in the targets of `tests/fuzz`.
    #[test]
    fn whatever_a_file_holds_its_keys_are_found_or_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let seeds = [
            "a: 1e-6\nb:\n  c: [1, 2]\n  d: ${a}\nx: &x {y: |\n  text\n}\nz: *x\n",
            r#"{"a": 1e-6, "b": {"c": [1, 2], "d": "${a}"}}"#,
            "trl grpo --model_name_or_path m --learning_rate 1e-6 \\\n  --flag --list a b # words\n",
            "trl grpo \"a\nb\" --flag # a word of two lines, once shown as such\n",
            "A=${A:-\"${B}/x\"}\nL=$((2 * 3))\nARGS=(a.b=$A)\nif [ -z \"$C\" ]; then ARGS+=(c.d=$L); fi\npython3 \
             x.py \"${ARGS[@]}\"\n",
            "python3 -m verl.trainer.main_ppo a.b=grpo +data.files=\"['a b.parquet']\" x.y=$HOME/z q.r='\"s t\"' $@\n",
        ];
        let explore = move || {
            harness::fuzz::explore("import_config", &seeds.map(|seed| seed.as_bytes().to_vec()), |bytes| {
                fs::write(&path, bytes).unwrap();
                if let Err(error) = read(&path) {
                    assert!(!error.to_string().contains('\n'), "{error:?}");
                }
            });
        };
        // The stack of a main thread, on which the launcher reads: without optimisation, the nesting that is allowed
        // takes more than a test's thread has.
        std::thread::Builder::new().stack_size(8 << 20).spawn(explore).unwrap().join().unwrap();
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
        let told: Vec<_> = found.iter().filter_map(|entry| entry.unset.as_ref()).map(ToString::to_string).collect();
        assert_eq!(
            told,
            ["line 3: `$HOME` is a shell variable that the script does not set; put HOME=FOLDER on the first line \
                 of the script, or write the path out"]
        );
        let found: Vec<Entry> = found.into_iter().map(|entry| Entry { unset: None, ..entry }).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_script_that_trains_by_a_variable_which_nothing_sets_is_refused() {
        let script = |condition: &str| {
            format!(
                "#!/bin/sh\nif {condition}; then\n  trl grpo --learning_rate 1e-5\nelse\n  trl grpo --learning_rate \
                 1e-6\nfi\n"
            )
        };
        let refusal = |condition: &str| of(&script(condition)).unwrap_err().to_string();
        assert_eq!(
            refusal("[ \"$UNSET_BY_ALL\" = 1 ]"),
            "line 2: nothing sets `$UNSET_BY_ALL`, which decides whether the command of line 3 is read; set it in the \
             environment, as in `UNSET_BY_ALL=VALUE tandem import-config …` (`UNSET_BY_ALL=` for an empty one), or \
             give it a default, as in `${UNSET_BY_ALL:-VALUE}`"
        );
        assert!(refusal("[ \"$1\" = a ]").ends_with(
            "put `set -- VALUE …` with the arguments of the script on its \
                                                      first line"
        ));
        assert_eq!(of(&script("[ \"${UNSET_BY_ALL:-2}\" = 1 ]")).unwrap(), [entry("learning_rate", json!(1e-6))]);
        let overrides = "if [ \"$UNSET_BY_ALL\" = 1 ]; then\npython3 -m verl.trainer.main_ppo a.b=1\nfi\n";
        let overrides = of(&format!("{overrides}python3 -m verl.trainer.main_ppo a.b=2\n")).unwrap_err().to_string();
        assert!(overrides.contains("decides whether the command of line 2 is read"), "{overrides}");
    }

    #[test]
    fn other_content_is_refused_in_one_line() {
        for (text, words) in [
            ("- a\n- b\n", "must hold a mapping"),
            ("just words", "must hold a mapping"),
            ("a: [1, 2\nb: 3", "no valid YAML"),
            ("a: 1\na: 2", "line 2: `a` is given twice"),
            ("a: {b: 1, b: 2}", "line 1: `b` is given twice"),
            ("a: 1\nb: -.inf", "line 2: `-.inf` is no finite number, and no option takes another; write one, or"),
            ("a: &x\n  b: *x", "line 2: an anchor refers to itself; write the value out"),
            ("a: 1\n---\nb: 2", "line 3: a second document begins; keep one of them"),
            ("{}", "no options"),
        ] {
            let message = of(text).unwrap_err().to_string();
            assert!(message.contains(words) && !message.contains('\n'), "{text}: {message}");
        }
    }
}
