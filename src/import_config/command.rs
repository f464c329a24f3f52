//! The command that starts a training, as keys and values: a script of TRL or one like it with flags, or verl's with
//! overrides.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use shared_bounds::OneLine;

use super::{
    accelerate, hydra,
    read::{self, Entry},
    shell::{self, Word},
    trl,
};

/// The options of the one command of a script that trains with TRL; none if there is no such command.
///
/// The options of the files that it names come first. The flags of the launcher and the script follow, and win.
/// `script` is the file that has the command.
///
/// # Errors
/// More than one such command, words that are no options, or a file that cannot be read.
pub fn entries(commands: &[shell::Command], script: &Path) -> Result<Option<Vec<Entry>>> {
    let parsed = commands.iter().filter_map(Command::parse);
    let found: Vec<Command> = parsed.filter(|command| command.is_of_trl() && !command.has_overrides()).collect();
    match found.as_slice() {
        [] => Ok(None),
        [command] => {
            lost(commands)?;
            command.entries(script).map(Some)
        }
        several => {
            bail!("holds {} commands that train with TRL (lines {}); keep one of them", several.len(), lines(several))
        }
    }
}

/// Refuses a script in which a command that trains is passed over because nothing sets a variable of a condition.
///
/// # Errors
/// The variable, and the ways to give it a value.
pub fn refuse_guesses(script: &shell::Script) -> Result<()> {
    for shell::Guess { line, name, others } in &script.guesses {
        let mut trains = others.iter().filter_map(Command::parse).filter(|one| one.is_of_trl() || one.has_overrides());
        let Some(other) = trains.next() else { continue };
        let is_argument = name.starts_with(|first: char| first.is_ascii_digit());
        let way = if is_argument {
            "put `set -- VALUE …` with the arguments of the script on its first line".to_owned()
        } else {
            format!(
                "set it in the environment, as in `{name}=VALUE tandem import-config …` (`{name}=` for an empty one), \
                 or give it a default, as in `${{{name}:-VALUE}}`"
            )
        };
        bail!(
            "line {line}: nothing sets `${name}`, which decides whether the command of line {} is read; {way}",
            other.line
        );
    }
    Ok(())
}

/// Refuses lines that are meant for the command above them but that the shell takes for commands of their own.
fn lost(commands: &[shell::Command]) -> Result<()> {
    let begins = |command: &&shell::Command| command.words.first().is_some_and(|word| word.starts_with("--"));
    match commands.iter().find(begins) {
        None => Ok(()),
        Some(command) => {
            let word = OneLine(&command.words[0]);
            bail!("line {}: `{word}` begins a command of its own: {BROKEN}; mend that", command.line)
        }
    }
}

/// Why a line is not part of the command above it.
const BROKEN: &str =
    "the line above does not go on, since blanks stand behind its `\\`, or a comment is between the two";

/// The overrides of a script's one command with overrides, or of a list of overrides, and notes on words that were not
/// read; the last of several for a key wins, as in Hydra.
///
/// # Errors
/// More than one such command, or words that are not known.
pub fn overrides(commands: &[shell::Command]) -> Result<(Vec<Entry>, Vec<String>)> {
    let parsed: Vec<Command> = commands.iter().filter_map(Command::parse).collect();
    let runs: Vec<&Command> = parsed.iter().filter(|command| command.has_overrides()).collect();
    if runs.len() > 1 {
        let several: Vec<String> = runs.iter().map(|command| command.line.to_string()).collect();
        bail!("holds {} commands with overrides (lines {}); keep one of them", runs.len(), several.join(", "));
    }
    let begins = |command: &&shell::Command| command.words.first().is_some_and(|word| dotted(word).is_some());
    // Lines behind a run that begin like overrides are meant for it, although the shell takes a broken continuation for
    // its end.
    let lists: Vec<&shell::Command> = commands.iter().filter(begins).collect();
    let mut notes = Vec::new();
    if let Some(run) = runs.first() {
        lost(commands)?;
        notes.extend(run.base());
        notes.extend(lists.iter().filter(|list| list.line > run.line).map(|list| {
            format!(
                "line {}: is read as part of the command of line {}; a shell does not: {BROKEN}",
                list.line, run.line
            )
        }));
    }
    let of_runs = runs.iter().flat_map(|command| command.script.iter().map(|word| (command.line, word)));
    let of_lists = lists.iter().flat_map(|list| list.words.iter().map(|word| (list.line, word)));
    let mut entries: Vec<Entry> = Vec::new();
    for (line, word) in of_runs.chain(of_lists) {
        if let Some(key) = deleted(word) {
            let is_below = |known: &str| known.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
            entries.retain(|known| known.key != key && !is_below(&known.key));
            entries.push(Entry::deleted(key, line, word));
            continue;
        }
        let Some((key, value)) = dotted(word) else {
            if let Some(unset) = word.unset().filter(|_| !word.starts_with('-')) {
                bail!("{unset}, and it stands for whole words; write them out");
            }
            continue;
        };
        entries.retain(|known| known.key != key);
        let key = key.to_owned();
        let value = word.after(value);
        entries.push(Entry::of_word(key, &value, hydra::value));
    }
    Ok((entries, notes))
}

/// The key of an override `a.b=value`, and where its value begins.
fn dotted(word: &str) -> Option<(&str, usize)> {
    let (written, _) = word.split_once('=')?;
    let key = written.trim_start_matches('+');
    let is_key = key.contains('.') && !key.starts_with('.') && !key.starts_with('-');
    let letters = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/'));
    (is_key && letters).then_some((key, written.len() + 1))
}

fn is_override(word: &str) -> bool {
    dotted(word).is_some() || deleted(word).is_some()
}

/// The key that an override takes away, `~a.b` or `~a.b=value`. The shell leaves such a word as it is where no user has
/// that name.
fn deleted(word: &str) -> Option<&str> {
    let written = word.strip_prefix('~')?;
    let key = written.split_once('=').map_or(written, |(key, _)| key);
    let is_key = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let letters = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
    (is_key && letters).then_some(key)
}

/// The error for a script with a command that takes some of TRL's flags and more that are not TRL's.
pub fn unlike(commands: &[shell::Command]) -> Option<anyhow::Error> {
    let parsed: Vec<Command> = commands.iter().filter_map(Command::parse).collect();
    let near = parsed.iter().find(|command| command.known().0 > 0)?;
    let (known, all) = near.known();
    Some(anyhow!(
        "line {}: of the {all} flags of this command {known} are TRL's, so it is another trainer's, which is not read; \
         write its options as run.toml (`tandem train --dry-run` prints all there are)",
        near.line
    ))
}

fn lines(commands: &[Command]) -> String {
    commands.iter().map(|command| command.line.to_string()).collect::<Vec<_>>().join(", ")
}

/// The parts of a command line.
#[derive(Debug)]
struct Command<'a> {
    /// Its line.
    line: usize,
    /// The kind of script that it starts.
    kind: Script,
    /// Assignments in front of the command.
    environment: Vec<(&'a str, Word)>,
    /// Words for the launcher of the script.
    launcher: &'a [Word],
    /// Words for the script.
    script: &'a [Word],
}

impl<'a> Command<'a> {
    fn parse(command: &'a shell::Command) -> Option<Self> {
        let words = command.words.as_slice();
        let environment: Vec<_> = words.iter().map_while(Word::assignment).collect();
        let words = &words[environment.len()..];
        let (at, kind) = (1..words.len()).find_map(|at| Some((at, Script::of(&words[at - 1], &words[at])?)))?;
        let before = if kind == Script::File { at } else { at - 1 };
        Some(Self { line: command.line, kind, environment, launcher: &words[..before], script: &words[at + 1..] })
    }

    /// How many of the script's flags are TRL's, and how many flags it has.
    fn known(&self) -> (usize, usize) {
        let flags = self.script.iter().filter_map(|word| flag(word)).map(|(key, _)| key);
        let keys: Vec<String> = flags.collect();
        let is_known = |key: &&String| {
            let off = key.strip_prefix("no_").is_some_and(|rest| trl::RULES.find(rest).is_some());
            off || trl::RULES.find(key).is_some()
        };
        (keys.iter().filter(is_known).count(), keys.len())
    }

    /// Whether it trains with TRL: by its name, or because most of its flags are TRL's.
    fn is_of_trl(&self) -> bool {
        let (known, all) = self.known();
        self.kind == Script::OfTrl || (known > 0 && 2 * known >= all)
    }

    fn has_overrides(&self) -> bool {
        self.script.iter().any(|word| dotted(word).is_some())
    }

    /// Words that choose files of a configuration, and words that are no overrides: a line on each, since such files
    /// may hold anything.
    fn base(&self) -> Vec<String> {
        const OPTIONS: [&str; 6] = ["--config-path", "--config-name", "--config-dir", "-cp", "-cn", "-cd"];
        // Names of the configurations that are used without being named.
        const USUAL: [&str; 2] = ["ppo_trainer", "ppo_megatron_trainer"];
        let compose = "what it sets is not known here; give the composed configuration (`--cfg job` prints it) as YAML";
        let mut notes = Vec::new();
        let mut words = self.script.iter();
        while let Some(word) = words.next() {
            let (name, beside) = word.split_once('=').map_or((&**word, None), |(name, value)| (name, Some(value)));
            if OPTIONS.contains(&name) {
                let value = beside.or_else(|| words.next().map(|word| &**word)).unwrap_or_default();
                if !USUAL.contains(&value.trim_end_matches(".yaml")) {
                    notes.push(format!("line {}: `{name} {}` is not read; {compose}", self.line, OneLine(value)));
                }
            } else if name.starts_with('-') || word.trim().is_empty() || is_override(word) {
            } else if beside.is_some() {
                notes.push(format!(
                    "line {}: `{}` chooses a file of the configuration, which is not read; {compose}",
                    self.line,
                    OneLine(word)
                ));
            } else {
                notes.push(format!("line {}: `{}` is no override, and is not read", self.line, OneLine(word)));
            }
        }
        notes
    }

    fn entries(&self, script: &Path) -> Result<Vec<Entry>> {
        let launcher = flags(self.launcher.iter().skip_while(|word| !word.starts_with("--")))?;
        let mut given = launcher;
        put(&mut given, flags(self.script.iter())?);
        let mut entries = Vec::new();
        for Entry { key, value, unset, .. } in &given {
            let Some(name) = value.as_str() else {
                let files = ["config", "config_file", "accelerate_config"];
                if files.contains(&key.as_str()) && value.is_array() {
                    bail!("--{key} takes one file, and has several words behind it: {}", OneLine(&value.to_string()));
                }
                continue;
            };
            if let (Some(unset), "config" | "config_file" | "accelerate_config") = (unset, key.as_str()) {
                bail!("--{key} {}: {unset}", OneLine(name));
            }
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
        let variable = |(name, value): &(&str, Word)| Entry::new(format!("env.{name}"), value.to_string());
        put(&mut entries, self.environment.iter().map(variable).collect());
        Ok(entries)
    }
}

/// The kind of script that a command starts.
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
    /// The script that a word names; `before` is the word before it.
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

/// The key of a flag, and the start of its value if that stands in the same word.
fn flag(word: &str) -> Option<(String, Option<usize>)> {
    let name = word.strip_prefix("--")?;
    let (key, value) = name.split_once('=').map_or((name, None), |(key, _)| (key, Some(key.len() + 3)));
    Some((key.replace('-', "_"), value))
}

/// Flags with their values, as argparse reads them: a flag takes all values that follow it, and without values it means
/// true.
fn flags<'a>(words: impl Iterator<Item = &'a Word>) -> Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let Some((key, beside)) = flag(word) else {
            let found = word.unset().map_or_else(String::new, |unset| format!("{unset}: "));
            let word = OneLine(word);
            bail!("{found}`{word}` is no --option value; where it stands for several words, write them out");
        };
        let mut values: Vec<Word> = beside.map(|at| word.after(at)).into_iter().collect();
        while let Some(word) = words.next_if(|word| beside.is_none() && !word.starts_with("--")) {
            values.push(word.clone());
        }
        let entry = match values.as_slice() {
            [] => switched(key),
            [value] => Entry::of_word(key, value, read::scalar),
            several => {
                let unset = several.iter().find_map(Word::unset).cloned();
                let list: Vec<Value> = several.iter().map(|word| read::scalar(word)).collect();
                Entry { key, value: list.into(), unset, deleted: false }
            }
        };
        put(&mut entries, vec![entry]);
    }
    Ok(entries)
}

/// A flag without a value; `--no_bf16` is `bf16` off.
fn switched(key: String) -> Entry {
    let off = key.strip_prefix("no_").filter(|rest| trl::RULES.find(&key).is_none() && trl::RULES.find(rest).is_some());
    match off {
        Some(rest) => Entry::new(rest, false),
        None => Entry::new(key, true),
    }
}

/// Adds entries; each replaces an entry of the same key.
fn put(entries: &mut Vec<Entry>, more: Vec<Entry>) {
    entries.retain(|known| !more.iter().any(|other| other.key == known.key));
    entries.extend(more);
}

/// A file that a command names: relative to the working directory, as in the shell, or else beside the script.
fn located(name: &str, script: &Path) -> PathBuf {
    let path = PathBuf::from(name);
    let beside = script.parent().map(|folder| folder.join(name)).filter(|beside| !path.exists() && beside.exists());
    beside.unwrap_or(path)
}
