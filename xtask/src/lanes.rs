//! Runs all tests of the workspace in two lanes at the same time.
//!
//! Some tests wait for most of their time: for deadlines, restarts and timeouts of programs that they stop or cut off.
//! The others compute. Cargo runs one test binary after the other, so cores would idle while the former wait. Each lane
//! is a `cargo test` of its own with some of the targets. All of them are built first, so that no lane compiles while
//! the other one runs.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::host::Host;

/// Targets whose tests wait for most of their time.
const WAITING: &[&str] = &[
    "errors",
    "fleet",
    "fleet_faults",
    "fleet_lines",
    "fleet_refused",
    "fleet_store",
    "hub",
    "launcher",
    "report_to",
    "run_directory",
    "supervision",
    "torn",
];

/// Runs all tests. The first lane prints while it runs; the output of the second one follows.
///
/// # Errors
/// When tests do not build, when lanes fail (the error names all that do), or when cargo cannot be run.
pub fn run(host: &Host, variable: (&str, &Path)) -> Result<()> {
    let (computing, waiting) = lanes(&targets(host)?);
    let path = host.target.join("waiting-tests.txt");
    let command = |words: &[String]| {
        let mut command = host.cargo();
        command.args(["test", "--release", "--workspace", "--locked", "--no-fail-fast"]);
        command.args(words).env(variable.0, variable.1);
        command
    };
    let built = command(&["--no-run".to_owned()]).status().context("cannot start cargo")?;
    ensure!(built.success(), "tests do not build: {built}");
    // The status of a lane, if it has failed.
    let failure = |words: &[String], output: Option<File>| -> Result<Option<ExitStatus>> {
        // Without a target, cargo would run all of them.
        if words.is_empty() {
            return Ok(None);
        }
        let mut command = command(words);
        if let Some(output) = output {
            command.stdout(output.try_clone()?).stderr(output);
        }
        let status = command.status().context("cannot start cargo")?;
        Ok((!status.success()).then_some(status))
    };
    let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| failure(&waiting, Some(output)));
        (failure(&computing, None), second.join().expect("waiting for cargo does not panic"))
    });
    let said = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    eprint!("{}", String::from_utf8_lossy(&said));
    let of_documentation = failure(&["--doc".to_owned()], None);
    let lanes = [("computing", first?), ("waiting", second?), ("in documentation", of_documentation?)];
    let failed = lanes.iter().filter_map(|(lane, failure)| failure.map(|status| format!("{lane}: {status}")));
    let failed: Vec<String> = failed.collect();
    ensure!(failed.is_empty(), "tests failed ({})", failed.join("; "));
    Ok(())
}

/// The targets that have tests, in the form of cargo's options.
fn targets(host: &Host) -> Result<Vec<(String, String)>> {
    let mut metadata: Command = host.cargo();
    metadata.args(["metadata", "--no-deps", "--format-version", "1", "--locked"]).stderr(Stdio::inherit());
    let output = metadata.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "`cargo metadata` failed with {}", output.status);
    let metadata: Value = serde_json::from_slice(&output.stdout).context("what `cargo metadata` says")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let all = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tested = all.filter(|target| target["test"] == true);
    let of = |target: &Value| Some((target["kind"][0].as_str()?.to_owned(), target["name"].as_str()?.to_owned()));
    Ok(tested.filter_map(of).collect())
}

/// Options for both lanes: for targets that compute, and for the [`WAITING`] ones.
fn lanes(targets: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let mut lanes = (vec!["--lib".to_owned(), "--bins".to_owned()], Vec::new());
    for (kind, name) in targets {
        let is_waiting = kind == "test" && WAITING.contains(&name.as_str());
        if ["test", "example"].contains(&kind.as_str()) {
            let lane = if is_waiting { &mut lanes.1 } else { &mut lanes.0 };
            lane.extend([format!("--{kind}"), name.clone()]);
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_in_one_lane() {
        let targets = targets(&Host::current().unwrap()).unwrap();
        let (computing, waiting) = lanes(&targets);
        for kind in ["--lib", "--bins"] {
            assert!(computing.iter().any(|word| word == kind), "{computing:?}");
        }
        let named = |lane: &[String]| lane.iter().filter(|word| !word.starts_with("--")).count();
        assert_eq!(named(&waiting), WAITING.len(), "each waiting target is there: {waiting:?}");
        let selected = targets.iter().filter(|(kind, _)| ["test", "example"].contains(&kind.as_str())).count();
        assert_eq!(named(&computing) + named(&waiting), selected);
        let others: Vec<_> = targets.iter().filter(|(kind, _)| !["test", "example"].contains(&kind.as_str())).collect();
        assert!(others.iter().all(|(kind, _)| ["lib", "bin"].contains(&kind.as_str())), "{others:?}");
    }
}
