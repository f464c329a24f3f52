//! From rows of text to token ids and back.
//!
//! [`Dataset`] holds the rows that `shared-data` reads, [`adapters`] turns known row shapes (GSM8K, countdown) into
//! prompts, [`ChatTemplate`] renders messages the way transformers does, [`Tokenizer`] encodes and decodes,
//! [`Detokenizer`] decodes a completion as it grows, and [`stop`] watches it for stop strings.

pub mod adapters;
mod dataset;
mod detokenizer;
mod oddities;
mod prompt;
mod rendering;
pub mod stop;
#[cfg(test)]
pub(crate) mod testing;
mod tokenizer;

pub use dataset::{Beginning, Dataset, DatasetError, PromptOptions, PromptRow};
pub use detokenizer::Detokenizer;
pub use rendering::Marked;
pub use shared_chat::{ChatTemplate, TemplateError};
pub use tokenizer::{TextToken, Tokenizer, TokenizerError};
