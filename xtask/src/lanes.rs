//! All tests of the workspace, in two lanes that run at the same time.
//!
//! Tests of the programs together wait for much of their time: for deadlines, restarts and timeouts of programs that
//! they stop or cut off. The others compute. Cargo runs one test binary after the other, so cores would idle while the
//! former wait. Each lane is a `cargo test` of its own with some of the targets. All of them are built first, so that no
//! lane compiles while the other one runs.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::host::Host;

/// The target whose tests run the programs together.
const PROGRAMS: &str = "programs";

/// How many of its tests run at once on two cores: one more than cores, since about a third of their time is waiting.
const PROGRAMS_THREADS: &str = "--test-threads=3";

/// Runs all tests. Those of the programs together print as they run; the output of all others follows.
///
/// # Errors
/// When tests do not build, lanes fail (the error names all that do), or cargo cannot be run.
pub fn run(host: &Host, variable: (&str, &Path)) -> Result<()> {
    let others = others(&targets(host)?);
    let path = host.target.join("other-tests.txt");
    let command = |words: &[String]| {
        let mut command = host.cargo();
        command.args(["test", "--release", "--workspace", "--locked", "--no-fail-fast"]);
        command.args(words).env(variable.0, variable.1);
        command
    };
    let built = command(&["--no-run".to_owned()]).status().context("cannot start cargo")?;
    ensure!(built.success(), "tests do not build: {built}");
    // The status of a lane that has failed.
    let failure = |words: &[String], output: Option<File>| -> Result<Option<ExitStatus>> {
        let mut command = command(words);
        if let Some(output) = output {
            command.stdout(output.try_clone()?).stderr(output);
        }
        let status = command.status().context("cannot start cargo")?;
        Ok((!status.success()).then_some(status))
    };
    let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let programs = ["--test", PROGRAMS, "--", PROGRAMS_THREADS].map(str::to_owned);
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| failure(&others, Some(output)));
        (failure(&programs, None), second.join().expect("waiting for cargo does not panic"))
    });
    let said = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    eprint!("{}", String::from_utf8_lossy(&said));
    let of_documentation = failure(&["--doc".to_owned()], None);
    let lanes = [("of the programs", first?), ("of the crates", second?), ("in documentation", of_documentation?)];
    let failed = lanes.iter().filter_map(|(lane, failure)| failure.map(|status| format!("{lane}: {status}")));
    let failed: Vec<String> = failed.collect();
    ensure!(failed.is_empty(), "tests failed ({})", failed.join("; "));
    Ok(())
}

/// The targets with tests: kind and name.
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

/// Cargo's options for all targets but [`PROGRAMS`].
fn others(targets: &[(String, String)]) -> Vec<String> {
    let mut options = vec!["--lib".to_owned(), "--bins".to_owned()];
    for (kind, name) in targets {
        if name != PROGRAMS && ["test", "example"].contains(&kind.as_str()) {
            options.extend([format!("--{kind}"), name.clone()]);
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_in_one_lane() {
        let targets = targets(&Host::current().unwrap()).unwrap();
        let others = others(&targets);
        for (kind, name) in &targets {
            let is_selected = match kind.as_str() {
                "lib" | "bin" => others.contains(&format!("--{kind}{}", if kind == "bin" { "s" } else { "" })),
                _ => others.windows(2).any(|words| words[0] == format!("--{kind}") && words[1] == *name),
            };
            assert_eq!(is_selected, name != PROGRAMS, "{kind} {name}: {others:?}");
        }
        assert_eq!(targets.iter().filter(|(_, name)| name == PROGRAMS).count(), 1);
    }
}
