//! Texts of tokens by themselves.

use std::sync::OnceLock;

use rollout::data::Tokenizer;

/// The text of each token by itself, for drawn ones and for those that stand beside them.
pub struct TokenNames {
    tokenizer: Tokenizer,
    /// The bytes of all tokens, where a text is the bytes of its tokens.
    bytes: OnceLock<Vec<Vec<u8>>>,
}

impl TokenNames {
    /// Of a tokenizer.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self { tokenizer: tokenizer.clone(), bytes: OnceLock::new() }
    }

    /// Reads all tokens, the first time. This takes a moment: it is no work for a thread that others wait for.
    pub fn prepare(&self) {
        // Where a decoder does more than join tokens, each is decoded by itself.
        self.bytes.get_or_init(|| self.tokenizer.token_bytes().map(|bytes| bytes.tokens).unwrap_or_default());
    }

    /// The bytes that a token adds to a text; those of its name, if it is a special token. A token may be a part of a
    /// character, and then they are no text.
    #[must_use]
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        if let Some(name) = self.tokenizer.special_text(id) {
            return name.into_bytes();
        }
        match self.joined(id) {
            Some(bytes) => bytes.to_vec(),
            None => self.tokenizer.decode(&[id]).unwrap_or_default().into_bytes(),
        }
    }

    /// The bytes that a token adds to a completion in which `text` is certain with it. Where it ends a character that
    /// others have begun, `text` has their bytes too.
    #[must_use]
    pub fn drawn(&self, id: u32, text: &str) -> Vec<u8> {
        // A special token is no part of a text.
        let own = if self.tokenizer.special_text(id).is_some() { None } else { self.joined(id) };
        // SentencePiece drops the space at the beginning of a text.
        let is_first = |own: &[u8]| own.strip_prefix(b" ") == Some(text.as_bytes());
        own.filter(|own| !is_first(own)).unwrap_or(text.as_bytes()).to_vec()
    }

    /// The bytes of a token where a text is the bytes of its tokens.
    fn joined(&self, id: u32) -> Option<&[u8]> {
        self.prepare();
        self.bytes.get().and_then(|bytes| bytes.get(id as usize)).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use shared::ModelDir;

    use super::*;

    #[test]
    fn a_token_keeps_its_space_and_a_part_of_a_character_its_byte() {
        let Some(data) = harness::data_dir("a_token_keeps_its_space_and_a_part_of_a_character_its_byte") else {
            return;
        };
        let model = ModelDir::open(data.join("stories260K")).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        let names = TokenNames::new(&tokenizer);
        let spaced = tokenizer.encode("the", false).unwrap()[0];
        assert_eq!((names.bytes(spaced), tokenizer.decode(&[spaced]).unwrap()), (b" the".to_vec(), "the".to_owned()));
        // `<0x00>` has id 3.
        assert_eq!(names.bytes(3 + 0xe2), [0xe2]);
        let end = model.generation().eos_token_ids[0];
        assert_eq!(names.bytes(end), tokenizer.special_text(end).unwrap().into_bytes());
    }
}
