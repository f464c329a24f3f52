//! The tokens of a completion, with both halves' figures for each one.

use std::{collections::HashMap, io};

use serde::Serialize;
use shared::{ModelDir, RunDir, config::layers, files::journal, run::ledger::TokenRecord};
use shared_tokenizer::TextTokenizer;

use super::completions;

/// Most tokens of a completion that are shown. A browser is slow with more.
const MOST: usize = 20_000;

/// A completion's tokens.
#[derive(Debug, Serialize)]
pub struct Tokens {
    /// Text of each; empty where it has none of its own, as for special tokens. None without a tokenizer.
    pieces: Option<Vec<String>>,
    /// Tokens at the end that are left out.
    left_out: usize,
    #[serde(flatten)]
    record: TokenRecord,
}

/// The tokens of some completions of a step, by their group's index within the batch and their sample; as far as the
/// run keeps them.
///
/// # Errors
/// Any error of the file system but that the file is not there.
pub fn some(
    dir: &RunDir,
    tokenizer: Option<&TextTokenizer>,
    step: u64,
    wanted: &[(u64, u64)],
) -> io::Result<HashMap<(u64, u64), Tokens>> {
    let Some(text) = completions::read(&dir.step_tokens(step))? else { return Ok(HashMap::new()) };
    let records = journal::parse::<TokenRecord>(&text).0.into_iter();
    let found = records.filter_map(|record| {
        let id = (u64::from(record.group), u64::from(record.sample));
        wanted.contains(&id).then(|| (id, shown(record, tokenizer)))
    });
    Ok(found.take(wanted.len()).collect())
}

fn shown(mut record: TokenRecord, tokenizer: Option<&TextTokenizer>) -> Tokens {
    let left_out = record.tokens.len().saturating_sub(MOST);
    let TokenRecord { tokens, owner, sampler, learner, entropy, advantages, weights, .. } = &mut record;
    tokens.truncate(MOST);
    owner.truncate(MOST);
    [sampler, learner, entropy, advantages, weights].into_iter().for_each(|values| values.truncate(MOST));
    Tokens { pieces: tokenizer.map(|tokenizer| tokenizer.pieces(&record.tokens)), left_out, record }
}

/// The tokenizer of a run's model, if it is still there.
pub fn tokenizer(dir: &RunDir) -> Option<TextTokenizer> {
    let config = layers::load(Some(&dir.config()), &Vec::new()).ok()?;
    TextTokenizer::of_model(&ModelDir::open(&config.model).ok()?).ok()
}
