//! The text of a completion while its tokens are drawn.

use super::Tokenizer;

/// Most tokens of a character: it has so many bytes.
const LONGEST_CHARACTER: usize = 4;

/// Gives the text of a completion in pieces, as its tokens come.
///
/// A piece never ends within a character, and no piece has text of a stop string: what may be the beginning of one is
/// held back until more tokens decide. All pieces together, with [`Detokenizer::end`], are the decoded text of all
/// tokens up to the first stop string, which is left out. (Only a byte that belongs to no character makes a difference:
/// where bytes are tokens, decoding the whole text would spoil the characters before it too.)
pub struct Detokenizer {
    stream: TextStream,
    stop: Vec<String>,
    /// Settled text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl Detokenizer {
    /// For a completion that ends at any of these stop strings; empty ones count for nothing.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, stop: &[String]) -> Self {
        Self::after(tokenizer, &[], stop)
    }

    /// As [`Detokenizer::new`], for a completion that goes on with the text of a prompt. A space at its beginning then
    /// stays; at the beginning of a text it falls away where tokens are words with a space before them
    /// (SentencePiece).
    #[must_use]
    pub fn after(tokenizer: &Tokenizer, prompt: &[u32], stop: &[String]) -> Self {
        let stop = stop.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stream: TextStream::after(tokenizer.clone(), prompt), stop, held: String::new(), stopped: false }
    }

    /// Takes the next token and returns the text that is certain with it, often none.
    pub fn push(&mut self, token: u32) -> String {
        if self.stopped {
            return String::new();
        }
        let (text, whole) = self.stream.push(token);
        let seen = format!("{}{text}", self.held);
        let certain = match self.stop.iter().filter_map(|stop| seen.find(stop.as_str())).min() {
            Some(at) => {
                self.stopped = true;
                at
            }
            None if whole => self.certain(&seen),
            None => return String::new(),
        };
        self.held = seen[certain..].to_owned();
        seen[..certain].to_owned()
    }

    /// Bytes of whole characters that are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// The text that was held back, when no token comes any more. A character of which only the beginning has come is
    /// `U+FFFD`, as in the decoded text.
    #[must_use]
    pub fn end(self) -> String {
        if self.stopped { String::new() } else { self.held + &self.stream.pending }
    }

    /// Bytes of a text before the first place where a stop string may have begun.
    fn certain(&self, text: &str) -> usize {
        let begins = |at: usize| self.stop.iter().any(|stop| stop.starts_with(&text[at..]));
        text.char_indices().map(|(at, _)| at).find(|&at| begins(at)).unwrap_or(text.len())
    }
}

/// Decodes a growing sequence of tokens piece by piece, without decoding it from the start each time.
///
/// Two windows of tokens are decoded, one with and one without the new tokens, and the texts compared: decoders treat
/// the start of a sequence specially (a leading space falls away), so a token cannot be decoded on its own.
pub(super) struct TextStream {
    tokenizer: Tokenizer,
    /// Tokens of the last settled piece and everything after it.
    window: Vec<u32>,
    /// How many tokens of the window are settled.
    settled: usize,
    /// Their text.
    before: String,
    /// The text after that.
    pending: String,
}

impl TextStream {
    /// A stream at the start of a text.
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, window: Vec::new(), settled: 0, before: String::new(), pending: String::new() }
    }

    /// A stream that goes on after the text of these tokens. The last ones of them are enough: a decoder looks no
    /// further back than the bytes of a character.
    pub(super) fn after(tokenizer: Tokenizer, text: &[u32]) -> Self {
        let with_text = text.iter().rev().copied().filter(|&id| !tokenizer.leaves_out(id));
        let mut window: Vec<u32> = with_text.take(LONGEST_CHARACTER).collect();
        window.reverse();
        let mut stream = Self::new(tokenizer);
        (stream.before, stream.settled) = (stream.decode(&window), window.len());
        stream.window = window;
        stream
    }

    /// Takes a token; returns the text since the last settled piece, and whether it is settled with this token (it is
    /// not while it ends in the middle of a character).
    pub(super) fn push(&mut self, token: u32) -> (String, bool) {
        // Such a token changes nothing in the window, and a long run of them would be decoded again with every token.
        if self.tokenizer.leaves_out(token) {
            return (self.pending.clone(), false);
        }
        self.window.push(token);
        let all = self.decode(&self.window);
        let text = match all.strip_prefix(&self.before) {
            Some(text) => text.to_owned(),
            // Where bytes are tokens, a byte that belongs to no character spoils the characters before it: a decoder
            // with `ByteFallback` reads the whole row of bytes as one text. What is settled stays as it was.
            None => self.decode(&self.window[self.settled..]),
        };
        let whole = !text.ends_with(char::REPLACEMENT_CHARACTER) && !text.is_empty();
        self.pending = if whole { String::new() } else { text.clone() };
        if whole {
            self.window.drain(..self.settled);
            self.settled = self.window.len();
            self.before = self.decode(&self.window);
        }
        (text, whole)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        // A token that cannot be decoded contributes no text, so it completes no stop string.
        self.tokenizer.decode(tokens).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::testing::{BOS, byte_tokenizer};

    /// The pieces of a completion, that of its end last.
    fn pieces(tokenizer: &Tokenizer, ids: &[u32], stop: &[&str]) -> Vec<String> {
        let stop: Vec<String> = stop.iter().map(|stop| (*stop).to_owned()).collect();
        let mut text = Detokenizer::new(tokenizer, &stop);
        let mut pieces: Vec<String> = ids.iter().map(|&id| text.push(id)).collect();
        pieces.push(text.end());
        pieces
    }

    #[test]
    fn a_piece_comes_with_the_last_token_of_its_character() {
        let tokenizer = byte_tokenizer(None);
        let mut ids = tokenizer.encode("né\u{1F600}", false).unwrap();
        ids.push(BOS);
        assert_eq!(pieces(&tokenizer, &ids, &[]), ["n", "", "é", "", "", "", "\u{1F600}", "", ""]);
        assert_eq!(pieces(&tokenizer, &ids[..4], &[""]), ["n", "", "é", "", "\u{fffd}"], "cut within a character");
    }

    #[test]
    fn the_beginning_of_a_stop_string_is_held_until_it_is_known_not_to_be_one() {
        let tokenizer = byte_tokenizer(None);
        let of = |text: &str, stop: &[&str]| pieces(&tokenizer, &tokenizer.encode(text, false).unwrap(), stop);
        assert_eq!(of("a</b</ans>!", &["</ans>"]), ["a", "", "", "</b", "", "", "", "", "", "", "", ""]);
        assert_eq!(of("x\n\n", &["\n\n"]), ["x", "", "", ""]);
        assert_eq!(of("x\ny\n", &["\n\n"]), ["x", "", "\ny", "", "\n"], "the end gives what was held");
        assert_eq!(of("aab", &["aac", "ab"]), ["", "", "a", ""], "what one has begun, another ends");
        assert_eq!(of("xé", &["é"]), ["x", "", "", ""]);
    }

    /// This tokenizer has a token for each byte. In its decoded text, a byte that belongs to no character spoils all
    /// bytes around it.
    #[test]
    fn a_byte_of_no_character_takes_nothing_back_and_holds_nothing_up() {
        let Some(data) = harness::data_dir("a_byte_of_no_character_takes_nothing_back_and_holds_nothing_up") else {
            return;
        };
        let model = shared::ModelDir::open(data.join("stories260K")).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        // `<0x00>` has id 3.
        let mut ids = b"\xc3\xa9\xff".map(|byte| u32::from(byte) + 3).to_vec();
        assert_eq!(tokenizer.decode(&ids).unwrap(), "\u{fffd}".repeat(3));
        ids.extend(tokenizer.encode("once upon", false).unwrap());
        let of = |stop: &[&str]| pieces(&tokenizer, &ids, stop);
        assert_eq!(of(&[])[..3], ["", "é", ""]);
        assert_eq!(of(&[]).concat(), "é\u{fffd} once upon");
        assert_eq!(of(&["ce up"]).concat(), "é\u{fffd} on");
    }

    /// A tokenizer of the SentencePiece kind drops the space at the start of a text, and only there.
    #[test]
    fn a_completion_goes_on_with_the_text_of_its_prompt() {
        let Some(data) = harness::data_dir("a_completion_goes_on_with_the_text_of_its_prompt") else { return };
        let model = shared::ModelDir::open(data.join("stories260K")).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        let whole = "Once upon a time, there was a café.";
        let ids = tokenizer.encode(whole, true).unwrap();
        for at in 0..ids.len() {
            let prompt = tokenizer.decode(&ids[..at]).unwrap();
            // A prompt may end within a character.
            let Some(rest) = whole.strip_prefix(&prompt) else { continue };
            let mut text = Detokenizer::after(&tokenizer, &ids[..at], &[]);
            let pieces: String = ids[at..].iter().map(|&id| text.push(id)).collect();
            assert_eq!(pieces + &text.end(), rest, "{at}");
        }
        let [a, b] = ["one", "two"].map(|text| tokenizer.encode(text, false).unwrap());
        let mut text = Detokenizer::after(&tokenizer, &a, &[" t".to_owned()]);
        assert_eq!(b.iter().map(|&id| text.push(id)).collect::<String>(), "", "the stop string is in the text");
    }

    #[test]
    fn tokens_without_text_do_not_pile_up() {
        let mut stream = TextStream::new(byte_tokenizer(None));
        let bytes = byte_tokenizer(None).encode("é!", false).unwrap();
        // Known to the model and not to the tokenizer, and special.
        let silent = [300, BOS];
        assert_eq!(stream.push(bytes[0]), ("\u{fffd}".into(), false));
        for token in silent.repeat(50) {
            assert_eq!(stream.push(token), ("\u{fffd}".into(), false));
        }
        assert_eq!(stream.push(bytes[1]), ("é".into(), true));
        for token in silent.repeat(50) {
            assert_eq!(stream.push(token), (String::new(), false));
        }
        assert_eq!(stream.window.len(), 2);
        assert_eq!(stream.push(bytes[2]), ("!".into(), true));
    }

    proptest! {
        /// Any sequence of tokens, also one that is no valid UTF-8: what was given is never taken back.
        #[test]
        fn all_pieces_are_the_decoded_text_up_to_the_first_stop_string(
            ids in proptest::collection::vec(prop_oneof![64u32..72, 0u32..257], 0..40),
            stops in 0usize..4,
        ) {
            let tokenizer = byte_tokenizer(None);
            let letters = tokenizer.decode(&[65, 66, 65]).unwrap();
            let stop = &[letters.as_str(), &letters[1..], "a\u{fffd}"][..stops.min(3)];
            // A completion ends with the token that completes a stop string.
            let found = |text: &str| stop.iter().filter_map(|stop| text.find(stop)).min();
            let whole = |n: usize| tokenizer.decode(&ids[..n]).unwrap();
            let ends = (0..=ids.len()).find(|&n| found(&whole(n)).is_some()).unwrap_or(ids.len());
            let text = whole(ends);
            let expected = &text[..found(&text).unwrap_or(text.len())];
            prop_assert_eq!(pieces(&tokenizer, &ids, stop).concat(), expected);
        }
    }
}
