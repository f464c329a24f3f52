//! The bytes that each token adds to a text.
//!
//! A grammar is about bytes, and a model draws tokens. No file says which bytes a token has: that is the work of the
//! decoder. So a token is decoded behind another one, and what it adds are its bytes. A token that is only a part of a
//! character cannot be decoded like this; it is spelled in one of two ways, byte by byte (byte-level BPE) or as
//! `<0xE2>` (byte fallback of SentencePiece). In the end, rows of tokens are decoded, to see that their bytes make up
//! the text: a decoder that does more than join tokens (one that tidies blanks, say) is refused.

use std::iter;

use shared::generation::rng::Stream;
use tokenizers::{Tokenizer, pre_tokenizers::byte_level::ByteLevel};

use super::TextTokenizer;

/// Rows of tokens that are decoded to see that bytes make up texts, and tokens of each.
const TRIED: [usize; 2] = [256, 6];

/// The bytes of all tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBytes {
    /// By id; empty for a token that adds nothing to a text, as special ones do.
    pub tokens: Vec<Vec<u8>>,
    /// Whether a space at the beginning of a text falls away (SentencePiece).
    pub drops_first_space: bool,
}

impl TokenBytes {
    /// Takes the bytes of the tokens that end a text: they are no part of it, whatever they are called. Returns those
    /// of `ends` that the model has.
    pub fn take_ends(&mut self, ends: &[u32]) -> Vec<u32> {
        let ends: Vec<u32> = ends.iter().copied().filter(|&end| (end as usize) < self.tokens.len()).collect();
        ends.iter().for_each(|&end| self.tokens[end as usize].clear());
        ends
    }

    /// By id, what is left of a token at the beginning of a text that drops a space there; none for a token that begins
    /// with no space. Absent where a space counts.
    #[must_use]
    pub fn rests(&self) -> Option<Vec<Option<&[u8]>>> {
        let rest = |bytes| <[u8]>::strip_prefix(bytes, b" ");
        self.drops_first_space.then(|| self.tokens.iter().map(Vec::as_slice).map(rest).collect())
    }
}

impl TextTokenizer {
    /// The bytes of the tokens of a model that has so many.
    ///
    /// # Errors
    /// When its texts are not the bytes of its tokens, one after the other.
    pub fn token_bytes(&self, rows: usize) -> Result<TokenBytes, String> {
        self.guarded(|| Ok(self.bytes_of_all(rows)))?
    }

    fn bytes_of_all(&self, rows: usize) -> Result<TokenBytes, String> {
        let text = |ids: &[u32]| self.inner.decode(ids, true).unwrap_or_default();
        let ids = 0..u32::try_from(rows.min(self.vocab_size())).unwrap_or(u32::MAX);
        let is_letter = |id: &u32| {
            let alone = text(&[*id]);
            alone.len() == 1 && alone.as_bytes()[0].is_ascii_alphanumeric() && text(&[*id, *id]) == alone.repeat(2)
        };
        let spelled = ids.clone().filter(|id| !self.leaves_out(*id));
        let first = spelled.clone().find(is_letter).ok_or("no token is a letter or a digit alone")?;
        let before = text(&[first]);

        let alphabet = alphabet();
        let mut tokens = vec![Vec::new(); rows];
        for id in spelled {
            let both = text(&[first, id]);
            let added = both.strip_prefix(&before).filter(|added| !added.contains(char::REPLACEMENT_CHARACTER));
            let bytes = match added {
                Some(added) => Some(added.as_bytes().to_vec()),
                None => part_of_character(&self.inner, id, &alphabet),
            };
            tokens[id as usize] = bytes.unwrap_or_default();
        }
        self.check_joined(&tokens, first)?;

        let spaced = |id: &u32| {
            let bytes = &tokens[*id as usize];
            bytes.len() > 1 && bytes[0] == b' ' && bytes[1..].is_ascii()
        };
        let drops_first_space = ids.clone().find(spaced).is_some_and(|id| !text(&[id]).starts_with(' '));
        Ok(TokenBytes { tokens, drops_first_space })
    }

    /// Whether rows of tokens are their bytes, behind the token `first`.
    fn check_joined(&self, tokens: &[Vec<u8>], first: u32) -> Result<(), String> {
        let with_bytes: Vec<u32> = (0..tokens.len() as u32).filter(|id| !tokens[*id as usize].is_empty()).collect();
        let [rows, length] = TRIED;
        let mut stream = Stream::new(&[rows as u64]);
        for _ in 0..rows {
            let mut draw = || with_bytes[stream.below(with_bytes.len() as u64) as usize];
            let ids: Vec<u32> = iter::once(first).chain(iter::repeat_with(&mut draw).take(length)).collect();
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokens[*id as usize].clone()).collect();
            let Ok(joined) = std::str::from_utf8(&bytes) else { continue };
            let text = self.inner.decode(&ids, true).unwrap_or_default();
            if text != joined {
                return Err(format!("its tokens {ids:?} are the text {text:?}, and one by one they are {joined:?}"));
            }
        }
        Ok(())
    }
}

/// The bytes of a token that is no whole character.
fn part_of_character(inner: &Tokenizer, id: u32, alphabet: &[(char, u8)]) -> Option<Vec<u8>> {
    let name = inner.id_to_token(id)?;
    if let Some(hex) = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')) {
        return Some(vec![u8::from_str_radix(hex, 16).ok()?]);
    }
    let byte = |c: char| alphabet.binary_search_by_key(&c, |(c, _)| *c).ok().map(|at| alphabet[at].1);
    name.chars().map(byte).collect()
}

/// The characters of byte-level BPE, in order, with the bytes that they stand for.
///
/// Source: GPT-2 `encoder.py`, `bytes_to_unicode`. A byte that has a printable character in Latin-1 stands for itself;
/// the others have the characters from U+0100 on, in order.
fn alphabet() -> Vec<(char, u8)> {
    let known = ByteLevel::alphabet();
    let is_itself = |byte: u8| known.contains(&char::from(byte));
    let others = (0..=u8::MAX).filter(|byte| !is_itself(*byte));
    let moved = others.zip('\u{100}'..).map(|(byte, c)| (c, byte));
    let mut alphabet: Vec<(char, u8)> =
        (0..=u8::MAX).filter(|byte| is_itself(*byte)).map(|byte| (char::from(byte), byte)).chain(moved).collect();
    alphabet.sort_unstable();
    alphabet
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(folder: &str) -> Option<(TextTokenizer, TokenBytes)> {
        let data = harness::data_dir("tokens_of_real_tokenizers_make_up_their_texts")?;
        let tokenizer = TextTokenizer::open(&data.join(folder).join("tokenizer.json")).unwrap();
        let bytes = tokenizer.token_bytes(tokenizer.vocab_size() + 7).unwrap();
        Some((tokenizer, bytes))
    }

    #[test]
    fn tokens_of_real_tokenizers_make_up_their_texts() {
        for (folder, drops) in [("tokenizers/qwen2.5", false), ("stories260K", true)] {
            let Some((tokenizer, bytes)) = of(folder) else { return };
            assert_eq!(bytes.drops_first_space, drops, "{folder}");
            for text in ["Once upon a time, 2 + 2 = 4.", " \n{\"a\": [1,  2]}\t", "naïve \u{1F600} 日本語\u{301}"] {
                let ids = tokenizer.encode(text, false).unwrap();
                let joined = ids.iter().flat_map(|id| bytes.tokens[*id as usize].clone()).collect::<Vec<_>>();
                let joined = String::from_utf8(joined).unwrap();
                // What is tokenised as a text of its own has the space that falls away.
                assert_eq!(joined.strip_prefix(' ').filter(|_| drops).unwrap_or(&joined), text, "{folder}");
            }
            let all: Vec<&Vec<u8>> = bytes.tokens.iter().filter(|bytes| !bytes.is_empty()).collect();
            for byte in 0..=u8::MAX {
                // UTF-8 has no use for some bytes, and byte-level BPE keeps them all the same.
                assert!(all.iter().any(|bytes| ***bytes == [byte]), "{folder}: no token is the byte {byte}");
            }
        }
    }

    #[test]
    fn special_tokens_and_ids_without_a_token_have_no_bytes() {
        let Some((tokenizer, bytes)) = of("tokenizers/qwen2.5") else { return };
        let rows = bytes.tokens.len();
        assert!(bytes.tokens[rows - 7..].iter().all(Vec::is_empty));
        let id = |text: &str| tokenizer.encode(text, false).unwrap()[0] as usize;
        assert!(bytes.tokens[id("<|im_end|>")].is_empty());
        assert_eq!(bytes.tokens[id("<tool_call>")], b"<tool_call>", "an added token that is not special");
    }

    #[test]
    fn a_decoder_that_does_more_than_join_is_refused() {
        // Words are joined with blanks, and a blank before a full stop falls away.
        let model = r#"{"decoder": {"type": "WordPiece", "prefix": "\u0023\u0023", "cleanup": true},
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, ".": 2, "do": 3, "n't": 4}, "unk_token": "a"}}"#;
        let tokenizer = TextTokenizer::parse(model.as_bytes(), "tokenizer.json".into()).unwrap();
        let error = tokenizer.token_bytes(5).unwrap_err();
        assert!(error.contains("no token is a letter") || error.contains("one by one"), "{error}");
    }
}
