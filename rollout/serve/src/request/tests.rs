//! Bodies of requests: what is taken, ignored and refused.

use rollout::{
    commands::constraint::Grammar,
    sampling::{Scratch, SeenTokens, sample_row},
};
use serde_json::{Value, json};

use super::{chat::Chat, completion::Completion, generate::Generation, tokens};
use crate::{
    error::ApiError,
    testing::{MAX_MODEL_LEN, TEMPLATE, models, tokenizer, with_template},
};

fn completion(more: &Value) -> Result<Completion, ApiError> {
    let mut body = json!({ "prompt": "ab" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Completion::read(body.to_string().as_bytes(), &models(), &tokenizer(), MAX_MODEL_LEN)
}

fn chat(more: &Value) -> Result<Chat, ApiError> {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Chat::read(body.to_string().as_bytes(), &models(), &tokenizer(), Some(MAX_MODEL_LEN))
}

#[test]
fn fields_are_taken_with_the_defaults_of_openai() {
    let read = completion(&json!({})).unwrap();
    assert_eq!((read.prompts[0].max_tokens, read.sampling.n, read.streaming.stream), (16, 1, false));
    let params = &read.sampling.params;
    assert_eq!((params.temperature, params.top_p, params.top_k, params.min_p), (1.0, 1.0, 0, None));
    let all = json!({
        "model": "parrot", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "n": 2,
        "best_of": 2, "stop": "x", "seed": -1, "repetition_penalty": 1.5, "presence_penalty": 0.5,
        "frequency_penalty": -2, "ignore_eos": true, "stop_token_ids": [5, 4],
        "stream": true, "stream_options": { "include_usage": true }, "logprobs": 0, "return_token_ids": true,
    });
    let read = completion(&all).unwrap();
    let params = &read.sampling.params;
    assert_eq!((read.prompts[0].max_tokens, read.sampling.n, read.sampling.seed), (7, 2, Some(u64::MAX)));
    assert_eq!((params.temperature, params.top_p, params.top_k, params.min_p), (0.5, 0.9, 3, Some(0.1)));
    assert_eq!((params.presence_penalty, params.frequency_penalty), (0.5, -2.0));
    assert_eq!((params.repetition_penalty, params.ignore_eos, &params.stop[..]), (1.5, true, &["x".to_owned()][..]));
    assert_eq!(read.sampling.stop_token_ids, [4, 5]);
    assert!(read.streaming.include_usage && read.return_token_ids && read.tokens_as_ids);
    assert_eq!((read.logprobs, read.echo), (Some(0), false));
    let read = chat(&json!({ "max_tokens": 5, "max_completion_tokens": 6, "top_k": -1, "top_logprobs": 0 })).unwrap();
    assert_eq!((read.prompt.max_tokens, read.sampling.params.top_k, read.logprobs), (6, 0, false));
    let read = chat(&json!({ "logprobs": true, "top_logprobs": 20 })).unwrap();
    assert_eq!((read.logprobs, read.top_logprobs), (true, 20));
    assert_eq!(completion(&json!({ "logprobs": 20 })).unwrap().logprobs, Some(20));
    let whole = chat(&json!({})).unwrap();
    assert_eq!(
        whole.prompt.max_tokens as usize,
        MAX_MODEL_LEN - whole.prompt.ids.len(),
        "all that the model has room for"
    );
}

#[test]
fn what_would_change_the_answer_is_refused_by_its_name_and_what_would_not_is_ignored() {
    let nothing = json!({
        "user": "me", "metadata": { "a": "b" }, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {},
        "suffix": null, "min_tokens": 0, "use_beam_search": false, "echo": false, "skip_special_tokens": true,
    });
    completion(&nothing).unwrap();
    chat(&json!({ "response_format": { "type": "text" }, "modalities": ["text"], "parallel_tool_calls": true,
        "tool_choice": "auto", "store": false, "service_tier": "auto", "continue_final_message": false }))
    .unwrap();
    for (field, value) in [
        ("presence_penalty", json!(2.5)),
        ("presence_penalty", json!("a")),
        ("frequency_penalty", json!(-2.1)),
        ("logit_bias", json!({ "5": 1 })),
        ("suffix", json!("x")),
        ("min_tokens", json!(1)),
        ("best_of", json!(2)),
        ("use_beam_search", json!(true)),
        ("prompt_logprobs", json!(1)),
        ("logprobs", json!(21)),
        ("logprobs", json!(-1)),
        ("logprobs", json!(true)),
        ("guided_json", json!({})),
        ("guided_regex", json!("a")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("start: \"a\"")),
        ("structured_outputs", json!({})),
        ("structured_outputs", json!("a+")),
        ("structured_outputs", json!({ "regex": "a", "choice": ["a"] })),
        ("structured_outputs", json!({ "regex": 7 })),
        ("structured_outputs", json!({ "json": "{" })),
        ("structured_outputs", json!({ "json": [] })),
        ("structured_outputs", json!({ "json_object": false })),
        ("structured_outputs", json!({ "choice": "a" })),
        ("structured_outputs", json!({ "regex": "a", "whitespace_pattern": " " })),
        ("structured_outputs", json!({ "regex": "a", "disable_any_whitespace": true })),
        ("temperature", json!(-1)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e-40)),
        ("temperature", json!(9e-4)),
        ("top_k", json!(-2)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("min_p", json!(2)),
        ("repetition_penalty", json!(0)),
        ("repetition_penalty", json!(1e-40)),
        ("repetition_penalty", json!(101)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-3)),
        ("seed", json!(0.5)),
        ("stop", json!("")),
        ("stop", json!(vec!["a"; 17])),
        ("stop_token_ids", json!(vec![4; 1025])),
        ("stop_token_ids", json!([4, 100_000])),
        ("stream", json!("yes")),
        ("stream_options", json!({ "include_usage": true })),
        ("prompt", json!([])),
        ("prompt", json!(7)),
        ("prompt", json!(["a", 7])),
        ("prompt", json!([-1])),
        ("prompt", json!([100_000])),
        ("prompt", json!("")),
        ("prompt", json!([[1], []])),
    ] {
        let error = completion(&json!({ field: value })).map(drop).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)), "{value}: {error:?}");
    }
    for (field, value) in [
        ("response_format", json!({ "type": "xml" })),
        ("response_format", json!({ "json_schema": {} })),
        ("response_format", json!({ "type": "json_schema" })),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": 7 } })),
        ("response_format", json!({ "type": "json_schema", "json_schema": { "schema": {}, "other": 1 } })),
        ("response_format", json!({ "type": "json_object", "schema": {} })),
        ("response_format", json!("json_object")),
        ("tool_choice", json!("required")),
        ("tool_choice", json!("sometimes")),
        ("tool_choice", json!({ "type": "function", "function": { "name": "f" } })),
        ("top_logprobs", json!(3)),
        ("top_logprobs", json!(21)),
        ("messages", json!([])),
        ("messages", json!([{ "content": "no role" }])),
        ("messages", json!("hi")),
        ("messages", json!(["hi"])),
        ("messages", json!([{ "role": "user" }])),
        ("messages", json!([{ "role": "user", "content": null }])),
        ("messages", json!([{ "role": "user", "content": 7 }])),
        ("add_generation_prompt", json!(false)),
        ("continue_final_message", json!(true)),
        ("prompt", json!("hi")),
    ] {
        let error = chat(&json!({ field: value })).map(drop).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)), "{value}: {error:?}");
    }
    let many = chat(&json!({ "logprobs": true, "top_logprobs": 21 })).map(drop).unwrap_err();
    assert_eq!((many.param.as_deref(), &many.message[..]), (Some("top_logprobs"), "`top_logprobs` is at most 20"));
    let counted = json!({ "stream": true, "stream_options": { "continuous_usage_stats": true } });
    let error = completion(&counted).map(drop).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("stream_options"));
    let error = completion(&json!({ "model": "another" })).map(drop).unwrap_err();
    assert_eq!((error.status.as_u16(), error.code), (404, Some("model_not_found")));
}

#[test]
fn a_request_beyond_the_models_length_is_refused_and_one_that_reaches_it_is_not() {
    let long = |prompt: usize, tokens: u32| completion(&json!({ "prompt": vec![5; prompt], "max_tokens": tokens }));
    assert_eq!(long(90, 10).unwrap().prompts[0].max_tokens, 10);
    let short = completion(&json!({ "prompt": vec![5; 95] })).unwrap();
    assert_eq!(short.prompts[0].max_tokens, 5, "nobody has asked for sixteen");
    for (prompt, tokens) in [(90, 11), (100, 1), (101, 1), (5, 4_000_000_000)] {
        let error = long(prompt, tokens).map(drop).unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (400, Some("context_length_exceeded")), "{prompt} {tokens}");
        assert!(error.message.contains("maximum context length is 100 tokens"), "{}", error.message);
    }
    // A text that is far longer is not even tokenised, unless that is all that is wanted.
    let text = "a".repeat(32 * MAX_MODEL_LEN + 1);
    let messages = json!([{ "role": "user", "content": text }]);
    for error in [completion(&json!({ "prompt": text })).map(drop), chat(&json!({ "messages": messages })).map(drop)] {
        let error = error.unwrap_err();
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.contains("texts of more than 3200 bytes"), "{}", error.message);
    }
    let body = json!({ "prompt": text }).to_string();
    assert!(tokens::tokenize(body.as_bytes(), &models(), &tokenizer()).unwrap().len() > MAX_MODEL_LEN);
    // A prompt that is scored alone may be as long as the model is.
    let scored = |prompt: usize| completion(&json!({ "prompt": vec![5; prompt], "max_tokens": 0, "echo": true }));
    assert!(scored(100).is_ok() && scored(101).is_err());
    let talk = |letters: usize| chat(&json!({ "messages": [{ "role": "user", "content": "a".repeat(letters) }] }));
    assert!(talk(80).is_ok() && talk(100).is_err());
}

#[test]
fn what_tokenising_needs_is_named_and_ids_that_no_model_has_are_refused() {
    let missing = tokens::tokenize(b"{}", &models(), &tokenizer()).unwrap_err();
    assert_eq!(missing.message, "`prompt` or `messages` is missing");
    let text =
        |ids: Value| tokens::detokenize(json!({ "tokens": ids }).to_string().as_bytes(), &models(), &tokenizer());
    assert_eq!(text(json!(tokenizer().encode("hi", true).unwrap())).unwrap(), "hi");
    assert_eq!(text(json!([])).unwrap(), "");
    let error = text(json!([5, u32::MAX])).unwrap_err();
    assert_eq!((error.param.as_deref(), error.status.as_u16()), (Some("tokens"), 400));
    assert!(error.message.starts_with("token 4294967295 is not in the model's vocabulary of"), "{}", error.message);
}

#[test]
fn a_message_that_the_template_leaves_out_is_refused_and_one_of_the_developer_is_a_system_message() {
    let tokenizer = with_template(
        "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role[:1] }}:{{ m.content }}{% endif %}{% \
         endfor %}",
    );
    let chat = |role: &str| {
        let body = json!({ "messages": [{ "role": role, "content": "be" }, { "role": "user", "content": "hi" }] });
        Chat::read(body.to_string().as_bytes(), &models(), &tokenizer, Some(MAX_MODEL_LEN))
    };
    let read = chat("developer").unwrap();
    assert_eq!(tokenizer.decode(&read.prompt.ids).unwrap(), "s:beu:hi");
    let error = chat("narrator").map(drop).unwrap_err();
    assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("messages")));
    let words = "the model's chat template leaves out the words of `messages[0]`, whose role is \"narrator\"";
    assert_eq!(error.message, words);
    // Words that stand elsewhere are not those of the message.
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }, { "role": "User", "content": "hi" }] });
    let read = Chat::read(body.to_string().as_bytes(), &models(), &tokenizer, Some(MAX_MODEL_LEN));
    assert!(read.map(drop).unwrap_err().message.contains("`messages[1]`, whose role is \"User\""));
    // A template that knows the role gets it.
    let body = json!({ "messages": [{ "role": "developer", "content": "be" }] });
    let read = Chat::read(body.to_string().as_bytes(), &models(), &crate::testing::tokenizer(), Some(MAX_MODEL_LEN));
    assert_eq!(tokenizer.decode(&read.unwrap().prompt.ids).unwrap(), "d:be\na:");
}

/// The engine ends when it can draw no token, and it serves others too.
#[test]
fn tokens_can_be_drawn_at_the_bounds_of_all_parameters() {
    let logits: Vec<f32> = (0..64).map(|at| if at % 2 == 0 { 1e3 } else { -1e3 }).collect();
    let seen = SeenTokens::new(&[0, 1]);
    for temperature in [0.0, 1e-3, 1e30] {
        for repetition_penalty in [0.01, 1.0, 100.0] {
            let body = json!({ "temperature": temperature, "repetition_penalty": repetition_penalty, "min_p": 0.5 });
            let params = completion(&body).unwrap().sampling.params;
            let drawn = sample_row(&logits, &params, &seen, 0.5, &mut Scratch::default());
            let logprob = drawn.unwrap_or_else(|error| panic!("{body}: {error}")).logprob;
            assert!(logprob.sampling_logprob().is_finite(), "{body}: {logprob:?}");
        }
    }
}

#[test]
fn a_conversation_goes_through_the_template_with_tools_and_arguments_as_objects() {
    let tokenizer = tokenizer();
    let text = |more: Value| tokenizer.decode(&chat(&more).unwrap().prompt.ids).unwrap();
    assert_eq!(text(json!({})), "u:hi\na:");
    assert_eq!(text(json!({ "tools": [{ "name": "add" }] })), "u:hi\nadda:");
    assert_eq!(text(json!({ "chat_template_kwargs": { "tools": [{ "name": "sub" }] } })), "u:hi\nsuba:");
    let open = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "he" }]);
    assert_eq!(text(json!({ "messages": open })), "u:hi\na:he", "an answer that has begun goes on");
    assert!(chat(&json!({ "messages": open })).unwrap().prompt.goes_on);
    assert!(!chat(&json!({})).unwrap().prompt.goes_on);
    // A call without a text is whole, and an answer to it begins.
    let called = json!([{ "role": "user", "content": "hi" },
        { "role": "assistant", "content": null, "tool_calls": [{ "function": { "name": "f", "arguments": "{}" } }] }]);
    let written = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let talk = json!({ "messages": called, "add_generation_prompt": true });
    assert_eq!(text(talk), format!("u:hi\na:{written}\na:"));
    let error = chat(&json!({ "messages": called, "continue_final_message": true })).map(drop).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("continue_final_message"));
    let call =
        json!([{ "role": "assistant", "content": "x", "tool_calls": [{ "function": { "arguments": "{\"a\": 1}" } }] }]);
    let mut message = call[0].as_object().unwrap().clone();
    super::tools::read_arguments(&mut message);
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
}

#[test]
fn what_is_no_tool_no_call_or_no_reply_is_refused_in_words() {
    let refused = |more: Value| {
        let error = chat(&more).map(drop).unwrap_err();
        assert_eq!(error.status.as_u16(), 400, "{error:?}");
        (error.param.unwrap(), error.message)
    };
    let function = |function: Value| json!({ "type": "function", "function": function });
    for (tools, words) in [
        (json!([5]), "`tools[0]` is no object"),
        (json!([function(json!({ "name": "f" })), function(json!({}))]), "`tools[1]` has no `name` that is a text"),
        (json!([function(json!({ "name": 5 }))]), "has no `name` that is a text"),
        (json!([function(json!({ "name": "two words" }))]), "has a `name` that is not 1 to 128 letters, digits"),
        (json!([function(json!({ "name": "" }))]), "has a `name` that is not"),
        (json!([function(json!("f"))]), "has a `function` that is no object"),
        (json!([{ "type": "web_search" }]), "has the type \"web_search\", and only a `function`"),
        (json!([function(json!({ "name": "f" })), { "name": "f" }]), "two of the `tools` have the name `f`"),
        (
            json!([function(json!({ "name": "f", "parameters": "a" }))]),
            "(`f`) has `parameters` that are no JSON schema",
        ),
        (json!([function(json!({ "name": "f", "parameters": { "type": "array" } }))]), "no JSON schema of an object"),
        (json!([function(json!({ "name": "f", "parameters": { "properties": [] } }))]), "no JSON schema of an object"),
    ] {
        let (param, message) = refused(json!({ "tools": tools }));
        assert!(param == "tools" && message.contains(words), "{tools}: {message}");
    }
    assert_eq!(refused(json!({ "tools": "f" })).0, "tools");
    assert_eq!(refused(json!({ "parallel_tool_calls": "no" })).0, "parallel_tool_calls");
    let call = |call: Value| json!({ "role": "assistant", "tool_calls": [call] });
    let named = |arguments: Value| {
        let function = json!({ "name": "f", "arguments": arguments });
        json!({ "id": "1", "type": "function", "function": function })
    };
    let reply = |reply: Value| {
        let mut message = json!({ "role": "tool", "content": "5" });
        message.as_object_mut().unwrap().extend(reply.as_object().unwrap().clone());
        message
    };
    for (messages, words) in [
        (vec![json!({ "role": "assistant", "tool_calls": "f" })], "`messages[0]` has `tool_calls` that are no list"),
        (vec![call(json!(7))], "no object with a `function`"),
        (vec![call(json!({ "function": "f" }))], "no object with a `function`"),
        (vec![call(json!({ "function": { "arguments": "{}" } }))], "a call without the `name` of its function"),
        (vec![call(json!({ "type": "custom", "function": { "name": "f" } }))], "not of the type `function`"),
        (vec![call(named(json!("{\"a\": ")))], "a call of `f` with `arguments` that are no object of JSON"),
        (vec![call(named(json!("[1]")))], "no object of JSON"),
        (vec![call(named(json!(5)))], "no object of JSON"),
        (vec![reply(json!({}))], "`messages[0]` has the role `tool` and no `tool_call_id`"),
        (vec![reply(json!({ "tool_call_id": "1" }))], "replies to the call `1`, and no message before it"),
        (
            vec![call(named(json!("{}"))), reply(json!({ "tool_call_id": "2" }))],
            "`messages[1]` replies to the call `2`",
        ),
    ] {
        let (param, message) = refused(json!({ "messages": messages }));
        assert!(param == "messages" && message.contains(words), "{messages:?}: {message}");
    }
}

#[test]
fn calls_and_replies_reach_the_template_as_it_wants_them() {
    let object = TEMPLATE.replace("{{ message.content }}", "{{ message.name }}{{ message.content }}");
    let text = object.replace("call.function | tojson", "call.function.name + call.function.arguments");
    let prompt = |template: &str, messages: &Value| {
        let tokenizer = with_template(template);
        let body = json!({ "messages": messages }).to_string();
        let read =
            Chat::read(body.as_bytes(), &models(), &tokenizer, Some(200)).unwrap_or_else(|error| panic!("{error:?}"));
        tokenizer.decode(&read.prompt.ids).unwrap()
    };
    let talk = |arguments: Value| {
        json!([
            { "role": "assistant", "tool_calls": [{ "id": "1", "function": { "name": "f", "arguments": arguments } }] },
            { "role": "tool", "tool_call_id": "1", "content": "5" },
        ])
    };
    for arguments in [json!("{\"a\": 1}"), json!({ "a": 1 })] {
        let call = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
        let expected = format!("a:<tool_call>{call}</tool_call>\nt:f5\na:");
        assert_eq!(prompt(&object, &talk(arguments.clone())), expected);
        assert_eq!(prompt(&text, &talk(arguments)), "a:<tool_call>f{\"a\":1}</tool_call>\nt:f5\na:");
    }
    for nothing in [json!(""), json!(null), json!({})] {
        assert!(prompt(&object, &talk(nothing)).contains("\"arguments\": {}"));
    }
    // In the form of transformers, calls have no ids, and replies name the tool.
    let trained = json!([
        { "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": {} } }] },
        { "role": "tool", "name": "g", "content": "5" },
    ]);
    assert!(prompt(&object, &trained).ends_with("\nt:g5\na:"));
}

/// A template that would leave something out, or whose calls nobody could read, is named.
#[test]
fn what_the_template_would_leave_out_is_refused() {
    let silent = "{% for m in messages %}{% if m.role != 'tool' %}{{ m.role }}{{ m.content }}{% endif %}{% endfor %}";
    let unknown = TEMPLATE.replace("tool_call>", "call_of_its_own>");
    let read = |template: &str, more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let read = Chat::read(body.to_string().as_bytes(), &models(), &with_template(template), Some(200));
        read.map(|read| read.calling.is_some()).map_err(|error| (error.param.unwrap(), error.message))
    };
    let tools = json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] });
    let none = json!({ "tools": tools["tools"], "tool_choice": "none" });
    assert_eq!(read(TEMPLATE, tools.clone()), Ok(true));
    assert_eq!(read(TEMPLATE, none.clone()), Ok(false));
    assert_eq!(read(TEMPLATE, json!({ "tools": [], "tool_choice": "auto" })), Ok(false));
    for tools in [&tools, &none] {
        let (param, message) = read(silent, tools.clone()).unwrap_err();
        assert!(param == "tools" && message.contains("chat template writes no tools"), "{message}");
    }
    let (param, message) = read(&unknown, tools).unwrap_err();
    assert!(param == "tools" && message.contains("no format that is known here (Qwen2.5 and Qwen3, "), "{message}");
    assert_eq!(read(&unknown, none), Ok(false), "then calls are text");
    let called = json!([{ "role": "assistant", "tool_calls": [{ "id": "1", "function": { "name": "f" } }] }]);
    let reply = json!([{ "role": "tool", "name": "f", "content": "5" }]);
    for (messages, words) in [(called, "has `tool_calls`, and the"), (reply, "has the role `tool`, and the")] {
        let (param, message) = read(silent, json!({ "messages": messages })).unwrap_err();
        assert!(param == "messages" && message.contains(words), "{message}");
    }
}

#[test]
fn prompts_are_texts_or_ids_one_or_many() {
    let tokenizer = tokenizer();
    let ids = |prompt: Value| -> Vec<Vec<u32>> {
        completion(&json!({ "prompt": prompt })).unwrap().prompts.iter().map(|prompt| prompt.ids.to_vec()).collect()
    };
    let [a, b] = ["a", "b"].map(|text| tokenizer.encode(text, true).unwrap());
    assert_eq!(ids(json!(["a", "b"])), [a.clone(), b.clone()]);
    assert_eq!(ids(json!([a, b])), [a.clone(), b]);
    assert_eq!([ids(json!(a)), ids(json!("a"))], [[a.clone()], [a]]);
}

/// Whatever arrives is read or refused, and what is read can be asked of the engine.
#[test]
fn any_body_is_read_or_refused() {
    let tokenizer = tokenizer();
    let seeds = [
        json!({ "prompt": ["ab", "cd"], "n": 2, "stop": ["x", "y"], "seed": 5, "logprobs": 0, "top_k": -1 }),
        json!({ "prompt": [[5, 6], [7]], "max_tokens": 0, "echo": true, "logprobs": 1, "temperature": 0 }),
        json!({ "messages": [{ "role": "user", "content": "hi" }], "tools": [{ "name": "f" }], "stream": true,
            "stream_options": { "include_usage": true }, "chat_template_kwargs": { "a": 1 } }),
        json!({ "messages": [{ "role": "assistant", "content": "hi", "tool_calls": [{ "function":
            { "name": "f", "arguments": "{}" } }] }, { "role": "tool", "content": null }] }),
        json!({ "messages": [{ "role": "user", "content": "hi" }, { "role": "assistant", "tool_calls": [{ "id": "1",
            "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } }] }, { "role": "tool",
            "tool_call_id": "1", "content": "x" }], "tools": [{ "type": "function", "function": { "name": "f",
            "parameters": { "type": "object", "properties": {} } } }], "tool_choice": "auto" }),
        json!({ "token_ids": [5, 6, 7], "sampling_params": { "temperature": 1.0, "max_tokens": 4, "logprobs": 1 } }),
        json!({ "tokens": [5, 6, 7], "prompt": "ab", "add_special_tokens": false }),
    ];
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_string().into_bytes()).collect();
    harness::fuzz::explore("serve_bodies", &seeds, |body| {
        if let Ok(read) = Completion::read(body, &models(), &tokenizer, MAX_MODEL_LEN) {
            for prompt in read.prompts {
                assert!(prompt.ids.len() + prompt.max_tokens as usize <= MAX_MODEL_LEN);
                if prompt.max_tokens > 0 {
                    let group = read.sampling.group(&tokenizer, &prompt, 1);
                    let vocab_size = tokenizer.model_vocab_size();
                    rollout::engine::Request::from(group).check(vocab_size, MAX_MODEL_LEN).unwrap();
                }
            }
        }
        if let Ok(read) = Chat::read(body, &models(), &tokenizer, Some(MAX_MODEL_LEN)) {
            assert!(!read.prompt.ids.is_empty() && read.prompt.max_tokens > 0);
        }
        let vocab_size = tokenizer.model_vocab_size();
        if let Ok(read) = Generation::read(body, &models(), vocab_size, MAX_MODEL_LEN) {
            assert!(!read.prompt.ids.is_empty() && read.prompt.max_tokens > 0);
        }
        let _ = tokens::tokenize(body, &models(), &tokenizer);
        let _ = tokens::detokenize(body, &models(), &tokenizer);
    });
}

#[test]
fn both_ways_to_say_what_an_answer_may_be_are_read() {
    let grammar = |more: Value| chat(&more).unwrap().sampling.grammar.map(|asked| (asked.field, asked.grammar));
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let json = |schema: &Value, compact| Grammar::Json { schema: schema.clone(), compact };
    assert_eq!(grammar(json!({ "response_format": { "type": "text" } })), None);
    assert_eq!(grammar(json!({ "response_format": null, "structured_outputs": null })), None);
    let object = json!({ "type": "object" });
    let format = |value: Value| grammar(json!({ "response_format": value })).unwrap();
    assert_eq!(format(json!({ "type": "json_object" })), ("response_format", json(&object, false)));
    for strict in [json!(true), json!(false), Value::Null] {
        let named = json!({ "name": "answer", "description": "an answer", "strict": strict, "schema": schema });
        let asked = format(json!({ "type": "json_schema", "json_schema": named }));
        assert_eq!(asked, ("response_format", json(&schema, false)));
    }
    for (value, expected) in [
        (json!({ "regex": "a+" }), Grammar::Regex("a+".into())),
        (json!({ "json": schema, "regex": null }), json(&schema, false)),
        (json!({ "json": schema.to_string() }), json(&schema, false)),
        (json!({ "json": schema, "disable_any_whitespace": true }), json(&schema, true)),
        (json!({ "json_object": true }), json(&object, false)),
        (json!({ "choice": ["a", "b"] }), Grammar::Choice(vec!["a".into(), "b".into()])),
        (json!({ "grammar": "start: \"a\"" }), Grammar::Lark("start: \"a\"".into())),
    ] {
        let more = json!({ "structured_outputs": value });
        assert_eq!(grammar(more.clone()), Some(("structured_outputs", expected.clone())), "{more}");
        assert_eq!(completion(&more).unwrap().sampling.grammar.unwrap().grammar, expected, "{more}");
        let body = json!({ "token_ids": [3], "sampling_params": more }).to_string();
        let read = Generation::read(body.as_bytes(), &models(), 96, MAX_MODEL_LEN).unwrap();
        assert_eq!(read.sampling.grammar.unwrap().grammar, expected, "{more}");
    }
    let both = json!({ "response_format": { "type": "json_object" }, "structured_outputs": { "regex": "a" } });
    let error = chat(&both).map(drop).unwrap_err();
    assert!(error.message.contains("leave one of them out"), "{error:?}");
    let old = completion(&json!({ "guided_regex": "a" })).map(drop).unwrap_err();
    assert!(old.message.contains("`structured_outputs`: {\"regex\""), "{old:?}");
}

/// "Taken or refused, never ignored": of two values only one would count.
#[test]
fn a_field_that_is_given_twice_is_refused_by_its_name() {
    let body = br#"{"prompt": "ab", "temperature": 0, "temperature": 1}"#;
    let error = Completion::read(body, &models(), &tokenizer(), MAX_MODEL_LEN).unwrap_err();
    assert!(error.status == 400 && error.message.contains("`temperature`"), "{}", error.message);
}
