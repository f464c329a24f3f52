//! A conversation that goes on.

use std::time::{Duration, Instant};

use rollout_environments::{Failure, Step};
use shared::{Episode, EpisodeEnd, Exchange, FinishReason, PolicyVersion, RewardOutcome};

use crate::{conversation::Conversation, engine::State, generate::Conversed};

/// How far a conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// Its environment is being opened.
    Opening,
    /// It has a prompt, and its first turn has not been asked for.
    Opened,
    /// The generator has a turn of it.
    Sampling,
    /// Its tools are at work.
    Stepping,
    /// It has ended so, and its environment is asked for a reward.
    Scoring(EpisodeEnd),
}

impl At {
    /// Whether it waits for its environment.
    pub fn waits(self) -> bool {
        matches!(self, Self::Opening | Self::Stepping | Self::Scoring(_))
    }

    /// Whether a turn of it has been asked for.
    pub fn is_begun(self) -> bool {
        !matches!(self, Self::Opening | Self::Opened)
    }
}

/// A conversation between its opening and its end.
pub struct Live {
    pub(super) at: At,
    /// Its prompt, text and tokens, once its environment is open.
    pub(super) conversation: Option<Conversation>,
    /// What its last turn has left, while its tools are at work.
    pub(super) state: Option<State>,
    /// The words of its environment that were appended to the prompt.
    pub(super) opening: Option<String>,
    calls: u32,
    failed_calls: u32,
    pub(super) recomputed: u32,
    /// Rewards of its turns together.
    reward: Option<f64>,
    begun: Instant,
    since: Instant,
    waited: Duration,
}

impl Live {
    /// A conversation whose environment is being opened from now on.
    pub(super) fn open() -> Self {
        let now = Instant::now();
        Self {
            at: At::Opening,
            conversation: None,
            state: None,
            opening: None,
            calls: 0,
            failed_calls: 0,
            recomputed: 0,
            reward: None,
            begun: now,
            since: now,
            waited: Duration::ZERO,
        }
    }

    /// It goes over to another state.
    pub(super) fn go(&mut self, at: At) {
        let now = Instant::now();
        if self.at.waits() {
            self.waited += now - self.since;
        }
        (self.at, self.since) = (at, now);
    }

    /// Its turn has made so many calls.
    pub(super) fn called(&mut self, calls: usize) {
        self.calls += calls as u32;
    }

    /// Its tools have answered.
    pub(super) fn stepped(&mut self, step: &Step) {
        self.failed_calls += step.replies.iter().filter(|reply| reply.failed).count() as u32;
        self.add(step.reward);
    }

    /// A reward of a turn, or of the whole episode.
    pub(super) fn add(&mut self, reward: Option<f64>) {
        self.reward = reward.map(|reward| self.reward.unwrap_or(0.0) + reward).or(self.reward);
    }

    /// All rewards together, if there is one.
    pub(super) fn reward(&self) -> Option<f64> {
        self.reward
    }

    /// What it has come to. `version` is that of the generator, for a conversation without any turn.
    pub(super) fn end(
        mut self,
        (tag, sample): (u64, u32),
        end: EpisodeEnd,
        (rewards, failure): (Vec<RewardOutcome>, Option<String>),
        version: PolicyVersion,
    ) -> Conversed {
        self.go(At::Scoring(end));
        let exchange = |blank| Exchange {
            opening: self.opening,
            failure,
            calls: self.calls,
            failed_calls: self.failed_calls,
            rewards,
            recomputed: self.recomputed,
            waited_seconds: self.waited.as_secs_f64(),
            seconds: self.begun.elapsed().as_secs_f64(),
            ..blank
        };
        conversed((tag, sample), self.conversation, end, version, exchange)
    }
}

/// What a conversation with this end has come to. `version` is that of the generator, for a conversation without any
/// turn. `fill` completes an exchange that has messages and end alone.
#[must_use]
pub fn conversed(
    (tag, sample): (u64, u32),
    conversation: Option<Conversation>,
    end: EpisodeEnd,
    version: PolicyVersion,
    fill: impl FnOnce(Exchange) -> Exchange,
) -> Conversed {
    let nothing = || Episode::of_one_turn(Vec::new(), Vec::new(), vec![(0, version)], FinishReason::Aborted);
    let prompt_ids = conversation.as_ref().map(|conversation| conversation.prompt_ids().clone());
    let (episode, messages) = match conversation {
        Some(conversation) => {
            let (episode, messages, _) = conversation.into_parts();
            let has_turn = episode.sampled_spans().next().is_some();
            (if has_turn { episode } else { nothing() }, messages)
        }
        None => (nothing(), Vec::new()),
    };
    Conversed { tag, sample, prompt_ids, episode, exchange: fill(Exchange::new(&messages, end)) }
}

/// The end of an episode whose environment has failed.
pub(super) fn end_of_failure(failure: &Failure) -> EpisodeEnd {
    if failure.is_late() { EpisodeEnd::Deadline } else { EpisodeEnd::EnvironmentFailed }
}
