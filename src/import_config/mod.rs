//! `tandem import-config`: a configuration of TRL, verl or RLinf as `run.toml`, with an account of every key.

mod dialect;
mod read;
mod rlinf;
mod rules;
mod translate;
mod trl;
mod verl;

use std::{fmt::Write, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use shared::{atomic, notices};

use crate::output;
use dialect::Dialect;
use rules::Rule;
use translate::{Recounted, Translation};

/// Words of `tandem import-config`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration: YAML, JSON, or a list of a.b.c=value (a whole command will do).
    file: PathBuf,
    /// Whose it is; told by its keys when not given.
    #[arg(long)]
    from: Option<Dialect>,
    /// Where to write the run.toml; standard output when not given.
    #[arg(long, short)]
    output: Option<PathBuf>,
}

/// Why a key of TRL's is no option of ours, if it is one that has no counterpart.
pub fn hint(key: &str) -> Option<&'static str> {
    match Dialect::Trl.rules().find(key) {
        Some(Rule::Hint(hint)) => Some(hint),
        _ => None,
    }
}

/// Runs `tandem import-config`. The account goes to stderr.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = args.output.as_ref().filter(|path| path.exists()) {
        bail!("{}: there is such a file; name another with --output, or remove it", path.display());
    }
    let name = || args.file.display().to_string();
    let entries = read::read(&args.file).with_context(name)?;
    let dialect = args.from.map_or_else(|| Dialect::detect(&entries), Ok).with_context(name)?;
    let translation = translate::translate(&entries, dialect.rules());
    let filled = translation.filled_in().join(", ");
    let defaults =
        if filled.is_empty() { String::new() } else { format!("# Defaults of {}: {filled}.\n", dialect.name()) };
    let toml = format!("# From {} of {}.\n{defaults}{}", name(), dialect.name(), translation.to_toml());
    match &args.output {
        None => output::print(toml.trim_end()),
        Some(path) => atomic::write(path, toml.as_bytes()).with_context(|| path.display().to_string())?,
    }
    output::tell(account(&translation, dialect).trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Every key, and what has become of it.
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
    for Recounted { option, count, theirs, ours } in &translation.recounted {
        let [there, here] = count.words();
        let per_step = translation.config.updates_per_step();
        line(format!("{option}: {theirs} {there} are {ours} {here} of {per_step} updates each, rounded up"));
    }
    let left_out = translation.left_out.iter().map(|(key, reason)| format!("{key}: {reason}")).collect();
    for (what, keys) in [("looked at together", translation.combined.clone()), ("without a counterpart", left_out)] {
        if !keys.is_empty() {
            line(format!("{} keys {what}:", keys.len()));
        }
        keys.into_iter().for_each(|key| line(format!("  {key}")));
    }
    if let Err(error) = translation.config.validate() {
        line(format!("before training: {error}"));
    }
    // Of its model nothing is known, so that only what does not depend on its size is said of the rate.
    let rate = notices::learning_rate(&translation.config, 0).map(|notice| notice.to_string());
    for warning in translation.config.warnings().into_iter().chain(rate) {
        line(format!("warning: {warning}"));
    }
    text
}

#[cfg(test)]
mod tests;
