//! Rules on wording.

use super::{Built, Parameters, of_completion};

/// The share of a text's sentences that contain `word` (in lower case) as a whole word, in any case; 0 without
/// sentences. Sentences end at `.`, `!` and `?`; an unfinished last one counts.
#[must_use]
pub fn sentence_share(text: &str, word: &str) -> f64 {
    let sentences = text.split(['.', '!', '?']).filter(|s| s.chars().any(char::is_alphanumeric));
    let (mut with, mut all) = (0u32, 0u32);
    for sentence in sentences {
        all += 1;
        with += u32::from(sentence.split(|c: char| !c.is_alphanumeric()).any(|w| w.to_lowercase() == word));
    }
    if all == 0 { 0.0 } else { f64::from(with) / f64::from(all) }
}

pub(super) fn build(parameters: &Parameters) -> Built {
    let word: String = parameters.get("word")?;
    if word.is_empty() || !word.chars().all(char::is_alphanumeric) {
        return Err(format!("parameter `word` must be one word of letters and digits, got `{word}`"));
    }
    let word = word.to_lowercase();
    of_completion(1.0, move |completion| sentence_share(&completion.text, &word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_counted_once_per_sentence() {
        for (text, share) in [
            ("The dog ran. A cat sat! Was the Dog a dog?", 2.0 / 3.0),
            ("Dogs ran. Hotdog.", 0.0),
            ("\"dog,\" he said", 1.0),
            ("dog... dog", 1.0),
            (" . ! ", 0.0),
            ("", 0.0),
        ] {
            assert_eq!(sentence_share(text, "dog"), share, "{text}");
        }
    }
}
