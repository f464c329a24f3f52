//! The group: one prompt with its completions, as it crosses from sampler to learner.

mod contrast;
mod failure;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, PolicyVersion, PromptId};

pub use contrast::Contrast;
pub use failure::RewardFailure;

/// Why a completion ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence token (included once at the end of `token_ids`) or a stop string.
    Stop,
    /// `max_completion_length` or the model's maximum length was reached.
    Length,
    /// Given up: the run ended, or the engine refused the sequence. Never trained on.
    Aborted,
}

impl FinishReason {
    /// The word used in JSONL outputs: `stop`, `length` or `aborted`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Aborted => "aborted",
        }
    }
}

/// What the engine knows of one sampled token's probability. All natural logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Under the full distribution at temperature 1, before any penalty.
    pub logprob: f32,
    /// Under the full (untruncated) distribution at the sampling temperature, after the repetition penalty.
    /// Equal to `logprob` at temperature 1 without a penalty; 0 where it does not apply (greedy).
    pub logprob_at_temperature: f32,
    /// Log of the probability mass that truncation kept; the token's log-prob under the distribution it was drawn from is
    /// `logprob_at_temperature - log_kept_mass`. 0 without truncation.
    pub log_kept_mass: f32,
    /// Number of tokens that truncation kept; 0 without truncation.
    pub kept_count: u32,
}

impl TokenLogprob {
    /// Log-prob under the very distribution that the token was drawn from.
    #[must_use]
    pub fn sampling_logprob(&self) -> f32 {
        self.logprob_at_temperature - self.log_kept_mass
    }
}

/// What a process reward said about one step of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepScore {
    /// Index of the step's last token within the completion.
    pub end: u32,
    /// The score.
    pub score: f64,
}

/// What a reward function said about a completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RewardOutcome {
    /// A finite score.
    Score(f64),
    /// A finite score for each step of the completion, in order of their ends (process reward).
    Steps(Vec<StepScore>),
    /// The function abstains: it is left out of the weighted sum (TRL's `None`).
    NotApplicable,
    /// The function failed, ran out of time or returned something that is no finite number; [`RewardFailure`] says what
    /// that does to the completion. The reason is for people.
    Failed(String),
}

impl RewardOutcome {
    /// The score, if there is one; of steps, their mean.
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

/// The weighted sum of the scores, without the functions that have none (TRL's `nansum` over
/// `rewards_per_func * reward_weights`). `None` when no function gave a score: such a completion cannot be ranked.
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

/// How a completion came through the last death of the sampler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Provenance {
    /// Nothing of it was known before.
    #[default]
    New,
    /// It was finished when the newest checkpoint was written, which has kept it.
    CarriedOver,
    /// It had been begun by then, or finished and has become too old, and was made again.
    MadeAgain,
}

/// One sampled continuation of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Index within the group, from 0; one of the keys of the completion's randomness.
    pub sample: u32,
    /// Sampled tokens, the end-of-sequence token included once if there is one. Never re-tokenised.
    pub token_ids: Vec<u32>,
    /// One entry per token.
    pub logprobs: Vec<TokenLogprob>,
    /// Runs of weight versions: `(first token index, version)`, ascending; the first entry starts at token 0.
    pub versions: Vec<(u32, PolicyVersion)>,
    /// Decoded text without special tokens.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// One outcome per reward function, in the order of [`RolloutGroup::reward_names`].
    pub rewards: Vec<RewardOutcome>,
    /// Whether a checkpoint has kept it.
    pub provenance: Provenance,
}

/// A group that dynamic sampling replaced, because its completions all earn the same or its weights were too old.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DroppedGroup {
    /// Row of the dataset.
    pub prompt_id: PromptId,
    /// The epoch of the dataset that the prompt was drawn in, from 0.
    pub epoch: u32,
    /// The prompt as text, for people.
    pub prompt_text: String,
    /// Its completions, for the records.
    pub completions: Vec<Completion>,
    /// What its completions earned (weighted) on average; `None` when no function had a score.
    pub reward: Option<f64>,
    /// Completion tokens that were sampled for it.
    pub tokens: u64,
    /// Whether it was older than `max_staleness` allows by the time a batch had room for it.
    pub stale: bool,
}

impl Completion {
    /// Whether it counts at all: complete and not empty.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.finish_reason != FinishReason::Aborted && !self.token_ids.is_empty()
    }
}

/// One prompt with all its completions: the unit that crosses the channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutGroup {
    /// Place in the run.
    pub id: GroupId,
    /// Row of the dataset.
    pub prompt_id: PromptId,
    /// The epoch of the dataset that the prompt was drawn in, from 0; the third key of its randomness.
    pub epoch: u32,
    /// The prompt's tokens as the model saw them.
    pub prompt_ids: Vec<u32>,
    /// The prompt as text (template applied), for people.
    pub prompt_text: String,
    /// `num_generations` completions.
    pub completions: Vec<Completion>,
    /// Names of the reward functions, with their weights.
    pub reward_names: Vec<(String, f64)>,
    /// The oldest weight version that any token of the group was sampled from.
    pub policy_version: PolicyVersion,
    /// Number of dataset positions used up once this group is consumed, those of `dropped` included: where a restarted
    /// sampler goes on.
    pub cursor: u64,
    /// Groups that dynamic sampling made between the group before and this one and did not use.
    pub dropped: Vec<DroppedGroup>,
    /// Whether dynamic sampling put it into the batch although its completions all earn the same, because the step's
    /// budget of attempts was spent.
    pub filler: bool,
    /// Seconds from admission to the last token.
    pub generation_seconds: f64,
}

impl RolloutGroup {
    /// Dataset position at which the group, with everything that was dropped on the way to it, begins: the `cursor` of
    /// the group before.
    #[must_use]
    pub fn begin(&self) -> u64 {
        self.cursor.saturating_sub(1 + self.dropped.len() as u64)
    }
}
