//! Whether a process of the pair makes progress, by the heartbeat of its main loop and its state in the system.

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use shared::{
    channel::Silence,
    process::heartbeat::{Beat, Deadlines, LINE, LINES, Phase},
};

/// Silence after which the code checks whether a process is stopped.
const NOTABLE: Duration = Duration::from_millis(500);
/// Time after which a stopped process is reported.
const STOPPED: Duration = Duration::from_secs(2);
/// Time after which a process without progress is reported, unless it has already been silent for about as long.
const SLOW: Duration = Duration::from_secs(10);

/// What to do about a process.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Fine,
    /// Tell the user about it.
    Tell(String),
    /// End it, for this reason.
    End(String),
}

/// The state of one process.
#[derive(Debug)]
pub struct Pulse {
    /// Memory that the process writes its progress to.
    shown: File,
    beat: Beat,
    main: Silence,
    channel: Silence,
    waiting: Silence,
    stopped: Silence,
    /// The longest silence that ended by itself.
    longest: Duration,
    /// Whether its silence has been reported.
    told: bool,
}

impl Pulse {
    /// The pulse of a process that is about to be started.
    pub fn new() -> Result<Self> {
        let what = "memory for the progress of a process";
        // Without the flag that closes it, the process inherits it.
        let shown = File::from(memfd_create("tandem-heartbeat", MemfdFlags::empty()).context(what)?);
        // From here on the memory has a page, so that writing does not fail.
        fs::write(path(&shown), [b' '; LINES * LINE]).context(what)?;
        let [main, channel, waiting, stopped] = [(); 4].map(|()| Silence::default());
        Ok(Self { shown, beat: Beat::default(), main, channel, waiting, stopped, longest: Duration::ZERO, told: false })
    }

    /// Where the process finds the memory, for [`shared::process::heartbeat::VARIABLE`].
    pub fn path(&self) -> PathBuf {
        path(&self.shown)
    }

    /// Its last heartbeat.
    pub fn beat(&self) -> Beat {
        self.beat
    }

    /// How long it has been waiting for the other process.
    pub fn waiting(&self) -> Duration {
        self.waiting.length()
    }

    /// One look at the process of this number; call it many times a second.
    pub fn look(&mut self, process: u32, deadlines: &Deadlines) -> Verdict {
        let now = Beat::read(&self.shown);
        let before = std::mem::replace(&mut self.beat, now);
        let (moved, silence_before) = (now.main != before.main, self.main.length());
        let notable = silence_before >= NOTABLE || !self.stopped.length().is_zero();
        let stopped = notable && !moved && is_stopped(process);
        // A stopped process can do nothing, so this time does not count against its phase.
        self.stopped.note(!stopped);
        self.main.note(moved || stopped);
        self.channel.note(stopped || now.channel.is_none() || now.channel != before.channel);
        // A stopped process may have received what it waited for, and the other process now waits for it.
        self.waiting.note(stopped || now.main.is_none_or(|(phase, _)| phase != Phase::Wait));
        if stopped {
            let what = format!("is stopped (by SIGSTOP; `kill -CONT {process}` lets it go on)");
            return self.judge(&what, self.stopped.length(), STOPPED, (deadlines.peer, "peer_timeout"));
        }
        if self.channel.length() >= deadlines.peer {
            // Its main loop may well turn: it waits for messages that the channel never brings.
            return self.judge(
                "has a channel that does nothing",
                self.channel.length(),
                SLOW,
                (deadlines.peer, "peer_timeout"),
            );
        }
        if moved {
            self.longest = self.longest.max(silence_before);
            return match std::mem::take(&mut self.told) {
                true => Verdict::Tell("goes on".to_owned()),
                false => Verdict::Fine,
            };
        }
        let phase = now.main.map_or(Phase::Load, |(phase, _)| phase);
        let patience = SLOW.max(2 * self.longest);
        self.judge(
            &format!("has made no progress in phase {phase}"),
            self.main.length(),
            patience,
            deadlines.phase(phase),
        )
    }

    fn judge(
        &mut self,
        what: &str,
        silence: Duration,
        patience: Duration,
        (deadline, option): (Duration, &str),
    ) -> Verdict {
        let seconds = |time: Duration| time.as_secs_f64();
        if silence >= deadline {
            return Verdict::End(format!("{what} for {:.0} s (`{option}`)", seconds(silence)));
        }
        if silence < patience || self.told {
            return Verdict::Fine;
        }
        self.told = true;
        let left = seconds(deadline - silence);
        Verdict::Tell(format!(
            "{what} for {:.0} s; after another {left:.0} s (`{option}`) it is ended and started again",
            seconds(silence)
        ))
    }
}

fn path(shown: &File) -> PathBuf {
    format!("/proc/self/fd/{}", shown.as_raw_fd()).into()
}

/// Whether a signal, or a debugger, has stopped a process.
fn is_stopped(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name stands in brackets and may contain brackets.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use std::{process::Command, thread, time::Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(3600);

    fn deadlines() -> Deadlines {
        Deadlines { load: LONG, step: LONG, save: SHORT, peer: LONG }
    }

    /// Looks until there is something to do.
    fn wait(pulse: &mut Pulse, process: u32, deadlines: &Deadlines) -> Verdict {
        let begin = Instant::now();
        loop {
            let verdict = pulse.look(process, deadlines);
            if verdict != Verdict::Fine {
                return verdict;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{pulse:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn each_phase_has_its_deadline_and_progress_begins_it_anew() {
        let mut pulse = Pulse::new().unwrap();
        let own = std::process::id();
        for count in 0..5 {
            fs::write(pulse.path(), format!("save {count}\n")).unwrap();
            thread::sleep(SHORT / 3);
            assert_eq!(pulse.look(own, &deadlines()), Verdict::Fine);
        }
        fs::write(pulse.path(), "step 5\n").unwrap();
        pulse.look(own, &deadlines());
        thread::sleep(SHORT * 2);
        assert_eq!(pulse.look(own, &deadlines()), Verdict::Fine, "a step may take longer");
        fs::write(pulse.path(), "save 6\n").unwrap();
        let Verdict::End(reason) = wait(&mut pulse, own, &deadlines()) else { panic!("{pulse:?}") };
        assert_eq!(reason, "has made no progress in phase save for 0 s (`save_timeout`)");
    }

    #[test]
    fn a_loop_that_turns_before_a_dead_channel_is_ended() {
        let mut pulse = Pulse::new().unwrap();
        let deadlines = Deadlines { peer: SHORT, ..deadlines() };
        let begin = Instant::now();
        let verdict = loop {
            fs::write(pulse.path(), format!("wait {}\nchannel 3\n", begin.elapsed().as_nanos())).unwrap();
            let verdict = pulse.look(std::process::id(), &deadlines);
            if verdict != Verdict::Fine || begin.elapsed() > SHORT * 10 {
                break verdict;
            }
            thread::sleep(SHORT / 30);
        };
        assert!(matches!(&verdict, Verdict::End(reason) if reason.contains("channel")), "{verdict:?}");
        assert!(pulse.waiting() >= SHORT / 2);
    }

    #[test]
    fn a_stopped_process_is_named_and_so_is_its_going_on() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (pid, number) = (Pid::from_child(&child), child.id());
        let mut pulse = Pulse::new().unwrap();
        fs::write(pulse.path(), "wait 1\n").unwrap();
        pulse.look(number, &deadlines());
        kill_process(pid, Signal::STOP).unwrap();
        let begin = Instant::now();
        let stopped = wait(&mut pulse, number, &deadlines());
        assert!(begin.elapsed() < STOPPED * 3);
        assert!(
            matches!(&stopped, Verdict::Tell(line) if line.starts_with("is stopped (by SIGSTOP; `kill -CONT")),
            "{stopped:?}"
        );
        assert_eq!(pulse.waiting(), Duration::ZERO, "a stopped process does not wait for the other one");
        kill_process(pid, Signal::CONT).unwrap();
        let short = Deadlines { peer: STOPPED, ..deadlines() };
        assert_eq!(pulse.look(number, &short), Verdict::Fine, "time in which it was stopped is not counted");
        fs::write(pulse.path(), "step 2\n").unwrap();
        assert!(matches!(wait(&mut pulse, number, &deadlines()), Verdict::Tell(line) if line == "goes on"));
        kill_process(pid, Signal::STOP).unwrap();
        let verdict = wait(&mut pulse, number, &Deadlines { peer: STOPPED, ..deadlines() });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(matches!(&verdict, Verdict::End(reason) if reason.contains("is stopped")), "{verdict:?}");
    }
}
