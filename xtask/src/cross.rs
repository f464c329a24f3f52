//! A check of the code that is bound to a processor or to system calls, as a compiler for aarch64 Linux reads it.
//!
//! Neither programs nor tests are made, and no library of that platform is needed. The kernels and the containment of
//! rewards have nearly all of that code, and `shared` comes with them. Left out, since their dependencies would take
//! minutes, are the programs, the exporters, the learner and all tests.

use std::{env, path::Path, process::Command};

use anyhow::Result;

use crate::{host::Host, prerequisites};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Compiles the C in dependencies; the crate `cc` looks for it by this name.
const COMPILER: &str = "aarch64-linux-gnu-gcc";

/// Crates with code for single processors or with system calls.
const PACKAGES: [&str; 2] = ["rollout-kernels", "rollout-rewards"];

/// What the check lacks on this machine, with the way to get it.
///
/// # Errors
/// When rustc does not say where its libraries are.
pub fn missing(host: &Host) -> Result<Option<String>> {
    let library = prerequisites::output(host, "rustc", &["--print", "target-libdir", "--target", TARGET])?;
    if !Path::new(library.trim()).is_dir() {
        return Ok(Some(format!("`rustup target add {TARGET}` has not been run")));
    }
    if !env::split_paths(&host.path).any(|folder| folder.join(COMPILER).is_file()) {
        return Ok(Some(format!("there is no {COMPILER} (Debian's package gcc-aarch64-linux-gnu)")));
    }
    Ok(None)
}

/// The command that checks [`PACKAGES`].
pub fn check(host: &Host) -> Command {
    let mut check = host.cargo();
    check.args(["check", "--release", "--locked", "--lib", "--target", TARGET]);
    check.args(PACKAGES.iter().flat_map(|package| ["--package", package]));
    check
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::fake;

    /// What is missing on a machine with these programs. The library for the target is there if `library` says so.
    fn missing_with(library: bool, programs: &[&str]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("lib");
        if library {
            fs::create_dir(&folder).unwrap();
        }
        let rustc = format!("[ \"$4\" = {TARGET} ] && echo {}", folder.display());
        let programs = programs.iter().map(|program| (*program, "exit 1"));
        let programs: Vec<(&str, &str)> = [("rustc", rustc.as_str())].into_iter().chain(programs).collect();
        missing(&fake::host(dir.path(), &programs)).unwrap()
    }

    #[test]
    fn the_check_runs_where_library_and_compiler_are_there() {
        assert_eq!(missing_with(true, &[COMPILER]), None);
        let library = missing_with(false, &[COMPILER]).unwrap();
        assert_eq!(library, "`rustup target add aarch64-unknown-linux-gnu` has not been run");
        let compiler = missing_with(true, &["gcc"]).unwrap();
        assert!(compiler.contains("gcc-aarch64-linux-gnu"), "{compiler}");
    }

    /// Cargo refuses a package that it does not know, but only where the check runs.
    #[test]
    fn the_packages_exist() {
        let mut metadata = Host::current().unwrap().cargo();
        metadata.args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--locked"]);
        let metadata: serde_json::Value = serde_json::from_slice(&metadata.output().unwrap().stdout).unwrap();
        let packages: Vec<_> =
            metadata["packages"].as_array().unwrap().iter().map(|package| &package["name"]).collect();
        for name in PACKAGES {
            assert!(packages.iter().any(|package| *package == name), "{name}");
        }
    }
}
