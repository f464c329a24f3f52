//! Running the project's binaries the way a user does, with a deadline on every one.

use std::{
    ffi::OsStr,
    io::{Read, Write},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a binary may take before a test gives up on it.
const DEADLINE: Duration = Duration::from_secs(600);

/// A finished process.
#[derive(Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub line: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a binary of the workspace to its end.
///
/// # Panics
/// When it cannot be started or exceeds the deadline.
#[must_use]
pub fn run<A: AsRef<OsStr>>(binary: &str, args: impl IntoIterator<Item = A>) -> Finished {
    let mut command = Command::new(crate::binary(binary));
    command.args(args);
    finish(command)
}

/// Runs a prepared command to its end.
///
/// # Panics
/// When it cannot be started or exceeds the deadline.
#[must_use]
pub fn finish(command: Command) -> Finished {
    finish_with(command, &[])
}

/// As [`finish`], with these bytes on stdin.
///
/// # Panics
/// As [`finish`].
#[must_use]
pub fn finish_with(mut command: Command, input: &[u8]) -> Finished {
    let line = format!("{command:?}");
    let stdin = if input.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{line}: {e}"));
    if let Some(mut stdin) = child.stdin.take() {
        let input = input.to_owned();
        // A program that reads less than all is no fault.
        thread::spawn(move || drop(stdin.write_all(&input)));
    }
    let stdout = drain(child.stdout.take().expect("piped"));
    let stderr = drain(child.stderr.take().expect("piped"));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap_or_else(|e| panic!("{line}: {e}")) {
            break status;
        }
        if start.elapsed() > DEADLINE {
            let _ = child.kill();
            panic!("{line}: still running after {DEADLINE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let text = |reader: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&reader.join().expect("reading a pipe does not panic")).into_owned()
    };
    Finished { line, status, stdout: text(stdout), stderr: text(stderr) }
}

fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

impl Finished {
    /// Itself, if it succeeded.
    ///
    /// # Panics
    /// With its output, if it failed.
    #[must_use]
    pub fn success(self) -> Self {
        assert!(self.status.success(), "{} ended with {}\n{}\n{}", self.line, self.status, self.stdout, self.stderr);
        self
    }

    /// The one error line of a program that refused to work.
    ///
    /// # Panics
    /// When it succeeded or crashed, or when the end of its output is not exactly one line beginning with `error:`.
    #[must_use]
    pub fn refusal(&self) -> &str {
        let shown = || format!("{} ended with {}\n{}\n{}", self.line, self.status, self.stdout, self.stderr);
        let code = self.status.code().unwrap_or_else(|| panic!("killed by a signal: {}", shown()));
        assert!(code == 1 || code == 2, "a refusal exits with 1 or 2: {}", shown());
        assert!(!self.stderr.contains("panicked at"), "{}", shown());
        let errors = self.stderr.lines().filter(|line| line.starts_with("error:")).count();
        assert_eq!(errors, 1, "{}", shown());
        let last = self.stderr.trim_end().lines().last().unwrap_or_default();
        assert!(last.starts_with("error: "), "the error is the last line: {}", shown());
        last
    }
}
