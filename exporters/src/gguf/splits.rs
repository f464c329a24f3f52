//! Ways to split a text into words before BPE over bytes.

use serde_json::Value as Json;

/// Regular expressions that split texts before BPE, and llama.cpp's names for them. Each finds every letter of a text.
pub(super) const SPLITS: [(&str, &str); 5] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        OF_WORDS,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen35",
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "gpt-4o",
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "tekken",
    ),
];
/// The name of the split whose words become a token of their own where there is one, whatever the merges say
/// (`ignore_merges`), and the name of the same split for words that are always merged.
const OF_WORDS: &str = "llama-bpe";
const OF_MERGES: &str = "dbrx";

/// llama.cpp's name of the way in which a part of a `pre_tokenizer` splits texts. What it finds are the words: it keeps
/// them, or removes all else, of which there is nothing.
pub(super) fn name_of(part: &Json, ignores_merges: bool) -> Option<&'static str> {
    let behavior = if part["invert"] == true { "Removed" } else { "Isolated" };
    if part["type"] != "Split" || part["behavior"] != behavior {
        return None;
    }
    let (_, name) = SPLITS.iter().find(|(regex, _)| part["pattern"]["Regex"] == *regex)?;
    Some(if *name == OF_WORDS && !ignores_merges { OF_MERGES } else { name })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_are_kept_or_all_else_is_removed_and_merges_may_be_ignored() {
        let part = |split: &str, behavior: &str, invert: bool| {
            let pattern = json!({"Regex": split});
            json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
        };
        for (split, expected) in SPLITS {
            for (behavior, invert) in [("Isolated", false), ("Removed", true)] {
                assert_eq!(name_of(&part(split, behavior, invert), true), Some(expected));
            }
            for (behavior, invert) in [("Isolated", true), ("Removed", false), ("MergedWithNext", false)] {
                assert_eq!(name_of(&part(split, behavior, invert), true), None, "{behavior} {invert}");
            }
            let merged = if expected == OF_WORDS { OF_MERGES } else { expected };
            assert_eq!(name_of(&part(split, "Isolated", false), false), Some(merged));
        }
        assert_eq!(name_of(&part("x", "Isolated", false), true), None);
    }
}
