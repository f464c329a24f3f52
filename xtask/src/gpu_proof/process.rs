//! Runs one program with a time limit.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Exit code of `rivals.py` when something it needs is not installed.
const MISSING: i32 = 77;
/// Time from the request to end until a program is killed.
const GRACE: Duration = Duration::from_secs(10);

/// How a program ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// With success.
    Success,
    /// With an error, and the reason.
    Failure(String),
    /// It lacks a package, which is named.
    Missing(String),
    /// It was told to end, since its time was up.
    TimeOver,
}

/// Runs a program with its output in `log` and its errors in `log` with `.err`, for at most `limit`.
///
/// # Errors
/// When it cannot be started, or its output cannot be kept.
pub fn run(mut command: Command, log: &Path, limit: Duration) -> Result<End> {
    let errors = log.with_extension("err");
    let create = |path: &Path| File::create(path).with_context(|| path.display().to_string());
    command.stdin(Stdio::null()).stdout(create(log)?).stderr(create(&errors)?);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let Some(status) = wait(&mut child, start + limit)? else {
        end(&mut child)?;
        return Ok(End::TimeOver);
    };
    let complaint = || complaint(&fs::read_to_string(&errors).unwrap_or_default(), status);
    Ok(match status.code() {
        Some(0) => End::Success,
        Some(MISSING) => End::Missing(complaint()),
        _ => End::Failure(complaint()),
    })
}

fn wait(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    loop {
        match child.try_wait().context("cannot wait for a program")? {
            None if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            status => return Ok(status),
        }
    }
}

fn end(child: &mut Child) -> Result<()> {
    // It may have ended by itself just now.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    if wait(child, Instant::now() + GRACE)?.is_none() {
        child.kill().and_then(|()| child.wait()).context("cannot end a program")?;
    }
    Ok(())
}

/// The error line of the program.
fn complaint(errors: &str, status: ExitStatus) -> String {
    let lines = || errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().rfind(|line| line.starts_with("error: ")).or_else(|| lines().next_back());
    let line = line.map_or("it said nothing", |line| line.trim_start_matches("error: "));
    match status.signal() {
        Some(signal) => format!("signal {signal}: {line}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> End {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, &dir.path().join("log.out"), limit).unwrap()
    }

    #[test]
    fn ends_are_told_apart() {
        let second = Duration::from_secs(60);
        assert_eq!(shell("exit 0", second), End::Success);
        let failed = shell("echo 'error: no such model' >&2; echo a hint >&2; exit 1", second);
        assert_eq!(failed, End::Failure("no such model".into()));
        assert_eq!(shell("echo 'no module torch' >&2; exit 77", second), End::Missing("no module torch".into()));
        assert_eq!(shell("kill -9 $$", second), End::Failure("signal 9: it said nothing".into()));
    }

    #[test]
    fn a_program_that_takes_too_long_is_told_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let (told, start) = (dir.path().join("told"), Instant::now());
        let script = format!("trap 'touch {}; exit' TERM; while :; do sleep 0.05; done", told.display());
        assert_eq!(shell(&script, Duration::from_millis(300)), End::TimeOver);
        assert!(told.exists() && start.elapsed() < GRACE);
    }
}
