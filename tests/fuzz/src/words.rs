//! Files of options, and answers and tool calls of models.

use std::path::Path;

use rollout_rewards::rules::{answer, arithmetic, countdown, expression, gsm8k, number, tags};
use serde_json::json;
use shared::config::layers;
use shared_chat::calls::{Format, Reader, Tools, parse};

use crate::text;

pub fn run_toml_seeds() -> Vec<Vec<u8>> {
    let all = layers::to_toml(&shared::config::TrainConfig::default());
    let some = "model = \"m\"\ndataset = [\"a.jsonl\", \"b.jsonl\"]\n# words\nlearning_rate = 1e-6\nreward_funcs = \
        [\"format\"]\n\
                reward_weights = [0.5]\n[guard]\nkl = 1\n";
    vec![all.into_bytes(), some.into(), b"beta = 0.1\r\nstop = ['''a''', \"\\u0041\"]".to_vec()]
}

/// A file that is read and written again is read as the same.
pub fn run_toml(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let path = Path::new("run.toml");
    if let Ok(config) = layers::parse(text, path, &Vec::new()) {
        let written = layers::to_toml(&config);
        let again = layers::parse(&written, path, &Vec::new()).expect("what was written is read");
        assert_eq!(layers::to_toml(&again), written);
    }
}

pub fn answer_seeds() -> Vec<Vec<u8>> {
    [
        "\\boxed{\\frac{1}{2}}\n0.5",
        "<answer>x^2 + 2x + 1</answer>\n(x+1)^2",
        "#### 1,234\n1234",
        "[1, 2) \\cup (3, \\infty)\n\\{1; 2\\}",
        "\\sqrt{2} \\text{ cm}^2\n141%",
        "(44 + 19) * 35 / 2 = 9\n44 19 35",
        "3 \\times 10^{-5} \\pi\n\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
        "<think>a</think>\n-7/8",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Two answers of a model, a line each, for every rule that reads answers. An answer always equals itself.
pub fn answer(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let (given, expected) = text.split_once('\n').unwrap_or((text, "0.5"));
    let _ = answer::compare(given, expected);
    assert!(answer::compare(given, given) != answer::Verdict::Different, "{given}");
    let _ = (answer::accuracy(given, expected), answer::boxed(given, expected), answer::numeric(given, expected));
    let _ = answer::reasoning_accuracy(given, expected, "</think>");
    let _ = (tags::format(given), tags::think_format(given), tags::correctness(given, expected));
    let _ = (gsm8k::score(given, expected), number::number(given), arithmetic::equations_hold(given));
    if let Some(found) = expression::evaluate(given) {
        assert!(!found.as_f64().is_nan(), "{given}");
    }
    let _ = countdown::score_equation(countdown::extract_equation(given), &[44, 19, 35], 98, 1.0, 0.1);
}

/// The first byte chooses the format, the second one where the turn is cut.
pub fn tool_calls_seeds() -> Vec<Vec<u8>> {
    [
        "<think>so</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"7\"}}\n</tool_call><|im_end|>",
        "text <tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>",
        "or</think>\n<tool_call>\n<function=f>\n<parameter=b>\n[1]\n</parameter>\n</function>\n</tool_call>",
        "\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>7</arg_value>\n</tool_call><|user|>",
        "{\"name\": \"f\", \"parameters\": {\"a\": 7, \"b\": [\"x\"]}}<|eot_id|>",
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant to=functions.f<|channel|>commentary \
         json<|message|>{\"a\": 7}<|call|>",
        "<|tool_call_start|>[f(a=7, b=['x', True]), g(c='it\'s', d={\"k\": null})]<|tool_call_end|><|im_end|>",
        "<|tool_call>call:f{a:7,b:[<|\"|>x<|\"|>],c:{k:null}}<tool_call|><|tool_response>",
    ]
    .iter()
    .zip(0..)
    .map(|(turn, format)| [&[format, 40], turn.as_bytes()].concat())
    .collect()
}

/// A turn in two pieces is the turn as a whole. One that was cut off is its own text, and one that calls tools has
/// objects for arguments.
pub fn tool_calls(bytes: &[u8]) {
    let [format, cut, turn @ ..] = bytes else { return };
    let Some(turn) = text(turn) else { return };
    let format = Format::ALL[usize::from(*format) % Format::ALL.len()];
    let types = json!({ "a": { "type": "integer" }, "b": { "type": "array" }, "c": { "anyOf": [{ "type": "null" }] } });
    let tools = Tools::new(&[json!({ "name": "f", "parameters": { "properties": types } })]);
    let _ = parse(format, "", turn, &tools);
    let at = (0..=turn.len().min((*cut).into())).rfind(|&at| turn.is_char_boundary(at)).unwrap_or(0);
    let read = |pieces: &[&str], ended: bool| {
        let mut reader = Reader::new(format, "", tools.clone());
        let mut text: String = pieces.iter().map(|piece| reader.push(piece)).collect();
        let end = reader.end(ended);
        text.push_str(&end.text);
        (text, end.calls)
    };
    let whole = read(&[turn], true);
    assert_eq!(read(&[&turn[..at], &turn[at..]], true), whole, "cut at {at}");
    assert_eq!(read(&[&turn[..at], &turn[at..]], false), (turn.to_owned(), Vec::new()), "cut off");
    assert!(whole.1.iter().all(|call| call.arguments.is_object()), "{whole:?}");
    assert!(!whole.1.is_empty() || whole.0 == turn, "text without a call stays: {whole:?}");
}
