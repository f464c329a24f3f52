//! No notes to self and no ignored tests.

use super::sources::Sources;

/// Words that mark unfinished work. They are assembled here so that this file passes its own check.
const WORDS: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("place", "holder"),
    concat!("#[", "ignore"),
];

pub fn check(sources: &Sources) -> Vec<String> {
    let mut findings = Vec::new();
    for source in &sources.texts {
        for (index, line) in source.text.lines().enumerate() {
            let found = WORDS.iter().filter(|word| has_word(line, word));
            findings.extend(found.map(|word| format!("{}:{}: `{word}` marks unfinished work", source.path, index + 1)));
        }
    }
    findings
}

/// Whether a word occurs on its own, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part)
            && !line[at + word.len()..].chars().next().is_some_and(|next| part(next) && !word.ends_with('('))
    })
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    #[test]
    fn marks_are_found_as_words_of_their_own() {
        for line in [
            concat!("    todo", "!(\"later\")"),
            concat!("// TO", "DO: later"),
            concat!("a place", "holder value"),
            concat!("#[", "ignore = \"slow\"]"),
        ] {
            let findings = check(&one("a.rs", &format!("//! Docs.\n{line}\n")));
            assert!(findings.len() == 1 && findings[0].starts_with("a.rs:2: "), "{line}: {findings:?}");
        }
        assert_eq!(check(&one("a.rs", concat!("// dotTO", "DOs and place", "holders\n"))), Vec::<String>::new());
    }
}
