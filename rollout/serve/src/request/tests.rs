//! Bodies of requests: what is taken, ignored and refused.

use rollout::{
    commands::constraint::Grammar,
    sampling::{Scratch, SeenTokens, sample_row},
};
use serde_json::{Value, json};

use super::{chat::Chat, completion::Completion, generate::Generation, tokens};
use crate::{
    error::ApiError,
    testing::{MAX_MODEL_LEN, tokenizer},
};

fn completion(more: &Value) -> Result<Completion, ApiError> {
    let mut body = json!({ "prompt": "ab" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Completion::read(body.to_string().as_bytes(), "parrot", &tokenizer(), MAX_MODEL_LEN)
}

fn chat(more: &Value) -> Result<Chat, ApiError> {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Chat::read(body.to_string().as_bytes(), "parrot", &tokenizer(), MAX_MODEL_LEN)
}

#[test]
fn fields_are_taken_with_the_defaults_of_openai() {
    let read = completion(&json!({})).unwrap();
    assert_eq!((read.prompts[0].max_tokens, read.sampling.n, read.streaming.stream), (16, 1, false));
    let params = &read.sampling.params;
    assert_eq!((params.temperature, params.top_p, params.top_k, params.min_p), (1.0, 1.0, 0, None));
    let all = json!({
        "model": "parrot", "max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "n": 2,
        "best_of": 2, "stop": "x", "seed": -1, "repetition_penalty": 1.5, "ignore_eos": true, "stop_token_ids": [5, 4],
        "stream": true, "stream_options": { "include_usage": true }, "logprobs": 0, "return_token_ids": true,
    });
    let read = completion(&all).unwrap();
    let params = &read.sampling.params;
    assert_eq!((read.prompts[0].max_tokens, read.sampling.n, read.sampling.seed), (7, 2, Some(u64::MAX)));
    assert_eq!((params.temperature, params.top_p, params.top_k, params.min_p), (0.5, 0.9, 3, Some(0.1)));
    assert_eq!((params.repetition_penalty, params.ignore_eos, &params.stop[..]), (1.5, true, &["x".to_owned()][..]));
    assert_eq!(read.sampling.stop_token_ids, [4, 5]);
    assert!(read.streaming.include_usage && read.return_token_ids && read.tokens_as_ids);
    assert_eq!((read.logprobs, read.echo), (Some(0), false));
    let read = chat(&json!({ "max_tokens": 5, "max_completion_tokens": 6, "top_k": -1, "top_logprobs": 0 })).unwrap();
    assert_eq!((read.prompt.max_tokens, read.sampling.params.top_k, read.logprobs), (6, 0, false));
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
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(-1)),
        ("logit_bias", json!({ "5": 1 })),
        ("suffix", json!("x")),
        ("min_tokens", json!(1)),
        ("best_of", json!(2)),
        ("use_beam_search", json!(true)),
        ("prompt_logprobs", json!(1)),
        ("logprobs", json!(5)),
        ("logprobs", json!(1)),
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
        ("tool_choice", json!({ "type": "function", "function": { "name": "f" } })),
        ("top_logprobs", json!(3)),
        ("messages", json!([])),
        ("messages", json!([{ "content": "no role" }])),
        ("messages", json!("hi")),
        ("add_generation_prompt", json!(false)),
        ("continue_final_message", json!(true)),
        ("prompt", json!("hi")),
    ] {
        let error = chat(&json!({ field: value })).map(drop).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)), "{value}: {error:?}");
    }
    let error = completion(&json!({ "echo": true, "stream": true })).map(drop).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("echo"));
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
    assert!(tokens::tokenize(body.as_bytes(), "parrot", &tokenizer()).unwrap().len() > MAX_MODEL_LEN);
    // A prompt that is scored alone may be as long as the model is.
    let scored = |prompt: usize| completion(&json!({ "prompt": vec![5; prompt], "max_tokens": 0, "echo": true }));
    assert!(scored(100).is_ok() && scored(101).is_err());
    let talk = |letters: usize| chat(&json!({ "messages": [{ "role": "user", "content": "a".repeat(letters) }] }));
    assert!(talk(80).is_ok() && talk(100).is_err());
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
    assert_eq!(text(json!({ "messages": called, "add_generation_prompt": true })), "u:hi\na:\na:");
    let error = chat(&json!({ "messages": called, "continue_final_message": true })).map(drop).unwrap_err();
    assert_eq!(error.param.as_deref(), Some("continue_final_message"));
    let call =
        json!([{ "role": "assistant", "content": "x", "tool_calls": [{ "function": { "arguments": "{\"a\": 1}" } }] }]);
    let mut message = call[0].as_object().unwrap().clone();
    super::chat::read_arguments(&mut message);
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
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
        json!({ "token_ids": [5, 6, 7], "sampling_params": { "temperature": 1.0, "max_tokens": 4, "logprobs": 1 } }),
        json!({ "tokens": [5, 6, 7], "prompt": "ab", "add_special_tokens": false }),
    ];
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|seed| seed.to_string().into_bytes()).collect();
    harness::fuzz::explore("serve_bodies", &seeds, |body| {
        if let Ok(read) = Completion::read(body, "parrot", &tokenizer, MAX_MODEL_LEN) {
            for prompt in read.prompts {
                assert!(prompt.ids.len() + prompt.max_tokens as usize <= MAX_MODEL_LEN);
                if prompt.max_tokens > 0 {
                    let group = read.sampling.group(&tokenizer, &prompt, 1);
                    let vocab_size = tokenizer.model_vocab_size();
                    rollout::engine::Request::from(group).check(vocab_size, MAX_MODEL_LEN).unwrap();
                }
            }
        }
        if let Ok(read) = Chat::read(body, "parrot", &tokenizer, MAX_MODEL_LEN) {
            assert!(!read.prompt.ids.is_empty() && read.prompt.max_tokens > 0);
        }
        let vocab_size = tokenizer.model_vocab_size();
        if let Ok(read) = Generation::read(body, "parrot", vocab_size, MAX_MODEL_LEN) {
            assert!(!read.prompt.ids.is_empty() && read.prompt.max_tokens > 0);
        }
        let _ = tokens::tokenize(body, "parrot", &tokenizer);
        let _ = tokens::detokenize(body, "parrot", &tokenizer);
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
        let read = Generation::read(body.as_bytes(), "parrot", 96, MAX_MODEL_LEN).unwrap();
        assert_eq!(read.sampling.grammar.unwrap().grammar, expected, "{more}");
    }
    let both = json!({ "response_format": { "type": "json_object" }, "structured_outputs": { "regex": "a" } });
    let error = chat(&both).map(drop).unwrap_err();
    assert!(error.message.contains("leave one of them out"), "{error:?}");
    let old = completion(&json!({ "guided_regex": "a" })).map(drop).unwrap_err();
    assert!(old.message.contains("`structured_outputs`: {\"regex\""), "{old:?}");
}
