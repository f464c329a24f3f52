//! Masks against a reference that knows nothing of automata: it writes out all rows of tokens and matches their texts.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use shared::generation::rng::Stream;

use super::*;

/// Tokens of the longest row that the reference writes.
const LONGEST: usize = 5;

/// A tokenizer whose tokens are `names`, in SentencePiece's spelling, and after them `</s>`.
fn tokenizer(names: &[&str], drops_first_space: bool) -> TextTokenizer {
    let vocab: Map<String, Value> = (0..).zip(names).map(|(id, name)| ((*name).to_owned(), Value::from(id))).collect();
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    decoders.extend(drops_first_space.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": {"type": "Sequence", "decoders": decoders},
        "added_tokens": [{"id": names.len(), "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "a"},
    });
    TextTokenizer::parse(file.to_string().as_bytes(), "tokenizer.json".into()).unwrap()
}

/// A model of these tokens, and the reference for it.
struct World {
    tokenizer: TextTokenizer,
    tokens: Vec<Vec<u8>>,
    drops_first_space: bool,
}

impl World {
    fn new(names: &[&str], drops_first_space: bool) -> Self {
        let tokenizer = tokenizer(names, drops_first_space);
        let bytes = tokenizer.token_bytes(names.len() + 1).unwrap();
        assert_eq!(bytes.drops_first_space, drops_first_space);
        let spelled = |name: &&str| match name.strip_prefix("<0x") {
            Some(hex) => vec![u8::from_str_radix(&hex[..2], 16).unwrap()],
            None => name.replace('\u{2581}', " ").into_bytes(),
        };
        let tokens: Vec<Vec<u8>> = names.iter().map(spelled).collect();
        assert_eq!(bytes.tokens[..names.len()], tokens);
        Self { tokenizer, tokens, drops_first_space }
    }

    /// The token that ends a completion.
    fn end(&self) -> u32 {
        self.tokens.len() as u32
    }

    fn constraint(&self, regex: &str) -> Result<RegexConstraint, ConstraintError> {
        RegexConstraint::new(regex, &self.tokenizer, self.tokens.len() + 1, &[self.end(), 1000])
    }

    /// What may come after each row of tokens that a match begins with, by writing out all rows.
    fn reference(&self, regex: &str) -> HashMap<Vec<u32>, HashSet<u32>> {
        let whole = regex::Regex::new(&format!("^(?:{regex})$")).unwrap();
        let mut found: HashMap<Vec<u32>, HashSet<u32>> = HashMap::new();
        let mut rows = vec![Vec::new()];
        while let Some(row) = rows.pop() {
            let bytes: Vec<u8> = row.iter().flat_map(|&id: &u32| self.tokens[id as usize].clone()).collect();
            let dropped = bytes.strip_prefix(b" ").filter(|_| self.drops_first_space);
            if std::str::from_utf8(dropped.unwrap_or(&bytes)).is_ok_and(|text| whole.is_match(text)) {
                found.entry(row.clone()).or_default().insert(self.end());
                for (at, &id) in row.iter().enumerate() {
                    found.entry(row[..at].to_vec()).or_default().insert(id);
                }
            }
            if row.len() < LONGEST {
                rows.extend((0..self.end()).map(|id| [&row[..], &[id]].concat()));
            }
        }
        found
    }

    /// Checks the constraint of an expression, whose matches have at most `LONGEST` tokens, in all places.
    fn check(&self, regex: &str) {
        let (reference, found) = (self.reference(regex), self.constraint(regex));
        let is_blank = |id: u32| self.drops_first_space && self.tokens[id as usize] == b" ";
        // A space that the text drops is an empty text.
        if !reference.keys().any(|row| row.len() > 1 || row.first().is_some_and(|&id| !is_blank(id))) {
            assert!(found.is_err(), "{regex}: {found:?}");
            return;
        }
        let found = found.unwrap_or_else(|error| panic!("{regex}: {error}"));
        for (row, may) in reference {
            let go_on = |place, &id: &u32| match found.after(place, id) {
                Some(After::Tokens(place)) => Some(place),
                _ => None,
            };
            let place = row.iter().try_fold(found.begin(), go_on).unwrap_or_else(|| panic!("{regex}: {row:?}"));
            let mask = found.mask(place);
            assert_eq!(mask.ids().collect::<HashSet<u32>>(), may, "{regex}: after {row:?}");
            assert_eq!(mask.count() as usize, may.len());
            assert_eq!(mask.goes_on(), may.iter().any(|&id| id != self.end()), "{regex}: after {row:?}");
            for id in 0..=self.end() {
                let after = found.after(place, id);
                assert_eq!(after.is_some(), may.contains(&id), "{regex}: {id} after {row:?}");
                assert_eq!(after == Some(After::Nothing), id == self.end() && may.contains(&id));
            }
        }
    }
}

/// Every byte of the alphabet is a token, and `é` is one too.
fn with_bytes(drops_first_space: bool) -> World {
    World::new(&["a", "b", "ab", "é", "<0xC3>", "<0xA9>", "\u{2581}", "\u{2581}a"], drops_first_space)
}

/// `b` comes with others only, and some characters have no token.
fn with_gaps() -> World {
    World::new(&["a", "ab", "bc", "é", "\u{2581}"], false)
}

const EXPRESSIONS: &[&str] = &[
    "a",
    "a{2,3}",
    "a?b{0,2}",
    "(?:a|ab|abab)",
    "(?:é|a){1,2}",
    "[^b]{1,2}",
    ".{1,2}",
    " ?a{2}",
    " a{1,2}",
    "[a-c]{0,3}",
    "(?:ab|bc)",
    "(?:a|bc)(?:b|bc)",
    "é{2}|b",
    "(?i)A[Bb]",
    "^a$|b",
    "(?:)",
    "z?",
    " ",
    " ?",
    "[c-z]+",
];

#[test]
fn tokens_may_come_where_a_text_that_matches_begins_like_this() {
    for world in [with_bytes(false), with_bytes(true), with_gaps()] {
        EXPRESSIONS.iter().for_each(|regex| world.check(regex));
    }
}

fn expressions() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![Just("a"), Just("b"), Just("é"), Just("[ab]"), Just("[^a]"), Just(" "), Just("")];
    let part = (leaf, prop_oneof![Just(""), Just("?")]).prop_map(|(a, how)| format!("(?:{a}){how}"));
    let row = proptest::collection::vec(part, 1..3).prop_map(|parts| parts.concat());
    proptest::collection::vec(row, 1..3).prop_map(|rows| rows.join("|"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn masks_of_any_expression_are_those_of_the_reference(regex in expressions(), kind in 0..3u8) {
        let world = match kind {
            0 => with_bytes(false),
            1 => with_bytes(true),
            _ => with_gaps(),
        };
        world.check(&regex);
    }
}

/// Completions of real tokenizers, drawn by chance from the masks.
#[test]
fn completions_of_real_tokenizers_match_and_places_agree_with_masks() {
    let Some(data) = harness::data_dir("completions_of_real_tokenizers_match_and_places_agree_with_masks") else {
        return;
    };
    let expressions = [
        r"<think>\n[^<]{0,40}\n</think>\n<answer>-?\d{1,4}</answer>",
        r"(?s).{1,30}",
        r"[^\x00-\x7F]{2,5}",
        r"(?:yes|no|日本語)(?:, (?:yes|no)){0,3}\.",
        r#"\{"a": \[(?:-?[0-9]{1,3})(?:, -?[0-9]{1,3}){0,4}\]\}"#,
    ];
    for (folder, end) in [("tokenizers/qwen2.5", 151_643), ("stories260K", 2)] {
        let tokenizer = TextTokenizer::open(&data.join(folder).join("tokenizer.json")).unwrap();
        for regex in expressions {
            let constraint = RegexConstraint::new(regex, &tokenizer, tokenizer.vocab_size() + 3, &[end]).unwrap();
            let whole = regex::Regex::new(&format!("^(?:{regex})$")).unwrap();
            let mut stream = Stream::new(&[7, regex.len() as u64]);
            for _ in 0..12 {
                let (mut ids, mut place) = (Vec::new(), constraint.begin());
                loop {
                    let mask = constraint.mask(place);
                    let may: Vec<u32> = mask.ids().collect();
                    if !mask.goes_on() {
                        break;
                    }
                    // Tokens that may not come have no place after them.
                    for _ in 0..20 {
                        let id = stream.below(tokenizer.vocab_size() as u64) as u32;
                        assert_eq!(constraint.after(place, id).is_some(), may.binary_search(&id).is_ok(), "{id}");
                    }
                    let id = may[stream.below(may.len() as u64) as usize];
                    match constraint.after(place, id).expect("it may come") {
                        After::Tokens(next) => place = next,
                        After::Nothing => break,
                    }
                    ids.push(id);
                }
                let text = tokenizer.decode(&ids).unwrap();
                assert!(whole.is_match(&text), "{folder}: {regex} and {text:?}");
            }
        }
    }
}

#[test]
fn what_no_completion_can_follow_is_refused_in_words() {
    let world = with_bytes(false);
    let refused = |regex: &str| world.constraint(regex).unwrap_err().to_string();
    for (regex, words) in [
        ("(a", "unclosed group, at character 1"),
        ("é(?=a)", "look-around, including look-ahead and look-behind, is not supported, at character 2"),
        (r"(a)\1", "backreferences are not supported"),
        (r"\ba", "(?-u:\\b)"),
        (r"\<a", "(?-u:\\b)"),
        ("[ab&&c]", "matches no text"),
        ("", "the empty completion alone"),
        ("z", "no text that the tokens of the model make up"),
        (r"\w{2000}", "too large"),
        (r"(?:a{1000}){1000}", "too large"),
        (r"(?:a|b)*a(?:a|b){30}", "too large"),
    ] {
        let error = refused(regex);
        assert!(error.contains(words) && !error.contains('\n'), "{regex}: {error}");
    }
    assert!(world.constraint(r"(?-u:\ba)").is_ok());
    let gaps = with_gaps();
    assert_eq!(gaps.constraint("b").unwrap_err(), ConstraintError::NoTokens);
    let exceeds = |regex: &str, most| world.constraint(regex).unwrap().exceeds(most);
    assert_eq!([1, 2, 3].map(|most| exceeds("(?:ab){3}|é{5}", most)), [true, true, false]);
    assert!(!exceeds("a*", 1) && !exceeds("(?:ab){40}", 40) && exceeds("(?:ab){40}", 39));
}

#[test]
fn equal_masks_are_one() {
    let constraint = with_bytes(false).constraint("(?:a|b){3}").unwrap();
    let step = |place| match constraint.after(place, 0) {
        Some(After::Tokens(place)) => place,
        other => panic!("{other:?}"),
    };
    let first = constraint.mask(constraint.begin());
    let second = constraint.mask(step(constraint.begin()));
    let last = constraint.mask(step(step(constraint.begin())));
    assert!(Arc::ptr_eq(&first, &second), "three letters are left, or two");
    assert_eq!((first.count(), last.count()), (3, 2), "`ab` has no room in the end");
    assert!(Arc::ptr_eq(&last, &constraint.mask(step(step(constraint.begin())))));
}
