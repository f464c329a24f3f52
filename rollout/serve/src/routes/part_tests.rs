//! Log-probs of tokens that are parts of characters, with a tokenizer that has a token for each byte.

use rollout::data::Tokenizer;
use serde_json::{Value, json};
use shared::ModelDir;

use crate::testing::{Endpoint, Setup};

/// A character of three bytes.
const WORD: &str = "觶";

/// The token of a byte: `<0x00>` has id 3.
fn byte(byte: u8) -> u32 {
    u32::from(byte) + 3
}

/// An endpoint whose generator repeats its prompt; a chat is the first message alone.
fn endpoint(test: &str) -> Option<Endpoint> {
    let data = harness::data_dir(test)?;
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(data.join("stories260K")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let tokenizer = Tokenizer::open(&ModelDir::open(folder.path()).unwrap()).unwrap();
    Some(Endpoint::with_tokenizer(Setup::default(), tokenizer))
}

/// The first choice of an answer, whole and as its chunks.
fn answers(endpoint: &Endpoint, path: &str, mut body: Value) -> (Value, Vec<Value>) {
    let answer = endpoint.post(path, &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    body["stream"] = true.into();
    let chunks = endpoint.post(path, &body).chunks();
    (answer.json()["choices"][0].clone(), chunks.iter().map(|chunk| chunk["choices"][0].clone()).collect())
}

/// A list of the log-probs of chunks.
fn list(chunks: &[Value], name: &str) -> Vec<Value> {
    chunks.iter().filter_map(|chunk| chunk["logprobs"][name].as_array()).flatten().cloned().collect()
}

#[test]
fn the_tokens_of_a_completion_are_its_text_also_if_that_ends_within_a_character() {
    let test = "the_tokens_of_a_completion_are_its_text_also_if_that_ends_within_a_character";
    let Some(endpoint) = endpoint(test) else { return };
    let ids: Vec<u32> = WORD.bytes().map(byte).collect();
    for (prompt, max_tokens, echo, text) in [
        (&ids[..], 5, false, "觶\u{fffd}\u{fffd}"),
        (&ids[..], 6, true, "觶觶觶"),
        (&ids[..2], 0, true, "\u{fffd}\u{fffd}"),
        (&ids[..1], 2, true, "\u{fffd}\u{fffd}\u{fffd}"),
    ] {
        let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "echo": echo, "logprobs": 0 });
        let (whole, chunks) = answers(&endpoint, "/v1/completions", body.clone());
        assert_eq!(whole["text"], text, "{body}");
        let tokens = whole["logprobs"]["tokens"].as_array().unwrap();
        let mut joined = String::new();
        for (token, offset) in tokens.iter().zip(whole["logprobs"]["text_offset"].as_array().unwrap()) {
            assert_eq!(json!(joined.chars().count()), *offset, "{body}: {whole}");
            joined += token.as_str().unwrap();
        }
        assert_eq!(joined, text, "{body}: {whole}");
        for name in ["tokens", "text_offset", "token_logprobs"] {
            assert_eq!(json!(list(&chunks, name)), whole["logprobs"][name], "{body}");
        }
        let streamed: String = chunks.iter().filter_map(|chunk| chunk["text"].as_str()).collect();
        assert_eq!(streamed, text, "{body}");
    }
}

#[test]
fn each_of_the_likeliest_tokens_of_a_completion_has_a_name_of_its_own() {
    let Some(endpoint) = endpoint("each_of_the_likeliest_tokens_of_a_completion_has_a_name_of_its_own") else { return };
    let body = json!({ "prompt": [byte(0xe8)], "max_tokens": 1, "logprobs": 4 });
    let (whole, _) = answers(&endpoint, "/v1/completions", body);
    let named = |of: u8| format!("token_id:{}", byte(of));
    let top = json!([{ named(0xe9): -0.125, "\u{fffd}": -0.25, named(0xe7): -0.375, named(0xe6): -0.5 }]);
    assert_eq!((&whole["logprobs"]["tokens"], &whole["logprobs"]["top_logprobs"]), (&json!(["\u{fffd}"]), &top));
}

#[test]
fn the_bytes_of_the_tokens_of_a_chat_are_those_of_its_answer() {
    let Some(endpoint) = endpoint("the_bytes_of_the_tokens_of_a_chat_are_those_of_its_answer") else { return };
    let body = json!({ "messages": [{ "role": "user", "content": WORD }], "max_tokens": 4, "logprobs": true,
        "top_logprobs": 3 });
    let (whole, chunks) = answers(&endpoint, "/v1/chat/completions", body);
    assert_eq!(whole["message"]["content"], WORD);
    let content = whole["logprobs"]["content"].as_array().unwrap();
    // SentencePiece puts a space before a text, which the answer does not have.
    let bytes: Vec<&Value> = content.iter().map(|entry| &entry["bytes"]).collect();
    assert_eq!(json!(bytes), json!([[], [0xe8], [0xa7], [0xb6]]));
    for (entry, of) in content[1..].iter().zip(WORD.bytes()) {
        let part = |of: u8, logprob: f64| json!({ "token": "\u{fffd}", "logprob": logprob, "bytes": [of] });
        let top = json!([part(of + 1, -0.125), part(of, -0.25), part(of - 1, -0.375)]);
        let expected = json!({ "token": "\u{fffd}", "logprob": -0.25, "bytes": [of], "top_logprobs": top });
        assert_eq!(*entry, expected);
    }
    assert_eq!(list(&chunks, "content"), *content);
}
