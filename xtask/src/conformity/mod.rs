//! `cargo xtask conformity`: compares Tandem with released versions of the programs that it should agree with.
//!
//! The tests compare with golden figures that such programs have computed once. Here the programs themselves run:
//! torch, transformers, TRL, PEFT and ONNX Runtime in a Python environment of 5 GB. So `cargo xtask test` runs none of
//! the checks. Each check is a Python script in `tests/conformity`, which prints figures; the bounds are in [`checks`],
//! which no script can change.
//!
//! Results are written to `docs/conformity.md` only with `--record`: the page is a statement about a commit, and trying
//! a check should not change it. A failure is recorded like a success.

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

/// Folder of the checks' files, beside the environment.
const WORK: &str = "work";

/// Arguments of `cargo xtask conformity`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Checks to make; all without any.
    names: Vec<String>,
    /// Print the checks with what they compare, and make none.
    #[arg(long, conflicts_with_all = ["names", "record"])]
    list: bool,
    /// Write the results to `docs/conformity.md`, each with date and commit; rows of other checks stay.
    #[arg(long)]
    record: bool,
}

/// Runs the checks.
///
/// # Errors
/// When a name is no check, the environment cannot be made, or a check fails; a failed check is reported after all have
/// run.
pub fn run(host: &Host, args: &Args) -> Result<()> {
    if args.list {
        print!("{}", checks::list());
        return Ok(());
    }
    let chosen = checks::chosen(&args.names)?;
    steps::build(host)?;
    let place = host.target.join("conformity");
    fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    // Another run would clear the folders in which this one works.
    let lock = place.join(".lock");
    let lock = File::create(&lock).with_context(|| lock.display().to_string())?;
    lock.lock().with_context(|| place.display().to_string())?;

    let environment = Environment::open(host, &place)?;
    // Read before the checks: the page describes the commit that they run on, and missing facts should end the command
    // at its beginning.
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
        let earlier = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let page = page::page(&circumstances, &outcomes, &earlier)?;
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
    // The files of a failed check are kept.
    if !matches!(outcome.verdict, Verdict::Failed(_)) {
        fs::remove_dir_all(&work).with_context(|| work.display().to_string())?;
    }
    Ok(outcome)
}

/// The result of the command; its checks have written into folders of `work`.
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
