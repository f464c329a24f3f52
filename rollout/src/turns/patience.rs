//! How long conversations may take: a bound for each, and one that the others of its group set.

use std::time::Duration;

use shared::{
    config::{Stragglers, TrainConfig},
    generation::rng,
};

/// Draws of a prompt whose group is dropped for its stragglers. The last group is waited for.
const MOST_DRAWS: u32 = 3;

/// Time in which no conversation is a straggler: it holds nobody up.
const LEAST: Duration = Duration::from_secs(1);

/// Conversations without which a group teaches nothing: it takes two rewards to compare.
const FEWEST: usize = 2;

/// The bounds of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Patience {
    /// Most time of a conversation from its first turn on (`episode_timeout`).
    pub episode: Option<Duration>,
    /// What becomes of stragglers.
    pub stragglers: Stragglers,
    /// How many times as long as the first half of its group a straggler takes.
    pub straggler_after: f64,
}

impl Default for Patience {
    /// Waits for everything.
    fn default() -> Self {
        Self { episode: None, stragglers: Stragglers::Wait, straggler_after: f64::INFINITY }
    }
}

/// What to do about the stragglers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The group waits for them.
    Wait,
    /// They end without a reward.
    LeaveOut,
    /// The group is dropped, and its prompt drawn again.
    DrawAgain,
}

impl Patience {
    /// As a run's options say.
    #[must_use]
    pub fn of(config: &TrainConfig) -> Self {
        Self {
            episode: config.episode_timeout.map(Duration::from_secs_f64),
            stragglers: config.stragglers,
            straggler_after: config.straggler_after,
        }
    }

    /// Whether there is any bound.
    pub(super) fn is_bounded(&self) -> bool {
        *self != Self { straggler_after: self.straggler_after, ..Self::default() }
    }

    /// What to do about the stragglers of a group, of which so many were dropped before.
    pub(super) fn verdict(&self, pace: &Pace, dropped: u32) -> Verdict {
        let is_enough = pace.well() >= FEWEST;
        match self.stragglers {
            Stragglers::TrainRest if is_enough => Verdict::LeaveOut,
            Stragglers::Drop | Stragglers::TrainRest if dropped + 1 < MOST_DRAWS => Verdict::DrawAgain,
            Stragglers::Wait | Stragglers::Drop | Stragglers::TrainRest => Verdict::Wait,
        }
    }

    /// The time after which a conversation of a group is a straggler; none as long as less than half of the group has
    /// ended well.
    pub(super) fn bound(&self, pace: &Pace) -> Option<Duration> {
        let seconds = pace.of_first_half()?.as_secs_f64() * self.straggler_after;
        Duration::try_from_secs_f64(seconds).ok().map(|bound| bound.max(LEAST))
    }
}

/// How fast the conversations of a group are.
#[derive(Debug, Clone, Default)]
pub(super) struct Pace {
    samples: usize,
    /// Times of those that have ended well, ascending.
    times: Vec<Duration>,
    failed: usize,
}

impl Pace {
    /// Of a group of so many.
    pub fn of(samples: usize) -> Self {
        Self { samples, ..Self::default() }
    }

    /// One has ended: well, after a time, or not.
    pub fn ended(&mut self, time: Option<Duration>) {
        match time {
            Some(time) => self.times.insert(self.times.partition_point(|known| *known <= time), time),
            None => self.failed += 1,
        }
    }

    /// One that had ended well after this time has no reward.
    pub fn has_failed(&mut self, time: Duration) {
        if let Ok(place) = self.times.binary_search(&time) {
            self.times.remove(place);
        }
        self.failed += 1;
    }

    /// How many have ended well.
    pub fn well(&self) -> usize {
        self.times.len()
    }

    /// The time in which half of those had ended that have not failed.
    fn of_first_half(&self) -> Option<Duration> {
        let half = (self.samples - self.failed).div_ceil(2);
        self.times.get(half.checked_sub(1)?).copied()
    }
}

/// The seed of a prompt that is drawn once more: the same numbers would lead to the same turns, and to the same tools.
pub(super) fn seed_of_next_draw(seed: u64) -> u64 {
    const DRAWN_AGAIN: u64 = 0x6472_6177_6e20_6167;
    rng::hash(&[seed, DRAWN_AGAIN])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(samples: usize, seconds: &[u64], failed: usize) -> Pace {
        let mut pace = Pace::of(samples);
        seconds.iter().for_each(|seconds| pace.ended(Some(Duration::from_secs(*seconds))));
        (0..failed).for_each(|_| pace.ended(None));
        pace
    }

    fn patience(stragglers: Stragglers) -> Patience {
        Patience { stragglers, straggler_after: 2.5, ..Patience::default() }
    }

    #[test]
    fn the_slower_half_of_a_group_is_bounded_by_the_faster_one() {
        let bound = |pace: &Pace| patience(Stragglers::Drop).bound(pace).map(|bound| bound.as_secs_f64());
        assert_eq!(bound(&pace(4, &[6], 0)), None, "less than half of them");
        assert_eq!(bound(&pace(4, &[6, 4], 0)), Some(15.0));
        assert_eq!(bound(&pace(4, &[6, 9, 4], 0)), Some(15.0));
        assert_eq!(bound(&pace(5, &[6, 4], 0)), None);
        assert_eq!(bound(&pace(5, &[6, 4], 1)), Some(15.0), "those that failed do not count");
        assert_eq!(bound(&pace(2, &[], 2)), None);
        assert_eq!(bound(&pace(2, &[0], 0)), Some(1.0), "nobody waits for less");
        let mut without_reward = pace(4, &[6, 4, 9], 0);
        without_reward.has_failed(Duration::from_secs(4));
        assert_eq!(bound(&without_reward), Some(22.5), "its time leaves with it");
        let forever = Patience { straggler_after: f64::INFINITY, ..patience(Stragglers::Drop) };
        assert_eq!(forever.bound(&pace(1, &[6], 0)), None);
    }

    #[test]
    fn a_group_is_dropped_twice_at_most_and_never_where_two_are_enough() {
        use Stragglers::{Drop, TrainRest, Wait};
        let verdicts = |stragglers, seconds: &[u64]| {
            [0, 1, 2].map(|dropped| patience(stragglers).verdict(&pace(4, seconds, 0), dropped))
        };
        assert_eq!(verdicts(Wait, &[1, 1]), [Verdict::Wait; 3]);
        assert_eq!(verdicts(TrainRest, &[1, 1]), [Verdict::LeaveOut; 3]);
        for (stragglers, seconds) in [(Drop, &[1, 1][..]), (TrainRest, &[1])] {
            assert_eq!(verdicts(stragglers, seconds), [Verdict::DrawAgain, Verdict::DrawAgain, Verdict::Wait]);
        }
    }

    #[test]
    fn only_a_bound_is_looked_at() {
        assert!(!Patience::default().is_bounded() && !Patience::of(&TrainConfig::default()).is_bounded());
        assert!(patience(Stragglers::TrainRest).is_bounded());
        let config = TrainConfig { episode_timeout: Some(1.5), ..TrainConfig::default() };
        assert!(Patience::of(&config).is_bounded());
        assert_eq!(Patience::of(&config).episode, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn every_draw_has_other_numbers() {
        let (first, second) = (7, seed_of_next_draw(7));
        assert!(first != second && second != seed_of_next_draw(second));
    }
}
