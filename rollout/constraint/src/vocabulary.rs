//! The tokens of a model as the library wants them: a trie of their bytes.
//!
//! Tokens that add nothing to a text are drawn only where they end a completion, or where a grammar names a special
//! token, as the marks of some models' tool calls are.
//!
//! A tokenizer of SentencePiece drops a space at the beginning of a text, so the text of ` 7` is `7`. A model writes
//! its first word with that space, and a grammar knows nothing of it. So there is a second trie for the first token of
//! a text, which has the tokens with a space before them, without that space.

use std::sync::Arc;

use llguidance::{
    ParserFactory,
    toktrie::{ApproximateTokEnv, INVALID_TOKEN, SimpleVob, TokEnv, TokRxInfo, TokTrie},
};
use rollout::data::Tokenizer;

use crate::{limits, reason::one_line};

/// The tokens of a model.
pub struct Vocabulary {
    /// All tokens.
    pub plain: ParserFactory,
    /// Tokens that begin with a space, where a text drops it.
    pub spaced: Option<Spaced>,
}

/// Tokens that begin with a space.
pub struct Spaced {
    /// Over what is left of them without the space.
    pub factory: ParserFactory,
    /// Which they are.
    pub tokens: SimpleVob,
    /// Those of which nothing is left.
    pub blank: SimpleVob,
}

impl Vocabulary {
    /// Of a model whose completions end with one of the tokens `ends`.
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Self, String> {
        let mut bytes = tokenizer
            .token_bytes()
            .map_err(|reason| format!("completions of this model cannot follow a grammar: {reason}"))?;
        name_special(&mut bytes.tokens, tokenizer);
        // They end a text and are no part of it, whatever they are called.
        let ends = bytes.take_ends(ends);
        let plain = factory(&bytes.tokens, &ends)?;
        let spaced = bytes.rests().map(|rests| Spaced::new(&rests, &ends)).transpose()?;
        Ok(Self { plain, spaced })
    }

    /// The bytes of a token.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.trie().token(token)
    }

    /// The trie of all tokens.
    pub fn trie(&self) -> &TokTrie {
        self.plain.tok_env().tok_trie()
    }
}

/// Gives special tokens the bytes by which a grammar names them (`<|message|>`), and which no text has.
fn name_special(tokens: &mut [Vec<u8>], tokenizer: &Tokenizer) {
    let is_name = |name: &str| {
        let inner = name.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        inner.is_some_and(|inner| !inner.is_empty() && !inner.contains(|c: char| "<>".contains(c) || c.is_whitespace()))
    };
    for (id, bytes) in (0..).zip(tokens).filter(|(_, bytes)| bytes.is_empty()) {
        if let Some(name) = tokenizer.special_text(id).filter(|name| is_name(name)) {
            *bytes = [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat();
        }
    }
}

impl Spaced {
    fn new(rests: &[Option<&[u8]>], ends: &[u32]) -> Result<Self, String> {
        let which = |is: &dyn Fn(&[u8]) -> bool| {
            let mut set = SimpleVob::alloc(rests.len());
            let those = rests.iter().zip(0..).filter(|(rest, _)| rest.is_some_and(is));
            those.for_each(|(_, token)| set.allow_token(token));
            set
        };
        let (tokens, blank) = (which(&|_| true), which(&<[u8]>::is_empty));
        let rests: Vec<Vec<u8>> = rests.iter().map(|rest| rest.unwrap_or_default().to_vec()).collect();
        Ok(Self { factory: factory(&rests, ends)?, tokens, blank })
    }
}

fn factory(tokens: &[Vec<u8>], ends: &[u32]) -> Result<ParserFactory, String> {
    let size = u32::try_from(tokens.len()).map_err(|_| "a model has fewer tokens".to_owned())?;
    let trie = TokTrie::from(&TokRxInfo::new(size, ends.first().copied().unwrap_or(INVALID_TOKEN)), tokens);
    let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
    // Not the tokenizer's own way to cut a text: the model may cut it as it likes.
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&env).map_err(|error| one_line(&format!("{error:#}")))?;
    factory.quiet();
    *factory.limits_mut() = limits::parser();
    Ok(factory)
}
