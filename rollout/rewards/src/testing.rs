//! For tests: a tokenizer with one token per byte, and processes of functions.

use shared::{
    FinishReason,
    config::{RewardHost, TrainConfig},
};

use crate::{PolicyTokenizer, RewardCompletion};

/// Completions of one token per byte that ended by themselves.
pub fn completions(texts: &[&str]) -> Vec<RewardCompletion> {
    let completion =
        |text: &&str| RewardCompletion::of_one_turn(*text, ByteTokenizer::encode(text), FinishReason::Stop);
    texts.iter().map(completion).collect()
}

/// A token without text.
pub const SILENT: u32 = 256;

/// Tokens 0 to 255 are bytes; all others have no text.
#[derive(Debug)]
pub struct ByteTokenizer;

impl ByteTokenizer {
    /// The tokens of a text.
    pub fn encode(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }
}

impl PolicyTokenizer for ByteTokenizer {
    fn token_ends(&self, ids: &[u32]) -> Result<Vec<usize>, String> {
        let mut bytes = Vec::new();
        let end = |&id: &u32| {
            bytes.extend(u8::try_from(id));
            std::str::from_utf8(&bytes).map_or_else(|e| e.valid_up_to(), str::len)
        };
        Ok(ids.iter().map(end).collect())
    }

    fn content(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// How processes are started by default.
pub fn host() -> RewardHost {
    TrainConfig::default().reward_host()
}
