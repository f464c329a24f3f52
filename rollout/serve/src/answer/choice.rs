//! A completion as its tokens come: its text, and its tokens for log-probs.

use rollout::{
    data::{Detokenizer, Tokenizer},
    engine::GivenLogprob,
};
use shared::TokenLogprob;

use super::{Entry, Likeliest, logprob_of};

/// What a token, or the end of a completion, adds.
#[derive(Debug, Default)]
pub struct Piece {
    /// The text that is certain with it.
    pub text: String,
    /// The token; none at the end.
    pub id: Option<u32>,
    /// Its log-prob, if that is wanted.
    pub entry: Option<Entry>,
}

/// A completion in the making. A stop string, and what comes after it, is no part of its text.
pub struct Choice {
    tokenizer: Tokenizer,
    text: Detokenizer,
    /// With log-probs: the text that each token adds, stop strings included.
    tokens: Option<Detokenizer>,
    /// Characters before the next token.
    offset: usize,
    /// Whether tokens in log-probs are named by their ids.
    as_ids: bool,
    /// Whether the likeliest token is always drawn.
    greedy: bool,
}

impl Choice {
    /// At the beginning of a completion that goes on after these tokens and ends at one of these stop strings.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, before: &[u32], stop: &[String], greedy: bool) -> Self {
        let text = Detokenizer::after(tokenizer, before, stop);
        Self { tokenizer: tokenizer.clone(), text, tokens: None, offset: 0, as_ids: false, greedy }
    }

    /// With log-probs of tokens that go on after these, and that are named by their ids or by their texts.
    #[must_use]
    pub fn with_logprobs(self, before: &[u32], as_ids: bool) -> Self {
        Self { tokens: Some(Detokenizer::after(&self.tokenizer, before, &[])), as_ids, ..self }
    }

    /// The log-probs of a prompt that goes before the completion. The first token has none.
    pub fn prompt(&mut self, ids: &[u32], given: &[GivenLogprob]) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(ids.len());
        for (id, given) in ids.iter().zip(std::iter::once(None).chain(given.iter().map(Some))) {
            let Some(mut entry) = self.entry(*id, given.map(|given| given.logprob.min(0.0))) else { break };
            entry.likeliest = given.map(|given| {
                let logprob = given.likeliest_logprob.min(0.0);
                let same = given.likeliest == *id;
                let token = if same { entry.token.clone() } else { self.alone(given.likeliest) };
                Likeliest { token, logprob }
            });
            entries.push(entry);
        }
        entries
    }

    /// Takes the next token.
    pub fn push(&mut self, id: u32, logprob: &TokenLogprob) -> Piece {
        let logprob = logprob_of(logprob, self.greedy);
        let mut entry = self.entry(id, Some(f64::from(logprob).min(0.0)));
        if let Some(entry) = entry.as_mut().filter(|_| self.greedy) {
            entry.likeliest = entry.logprob.map(|logprob| Likeliest { token: entry.token.clone(), logprob });
        }
        Piece { text: self.text.push(id), id: Some(id), entry }
    }

    /// The text that was held back.
    #[must_use]
    pub fn end(self) -> String {
        self.text.end()
    }

    fn entry(&mut self, id: u32, logprob: Option<f64>) -> Option<Entry> {
        let text = self.tokens.as_mut()?.push(id);
        let offset = self.offset;
        self.offset += text.chars().count();
        let token = if self.as_ids { named(id) } else { text.clone() };
        let bytes = (!self.as_ids).then(|| text.into_bytes());
        Some(Entry { token, logprob, bytes, offset, likeliest: None })
    }

    /// A token that is not part of the text.
    fn alone(&self, id: u32) -> String {
        if self.as_ids { named(id) } else { self.tokenizer.decode(&[id]).unwrap_or_default() }
    }
}

fn named(id: u32) -> String {
    format!("token_id:{id}")
}
