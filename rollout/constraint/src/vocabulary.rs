//! The tokens of a model as the library wants them: a trie of their bytes.
//!
//! Tokens that add nothing to a text are in no trie, so none of them is drawn, but for those that end a completion.
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
