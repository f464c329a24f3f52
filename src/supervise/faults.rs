//! What chaos has done to a process of the pair, until when, and which of its deaths that excuses.

use std::{
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::{Duration, Instant},
};

use rustix::process::Rlimit;

use super::chaos::Deed;
use crate::programs::Process;

/// Bytes of a file where chaos has filled the disk: the memory that a process shows its progress in is one as well.
const FULL_DISK: u64 = 4096;

/// The faults that were injected into a process.
#[derive(Debug, Default)]
pub struct Faults {
    /// Chaos has ended it, which is no fault of its own.
    ended: bool,
    /// Until when chaos has stopped it.
    stopped_until: Option<Instant>,
    /// Until when chaos lets it write no files, and what limit there was before.
    disk_full_until: Option<(Instant, Rlimit)>,
    /// Chaos has let it write no files at some time of its life: an error of it may come from that.
    had_full_disk: bool,
}

impl Faults {
    /// Does a deed to the process; in words.
    pub fn inject(&mut self, deed: Deed, process: Option<&mut Process>) -> &'static str {
        match deed {
            Deed::Kill(_) => self.kill(process),
            Deed::Stop(_, time) => self.stop(process, time),
            Deed::FillDisk(_, time) => self.fill_disk(process, time),
        }
    }

    fn kill(&mut self, process: Option<&mut Process>) -> &'static str {
        self.ended = process.is_some();
        if let Some(process) = process {
            process.kill();
        }
        "is killed"
    }

    fn stop(&mut self, process: Option<&mut Process>, time: Duration) -> &'static str {
        if let Some(process) = process {
            process.stop();
            self.stopped_until = Some(Instant::now() + time);
        }
        "is stopped"
    }

    fn fill_disk(&mut self, process: Option<&mut Process>, time: Duration) -> &'static str {
        if self.disk_full_until.is_some() {
            return "finds the disk full still";
        }
        let limit = Rlimit { current: Some(FULL_DISK), maximum: None };
        let Some(before) = process.and_then(|process| process.limit_files(limit)) else {
            return "is left alone: the size of its files cannot be limited";
        };
        self.disk_full_until = Some((Instant::now() + time, before));
        self.had_full_disk = true;
        "finds the disk full"
    }

    /// Ends the faults whose time is over.
    pub fn end_in_time(&mut self, process: Option<&mut Process>) {
        let stop_is_over = self.stopped_until.take_if(|until| Instant::now() >= *until).is_some();
        let disk_is_free = self.disk_full_until.take_if(|(until, _)| Instant::now() >= *until);
        let Some(process) = process else { return };
        if stop_is_over {
            process.go_on();
        }
        if let Some((_, limit)) = disk_is_free {
            process.limit_files(limit);
        }
    }

    /// Whether the end of the process is due to chaos. One that was `ended_here` for a reason of its own is not, unless
    /// chaos was the one that killed it.
    pub fn excuse(&mut self, status: ExitStatus, ended_here: bool) -> bool {
        self.ended = self.ended && status.signal() == Some(libc::SIGKILL) || self.had_full_disk && !ended_here;
        self.ended
    }

    /// Takes back the excuse of a process that is about to be started again; whether there was one.
    pub fn take_excuse(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Forgets what the process that takes the place of another does not have.
    pub fn forget_disk(&mut self) {
        self.disk_full_until = None;
        self.had_full_disk = false;
    }
}
