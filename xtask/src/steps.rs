//! The commands that run cargo and the built binaries: `test`, `ci`, `demo`, `example`.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File},
    io::Write,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{cross, host::Host, lanes, lints, prerequisites, setup, tidy};

/// The programs of a run on one host.
const PROGRAMS: [&str; 3] = ["tandem", "rollout", "learner"];

/// Variable with the file to which skipped tests append a line, as in `harness::without_hardware`.
const SKIPPED: &str = "TANDEM_SKIPPED_FILE";

/// Formatting, house rules, lints, a check for aarch64, and all tests. One profile serves every step, so nothing is
/// compiled twice for it. Skipped tests are listed at the end, with the reason.
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
    let skipped = host.target.join("skipped.txt");
    let result = (|| {
        steps.time("set-up", || setup::run(host, false))?;
        steps.time("format", || run(cargo(&["fmt", "--all", "--check"])))?;
        steps.time("house rules", || tidy::check(&host.root))?;
        steps.time("lints", || run(lints::build(host, &["--all-targets"])))?;
        steps.time("build", || run(cargo(&["build", "--release", "--workspace", "--locked"])))?;
        fs::write(&skipped, "").with_context(|| format!("cannot write {}", skipped.display()))?;
        steps.time("aarch64", || check_aarch64(host, &skipped))?;
        let result = steps.time("tests", || lanes::run(host, (SKIPPED, &skipped)));
        print_skipped(&skipped)?;
        result
    })();
    steps.print();
    result
}

/// Checks for aarch64 what is bound to a processor. Where that cannot be, a line says so, here and in the list
/// `skipped`.
fn check_aarch64(host: &Host, skipped: &Path) -> Result<()> {
    let Some(missing) = cross::missing(host)? else { return run(cross::check(host)) };
    let line = format!("SKIPPED check for aarch64 Linux: {missing}\n");
    eprint!("{line}");
    let list = File::options().append(true).open(skipped);
    list.and_then(|mut list| list.write_all(line.as_bytes())).with_context(|| skipped.display().to_string())
}

/// Each test that was skipped, once: in the output of all tests, their lines are far apart.
fn print_skipped(file: &Path) -> Result<()> {
    let lines = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines: BTreeSet<&str> = lines.lines().collect();
    eprintln!("==> {} skipped", lines.len());
    lines.iter().for_each(|line| eprintln!("{line}"));
    Ok(())
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

/// Builds the programs, and runs the program in a folder of `examples/`.
///
/// # Errors
/// When there is no such program, or when set-up, build or program fails.
pub fn example(host: &Host, name: &str, args: &[OsString]) -> Result<()> {
    let folder = host.root.join("examples").join(name);
    if !folder.join("main.rs").is_file() {
        bail!("{} has no main.rs; its README.md, if there is one, says how it is run", folder.display());
    }
    build_with(host, &["--example", name])?;
    let mut example = host.command(host.binary(&format!("examples/{name}")));
    example.args(args);
    run(example)
}

/// Runs set-up, and builds the programs of a run.
///
/// # Errors
/// When either fails.
pub fn build(host: &Host) -> Result<()> {
    build_with(host, &[])
}

/// As [`build`], with further targets, such as `--example NAME`.
///
/// # Errors
/// When set-up or compilation fails.
pub fn build_with(host: &Host, more: &[&str]) -> Result<()> {
    if setup::is_complete(host)? {
        setup::run(host, false)?;
    } else {
        set_up_beside_the_launcher(host)?;
    }
    run(programs(host, &PROGRAMS, more))
}

/// Runs set-up, and meanwhile compiles the launcher, which needs none of its libraries: a download waits for the
/// network, and the cores would wait with it.
///
/// # Errors
/// When either fails. A set-up that fails ends the compilation.
fn set_up_beside_the_launcher(host: &Host) -> Result<()> {
    let mut launcher = programs(host, &["tandem"], &[]);
    // Two bars that draw over each other are none. That of the download stays.
    launcher.env("CARGO_TERM_PROGRESS_WHEN", "never");
    let mut compiling = launcher.spawn().context("cannot start cargo")?;
    let set_up = setup::run(host, false);
    if set_up.is_err() {
        // It may have ended by itself.
        let _ = compiling.kill();
    }
    let compiled = compiling.wait().context("cannot wait for cargo")?;
    set_up?;
    ensure!(compiled.success(), "the launcher does not build: {compiled}");
    Ok(())
}

/// The build command for some of the programs of a run and for further targets.
///
/// Dependencies get the features that they have in the whole workspace, and of its targets, only the named ones are
/// built. With `--package`, dependencies would lack features that tests ask for, and `cargo xtask test` would compile
/// them a second time.
fn programs(host: &Host, names: &[&str], more: &[&str]) -> Command {
    let mut build = host.cargo();
    build.args(["build", "--release", "--locked", "--workspace"]);
    build.args(names.iter().flat_map(|name| ["--bin", name])).args(more);
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
    use crate::host::fake;

    /// The crates of a selection by `cargo tree`, a line each, in the given format.
    fn crates(selection: &[&str], format: &str) -> BTreeSet<String> {
        let host = Host::current().unwrap();
        let mut tree = host.cargo();
        tree.args(["tree", "--offline", "--locked", "--prefix", "none", "--format", format]).args(selection);
        let output = tree.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        // Crates whose dependencies are listed elsewhere are marked.
        lines.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).filter(|line| !line.is_empty()).collect()
    }

    /// Cargo compiles a crate once for each set of features that a command asks for. Successive commands must therefore
    /// ask for the same sets: the commands in README take half an hour, and each crate that is compiled again takes its
    /// dependents along.
    #[test]
    fn no_crate_is_compiled_again_for_tests() {
        let built = crates(&["--workspace", "--edges", "normal,build"], "{p} {f}");
        let tested = crates(&["--workspace", "--edges", "normal,build,dev"], "{p} {f}");
        let again: Vec<&String> = built.difference(&tested).collect();
        assert!(
            again.is_empty(),
            "dev-dependencies ask for more features of these; name them in [workspace.dependencies]: {again:#?}"
        );
        // `cargo xtask` itself is compiled with the features that the default members ask for.
        let by_default = crates(&["--edges", "normal,build"], "{p} {f}");
        let mut of_xtask = crates(&["--package", "xtask", "--edges", "normal,build"], "{p}");
        // A crate that also runs in builds has two sets.
        of_xtask.retain(|of| !by_default.intersection(&tested).any(|line| line.starts_with(&format!("{of} "))));
        assert!(
            of_xtask.is_empty(),
            "the workspace asks for more features of these; name them in xtask: {of_xtask:#?}"
        );
    }

    #[test]
    fn the_default_build_compiles_nothing_of_the_fleet() {
        let fleet = ["rollout-fleet", "shared-fleet", "shared-store", "zenoh", "object_store"];
        let left_out = [&fleet[..], &["rollout-serve", "rollout-constraint", "llguidance", "rollout-bridge"]].concat();
        let edges = ["--edges", "normal,build,dev"];
        let names = |selection: &[&str]| -> BTreeSet<String> {
            let lines = crates(&[&edges, selection].concat(), "{p}");
            lines.iter().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
        };
        let (default, all) = (names(&[]), names(&["--workspace"]));
        for name in left_out {
            assert!(all.contains(name), "the workspace has no {name}: is that its name?");
            assert!(!default.contains(name), "`cargo tree --edges normal,build,dev --invert {name}` says who wants it");
        }
        assert!(default.is_subset(&all) && default.len() + 100 < all.len(), "{} of {}", default.len(), all.len());
    }

    #[test]
    fn programs_have_the_features_of_the_workspace() {
        let build = programs(&Host::current().unwrap(), &PROGRAMS, &["--example", "countdown"]);
        let words: Vec<_> = build.get_args().map(|word| word.to_str().unwrap()).collect();
        let bins = "--bin tandem --bin rollout --bin learner --example countdown";
        assert_eq!(words.join(" "), format!("build --release --locked --workspace {bins}"));
    }

    #[test]
    fn a_set_up_that_fails_is_the_error_and_not_the_build_that_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let without_python = fake::host(dir.path(), &[]);
        let error = format!("{:#}", build(&without_python).unwrap_err());
        assert!(error.contains("python3"), "{error}");
    }

    #[test]
    fn the_launcher_needs_no_library_of_the_set_up() {
        let needs = crates(&["--package", "tandem", "--edges", "normal,build"], "{p}");
        assert!(!needs.iter().any(|line| line.starts_with("torch-sys ")), "{needs:#?}");
    }

    #[test]
    fn a_check_for_aarch64_that_is_left_out_is_in_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("skipped.txt");
        fs::write(&list, "SKIPPED another\n").unwrap();
        let host = fake::host(dir.path(), &[("rustc", "echo /nowhere/lib")]);
        check_aarch64(&host, &list).unwrap();
        let lines = fs::read_to_string(&list).unwrap();
        let added = lines.strip_prefix("SKIPPED another\nSKIPPED check for aarch64 Linux: ");
        assert!(added.is_some_and(|reason| reason.ends_with("has not been run\n")), "{lines}");
    }

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
