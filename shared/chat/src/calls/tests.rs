//! Calls of all families: golden cases, templates there and back, turns in pieces, and texts that nobody meant.

use std::time::{Duration, Instant};

use proptest::{prelude::*, test_runner::TestRunner};
use time::OffsetDateTime;

use super::*;
use crate::ChatTemplate;

/// The families of the golden cases.
const FAMILIES: [(&str, Format); 9] = [
    ("qwen2.5", Format::Qwen),
    ("qwen3", Format::Qwen),
    ("qwen3.5", Format::Qwen35),
    ("nemotron3", Format::Nemotron3),
    ("glm4-moe", Format::Glm4Moe),
    ("llama3.1", Format::Llama31),
    ("gpt-oss", Format::GptOss),
    ("lfm2.5", Format::Lfm25),
    ("gemma4", Format::Gemma4),
];

/// Every case of the golden file: format, end of the prompt, text, tools, message.
fn golden() -> Vec<(String, Format, String, String, Tools, Value)> {
    let cases = harness::golden::cases(
        "tool_parsing.json",
        "tool_parsing",
        &["family"],
        &["prompt_end", "text", "tools"],
        &["message"],
    );
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let read = |case: Value| {
        let (inputs, family) = (&case["inputs"], &case["params"]["family"]);
        let format = FAMILIES.iter().find(|(name, _)| family == name).unwrap_or_else(|| panic!("{family}")).1;
        let tools = Tools::new(inputs["tools"].as_array().expect("a list"));
        let message = case["expected"]["message"].clone();
        (text(&case["name"]), format, text(&inputs["prompt_end"]), text(&inputs["text"]), tools, message)
    };
    cases.into_iter().map(read).collect()
}

#[test]
fn golden_tool_parsing() {
    for (name, format, prompt, text, tools, expected) in golden() {
        let found = parse(format, &prompt, &text, &tools).map_or(Value::Null, |turn| turn.into_message(format));
        assert_eq!(found, expected, "{name}: {text}");
    }
}

/// The text that a reader gives in these pieces, and its end.
fn pieces<'a>(mut reader: Reader, pieces: impl IntoIterator<Item = &'a str>, ended: bool) -> (String, Vec<Call>) {
    let mut text: String = pieces.into_iter().map(|piece| reader.push(piece)).collect();
    let end = reader.end(ended);
    text.push_str(&end.text);
    (text, end.calls)
}

/// What a reader makes of a turn does not depend on where it is cut, and a turn that was cut off is its own text.
#[test]
fn golden_turns_cut_at_every_place_are_what_they_are_as_a_whole() {
    for (name, format, prompt, text, tools, expected) in golden() {
        let of = |parts: &[&str], ended| pieces(Reader::new(format, &prompt, tools.clone()), parts.to_vec(), ended);
        let whole = of(&[&text], true);
        assert_eq!(of(&[&text], false), (text.clone(), Vec::new()), "{name}");
        for (at, _) in text.char_indices() {
            assert_eq!(of(&[&text[..at], &text[at..]], true), whole, "{name} at {at}");
        }
        let letters: Vec<&str> = text.split_inclusive(|_: char| true).collect();
        assert_eq!(of(&letters, true), whole, "{name}, letter by letter");
        // Half a call is none, also where the format reads it as one.
        let calls = expected["tool_calls"].as_array().map_or(0, Vec::len);
        let is_cut = name.ends_with("cut in the call");
        assert_eq!(whole.1.len(), if is_cut { 0 } else { calls }, "{name}");
        if whole.1.is_empty() {
            assert_eq!(whole.0, text, "{name}");
        }
    }
}

#[test]
fn special_tokens_are_marks_of_calls_and_no_text() {
    let mut reader = Reader::new(Format::Lfm25, "<|im_start|>assistant\n", Tools::default());
    let mut text = reader.push("I look it up. ");
    assert_eq!(text, "I look it up.");
    for piece in [reader.push_special("<|tool_call_start|>"), reader.push("[now()]")] {
        assert_eq!(piece, "");
    }
    text += &reader.push_special("<|tool_call_end|>");
    text += &reader.push_special("<|im_end|>");
    let end = reader.end(true);
    assert_eq!(end, End { text: String::new(), calls: vec![Call::new("now", json!({}))] });
    assert_eq!(text, "I look it up.");
    // Without a call, they are left out all the same.
    let mut reader = Reader::new(Format::Lfm25, "", Tools::default());
    let begun = reader.push_special("<|tool_call_start|>") + &reader.push("[now(") + &reader.push_special("<|im_end|>");
    assert_eq!(begun + &reader.end(true).text, "[now(");
}

#[test]
fn text_before_between_and_after_calls_stays_and_nothing_is_given_twice() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let of = |text: &str| pieces(Reader::new(Format::Qwen, "", Tools::default()), text.split_inclusive(' '), true);
    let (text, calls) = of(&format!("first one \n{call}\n and \n{call}{call}\nlast\n"));
    assert_eq!((text.as_str(), calls.len()), ("first one\nand\nlast\n", 3));
    assert_eq!(of(&format!("\n{call}\n")), (String::new(), vec![Call::new("f", json!({}))]));
    // A call that is thought about is none, and neither is one beside a broken call.
    let thought = format!("<think> {call} </think> no ");
    assert_eq!(of(&thought), (thought.clone(), Vec::new()));
    let broken = format!("a {call} b <tool_call>{{\"name\": 5}}</tool_call>");
    assert_eq!(of(&broken), (broken.clone(), Vec::new()));
    for arguments in ["[1]", "\"no object\"", "7"] {
        let text = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
        assert_eq!(of(&text), (text.clone(), Vec::new()));
    }
    let quoted = of("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>");
    assert_eq!(quoted.1, [Call::new("f", json!({"a": 1}))], "an object as a text of JSON");
}

/// Thoughts of Nemotron end without having begun: what may be among them waits for their end.
#[test]
fn a_call_before_the_end_of_thoughts_is_a_thought() {
    let call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
    let mut reader = Reader::new(Format::Nemotron3, "<|im_start|>assistant\n<think>\n", Tools::default());
    assert_eq!(reader.push(&format!("so {call} ")), "so");
    assert_eq!(reader.push("or</think>"), format!(" {call} or</think>"));
    assert_eq!(reader.push(call), "");
    assert_eq!(reader.end(true).calls.len(), 1);
    // A template that has closed the thoughts leaves none.
    let turn = parse(Format::Nemotron3, "<|im_start|>assistant\n<think></think>", call, &Tools::default()).unwrap();
    assert_eq!((turn.calls.len(), turn.reasoning), (1, None));
}

#[test]
fn forms_that_models_write_beside_those_of_their_templates_are_read() {
    for (format, text) in [
        (Format::GptOss, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>"),
        (Format::Llama31, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": 1}}<|eom_id|>"),
        (Format::Llama31, "{\"name\":\"f\",\"parameters\":{\"a\":1}}"),
        (Format::Glm4Moe, "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
        (Format::Lfm25, "<|tool_call_start|>[f(a=1)]<|tool_call_end|>"),
        (Format::Gemma4, "<|tool_call>call:f{ a:1}<tool_call|>"),
    ] {
        let tool = json!({"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}});
        let (_, calls) = pieces(Reader::new(format, "", Tools::new(&[tool])), [text], true);
        assert_eq!(calls, [Call::new("f", json!({"a": 1}))], "{format:?}: {text}");
    }
    let call = "<tool_call>{\"name\": \"f\", \"parameters\": {\"a\": 1}}</tool_call>";
    let read = pieces(Reader::new(Format::Qwen, "", Tools::default()), [call], true);
    assert_eq!(read, (call.to_owned(), Vec::new()), "not a call without arguments");
    let of = |block: &str| {
        let text = format!("<|tool_call_start|>{block}<|tool_call_end|>");
        let turn = parse(Format::Lfm25, "", &text, &Tools::default());
        turn.map(|turn| turn.calls.first().map_or(Value::Null, |call| call.arguments.clone()))
    };
    let values = "[f(a=\"x, (\\\"y\\\")\", b='it's (so), ok', c=['p', True, {'q': None}], d=False, e=-1.5)]";
    let expected =
        json!({"a": "x, (\"y\")", "b": "it's (so), ok", "c": ["p", true, {"q": null}], "d": false, "e": -1.5});
    assert_eq!(of(values), Some(expected));
    assert_eq!(of("[f(a=1) g()]"), None);
    assert_eq!(of("words"), Some(Value::Null), "text between the marks of a call");
    let cut =
        |text: &str| parse(Format::Lfm25, "", text, &Tools::default()).map(|turn| (turn.content, turn.calls.len()));
    assert_eq!(cut("so <|tool_call_start|>[do_"), Some(("so <|tool_call_start|>[do_".into(), 0)));
    assert_eq!(cut("so <|tool_call_start|>[f(a='x'"), Some(("so".into(), 1)));
}

#[test]
fn what_a_call_has_beside_name_and_arguments_keeps_its_order() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"x\": 1, \"y\": 2, \"z\": 3}</tool_call>";
    let turn = parse(Format::Qwen, "", text, &Tools::default()).unwrap();
    let keys: Vec<&str> = turn.calls[0].more.keys().map(String::as_str).collect();
    assert_eq!(keys, ["x", "y", "z"]);
}

/// Templates as small as can be, each with the calls of its family.
const TEMPLATES: [(Format, &str, &str); 8] = [
    (
        Format::Qwen,
        "<|im_start|>assistant\n",
        "{% for c in calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": \
         {{ c.function.arguments | tojson }}}\n</tool_call>\n{% endfor %}<|im_end|>",
    ),
    (
        Format::Qwen35,
        "<|im_start|>assistant\n",
        "{% for c in calls %}<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in \
         c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n\
         {% endfor %}</function>\n</tool_call>\n{% endfor %}<|im_end|>",
    ),
    (
        Format::Nemotron3,
        "<|im_start|>assistant\n<think></think>",
        "{% for c in calls %}<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in \
         c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n\
         {% endfor %}</function>\n</tool_call>\n{% endfor %}<|im_end|>{# <think></think> #}",
    ),
    (
        Format::Glm4Moe,
        "<|assistant|>",
        "{% for c in calls %}\n<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() \
         %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor \
         %}</tool_call>{% endfor %}<|observation|>",
    ),
    (
        Format::Llama31,
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "{% for c in calls %}{\"name\": \"{{ c.function.name }}\", {{ '\"parameters\": ' }}{{ c.function.arguments | \
         tojson }}}<|eot_id|>{% endfor %}{# tool_call #}",
    ),
    (
        Format::GptOss,
        "<|start|>assistant",
        "{% for c in calls %} to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>\
         {{ c.function.arguments | tojson }}<|call|>{% endfor %}",
    ),
    (
        Format::Lfm25,
        "<|im_start|>assistant\n",
        "<|tool_call_start|>[{% for c in calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() \
         %}{{ k }}={% if v is string %}'{{ v }}'{% elif v is mapping %}{{ v | tojson }}{% else %}{{ v }}{% endif \
         %}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]<|tool_call_end|><|im_end|>",
    ),
    (
        Format::Gemma4,
        "<|turn>model\n",
        "{% macro value(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is mapping %}{{ '{' }}{% for k, w in \
         v.items() %}{{ k }}:{{ value(w) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}{% else %}{{ v | tojson \
         }}{% endif %}{% endmacro %}{% for c in calls %}<|tool_call>call:{{ c.function.name }}\
         {{ value(c.function.arguments) }}<tool_call|>{% endfor %}<|tool_response>",
    ),
];

/// A template of messages around one of calls.
fn template(anchor: &str, calls: &str) -> ChatTemplate {
    let opening = Value::from(anchor).to_string();
    let source = format!(
        "{{% for t in tools or [] %}}{{{{ t.function.name }}}}{{% endfor %}}{{% for m in messages %}}{{% if m.role == \
         'assistant' %}}{{{{ {opening} }}}}{{{{ m.content }}}}{{% set calls = m.tool_calls or [] %}}{{% if calls \
         %}}{calls}{{% endif %}}{{% else %}}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
    );
    ChatTemplate::new(&source, Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap()
}

/// Calls, and tools that have the types of their arguments.
fn written(template: &ChatTemplate, format: Format, calls: &[Call], tools: &[Value]) -> Option<Turn> {
    let call = |call: &Call| json!({"type": "function", "function": {"name": call.name, "arguments": call.arguments}});
    let calls: Value = calls.iter().map(call).collect();
    let messages =
        [json!({"role": "user", "content": "Go."}), json!({"role": "assistant", "content": "", "tool_calls": calls})];
    let text = template.render(&messages, false, &Map::new()).unwrap();
    let begin = format.marks().anchors.iter().find_map(|anchor| Some(text.rfind(anchor)? + anchor.len())).unwrap();
    let behind = format.marks().after_anchor.iter().find(|word| text[begin..].starts_with(**word));
    let begin = begin + behind.map_or(0, |word| word.len());
    parse(format, &text[..begin], &text[begin..], &Tools::new(tools))
}

/// A value, and the type that a schema gives it. Texts have no spaces around them, which formats without JSON lose.
fn value() -> impl Strategy<Value = (&'static str, Value)> {
    let text = "[a-z0-9\"\\\\é東(){}:,;&/]([ -%*-;=?-~é東\n]{0,12}[a-z0-9\"\\\\é{}:;&/])?";
    let word = || "[a-z]{1,5}";
    prop_oneof![
        text.prop_map(|text| ("string", text.into())),
        any::<i32>().prop_map(|number| ("integer", number.into())),
        any::<bool>().prop_map(|on| ("boolean", on.into())),
        (-1000..1000).prop_map(|number| ("number", (f64::from(number) / 8.0 + 0.0625).into())),
        proptest::collection::vec(any::<i8>(), 0..4).prop_map(|many| ("array", many.into())),
        proptest::collection::btree_map(word(), any::<u8>(), 0..3).prop_map(|deep| ("object", json!({ "k": deep }))),
    ]
}

/// Calls of tools, and the tools.
fn calls(most: usize) -> impl Strategy<Value = (Vec<Call>, Vec<Value>)> {
    let arguments = proptest::collection::btree_map("[a-z_]{1,6}", value(), 0..5);
    let calls = proptest::collection::btree_map("[a-z][a-z0-9_]{0,8}", arguments, 1..=most);
    calls.prop_map(|calls| {
        let tool = |(name, arguments): (String, std::collections::BTreeMap<String, (&str, Value)>)| {
            let properties: Map<String, Value> =
                arguments.iter().map(|(key, (kind, _))| (key.clone(), json!({ "type": kind }))).collect();
            let values: Map<String, Value> = arguments.into_iter().map(|(key, (_, value))| (key, value)).collect();
            let function = json!({"name": name, "parameters": {"type": "object", "properties": properties}});
            (Call::new(name, values.into()), json!({"type": "function", "function": function}))
        };
        calls.into_iter().map(tool).unzip()
    })
}

proptest! {
    /// What a template writes is read again, for every format.
    #[test]
    fn calls_that_a_template_writes_are_read_again((all, tools) in calls(3)) {
        for (format, anchor, source) in TEMPLATES {
            let calls = if matches!(format, Format::Llama31 | Format::GptOss) { &all[..1] } else { &all[..] };
            let turn = written(&template(anchor, source), format, calls, &tools);
            let turn = turn.unwrap_or_else(|| panic!("{format:?}: {calls:?}"));
            prop_assert_eq!(&turn.calls, calls, "{:?}", format);
            prop_assert!(turn.whole && turn.content.is_empty(), "{:?}: {:?}", format, turn);
        }
    }
}

/// The same for the templates of Qwen2.5 and Qwen3.
#[test]
fn calls_that_qwens_templates_write_are_read_again() {
    let Some(data) = harness::data_dir("calls_that_qwens_templates_write_are_read_again") else { return };
    for file in ["chat_template.jinja", "qwen3.chat_template.jinja"] {
        let source = std::fs::read_to_string(data.join("tokenizers/qwen2.5").join(file)).unwrap();
        let template = ChatTemplate::new(&source, Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap();
        let support = template.tool_support();
        assert!(support.tools && support.calls && support.replies, "{file}: {support:?}");
        assert_eq!((support.arguments, support.format), (Arguments::Object, Some(Format::Qwen)), "{file}");
        let read_again = |(calls, tools): (Vec<Call>, Vec<Value>)| {
            let turn = written(&template, Format::Qwen, &calls, &tools).expect("calls");
            prop_assert_eq!((&turn.calls, turn.content.as_str()), (&calls, ""));
            Ok(())
        };
        TestRunner::default().run(&calls(3), read_again).unwrap();
    }
}

#[test]
fn a_template_shows_its_format_and_what_it_leaves_out() {
    for (format, anchor, source) in TEMPLATES {
        let support = template(anchor, source).tool_support();
        let all =
            ToolSupport { tools: true, calls: true, replies: true, arguments: Arguments::Object, format: Some(format) };
        assert_eq!(support, all, "{format:?}");
    }
    let of = |source: &str| ChatTemplate::new(source, Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap().tool_support();
    let none = ToolSupport { tools: false, calls: false, replies: false, arguments: Arguments::Object, format: None };
    assert_eq!(of("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"), none);
    assert_eq!(of("{{ raise_exception('no') }}"), none);
    let content = "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}";
    assert_eq!(of(content), ToolSupport { replies: true, ..none });
    let text = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name + \
                c.function.arguments }}{% endfor %}{% endfor %}";
    let wants_text = ToolSupport { calls: true, replies: true, arguments: Arguments::Text, ..none };
    assert_eq!(of(text), wants_text, "as DeepSeek's does");
    let apart = ChatTemplate::new(content, Map::new(), OffsetDateTime::UNIX_EPOCH).unwrap();
    let tools = "{{ tools[0].function.name }}{% for m in messages %}{{ m }}{% endfor %}<tool_call></tool_call>";
    let support = apart.with_tool_use(Some(tools)).unwrap().tool_support();
    assert!(support.tools && support.calls && support.format == Some(Format::Qwen), "{support:?}");
}

/// Marks again and again: a parser that looks for each mark's end anew would take minutes.
#[test]
fn the_time_grows_with_the_text_alone() {
    const BYTES: usize = 1 << 15;
    let units = [
        "<tool_call>",
        "<tool_call>{",
        "<tool_call> ",
        "<tool_call><function=",
        "<parameter=",
        "<parameter=a>",
        "<arg_key>",
        "<arg_key>a</arg_key><arg_value>",
        "{\"name\": \"",
        "<think></think>",
        "</think>",
        "<|tool_call_start|>",
        "a='x, ",
        "a=\"x, ",
        "a=[",
        "<|channel|>commentary to=functions.",
        "<|tool_call>call:",
        "<|\"|>",
        ",a:",
        " ",
    ];
    for format in Format::ALL {
        let opening = match format {
            Format::Qwen => "<tool_call>",
            Format::Qwen35 | Format::Nemotron3 => "<tool_call><function=a>",
            Format::Glm4Moe => "<tool_call>a\n",
            Format::Llama31 => "{\"name\": \"a\", \"parameters\": ",
            Format::GptOss => "to=functions.a<|channel|>commentary json<|message|>",
            Format::Lfm25 => "<|tool_call_start|>[a(",
            Format::Gemma4 => "<|tool_call>call:a{",
        };
        for (unit, beginning) in units.iter().flat_map(|unit| [(unit, ""), (unit, opening)]) {
            let text = format!("{beginning}{}", unit.repeat(BYTES / unit.len()));
            let begun = Instant::now();
            let _ = parse(format, "", &text, &Tools::default());
            let mut reader = Reader::new(format, "", Tools::default());
            let mut given: String = text.split_inclusive(['a', '>', ' ']).map(|part| reader.push(part)).collect();
            given.push_str(&reader.end(false).text);
            assert!(given == text, "{format:?} {beginning}{unit}");
            let time = begun.elapsed();
            assert!(time < Duration::from_secs(4), "{format:?} {beginning}{unit}: {time:?}");
        }
    }
}
