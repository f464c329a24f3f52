//! The commands that run cargo and the built binaries: `test`, `ci`, `demo`, `example`.

use std::{
    ffi::OsString,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{host::Host, prerequisites, setup, tidy};

/// The programs of a run on one host.
const PROGRAMS: [&str; 3] = ["tandem", "rollout", "learner"];

/// Formatting, house rules, lints, and all tests. One profile serves every step, so nothing is compiled twice for it.
///
/// # Errors
/// With the name of the first step that fails.
pub fn test(host: &Host) -> Result<()> {
    prerequisites::check_components(host)?;
    let cargo = |args: &[&str]| {
        let mut command = host.cargo();
        command.args(args);
        command
    };
    let mut steps = Steps::default();
    let result = (|| {
        steps.time("set-up", || setup::run(host, false))?;
        steps.time("format", || run(cargo(&["fmt", "--all", "--check"])))?;
        steps.time("house rules", || tidy::check(&host.root))?;
        let clippy = ["clippy", "--release", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        steps.time("clippy", || run(cargo(&clippy)))?;
        steps.time("build", || run(cargo(&["build", "--release", "--workspace", "--locked"])))?;
        let test = ["test", "--release", "--workspace", "--locked", "--no-fail-fast"];
        steps.time("tests", || run(cargo(&test)))
    })();
    steps.print();
    result
}

/// Runs `.ci/run`.
///
/// # Errors
/// When it fails.
pub fn ci(host: &Host) -> Result<()> {
    run(host.command(host.root.join(".ci/run")))
}

/// Builds the programs and runs `tandem demo`.
///
/// # Errors
/// When set-up, build or demo fails.
pub fn demo(host: &Host, args: &[OsString]) -> Result<()> {
    build(host)?;
    let mut demo = host.command(host.binary("tandem"));
    demo.arg("demo").args(args);
    run(demo)
}

/// Builds the programs, and runs the one of a folder in `examples/`.
///
/// # Errors
/// When there is no such program, or set-up, build or program fails.
pub fn example(host: &Host, name: &str, args: &[OsString]) -> Result<()> {
    let folder = host.root.join("examples").join(name);
    if !folder.join("main.rs").is_file() {
        bail!("{} has no main.rs; its README.md, if there is one, says how it is run", folder.display());
    }
    setup::run(host, false)?;
    run(programs(host, &["--example", name]))?;
    let mut example = host.command(host.binary(&format!("examples/{name}")));
    example.args(args);
    run(example)
}

/// Sets up, and builds the programs of a run.
///
/// # Errors
/// When either fails.
pub fn build(host: &Host) -> Result<()> {
    setup::run(host, false)?;
    run(programs(host, &[]))
}

/// The build of the programs of a run, and of what more targets ask for.
///
/// Of the whole workspace, cargo takes the features that dependencies have there, and of its targets, it builds the named
/// ones. With `--package`, dependencies would lack features that tests ask for, and `cargo xtask test` would compile them
/// a second time.
fn programs(host: &Host, more: &[&str]) -> Command {
    let mut build = host.cargo();
    build.args(["build", "--release", "--locked", "--workspace"]);
    build.args(PROGRAMS.iter().flat_map(|program| ["--bin", program])).args(more);
    build
}

/// Runs a command that must succeed.
///
/// # Errors
/// With the command line and its exit status.
pub fn run(mut command: Command) -> Result<()> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed with {status}");
    }
    Ok(())
}

/// Names, durations and outcomes of the steps so far.
#[derive(Debug, Default)]
struct Steps(Vec<(&'static str, Duration, bool)>);

impl Steps {
    fn time(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) -> Result<()> {
        eprintln!("==> {name}");
        let start = Instant::now();
        let result = step();
        self.0.push((name, start.elapsed(), result.is_ok()));
        result.with_context(|| format!("{name} failed"))
    }

    fn print(&self) {
        for (name, time, passed) in &self.0 {
            eprintln!("{name:<12} {:>7.1} s  {}", time.as_secs_f64(), if *passed { "ok" } else { "FAILED" });
        }
        let total: Duration = self.0.iter().map(|step| step.1).sum();
        eprintln!("{:<12} {:>7.1} s", "total", total.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_names_its_step_and_is_recorded() {
        let mut steps = Steps::default();
        steps.time("good", || Ok(())).unwrap();
        let error = steps.time("bad", || bail!("reason")).unwrap_err();
        assert_eq!(format!("{error:#}"), "bad failed: reason");
        assert_eq!(steps.0.iter().map(|step| (step.0, step.2)).collect::<Vec<_>>(), [("good", true), ("bad", false)]);
    }

    #[test]
    fn a_failing_command_is_named_with_its_arguments() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "exit 3"]);
        let error = run(command).unwrap_err().to_string();
        assert_eq!(error, "`/bin/sh -c exit 3` failed with exit status: 3");
    }
}
