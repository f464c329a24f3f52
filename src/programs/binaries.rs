//! The other programs of the workspace, found beside this one.

use std::{
    env, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use shared::process::environment;

/// The sampler of runs with workers, and the workers: a package of its own, which the default build leaves out.
pub const FLEET: &str = "rollout-fleet";

/// The endpoint: a package of its own, which the default build leaves out.
pub const SERVE: &str = "rollout-serve";

const LEARNER: &str = "learner";

/// Path of a program in the folder of the running executable.
pub fn find(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("cannot find the running executable")?;
    find_in(own.parent().unwrap_or(Path::new(".")), name)
}

/// As [`find`], of [`FLEET`]; if it is missing, the error names the option or the command that needs it.
pub fn fleet(asked_for_by: &str) -> Result<PathBuf> {
    find_for(FLEET, asked_for_by)
}

/// As [`find`], of a program that the default build leaves out; if it is missing, the error names what needs it.
pub fn find_for(name: &str, asked_for_by: &str) -> Result<PathBuf> {
    find(name).with_context(|| asked_for_by.to_owned())
}

/// The command line that builds these programs from the whole workspace: dependencies then have the features of all
/// builds, and none of them is compiled twice.
pub fn build_of(names: &[&str]) -> String {
    let bins: String = names.iter().map(|name| format!(" --bin {name}")).collect();
    format!("cargo build --release --workspace{bins}")
}

/// A command for one of the programs. The kernel ends it should this process die; since it watches the thread rather
/// than the process, the command must be started from the main thread.
pub fn command(program: &Path) -> Command {
    let mut command = command_alone(program);
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl, getppid and raise are called, which are async-signal-safe and touch no
    // memory of the parent.
    unsafe {
        command.pre_exec(move || end_with_parent(parent));
    }
    command
}

/// A command for one of the programs, whatever becomes of this process.
pub fn command_alone(program: &Path) -> Command {
    let mut command = Command::new(program);
    if program.file_name().is_some_and(|name| name == LEARNER) {
        command.envs(environment::missing_for_learner());
    }
    command
}

/// Runs in the child between fork and exec.
fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls without pointers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The parent may have died before the request took effect.
        if u32::try_from(libc::getppid()) != Ok(parent) {
            libc::raise(libc::SIGKILL);
        }
    }
    Ok(())
}

fn find_in(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    if !path.is_file() {
        bail!("`{name}` is not beside `tandem` in {}: build it with `{}`", folder.display(), build_of(&[name]));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_learner_is_given_its_environment_so_that_it_need_not_start_twice() {
        let names = |program: &str| {
            let command = command_alone(Path::new(program));
            command.get_envs().map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        let missing = environment::missing_for_learner();
        let mut missing: Vec<_> = missing.iter().map(|(name, _)| OsString::from(name)).collect();
        missing.sort();
        assert_eq!(names("/any/learner"), missing);
        assert!(names("/any/rollout").is_empty());
    }

    #[test]
    fn a_missing_program_is_named_with_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let error = find_in(dir.path(), "learner").unwrap_err().to_string();
        assert!(error.contains("`learner`") && error.contains(&dir.path().display().to_string()), "{error}");
        std::fs::write(dir.path().join("learner"), "").unwrap();
        assert_eq!(find_in(dir.path(), "learner").unwrap(), dir.path().join("learner"));
    }

    #[test]
    fn a_missing_program_is_built_by_the_command_that_the_error_names() {
        let missing = |name| find_in(Path::new("/nowhere"), name).unwrap_err().to_string();
        for name in ["rollout", "learner", FLEET, SERVE] {
            let build = format!("build it with `cargo build --release --workspace --bin {name}`");
            assert!(missing(name).ends_with(&build), "{}", missing(name));
        }
        let both = "cargo build --release --workspace --bin rollout --bin learner";
        assert_eq!(build_of(&["rollout", "learner"]), both);
    }
}
