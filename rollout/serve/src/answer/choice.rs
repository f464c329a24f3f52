//! A completion as its tokens come: its text, and its tokens for log-probs.

use std::{collections::VecDeque, mem, sync::Arc};

use rollout::{
    data::{Detokenizer, Tokenizer},
    engine::{GivenLogprob, TopLogprob},
};
use shared::{FinishReason, TokenLogprob};
use shared_chat::calls::{Call, Reader};

use super::{Entry, TokenNames, Top, logprob_of, logprobs::named};

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

impl Piece {
    /// Whether the text ends within a character with this token, by its log-prob. `before` is whether it did so before.
    #[must_use]
    pub fn is_within_character(&self, before: bool) -> bool {
        let adds = |entry: &Entry| entry.bytes.as_ref().is_some_and(|bytes| !bytes.is_empty());
        self.entry.as_ref().is_some_and(|entry| entry.text.is_empty() && (before || adds(entry)))
    }
}

/// What the end of a completion adds.
#[derive(Debug, Default)]
pub struct End {
    /// The text that was held back.
    pub text: String,
    /// The calls.
    pub calls: Vec<Call>,
    /// What is still missing in the text of the last token with log-probs: half a character.
    rest: String,
}

impl End {
    /// Gives the last token with log-probs the text that it still lacks, so that the texts of all tokens are the text.
    pub fn complete(&self, last: Option<&mut Entry>) {
        last.into_iter().for_each(|entry| entry.add(&self.rest));
    }
}

/// A completion in the making. A stop string, and what comes after it, is no part of its text.
pub struct Choice {
    tokenizer: Tokenizer,
    text: Detokenizer,
    /// With log-probs: the text that each token adds, stop strings included, and the names of others in its place.
    tokens: Option<(Detokenizer, Arc<TokenNames>)>,
    /// Characters before the next token.
    offset: usize,
    /// Whether tokens in log-probs are named by their ids.
    as_ids: bool,
    /// Whether the likeliest token is always drawn.
    greedy: bool,
    /// Where tools may be called.
    calls: Option<Calls>,
}

impl Choice {
    /// At the beginning of a completion that goes on after these tokens and ends at one of these stop strings.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, before: &[u32], stop: &[String], greedy: bool) -> Self {
        let text = Detokenizer::after(tokenizer, before, stop);
        Self { tokenizer: tokenizer.clone(), text, tokens: None, offset: 0, as_ids: false, greedy, calls: None }
    }

    /// With tools that may be called: one after the other in a turn, or several at once (`parallel`).
    #[must_use]
    pub fn with_calls(self, reader: Reader, parallel: bool) -> Self {
        Self { calls: Some(Calls { reader, parallel, written: 0, special: VecDeque::new() }), ..self }
    }

    /// With log-probs of tokens that go on after these, and that are named by their ids or by their texts.
    #[must_use]
    pub fn with_logprobs(self, before: &[u32], as_ids: bool, names: &Arc<TokenNames>) -> Self {
        let tokens = Some((Detokenizer::after(&self.tokenizer, before, &[]), Arc::clone(names)));
        Self { tokens, as_ids, ..self }
    }

    /// The log-probs of a prompt that goes before the completion. The first token has none.
    pub fn prompt(&mut self, ids: &[u32], given: &[GivenLogprob]) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(ids.len());
        for (id, given) in ids.iter().zip(std::iter::once(None).chain(given.iter().map(Some))) {
            let top = given.map_or(&[][..], |given| &given.top);
            let Some(entry) = self.entry(*id, given.map(|given| given.logprob), top) else { break };
            entries.push(entry);
        }
        // The text of the prompt is whole by itself, also if it ends within a character.
        if let Some((tokens, _)) = &mut self.tokens {
            let rest = mem::replace(tokens, Detokenizer::after(&self.tokenizer, ids, &[])).end();
            self.offset += rest.chars().count();
            entries.last_mut().into_iter().for_each(|entry| entry.add(&rest));
        }
        entries
    }

    /// Takes the next token, and the likeliest tokens in its place.
    pub fn push(&mut self, id: u32, logprob: &TokenLogprob, top: &[TopLogprob]) -> Piece {
        let logprob = logprob_of(logprob, self.greedy);
        let entry = self.entry(id, Some(logprob.into()), top);
        let mut text = self.text.push(id);
        if let Some(calls) = &mut self.calls {
            text = calls.push(&text);
            if let Some(special) = self.tokenizer.special_text(id) {
                text += &calls.push_special(special, self.text.held());
            }
        }
        Piece { text, id: Some(id), entry }
    }

    /// The text that was held back, and the calls.
    #[must_use]
    pub fn end(self, reason: FinishReason) -> End {
        let (text, rest) = (self.text.end(), self.tokens.map_or_else(String::new, |(tokens, _)| tokens.end()));
        let (text, calls) = match self.calls {
            None => (text, Vec::new()),
            Some(calls) => calls.end(&text, reason == FinishReason::Stop),
        };
        End { text, calls, rest }
    }

    fn entry(&mut self, id: u32, logprob: Option<f64>, top: &[TopLogprob]) -> Option<Entry> {
        let (tokens, names) = self.tokens.as_mut()?;
        let text = tokens.push(id);
        let offset = self.offset;
        self.offset += text.chars().count();
        let bytes = (!self.as_ids).then(|| names.drawn(id, &text));
        let (token, text) = match &bytes {
            Some(bytes) => (String::from_utf8_lossy(bytes).into_owned(), text),
            None => (named(id), named(id)),
        };
        let logprob = logprob.map(|logprob| logprob.min(0.0));
        let itself = || logprob.map(|logprob| Top { id, token: token.clone(), logprob, bytes: bytes.clone() });
        let other = |other: &TopLogprob| {
            if other.token == id {
                return itself();
            }
            let bytes = (!self.as_ids).then(|| names.bytes(other.token));
            let named = || named(other.token);
            let token = bytes.as_ref().map_or_else(named, |bytes| String::from_utf8_lossy(bytes).into_owned());
            Some(Top { id: other.token, token, logprob: other.logprob.min(0.0), bytes })
        };
        let is_listed = top.is_empty() || top.iter().any(|other| other.token == id);
        let top = top.iter().map(other).chain([itself().filter(|_| !is_listed)]).flatten().collect();
        Some(Entry { id, token, text, logprob, bytes, offset, top })
    }
}

/// Reads the calls of a completion.
struct Calls {
    reader: Reader,
    parallel: bool,
    /// Bytes of text that the reader has.
    written: usize,
    /// Special tokens behind text that is still held back for the sake of stop strings, and the bytes before them.
    special: VecDeque<(usize, String)>,
}

impl Calls {
    /// Takes text. Returns text beside calls.
    fn push(&mut self, text: &str) -> String {
        let (mut beside, mut rest) = (String::new(), text);
        while let Some((at, special)) = self.special.pop_front() {
            let Some((before, behind)) = rest.split_at_checked(at - self.written) else {
                self.special.push_front((at, special));
                break;
            };
            beside += &self.reader.push(before);
            beside += &self.reader.push_special(&special);
            (self.written, rest) = (at, behind);
        }
        self.written += rest.len();
        beside + &self.reader.push(rest)
    }

    /// Takes a special token, which comes behind so many bytes that are held back.
    fn push_special(&mut self, text: String, held: usize) -> String {
        self.special.push_back((self.written + held, text));
        self.push("")
    }

    fn end(mut self, text: &str, ended: bool) -> (String, Vec<Call>) {
        let beside = self.push(text);
        let mut end = self.reader.end(ended);
        if !self.parallel {
            end.calls.truncate(1);
        }
        (beside + &end.text, end.calls)
    }
}
