//! `cargo xtask conformity`: Tandem against the programs that it wants to agree with, as they are released.
//!
//! The tests compare with golden figures, which such programs have made once. Here the programs themselves run: torch,
//! transformers, TRL, PEFT and ONNX Runtime in a Python environment of 5 GB. Hence no part of `cargo xtask test` is
//! among the checks. Each check is a Python script in `tests/conformity`, which prints figures; the bounds are in
//! [`checks`], where no script can loosen them.
//!
//! Results are written to `docs/conformity.md` when `--record` asks for it, and not after each run: the page is a
//! statement about a commit, and who tries a check does not want to change it. A failure is recorded like a success.

mod answer;
mod checks;
mod environment;
mod page;

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    time::Instant,
};

use anyhow::{Context, Result, bail};

use self::{
    answer::{Outcome, Verdict},
    checks::Check,
    environment::Environment,
};
use crate::{host::Host, steps};

/// Folder of what the checks write, beside the environment.
const WORK: &str = "work";

/// Arguments of `cargo xtask conformity`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Checks to make; all without any.
    names: Vec<String>,
    /// Print the checks with what they compare, and make none.
    #[arg(long, conflicts_with_all = ["names", "record"])]
    list: bool,
    /// Write the results of all checks to `docs/conformity.md`, with date, versions and processor.
    #[arg(long, conflicts_with = "names")]
    record: bool,
}

/// Makes the checks.
///
/// # Errors
/// When a name is no check, the environment cannot be made, or a check fails; the last after all were made.
pub fn run(host: &Host, args: &Args) -> Result<()> {
    if args.list {
        print!("{}", checks::list());
        return Ok(());
    }
    let chosen = checks::chosen(&args.names)?;
    steps::build(host)?;
    let place = host.target.join("conformity");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    // Another run would empty the folders that this one works in.
    let lock = place.join(".lock");
    let lock = File::create(&lock).with_context(|| lock.display().to_string())?;
    lock.lock().with_context(|| place.display().to_string())?;

    let environment = Environment::open(host, &place)?;
    // Before the checks: the page tells of the commit that they are made of, and what cannot be found out ends the
    // command at its beginning.
    let circumstances = args.record.then(|| page::Circumstances::of(host, &environment)).transpose()?;
    let mut outcomes = Vec::new();
    for check in chosen {
        let begun = Instant::now();
        let outcome = make(host, &environment, &place, check)?;
        eprintln!("{} ({} s)", outcome.line(), begun.elapsed().as_secs());
        outcomes.push(outcome);
    }
    if let Some(circumstances) = circumstances {
        let path = host.root.join(page::PATH);
        let page = page::page(&circumstances, &outcomes);
        fs::write(&path, page).with_context(|| path.display().to_string())?;
        eprintln!("{} is written", page::PATH);
    }
    judge(&outcomes, &place.join(WORK))
}

/// Runs the script of a check in an empty folder of its own.
fn make(host: &Host, environment: &Environment, place: &Path, check: &'static Check) -> Result<Outcome> {
    eprintln!("==> {}", check.name);
    let work = place.join(WORK).join(check.name);
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
    let mut script = environment.python(host);
    script.arg(host.root.join(check.script())).env("CONFORMITY_WORK", &work);
    script.env("CONFORMITY_PROGRAMS", host.target.join("release"));
    let output = script.stdin(Stdio::null()).output().context("cannot start the Python of the environment")?;
    fs::write(work.join("stderr"), &output.stderr).with_context(|| work.display().to_string())?;
    let outcome = Outcome::of(check, &output);
    // What a failure was made of is kept.
    if !matches!(outcome.verdict, Verdict::Failed(_)) {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    Ok(outcome)
}

/// The result of the command, whose checks have written into folders of `work`.
fn judge(outcomes: &[Outcome], work: &Path) -> Result<()> {
    let failed: Vec<&str> =
        outcomes.iter().filter(|o| matches!(o.verdict, Verdict::Failed(_))).map(|o| o.check.name).collect();
    eprintln!("{} passed, {} failed", outcomes.len() - failed.len(), failed.len());
    if !failed.is_empty() {
        bail!("{} failed; what they wrote is in {}", failed.join(", "), work.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
