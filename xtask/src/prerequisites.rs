//! The programs a build needs, checked before anything long begins.

use std::process::Stdio;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::host::Host;

/// Oldest Rust that builds the workspace (`rust-version` in Cargo.toml).
const RUST: (u32, u32) = (1, 92);

/// Checks the Rust and C++ compilers.
///
/// # Errors
/// Names what is missing or too old and how to get it.
pub fn check(host: &Host) -> Result<()> {
    let rustc = output(host, "rustc", &["--version"])
        .context("no working Rust compiler: install Rust 1.92 or newer from https://rustup.rs")?;
    let version = rust_version(&rustc).with_context(|| format!("`rustc --version` printed {rustc:?}"))?;
    ensure!(
        version >= RUST,
        "Rust {}.{} is too old, {}.{} or newer is needed: run `rustup update`",
        version.0,
        version.1,
        RUST.0,
        RUST.1
    );
    let cxx = host.cxx.to_string_lossy();
    output(host, &cxx, &["--version"]).with_context(|| {
        format!(
            "no working C++ compiler ({cxx}): install g++ (Debian and Ubuntu: `apt install g++`) or set CXX to your own"
        )
    })?;
    Ok(())
}

/// Checks that python3 can run pip, which only a download needs.
///
/// # Errors
/// Names what is missing, how to get it, and how to do without.
pub fn check_pip(host: &Host) -> Result<()> {
    const WITHOUT: &str = "or set LIBTORCH and ORT_DYLIB_PATH to libraries of your own";
    output(host, "python3", &["--version"]).with_context(|| {
        format!("no working python3, which fetches the native libraries: install python3 with pip, {WITHOUT}")
    })?;
    output(host, "python3", &["-m", "pip", "--version"]).with_context(|| {
        format!("python3 has no pip (Debian and Ubuntu: `apt install python3-pip`): install it, {WITHOUT}")
    })?;
    Ok(())
}

/// Checks that rustfmt and clippy are installed.
///
/// # Errors
/// Names the component and the command that installs it.
pub fn check_components(host: &Host) -> Result<()> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        let status = host.cargo().args([subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !status.is_ok_and(|status| status.success()) {
            bail!("{component} is not installed: run `rustup component add {component}`");
        }
    }
    Ok(())
}

/// Standard output of a program that must exist and succeed.
///
/// # Errors
/// When it does not.
pub fn output(host: &Host, program: &str, args: &[&str]) -> Result<String> {
    let result = host.command(program).args(args).stdin(Stdio::null()).output();
    let output = result.map_err(|error| anyhow!("`{program}`: {error}"))?;
    ensure!(output.status.success(), "`{program} {}` fails with {}", args.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Major and minor version out of `rustc 1.92.0 (…)`.
fn rust_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("rustc ")?.split(['.', ' ', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    const RUSTC: (&str, &str) = ("rustc", "echo 'rustc 1.92.0 (ded5c06cf 2025-12-08)'");
    const CXX: (&str, &str) = ("c++", "echo 'c++ 12.2'");

    fn error(programs: &[(&str, &str)], check: fn(&Host) -> Result<()>) -> String {
        let dir = tempfile::tempdir().unwrap();
        format!("{:#}", check(&fake::host(dir.path(), programs)).unwrap_err())
    }

    #[test]
    fn a_complete_host_passes() {
        let dir = tempfile::tempdir().unwrap();
        check(&fake::host(dir.path(), &[RUSTC, CXX])).unwrap();
        check_pip(&fake::host(dir.path(), &[("python3", "exit 0")])).unwrap();
    }

    #[test]
    fn an_old_or_missing_rust_is_named() {
        let old = error(&[("rustc", "echo 'rustc 1.85.1 (4eb161250 2025-03-15)'"), CXX], check);
        assert_eq!(old, "Rust 1.85 is too old, 1.92 or newer is needed: run `rustup update`");
        assert!(error(&[CXX], check).contains("install Rust 1.92 or newer"));
        assert!(error(&[("rustc", "echo gibberish"), CXX], check).contains("gibberish"));
    }

    #[test]
    fn versions_are_read_from_every_channel() {
        assert_eq!(rust_version("rustc 1.92.0 (ded5c06cf 2025-12-08)"), Some((1, 92)));
        assert_eq!(rust_version("rustc 1.100.0-nightly (0000000 2026-01-01)"), Some((1, 100)));
        assert_eq!(rust_version("gcc 12.2"), None);
    }

    #[test]
    fn a_missing_or_broken_cxx_is_named() {
        let missing = error(&[RUSTC], check);
        assert!(missing.starts_with("no working C++ compiler (c++): install g++"), "{missing}");
        assert!(error(&[RUSTC, ("c++", "exit 3")], check).contains("install g++"));
    }

    #[test]
    fn missing_python_and_missing_pip_differ() {
        let python = error(&[], check_pip);
        assert!(python.contains("no working python3") && python.contains("LIBTORCH"), "{python}");
        let pip = error(&[("python3", r#"[ "$1" = --version ]"#)], check_pip);
        assert!(pip.contains("has no pip") && pip.contains("python3-pip") && pip.contains("ORT_DYLIB_PATH"), "{pip}");
    }
}
