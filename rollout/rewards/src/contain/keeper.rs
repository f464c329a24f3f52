//! The process that the sampler starts, and that ends with it.

use std::{
    ffi::OsString,
    fs,
    os::unix::net::UnixStream,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::read,
    process::{
        Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, set_child_subreaper, setpriority_process,
        wait,
    },
};
use signal_hook::{
    consts::{SIGCHLD, SIGTERM},
    flag,
    low_level::pipe,
};

use super::{NOT_STARTED, Plan, Stage, namespaces, refuse, start, succeeds, system, tree};

/// How often the keeper looks whether the sampler lives, and the watcher how much the program takes.
const LOOK: Duration = Duration::from_millis(50);

/// The priority that comes before all others.
const FIRST: i32 = -20;

/// Runs the program of `words` below a watcher, until the program ends or the sampler no longer wants it.
pub fn run(mut plan: Plan, words: &[OsString]) -> ExitCode {
    system::close_inherited();
    // However many processes the program starts, this one and the watcher get processor time (where the system allows
    // the higher priority).
    let _ = setpriority_process(None, FIRST);
    plan.keeper = std::process::id();
    plan.in_namespace = succeeds(Stage::Probe, &plan, words) && namespaces::enter().is_ok();
    let code = keep(&plan, words);
    let _ = fs::remove_dir_all(&plan.scratch);
    code
}

fn keep(plan: &Plan, words: &[OsString]) -> ExitCode {
    let asked = Arc::new(AtomicBool::new(false));
    let Ok(mut waker) = flag::register(SIGTERM, Arc::clone(&asked)).and_then(|_| Waker::new(&[SIGTERM, SIGCHLD]))
    else {
        return refuse("signals cannot be handled");
    };
    let parent = i32::try_from(plan.parent).ok();
    let unwanted = || asked.load(Ordering::Relaxed) || getppid().map(|pid| pid.as_raw_nonzero().get()) != parent;
    if !plan.in_namespace && set_child_subreaper(Some(getpid())).is_err() {
        return refuse("orphans cannot be gathered");
    }
    let watcher = match start(Stage::Watch, plan, words) {
        Ok(watcher) => watcher,
        Err(error) => return refuse(&format!("the watcher cannot be started: {error}")),
    };
    loop {
        if let Some(end) = reaped(watcher) {
            // A PID namespace ends with its first process. Without one, nothing else ends the processes that a killed
            // watcher leaves behind.
            if !plan.in_namespace {
                tree::kill_all();
            }
            return ExitCode::from(end.exit_status().map_or(NOT_STARTED, |code| code as u8));
        }
        if unwanted() {
            if plan.in_namespace {
                // The watcher is the first process of the namespace: the kernel ends the others with it.
                let _ = kill_process(watcher, Signal::KILL);
                let _ = wait(WaitOptions::empty());
            } else {
                tree::kill_all();
            }
            return ExitCode::SUCCESS;
        }
        waker.sleep();
    }
}

/// Reaps all children that have ended, and returns the status of `child` if it is one of them.
pub fn reaped(child: Pid) -> Option<WaitStatus> {
    let mut end = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == child {
            end = Some(status);
        }
    }
    end
}

/// A sleep that signals end.
pub struct Waker(UnixStream);

impl Waker {
    /// A sleep that these signals end.
    ///
    /// # Errors
    /// When there are no descriptors.
    pub fn new(signals: &[i32]) -> std::io::Result<Self> {
        let (own, written) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        for &signal in signals {
            pipe::register(signal, written.try_clone()?)?;
        }
        Ok(Self(own))
    }

    /// Sleeps for [`LOOK`], or until the next signal.
    pub fn sleep(&mut self) {
        let mut watched = [PollFd::new(&self.0, PollFlags::IN)];
        let patience = Timespec::try_from(LOOK).expect("a part of a second");
        let _ = poll(&mut watched, Some(&patience));
        while matches!(read(&self.0, &mut [0_u8; 64]), Ok(1..)) {}
    }
}
