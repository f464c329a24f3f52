//! The text of conversations with tools: turns to calls, replies to tokens, and the bounds of a conversation.
//!
//! What was sampled or given is never rendered or tokenised again. The context of the next turn is all ids so far and
//! the **suffix** of the reply: what the chat template writes after the end of a turn, up to the opening of the next
//! turn. A [`Dialogue`] is what all conversations of a run share. A [`Conversation`] takes the turns that were sampled
//! and the replies to their calls, and says what to sample next. Neither knows an engine or an environment.
//!
//! | room | subject |
//! |---|---|
//! | `dialogue` | template, tokenizer and limits, and the ids of prompts |
//! | `turns` | a conversation: its turns, replies, segments and end |
//! | `suffix` | the suffix of a reply, and the proof that a template has one |
//! | `script` | messages to marked text, and marked text to ids |

mod dialogue;
mod script;
mod suffix;
#[cfg(test)]
mod tests;
mod turns;

use shared::EpisodeEnd;
pub use shared_chat::turn::{Reply, ToolCall};

use crate::data::TokenizerError;

pub use dialogue::Dialogue;
pub use turns::Conversation;

/// Bounds of every conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens after the prompt, sampled and given together (`max_completion_length`).
    pub max_completion_length: usize,
    /// Most tokens of prompt and conversation. A reply must leave room for one more.
    pub max_model_len: usize,
    /// Most turns whose calls run (TRL's `max_tool_calling_iterations`); none for no bound.
    pub max_tool_calling_iterations: Option<u32>,
}

/// What follows a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum After {
    /// Its calls are to be run, in this order; beside them the text of the turn.
    Calls(Vec<ToolCall>, String),
    /// The conversation is over.
    Over(EpisodeEnd),
}

/// What follows replies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Onward {
    /// The next turn is to be sampled.
    Sample {
        /// Ids that go before it.
        given: Vec<u32>,
        /// Most tokens that it may have, at least 1.
        room: usize,
    },
    /// The conversation is over.
    Over(EpisodeEnd),
}

/// A chat template that cannot hold conversations with tools, or messages that cannot become tokens.
#[derive(Debug, thiserror::Error)]
pub enum DialogueError {
    /// The tokenizer or the template failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template leaves out what tools need.
    #[error("the model's chat template {0}; name one that does with `chat_template`, or leave `tools` out")]
    Unsupported(&'static str),
    /// The template writes calls in a format that is not known.
    #[error("the model's chat template writes tool calls in no format that is known here ({known})")]
    Format {
        /// The models whose formats are known.
        known: String,
    },
    /// The template writes no end of a turn before a reply.
    #[error(
        "the model's chat template writes no end of turn between a call and its reply: {rendering:?}; its end of turn \
         must be an `eos_token_id` of generation_config.json"
    )]
    NoEnd {
        /// The rendering.
        rendering: String,
    },
    /// The template has two suffixes for one reply.
    #[error(
        "the model's chat template writes the same reply in two ways, so a conversation cannot go on from its tokens: \
         {first:?} and, {circumstance}, {second:?}; name another template with `chat_template`"
    )]
    TwoSuffixes {
        /// When the second one comes.
        circumstance: &'static str,
        /// The suffix of a reply to the first turn.
        first: String,
        /// Another one.
        second: String,
    },
    /// A text cannot be tokenised.
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
    /// A turn or a reply came where none was due.
    #[error("the conversation cannot take a {0} now")]
    OutOfOrder(&'static str),
    /// A turn whose tokens and log-probs do not match.
    #[error("a turn of {ids} tokens has {logprobs} log-probs")]
    Crooked {
        /// Its tokens.
        ids: usize,
        /// Its log-probs.
        logprobs: usize,
    },
}
