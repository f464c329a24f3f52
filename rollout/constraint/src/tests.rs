//! Completions of models that know nothing, against checks that know nothing of tries and parsers.

use std::fs;

use harness::tiny_model::{ModelFolder, write_tokenizer};
use proptest::{prelude::*, test_runner::TestCaseError};
use rollout::{
    commands::constraint::Grammar,
    data::Tokenizer,
    engine::Constraint,
    sampling::{Scratch, SeenTokens, sample_allowed},
    structured_outputs,
};
use serde_json::{Value, json};
use shared::{ModelDir, SamplingParams, generation::rng::Stream};
use shared_tokenizer::RegexConstraint;

use super::{Grammars, Start};

/// A tokenizer, and what compiles grammars for it.
struct World {
    tokenizer: Tokenizer,
    grammars: Grammars,
    ends: Vec<u32>,
}

impl World {
    fn new(folder: &std::path::Path) -> Self {
        let model = ModelDir::open(folder).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        let ends = model.generation().eos_token_ids.clone();
        assert!(!ends.is_empty());
        Self { grammars: Grammars::new(&tokenizer, &model), tokenizer, ends }
    }

    /// A token for each character.
    fn characters() -> Self {
        let folder = ModelFolder::new();
        write_tokenizer(&folder.path("model"));
        Self::new(&folder.path("model"))
    }

    /// SentencePiece with byte fallback.
    fn stories() -> Option<Self> {
        let data = harness::data_dir("stories260K")?;
        Some(Self::new(&data.join("stories260K")))
    }

    /// Byte-level BPE, with more rows than tokens.
    fn qwen() -> Option<Self> {
        let data = harness::data_dir("qwen2.5")?;
        let folder = tempfile::tempdir().unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(data.join("tokenizers/qwen2.5").join(file), folder.path().join(file)).unwrap();
        }
        fs::copy(data.join("configs/qwen2.5-0.5b.config.json"), folder.path().join("config.json")).unwrap();
        let ends = json!({ "eos_token_id": [151_645, 151_643] });
        fs::write(folder.path().join("generation_config.json"), ends.to_string()).unwrap();
        Some(Self::new(folder.path()))
    }

    fn compile(&self, grammar: &Grammar, start: Start) -> Result<Box<dyn Constraint>, String> {
        self.grammars.compile("grammar", grammar, start).map(|constraint| constraint.begin())
    }

    /// A completion of at most `most` tokens by random logits, and whether it has ended by itself.
    fn write(&self, mut constraint: Box<dyn Constraint>, seed: u64, most: usize) -> (Vec<u32>, bool) {
        let (mut stream, mut scratch) = (Stream::new(&[seed]), Scratch::default());
        let (params, seen, mut ids) = (SamplingParams::default(), SeenTokens::default(), Vec::new());
        let mut logits = vec![0.0; self.tokenizer.model_vocab_size()];
        while ids.len() < most {
            logits.iter_mut().for_each(|logit| *logit = (stream.next_normal() * 3.0) as f32);
            let allowed = constraint.allowed().unwrap();
            let drawn = sample_allowed(&logits, allowed, &params, &seen, stream.next_f64(), &mut scratch);
            let token = drawn.unwrap().expect("a token may come").token;
            if self.ends.contains(&token) {
                return (ids, true);
            }
            ids.push(token);
            if constraint.push(token).unwrap() {
                return (ids, true);
            }
        }
        (ids, false)
    }

    fn text(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids).unwrap()
    }

    /// The text of a completion that goes on after a text.
    fn text_after(&self, ids: &[u32]) -> String {
        let before = self.tokenizer.encode("one", false).unwrap();
        let both = self.text(&[&before[..], ids].concat());
        both.strip_prefix("one").unwrap().to_owned()
    }
}

/// Regular expressions over a few letters, spaces among them.
fn regexes() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        "[a-c ]{1,3}",
        Just("[a-z]".to_owned()),
        Just("[^ ab]".to_owned()),
        Just("\\d".to_owned()),
        Just("/".to_owned()),
        Just("\\\\".to_owned()),
        Just("\"".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}{b}")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("(?:{a}|{b})")),
            (inner.clone(), 0..3u32, 0..3u32).prop_map(|(a, low, more)| format!("(?:{a}){{{low},{}}}", low + more)),
            (inner.clone(), prop_oneof![Just("?"), Just("*"), Just("+")]).prop_map(|(a, how)| format!("(?:{a}){how}")),
        ]
    })
}

/// Runs have an automaton of their own. Both ways say the same of every place.
#[test]
fn the_automaton_of_runs_lets_the_same_tokens_come() {
    let expressions = [
        "[0-9]{1,4}",
        "[a-c]{2,5}=(?: [0-9]+)?",
        "(?:yes|no)(?:, (?:yes|no)){0,3}\\.",
        "<think>[^<]{0,20}</think><answer>-?[0-9]+</answer>",
        " ?[A-Z][a-z]+",
        ".{1,12}",
    ];
    let worlds = [Some(World::characters()), World::stories(), World::qwen()];
    for (number, world) in worlds.into_iter().flatten().enumerate() {
        let ids = |words: &[u32]| -> Vec<u32> {
            let is_set = |id: &u32| words.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
            (0..world.tokenizer.model_vocab_size() as u32).filter(is_set).collect()
        };
        for (seed, regex) in (0..).zip(expressions) {
            let rows = world.tokenizer.model_vocab_size();
            let of_run = RegexConstraint::new(regex, world.tokenizer.text_tokenizer(), rows, &world.ends).unwrap();
            let of_run = structured_outputs::constrained("regex", of_run);
            let mut stream = Stream::new(&[number as u64, seed]);
            for _ in 0..6 {
                let mut own = world.compile(&Grammar::Regex(regex.into()), Start::OfText).unwrap();
                let mut other = of_run.begin();
                for at in 0..40 {
                    let may = ids(own.allowed().unwrap());
                    assert_eq!(ids(other.allowed().unwrap()), may, "world {number}, {regex}, place {at}");
                    let token = may[stream.below(may.len() as u64) as usize];
                    let ended = [own.push(token).unwrap(), other.push(token).unwrap()];
                    assert_eq!(ended[0], ended[1], "world {number}, {regex}, after {token} in place {at}");
                    if ended[0] {
                        break;
                    }
                }
            }
        }
    }
}

fn is_matched(regex: &str, text: &str) -> bool {
    regex::Regex::new(&format!("^(?:{regex})$")).unwrap().is_match(text)
}

fn whole_texts_match(world: &World, regex: &str, seed: u64) -> Result<bool, TestCaseError> {
    let mut ended = false;
    for start in [Start::OfText, Start::WithinText] {
        let constraint = world.compile(&Grammar::Regex(regex.to_owned()), start).unwrap();
        let (ids, is_whole) = world.write(constraint, seed, 60);
        let text = if start == Start::OfText { world.text(&ids) } else { world.text_after(&ids) };
        prop_assert!(!is_whole || is_matched(regex, &text), "{regex:?} as {start:?}: {text:?}");
        ended |= is_whole;
    }
    Ok(ended)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_has_ended_is_matched_by_any_regex(regex in regexes(), seed in 0u64..1000) {
        thread_local!(static WORLDS: Vec<World> =
            [World::characters()].into_iter().chain(World::stories()).collect());
        WORLDS.with(|worlds| worlds.iter().try_for_each(|world| whole_texts_match(world, &regex, seed).map(drop)))?;
    }

    #[test]
    fn what_has_ended_follows_any_schema(schema in schemas(), seed in 0u64..1000) {
        thread_local!(static WORLD: World = World::characters());
        WORLD.with(|world| {
            let grammar = Grammar::Json { schema: schema.clone(), compact: true };
            let (ids, is_whole) = world.write(world.compile(&grammar, Start::OfText).unwrap(), seed, 600);
            let text = world.text(&ids);
            if is_whole {
                let fail = |e| TestCaseError::fail(format!("{text}: {e}"));
                let value: Value = serde_json::from_str(&text).map_err(fail)?;
                prop_assert!(follows(&schema, &value), "{schema}: {text}");
            }
            Ok(())
        })?;
    }
}

/// JSON schemas whose values are not too long.
fn schemas() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        (0..4u32).prop_map(|most| json!({ "type": "string", "maxLength": most })),
        (-20..20i64, 0..30i64)
            .prop_map(|(low, more)| json!({ "type": "integer", "minimum": low, "maximum": low + more })),
        Just(json!({ "type": "boolean" })),
        Just(json!({ "type": "null" })),
        Just(json!({ "enum": ["one", 2, true, ["a"]] })),
        Just(json!({ "const": { "a": 1 } })),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let items = (inner.clone(), 0..2u32, 0..3u32).prop_map(
            |(items, low, more)| json!({ "type": "array", "items": items, "minItems": low, "maxItems": low + more }),
        );
        let object = (inner.clone(), inner.clone(), any::<bool>()).prop_map(|(a, b, both)| {
            let required = if both { json!(["a", "b"]) } else { json!(["b"]) };
            json!({ "type": "object", "properties": { "a": a, "b": b }, "required": required,
                "additionalProperties": false })
        });
        let either = (inner.clone(), inner).prop_map(|(a, b)| json!({ "anyOf": [a, b] }));
        prop_oneof![items, object, either]
    })
}

/// Whether a value follows a schema of [`schemas`].
fn follows(schema: &Value, value: &Value) -> bool {
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    if let Some(either) = schema["anyOf"].as_array() {
        return either.iter().any(|schema| follows(schema, value));
    }
    if !schema["const"].is_null() {
        return *value == schema["const"];
    }
    let number = |name: &str| schema[name].as_i64().unwrap();
    match (schema["type"].as_str().unwrap(), value) {
        ("string", Value::String(text)) => text.chars().count() as i64 <= number("maxLength"),
        ("integer", Value::Number(n)) => {
            // `-0` is an integer of JSON, which serde_json reads as a float.
            let whole = n.as_i64().or((n.as_f64() == Some(0.0)).then_some(0));
            whole.is_some_and(|n| number("minimum") <= n && n <= number("maximum"))
        }
        ("boolean", Value::Bool(_)) | ("null", Value::Null) => true,
        ("array", Value::Array(items)) => {
            let count = items.len() as i64;
            number("minItems") <= count
                && count <= number("maxItems")
                && items.iter().all(|item| follows(&schema["items"], item))
        }
        ("object", Value::Object(fields)) => {
            let is_known = |(name, value): (&String, &Value)| {
                schema["properties"].get(name).is_some_and(|schema| follows(schema, value))
            };
            let required = schema["required"].as_array().unwrap();
            fields.iter().all(is_known) && required.iter().all(|name| fields.contains_key(name.as_str().unwrap()))
        }
        _ => false,
    }
}

#[test]
fn real_tokenizers_write_what_a_regex_matches() {
    for world in World::stories().into_iter().chain(World::qwen()) {
        // Characters of up to four bytes, which few tokens have as a whole, and words with spaces before them.
        for regex in ["(?:é|日|本|😀|ё){3}", "[A-Z][a-z]+(?: [a-z]+){2}\\.", "-?[0-9]{1,4}", " x| y"] {
            for seed in 0..3 {
                assert!(whole_texts_match(&world, regex, seed).unwrap() || regex.contains('+'), "{regex} never ended");
            }
        }
        let schema = json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 9 },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 } }, "required": ["name", "age"],
            "additionalProperties": false });
        let grammar = Grammar::Json { schema, compact: true };
        let mut whole = 0;
        for seed in 0..4 {
            let (ids, is_whole) = world.write(world.compile(&grammar, Start::OfText).unwrap(), seed, 200);
            if is_whole {
                let value: Value = serde_json::from_str(&world.text(&ids)).unwrap();
                assert!(value["name"].as_str().unwrap().chars().count() <= 9, "{value}");
                assert!((0..=120).contains(&value["age"].as_i64().unwrap()), "{value}");
                whole += 1;
            }
        }
        assert!(whole > 1, "{whole} of 4 were whole");
    }
}

/// A model of SentencePiece writes the first word with the space that its text drops.
#[test]
fn the_space_that_a_text_drops_is_allowed_at_its_beginning_and_nowhere_else() {
    let Some(world) = World::stories() else { return };
    let token = |piece: &str| world.tokenizer.encode(piece, false).unwrap();
    let (spaced, space) = (token("the")[0], token("7")[0]);
    assert_eq!(world.text(&[spaced]), "the");
    assert_eq!(world.text_after(&[spaced]), " the");
    assert_eq!(world.text_after(&[space]), " ", "a digit has no token with a space before it");
    let allows = |regex: &str, start: Start, ids: &[u32]| {
        let mut constraint = world.compile(&Grammar::Regex(regex.to_owned()), start).unwrap();
        ids.iter().all(|&id| {
            let may = constraint.allowed().unwrap()[id as usize / 32] >> (id % 32) & 1 == 1;
            may && constraint.push(id).is_ok()
        })
    };
    assert!(allows("the|theft", Start::OfText, &[spaced]));
    assert!(!allows("the|theft", Start::WithinText, &[spaced]), "there the space is a part of the text");
    assert!(allows(" the", Start::WithinText, &[spaced]));
    assert!(!allows(" the", Start::OfText, &[spaced]), "its text has no space");
    assert!(allows("[0-9]{2}", Start::OfText, &token("77")));
    assert!(!allows("[0-9]{2}", Start::OfText, &[space, space]), "one space is dropped");
    assert!(allows(" [0-9]{2}", Start::OfText, &[space, space]), "and no more than one");
}

#[test]
fn a_text_that_can_only_end_ends_and_one_that_may_go_on_has_the_choice() {
    let world = World::characters();
    let id = |text: &str| world.tokenizer.encode(text, false).unwrap()[0];
    let mut constraint = world.compile(&Grammar::Regex("ab*c?".into()), Start::OfText).unwrap();
    let may = |constraint: &mut Box<dyn Constraint>| -> Vec<u32> {
        let allowed = constraint.allowed().unwrap();
        (0..96).filter(|id| allowed[id / 32] >> (id % 32) & 1 == 1).map(|id| id as u32).collect()
    };
    let end = world.ends[0];
    assert_eq!(may(&mut constraint), [id("a")]);
    assert!(!constraint.push(id("a")).unwrap());
    assert_eq!(may(&mut constraint), [end, id("b"), id("c")]);
    assert!(!constraint.push(id("b")).unwrap());
    assert!(constraint.push(id("c")).unwrap(), "nothing can come after it");
    let mut constraint = world.compile(&Grammar::Regex("ab*".into()), Start::OfText).unwrap();
    constraint.push(id("a")).unwrap();
    assert!(constraint.push(end).unwrap(), "the end is the end");
    assert!(constraint.push(id("a")).is_err(), "and nothing follows");
}

#[test]
fn choices_are_texts_and_no_patterns_and_grammars_of_lark_are_followed() {
    let world = World::characters();
    let choices = ["a.c", "(x)", "a\"b\\", "a/b", ""];
    let grammar = Grammar::Choice(choices.map(str::to_owned).to_vec());
    for seed in 0..20 {
        let (ids, is_whole) = world.write(world.compile(&grammar, Start::OfText).unwrap(), seed, 20);
        assert!(is_whole && choices.contains(&&*world.text(&ids)), "{}", world.text(&ids));
    }
    let sums = "start: term (\"+\" term)*\nterm: NUMBER | \"(\" start \")\"\nNUMBER: /[0-9]{1,2}/";
    let mut whole = 0;
    for seed in 0..20 {
        let (ids, is_whole) = world.write(world.compile(&Grammar::Lark(sums.into()), Start::OfText).unwrap(), seed, 80);
        let text = world.text(&ids);
        if is_whole {
            let depth = text.chars().try_fold(0i32, |depth, c| match c {
                '(' => Some(depth + 1),
                ')' => (depth > 0).then_some(depth - 1),
                _ => Some(depth),
            });
            assert_eq!(depth, Some(0), "{text}");
            assert!(is_matched(r"\(*\d{1,2}\)*(\+\(*\d{1,2}\)*)*", &text), "{text}");
            whole += 1;
        }
    }
    assert!(whole > 5, "{whole} of 20 were whole");
}

#[test]
fn parts_of_a_schema_are_found_by_their_paths() {
    let world = World::characters();
    let schema = json!({ "$defs": { "tree": { "type": "object", "properties": {
            "is": { "enum": ["a", "b"] }, "of": { "type": "array", "items": { "$ref": "#/$defs/tree" },
            "maxItems": 2 } },
            "required": ["is"], "additionalProperties": false } }, "$ref": "#/$defs/tree" });
    let grammar = Grammar::Json { schema, compact: true };
    let whole = (0..20).filter(|seed| {
        let (ids, is_whole) = world.write(world.compile(&grammar, Start::OfText).unwrap(), *seed, 300);
        if is_whole {
            let value: Value = serde_json::from_str(&world.text(&ids)).unwrap();
            assert!(["a", "b"].iter().any(|is| value["is"] == *is), "{value}");
        }
        is_whole
    });
    assert!(whole.count() > 5);
}

#[test]
fn what_cannot_be_followed_is_refused_in_one_line_and_soon() {
    let world = World::characters();
    let regex = |text: &str| Grammar::Regex(text.into());
    let schema = |schema: Value| Grammar::Json { schema, compact: false };
    let in_lark = |schema: Value| Grammar::Lark(format!("start: \"a\" | b\nb: %json {schema}"));
    let nested = |n: usize| format!("{}a{}", "(".repeat(n), ")".repeat(n));
    let mut deep = json!({ "type": "string" });
    for _ in 0..120 {
        deep = json!({ "type": "array", "items": deep });
    }
    let mut overlapping = json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] });
    let mut problems = Vec::new();
    for (grammar, part) in [
        (regex("(a"), "unclosed group"),
        (regex("a{3,1}"), "repetition"),
        (regex("(?=a)b"), "look-around"),
        (regex("é"), "no token of the model goes on"),
        (regex(&nested(100_000)), "nest"),
        (regex(&"a".repeat(300_000)), "a grammar may have 262144"),
        (schema(json!({ "type": "nonsense" })), "nonsense"),
        (schema(json!({ "type": "string", "minLength": 3, "maxLength": 1 })), "minLength"),
        (schema(json!({ "$ref": "#/nowhere" })), "nowhere"),
        (schema(json!({ "$ref": "https://example.org/schema.json" })), "example.org"),
        (schema(json!({ "type": "array", "uniqueItems": true })), "uniqueItems"),
        (schema(json!({ "type": "array", "x-guidance": { "lenient": true } })), "would follow the schema in part"),
        (schema(overlapping.clone()), "Use anyOf, or let the schema say \"x-guidance\": {\"coerce_one_of\": true}"),
        (Grammar::Choice(Vec::new()), "1 to 4096 texts"),
        (Grammar::Lark("start: nothing".into()), "nothing"),
        (Grammar::Lark("begin: \"a\"".into()), "start"),
        (Grammar::Lark(format!("start: {}", nested(100_000))), "nest"),
        (in_lark(json!({ "type": "integer", "maximun": 5 })), "`%json`: `maximun` is no keyword"),
        (in_lark(json!({ "minimum": (1u64 << 53) + 1 })), "`%json`: `minimum` 9007199254740993 would be rounded"),
        (in_lark(json!({ "type": "array", "x-guidance": { "lenient": true } })), "would follow the schema in part"),
        (in_lark(json!({ "type": "array", "uniqueItems": true })), "uniqueItems"),
        (Grammar::Lark("start: %json { \"maximum\": 5, \"maximum\": 6 }".into()), "the key `maximum` is given twice"),
    ] {
        let begun = std::time::Instant::now();
        let shown: String = format!("{grammar:?}").chars().take(80).collect();
        let reason = world.compile(&grammar, Start::OfText).map(drop).err().unwrap_or_else(|| "it is followed".into());
        if reason.is_empty() || reason.contains('\n') || !reason.contains(part) || begun.elapsed().as_secs() > 10 {
            problems.push(format!("{shown}, after {:?}: {reason:?}", begun.elapsed()));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    // The way out that is named.
    overlapping["x-guidance"] = json!({ "coerce_one_of": true });
    for compact in [false, true] {
        world.compile(&Grammar::Json { schema: overlapping.clone(), compact }, Start::OfText).map(drop).unwrap();
    }
    // Not refused, and done within a step's bounds, or given up by a reason.
    for grammar in [
        schema(deep),
        regex(&"ab".repeat(50_000)),
        regex("(.*a.{20}){3}|[^x]*"),
        regex("(a?){500}a{500}"),
        regex("(((a{0,1000}b){0,1000}c){0,1000}d){0,1000}"),
    ] {
        let shown: String = format!("{grammar:?}").chars().take(80).collect();
        match world.compile(&grammar, Start::OfText) {
            Err(reason) => assert!(!reason.is_empty() && !reason.contains('\n'), "{shown}: {reason}"),
            Ok(mut constraint) => {
                for _ in 0..50 {
                    let Ok(allowed) = constraint.allowed() else { break };
                    let token = (0..96).rfind(|id| allowed[id / 32] >> (id % 32) & 1 == 1).unwrap() as u32;
                    if constraint.push(token).unwrap_or(true) {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn the_fault_of_a_schema_is_told_without_a_model() {
    for (schema, words) in [
        (json!({ "type": "array", "uniqueItems": true }), "uniqueItems"),
        (json!({ "type": "object", "properties": { "a": { "type": "nonsense" } } }), "nonsense"),
        (json!({ "maximun": 5 }), "`maximun` is no keyword"),
        (json!({ "x-guidance": { "lenient": true } }), "would follow the schema in part"),
        (json!({ "$ref": "#/nowhere" }), "nowhere"),
        (json!({ "maximun": 5, "title": "a".repeat(300_000) }), "a grammar may have 262144"),
    ] {
        let fault = super::fault_of_schema(&schema).unwrap_or_default();
        assert!(fault.contains(words) && !fault.contains('\n'), "{words}: {fault:?}");
        let in_lark = format!("start: <a> b c\nb: %json true\nc: \"c\" %json {schema}");
        assert_eq!(super::fault_of_schemas(&in_lark), Some(fault), "{words}");
    }
    assert_eq!(super::fault_of_schemas("start: \"a\" b\nb: %json true"), None);
    for schema in [json!(true), json!({ "type": "object", "properties": { "a": { "type": "string" } } })] {
        assert_eq!(super::fault_of_schema(&schema), None, "{schema}");
    }
}

#[test]
fn completions_of_one_grammar_do_not_see_each_other() {
    let world = World::characters();
    let compiled = world.grammars.compile("grammar", &Grammar::Regex("(a|b|c){9}".into()), Start::OfText).unwrap();
    let alone = world.write(compiled.begin(), 3, 20);
    let (mut one, two) = (compiled.begin(), compiled.begin());
    one.push(alone.0[1]).unwrap();
    assert_eq!(world.write(two, 3, 20), alone);
    assert!(compiled.failure().is_none());
}

/// A grammar of a stranger is refused in one line, or followed for some tokens; nothing else comes of it.
#[test]
fn any_bytes_are_a_grammar_that_is_followed_or_refused() {
    let world = World::characters();
    let follow = |bytes: &[u8]| {
        let Some((kind, text)) = bytes.split_first() else { return };
        let Ok(text) = std::str::from_utf8(text) else { return };
        let grammar = match kind % 3 {
            0 => Grammar::Regex(text.to_owned()),
            1 => Grammar::Lark(text.to_owned()),
            _ => match serde_json::from_str(text) {
                Ok(schema) => Grammar::Json { schema, compact: kind % 2 == 1 },
                Err(_) => return,
            },
        };
        match world.compile(&grammar, Start::OfText) {
            Err(reason) => assert!(!reason.contains('\n'), "{reason}"),
            Ok(mut constraint) => {
                for step in 0..20 {
                    let Ok(allowed) = constraint.allowed() else { break };
                    let ids = 0..harness::tiny_model::CHARACTERS;
                    let tokens: Vec<usize> = ids.filter(|id| allowed[id / 32] >> (id % 32) & 1 == 1).collect();
                    let token = tokens[step * 7 % tokens.len()] as u32;
                    if world.ends.contains(&token) || constraint.push(token).unwrap_or(true) {
                        break;
                    }
                }
            }
        }
    };
    let schema = json!({ "type": "object", "properties": { "a": { "type": ["integer", "null"], "multipleOf": 3 },
        "b": { "type": "array", "items": { "$ref": "#/$defs/c" }, "minItems": 2 } }, "required": ["b"],
        "$defs": { "c": { "oneOf": [{ "const": "x" }, { "type": "string", "pattern": "^[a-z]+$",
            "format": "date" }] } } });
    let seeds = [
        "\0(?:a|b){2,3}[^c-e]+\\d*(?i:x)?.\\w",
        "\u{1}start: a+ | \"(\" start \")\"\na: /[0-9]{1,2}/ | B\nB: \"b\" (\"c\" | \"d\"..\"f\")? & ~/x/\n\
         %ignore /[ ]+/",
        "\u{1}start: \"%json {\" | /a\\/b/ | %json { \"type\": \"integer\", \"maximum\": 5 } // %json {",
        &format!("\u{2}{schema}"),
        "\u{5}{\"enum\": [1, \"a\", null, {\"b\": [2.5]}]}",
    ];
    harness::fuzz::explore("grammars", &seeds.map(|seed| seed.as_bytes().to_vec()), follow);
}
