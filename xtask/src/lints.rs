//! Lints, found while unit tests are compiled.
//!
//! `cargo clippy` checks all dependencies before it looks at the workspace, and shares nothing with a build. Here
//! clippy compiles the workspace, so each crate is read once for its lints and for its unit tests. Cargo keeps apart
//! what another compiler made of a crate of the workspace, so a crate that was built without clippy is linted all the
//! same.

use std::process::Command;

use crate::host::Host;

/// Profile of unit tests: without optimisation of our own code, and with checks of arithmetic (`Cargo.toml`).
pub const PROFILE: &str = "bench";

/// Between two arguments in the variable that `cargo clippy` hands to `clippy-driver`.
const SEPARATOR: &str = "__CLIPPY_HACKERY__";

/// The build command for targets of the workspace in which each warning of rustc or clippy is an error.
pub fn build(host: &Host, targets: &[&str]) -> Command {
    let mut build = host.cargo();
    build.args(["build", "--profile", PROFILE, "--locked", "--workspace"]).args(targets);
    with_clippy(&mut build);
    build
}

/// Lets a command of cargo compile the workspace with clippy. Two commands share what they compile if both or neither
/// went through here.
pub fn with_clippy(cargo: &mut Command) {
    // The wrapper is documented by cargo. The variable is not documented, so a test looks for its effect.
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    cargo.env("CLIPPY_ARGS", ["-D", "warnings", ""].join(SEPARATOR));
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Whether a crate with this code is built, and the messages of cargo.
    fn build_crate(dir: &Path, code: &str) -> (bool, String) {
        fs::create_dir_all(dir.join("src")).unwrap();
        fs::write(dir.join("Cargo.toml"), "[package]\nname = \"linted\"\nedition = \"2024\"\n[workspace]\n").unwrap();
        fs::write(dir.join("src/lib.rs"), code).unwrap();
        let mut cargo = Host::current().unwrap().cargo();
        cargo.args(["build", "--offline"]).current_dir(dir).env("CARGO_TARGET_DIR", dir.join("target"));
        with_clippy(&mut cargo);
        let output = cargo.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    #[test]
    fn warnings_of_rustc_and_of_clippy_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let (built, messages) = build_crate(dir.path(), "fn unused() {}\n");
        assert!(!built && messages.contains("never used"), "{messages}");
        let (built, messages) = build_crate(dir.path(), "pub fn f(x: &Vec<u8>) -> bool {\n    x.len() == 0\n}\n");
        assert!(!built && messages.contains("clippy::"), "{messages}");
        let (built, messages) = build_crate(dir.path(), "pub fn f(x: &[u8]) -> bool {\n    x.is_empty()\n}\n");
        assert!(built, "{messages}");
    }
}
