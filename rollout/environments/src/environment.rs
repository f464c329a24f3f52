//! The trait of environments.

use std::pin::Pin;

use serde_json::{Map, Value};
pub use shared_chat::turn::{Reply, ToolCall};

use crate::Failure;

/// A future of an environment's answer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The environment of one conversation. A caller waits for each answer before it asks again. Dropping a future gives
/// the answer up, and dropping the environment ends the conversation.
pub trait Environment: Send {
    /// Begins a conversation about a row of the dataset (TRL's `reset(**row)`).
    ///
    /// # Errors
    /// When the environment failed; it must be dropped then.
    fn init(&mut self, row: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>>;

    /// Runs the calls of a turn. Replies have the order of the calls. A call that fails has a reply too.
    ///
    /// # Errors
    /// When the environment failed; it must be dropped then.
    fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>>;

    /// The reward of the whole conversation (TRL's `get_reward()`), at its end; `None` if the environment gives none.
    ///
    /// # Errors
    /// When the environment failed. A failure is never a reward of 0.
    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>>;
}

/// A sample of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sample {
    /// The group. Conversations with the same tag share a process.
    pub tag: u64,
    /// The index in the group.
    pub index: u32,
}

/// How a conversation begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opening {
    /// A text, which is at the end of the prompt's last user message, or of its last message where none is the user's.
    pub text: Option<String>,
}

/// A turn of the policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// The calls, in order.
    pub calls: Vec<ToolCall>,
    /// The text of the turn beside its calls.
    pub text: String,
}

/// The answer to a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// A reply for each call, in the order of the calls.
    pub replies: Vec<Reply>,
    /// A reward for this turn, from environments that give one for each.
    pub reward: Option<f64>,
    /// Whether the environment ends the conversation here.
    pub done: bool,
}
