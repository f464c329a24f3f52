//! A conversation that goes on.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rollout_environments::{Failure, Rating, Step};
use rollout_rewards::RewardCompletion;
use shared::{Episode, EpisodeEnd, Exchange, FinishReason, Logged, Messages, PolicyVersion, RewardOutcome, StepScore};

use crate::{assembly::own_text, conversation::Conversation, data::Tokenizer, engine::State, generate::Conversed};

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
    /// It has ended so, and waits for the others of its group, with which it is rated.
    Over(EpisodeEnd),
    /// It has ended so, and raters say something of it.
    Rating(EpisodeEnd),
    /// It has ended so, and its environment is asked for a reward.
    Scoring(EpisodeEnd),
}

impl At {
    /// Whether it waits for its environment.
    pub fn waits(self) -> bool {
        matches!(self, Self::Opening | Self::Stepping | Self::Rating(_) | Self::Scoring(_))
    }

    /// Whether it needs no slot of the generator.
    pub fn takes_no_slot(self) -> bool {
        self.waits() || matches!(self, Self::Over(_))
    }

    /// Whether its next turn goes on from what the generator has computed.
    pub fn has_state(self) -> bool {
        matches!(self, Self::Sampling | Self::Stepping)
    }

    /// Whether a turn of it has been asked for, and its end does not depend on conversations that have not begun.
    pub fn is_begun(self) -> bool {
        !matches!(self, Self::Opening | Self::Opened | Self::Over(_))
    }
}

/// A conversation between its opening and its end.
pub struct Live {
    pub(super) at: At,
    /// Its prompt, text and tokens, once its environment is open.
    pub(super) conversation: Option<Conversation>,
    /// What its last turn has left, while its tools are at work.
    pub(super) state: Option<State>,
    /// Whether its environment had to wait for a place.
    pub(super) is_queued: bool,
    /// The words of its environment that were appended to the prompt.
    pub(super) opening: Option<String>,
    calls: u32,
    failed_calls: u32,
    pub(super) recomputed: u32,
    /// Turns that have ended.
    turns: u32,
    /// Rewards of turns, by their numbers.
    turn_rewards: Vec<StepScore>,
    rating: Rating,
    begun: Instant,
    /// When its first turn was asked for.
    asked: Option<Instant>,
    /// The time that counts for its group already.
    pub(super) counted: Option<Duration>,
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
            is_queued: false,
            opening: None,
            calls: 0,
            failed_calls: 0,
            recomputed: 0,
            turns: 0,
            turn_rewards: Vec::new(),
            rating: Rating::default(),
            begun: now,
            asked: None,
            counted: None,
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
        if at == At::Sampling {
            self.asked.get_or_insert(now);
        }
        (self.at, self.since) = (at, now);
    }

    /// Its time from its first turn on.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.asked?))
    }

    /// Its turn has made so many calls.
    pub(super) fn called(&mut self, calls: usize) {
        self.calls += calls as u32;
    }

    /// Its tools have answered.
    pub(super) fn stepped(&mut self, step: &Step) {
        self.failed_calls += step.replies.iter().filter(|reply| reply.failed).count() as u32;
        let turn = self.turns.saturating_sub(1);
        self.turn_rewards.extend(step.reward.map(|score| StepScore { end: turn, score }));
    }

    /// A turn of it has ended.
    pub(super) fn turn_ended(&mut self) {
        self.turns += 1;
    }

    /// What raters say of it.
    pub(super) fn rated(&mut self, rating: &Rating) {
        self.rating = rating.clone();
    }

    /// It as reward functions see it.
    pub(super) fn seen(&self, tokenizer: &Tokenizer) -> RewardCompletion {
        let conversation = self.conversation.as_ref().expect("a conversation that is over has begun");
        let (messages, opening) = (conversation.messages().to_vec(), self.opening.clone());
        let said = Some(Arc::new(rollout_rewards::Conversation { messages, opening }));
        let seen =
            RewardCompletion { conversation: said, ..RewardCompletion::of(conversation.episode(), String::new()) };
        RewardCompletion { text: own_text(&seen, tokenizer), ..seen }
    }

    /// The reward, where there is one: that of the end alone, or those of turns with it.
    pub(super) fn reward(&self, last: Option<f64>) -> Option<RewardOutcome> {
        if self.turn_rewards.is_empty() {
            return last.map(RewardOutcome::Score);
        }
        let last = last.map(|score| StepScore { end: self.turns, score });
        Some(RewardOutcome::Steps(self.turn_rewards.iter().copied().chain(last).collect()))
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
        let Rating { outcomes, logged } = self.rating;
        let conversations = self.conversation.into_iter().collect();
        let conversed = conversed((tag, sample), conversations, end, version, exchange);
        Conversed { rewards: outcomes, logged, ..conversed }
    }
}

/// What the conversations of a sample, mostly one, have come to with this end. Each is a path of the episode, behind
/// the beginning that all their prompts share. The messages of further ones begin with those of their prompts.
///
/// `version` is that of the generator, for a sample without any turn. `fill` completes an exchange that has messages
/// and end alone.
#[must_use]
pub fn conversed(
    (tag, sample): (u64, u32),
    conversations: Vec<Conversation>,
    end: EpisodeEnd,
    version: PolicyVersion,
    fill: impl FnOnce(Exchange) -> Exchange,
) -> Conversed {
    let nothing = || Episode::of_one_turn(Vec::new(), Vec::new(), vec![(0, version)], FinishReason::Aborted);
    let prompt_ids = shared_prompt(&conversations);
    let shared = prompt_ids.as_ref().map_or(0, |ids| ids.len());
    let (mut paths, mut messages) = (Vec::new(), Vec::new());
    for (number, conversation) in conversations.into_iter().enumerate() {
        let before = if number > 0 { conversation.prompt().to_vec() } else { Vec::new() };
        let prompt = conversation.prompt_ids().clone();
        let (episode, said, _) = conversation.into_parts();
        messages.push([before, said].concat());
        if episode.sampled_spans().next().is_some() {
            paths.push(episode.behind(&prompt[shared..]));
        }
    }
    let episode = if paths.is_empty() { nothing() } else { Episode::of_paths(paths) };
    let exchange = fill(Exchange { messages: Messages::of_each(&messages), ..Exchange::new(&[], end) });
    let rewards = Vec::new();
    Conversed { tag, sample, prompt_ids, episode, exchange, rewards, logged: Logged::default(), is_drawn_again: false }
}

/// The beginning that the prompts of conversations share; none without a conversation.
fn shared_prompt(conversations: &[Conversation]) -> Option<Arc<[u32]>> {
    let (first, others) = conversations.split_first()?;
    let first = first.prompt_ids();
    let same = |other: &Conversation| first.iter().zip(&**other.prompt_ids()).take_while(|(a, b)| a == b).count();
    match others.iter().map(same).min() {
        Some(shared) if shared < first.len() => Some(first[..shared].into()),
        _ => Some(first.clone()),
    }
}

/// The end of an episode whose environment has failed.
pub(super) fn end_of_failure(failure: &Failure) -> EpisodeEnd {
    if failure.is_late() { EpisodeEnd::Deadline } else { EpisodeEnd::EnvironmentFailed }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_age_is_counted_from_the_first_turn_and_waiting_apart_from_it() {
        let mut live = Live::open();
        assert_eq!(live.age(Instant::now()), None, "no turn was asked for");
        live.go(At::Sampling);
        let begun = Instant::now();
        live.go(At::Stepping);
        thread::sleep(Duration::from_millis(30));
        live.go(At::Sampling);
        assert!(live.age(begun + Duration::from_secs(5)).unwrap() >= Duration::from_secs(5), "from the first one on");
        thread::sleep(Duration::from_millis(30));
        let ended = live.end((0, 0), EpisodeEnd::Stop, (Vec::new(), None), PolicyVersion(3));
        let (waited, all) = (ended.exchange.waited_seconds, ended.exchange.seconds);
        assert!(waited >= 0.03 && all >= waited + 0.03, "{waited} of {all}");
        assert_eq!(ended.episode.oldest(), Some(PolicyVersion(3)), "without a turn it is of the newest version");
    }
}
