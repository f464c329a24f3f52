//! The tokens of a completion, with what both halves say of each.

use std::io;

use serde::Serialize;
use shared::{ModelDir, RunDir, config::layers, ledger::TokenRecord};
use shared_tokenizer::TextTokenizer;

use super::completions;

/// Most tokens that are shown of a completion. A browser is slow with more.
const MOST: usize = 20_000;

/// A completion's tokens.
#[derive(Debug, Serialize)]
pub struct Tokens {
    /// Text of each; empty where it has none of its own, as of special tokens. None without a tokenizer.
    pieces: Option<Vec<String>>,
    /// Tokens that are left out at the end.
    left_out: usize,
    #[serde(flatten)]
    record: TokenRecord,
}

/// The tokens of a completion by its group's index within the batch, if the run keeps them.
///
/// # Errors
/// Any error of the file system but that the file is not there.
pub fn of(
    dir: &RunDir,
    tokenizer: Option<&TextTokenizer>,
    step: u64,
    group: u64,
    sample: u64,
) -> io::Result<Option<Tokens>> {
    let Some(text) = completions::read(&dir.step_tokens(step))? else { return Ok(None) };
    let is_it = |record: &TokenRecord| u64::from(record.group) == group && u64::from(record.sample) == sample;
    let mut records = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    Ok(records.find(is_it).map(|record| shown(record, tokenizer)))
}

fn shown(mut record: TokenRecord, tokenizer: Option<&TextTokenizer>) -> Tokens {
    let left_out = record.tokens.len().saturating_sub(MOST);
    let TokenRecord { tokens, sampler, learner, entropy, advantages, weights, .. } = &mut record;
    tokens.truncate(MOST);
    [sampler, learner, entropy, advantages, weights].into_iter().for_each(|values| values.truncate(MOST));
    Tokens { pieces: tokenizer.map(|tokenizer| tokenizer.pieces(&record.tokens)), left_out, record }
}

/// The tokenizer of a run's model, if it is still there.
pub fn tokenizer(dir: &RunDir) -> Option<TextTokenizer> {
    let config = layers::load(Some(&dir.config()), &Vec::new()).ok()?;
    TextTokenizer::open(&ModelDir::open(&config.model).ok()?.tokenizer().ok()?).ok()
}
