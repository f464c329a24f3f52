//! `tokenizer.json` behind a guard: others wrote the parser, and strangers the file.
//!
//! The `tokenizers` crate panics on some broken files, and a normaliser or decoder may turn a short text into a long
//! one. So the file's size is bounded ([`MOST_BYTES`]), and so is the number of characters that its replacements make
//! of one ([`MOST_GROWTH`]). Panics become errors, and the memory of a call is counted.
//!
//! Sampler and learner both read tokenizers through this crate, and both ask it which tokens may come in completions
//! that follow a regular expression ([`RegexConstraint`]). Texts of users and tools within a chat template's text are
//! encoded so that control tokens in them stay text ([`ControlTokens`]).

#![forbid(unsafe_code)]

mod bytes;
mod constraint;
mod control;
mod growth;
mod named;

use std::{borrow::Cow, collections::HashSet, path::Path};

use shared::{
    ModelDir,
    model::model_dir::{MOST_TOKENIZER_BYTES, ModelDirError, NamedTokens},
};
use shared_bounds::guarded;
use tokenizers::{Encoding, Tokenizer};

pub use bytes::TokenBytes;
pub use constraint::{After, ConstraintError, Mask, Place, RegexConstraint};
pub use control::{ControlTokens, Marks};
pub use growth::MOST_GROWTH;

/// Most bytes of a `tokenizer.json`.
pub const MOST_BYTES: u64 = MOST_TOKENIZER_BYTES;
/// Most tokens, of one byte each, that make up a character.
const LONGEST_CHARACTER: usize = 4;
/// Memory for parsing a tokenizer, and for a text.
const MOST_MEMORY: u64 = 4 << 30;

/// Text to token ids and back.
#[derive(Debug, Clone)]
pub struct TextTokenizer {
    inner: Tokenizer,
    /// The path of the file, for messages.
    path: String,
    content: [u8; 32],
    /// Ids that decoded text leaves out because a file beside the tokenizer calls them special.
    special: HashSet<u32>,
    remarks: Vec<String>,
}

/// A tokenizer that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file of the model directory is missing or cannot be read.
    #[error(transparent)]
    Directory(#[from] ModelDirError),
    /// `tokenizer.json` is not a tokenizer.
    #[error("{path}: not a usable tokenizer: {message}")]
    File {
        /// The file.
        path: String,
        /// The fault.
        message: String,
    },
}

impl TextTokenizer {
    /// Reads the tokenizer of a model. Tokens that only the files beside `tokenizer.json` name are tokens too, and a
    /// token is special if any file calls it so.
    ///
    /// # Errors
    /// A missing or broken file, by name.
    pub fn of_model(model: &ModelDir) -> Result<Self, OpenError> {
        let path = model.tokenizer()?;
        let fail = |message: String| OpenError::File { path: path.display().to_string(), message };
        let named = NamedTokens::of(model)?;
        let mut tokenizer = Self::open(&path).map_err(fail)?;
        tokenizer.name(&named, model.config().vocab_size).map_err(fail)?;
        Ok(tokenizer)
    }

    /// Registers tokens that only the files beside `tokenizer.json` name, for a model with `rows` tokens.
    fn name(&mut self, tokens: &NamedTokens, rows: usize) -> Result<(), String> {
        let inner = &mut self.inner;
        let found = guarded(&self.path, MOST_MEMORY, || named::add(inner, tokens, rows))??;
        // A tokenizer that makes other tokens has another content hash.
        if !found.added.is_empty() {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&self.content);
            found.added.iter().for_each(|text| {
                hasher.update(text.as_bytes()).update(b"\0");
            });
            self.content = *hasher.finalize().as_bytes();
        }
        self.special = found.special;
        self.remarks = found.remarks;
        Ok(())
    }

    /// Oddities of the tokens that the files of the model name, in words.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Reads a `tokenizer.json`. Truncation and padding that were saved with it are turned off.
    ///
    /// # Errors
    /// The fault of the file, without its name.
    pub fn open(path: &Path) -> Result<Self, String> {
        let bytes = shared_bounds::read(path, MOST_BYTES).map_err(|e| e.to_string())?;
        Self::parse(&bytes, path.display().to_string())
    }

    /// As [`open`](Self::open), for the bytes of a file.
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
        let content = *blake3::hash(bytes).as_bytes();
        Ok(Self { inner, path, content, special: HashSet::new(), remarks: Vec::new() })
    }

    /// Token ids of a text.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let encoding = self.guarded(|| self.inner.encode_fast(text, add_special_tokens))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Tokens of a text, without special tokens around it, and their places in the text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with_offsets(&self, text: &str) -> Result<Encoding, String> {
        self.guarded(|| self.inner.encode(text, false))
    }

    /// Text of token ids, without special tokens.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, String> {
        let is_special = |id: &u32| self.special.contains(id);
        let ids = if ids.iter().any(is_special) {
            Cow::Owned(ids.iter().copied().filter(|id| !is_special(id)).collect::<Vec<_>>())
        } else {
            Cow::Borrowed(ids)
        };
        self.guarded(|| self.inner.decode(&ids, true))
    }

    /// Text of token ids, special tokens included.
    ///
    /// # Errors
    /// When the decoder fails.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String, String> {
        self.guarded(|| self.inner.decode(ids, false))
    }

    /// The text that each token adds to the tokens before it; empty for special tokens, and for all but the last of
    /// several tokens that form one character. A token that cannot be decoded adds nothing.
    #[must_use]
    pub fn pieces(&self, ids: &[u32]) -> Vec<String> {
        let text = |ids: &[u32]| self.decode(ids).unwrap_or_default();
        // Decoders treat the first token of a text differently, so each token is decoded behind the one before it.
        let (mut before, mut begin) = (0, 0);
        let mut pieces = Vec::with_capacity(ids.len());
        for end in 1..=ids.len() {
            let whole = text(&ids[before..end]);
            let piece = whole.strip_prefix(&text(&ids[before..begin])).unwrap_or(&whole);
            // A part of a character, unless nothing completes it.
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
        let special = |token: String| self.inner.get_added_vocabulary().is_special_token(&token);
        self.special.contains(&id) || self.inner.id_to_token(id).is_none_or(special)
    }

    /// What stands for a token that [`decode`](Self::decode) leaves out, if it is one of the tokenizer's.
    #[must_use]
    pub fn special_text(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id).filter(|_| self.leaves_out(id))
    }

    /// Number of token ids, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// blake3 of the file, and of the tokens that only files beside it name.
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

    /// A word tokenizer in which `</s>` and `<t>` are added tokens that are not special, with the files beside it.
    fn named(config: &serde_json::Value, rows: usize) -> TextTokenizer {
        let added = |id: u32, content: &str| {
            format!(
                r#"{{"id": {id}, "content": "{content}", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": false}}"#
            )
        };
        let more = format!(
            r#""pre_tokenizer": {{"type": "Whitespace"}}, "added_tokens": [{}, {}],"#,
            added(2, "</s>"),
            added(3, "<t>")
        );
        let mut tokenizer = open(&more).unwrap();
        let none = serde_json::Value::Null;
        tokenizer.name(&NamedTokens::from_json(config, &none, &none), rows).unwrap();
        tokenizer
    }

    #[test]
    fn what_a_file_calls_special_is_left_out_of_texts() {
        let plain = named(&serde_json::json!({}), 9);
        assert_eq!(plain.decode(&[0, 2, 3]).unwrap(), "a </s> <t>");
        let tokenizer = named(&serde_json::json!({"eos_token": "</s>"}), 9);
        assert_eq!(tokenizer.decode(&[0, 2, 3]).unwrap(), "a <t>");
        assert!(tokenizer.leaves_out(2) && !tokenizer.leaves_out(3));
        let texts = [0, 2, 3, 99].map(|id| tokenizer.special_text(id));
        assert_eq!(texts, [None, Some("</s>".to_owned()), None, None]);
        assert!(tokenizer.remarks().is_empty() && tokenizer.content() == plain.content(), "it makes the same tokens");
    }

    #[test]
    fn tokens_that_only_another_file_names_become_tokens() {
        let config = serde_json::json!({
            "added_tokens_decoder": {
                "4": {"content": "<x>", "special": true}, "5": {"content": "<y>", "special": false},
                "7": {"content": "<gap>", "special": true},
            },
            "extra_special_tokens": ["b", "<none>", "<x>"],
        });
        let tokenizer = named(&config, 6);
        assert_eq!(
            tokenizer.encode("a<x>a<y>bab", false).unwrap(),
            [0, 4, 0, 5, 1, 0, 1],
            "`b` splits what is around it"
        );
        assert_eq!(tokenizer.decode(&[0, 4, 5, 1]).unwrap(), "a <y>");
        let plain = named(&serde_json::json!({}), 6);
        assert_ne!(tokenizer.content(), plain.content());
        let remarks = tokenizer.remarks();
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(
            remarks[0].contains("\"<gap>\" is named as a token and read as plain text: its id is 7"),
            "{remarks:?}"
        );
        assert!(remarks[1].contains("\"<none>\"") && remarks[1].contains("no file has an id for it"), "{remarks:?}");
        let moved = named(&serde_json::json!({"added_tokens_decoder": {"5": {"content": "<t>", "special": true}}}), 6);
        assert!(moved.remarks()[0].contains("is token 3 in tokenizer.json and 5 in tokenizer_config.json; 3 counts"));
        assert_eq!(moved.decode(&[0, 3]).unwrap(), "a");
        let split = named(&serde_json::json!({"split_special_tokens": true}), 6);
        assert!(split.remarks()[0].starts_with("`split_special_tokens` of tokenizer_config.json is not followed"));
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
