//! Tool calls as clients see them. The generator repeats its prompt, so what a user writes is what the model calls.

use serde_json::{Value, json};

use crate::testing::{Endpoint, Setup};

const CALL: &str = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"1\"}}</tool_call>";

fn endpoint() -> Endpoint {
    Endpoint::start(Setup { max_model_len: 1000, ..Setup::default() })
}

/// A request whose answer is `u:` and these words, up to the full stop.
fn asked(words: &str, more: &Value) -> Value {
    let parameters = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": parameters } });
    let mut body = json!({ "messages": [{ "role": "user", "content": words }], "tools": [tool], "stop": ["."] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The message and the finish reason of every choice.
fn whole(endpoint: &Endpoint, body: &Value) -> Vec<(Value, Value)> {
    let answer = endpoint.post("/v1/chat/completions", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let choices = answer.json()["choices"].as_array().unwrap().clone();
    choices.into_iter().map(|choice| (choice["message"].clone(), choice["finish_reason"].clone())).collect()
}

/// The same, put together from the chunks of a stream as clients do it.
fn streamed(endpoint: &Endpoint, body: &Value, count: usize) -> Vec<(Value, Value)> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let chunks = endpoint.post("/v1/chat/completions", &body).chunks();
    let mut all = vec![(json!({ "content": "" }), Value::Null); count];
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
        let (message, reason) = &mut all[choice["index"].as_u64().unwrap() as usize];
        assert!(reason.is_null(), "nothing comes behind the reason");
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str() {
            assert!(message.get("tool_calls").is_none() || text.is_empty(), "text comes before calls");
            message["content"] = format!("{}{text}", message["content"].as_str().unwrap()).into();
        }
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = part["index"].as_u64().unwrap() as usize;
            let calls = message.as_object_mut().unwrap().entry("tool_calls").or_insert_with(|| json!([]));
            let calls = calls.as_array_mut().unwrap();
            if at == calls.len() {
                assert_eq!(part["function"]["arguments"], "");
                let function = json!({ "name": part["function"]["name"], "arguments": "" });
                calls.push(json!({ "id": part["id"], "type": part["type"], "function": function }));
            } else {
                assert!(part.get("id").is_none() && at + 1 == calls.len(), "{part}");
                let arguments = &mut calls[at]["function"]["arguments"];
                *arguments = part["function"]["arguments"].clone();
            }
        }
        *reason = choice["finish_reason"].clone();
    }
    all
}

/// A message without what differs between answers.
fn without_ids(message: &Value) -> Value {
    let mut calls = message.get("tool_calls").cloned().unwrap_or_default();
    for call in calls.as_array_mut().into_iter().flatten() {
        let id = call["id"].take();
        assert!(id.as_str().is_some_and(|id| id.starts_with("call_")), "{id}");
    }
    json!([message["content"].as_str().unwrap_or_default(), calls])
}

#[test]
fn calls_are_fields_of_the_answer_whole_and_as_a_stream() {
    let endpoint = endpoint();
    let call = json!({ "id": null, "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } });
    for (words, more, content, count, reason) in [
        (format!("so {CALL}."), json!({}), "u:so", 1, "tool_calls"),
        (format!("so {CALL}\n{CALL}."), json!({}), "u:so", 2, "tool_calls"),
        (format!("so {CALL}\n{CALL}."), json!({ "parallel_tool_calls": false }), "u:so", 1, "tool_calls"),
        (format!("so {CALL} and then."), json!({}), "u:so\nand then", 1, "tool_calls"),
        ("no call <tool_.".into(), json!({}), "u:no call <tool_", 0, "stop"),
        (format!("so {CALL}."), json!({ "tool_choice": "none" }), &format!("u:so {CALL}"), 0, "stop"),
        (format!("so {CALL}."), json!({ "tools": [] }), &format!("u:so {CALL}"), 0, "stop"),
        (format!("so {CALL}."), json!({ "max_tokens": 45 }), &format!("u:so {}", &CALL[..40]), 0, "length"),
        (
            "so <tool_call>{\"name\":5}</tool_call>.".into(),
            json!({}),
            "u:so <tool_call>{\"name\":5}</tool_call>",
            0,
            "stop",
        ),
    ] {
        let body = asked(&words, &more);
        let calls = if count > 0 { vec![call.clone(); count].into() } else { Value::Null };
        let (message, ended) = whole(&endpoint, &body).remove(0);
        assert_eq!((without_ids(&message), ended), (json!([content, calls]), json!(reason)), "{body}");
        let (message, ended) = streamed(&endpoint, &body, 1).remove(0);
        assert_eq!((without_ids(&message), ended), (json!([content, calls]), json!(reason)), "{body}");
    }
}

/// Each choice has calls of its own, and one without a word beside them has no content.
#[test]
fn every_choice_has_its_own_calls() {
    let endpoint = endpoint();
    // The third completion begins at the third token, that of the call.
    let body = asked(&format!("{CALL}{CALL}."), &json!({ "n": 4, "logprobs": true, "return_token_ids": true }));
    let choices = whole(&endpoint, &body);
    let of = |choice: usize| (choices[choice].0["content"].clone(), choices[choice].0["tool_calls"].clone());
    assert_eq!(of(0).0, "u:");
    assert_eq!(of(2).0, Value::Null);
    let ids: std::collections::BTreeSet<String> = (0..3)
        .flat_map(|choice| {
            of(choice).1.as_array().unwrap().iter().map(|call| call["id"].to_string()).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(ids.len(), 6, "ids are of one call each");
    let first = of(3);
    assert_eq!(first.0, CALL[1..]);
    assert_eq!(first.1.as_array().unwrap().len(), 1, "the first call had lost its beginning");
    for (whole, streamed) in choices.iter().zip(streamed(&endpoint, &body, 4)) {
        assert_eq!((without_ids(&whole.0), &whole.1), (without_ids(&streamed.0), &streamed.1));
    }
}

#[test]
fn a_call_and_its_reply_go_back_into_the_conversation() {
    let endpoint = endpoint();
    let mut body = asked(&format!("{CALL}."), &json!({ "return_token_ids": true }));
    let called = whole(&endpoint, &body).remove(0).0;
    let id = called["tool_calls"][0]["id"].clone();
    let reply = json!({ "role": "tool", "tool_call_id": id, "content": "5" });
    let messages = body["messages"].as_array_mut().unwrap();
    messages.extend([called, reply]);
    let answer = endpoint.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    body["messages"][2]["tool_call_id"] = "another".into();
    assert_eq!(endpoint.post("/v1/chat/completions", &body).refusal().1.as_deref(), Some("messages"));
}
