//! Faults on purpose: after a step, the processes are killed or stopped as a seed says, to see that the run survives
//! it.

use std::{str::FromStr, time::Duration};

use anyhow::{Context, Error, Result, bail, ensure};
use shared::generation::rng::uniform;

/// Keys of the draws.
const DEED: u64 = 1;
const VICTIM: u64 = 2;
const LENGTH: u64 = 3;

/// How often something is done to a process: `seed=7,kill=0.02,stop=0.01,disk=0.01`, the probabilities per step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chaos {
    seed: u64,
    kill: f64,
    stop: f64,
    disk: f64,
}

/// To whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The learner.
    Learner,
    /// The sampler.
    Sampler,
    /// Both at once.
    Both,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// SIGKILL.
    Kill(Victim),
    /// SIGSTOP, and SIGCONT after a while.
    Stop(Victim, Duration),
    /// For a while no file can be written, as where the disk is full.
    FillDisk(Victim, Duration),
}

impl Deed {
    /// To whom it is done.
    pub fn victim(self) -> Victim {
        let (Self::Kill(victim) | Self::Stop(victim, _) | Self::FillDisk(victim, _)) = self;
        victim
    }
}

impl Victim {
    /// Whether the process of this name is meant.
    pub fn is(self, name: &str) -> bool {
        match self {
            Self::Learner => name == "learner",
            Self::Sampler => name == "rollout",
            Self::Both => true,
        }
    }
}

impl FromStr for Chaos {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut chaos = Self { seed: 0, kill: 0.0, stop: 0.0, disk: 0.0 };
        for part in text.split(',') {
            let read = || part.split_once('=').context("not of the form key=value");
            let set = read().and_then(|(key, value)| chaos.set(key.trim(), value.trim()));
            set.with_context(|| format!("--chaos: `{part}`"))?;
        }
        ensure!(chaos.kill + chaos.stop + chaos.disk <= 1.0, "--chaos: the probabilities together must be at most 1");
        Ok(chaos)
    }
}

impl Chaos {
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let share = || -> Result<f64> {
            let share = value.parse()?;
            ensure!((0.0..=1.0).contains(&share), "a probability is between 0 and 1");
            Ok(share)
        };
        match key {
            "seed" => self.seed = value.parse()?,
            "kill" => self.kill = share()?,
            "stop" => self.stop = share()?,
            "disk" => self.disk = share()?,
            _ => bail!("unknown key; there are seed, kill, stop and disk"),
        }
        Ok(())
    }

    /// What is done when so many steps are complete for the first time.
    pub fn after(&self, step: u64) -> Option<Deed> {
        let draw = |key| uniform(&[self.seed, step, key]);
        let victim = [Victim::Learner, Victim::Sampler, Victim::Both][(draw(VICTIM) * 3.0) as usize];
        let time = Duration::from_secs_f64(1.0 + 3.0 * draw(LENGTH));
        let deeds = [
            (self.kill, Deed::Kill(victim)),
            (self.stop, Deed::Stop(victim, time)),
            (self.disk, Deed::FillDisk(victim, time)),
        ];
        let mut below = 0.0;
        let drawn = draw(DEED);
        deeds.into_iter().find_map(|(share, deed)| {
            below += share;
            (drawn < below).then_some(deed)
        })
    }
}

/// The deeds of a session, each of which is done once.
#[derive(Debug)]
pub struct Mischief {
    chaos: Option<Chaos>,
    /// The last step after which everything is done.
    done_until: u64,
}

impl Mischief {
    /// Of a session that begins when so many steps are complete.
    pub fn new(chaos: Option<Chaos>, steps: u64) -> Self {
        Self { chaos, done_until: steps }
    }

    /// The next deed when so many steps are complete, with the step that it comes after.
    pub fn due(&mut self, steps: u64) -> Option<(u64, Deed)> {
        let chaos = self.chaos?;
        let mut new = self.done_until + 1..=steps;
        let found = new.find_map(|step| Some((step, chaos.after(step)?)));
        self.done_until = found.map_or(self.done_until.max(steps), |(step, _)| step);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeds_come_as_often_as_asked_for_and_are_the_same_for_a_seed() {
        let chaos: Chaos = "seed=7,kill=0.2,stop=0.1,disk=0.05".parse().unwrap();
        let deeds: Vec<_> = (1..=3000).map(|step| chaos.after(step)).collect();
        let count = |wanted: fn(&Deed) -> bool| deeds.iter().flatten().filter(|deed| wanted(deed)).count();
        let found = [
            count(|deed| matches!(deed, Deed::Kill(_))),
            count(|deed| matches!(deed, Deed::Stop(..))),
            count(|deed| matches!(deed, Deed::FillDisk(..))),
        ];
        let expected = [500..700, 230..370, 100..200];
        assert!(expected.iter().zip(&found).all(|(range, count)| range.contains(count)), "{found:?}");
        assert!((150..250).contains(&count(|deed| *deed == Deed::Kill(Victim::Both))));
        assert!(deeds.iter().enumerate().all(|(i, deed)| chaos.after(i as u64 + 1) == *deed));
        let other: Chaos = "seed=8,kill=0.2,stop=0.1".parse().unwrap();
        assert!((1..=3000).any(|step| other.after(step) != chaos.after(step)));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, problem) in [
            ("kill", "`kill`: not of the form"),
            ("seed=1,kill=2", "`kill=2`: a probability"),
            ("kill=NaN", "between 0 and 1"),
            ("fire=0.1", "there are seed, kill, stop and disk"),
            ("kill=0.6,stop=0.6", "together"),
        ] {
            let error = format!("{:#}", text.parse::<Chaos>().unwrap_err());
            assert!(error.contains(problem) && error.starts_with("--chaos: "), "{error}");
        }
    }
}
