//! Merges of BPE as SentencePiece's scores.
//!
//! Where BPE has a list of pairs, the first of which is merged first, llama.cpp's `llama` tokenizer merges any two
//! neighbours whose joint text is a token, that with the highest score first. Both do the same if every such pair is in
//! the list, and if the pairs that make one token follow one another there. A tokenizer that was converted from
//! SentencePiece is like that.

use std::collections::{HashMap, HashSet};

/// The score of tokens that no merge makes. llama.cpp does not look at it.
const NEVER: f32 = -1e9;

/// A score for each token. Only tokens that are `plain` are made by merges: both programs look for the others before.
pub(super) fn scores(
    texts: &[String],
    plain: impl Fn(usize) -> bool,
    merges: &[(&str, &str)],
) -> Result<Vec<f32>, String> {
    let ids: HashMap<&str, usize> = texts.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
    let is_plain = |text: &str| ids.get(text).is_some_and(|id| plain(*id));
    let mut scores = vec![NEVER; texts.len()];
    let (mut rank, mut last) = (0.0, None);
    for (left, right) in merges {
        let joint = [*left, *right].concat();
        let id = *ids.get(joint.as_str()).ok_or_else(|| format!("{left:?} and {right:?} are merged to no token"))?;
        if last == Some(id) || !plain(id) {
            continue;
        }
        if scores[id] != NEVER {
            return Err(format!("merges that make {joint:?} stand in two places"));
        }
        scores[id] = rank;
        (rank, last) = (rank - 1.0, Some(id));
    }
    let listed: HashSet<(&str, &str)> = merges.iter().copied().collect();
    for text in texts.iter().enumerate().filter(|(id, _)| plain(*id)).map(|(_, text)| text) {
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let mut pairs = cuts.filter(|(left, right)| is_plain(left) && is_plain(right));
        if let Some((left, right)) = pairs.find(|pair| !listed.contains(pair)) {
            return Err(format!("SentencePiece would also make {text:?} of {left:?} and {right:?}"));
        }
    }
    Ok(scores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_that_sentence_piece_would_not_do_or_do_otherwise_are_refused() {
        let texts = ["<s>", "a", "b", "ab", "ba", "aba"].map(str::to_owned);
        let scores = |merges: &[(&str, &str)]| scores(&texts, |id| id > 0, merges);
        let whole = [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "ba")];
        assert_eq!(scores(&whole).unwrap(), [NEVER, NEVER, NEVER, 0.0, -1.0, -2.0]);
        let error = scores(&whole[..3]).unwrap_err();
        assert_eq!(error, "SentencePiece would also make \"aba\" of \"a\" and \"ba\"");
        let apart = [("a", "b"), ("ab", "a"), ("b", "a"), ("a", "ba")];
        assert_eq!(scores(&apart).unwrap_err(), "merges that make \"aba\" stand in two places");
        assert!(scores(&[("b", "b")]).unwrap_err().contains("are merged to no token"));
    }
}
