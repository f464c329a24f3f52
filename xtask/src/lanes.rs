//! All tests of the workspace, in two lanes that run at the same time.
//!
//! Some tests wait for most of their time: for deadlines, restarts and timeouts of programs that they stop or cut off.
//! The others compute. Cargo runs one test binary after the other, so cores would idle while the former wait. Each lane
//! is a `cargo test` of its own with some of the targets, all of which are built before.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail};
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

/// Runs all tests. Those of the first lane print as they run; what the second one has printed follows.
///
/// # Errors
/// When a test fails, or cargo cannot be run.
pub fn run(host: &Host, variable: (&str, &Path)) -> Result<()> {
    let (computing, waiting) = lanes(&targets(host)?);
    let path = host.target.join("waiting-tests.txt");
    let command = |words: &[String]| {
        let mut command = host.cargo();
        command.args(["test", "--release", "--workspace", "--locked", "--no-fail-fast"]);
        command.args(words).env(variable.0, variable.1);
        command
    };
    let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut second = command(&waiting);
    second.stdout(output.try_clone()?).stderr(output);
    let mut second = second.spawn().context("cannot start cargo")?;
    let first = command(&computing).status();
    let second = second.wait()?;
    eprint!("{}", fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?);
    let doc_tests = command(&["--doc".to_owned()]).status();
    for (lane, status) in [("computing", first?), ("waiting", second), ("in documentation", doc_tests?)] {
        if !status.success() {
            bail!("tests failed ({lane}): {status}");
        }
    }
    Ok(())
}

/// The targets with tests, as cargo's options select them.
fn targets(host: &Host) -> Result<Vec<(String, String)>> {
    let mut metadata: Command = host.cargo();
    let output = metadata.args(["metadata", "--no-deps", "--format-version", "1", "--locked"]).output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("what `cargo metadata` says")?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let all = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let tested = all.filter(|target| target["test"] == true);
    let of = |target: &Value| Some((target["kind"][0].as_str()?.to_owned(), target["name"].as_str()?.to_owned()));
    Ok(tested.filter_map(of).collect())
}

/// Options for both lanes: targets that compute, and [`WAITING`] ones.
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
        let named = |lane: &[String]| lane.iter().filter(|word| !word.starts_with("--")).count();
        assert_eq!(named(&waiting), WAITING.len(), "each waiting target is there: {waiting:?}");
        let selected = targets.iter().filter(|(kind, _)| ["test", "example"].contains(&kind.as_str())).count();
        assert_eq!(named(&computing) + named(&waiting), selected);
        let others: Vec<_> = targets.iter().filter(|(kind, _)| !["test", "example"].contains(&kind.as_str())).collect();
        assert!(others.iter().all(|(kind, _)| ["lib", "bin", "custom-build"].contains(&kind.as_str())), "{others:?}");
    }
}
