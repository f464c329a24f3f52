//! The endpoint as its clients see it, over real sockets, with a generator without a model.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
    time::{Duration, Instant},
};

use rollout::data::Tokenizer;
use serde_json::{Value, json};
use shared::ModelDir;

use crate::testing::{Answer, Endpoint, MAX_MODEL_LEN, Setup, tokenizer};

/// An endpoint whose completions go on for a while.
fn slow(setup: Setup) -> Endpoint {
    Endpoint::start(Setup { pace: Duration::from_millis(50), ..setup })
}

/// A body whose answer has many tokens.
fn long(more: &Value) -> Value {
    let mut body = json!({ "prompt": "ab", "max_tokens": 90 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn completions_of_all_prompts_come_in_order_with_their_counts() {
    let endpoint = Endpoint::start(Setup::default());
    let answer = endpoint.post("/v1/completions", &json!({ "prompt": ["ab", "xyz."], "n": 2, "max_tokens": 5 }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let json = answer.json();
    let texts: Vec<_> = json["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    assert_eq!(texts, ["ababa", "babab", "xyz.", "yz."]);
    let reasons: Vec<_> = json["choices"].as_array().unwrap().iter().map(|c| c["finish_reason"].clone()).collect();
    assert_eq!(reasons, ["length", "length", "stop", "stop"]);
    assert_eq!(json["choices"][3]["index"], 3);
    assert_eq!(json["usage"], json!({ "prompt_tokens": 6, "completion_tokens": 17, "total_tokens": 23 }));
    assert_eq!((&json["object"], &json["model"]), (&json!("text_completion"), &json!("parrot")));
    assert!(json["id"].as_str().unwrap().starts_with("cmpl-"));
}

#[test]
fn a_stream_is_the_whole_answer_in_pieces() {
    let endpoint = Endpoint::start(Setup::default());
    for body in [
        json!({ "prompt": "hello there. ", "n": 3, "max_tokens": 40 }),
        json!({ "prompt": ["abc", "cab"], "n": 2, "max_tokens": 20, "stop": ["bca", "zz"] }),
        json!({ "prompt": "abc", "max_tokens": 4, "stop": ["cab"], "logprobs": 0, "return_token_ids": true }),
        json!({ "prompt": "aab", "max_tokens": 5, "stop": "abb" }),
    ] {
        let whole = endpoint.post("/v1/completions", &body).json();
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        streamed["stream_options"] = json!({ "include_usage": true });
        let chunks = endpoint.post("/v1/completions", &streamed).chunks();
        let (last, chunks) = chunks.split_last().unwrap();
        assert_eq!((&last["usage"], &last["choices"]), (&whole["usage"], &json!([])));
        assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == last["id"]));
        for choice in whole["choices"].as_array().unwrap() {
            let of = |field: &str| -> Vec<Value> {
                let all = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
                all.filter(|part| part["index"] == choice["index"]).map(|part| part[field].clone()).collect()
            };
            let text: String = of("text").iter().map(|text| text.as_str().unwrap()).collect();
            assert_eq!(text, choice["text"].as_str().unwrap(), "{body}");
            let reasons = of("finish_reason");
            let (reason, before) = reasons.split_last().unwrap();
            assert_eq!(reason, &choice["finish_reason"]);
            assert!(before.iter().all(Value::is_null));
            if body["return_token_ids"] == true {
                let ids: Vec<Value> = of("token_ids").iter().filter_map(Value::as_array).flatten().cloned().collect();
                assert_eq!(json!(ids), choice["token_ids"]);
                assert_eq!(of("prompt_token_ids")[0], choice["prompt_token_ids"]);
                let names: Vec<Value> =
                    of("logprobs").iter().filter_map(|l| l["tokens"].as_array().cloned()).flatten().collect();
                assert_eq!(json!(names), choice["logprobs"]["tokens"]);
                assert_eq!(names[0], format!("token_id:{}", ids[0]));
            }
        }
    }
}

#[test]
fn a_stop_string_and_what_follows_it_are_left_out() {
    let endpoint = Endpoint::start(Setup::default());
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "one two ", "max_tokens": 30 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let choice = endpoint.post("/v1/completions", &body).json()["choices"][0].clone();
        (choice["text"].as_str().unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(ask(json!({ "stop": "two" })), ("one ".into(), "stop".into()));
    assert_eq!(ask(json!({ "stop": ["three", "wo o"] })), ("one t".into(), "stop".into()));
    assert_eq!(ask(json!({ "stop": ["never"] })).1, "length");
    let t = tokenizer().encode("t", false).unwrap();
    assert_eq!(ask(json!({ "stop_token_ids": t })), ("one t".into(), "stop".into()));
}

/// Where a token is a word with a space before it, that space falls away at the beginning of a text alone.
#[test]
fn a_completion_goes_on_with_the_text_of_its_prompt() {
    let Some(data) = harness::data_dir("a_completion_goes_on_with_the_text_of_its_prompt") else { return };
    let tokenizer = Tokenizer::open(&ModelDir::open(data.join("stories260K")).unwrap()).unwrap();
    let tokens = tokenizer.encode("upon a time", false).unwrap().len();
    let endpoint = Endpoint::with_tokenizer(Setup::default(), tokenizer);
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "upon a time", "add_special_tokens": false, "max_tokens": tokens });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        endpoint.post("/v1/completions", &body)
    };
    let texts = |choice: &Value| -> String {
        choice["logprobs"]["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect()
    };
    let choice = &ask(json!({ "logprobs": 0 })).json()["choices"][0];
    assert_eq!((&choice["text"], texts(choice)), (&json!(" upon a time"), " upon a time".into()));
    let choice = &ask(json!({ "logprobs": 0, "echo": true })).json()["choices"][0];
    assert_eq!((&choice["text"], texts(choice)), (&json!("upon a time upon a time"), "upon a time upon a time".into()));
    let choice = &ask(json!({ "stop": " upon" })).json()["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("stop")));
    let chunks = ask(json!({ "stream": true })).chunks();
    let streamed: String = chunks.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, " upon a time");
}

#[test]
fn log_probs_are_those_of_the_distribution_that_was_drawn_from() {
    let endpoint = Endpoint::start(Setup::default());
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "ab", "max_tokens": 2 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        endpoint.post("/v1/completions", &body).json()["choices"][0]["logprobs"].clone()
    };
    assert_eq!(ask(json!({})), Value::Null);
    let drawn = json!({ "tokens": ["a", "b"], "token_logprobs": [-0.25, -0.25], "top_logprobs": null,
        "text_offset": [0, 1] });
    assert_eq!(ask(json!({ "logprobs": 0 })), drawn);
    let greedy = ask(json!({ "logprobs": 1, "temperature": 0 }));
    assert_eq!(greedy["token_logprobs"], json!([-0.5, -0.5]), "at temperature 1, since 0 has none");
    assert_eq!(greedy["top_logprobs"], json!([{ "a": -0.5 }, { "b": -0.5 }]));
}

/// Of the parrot, the token behind the drawn one in the vocabulary is likelier, and those before it are less likely.
#[test]
fn the_likeliest_tokens_stand_beside_the_drawn_one_which_is_among_them_or_added() {
    let endpoint = Endpoint::start(Setup::default());
    let ask = |path: &str, more: Value| {
        let mut body = json!({ "max_tokens": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = endpoint.post(path, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["choices"][0]["logprobs"].clone()
    };
    let texts =
        |count: u32| ask("/v1/completions", json!({ "prompt": "d", "logprobs": count }))["top_logprobs"].clone();
    assert_eq!(texts(0), Value::Null);
    assert_eq!(texts(1), json!([{ "e": -0.125, "d": -0.25 }]));
    assert_eq!(texts(2), json!([{ "e": -0.125, "d": -0.25 }]));
    assert_eq!(texts(3), json!([{ "e": -0.125, "d": -0.25, "c": -0.375 }]));
    let named = |id: u32| format!("token_id:{id}");
    let d = tokenizer().encode("d", false).unwrap()[0];
    let ids = json!({ "prompt": "d", "logprobs": 1, "return_tokens_as_token_ids": true });
    assert_eq!(ask("/v1/completions", ids)["top_logprobs"], json!([{ named(d + 1): -0.125, named(d): -0.25 }]));

    // The template begins with the role.
    let chat = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "d", "content": "x" }], "logprobs": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let content = ask("/v1/chat/completions", body)["content"].clone();
        assert_eq!(content.as_array().unwrap().len(), 1);
        (content[0]["token"].clone(), content[0]["top_logprobs"].clone())
    };
    let entry = |token: &str, logprob: f64| json!({ "token": token, "logprob": logprob, "bytes": token.as_bytes() });
    let (e, d_entry, c) = (entry("e", -0.125), entry("d", -0.25), entry("c", -0.375));
    assert_eq!(chat(json!({})), (json!("d"), json!([])));
    assert_eq!(chat(json!({ "top_logprobs": 1 })), (json!("d"), json!([e, d_entry])), "the drawn one is added");
    assert_eq!(chat(json!({ "top_logprobs": 3 })), (json!("d"), json!([e, d_entry, c])));
    assert_eq!(chat(json!({ "top_logprobs": 1, "temperature": 0 })).1, json!([entry("d", -0.5)]));
    let by_id = |id: u32, logprob: f64| json!({ "token": named(id), "logprob": logprob, "bytes": null });
    let as_ids = chat(json!({ "top_logprobs": 2, "return_tokens_as_token_ids": true }));
    assert_eq!(as_ids, (json!(named(d)), json!([by_id(d + 1, -0.125), by_id(d, -0.25)])));

    // A special token has a name, though it is no part of a text.
    let below = ask("/v1/completions", json!({ "prompt": "\n", "logprobs": 3 }))["top_logprobs"][0].clone();
    assert_eq!(below, json!({ " ": -0.125, "\n": -0.25, "<eos>": -0.375 }));
}

#[test]
fn an_echo_comes_as_a_stream_too() {
    let endpoint = Endpoint::start(Setup::default());
    for body in [
        json!({ "prompt": ["abc", "xy"], "n": 2, "max_tokens": 3 }),
        json!({ "prompt": ["abc", "xy"], "n": 2, "max_tokens": 0, "logprobs": 2 }),
        json!({ "prompt": ["abc", "xy"], "n": 3, "max_tokens": 4, "logprobs": 0, "return_token_ids": true }),
        json!({ "prompt": "hello. ", "max_tokens": 40, "logprobs": 3, "return_tokens_as_token_ids": true }),
    ] {
        let mut body = body;
        body["echo"] = true.into();
        let whole = endpoint.post("/v1/completions", &body).json();
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = endpoint.post("/v1/completions", &body).chunks();
        assert_eq!(chunks.last().unwrap()["usage"], whole["usage"], "{body}");
        for choice in whole["choices"].as_array().unwrap() {
            let parts: Vec<&Value> = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()).collect();
            let parts: Vec<&Value> = parts.into_iter().filter(|part| part["index"] == choice["index"]).collect();
            let text: String = parts.iter().map(|part| part["text"].as_str().unwrap()).collect();
            assert_eq!(text, choice["text"].as_str().unwrap(), "{body}");
            assert_eq!(parts.last().unwrap()["finish_reason"], choice["finish_reason"], "{body}");
            assert!(parts[..parts.len() - 1].iter().all(|part| part["finish_reason"].is_null()), "{body}");
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let all: Vec<Value> =
                    parts.iter().filter_map(|part| part["logprobs"][list].as_array().cloned()).flatten().collect();
                let expected = choice["logprobs"][list].as_array().cloned().unwrap_or_default();
                assert_eq!(all, expected, "{body}: {list}");
            }
        }
    }
    let damaged = json!({ "prompt": "ab?", "echo": true, "logprobs": 1, "stream": true });
    assert_eq!(endpoint.post("/v1/completions", &damaged).refusal().0, 500, "before the stream begins");
}

#[test]
fn an_echo_has_the_log_probs_of_the_prompt_and_generates_nothing_if_asked_for_nothing() {
    let endpoint = Endpoint::start(Setup::default());
    let all = json!({ "prompt": ["abc", "xy"], "echo": true, "logprobs": 1, "temperature": 0 });
    let body = |tokens: u32| {
        let mut body = all.clone();
        body["max_tokens"] = tokens.into();
        body
    };
    for tokens in [0, 1] {
        let json = endpoint.post("/v1/completions", &body(tokens)).json();
        let choice = &json["choices"][0];
        let drawn = ["", "a"][tokens as usize];
        assert_eq!(choice["text"], format!("abc{drawn}"));
        let logprobs = &choice["logprobs"];
        let figures = logprobs["token_logprobs"].as_array().unwrap();
        assert_eq!(figures[..3], [Value::Null, json!(-1.0), json!(-2.0)]);
        assert_eq!(figures.len(), 3 + tokens as usize);
        assert_eq!(logprobs["tokens"].as_array().unwrap()[..3], ["a", "b", "c"]);
        assert_eq!(logprobs["top_logprobs"][0], Value::Null);
        assert_eq!(logprobs["top_logprobs"][1], json!({ "b": -1.0, "c": -0.5 }));
        assert_eq!(logprobs["text_offset"].as_array().unwrap()[..3], [0, 1, 2]);
        assert_eq!(json["choices"][1]["text"], format!("xy{}", ["", "x"][tokens as usize]));
        assert_eq!(json["usage"]["completion_tokens"], 2 * tokens);
    }
    assert_eq!(endpoint.seen.lock().unwrap().begun.len(), 2, "the engine is asked only where a token is wanted");
    let damaged = json!({ "prompt": "ab?", "max_tokens": 0, "echo": true, "logprobs": 1, "temperature": 0 });
    assert_eq!(endpoint.post("/v1/completions", &damaged).refusal().0, 500, "a log-prob that is no number");
}

#[test]
fn a_chat_is_answered_whole_and_as_a_stream() {
    let endpoint = Endpoint::start(Setup::default());
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi." }], "max_tokens": 9, "logprobs": true,
        "return_token_ids": true });
    let json = endpoint.post("/v1/chat/completions", &body).json();
    let choice = &json["choices"][0];
    assert_eq!(choice["message"], json!({ "role": "assistant", "content": "u:hi.", "refusal": null }));
    assert_eq!((&json["object"], &choice["finish_reason"]), (&json!("chat.completion"), &json!("stop")));
    let ids = tokenizer().encode("u:hi.", false).unwrap();
    assert_eq!(choice["token_ids"], json!(ids));
    assert_eq!(json["prompt_token_ids"], json!(tokenizer().encode("u:hi.\na:", false).unwrap()));
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), ids.len());
    let first = json!({ "token": format!("token_id:{}", ids[0]), "logprob": -0.25, "bytes": null, "top_logprobs": [] });
    assert_eq!(content[0], first);
    body["return_token_ids"] = false.into();
    let named = endpoint.post("/v1/chat/completions", &body).json();
    let first = json!({ "token": "u", "logprob": -0.25, "bytes": [117], "top_logprobs": [] });
    assert_eq!(named["choices"][0]["logprobs"]["content"][0], first);
    body["stream"] = true.into();
    let chunks = endpoint.post("/v1/chat/completions", &body).chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "u:hi.");
    let last = chunks.last().unwrap();
    assert_eq!(
        (&last["object"], &last["choices"][0]["finish_reason"]),
        (&json!("chat.completion.chunk"), &json!("stop"))
    );
}

#[test]
fn ids_go_in_and_come_out_as_they_are() {
    let endpoint = Endpoint::start(Setup::default());
    let body = json!({ "model": "parrot", "token_ids": [5, 6], "sampling_params": { "temperature": 1.0, "max_tokens": 3,
        "stop_token_ids": [7], "logprobs": 1, "skip_special_tokens": false, "routed_experts_prompt_start": 185 } });
    let answer = endpoint.ask("POST", "/inference/v1/generate", "X-Session-ID: 1\r\n", &body.to_string());
    let json = answer.json();
    assert_eq!(json["choices"][0]["token_ids"], json!([5, 6, 5]), "{answer:?}");
    let entries = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries[1], json!({ "token": "token_id:6", "logprob": -0.25 }));
    assert_eq!((&json["choices"][0]["finish_reason"], json["request_id"].is_string()), (&json!("length"), true));
}

#[test]
fn texts_are_tokenised_as_requests_are() {
    let endpoint = Endpoint::start(Setup::default());
    let ids = tokenizer().encode("hi", true).unwrap();
    let expected = json!({ "count": 2, "max_model_len": MAX_MODEL_LEN, "tokens": ids });
    assert_eq!(endpoint.post("/tokenize", &json!({ "prompt": "hi" })).json(), expected);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let talk = endpoint.post("/tokenize", &json!({ "messages": messages })).json();
    assert_eq!(talk["tokens"], json!(tokenizer().encode("u:hi\na:", false).unwrap()));
    assert_eq!(endpoint.post("/detokenize", &json!({ "tokens": ids })).json(), json!({ "prompt": "hi" }));
}

#[test]
fn the_model_and_its_length_are_listed() {
    let endpoint = Endpoint::start(Setup::default());
    let model = endpoint.ask("GET", "/v1/models", "", "").json()["data"][0].clone();
    assert_eq!((&model["id"], &model["max_model_len"]), (&json!("parrot"), &json!(MAX_MODEL_LEN)));
    assert_eq!((&model["parent"], model["root"].as_str()), (&Value::Null, Some("parrot")));
    assert_eq!(endpoint.ask("GET", "/v1/models/parrot", "", "").json(), model);
    let other = endpoint.ask("GET", "/v1/models/some/other", "", "").refusal();
    assert_eq!(other, (404, Some("model".into()), Some("model_not_found".into())));
    assert_eq!(endpoint.ask("GET", "/health", "", "").status, 200);
}

#[test]
fn requests_load_adapters_only_where_a_flag_lets_them_and_with_the_key() {
    let body = json!({ "lora_name": "a", "lora_path": "/tmp" });
    for (key, status, part) in [(None, 403, "--allow-runtime-lora-updating"), (Some("k"), 401, "API key")] {
        let endpoint = Endpoint::start(Setup { key, ..Setup::default() });
        for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
            let answer = endpoint.post(path, &body);
            assert_eq!(answer.refusal().0, status, "{path}");
            assert!(answer.text.contains(part), "{answer:?}");
        }
    }
}

#[test]
fn whatever_cannot_be_answered_is_refused_in_openais_form() {
    let endpoint = Endpoint::start(Setup { body: 1000, ..Setup::default() });
    let status = |method: &str, path: &str, body: &str| endpoint.ask(method, path, "", body).refusal().0;
    assert_eq!(status("POST", "/v1/completions", "{\"prompt\""), 400);
    assert_eq!(status("POST", "/v1/completions", "[1]"), 400);
    assert_eq!(status("POST", "/v1/completions", &"[".repeat(900)), 400);
    assert_eq!(status("POST", "/v1/completions", "{}"), 400);
    assert_eq!(status("POST", "/v1/chat/completions", "{\"messages\": [{\"role\": 5}]}"), 400);
    assert_eq!(status("POST", "/v1/completions", "{\"prompt\": \"a\", \"model\": \"b\"}"), 404);
    assert_eq!(status("POST", "/v1/embeddings", "{}"), 404);
    assert_eq!(status("GET", "/v1/models/%FF", ""), 404, "a name that is no text");
    assert_eq!(status("GET", "/v1/completions", ""), 405);
    assert_eq!(status("DELETE", "/v1/models", ""), 405);
    assert_eq!(status("POST", "/v1/completions", &format!("{{\"prompt\": \"{}\"}}", "a".repeat(1000))), 413);
    let long = endpoint.post("/v1/completions", &json!({ "prompt": "a".repeat(200) })).refusal();
    assert_eq!(long, (400, Some("prompt".into()), Some("context_length_exceeded".into())));
    // In pieces, so that no header says how long it is.
    let mut chunked = TcpStream::connect(endpoint.address).unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    let chunk = format!("3e8\r\n{}\r\n", "a".repeat(1000));
    chunked.write_all(format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(Answer::read(chunked).refusal().0, 413);
    let mut plain = TcpStream::connect(endpoint.address).unwrap();
    plain
        .write_all(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        .unwrap();
    assert_eq!(Answer::read(plain).refusal().0, 415);
    let mut foreign = TcpStream::connect(endpoint.address).unwrap();
    foreign.write_all(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").unwrap();
    assert_eq!(Answer::read(foreign).refusal().0, 403);
    assert_eq!(endpoint.seen.lock().unwrap().begun.len(), 0, "the engine has seen nothing of it");
}

#[test]
fn with_a_key_only_the_health_is_told_without_it() {
    let endpoint = Endpoint::start(Setup { key: Some("secret"), ..Setup::default() });
    for headers in ["", "Authorization: Bearer secre\r\n", "Authorization: secret\r\n", "x-api-key: Secret\r\n"] {
        for path in ["/v1/models", "/metrics", "/nowhere"] {
            let refusal = endpoint.ask("GET", path, headers, "").refusal();
            assert_eq!(refusal, (401, None, Some("invalid_api_key".into())), "{headers} {path}");
        }
    }
    for headers in ["Authorization: Bearer secret\r\n", "authorization: bearer  secret\r\n", "X-API-Key: secret\r\n"] {
        assert_eq!(endpoint.ask("GET", "/v1/models", headers, "").status, 200, "{headers}");
    }
    assert_eq!(endpoint.ask("GET", "/health", "", "").status, 200);
}

#[test]
fn a_client_that_is_gone_is_cancelled_whether_it_streams_waits_or_has_not_begun() {
    let endpoint = slow(Setup { capacity: 2, ..Setup::default() });
    let mut reader = endpoint.send("POST", "/v1/completions", "", &long(&json!({ "stream": true })).to_string());
    reader.read_exact(&mut [0; 12]).unwrap();
    let waits = endpoint.send("POST", "/v1/completions", "", &long(&json!({})).to_string());
    endpoint.wait_until("both run", |seen| seen.begun.len() == 2);
    let queued = endpoint.send("POST", "/v1/completions", "", &long(&json!({ "n": 2 })).to_string());
    endpoint.wait_until("a third waits", |seen| seen.begun.len() == 3);
    drop(queued);
    endpoint.wait_until("it is gone", |seen| seen.cancelled == [0, 0]);
    drop(waits);
    endpoint.wait_until("the second is gone", |seen| seen.cancelled.len() == 3);
    drop(reader);
    endpoint.wait_until("the first is gone", |seen| seen.cancelled.len() == 4);
    let seen = endpoint.seen.lock().unwrap();
    assert!(seen.cancelled[2..].iter().all(|tokens| (1..90).contains(tokens)), "{:?}", seen.cancelled);
    drop(seen);
    let page = endpoint.ask("GET", "/metrics", "", "").text;
    assert!(page.contains("tandem_completions_cancelled_total 4\n"), "{page}");
    let after = endpoint.post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    assert_eq!(after.status, 200, "places are free again");
}

/// A body whose answer of some twenty megabytes is far more than sockets and buffers take.
fn much() -> Value {
    long(&json!({ "prompt": (["ab"; 4]), "stream": true, "n": 128, "logprobs": 0, "return_token_ids": true }))
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody() {
    let endpoint = Endpoint::start(Setup { capacity: 4096, ..Setup::default() });
    let body = much().to_string();
    let silent = [(); 4].map(|()| endpoint.send("POST", "/v1/completions", "", &body));
    endpoint.wait_until("they are begun", |seen| seen.begun.len() == 16);
    for _ in 0..20 {
        let answer = endpoint.post("/v1/completions", &json!({ "prompt": "ab", "max_tokens": 9 }));
        assert_eq!(answer.json()["choices"][0]["text"], "ababababa");
    }
    for stream in silent {
        let chunks = Answer::read(stream).chunks();
        let ended = chunks.iter().filter(|chunk| !chunk["choices"][0]["finish_reason"].is_null()).count();
        assert_eq!(ended, 512, "and it gets everything when it reads at last");
    }
}

#[test]
fn clients_that_do_not_read_keep_their_places_no_longer_than_their_time() {
    let time = Duration::from_secs(3);
    let endpoint = slow(Setup { connections: 2, capacity: 4096, time, ..Setup::default() });
    let silent = [(); 2].map(|()| endpoint.send("POST", "/v1/completions", "", &much().to_string()));
    endpoint.wait_until("they are begun", |seen| seen.begun.len() == 8);
    let answer = endpoint.post("/v1/completions", &json!({ "prompt": "ab", "max_tokens": 1 }));
    assert_eq!(answer.status, 200, "{answer:?}");
    endpoint.wait_until("nothing is made for them any more", |seen| seen.cancelled.len() == 2 * 512);
    drop(silent);
}

#[test]
fn prompts_wait_in_the_queue_and_not_requests() {
    let endpoint = slow(Setup { capacity: 1, queue: 2, ..Setup::default() });
    let many = endpoint.send("POST", "/v1/completions", "", &long(&json!({ "prompt": (["ab"; 5]) })).to_string());
    endpoint.wait_until("all are begun", |seen| seen.begun.len() == 5);
    let full = endpoint.post("/v1/completions", &json!({ "prompt": "a" }));
    assert_eq!(full.refusal(), (429, None, Some("queue_full".into())));
    drop(many);
    endpoint.wait_until("they are gone", |seen| seen.cancelled.len() == 5);
    let more = endpoint.post("/v1/completions", &json!({ "prompt": (["a"; 3]), "max_tokens": 1 }));
    assert_eq!(more.status, 200, "a request of more prompts than there are places: {more:?}");
}

#[test]
fn a_request_beyond_the_queue_is_told_to_try_again() {
    let endpoint = slow(Setup { capacity: 1, queue: 1, ..Setup::default() });
    let body = long(&json!({ "stream": true })).to_string();
    let mut first = endpoint.send("POST", "/v1/completions", "", &body);
    let mut seen = Vec::new();
    // Its first token has come: it waits no longer.
    while !String::from_utf8_lossy(&seen).contains("\"text\":\"a\"") {
        let mut byte = [0];
        first.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let second = endpoint.send("POST", "/v1/completions", "", &body);
    endpoint.wait_until("it waits", |seen| seen.begun.len() == 2);
    // A body that makes no sense is not even read then.
    for body in [json!({ "prompt": "a" }), json!({ "prompt": "a", "stream": true }), json!({ "prompt": 7 })] {
        let full = endpoint.post("/v1/completions", &body);
        assert_eq!(full.refusal(), (429, None, Some("queue_full".into())));
        assert!(full.head.contains("retry-after: 1"), "{full:?}");
    }
    drop((first, second));
    endpoint.wait_until("both are gone", |seen| seen.cancelled.len() == 2);
    for _ in 0..2 {
        assert_eq!(endpoint.post("/v1/completions", &json!({ "prompt": 7 })).status, 400, "it gives its place back");
    }
    assert_eq!(endpoint.post("/v1/completions", &json!({ "prompt": "a.", "max_tokens": 3 })).status, 200);
}

#[test]
fn a_request_that_takes_too_long_is_cancelled() {
    let endpoint = slow(Setup { time: Duration::from_millis(300), ..Setup::default() });
    let late = endpoint.post("/v1/completions", &long(&json!({})));
    assert_eq!(late.refusal(), (504, None, Some("timeout".into())));
    let events = endpoint.post("/v1/completions", &long(&json!({ "stream": true }))).events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "timeout");
    assert!(events.len() > 1, "it had begun");
    endpoint.wait_until("both are cancelled", |seen| seen.cancelled.len() == 2);
}

#[test]
fn a_seed_is_the_clients_or_a_fresh_one() {
    let endpoint = Endpoint::start(Setup::default());
    for more in [json!({ "seed": 5 }), json!({ "seed": 5 }), json!({}), json!({})] {
        let _ = endpoint.post("/v1/completions", &long(&more));
    }
    let seen = endpoint.seen.lock().unwrap();
    let seeds: Vec<u64> = seen.begun.iter().map(|(seed, _)| *seed).collect();
    assert_eq!(seeds[..2], [5, 5]);
    assert!(seeds[2] != seeds[3] && !seeds[2..].contains(&5), "{seeds:?}");
}

#[test]
fn at_the_end_running_answers_come_and_no_new_ones() {
    let endpoint = slow(Setup::default());
    let mut stream = endpoint.send("POST", "/v1/completions", "", &long(&json!({ "stream": true })).to_string());
    let waits = endpoint.send("POST", "/v1/completions", "", &long(&json!({})).to_string());
    stream.read_exact(&mut [0; 9]).unwrap();
    endpoint.wait_until("both run", |seen| seen.begun.len() == 2);
    endpoint.begin_end();
    let begun = Instant::now();
    while TcpStream::connect(endpoint.address).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it still takes connections");
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(Answer::read(waits).json()["choices"][0]["finish_reason"], "length");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let begun = Instant::now();
    endpoint.end();
    assert!(begun.elapsed() < Duration::from_secs(10), "nothing is left to wait for");
}

#[test]
fn answers_that_take_longer_than_the_grace_are_cut() {
    let endpoint = slow(Setup { grace: Duration::from_millis(200), ..Setup::default() });
    let mut stream = endpoint.send("POST", "/v1/completions", "", &long(&json!({ "stream": true })).to_string());
    stream.read_exact(&mut [0; 9]).unwrap();
    let begun = Instant::now();
    endpoint.end();
    assert!(begun.elapsed() < Duration::from_secs(3), "90 tokens would take more than four seconds");
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest);
    assert!(!rest.contains("[DONE]"), "{rest}");
}

#[test]
fn a_thousand_idle_connections_do_not_keep_requests_out() {
    let endpoint = Endpoint::start(Setup { connections: 64, ..Setup::default() });
    let idle: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(endpoint.address).unwrap()).collect();
    let begun = Instant::now();
    let answer = endpoint.post("/v1/completions", &json!({ "prompt": "ab", "max_tokens": 3 }));
    assert_eq!(answer.json()["choices"][0]["text"], "aba");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    idle.iter().for_each(|stream| _ = stream.shutdown(Shutdown::Both));
}

#[test]
fn requests_and_tokens_are_counted() {
    let endpoint = Endpoint::start(Setup::default());
    let _ = endpoint.post("/v1/completions", &json!({ "prompt": "abc", "max_tokens": 4, "n": 2 }));
    let _ = endpoint.post("/v1/completions", &json!({}));
    let _ = endpoint.ask("GET", "/nowhere", "", "");
    // Each prompt counts once, whether it is scored, completed or both, and one without log-probs does not.
    for (prompt, tokens) in [("ab", 0), ("ab", 1), ("a?", 0)] {
        let body = json!({ "prompt": prompt, "max_tokens": tokens, "echo": true, "logprobs": 0 });
        let _ = endpoint.post("/v1/completions", &body);
    }
    let page = endpoint.ask("GET", "/metrics", "", "").text;
    for line in [
        "tandem_http_requests_total{route=\"/v1/completions\",status=\"200\",model_name=\"parrot\"} 3\n",
        "tandem_http_requests_total{route=\"/v1/completions\",status=\"400\"} 1\n",
        "tandem_http_requests_total{route=\"other\",status=\"404\"} 1\n",
        "tandem_prompt_tokens_total 7\n",
        "tandem_generation_tokens_total 9\n",
        "tandem_num_requests_waiting 0\n",
        "tandem_time_to_first_token_seconds_count 2\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

#[test]
fn an_answer_ends_with_its_grammar_and_one_that_leaves_it_is_refused_by_the_field() {
    let endpoint = Endpoint::start(Setup::default());
    let ask = |path: &str, more: Value| {
        let mut body = json!({ "max_tokens": 20 });
        let prompt = match path {
            "/v1/completions" => json!({ "prompt": "ab" }),
            _ => json!({ "messages": [{ "role": "user", "content": "b" }] }),
        };
        [prompt, more].iter().for_each(|more| body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone()));
        endpoint.post(path, &body)
    };
    let regex = |regex: &str| json!({ "structured_outputs": { "regex": regex } });
    // The parrot says `abab…`.
    for (grammar, text, reason) in [("(ab){3}", "ababab", "stop"), ("[ab]*", "abababababababababab", "length")] {
        let answer = ask("/v1/completions", regex(grammar)).json();
        assert_eq!(
            (&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]),
            (&json!(text), &json!(reason))
        );
    }
    // The template makes `u:b\na:` of the message.
    let chat = ask("/v1/chat/completions", json!({ "structured_outputs": { "choice": ["u:b", "x"] } })).json();
    assert_eq!(chat["choices"][0]["message"]["content"], "u:b");
    let refused = |answer: Answer, field: &str, part: &str| {
        assert_eq!(answer.refusal(), (400, Some(field.to_owned()), None), "{answer:?}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(&format!("`{field}`: ")) && message.contains(part), "{message}");
        assert!(!message.contains('\n'), "{message}");
    };
    refused(ask("/v1/completions", regex("abb")), "structured_outputs", "does not allow what the parrot says");
    refused(ask("/v1/completions", regex("(a")), "structured_outputs", "");
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": { "type": "nonsense" } } });
    refused(ask("/v1/chat/completions", json!({ "response_format": schema })), "response_format", "nonsense");
    // The status of a stream is sent before anything is known to be wrong with the completion.
    let mut more = regex("abb");
    more["stream"] = true.into();
    let events = ask("/v1/completions", more).events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["param"], "structured_outputs", "{events:?}");
    let body = json!({ "token_ids": [3, 4], "sampling_params": regex("(a") });
    refused(endpoint.post("/inference/v1/generate", &body), "structured_outputs", "");
}
