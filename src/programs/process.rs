//! One supervised child process: its own process group, its log file, its end.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::AsRawFd,
        unix::{
            fs::MetadataExt,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, kill_process_group, prlimit};

use shared::{
    files::atomic,
    process::heartbeat::{self, Beat, Deadlines},
};

use super::{
    binaries,
    pulse::{Pulse, Verdict},
};

/// How long a killed process may take to be gone: a process that waits for a device ends only when the device answers.
const AFTER_KILL: Duration = Duration::from_secs(10);

/// The program to start, and the file for its output.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Name of the half and its log: `learner` or `rollout`.
    pub name: &'static str,
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables that are added to its environment.
    pub env: Vec<(&'static str, String)>,
    /// Standard output and error are appended here.
    pub log: PathBuf,
    /// The option that makes it take less memory, for messages.
    pub smaller: &'static str,
}

impl Spec {
    /// Its name for the user, who has not started it by its own name.
    pub fn who(&self) -> &'static str {
        if self.name == "rollout" { "the sampler" } else { "the learner" }
    }
}

/// A running child. Dropping it kills its process group.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
    /// The open log, wherever the file has been moved.
    own_log: Option<File>,
    log_start: u64,
    started: Instant,
    pulse: Option<Pulse>,
}

impl Process {
    /// Starts a child in its own process group, so that a Ctrl-C of the terminal reaches the launcher alone.
    pub fn start(spec: &Spec) -> Result<Self> {
        let log = atomic::append(&spec.log)?;
        let log_start = log.metadata().with_context(|| format!("{}", spec.log.display()))?.len();
        let mut command = binaries::command(&spec.program);
        let pulse = Pulse::new()?;
        command.args(&spec.args).envs(spec.env.iter().map(|(name, value)| (name, value)));
        let own_log = log.try_clone()?;
        command.stdout(log.try_clone()?).stderr(log).env(heartbeat::VARIABLE, pulse.path());
        let mut process = Self::spawn(command, &spec.log)?;
        process.own_log = Some(own_log);
        (process.log_start, process.pulse) = (log_start, Some(pulse));
        Ok(process)
    }

    /// As [`Process::start`], with a command whose output is already directed; the whole log belongs to this child.
    pub fn spawn(mut command: Command, log: &Path) -> Result<Self> {
        command.stdin(Stdio::null()).process_group(0);
        let program = command.get_program().to_owned();
        let child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child, log: log.to_owned(), own_log: None, log_start: 0, started: Instant::now(), pulse: None })
    }

    /// The other end of a piped standard output, once.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// How the child ended, if it has.
    pub fn poll(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot wait for a child process")
    }

    /// How long ago the child was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether it still makes progress; call it many times a second.
    pub fn look(&mut self, deadlines: &Deadlines) -> Verdict {
        let process = self.child.id();
        self.pulse.as_mut().map_or(Verdict::Fine, |pulse| pulse.look(process, deadlines))
    }

    /// Its last heartbeat.
    pub fn beat(&self) -> Beat {
        self.pulse.as_ref().map_or_else(Beat::default, Pulse::beat)
    }

    /// How long it has been waiting for the other process.
    pub fn waiting(&self) -> Duration {
        self.pulse.as_ref().map_or(Duration::ZERO, Pulse::waiting)
    }

    /// Asks the child to end in order; a stopped child is continued, so that it can.
    pub fn terminate(&mut self) {
        self.signal(|child| kill_process(child, Signal::TERM).and_then(|()| kill_process(child, Signal::CONT)));
    }

    /// Stops the child, as Ctrl-Z does.
    pub fn stop(&mut self) {
        self.signal(|child| kill_process(child, Signal::STOP));
    }

    /// Lets a stopped child continue.
    pub fn go_on(&mut self) {
        self.signal(|child| kill_process(child, Signal::CONT));
    }

    /// Limits the size of files that the child writes from now on; returns the limit before. None if the child has
    /// ended.
    pub fn limit_files(&self, limit: Rlimit) -> Option<Rlimit> {
        prlimit(Some(Pid::from_child(&self.child)), Resource::Fsize, limit).ok()
    }

    /// Kills the child and everything in its process group.
    pub fn kill(&mut self) {
        self.signal(|child| kill_process_group(child, Signal::KILL));
        let _ = self.wait_for(AFTER_KILL);
    }

    /// Ends the child by SIGTERM, and by SIGKILL if it has not ended `after_term` later.
    pub fn end(&mut self, after_term: Duration) -> Result<()> {
        if self.poll()?.is_some() {
            return Ok(());
        }
        self.terminate();
        if self.wait_for(after_term)?.is_none() {
            self.kill();
        }
        Ok(())
    }

    /// The last lines that this life of the child wrote to its log.
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let text = self.log_tail().unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(count)..].iter().map(|line| (*line).to_owned()).collect()
    }

    /// The path of its log, which may have moved with the run's folder.
    pub fn log(&self) -> PathBuf {
        self.moved_log().and_then(|log| log.read_link().ok()).unwrap_or_else(|| self.log.clone())
    }

    /// Whether its log is not where it was begun: another run has the folder by now, or the folder is gone.
    pub fn is_moved(&self) -> bool {
        self.moved_log().is_some()
    }

    /// A path to its open log, if the log has been moved.
    fn moved_log(&self) -> Option<PathBuf> {
        let own = self.own_log.as_ref()?;
        let (there, here) = (self.log.metadata().ok(), own.metadata().ok()?);
        let is_there = there.is_some_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino()));
        (!is_there).then(|| format!("/proc/self/fd/{}", own.as_raw_fd()).into())
    }

    fn log_tail(&self) -> io::Result<String> {
        const WINDOW: u64 = 16 * 1024;
        let mut file = shared_bounds::open(&self.moved_log().unwrap_or_else(|| self.log.clone()))?;
        let length = file.metadata()?.len();
        // A log that was rotated begins anew.
        let start = if length < self.log_start { 0 } else { self.log_start };
        file.seek(SeekFrom::Start(start.max(length.saturating_sub(WINDOW))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn wait_for(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + patience;
        loop {
            match self.poll()? {
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                status => return Ok(status),
            }
        }
    }

    /// Sends a signal unless the child is gone: as long as it has not been waited for, its id cannot have been reused.
    fn signal(&mut self, send: impl FnOnce(Pid) -> rustix::io::Result<()>) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = send(Pid::from_child(&self.child));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An exit status in words: `exit status 1` or `killed by signal 9 (SIGKILL)`.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown signal");
            format!("killed by signal {signal} ({name})")
        }
        (None, None) => "an unknown end".to_owned(),
    }
}
