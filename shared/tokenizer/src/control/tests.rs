//! Control tokens that texts bring along stay text, whatever the tokenizer.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn added(id: u32, content: &str, special: bool, rstrip: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": rstrip, "normalized": false,
           "special": special})
}

fn parse(json: &Value) -> TextTokenizer {
    TextTokenizer::parse(json.to_string().as_bytes(), "tokenizer.json".into()).unwrap()
}

/// One token per byte, `<|end|>` and `<|long|end|>` special, `<call>` a token that the template writes, `<other>` one
/// that it does not.
fn bytes(rstrip: bool) -> TextTokenizer {
    parse(&bytes_json(rstrip))
}

fn bytes_json(rstrip: bool) -> Value {
    let mut alphabet: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let vocab: serde_json::Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), Value::from(id))).collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "added_tokens": [added(256, "<|end|>", true, rstrip), added(257, "<|long|end|>", true, false),
                         added(258, "<call>", false, false), added(259, "<other>", false, false)],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// As [`bytes`], behind a normaliser that makes `<call>` and `<|end|>` of wide signs too.
fn normalising() -> TextTokenizer {
    let mut json = bytes_json(false);
    json["normalizer"] = json!({"type": "NFKC"});
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["normalized"] = true.into();
    }
    parse(&json)
}

/// Pieces of words with a space before the first word of a text. The model itself knows `<|end|>` as a piece.
fn pieces() -> TextTokenizer {
    let mut vocab = vec![json!(["<unk>", 0.0]), json!(["<|end|>", 0.0]), json!(["▁a", -1.0]), json!(["ab", -1.5])];
    vocab.extend("▁ab<>|end\ncl".chars().map(|c| json!([c.to_string(), -4.0])));
    let next = vocab.len() as u32;
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    parse(&json!({
        "added_tokens": [added(0, "<unk>", true, false), added(1, "<|end|>", true, false),
                         added(next, "<call>", false, false)],
        "pre_tokenizer": metaspace, "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false},
    }))
}

/// Whole words, among which is `<|end|>`.
fn words() -> TextTokenizer {
    parse(&json!({
        "added_tokens": [added(1, "<|end|>", true, false), added(4, "<call>", false, false)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<|end|>": 1, "a": 2, "ab": 3}, "unk_token": "<unk>"},
    }))
}

fn control(tokenizer: &TextTokenizer) -> ControlTokens {
    tokenizer.control_tokens(|text| text == "<call>")
}

/// A part of a rendered prompt.
#[derive(Debug, Clone)]
enum Part {
    Template(&'static str),
    Text(String),
}

/// Ids of the parts as one prompt, and the prompt as text.
fn encode(tokenizer: &TextTokenizer, parts: &[Part]) -> (Vec<u32>, String) {
    let control = control(tokenizer);
    let values: Vec<Value> = parts
        .iter()
        .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str().into()) } else { None })
        .collect();
    let marks = Marks::unused_in(&values, |_| false).unwrap();
    let marked: String = parts
        .iter()
        .map(|part| match part {
            Part::Template(text) => (*text).to_owned(),
            Part::Text(text) => control.mark(&text.as_str().into(), &marks).as_str().unwrap().to_owned(),
        })
        .collect();
    let ids = tokenizer.encode_marked(&marked, &marks, &control, true).unwrap();
    (ids, marks.removed_from(&marked))
}

/// The control tokens among ids; a character that the tokenizer does not know is none.
fn controls(tokenizer: &TextTokenizer, ids: &[u32]) -> Vec<String> {
    let control = control(tokenizer);
    ids.iter().filter_map(|&id| control.text(id)).filter(|text| *text != "<unk>").map(str::to_owned).collect()
}

fn part() -> impl Strategy<Value = Part> {
    let written = prop::sample::select(vec!["<|end|>", "<call>", "\n", "a", " ab ", ">", "<|end|>\n"]);
    let word = prop::sample::select(vec![
        "<|end|>",
        "<call>",
        "<|long|end|>",
        "<other>",
        "<",
        "<|",
        "<|en",
        "d|>",
        "|end|>",
        ">",
        "all>",
        "<c",
        "a",
        "ab",
        " ",
        "\n",
        "é",
        "",
    ]);
    prop_oneof![
        written.prop_map(Part::Template),
        prop::collection::vec(word, 0..5).prop_map(|words| Part::Text(words.concat())),
    ]
}

proptest! {
    /// Control tokens come from the template alone and in its order, and a prompt without others is encoded as ever.
    #[test]
    fn control_tokens_come_from_the_template_alone(parts in prop::collection::vec(part(), 0..8)) {
        let written: Vec<&str> = parts
            .iter()
            .filter_map(|part| if let Part::Template(text) = part { Some(text.trim()) } else { None })
            .filter(|text| ["<|end|>", "<call>"].contains(text))
            .collect();
        for tokenizer in [bytes(false), bytes(true), normalising(), pieces(), words()] {
            let (ids, plain) = encode(&tokenizer, &parts);
            prop_assert_eq!(controls(&tokenizer, &ids), written.clone(), "{}", plain);
            let as_ever = tokenizer.encode(&plain, false).unwrap();
            if controls(&tokenizer, &as_ever) == written && !has_control_token(&tokenizer, &parts) {
                prop_assert_eq!(&ids, &as_ever, "{}", plain);
            }
        }
        let (ids, plain) = encode(&bytes(false), &parts);
        prop_assert_eq!(bytes(false).decode_all(&ids).unwrap(), plain);
    }
}

fn has_control_token(tokenizer: &TextTokenizer, parts: &[Part]) -> bool {
    let control = control(tokenizer);
    let has = |text: &str| text.char_indices().any(|(at, _)| control.at_start(&text[at..]).is_some());
    parts.iter().any(|part| matches!(part, Part::Text(text) if has(text)))
}

#[test]
fn a_token_that_the_template_does_not_write_is_what_it_was() {
    let tokenizer = bytes(false);
    let text = |text: &str| vec![Part::Text(text.to_owned())];
    assert_eq!(encode(&tokenizer, &text("<other>")).0, [259]);
    assert_eq!(encode(&tokenizer, &text("<call>")).0.len(), 6, "a byte each");
    let spaces = tokenizer.control_tokens(|_| true);
    assert!(spaces.contains("<other>") && !spaces.contains("<other") && spaces.text(258) == Some("<call>"));
}

#[test]
fn a_token_that_a_text_begins_and_the_template_ends_is_text() {
    let tokenizer = bytes(false);
    let parts = [Part::Template("<|end|>"), Part::Text("a<cal".into()), Part::Template("l>"), Part::Template("<call>")];
    let (ids, text) = encode(&tokenizer, &parts);
    assert_eq!(text, "<|end|>a<call><call>");
    assert_eq!(controls(&tokenizer, &ids), ["<|end|>", "<call>"]);
    assert_eq!(ids.len(), 1 + 1 + 6 + 1);
}

/// With a space before the first word of a text, a word behind a control token must have none.
#[test]
fn what_stands_behind_a_control_token_that_is_text_does_not_begin_a_text() {
    let tokenizer = pieces();
    let (ids, _) =
        encode(&tokenizer, &[Part::Text("a<|end|>ab".into()), Part::Template("<|end|>"), Part::Text("ab".into())]);
    let one = |text: &str| tokenizer.encode(text, false).unwrap();
    assert_eq!(ids[0], one("a")[0]);
    let behind = &one("<call>ab")[1..];
    assert!(ids.ends_with(&[&[1], behind].concat()), "{ids:?}");
    assert_eq!(ids[ids.len() - 2 * behind.len() - 1..][..behind.len()], *behind, "{ids:?}");
    assert!(!ids[..ids.len() - 2].contains(&1), "{ids:?}");
}

#[test]
fn a_token_that_a_normaliser_makes_of_other_signs_is_text() {
    let tokenizer = normalising();
    let wide = "\u{ff1c}call\u{ff1e}";
    assert_eq!(controls(&tokenizer, &tokenizer.encode(wide, false).unwrap()), ["<call>"]);
    let (ids, _) = encode(&tokenizer, &[Part::Text(format!("a{wide}b")), Part::Template("<call>")]);
    assert_eq!(tokenizer.decode_all(&ids).unwrap(), "a<call>b<call>");
    assert_eq!(controls(&tokenizer, &ids), ["<call>"]);
}

#[test]
fn a_token_of_one_character_that_the_model_has_for_nothing_else_is_refused() {
    let tokenizer = parse(&json!({
        "added_tokens": [added(1, "¶", true, false)],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "¶": 1}, "unk_token": "a"},
    }));
    let control = tokenizer.control_tokens(|_| false);
    let text = Value::from("a¶");
    let marks = Marks::unused_in([&text], |_| false).unwrap();
    let marked = control.mark(&text, &marks);
    let refused = tokenizer.encode_marked(marked.as_str().unwrap(), &marks, &control, true).unwrap_err();
    assert!(refused.contains("`¶` stands in a text"), "{refused}");
    assert_eq!(tokenizer.encode_marked("¶", &marks, &control, true).unwrap(), [1], "the template may write it");
}

#[test]
fn marks_are_characters_that_no_text_has() {
    let last = '\u{2a6df}';
    let value = json!({"a": [format!("x{last}"), 5, null]});
    let marks = Marks::unused_in([&value], |c| c == '\u{2a6de}').unwrap();
    assert_eq!([marks.open, marks.close, marks.seam], ['\u{2a6dd}', '\u{2a6dc}', '\u{2a6db}']);
    let key = json!({ "\u{2a6df}": 1 });
    assert_eq!(Marks::unused_in([&key], |_| false).unwrap().open, '\u{2a6de}');
    let all = Value::from(('\u{20000}'..=last).collect::<String>());
    assert!(Marks::unused_in([&all], |_| false).is_none());
}

#[test]
fn keys_and_lists_are_marked_as_texts_are() {
    let tokenizer = bytes(false);
    let control = control(&tokenizer);
    let value = json!({"<call>": ["b<|end|>", true, 3, {"k": "a<"}]});
    let marks = Marks::unused_in([&value], |_| false).unwrap();
    let (open, close, seam) = (marks.open, marks.close, marks.seam);
    let inner = json!([format!("b{open}<|end|>{close}"), true, 3, {"k": format!("a<{seam}")}]);
    let expected: Value = [(format!("{open}<call>{close}"), inner)].into_iter().collect();
    assert_eq!(control.mark(&value, &marks), expected);
}

#[test]
fn what_the_policy_said_keeps_its_tokens_that_are_not_special() {
    let tokenizer = bytes(false);
    let control = control(&tokenizer);
    let said = json!([{"type": "text", "text": "<call>a<|end|>"}]);
    let marks = Marks::unused_in([&said], |_| false).unwrap();
    let (open, close) = (marks.open, marks.close);
    let marked = control.mark_special(&said, &marks);
    assert_eq!(marked, json!([{"type": "text", "text": format!("<call>a{open}<|end|>{close}")}]));
    let ids = tokenizer.encode_marked(marked[0]["text"].as_str().unwrap(), &marks, &control, true).unwrap();
    assert_eq!(controls(&tokenizer, &ids), ["<call>"]);
}

#[test]
fn marks_are_found_in_escapes_of_json() {
    let marks = Marks::unused_in([], |_| false).unwrap();
    let [place, _] = marks.places;
    assert_eq!(marks.unescaped_in(r"\ud869\udedf|\ud869\uded7\u00e9"), format!("{}|\\ud869\\uded7\\u00e9", marks.open));
    assert_eq!(marks.unescaped_in(r"a\ud869\udedc"), format!("a{place}"));
}
