//! All tests of the workspace, in two lanes that run at the same time.
//!
//! Tests of the programs together wait for much of their time: for deadlines, restarts and timeouts of programs that
//! they stop or cut off. The others compute. Cargo runs one test binary after the other, so cores would idle while the
//! former wait. Each lane runs `cargo test` with some of the targets: the first with most of the programs' tests, the
//! second with all others. Whichever lane is done takes the next of the remaining modules of the programs' tests, so
//! both end at about the same time. All targets are built first, so that no lane compiles while the other one runs.

use std::{
    collections::VecDeque,
    ffi::OsStr,
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
    thread,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{host::Host, lints};

/// The target whose tests run the programs together.
const PROGRAMS: &str = "programs";

/// Modules of that target whose tests run at the end, each in the lane that is free, those that take longest first.
const AT_THE_END: [&str; 8] =
    ["readme::", "supervision::", "survives::", "ui::", "families::", "errors::", "rewards::", "structured_outputs::"];

/// Learners compute with one thread each. Several runs share the cores, and two threads on the operations of a small
/// model take half as much processor time again as one, for waking and waiting.
const THREAD_LIMIT: (&str, &str) = ("OMP_THREAD_LIMIT", "1");

/// Runs all tests. Those of the first lane print as they run; the output of all others follows.
///
/// # Errors
/// When tests do not build, some fail (the error names their commands), or cargo cannot be run.
pub fn run(host: &Host, variable: (&str, &Path)) -> Result<()> {
    let programs = ["--release", "--test", PROGRAMS].map(str::to_owned).to_vec();
    let units = ["--profile", lints::PROFILE, "--lib", "--bins"].map(str::to_owned).to_vec();
    let interfaces = others(&targets(host)?);
    let documentation = ["--release", "--doc"].map(str::to_owned).to_vec();
    let command = |words: &[String]| {
        let mut command = host.cargo();
        command.args(["test", "--workspace", "--locked", "--no-fail-fast"]).args(words).env(variable.0, variable.1);
        if *words == units {
            // Else cargo would compile them once more.
            lints::with_clippy(&mut command);
        }
        if words.starts_with(&programs) {
            command.env(THREAD_LIMIT.0, THREAD_LIMIT.1);
        }
        command
    };
    for words in [&units, &interfaces, &programs] {
        let built = command(words).arg("--no-run").status().context("cannot start cargo")?;
        ensure!(built.success(), "tests do not build: {built}");
    }

    let path = host.target.join("other-tests.txt");
    let output = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let most_programs = filtered(&programs, AT_THE_END.iter().flat_map(|module| ["--skip", module]));
    let of_modules = AT_THE_END.iter().map(|module| filtered(&programs, [*module]));
    let second = [units.clone(), interfaces].into_iter().chain(of_modules).collect::<VecDeque<_>>();
    let remaining = Mutex::new(second);
    let take_remaining = || -> Result<Vec<String>> {
        let mut failures = Vec::new();
        let next = || remaining.lock().expect("nobody panics with the list").pop_front();
        while let Some(words) = next() {
            let mut command = command(&words);
            command.stdout(output.try_clone()?).stderr(output.try_clone()?);
            failures.extend(failure(&mut command)?);
        }
        Ok(failures)
    };
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(take_remaining);
        let most = failure(&mut command(&most_programs));
        let first = most.and_then(|most| Ok(most.into_iter().chain(take_remaining()?).collect::<Vec<_>>()));
        (first, second.join().expect("waiting for cargo does not panic"))
    });
    let said = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    eprint!("{}", String::from_utf8_lossy(&said));
    let third = failure(&mut command(&documentation))?;
    let failures: Vec<String> = first?.into_iter().chain(second?).chain(third).collect();
    ensure!(failures.is_empty(), "tests failed ({})", failures.join("; "));
    Ok(())
}

/// Runs a command to its end; its words and its status where it fails.
fn failure(command: &mut Command) -> Result<Option<String>> {
    let status = command.status().context("cannot start cargo")?;
    let words: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    Ok((!status.success()).then(|| format!("cargo {}: {status}", words.join(" "))))
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

/// A command of `cargo test` with arguments for the tests themselves.
fn filtered<'a>(command: &'a [String], filters: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    command.iter().map(String::as_str).chain(["--"]).chain(filters).map(str::to_owned).collect()
}

/// Cargo's options for tests of public interfaces, and of examples: all targets but libraries, programs, and
/// [`PROGRAMS`].
fn others(targets: &[(String, String)]) -> Vec<String> {
    let mut options = vec!["--release".to_owned()];
    for (kind, name) in targets {
        if name != PROGRAMS && !["lib", "bin"].contains(&kind.as_str()) {
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
            let is_selected = others.windows(2).any(|words| words[0] == format!("--{kind}") && words[1] == *name);
            let by_kind = ["lib", "bin"].contains(&kind.as_str());
            assert_eq!(is_selected, !by_kind && name != PROGRAMS, "{kind} {name}: {others:?}");
            assert!(by_kind || ["test", "example"].contains(&kind.as_str()), "{kind} {name}");
        }
        assert_eq!(targets.iter().filter(|(_, name)| name == PROGRAMS).count(), 1);
    }

    /// A filter is a part of a test's name. One that is a part of another module's name would run tests twice.
    #[test]
    fn modules_that_run_at_the_end_exist_and_are_not_confused_with_others() {
        let modules = Host::current().unwrap().root.join("tests/tests").join(PROGRAMS);
        let names: Vec<String> = fs::read_dir(&modules)
            .unwrap()
            .filter_map(|entry| Some(entry.unwrap().path().file_stem()?.to_str()?.to_owned() + "::"))
            .collect();
        for filter in AT_THE_END {
            let found: Vec<&String> = names.iter().filter(|name| name.contains(filter)).collect();
            assert!(!found.is_empty() && found.iter().all(|name| *name == filter), "{filter}: {found:?}");
        }
    }
}
