//! Calls that must come, of models that know nothing: whatever is drawn is read as calls of the tools.

use std::fs;

use harness::tiny_model::{CHARACTERS, ModelFolder, write_tokenizer};
use rollout::{
    data::Tokenizer,
    engine::Constraint,
    sampling::{Scratch, SeenTokens, sample_allowed},
};
use rollout_constraint::Grammars;
use serde_json::{Value, json};
use shared::{ModelDir, SamplingParams, generation::rng::Stream};
use shared_chat::calls::{Call, Format};

use super::chat::Chat;
use crate::{error::ApiError, testing::models};

/// Longest prompt plus completion.
const LENGTH: usize = 4000;

/// Formats, the words by which a template shows them, and marks that are special tokens.
const FORMATS: [(Format, &str, &[&str]); 9] = [
    (Format::Qwen, "<tool_call> </tool_call>", &[]),
    (Format::Qwen, "<tool_call> </tool_call>", &["<tool_call>", "</tool_call>"]),
    (Format::Llama31, "<|start_header_id|> tool_call \"parameters\":", &[]),
    (Format::GptOss, "<|channel|>commentary functions.", &["<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"]),
    (Format::Lfm25, "<|tool_call_start|>", &[]),
    (Format::Lfm25, "<|tool_call_start|>", &["<|tool_call_start|>", "<|tool_call_end|>"]),
    (Format::Qwen35, "<tool_call> <function= <parameter=", &[]),
    (Format::Nemotron3, "<tool_call> <function= <parameter= <think></think>", &[]),
    (Format::Glm4Moe, "<tool_call> <arg_key>", &["<tool_call>", "<arg_key>", "</arg_value>"]),
];

/// A model's texts, and what makes constraints for it.
struct World {
    tokenizer: Tokenizer,
    grammars: Grammars,
}

impl World {
    /// With a template that has these words, and writes tools and messages.
    fn new(words: &str, special: &[&str]) -> Self {
        let folder = ModelFolder::new();
        let model = folder.path("model");
        write_tokenizer(&model);
        let template = format!(
            "{{# {words} #}}{{% for m in messages %}}{{{{ m.role }}}}:{{{{ m.content }}}}{{% for call in m.tool_calls \
             or [] %}}{{{{ call.function | tojson }}}}{{% endfor %}}{{% endfor %}}{{% for tool in tools or [] \
             %}}{{{{ tool.function.name }}}}{{% endfor %}}{{{{ opening }}}}"
        );
        fs::write(model.join("chat_template.jinja"), template).unwrap();
        let path = model.join("tokenizer.json");
        let mut tokens: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (id, content) in (CHARACTERS..).zip(special) {
            let token = json!({ "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false });
            tokens["added_tokens"].as_array_mut().unwrap().push(token);
        }
        fs::write(path, tokens.to_string()).unwrap();
        folder.change_config(&json!({ "vocab_size": CHARACTERS + special.len() }));
        let model = ModelDir::open(model).unwrap();
        let tokenizer = Tokenizer::open(&model).unwrap();
        Self { grammars: Grammars::new(&tokenizer, &model), tokenizer }
    }

    fn read(&self, more: &Value) -> Result<Chat, ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "go" }], "tools": tools(true) });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut read = Chat::read(body.to_string().as_bytes(), &models(), &self.tokenizer, Some(LENGTH))?;
        read.sampling.compile(&self.grammars, read.prompt.start())?;
        Ok(read)
    }

    /// The calls of an answer.
    fn calls(&self, read: &Chat, ids: &[u32]) -> Vec<Call> {
        let mut reader = read.calling.as_ref().unwrap().reader();
        for &id in ids {
            let _ = match self.tokenizer.special_text(id) {
                Some(mark) => reader.push_special(&mark),
                None => reader.push(&self.tokenizer.decode(&[id]).unwrap()),
            };
        }
        reader.end(true).calls
    }
}

/// An answer of at most so many tokens by random logits, and whether it has ended by itself.
fn write(constraint: &mut dyn Constraint, seed: u64, vocab: usize, most: usize) -> (Vec<u32>, bool) {
    let (mut stream, mut scratch, mut ids) = (Stream::new(&[seed]), Scratch::default(), Vec::new());
    let (params, seen, mut logits) = (SamplingParams::default(), SeenTokens::default(), vec![0.0; vocab]);
    while ids.len() < most {
        logits.iter_mut().for_each(|logit| *logit = (stream.next_normal() * 2.0) as f32);
        let allowed = constraint.allowed().unwrap();
        let drawn = sample_allowed(&logits, allowed, &params, &seen, stream.next_f64(), &mut scratch);
        let token = drawn.unwrap().expect("a token may come").token;
        // The token that ends a text.
        if token == 0 {
            return (ids, true);
        }
        ids.push(token);
        if constraint.push(token).unwrap() {
            return (ids, true);
        }
    }
    (ids, false)
}

/// How many of these tokens may come, and whether the answer may end behind them.
fn allowed(constraint: &mut dyn Constraint, ids: &[u32]) -> (usize, bool) {
    let is_allowed = |constraint: &mut dyn Constraint, id: u32| {
        constraint.allowed().is_ok_and(|allowed| allowed[id as usize / 32] >> (id % 32) & 1 == 1)
    };
    for (at, &id) in ids.iter().enumerate() {
        if !is_allowed(constraint, id) {
            return (at, false);
        }
        if constraint.push(id).unwrap() {
            return (at + 1, true);
        }
    }
    (ids.len(), is_allowed(constraint, 0))
}

/// Two tools with arguments of many kinds, and one without; texts only where they end before long.
fn tools(with_text: bool) -> Value {
    let number = json!({ "type": "integer", "minimum": 0, "maximum": 99 });
    let add = json!({ "type": "object", "properties": { "a": number, "b": number }, "required": ["a", "b"],
        "additionalProperties": false });
    let mut properties = json!({ "kind": { "type": "string", "enum": ["x", "y z"] }, "all": { "type": "boolean" },
        "ids": { "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "maxItems": 2 } });
    if with_text {
        properties["what"] = json!({ "type": "string" });
    }
    let find = json!({ "type": "object", "properties": properties, "required": ["kind"],
        "additionalProperties": false });
    let tool = |function: Value| json!({ "type": "function", "function": function });
    json!([
        tool(json!({ "name": "add", "parameters": add })),
        tool(json!({ "name": "find", "parameters": find })),
        tool(json!({ "name": "now" }))
    ])
}

/// Whether a call follows the schema of its tool.
fn follows(Call { name, arguments, .. }: &Call) -> bool {
    let arguments = arguments.as_object().unwrap();
    let is_number = |value: &Value, most: u64| value.as_u64().is_some_and(|number| number <= most);
    match name.as_str() {
        "add" => arguments.len() == 2 && ["a", "b"].iter().all(|key| is_number(&arguments[*key], 99)),
        "find" => {
            let is_fine = |(key, value): (&String, &Value)| match key.as_str() {
                "kind" => value == "x" || value == "y z",
                "all" => value.is_boolean(),
                "ids" => value.as_array().is_some_and(|ids| ids.len() < 3 && ids.iter().all(|id| is_number(id, 9))),
                "what" => value.is_string(),
                _ => false,
            };
            arguments.contains_key("kind") && arguments.iter().all(is_fine)
        }
        "now" => arguments.is_empty(),
        _ => false,
    }
}

#[test]
fn whatever_is_drawn_is_a_call_of_the_tools_and_follows_their_schemas() {
    for (format, words, special) in FORMATS {
        let world = World::new(words, special);
        let between_tags = matches!(format, Format::Qwen35 | Format::Nemotron3 | Format::Glm4Moe);
        let named = json!({ "type": "function", "function": { "name": "find" } });
        for (more, name, most) in [
            (json!({ "tool_choice": "required" }), None, usize::MAX),
            (json!({ "tool_choice": "required", "parallel_tool_calls": false }), None, 1),
            (json!({ "tool_choice": named }), Some("find"), 1),
        ] {
            // A model of no skill does not find the tag that ends a text.
            let mut body = json!({ "tools": tools(!between_tags) });
            if format == Format::Nemotron3 {
                // Nor the mark that ends thoughts.
                body["chat_template_kwargs"] = json!({ "opening": "<|im_start|>assistant\n<think></think>" });
            }
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let read = world.read(&body).unwrap_or_else(|error| panic!("{format:?}: {error:?}"));
            let (mut whole, mut several, mut names) = (0, false, std::collections::BTreeSet::new());
            for seed in 0..24 {
                let mut constraint = read.sampling.constraint.as_ref().unwrap().begin();
                let vocab = world.tokenizer.model_vocab_size();
                let (ids, ended) = write(&mut *constraint, seed, vocab, 1500);
                if !ended {
                    continue;
                }
                let calls = world.calls(&read, &ids);
                let text: String = ids
                    .iter()
                    .map(|&id| {
                        world.tokenizer.special_text(id).unwrap_or_else(|| world.tokenizer.decode(&[id]).unwrap())
                    })
                    .collect();
                assert!(!calls.is_empty() && calls.len() <= most, "{format:?}: {text}: {calls:?}");
                assert!(calls.iter().all(follows), "{format:?}: {text}: {calls:?}");
                assert!(name.is_none_or(|name| calls[0].name == name), "{format:?}: {text}");
                whole += 1;
                several |= calls.len() > 1;
                names.extend(calls.into_iter().map(|call| call.name));
            }
            let takes_turns = matches!(format, Format::Llama31 | Format::GptOss);
            assert!(whole > 16, "{format:?} {more}: {whole} of 24 have ended");
            assert_eq!(several, most > 1 && !takes_turns, "{format:?} {more}");
            assert_eq!(names.len(), if name.is_some() { 1 } else { 3 }, "{format:?} {more}: {names:?}");
        }
    }
}

/// Texts as the models of a family write them.
#[test]
fn a_call_as_its_family_writes_it_may_come_and_nothing_else() {
    let qwen =
        "<tool_call>\n{\"name\": \"find\", \"arguments\": {\"kind\": \"y z\", \"what\": \"a <b>\"}}\n</tool_call>";
    let tags = "<tool_call>\n<function=find>\n<parameter=kind>\ny z\n</parameter>\n<parameter=what>\na </b> \
                c\n</parameter>\n</function>\n</tool_call>";
    let glm = "<tool_call>find\n<arg_key>kind</arg_key>\n<arg_value>x</arg_value>\n<arg_key>what</arg_key>\n\
               <arg_value>a </b></arg_value>\n</tool_call>";
    let oss = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>{\"kind\":\"x\",\"what\":\"a\"}";
    let thinks = |words: &str| format!("{words} <think> </think>");
    let cases: [(String, &[&str], &str, String, usize); 15] = [
        (FORMATS[0].1.to_owned(), &[], "", qwen.to_owned(), 1),
        (FORMATS[0].1.to_owned(), &["<tool_call>"], "", format!("{qwen}\n{qwen}"), 2),
        (thinks(FORMATS[0].1), &[], "", qwen.to_owned(), 1),
        (thinks(FORMATS[0].1), &[], "", format!("<think>\nso {qwen}\n</think>\n\n{qwen}"), 1),
        (thinks(FORMATS[0].1), &["<think>", "</think>"], "", format!("<think>\nso\n</think>\n\n{qwen}"), 1),
        (thinks(FORMATS[0].1), &[], "<|im_start|>assistant\n<think>\n", format!("so\n</think>\n\n{qwen}"), 1),
        (thinks(FORMATS[0].1), &[], "<|im_start|>assistant\n<think>\n\n</think>\n\n", qwen.to_owned(), 1),
        (FORMATS[6].1.to_owned(), &[], "", tags.to_owned(), 1),
        (thinks(FORMATS[6].1), &[], "<|im_start|>assistant\n<think>\n", format!("so\n</think>\n\n{tags}\n{tags}"), 2),
        (FORMATS[7].1.to_owned(), &[], "<|im_start|>assistant\n<think>\n", format!("so\n</think>\n{tags}"), 1),
        (FORMATS[8].1.to_owned(), FORMATS[8].2, "<|assistant|>", format!("\n{glm}\n{glm}"), 2),
        (
            FORMATS[2].1.to_owned(),
            &[],
            "",
            "{\"name\": \"find\", \"parameters\": {\"kind\": \"x\", \"all\": true, \"ids\": [1, 2]}}".into(),
            1,
        ),
        (FORMATS[3].1.to_owned(), FORMATS[3].2, "<|start|>assistant", oss.to_owned(), 1),
        (
            format!("{} <|channel|>analysis<|message|>", FORMATS[3].1),
            &["<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"],
            "<|start|>assistant",
            format!("<|channel|>analysis<|message|>so<|end|><|start|>assistant{oss}"),
            1,
        ),
        (
            FORMATS[4].1.to_owned(),
            &[],
            "",
            "<|tool_call_start|>[now(), find(kind=\"x\", all=True, what=\"it's\"), add(a=1, b=2)]<|tool_call_end|>"
                .into(),
            3,
        ),
    ];
    for (words, special, opening, text, calls) in cases {
        let world = World::new(&words, special);
        let variables = json!({ "opening": opening });
        let asked = json!({ "tool_choice": "required", "chat_template_kwargs": variables });
        let read = world.read(&asked).unwrap_or_else(|error| panic!("{words}: {error:?}"));
        let begin = || read.sampling.constraint.as_ref().unwrap().begin();
        let ids = world.tokenizer.encode(&text, false).unwrap();
        let (may, ends) = allowed(&mut *begin(), &ids);
        let rest = world.tokenizer.decode(&ids[may..]).unwrap();
        assert!(may == ids.len() && ends, "{words}: of {text:?} may not come: {rest:?}");
        let found = world.calls(&read, &ids);
        assert!(found.len() == calls && found.iter().all(follows), "{text}: {found:?}");
        // Neither a tool that does not exist, nor words instead of a call, nor the end in the middle of one.
        let unknown = world.tokenizer.encode(&text.replace("find", "look"), false).unwrap();
        assert!(allowed(&mut *begin(), &unknown).0 < unknown.len(), "{text}");
        let words_instead = world.tokenizer.encode("It is 5.", false).unwrap();
        let thinks_first = opening.ends_with("<think>\n");
        assert!(thinks_first || allowed(&mut *begin(), &words_instead).0 == 0, "{text}");
        assert!(!allowed(&mut *begin(), &ids[..ids.len() - 2]).1, "{text}");
    }
}

/// Calls follow their schemas to the letter, as other answers do, or do not come.
#[test]
fn a_schema_that_would_not_be_followed_is_refused_by_the_name_of_its_tool() {
    let object = |argument: Value| json!({ "type": "object", "properties": { "a": argument } });
    let either = object(json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }));
    let mut lenient = object(json!({ "type": "integer" }));
    lenient["x-guidance"] = json!({ "lenient": true });
    let mut coerced = either.clone();
    coerced["x-guidance"] = json!({ "coerce_one_of": true });
    for number in [0, 4, 6] {
        let world = World::new(FORMATS[number].1, FORMATS[number].2);
        let read = |parameters: &Value, choice: Value| {
            let tool = json!({ "function": { "name": "g3", "parameters": parameters } });
            world.read(&json!({ "tools": [{ "function": { "name": "now" } }, tool], "tool_choice": choice }))
        };
        for (parameters, words) in [
            (object(json!({ "type": "integer", "maximun": 5 })), "`maximun` is no keyword"),
            (object(json!({ "type": "integer", "minimum": (1u64 << 53) + 1 })), "would be rounded"),
            (object(json!({ "type": "array", "items": { "type": "integer" }, "uniqueItems": true })), "uniqueItems"),
            (lenient.clone(), "would follow the schema in part"),
            (either.clone(), "{\"coerce_one_of\": true}"),
        ] {
            let error = read(&parameters, "required".into()).map(drop).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tools")), "{error:?}");
            let begin = "`tools`: the parameters of `g3`: ";
            assert!(error.message.starts_with(begin) && error.message.contains(words), "{number}: {}", error.message);
            let other = json!({ "type": "function", "function": { "name": "now" } });
            assert!(read(&parameters, other).is_ok() && read(&parameters, "auto".into()).is_ok(), "{parameters}");
        }
        // The way out that is named.
        read(&coerced, "required".into()).map(drop).unwrap_or_else(|error| panic!("{number}: {error:?}"));
    }
}

/// Formats that write each argument alone leave the rest of a schema out.
#[test]
fn a_tool_is_not_blamed_for_parts_of_its_schema_that_its_format_does_not_write() {
    let unique = json!({ "type": "array", "items": { "type": "integer" }, "uniqueItems": true });
    let object = |argument: &Value| json!({ "type": "object", "properties": { "a": argument } });
    let mut loose = object(&json!({ "type": "integer" }));
    loose["additionalProperties"] = unique.clone();
    let tool = |name: &str, parameters: &Value| json!({ "function": { "name": name, "parameters": parameters } });
    for number in [4, 6] {
        let world = World::new(FORMATS[number].1, FORMATS[number].2);
        let mut asked = json!({ "tools": [tool("g1", &loose)], "tool_choice": "required" });
        world.read(&asked).map(drop).unwrap_or_else(|error| panic!("{number}: {error:?}"));
        asked["tools"] = json!([tool("g1", &loose), tool("g2", &object(&unique))]);
        let error = world.read(&asked).map(drop).unwrap_err();
        let begin = "`tools`: the parameters of `g2`: ";
        assert!(error.message.starts_with(begin) && error.message.contains("uniqueItems"), "{number}: {error:?}");
    }
}

#[test]
fn tools_that_are_too_long_are_refused_before_they_are_looked_into() {
    let world = World::new(FORMATS[0].1, FORMATS[0].2);
    let unique = json!({ "type": "array", "items": { "type": "integer" }, "uniqueItems": true });
    let tool = |name: &str, title: usize| {
        let parameters =
            json!({ "type": "object", "properties": { "a": unique, "b": { "title": "a".repeat(title) } } });
        json!({ "function": { "name": name, "parameters": parameters } })
    };
    for (tools, begin) in [
        ([tool("g1", 9), tool("g2", 300_000)], "`tools`: the parameters of `g2`: it has 300"),
        ([tool("g1", 200_000), tool("g2", 200_000)], "`tools`: it has 40"),
    ] {
        let error = world.read(&json!({ "tools": tools, "tool_choice": "required" })).map(drop).unwrap_err();
        let is_bound_told = error.message.contains("bytes, and a grammar may have 262144");
        assert!(error.message.starts_with(begin) && is_bound_told, "{error:?}");
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tools")), "{error:?}");
    }
}

#[test]
fn what_cannot_be_made_to_come_is_refused_by_its_name() {
    let world = World::new(FORMATS[0].1, &[]);
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let begun = json!([{ "role": "user", "content": "go" }, { "role": "assistant", "content": "so" }]);
    for (more, param, words) in [
        (json!({ "tool_choice": "sometimes" }), "tool_choice", "takes auto, none, required"),
        (json!({ "tool_choice": { "type": "allowed_tools" } }), "tool_choice", "takes auto, none, required"),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice", "takes auto, none, required"),
        (json!({ "tool_choice": "required", "tools": [] }), "tool_choice", "needs `tools`"),
        (json!({ "tool_choice": named("look") }), "tool_choice", "names `look`, and none"),
        (json!({ "tool_choice": named("add"), "tools": null }), "tool_choice", "names `add`, and none"),
        (
            json!({ "tool_choice": "required", "response_format": { "type": "json_object" } }),
            "tool_choice",
            "`response_format` both say",
        ),
        (json!({ "tool_choice": "required", "messages": begun }), "tool_choice", "has begun"),
        (
            json!({ "tool_choice": "required", "tools": [{ "function": { "name": "f", "parameters": { "type": "object",
                "properties": { "a": { "type": "nonsense" } } } } }] }),
            "tools",
            "nonsense",
        ),
    ] {
        let error = world.read(&more).map(drop).unwrap_err();
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{more}: {error:?}");
        assert!(error.message.contains(words), "{more}: {}", error.message);
    }
    let forced = json!({ "tool_choice": "required" });
    let gemma = World::new("<|tool_call>call:", &[]).read(&forced).map(drop).unwrap_err();
    assert!(gemma.param.as_deref() == Some("tool_choice") && gemma.message.contains("Gemma 4"), "{gemma:?}");
    let pattern = json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": "a+" } } });
    let mut strict =
        json!({ "tools": [{ "function": { "name": "f", "parameters": pattern } }], "tool_choice": "required" });
    assert!(world.read(&strict).is_ok(), "JSON follows it");
    let tags = World::new(FORMATS[6].1, &[]);
    let error = tags.read(&strict).map(drop).unwrap_err();
    assert!(error.message.contains("the tool `f`: the argument `a`: the keyword `pattern`"), "{error:?}");
    strict["tool_choice"] = "auto".into();
    assert!(tags.read(&strict).is_ok());
}
