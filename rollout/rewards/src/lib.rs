//! Rewards: functions of a prompt and its completions.
//!
//! [`Reward`] is the trait, [`Registry`] knows every function by name, [`rules`] holds the functions themselves and
//! [`program`] those of other processes, which [`contain`] starts and bounds; `judge` asks a language model.
//! [`rehearsal`] tries functions on samples, [`RewardPool`] runs them beside generation, and [`filter`] is what dynamic
//! sampling goes by. `docs/rewards.md` describes them for users.
//!
//! The crate needs no engine and no tokenizer. `rollout` adds the functions that compute a score with ONNX Runtime to
//! the registry, each as an [`Entry`](entry::Entry).

#![deny(unsafe_code)]

pub mod answers;
pub mod contain;
pub mod entry;
pub mod filter;
mod function;
mod judge;
mod pool;
pub mod program;
pub mod registry;
pub mod rehearsal;
pub mod rules;
pub mod steps;

#[cfg(test)]
mod testing;
mod written;

use std::{ops::Range, sync::Arc, time::Instant};

use serde_json::{Map, Value, json};
use shared::{Completion, Episode, Exchange, FinishReason, Logged, RewardOutcome};

pub use answers::Answers;
pub use function::{RewardError, RewardFunction};
pub use pool::{Call, RewardPool, ScoredGroup};
pub use program::{contained, end_all};
pub use registry::Registry;

/// What rewards need to know of the policy's tokenizer.
pub trait PolicyTokenizer: std::fmt::Debug + Send + Sync {
    /// For each token, the bytes of the text that is decoded up to its end. A character that was cut into several
    /// tokens counts with the last of them.
    ///
    /// # Errors
    /// When the decoder of the tokenizer fails.
    fn token_ends(&self, ids: &[u32]) -> Result<Vec<usize>, String>;

    /// Hash of everything that decides on tokens: tokenizers with the same hash make the same tokens.
    fn content(&self) -> [u8; 32];
}

/// A prompt with completions to be scored.
#[derive(Debug, Clone, Default)]
pub struct RewardInput {
    /// The prompt as text, chat template applied, without a prefill of the answer.
    pub prompt: Arc<str>,
    /// The row's own messages, where its prompt is a conversation; without a prefill of the answer.
    pub messages: Option<Arc<[Value]>>,
    /// The tokens that the policy saw, those of a prefill included.
    pub prompt_ids: Arc<[u32]>,
    /// Bytes of a prefill at the start of every completion's text.
    pub prefill: usize,
    /// The policy's tokenizer; absent where only texts are known.
    pub tokenizer: Option<Arc<dyn PolicyTokenizer>>,
    /// When the call is given up. The pool sets it; functions that wait for something should stop waiting then.
    pub deadline: Option<Instant>,
    /// The other columns of the dataset row.
    pub columns: Arc<Map<String, Value>>,
    /// Completions of this prompt.
    pub completions: Vec<RewardCompletion>,
}

impl RewardInput {
    /// The right answers of the row: those of the first of the columns that has any.
    #[must_use]
    pub fn answers(&self, columns: &[&str]) -> Option<Answers> {
        columns.iter().find_map(|column| Answers::of(self.columns.get(*column)?))
    }
}

/// A completion as rewards see it.
#[derive(Debug, Clone)]
pub struct RewardCompletion {
    /// The prefill of the answer, if the prompt has one, and the decoded completion without special tokens. Of a
    /// conversation with tools, the policy's own turns alone: no rule credits the policy with the words of a tool.
    pub text: String,
    /// Its tokens, those that were given to the policy between its turns included.
    pub token_ids: Vec<u32>,
    /// The ranges of tokens that the policy did not sample; empty where it had one turn.
    pub given: Vec<Range<usize>>,
    /// Why the completion ended.
    pub finish_reason: FinishReason,
    /// What a completion with tools has beside its tokens.
    pub conversation: Option<Arc<Conversation>>,
}

/// A conversation with tools or an environment, as reward functions see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversation {
    /// Its messages, with the roles `assistant` and `tool`.
    pub messages: Vec<Value>,
    /// The text of the environment, which is at the end of the prompt's last user message, or of its last message where
    /// none is the user's.
    pub opening: Option<String>,
}

/// Messages with the first words of an environment behind the last one of the user, else behind the last one of all.
/// This is TRL's `reset` with one difference: TRL takes the last message of all, whoever has said it.
#[must_use]
pub fn opened(messages: &[Value], text: Option<&str>) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let Some(text) = text.filter(|text| !text.is_empty()) else { return messages };
    let of_user = messages.iter().rposition(|message| message["role"] == "user");
    let place = of_user.unwrap_or(messages.len().saturating_sub(1));
    let Some(last) = messages.get_mut(place) else { return messages };
    match &mut last["content"] {
        Value::Array(parts) => parts.push(json!({ "type": "text", "text": text })),
        Value::String(content) => content.push_str(text),
        content => *content = text.into(),
    }
    messages
}

impl From<&Exchange> for Conversation {
    fn from(exchange: &Exchange) -> Self {
        Self { messages: exchange.messages.values(), opening: exchange.opening.clone() }
    }
}

impl RewardCompletion {
    /// A completion of one turn.
    #[must_use]
    pub fn of_one_turn(text: impl Into<String>, token_ids: Vec<u32>, finish_reason: FinishReason) -> Self {
        Self { text: text.into(), token_ids, given: Vec::new(), finish_reason, conversation: None }
    }

    /// Number of tokens that the policy sampled; rules on length go by it.
    #[must_use]
    pub fn length(&self) -> usize {
        self.token_ids.len().saturating_sub(self.given.iter().map(Range::len).sum())
    }

    /// The owner mask: for each token, whether the policy sampled it.
    pub fn owner_mask(&self) -> impl Iterator<Item = bool> {
        (0..self.token_ids.len()).map(|at| !self.given.iter().any(|span| span.contains(&at)))
    }

    /// The tokens that the policy sampled, turn by turn; empty turns are left out.
    pub fn turns(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.given.iter().map(|span| span.end));
        let ends = self.given.iter().map(|span| span.start).chain([self.token_ids.len()]);
        let spans = starts.zip(ends).filter_map(|(start, end)| self.token_ids.get(start..end));
        spans.filter(|turn| !turn.is_empty())
    }
}

impl RewardCompletion {
    /// An episode with this text, which is no conversation.
    #[must_use]
    pub fn of(episode: &Episode, text: String) -> Self {
        Self {
            text,
            token_ids: episode.token_ids().to_vec(),
            given: episode.between_turns().collect(),
            finish_reason: episode.finish_reason(),
            conversation: None,
        }
    }
}

impl From<&Completion> for RewardCompletion {
    /// Tokens and log-probs of the episode must fit together.
    fn from(completion: &Completion) -> Self {
        let conversation = completion.exchange.as_deref().map(|exchange| Arc::new(exchange.into()));
        Self { conversation, ..Self::of(&completion.episode, completion.text.clone()) }
    }
}

/// The completions that a function needs to see in one call. The deadline holds for a call, and a failure costs its
/// scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Each completion on its own.
    Completion,
    /// All completions of a prompt, because their scores depend on each other.
    Group,
}

/// Reads the final answer off a completion's text; `None` where it names none.
pub type Extract = dyn Fn(&str) -> Option<String> + Send + Sync;

/// A reward function. It must be pure: the same input gives the same outcome, on any thread.
pub trait Reward: Send + Sync {
    /// One outcome per completion of the input, in order.
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome>;

    /// As [`Reward::score`], with what the function logs beside its scores. Programs of the user's alone do.
    fn score_and_log(&self, input: &RewardInput) -> (Vec<RewardOutcome>, Logged) {
        (self.score(input), Logged::default())
    }

    /// As [`Reward::score`], for the first call of a [`rehearsal`]. It waits for a program that may still be loading,
    /// and examines a program that does not answer.
    fn score_first(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        self.score(input)
    }

    /// The last lines that the function's own program wrote, as a hint at the reason of a failure.
    fn last_words(&self) -> Vec<String> {
        Vec::new()
    }

    /// The completions that [`Reward::score`] is called with: one (the default) or the group.
    fn scope(&self) -> Scope {
        Scope::Completion
    }

    /// How many calls may run at once; further ones wait, and their deadlines with them.
    fn concurrency(&self) -> usize {
        usize::MAX
    }

    /// Reads a completion's final answer off its text, for majority votes: equal answers come out as the same text,
    /// however they are written. `None` for a function that compares no answers, or knows of many right ones.
    fn extract(&self) -> Option<&Extract> {
        None
    }

    /// The score from which a completion counts as correct, in an evaluation and for dynamic sampling.
    fn correct_at(&self) -> f64 {
        self.stated_correct_at().unwrap_or(1.0)
    }

    /// The same of a function that says so itself; for others, [`Self::correct_at`] is a guess.
    fn stated_correct_at(&self) -> Option<f64> {
        None
    }
}

/// The outcomes of a call that failed as a whole.
fn failed(reason: String, completions: usize) -> Vec<RewardOutcome> {
    vec![RewardOutcome::Failed(reason); completions]
}
