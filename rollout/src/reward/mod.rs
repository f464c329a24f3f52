//! Rewards: functions of a prompt and its completions.
//!
//! [`Reward`] is the trait, [`registry`] knows every function by name, [`rules`] holds the functions themselves,
//! [`RewardPool`] runs them beside generation, and [`weighted_sum`] makes one number of their scores.

mod pool;
pub mod registry;
pub mod rules;
mod total;

use std::sync::Arc;

use serde_json::{Map, Value};
use shared::{FinishReason, RewardOutcome};

pub use pool::{RewardPool, ScoredGroup};
pub use registry::{RewardError, RewardFunction};
pub use total::weighted_sum;

/// A prompt with completions to be scored.
#[derive(Debug, Clone)]
pub struct RewardInput {
    /// The prompt as text, chat template applied, without a prefill of the answer.
    pub prompt: Arc<str>,
    /// The other columns of the dataset row.
    pub columns: Arc<Map<String, Value>>,
    /// Completions of this prompt.
    pub completions: Vec<RewardCompletion>,
}

impl RewardInput {
    /// A column as text; whole numbers are written out, since datasets store answers either way.
    #[must_use]
    pub fn text_column(&self, name: &str) -> Option<String> {
        match self.columns.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// A completion as rewards see it.
#[derive(Debug, Clone)]
pub struct RewardCompletion {
    /// The prefill of the answer, if the prompt has one, and the decoded completion without special tokens.
    pub text: String,
    /// The sampled tokens.
    pub token_ids: Vec<u32>,
    /// Why the completion ended.
    pub finish_reason: FinishReason,
}

/// What a function needs to see at once, and so what the deadline holds for and what a failure costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Each completion on its own.
    Completion,
    /// All completions of a prompt, because their scores depend on each other.
    Group,
}

/// A reward function. It must be pure: the same input gives the same outcome, on any thread.
pub trait Reward: Send + Sync {
    /// One outcome per completion of the input, in order.
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome>;

    /// What [`Reward::score`] is called with: one completion (the default) or the group.
    fn scope(&self) -> Scope {
        Scope::Completion
    }

    /// The score from which a completion counts as correct in `rollout eval`.
    fn correct_at(&self) -> f64 {
        1.0
    }
}
