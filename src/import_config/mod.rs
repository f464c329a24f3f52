//! `tandem import-config`: a configuration of TRL, verl or RLinf as `run.toml`, with an account of every key. `tandem
//! train` does the same with a file that is none of ours.

mod accelerate;
mod command;
mod dialect;
mod foreign;
mod hydra;
mod mixture;
mod prompts;
mod read;
mod rewards;
mod rlinf;
mod rules;
mod schedule;
mod script;
mod shell;
mod tools;
mod translate;
mod trl;
mod verl;
mod yaml;

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use shared::{files::atomic, run::notices};
use shared_bounds::OneLine;

use crate::terminal::output;
use dialect::Dialect;
use read::Contents;
use rules::Rule;
use translate::Translation;

/// Words of `tandem import-config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration: YAML, JSON, a `trl grpo` command, a Python script with TRL's GRPOTrainer, or a list of
    /// a.b.c=value (a whole command or script will do).
    file: PathBuf,
    /// Whose it is; told by its keys when not given.
    #[arg(long)]
    from: Option<Dialect>,
    /// Where to write the run.toml; standard output when not given.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Print the options with the account as JSON instead, for programs.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Why a key of TRL's is no option of ours, if it has no counterpart.
pub fn hint(key: &str) -> Option<&'static str> {
    match Dialect::Trl.rules().find(key) {
        Some(Rule::Hint(hint) | Rule::Refused(hint, _)) => Some(hint),
        _ => None,
    }
}

/// Runs `tandem import-config`. The account goes to stderr.
///
/// Where `tandem train` would refuse keys, the file is written without them, to be completed. The command then fails,
/// so that no chain of commands goes on to train.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = args.output.as_ref().filter(|path| path.exists()) {
        bail!("{}: there is such a file; name another with --output, or remove it", path.display());
    }
    let imported = Imported::read(&args.file, args.from)?;
    if args.json {
        output::print(imported.to_json());
        return Ok(ExitCode::SUCCESS);
    }
    let toml = imported.to_toml();
    match &args.output {
        None => output::print(toml.trim_end()),
        Some(path) => atomic::write_output(path, toml.as_bytes()).with_context(|| path.display().to_string())?,
    }
    output::tell((imported.account() + &imported.doubts()).trim_end());
    Ok(if imported.translation.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Refuses TOML of another system, which `tandem train` would take for its own.
///
/// # Errors
/// Its name, and the way out.
pub fn refuse_toml(text: &str) -> Result<()> {
    foreign::refuse_toml(text)
}

/// Whether the name of a file marks a configuration of another system.
pub fn is_foreign(file: &Path) -> bool {
    let endings = ["yaml", "yml", "json", "sh", "bash", "py", "ipynb"];
    file.extension().is_some_and(|extension| endings.iter().any(|ending| extension.eq_ignore_ascii_case(ending)))
}

/// A configuration of another system, translated.
#[derive(Debug)]
pub struct Imported {
    file: PathBuf,
    dialect: Dialect,
    translation: Translation,
}

impl Imported {
    /// Reads a file; without `from`, the keys tell whose file it is.
    ///
    /// # Errors
    /// When it cannot be read, or belongs to no system that is known.
    pub fn read(file: &Path, from: Option<Dialect>) -> Result<Self> {
        let name = || file.display().to_string();
        let Contents { entries, notes, dialect } = read::read(file).with_context(name)?;
        let dialect = from.or(dialect).map_or_else(|| Dialect::detect(&entries), Ok).with_context(name)?;
        let mut translation = translate::translate(&entries, dialect.rules());
        translation.remarks.extend(notes);
        Ok(Self { file: file.to_owned(), dialect, translation })
    }

    /// The text of `run.toml`.
    pub fn to_toml(&self) -> String {
        let (file, name) = (self.file.display(), self.dialect.name());
        let filled = self.translation.filled_in().join(", ");
        let defaults = if filled.is_empty() { String::new() } else { format!("# Defaults of {name}: {filled}.\n") };
        let keys: Vec<&str> = self.translation.refused.iter().map(|(key, _)| key.as_str()).collect();
        let keys = keys.join(", ");
        let lost = if keys.is_empty() {
            keys
        } else {
            format!("# Not taken over, and changes the training: {}.\n", OneLine(&keys))
        };
        format!("# From {file} of {name}.\n{defaults}{lost}{}", self.translation.to_toml())
    }

    /// The options, and the fate of every other key: `unknown` ones, `refused` ones, for which a run would not start,
    /// and those that are `left_out` without harm, each with the reason; then `notes`.
    fn to_json(&self) -> Value {
        let translation = &self.translation;
        let options: toml::Table = translation.to_toml().parse().expect("a configuration is valid TOML");
        let is_refused = |key: &str| translation.refused.iter().any(|(refused, _)| refused == key);
        let (unknown, known): (Vec<_>, Vec<_>) =
            translation.left_out.iter().cloned().partition(|(_, reason)| translate::is_unknown(reason));
        let (refused, left_out): (Vec<_>, Vec<_>) = known.into_iter().partition(|(key, _)| is_refused(key));
        let by_key = |keys: Vec<(String, String)>| -> Map<String, Value> {
            keys.into_iter().map(|(key, reason)| (key, reason.into())).collect()
        };
        let notes: Vec<String> = translation.recounted_in_words().chain(translation.remarks.iter().cloned()).collect();
        json!({
            "options": options,
            "unknown": by_key(unknown),
            "refused": by_key(refused),
            "left_out": by_key(left_out),
            "notes": notes,
        })
    }

    /// Refuses to go on without an option whose value was not taken over and is not given elsewhere.
    ///
    /// # Errors
    /// Every such key, with the reason.
    pub fn require_all(&self, is_given: impl Fn(&str) -> bool) -> Result<()> {
        let Translation { left_out, refused, .. } = &self.translation;
        let missing = refused.iter().filter(|(_, option)| !is_given(option));
        let reason = |key: &str| left_out.iter().find(|(name, _)| name == key).map_or("", |(_, reason)| reason);
        let line = |(key, option): &(String, String)| match option.as_str() {
            "" => format!("{key}: {}", reason(key)),
            option => format!("{key} (--{option}): {}", reason(key)),
        };
        let list: Vec<String> = missing.map(line).collect();
        if list.is_empty() {
            return Ok(());
        }
        bail!("{}: {}", self.file.display(), list.join("; "))
    }

    /// Every key, and its fate.
    pub fn account(&self) -> String {
        account(&self.translation, self.dialect)
    }

    /// Obstacles to training, and remarks.
    fn doubts(&self) -> String {
        let config = &self.translation.config;
        let error = config.validate().err().map(|error| format!("before training: {error}"));
        // The model is unknown, so only remarks on the rate that do not depend on its size are made.
        let rate = notices::learning_rate(config, 0).map(|notice| notice.to_string());
        let warnings = config.warnings().into_iter().chain(rate).map(|warning| format!("warning: {warning}"));
        error.into_iter().chain(warnings).map(|line| line + "\n").collect()
    }
}

/// The heading of keys that `tandem train FILE` refuses.
const REFUSED: &str = "refused by `tandem train`, because the training would be another without";

/// Every key, and its fate.
fn account(translation: &Translation, dialect: Dialect) -> String {
    let mut text = String::new();
    let mut line = |words: String| writeln!(text, "{words}").expect("writing to a String");
    let filled = translation.filled_in();
    line(format!("{} options taken over from {}:", translation.mapped.len() - filled.len(), dialect.name()));
    for (key, option) in &translation.mapped {
        match key.as_str() {
            "" => {}
            key if key == option => line(format!("  {option}")),
            key => line(format!("  {key} -> {option}")),
        }
    }
    if !filled.is_empty() {
        line(format!("{} defaults of {} that differ from ours filled in:", filled.len(), dialect.name()));
    }
    for default in filled {
        line(format!("  {default}"));
    }
    translation.recounted_in_words().for_each(&mut line);
    let is_refused = |key: &String| translation.refused.iter().any(|(refused, _)| refused == key);
    let (refused, left_out): (Vec<_>, Vec<_>) = translation.left_out.iter().partition(|(key, _)| is_refused(key));
    let in_words = |keys: Vec<&(String, String)>| keys.iter().map(|(key, reason)| format!("{key}: {reason}")).collect();
    for (what, keys) in [
        ("looked at together", translation.combined.clone()),
        ("without a counterpart", in_words(left_out)),
        (REFUSED, in_words(refused)),
    ] {
        if !keys.is_empty() {
            line(format!("{} {} {what}:", keys.len(), if keys.len() == 1 { "key" } else { "keys" }));
        }
        keys.into_iter().for_each(|key| line(format!("  {key}")));
    }
    translation.remarks.iter().for_each(|remark| line(format!("note: {remark}")));
    text
}

#[cfg(test)]
mod tests;
