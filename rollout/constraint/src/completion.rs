//! The constraint of one completion.

use std::sync::Arc;

use llguidance::{Matcher, toktrie::SimpleVob};
use rollout::engine::Constraint;

use crate::{
    reason::{NO_TOKEN, reason},
    vocabulary::{Spaced, Vocabulary},
};

/// Where a completion is in its grammar.
pub struct Completion {
    matcher: Matcher,
    /// At the beginning of a text that drops a space: over the tokens that begin with one, without it.
    first: Option<Matcher>,
    mask: SimpleVob,
    vocabulary: Arc<Vocabulary>,
}

impl Completion {
    /// At its beginning; `first` belongs to [`Vocabulary::spaced`].
    pub fn new(matcher: Matcher, first: Option<Matcher>, vocabulary: Arc<Vocabulary>) -> Self {
        Self { matcher, first, mask: SimpleVob::new(), vocabulary }
    }

    /// The same place in the grammar, with a lexer of its own: what others do with theirs changes nothing here.
    pub fn copy(&self) -> Self {
        let (matcher, first) = (self.matcher.deep_clone(), self.first.as_ref().map(Matcher::deep_clone));
        Self { matcher, first, mask: SimpleVob::new(), vocabulary: Arc::clone(&self.vocabulary) }
    }

    fn spaced(&self) -> &Spaced {
        self.vocabulary.spaced.as_ref().expect("it has a matcher for such tokens")
    }

    /// Adds the tokens with a space before them that a text may begin with, in place of those whose space counts.
    fn add_spaced(&mut self) -> Result<(), String> {
        let Some(mut first) = self.first.take() else { return Ok(()) };
        let found = mask(&mut first);
        let Spaced { tokens, blank, .. } = self.spaced();
        let (tokens, blank) = (tokens.clone(), blank.clone());
        self.mask.sub(&tokens);
        match found {
            Ok(found) => self.mask.or(&found),
            // None of them may come.
            Err(reason) if reason == NO_TOKEN => (),
            Err(reason) => return Err(reason),
        }
        // A space alone adds nothing to the text.
        self.mask.or(&blank);
        self.first = Some(first);
        Ok(())
    }

    /// Tells the matcher of a token, or of the bytes of one that stand in the text.
    fn consume(&mut self, token: u32, is_first: bool) -> Result<(), String> {
        let tell = |matcher: &mut Matcher, tokens: &[u32]| {
            matcher.consume_tokens(tokens).map_err(|error| reason(&error.to_string()))
        };
        if !is_first || !self.spaced().tokens.is_allowed(token) {
            return tell(&mut self.matcher, &[token]);
        }
        let rest = &self.vocabulary.bytes(token)[1..];
        let tokens = self.vocabulary.trie().greedy_tokenize(rest);
        if self.vocabulary.trie().decode_raw(&tokens) != rest {
            return Err("the tokenizer has no token for some bytes".into());
        }
        if tokens.is_empty() { Ok(()) } else { tell(&mut self.matcher, &tokens) }
    }
}

impl Constraint for Completion {
    fn allowed(&mut self) -> Result<&[u32], String> {
        self.mask = mask(&mut self.matcher)?;
        self.add_spaced()?;
        if self.mask.is_zero() {
            return Err(NO_TOKEN.into());
        }
        Ok(self.mask.as_slice())
    }

    fn push(&mut self, token: u32) -> Result<bool, String> {
        let is_first = self.first.take().is_some();
        self.consume(token, is_first)?;
        Ok(self.matcher.is_stopped())
    }
}

fn mask(matcher: &mut Matcher) -> Result<SimpleVob, String> {
    matcher.compute_mask().map_err(|error| reason(&error.to_string()))
}
