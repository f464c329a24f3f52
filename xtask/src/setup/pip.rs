//! `pip download` of pinned wheels, with its failures turned into one line that says what to do.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::pins::{TAGS, Wheel};
use crate::host::Host;

/// The requirements file of some wheels: exact versions with their hashes.
pub fn requirements(wheels: &[Wheel]) -> String {
    wheels.iter().map(|w| format!("{}=={} --hash=sha256:{}\n", w.project, w.version, w.sha256)).collect()
}

/// Downloads wheels into a folder; pip checks every hash. Returns their paths in the same order.
///
/// # Errors
/// When pip fails: a wrong hash, no network, a full disk; in words that say what to do.
pub fn download(host: &Host, wheels: &[Wheel], into: &Path) -> Result<Vec<PathBuf>> {
    let list = into.join("requirements.txt");
    fs::write(&list, requirements(wheels)).with_context(|| list.display().to_string())?;
    let names: Vec<_> = wheels.iter().map(|w| format!("{} {}", w.project, w.version)).collect();
    eprintln!("downloading {}", names.join(", "));
    run(command(host, &list, into))?;
    wheels.iter().map(|wheel| find(wheel, into)).collect()
}

/// The wheels are for CPython 3.12, whatever the version of python3: only their libraries are used.
fn command(host: &Host, requirements: &Path, into: &Path) -> Command {
    let mut pip = host.command("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-input"]);
    pip.args(["--no-deps", "--only-binary=:all:", "--require-hashes", "--requirement"]).arg(requirements);
    pip.args(["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "none"]);
    for tag in TAGS {
        pip.args(["--platform", &format!("{tag}_{}", host.platform.1)]);
    }
    pip.arg("--dest").arg(into);
    pip
}

/// Runs pip with its progress on our stderr; its errors go there and into the result.
fn run(mut pip: Command) -> Result<()> {
    let child = pip.stdin(Stdio::null()).stdout(std::io::stderr()).stderr(Stdio::piped()).spawn();
    let mut child = child.context("cannot start python3")?;
    let mut complaints = String::new();
    let stderr = child.stderr.take().expect("standard error is piped");
    for line in BufReader::new(stderr).lines() {
        let line = line.context("cannot read what pip prints")?;
        eprintln!("{line}");
        complaints += &line;
        complaints.push('\n');
    }
    let status = child.wait().context("cannot wait for pip")?;
    if status.success() {
        return Ok(());
    }
    bail!("{}, or set LIBTORCH and ORT_DYLIB_PATH to libraries of your own", explain(&complaints))
}

/// The meaning of a failed download, and what to do about it.
fn explain(complaints: &str) -> String {
    if complaints.contains("DO NOT MATCH THE HASHES") {
        return "a downloaded file does not have the expected sha256, so it was changed or damaged on the way: \
                run `python3 -m pip cache purge` and try again without a mirror"
            .into();
    }
    if complaints.contains("No space left on device") {
        return "the disk is full: free some space (TMPDIR names pip's scratch folder) and try again".into();
    }
    let last = complaints.lines().rev().find_map(|line| line.strip_prefix("ERROR: "));
    let last = last.or(complaints.lines().last()).unwrap_or("it printed no reason");
    format!("pip failed ({last}): check the network and `python3 -m pip config list`, and try again")
}

/// The downloaded file of a wheel.
fn find(wheel: &Wheel, dir: &Path) -> Result<PathBuf> {
    let prefix = format!("{}-{}-", wheel.project, wheel.version);
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(".whl") {
            return Ok(path);
        }
    }
    bail!("pip reported success but left no {prefix}*.whl")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    const WHEEL: Wheel = Wheel { project: "demo_wheel", version: "1.0", sha256: "00", take: &[] };

    fn failure(script: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let host = fake::host(dir.path(), &[("python3", script)]);
        let error = format!("{:#}", download(&host, &[WHEEL], dir.path()).unwrap_err());
        assert!(!error.contains('\n'), "one line: {error}");
        error
    }

    #[test]
    fn failures_say_what_to_do() {
        let network = failure(
            "echo 'WARNING: Retrying after connection broken' >&2
             echo 'ERROR: No matching distribution found for demo_wheel==1.0' >&2; exit 1",
        );
        assert!(network.contains("No matching distribution") && network.contains("check the network"), "{network}");
        assert!(network.contains("LIBTORCH and ORT_DYLIB_PATH"), "{network}");
        let hash = failure("echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS' >&2; exit 1");
        assert!(hash.contains("does not have the expected sha256"), "{hash}");
        let disk = failure("echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1");
        assert!(disk.contains("disk is full"), "{disk}");
        assert!(failure("exit 1").contains("it printed no reason"));
        assert!(failure("exit 0").contains("left no demo_wheel-1.0-*.whl"));
    }

    #[test]
    fn requirements_pin_version_and_hash() {
        assert_eq!(requirements(&[WHEEL]), "demo_wheel==1.0 --hash=sha256:00\n");
    }
}
