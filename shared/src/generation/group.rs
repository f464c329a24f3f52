//! The group: one prompt with its completions, as it crosses from sampler to learner.
//!
//! It goes through three states, each a type of its own: [`Group`], which is being filled; [`Scored`], which is whole;
//! and [`Placed`], which has its place in the run.

mod contrast;
mod exchange;
mod failure;
mod notes;
mod states;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::generation::{
    episode::{Episode, FinishReason},
    routing::Routing,
};

pub use contrast::Contrast;
pub use exchange::{EpisodeEnd, Exchange, Messages};
pub use failure::RewardFailure;
pub use notes::{Logged, Note, Notes};
pub use states::{Dropped, Group, Placed, Scored};

/// A process reward's score for one step of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepScore {
    /// Index of the step's last token within the completion.
    pub end: u32,
    /// The score.
    pub score: f64,
}

/// The result of a reward function for a completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RewardOutcome {
    /// A finite score.
    Score(f64),
    /// A finite score for each step of the completion, in order of their ends (process reward).
    Steps(Vec<StepScore>),
    /// The function abstains: it is left out of the weighted sum (TRL's `None`).
    NotApplicable,
    /// The function failed, ran out of time or returned something that is no finite number; [`RewardFailure`] says what
    /// that does to the completion. The reason is meant for people.
    Failed(String),
}

impl RewardOutcome {
    /// The score, if there is one; for steps, their mean.
    #[must_use]
    pub fn score(&self) -> Option<f64> {
        match self {
            Self::Score(s) => Some(*s),
            Self::Steps(steps) if steps.is_empty() => None,
            Self::Steps(steps) => Some(steps.iter().map(|s| s.score).sum::<f64>() / steps.len() as f64),
            Self::NotApplicable | Self::Failed(_) => None,
        }
    }

    /// Rewards of turns as their sum; anything else as it is.
    #[must_use]
    pub fn in_total(&self) -> Self {
        match self {
            Self::Steps(turns) => Self::Score(turns.iter().map(|turn| turn.score).sum()),
            other => other.clone(),
        }
    }

    /// Whether the function failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

/// The weighted sum of the scores, without the functions that have none (TRL's `nansum` over `rewards_per_func *
/// reward_weights`). `None` if no function gave a score: such a completion cannot be ranked.
///
/// `scores` and `weights` have one entry per function.
#[must_use]
pub fn weighted_sum(
    scores: impl IntoIterator<Item = Option<f64>>,
    weights: impl IntoIterator<Item = f64>,
) -> Option<f64> {
    let scored = scores.into_iter().zip(weights).filter_map(|(score, weight)| Some(score? * weight));
    scored.reduce(|sum, next| sum + next)
}

/// Whether a completion was made before, and how it survived the last death of the sampler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Provenance {
    /// It was unknown before.
    #[default]
    New,
    /// It was finished, and the newest checkpoint holds it.
    CarriedOver,
    /// It was begun, or was finished and has become too old, and was made again.
    MadeAgain,
    /// No process died, but its group was dropped for its stragglers, and its prompt drawn again.
    DrawnAgain,
}

/// One continuation of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Index within the group, from 0; one of the keys of the completion's randomness.
    pub sample: u32,
    /// Its tokens: sampled tokens, and tokens that were given to the policy between them.
    pub episode: Episode,
    /// Decoded text of all its tokens, without special tokens.
    pub text: String,
    /// One outcome per reward function, in the order of [`Group::reward_names`].
    pub rewards: Vec<RewardOutcome>,
    /// How it came through the last death of the sampler.
    pub provenance: Provenance,
    /// What policy and environment said to each other; none in a run without tools.
    pub exchange: Option<Box<Exchange>>,
    /// The experts that the sampler chose; none unless `router_replay` asks for them.
    pub routing: Option<Box<Routing>>,
}

impl Completion {
    /// Whether it counts: complete, not empty, and with an environment that did not fail.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.finish_reason() != FinishReason::Aborted && !self.token_ids().is_empty() && !self.environment_failed()
    }

    /// Whether its environment failed, or it took too long.
    #[must_use]
    pub fn environment_failed(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.end.is_failure())
    }

    /// The rewards of turns of which a reward is the sum, by its index: the end of each is the turn's last token,
    /// counted in sampled tokens. A reward at the end is one of the last turn. Empty for a reward that is no such sum.
    #[must_use]
    pub fn turn_scores(&self, reward: usize) -> Vec<StepScore> {
        let by_turn = || {
            let of_environments = &self.exchange.as_deref()?.rewards;
            let first = self.rewards.len().checked_sub(of_environments.len())?;
            match of_environments.get(reward.checked_sub(first)?)? {
                RewardOutcome::Steps(turns) => Some(turns),
                _ => None,
            }
        };
        let Some(turns) = by_turn().filter(|_| matches!(self.rewards[reward], RewardOutcome::Score(_))) else {
            return Vec::new();
        };
        let sum = |sum: &mut usize, span: Range<usize>| {
            *sum += span.len();
            Some(*sum)
        };
        let ends: Vec<usize> = self.episode.sampled_spans().scan(0, sum).collect();
        let mut scores: Vec<StepScore> = Vec::new();
        for turn in turns {
            let end = ends.get(turn.end as usize).or(ends.last()).and_then(|end| end.checked_sub(1));
            let Some(end) = end.map(|end| end as u32) else { continue };
            match scores.last_mut().filter(|last| last.end == end) {
                Some(last) => last.score += turn.score,
                None => scores.push(StepScore { end, score: turn.score }),
            }
        }
        scores
    }

    /// All tokens, sampled and given.
    #[must_use]
    pub fn token_ids(&self) -> &[u32] {
        self.episode.token_ids()
    }

    /// Why generation ended.
    #[must_use]
    pub fn finish_reason(&self) -> FinishReason {
        self.episode.finish_reason()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Segment, Why, generation::testing};

    /// Two turns of three and two tokens with a reply between them, behind two tokens of the prompt.
    fn completion(turns: &[(u32, f64)]) -> Completion {
        let mut completion = testing::completion(0, vec![1, 2, 3]);
        completion.episode.push(Segment::Given { ids: &[9, 9, 9], why: Why::Reply });
        let logprobs = [crate::TokenLogprob::default(); 2];
        let versions = [(0, crate::PolicyVersion(0))];
        let finish = FinishReason::Stop;
        completion.episode.push(Segment::Sampled { ids: &[4, 5], logprobs: &logprobs, versions: &versions, finish });
        completion.episode = completion.episode.behind(&[7, 7]);
        let turns = turns.iter().map(|&(end, score)| StepScore { end, score }).collect();
        let by_turn = RewardOutcome::Steps(turns);
        completion.rewards = vec![RewardOutcome::Score(9.0), RewardOutcome::NotApplicable, by_turn.in_total()];
        completion.exchange = Some(Box::new(Exchange {
            rewards: vec![RewardOutcome::NotApplicable, by_turn],
            ..Exchange::new(&[], EpisodeEnd::Stop)
        }));
        completion
    }

    #[test]
    fn rewards_of_turns_end_with_their_turns_and_are_summed_for_the_whole() {
        let found = completion(&[(0, 0.5), (1, -1.0), (2, 4.0)]);
        let step = |end, score| StepScore { end, score };
        assert_eq!(found.turn_scores(2), [step(2, 0.5), step(4, 3.0)], "the end belongs to the last turn");
        assert_eq!((found.turn_scores(0), found.turn_scores(1), found.turn_scores(3)), Default::default());
        assert_eq!(found.rewards[2], RewardOutcome::Score(3.5));
        assert_eq!(completion(&[(2, 1.0)]).turn_scores(2), [step(4, 1.0)]);
        let failed = Completion { rewards: vec![RewardOutcome::Failed("gone".into()); 3], ..found };
        assert_eq!(failed.turn_scores(2), []);
    }

    #[test]
    fn equal_sums_of_unequal_turns_have_contrast_where_turns_are_steps() {
        let contrasts = |turns: [&[(u32, f64)]; 2]| {
            let mut group = testing::group(0, turns.map(completion).to_vec());
            group.reward_names = ["a", "b", "c"].map(|name| (name.to_owned(), 1.0)).to_vec();
            [Contrast::Steps, Contrast::Total].map(|contrast| group.has_contrast(contrast, RewardFailure::Exclude))
        };
        assert_eq!(contrasts([&[(0, 1.0), (1, 0.0)], &[(0, 0.0), (1, 1.0)]]), [true, false]);
        assert_eq!(contrasts([&[(0, 1.0), (1, 1.0)], &[(0, 1.0), (1, 1.0)]]), [false, false]);
    }
}
