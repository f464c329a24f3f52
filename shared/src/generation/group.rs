//! The group: one prompt with its completions, as it crosses from sampler to learner.
//!
//! It goes through three states, each a type of its own: [`Group`], which is being filled; [`Scored`], which is whole;
//! and [`Placed`], which has its place in the run.

mod contrast;
mod exchange;
mod failure;
mod notes;
mod states;

use serde::{Deserialize, Serialize};

use crate::generation::episode::{Episode, FinishReason};

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
