//! Stop strings: a completion ends as soon as its decoded text contains one.

use std::sync::Arc;

use super::{Tokenizer, detokenizer::TextStream};
use crate::engine::types::StopCriterion;

/// Makes a stop criterion for each completion of a group.
pub type StopCriterionFactory = Arc<dyn Fn() -> Box<dyn StopCriterion> + Send + Sync>;

/// Watches one completion.
pub struct StopStrings {
    stop: Arc<[String]>,
    stream: TextStream,
    /// The end of the settled text, long enough to hold all but the last byte of any stop string.
    tail: String,
    keep: usize,
}

impl StopStrings {
    /// A criterion for the given texts, none of them empty.
    #[must_use]
    pub fn new(tokenizer: Tokenizer, stop: Arc<[String]>) -> Self {
        Self::after(tokenizer, stop, &[])
    }

    /// As [`StopStrings::new`], for a completion that goes on with the text of a prompt.
    #[must_use]
    pub fn after(tokenizer: Tokenizer, stop: Arc<[String]>, prompt: &[u32]) -> Self {
        let keep = stop.iter().map(String::len).max().unwrap_or(0);
        Self { stop, stream: TextStream::after(tokenizer, prompt), tail: String::new(), keep }
    }
}

impl StopCriterion for StopStrings {
    fn push(&mut self, token: u32) -> bool {
        let (text, whole) = self.stream.push(token);
        let seen = format!("{}{text}", self.tail);
        let found = self.stop.iter().any(|stop| seen.contains(stop.as_str()));
        if whole {
            let start = (0..=seen.len().saturating_sub(self.keep))
                .rev()
                .find(|&i| seen.is_char_boundary(i))
                .expect("0 is a boundary");
            self.tail = seen[start..].to_owned();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::data::testing::byte_tokenizer;

    /// Number of tokens after which the watch ends the completion.
    fn stops_after(tokenizer: &Tokenizer, ids: &[u32], stop: &[&str]) -> Option<usize> {
        let stop: Vec<String> = stop.iter().map(|s| (*s).to_owned()).collect();
        let mut watch = tokenizer.stop_criterion(&stop).unwrap()();
        ids.iter().position(|&id| watch.push(id)).map(|index| index + 1)
    }

    /// The definition: the first prefix whose text contains a stop string.
    fn expected(tokenizer: &Tokenizer, ids: &[u32], stop: &[&str]) -> Option<usize> {
        (1..=ids.len()).find(|&n| {
            let text = tokenizer.decode(&ids[..n]).unwrap();
            stop.iter().any(|s| text.contains(s))
        })
    }

    #[test]
    fn stop_strings_of_many_tokens_and_bytes_are_found() {
        let tokenizer = byte_tokenizer(None);
        for (text, stop, after) in [
            ("a</answer>b", vec!["</answer>"], Some(10)),
            ("a</ans</answer>", vec!["</answer>"], Some(15)),
            ("né ünd 東京!", vec!["東京"], Some(15)),
            ("né", vec!["é"], Some(3)),
            ("one two", vec!["two", "e t"], Some(5)),
            ("one two", vec!["three"], None),
            ("one\n\ntwo", vec!["\n\n"], Some(5)),
        ] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(stops_after(&tokenizer, &ids, &stop), after, "{text}");
            assert_eq!(expected(&tokenizer, &ids, &stop), after, "{text}");
        }
    }

    #[test]
    fn no_stop_strings_need_no_watch() {
        let tokenizer = byte_tokenizer(None);
        assert!(tokenizer.stop_criterion(&[]).is_none());
        assert!(tokenizer.stop_criterion(&[String::new()]).is_none());
    }

    proptest! {
        /// Any sequence of tokens, also one that is no valid UTF-8, stops where its text first contains a stop string.
        #[test]
        fn the_watch_agrees_with_decoding_everything(
            ids in proptest::collection::vec(prop_oneof![64u32..72, 0u32..257], 0..40),
        ) {
            let tokenizer = byte_tokenizer(None);
            let letters = tokenizer.decode(&[65, 66]).unwrap();
            let stop = [letters.as_str(), "é", "a\u{fffd}"];
            prop_assert_eq!(stops_after(&tokenizer, &ids, &stop), expected(&tokenizer, &ids, &stop));
        }
    }

    /// A tokenizer of the SentencePiece kind drops the space at the start of a text, and only there.
    #[test]
    fn spaces_between_tokens_are_kept() {
        let Some(data) = harness::data_dir("spaces_between_tokens_are_kept") else { return };
        let model = shared::ModelDir::open(data.join("stories260K")).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        let text = "Once upon a time, there was a café. The end. Once more";
        let ids = tokenizer.encode(text, false).unwrap();
        for stop in ["there was", "é.", "d. O", "upon a", "e", "never"] {
            assert_eq!(stops_after(&tokenizer, &ids, &[stop]), expected(&tokenizer, &ids, &[stop]), "{stop}");
        }
        assert!(stops_after(&tokenizer, &ids, &["d. O"]).is_some());
    }
}
