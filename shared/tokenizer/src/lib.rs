//! `tokenizer.json` behind a guard: the parser and what it makes of the file are of others, and so is the file.
//!
//! The `tokenizers` crate panics on some broken files, and a normaliser or decoder may make a long text of a short one. So
//! the file has a bound ([`MOST_BYTES`]), what its replacements can make of one character has one ([`MOST_GROWTH`]), panics
//! are errors, and what a call may take of memory is counted.

#![forbid(unsafe_code)]

mod growth;

use std::path::Path;

use shared_bounds::guarded;
use tokenizers::{Encoding, Tokenizer};

pub use growth::MOST_GROWTH;

/// Most bytes of a `tokenizer.json`; the largest known ones have 35 million.
pub const MOST_BYTES: u64 = 256 << 20;
/// Most tokens, of a byte each, that a character is made of.
const LONGEST_CHARACTER: usize = 4;
/// Memory for parsing one, and for one text.
const MOST_MEMORY: u64 = 4 << 30;

/// Text to token ids and back.
#[derive(Debug, Clone)]
pub struct TextTokenizer {
    inner: Tokenizer,
    /// The file, for messages.
    path: String,
    content: [u8; 32],
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. Settings that were saved with it do not cut or fill texts behind the user's back.
    ///
    /// # Errors
    /// What is wrong with the file, without its name.
    pub fn open(path: &Path) -> Result<Self, String> {
        let bytes = shared_bounds::read(path, MOST_BYTES).map_err(|e| e.to_string())?;
        Self::parse(&bytes, path.display().to_string())
    }

    /// As [`open`](Self::open), of the bytes of a file.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(bytes: &[u8], path: String) -> Result<Self, String> {
        if let Some(what) = shared_bounds::foreign_content(bytes) {
            return Err(what.into());
        }
        let inner = guarded(&path, MOST_MEMORY, || {
            growth::check(bytes)?;
            let mut inner = Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
            inner.with_truncation(None).map_err(|e| e.to_string())?;
            inner.with_padding(None);
            Ok::<_, String>(inner)
        })??;
        Ok(Self { inner, path, content: *blake3::hash(bytes).as_bytes() })
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encoding = self.guarded(|| self.inner.encode_fast(text, add_special_tokens))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens of a text, without special tokens around it, and where in the text they are.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoding, String> {
        self.guarded(|| self.inner.encode(text, false))
    }

    /// Text of token ids, special tokens left out.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        self.guarded(|| self.inner.decode(ids, true))
    }

    /// What each token adds to the text of those before it; empty for special tokens, and for all but the last of tokens that make
    /// one character together. A token that cannot be decoded adds nothing.
    #[must_use]
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        let text = |ids: &[u32]| self.decode(ids).unwrap_or_default();
        // Decoders treat the first token of a text differently, so each is decoded behind the one before it.
        let (mut before, mut begin) = (0, 0);
        let mut pieces = Vec::with_capacity(ids.len());
        for end in 1..=ids.len() {
            let whole = text(&ids[before..end]);
            let piece = whole.strip_prefix(&text(&ids[before..begin])).unwrap_or(&whole);
            // Half a character, unless nothing completes it.
            if piece.ends_with(char::REPLACEMENT_CHARACTER) && end - begin < LONGEST_CHARACTER && end < ids.len() {
                pieces.push(String::new());
                continue;
            }
            pieces.push(piece.to_owned());
            (before, begin) = (begin, end);
        }
        pieces
    }

    fn guarded<T>(&self, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
        guarded(&self.path, MOST_MEMORY, work)?.map_err(|e| e.to_string())
    }

    /// Whether [`decode`](Self::decode) leaves a token out: it is special, or not one of the tokenizer's.
    #[must_use]
    pub fn leaves_out(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_none_or(|token| self.inner.get_added_vocabulary().is_special_token(&token))
    }

    /// Number of token ids, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// blake3 of the file.
    #[must_use]
    pub fn content(&self) -> [u8; 32] {
        self.content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#""model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}"#;

    fn open(more: &str) -> Result<TextTokenizer, String> {
        TextTokenizer::parse(format!("{{{more} {MODEL}}}").as_bytes(), "tokenizer.json".into())
    }

    #[test]
    fn a_file_that_the_parser_panics_at_is_refused() {
        let cut = r#"{"decoder": {"type": "Sequence", "decoders": ["#;
        let error = TextTokenizer::parse(cut.as_bytes(), "tokenizer.json".into()).unwrap_err();
        assert!(!error.contains('\n') && error.contains("EOF"), "{error}");
    }

    #[test]
    fn pieces_make_up_the_text_and_characters_stay_whole() {
        let model = r#"{"decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "\u0120b": 1, "\u00c3": 2, "\u0137": 3, "\u00a9": 4}, "unk_token": "a"},
            "added_tokens": [{"id": 5, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}]}"#;
        let tokenizer = TextTokenizer::parse(model.as_bytes(), "tokenizer.json".into()).unwrap();
        assert_eq!(tokenizer.pieces(&[0, 1, 2, 4, 1, 5]), ["a", " b", "", "\u{e9}", " b", ""]);
        assert_eq!(tokenizer.pieces(&[1, 2]), [" b", "\u{fffd}"]);
        assert!(tokenizer.pieces(&[]).is_empty());
    }

    #[test]
    fn saved_settings_neither_cut_nor_fill() {
        let settings = r#""truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
            "padding": {"strategy": {"Fixed": 1000000000000}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                        "pad_type_id": 0, "pad_token": "a"},
            "pre_tokenizer": {"type": "Whitespace"},"#;
        assert_eq!(open(settings).unwrap().encode("a b", false).unwrap(), [0, 1]);
    }

    #[test]
    fn replacements_that_double_are_refused() {
        let doubling = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}"#;
        for (part, list) in [("normalizer", "normalizers"), ("decoder", "decoders")] {
            let steps =
                |n| format!(r#""{part}": {{"type": "Sequence", "{list}": [{}]}},"#, vec![doubling; n].join(","));
            assert_eq!(open(&steps(3)).unwrap().vocab_size(), 2);
            let error = open(&steps(40)).unwrap_err();
            assert!(error.contains(&format!("`{part}` can make 1099511627776 characters of one")), "{error}");
        }
    }
}
