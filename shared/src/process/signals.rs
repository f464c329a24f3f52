//! Signals that ask a process of the pair to end.

use std::{
    fs, io,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
};

use crate::{
    channel::Silence,
    process::heartbeat::{self, Deadlines, Phase},
    tell,
};

/// The signals that ask a process to end. A hangup that was ignored when the process was started stays ignored: the
/// user wants `nohup`.
#[must_use]
pub fn of_the_end() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    caught(ignored.unwrap_or(0))
}

/// `ignored` has a bit for each signal, the lowest for signal 1.
fn caught(ignored: u64) -> Vec<i32> {
    let is_ignored = |signal: i32| ignored & (1 << (signal - 1)) != 0;
    [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|&signal| signal != SIGHUP || !is_ignored(signal)).collect()
}

/// Makes a write beyond the largest size of a file (`ulimit -f`) an error, which names the file and lets the program
/// remove what is half written. The signal would end the program. Programs that this one starts get the signal again.
pub fn make_oversized_writes_errors() {
    // A system that refuses leaves things as they are.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// Catches the signals from now on, and sets the flag when one comes. A blocked main loop does not look at the flag,
/// and the launcher that would end it may be gone: once asked to end, a process that makes no progress within its
/// deadlines kills itself.
///
/// # Errors
/// When the system refuses.
pub fn listen(deadlines: Deadlines) -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let signals = of_the_end();
    for &signal in &signals {
        flag::register(signal, Arc::clone(&asked))?;
    }
    let mut signals = Signals::new(signals)?;
    // Read before the launcher can be gone: an orphaned process has another parent.
    let launcher = getppid();
    thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            end_when_stuck(deadlines, launcher);
        }
    })?;
    Ok(asked)
}

/// Catches the signals that ask a process to end, which a terminal sends to all its processes, and ignores them: the
/// process that started this one gets them as well, and ends it.
///
/// # Errors
/// When the system refuses.
pub fn leave_to_others() -> io::Result<()> {
    of_the_end().into_iter().try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}

/// How long a process whose launcher is gone may make no progress, unless it is saving: nobody else would ever end it.
const ORPHANED: Duration = Duration::from_secs(30);
/// The same for a process that is saving, whose disk may be slow: its data would be lost.
const ORPHANED_SAVING: Duration = Duration::from_secs(300);

/// How long a process that was asked to end may make no progress, and the reason.
fn patience(deadlines: &Deadlines, phase: Phase, orphaned: bool) -> (Duration, String) {
    let (deadline, option) = deadlines.phase(phase);
    let bound = if phase == Phase::Save { ORPHANED_SAVING } else { ORPHANED };
    if orphaned && bound < deadline {
        (bound, "its launcher is gone".into())
    } else {
        (deadline, format!("`{option}`"))
    }
}

fn end_when_stuck(deadlines: Deadlines, launcher: Option<Pid>) {
    let (mut silence, mut before) = (Silence::default(), heartbeat::progress());
    loop {
        thread::sleep(Duration::from_millis(200));
        let now = heartbeat::progress();
        silence.note(now != before);
        before = now;
        let Some((phase, _)) = now.main else { return };
        let (deadline, reason) = patience(&deadlines, phase, getppid() != launcher);
        if silence.length() > deadline {
            tell!(
                "error: asked to end, and no progress in phase {phase} for {:.0} s ({reason})",
                deadline.as_secs_f64()
            );
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whose_launcher_is_gone_is_stuck_sooner() {
        let hour = Duration::from_secs(3600);
        let deadlines = Deadlines { load: hour, step: Duration::from_secs(2), save: hour, peer: hour };
        assert_eq!(patience(&deadlines, Phase::Load, false), (hour, "`load_timeout`".into()));
        assert_eq!(patience(&deadlines, Phase::Load, true), (ORPHANED, "its launcher is gone".into()));
        assert_eq!(patience(&deadlines, Phase::Save, true), (ORPHANED_SAVING, "its launcher is gone".into()));
        assert_eq!(patience(&deadlines, Phase::Step, true), (Duration::from_secs(2), "`step_timeout`".into()));
    }

    #[test]
    fn what_nohup_ignores_stays_ignored() {
        assert_eq!(caught(0), [SIGTERM, SIGINT, SIGHUP]);
        // Background jobs of a shell ignore Ctrl-C, and yet SIGINT may be sent to them on purpose.
        assert_eq!(caught(0b11), [SIGTERM, SIGINT]);
    }
}
