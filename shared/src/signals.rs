//! Signals that ask a process of the pair for its end.

use std::{
    fs, io,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use rustix::process::{Signal, getpid, kill_process};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
};

use crate::{
    channel::Silence,
    heartbeat::{self, Deadlines},
    tell,
};

/// The signals that ask for the end. A hangup that was ignored when the process was started stays so: `nohup` is meant.
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

/// Catches the signals from now on; the flag is set when one came. A main loop that is blocked does not look at the flag,
/// and a launcher that would end it may be gone: once asked, a process that makes no progress within its deadlines kills
/// itself.
///
/// # Errors
/// When the system refuses.
pub fn listen(deadlines: Deadlines) -> io::Result<Arc<AtomicBool>> {
    let asked = Arc::new(AtomicBool::new(false));
    let signals = of_the_end();
    for &signal in &signals {
        flag::register(signal, Arc::clone(&asked))?;
    }
    // Where files may not become larger (`ulimit -f`), what cannot be written is then an error, which names the file.
    flag::register(SIGXFSZ, Arc::default())?;
    let mut signals = Signals::new(signals)?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        if signals.forever().next().is_some() {
            end_when_stuck(deadlines);
        }
    })?;
    Ok(asked)
}

/// Takes the signals that ask for the end, which a terminal sends to all its processes, and does nothing about them: the
/// process that started this one is asked as well, and ends it.
///
/// # Errors
/// When the system refuses.
pub fn leave_to_others() -> io::Result<()> {
    of_the_end().into_iter().try_for_each(|signal| flag::register(signal, Arc::default()).map(drop))
}

fn end_when_stuck(deadlines: Deadlines) {
    let (mut silence, mut before) = (Silence::default(), heartbeat::progress());
    loop {
        thread::sleep(Duration::from_millis(200));
        let now = heartbeat::progress();
        silence.note(now != before);
        before = now;
        let Some((phase, _)) = now.main else { return };
        let (deadline, option) = deadlines.phase(phase);
        if silence.length() > deadline {
            tell!(
                "error: asked to end, and no progress in phase {phase} for {:.0} s (`{option}`)",
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
    fn what_nohup_ignores_stays_ignored() {
        assert_eq!(caught(0), [SIGTERM, SIGINT, SIGHUP]);
        // A shell has what it starts in the background ignore Ctrl-C, and yet it may be sent on purpose.
        assert_eq!(caught(0b11), [SIGTERM, SIGINT]);
    }
}
