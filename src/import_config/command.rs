//! The command that starts TRL's GRPO script, or one like it, as keys and values.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use shared_bounds::OneLine;

use super::{
    accelerate,
    read::{self, Entry},
    shell, trl,
};

/// The options of the one command of a script that trains with TRL; none if there is no such command.
///
/// Those of the files that it names come first, then the launcher's and the script's own flags, which win. `script` is where
/// the command was found.
///
/// # Errors
/// More than one such command, words that are no options, or a file that cannot be read.
pub fn entries(commands: &[Vec<String>], script: &Path) -> Result<Option<Vec<Entry>>> {
    let found: Vec<Command> = commands.iter().filter_map(|words| Command::parse(words)).collect();
    match found.as_slice() {
        [] => Ok(None),
        [command] => command.entries(script).map(Some),
        several => bail!("holds {} commands that train with TRL; keep one of them", several.len()),
    }
}

/// The parts of a command line.
#[derive(Debug)]
struct Command<'a> {
    /// Assignments in front of it.
    environment: Vec<(&'a str, &'a str)>,
    /// Words for what starts the script.
    launcher: &'a [String],
    /// Words for the script.
    script: &'a [String],
}

impl<'a> Command<'a> {
    fn parse(words: &'a [String]) -> Option<Self> {
        let environment: Vec<_> = words.iter().map_while(|word| shell::assignment(word)).collect();
        let words = &words[environment.len()..];
        let (at, kind) = (1..words.len()).find_map(|at| Some((at, Script::of(&words[at - 1], &words[at])?)))?;
        let before = if kind == Script::File { at } else { at - 1 };
        let (launcher, script) = (&words[..before], &words[at + 1..]);
        let known = |word: &String| flag(word).is_some_and(|(key, _)| trl::RULES.find(&key).is_some());
        (kind == Script::OfTrl || script.iter().any(known)).then_some(Self { environment, launcher, script })
    }

    fn entries(&self, script: &Path) -> Result<Vec<Entry>> {
        let launcher = flags(self.launcher.iter().skip_while(|word| !word.starts_with("--")))?;
        let mut given = launcher;
        put(&mut given, flags(self.script.iter())?);
        let mut entries = Vec::new();
        for (key, value) in &given {
            let Some(name) = value.as_str() else { continue };
            let of_file = match key.as_str() {
                "config" | "config_file" => read::file(&located(name, script)),
                "accelerate_config" => match accelerate::of_trl(name) {
                    Some(known) => Ok(known),
                    None => read::file(&located(name, script)),
                },
                _ => continue,
            };
            put(&mut entries, of_file.with_context(|| format!("--{key} {}", OneLine(name)))?);
        }
        put(&mut entries, given);
        let environment = self.environment.iter().map(|&(name, value)| (format!("env.{name}"), value.into()));
        put(&mut entries, environment.collect());
        Ok(entries)
    }
}

/// What is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Script {
    /// `trl grpo`.
    OfTrl,
    /// A file of Python.
    File,
    /// A module, after `-m`.
    Module,
}

impl Script {
    /// The script that a word names, which stands behind another one.
    fn of(before: &str, word: &str) -> Option<Self> {
        let is_launcher = ["accelerate", "torch."].iter().any(|name| word.starts_with(name));
        match word {
            "grpo" if Path::new(before).file_name() == Some(OsStr::new("trl")) => Some(Self::OfTrl),
            _ if word.ends_with(".py") => Some(Self::File),
            _ if ["-m", "--module"].contains(&before) && !is_launcher => Some(Self::Module),
            _ => None,
        }
    }
}

/// The key of a flag, and its value if that stands beside it.
fn flag(word: &str) -> Option<(String, Option<&str>)> {
    let word = word.strip_prefix("--")?;
    let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
    Some((key.replace('-', "_"), value))
}

/// Flags with their values, as argparse reads them: a flag has as many as follow it, and none means true.
fn flags<'a>(words: impl Iterator<Item = &'a String>) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    // What a script is given is not known, and nothing as a rule.
    let mut words = words.map(String::as_str).filter(|word| !["$@", "$*"].contains(word)).peekable();
    while let Some(word) = words.next() {
        let Some((key, value)) = flag(word) else {
            let word = OneLine(word);
            bail!("`{word}` is no --option value; where it stands for several words, write them out");
        };
        let mut values: Vec<Value> = value.into_iter().map(read::scalar).collect();
        while let Some(word) = words.next_if(|word| value.is_none() && !word.starts_with("--")) {
            values.push(read::scalar(word));
        }
        let entry = match values.len() {
            0 => switched(key),
            1 => (key, values.remove(0)),
            _ => (key, values.into()),
        };
        put(&mut entries, vec![entry]);
    }
    Ok(entries)
}

/// A flag without a value; `--no_bf16` is `bf16` off.
fn switched(key: String) -> Entry {
    let off = key.strip_prefix("no_").filter(|rest| trl::RULES.find(&key).is_none() && trl::RULES.find(rest).is_some());
    match off {
        Some(rest) => (rest.to_owned(), false.into()),
        None => (key, true.into()),
    }
}

/// Adds entries, which win over those that are there.
fn put(entries: &mut Vec<Entry>, more: Vec<Entry>) {
    entries.retain(|(key, _)| !more.iter().any(|(other, _)| other == key));
    entries.extend(more);
}

/// A file that a command names: from the working directory on, as the shell has it, or else beside the script.
fn located(name: &str, script: &Path) -> PathBuf {
    let path = PathBuf::from(name);
    let beside = script.parent().map(|folder| folder.join(name)).filter(|beside| !path.exists() && beside.exists());
    beside.unwrap_or(path)
}
