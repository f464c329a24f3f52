//! Figures of the peers: schemas of transformers, replies and rewards of TRL.

use std::{fs, sync::Arc, time::Duration};

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use serde_json::{Map, Value, json};
use shared::config::rewards::PythonPlace;
use tokio::runtime::Runtime;

use super::super::{InPython, Named};
use crate::{
    process::Hosts,
    testing::{Folder, nothing, row, sample, sources},
};

/// Functions that are refused here, though transformers gives them a schema: a model cannot call them as they are.
fn has_stars(schema: &Value) -> bool {
    let properties = schema["function"]["parameters"]["properties"].as_object().unwrap();
    properties.contains_key("args") || properties.contains_key("kwargs")
}

#[test]
fn golden_tool_schemas() {
    for case in harness::golden::cases(
        "tool_schemas.json",
        "tool_schema",
        &[],
        &["prelude", "source"],
        &["schema?", "refused?", "about?"],
    ) {
        let (name, inputs) = (case["name"].as_str().unwrap(), &case["inputs"]);
        let text = |key: &str| inputs[key].as_str().unwrap();
        let (mut source, is_class) = (text("source").to_owned(), text("source").starts_with("class "));
        if is_class {
            source += "\n    def reset(self):\n        pass\n";
        }
        let folder = Folder::with(&format!("{}\n{source}\n", text("prelude")));
        let (tools, class) = if is_class { (vec![], Some(name)) } else { (vec![name], None) };
        let found = folder.start(&tools, class);
        match &case["expected"]["schema"] {
            schema if schema.is_object() && !has_stars(schema) => {
                let environments = found.unwrap_or_else(|error| panic!("{name}: {error}"));
                // As texts: a template writes the keys in their order.
                assert_eq!(environments.tools(&row(nothing())).unwrap()[0].to_string(), schema.to_string(), "{name}");
            }
            _ => {
                let error = found.err().unwrap_or_else(|| panic!("{name} is not refused")).to_string();
                assert!(error.contains("e.py, line ") && error.contains(&format!("tool `{name}`")), "{error}");
            }
        }
    }
}

/// The Python file beside the golden figures.
fn named(name: &Value) -> Named {
    let name = name.as_str().unwrap().to_owned();
    let place = PythonPlace::File(harness::golden_dir().join("turns_env.py"));
    Named { entry: format!("turns_env.py:{name}"), place, name }
}

/// Each class of a case with the name that chooses it.
fn classes(environment: &Value) -> Vec<(Option<String>, Named)> {
    match environment {
        Value::Null => Vec::new(),
        Value::Object(table) => table.iter().map(|(key, class)| (Some(key.clone()), named(class))).collect(),
        class => vec![(None, named(class))],
    }
}

/// Whether a number has lost digits since it was read.
fn is_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.as_f64().is_some_and(|x| x.abs() > 2_f64.powi(64)),
        Value::Array(values) => values.iter().any(is_rounded),
        Value::Object(fields) => fields.values().any(is_rounded),
        _ => false,
    }
}

#[test]
fn golden_turns() {
    let runtime = Runtime::new().unwrap();
    let golden = harness::golden("turns.json");
    let mut turns = 0;
    for case in golden["cases"].as_array().unwrap() {
        let (name, inputs, expected) = (&case["name"], &case["inputs"], &case["expected"]);
        let tools: Vec<Named> = inputs["tool_functions"].as_array().unwrap().iter().map(named).collect();
        let classes = classes(&inputs["environment"]);
        let host = sources(&std::env::temp_dir()).host;
        let by_name: Vec<_> = classes.iter().map(|(key, class)| (key.as_deref(), class)).collect();
        let python = InPython { tools: tools.iter().collect(), classes: by_name, raters: Vec::new() };
        let handle = runtime.handle().clone();
        let invocation = python.invocation(&host, Duration::from_secs(20)).unwrap();
        let (hosts, first_line) = Hosts::start(invocation, 1, handle).unwrap();
        let greeting = hosts.greeted(&first_line).unwrap();
        assert_eq!(Value::from(greeting.tools.clone()).to_string(), inputs["tools"].to_string(), "{name}");
        for found in greeting.environments {
            let all = [greeting.tools.clone(), found.tools].concat();
            let wanted = &inputs["environment_tools"][found.key.as_deref().unwrap_or("None")];
            assert_eq!(Value::from(all).to_string(), wanted.to_string(), "{name}");
        }
        let episodes = inputs["episodes"].as_array().unwrap().iter().zip(expected["episodes"].as_array().unwrap());
        for (index, (episode, expected_of)) in episodes.enumerate() {
            let of_case = Conversation { name, episode, expected: expected_of };
            let rewards = expected["rewards"].as_object().unwrap().iter().filter(|(name, _)| *name != "score");
            let reward = rewards.map(|(_, rewards)| &rewards[index]).next().unwrap_or(&Value::Null);
            turns += runtime.block_on(of_case.check(&hosts, inputs["environment"].is_object(), reward));
        }
    }
    assert!(turns > 50, "{turns}");
}

/// A conversation of a case.
struct Conversation<'a> {
    name: &'a Value,
    episode: &'a Value,
    expected: &'a Value,
}

impl Conversation<'_> {
    /// Runs all calls, and returns the number of turns with calls.
    async fn check(&self, hosts: &Arc<Hosts>, chooses: bool, reward: &Value) -> usize {
        let seat = hosts.enter(sample(1, 0)).unwrap();
        let ask = |wanted, fields: Value| {
            let fields = fields.as_object().unwrap().clone();
            seat.host.ask((seat.episode, wanted), fields, None)
        };
        let mut row: Map<String, Value> = self.episode["row"].as_object().unwrap().clone();
        let key = if chooses { row.remove("environment") } else { None };
        let opening = ask("open", json!({"environment": key, "row": row})).await.unwrap();
        let last = self.expected["prompt_messages"].as_array().unwrap().last().unwrap();
        let before = row
            .get("prompt")
            .map_or("", |messages| messages.as_array().unwrap().last().unwrap()["content"].as_str().unwrap());
        let text = opening["text"].as_str().unwrap_or_default();
        assert_eq!(last["content"], format!("{before}{text}"), "{}", self.name);
        let mut turns = 0;
        for turn in self.expected["turns"].as_array().unwrap().iter().filter(|turn| turn["replies"].is_array()) {
            let functions = turn["message"]["tool_calls"].as_array().unwrap().iter().map(|call| &call["function"]);
            let calls: Vec<Value> = functions.cloned().collect();
            if calls.iter().any(is_rounded) {
                continue;
            }
            let step = ask("step", json!({"calls": calls})).await.unwrap();
            let reply = |reply: &Value| json!({"role": "tool", "name": reply["name"], "content": reply["content"]});
            let replies: Vec<Value> = step["replies"].as_array().unwrap().iter().map(reply).collect();
            // Replies in the order of the calls, where TRL has another one.
            let wanted = &self.expected["wanted"]["replies"];
            let wanted = if wanted.is_array() { wanted } else { &turn["replies"] };
            assert_eq!(Value::from(replies), *wanted, "{}: {calls:?}", self.name);
            turns += 1;
        }
        let score = ask("score", json!({})).await.unwrap();
        let near = |wanted: f64| score["reward"].as_f64().is_some_and(|score| (score - wanted).abs() < 1e-6);
        assert!(reward.as_f64().map_or(score["reward"].is_null(), near), "{}: {score} and {reward}", self.name);
        hosts.leave(seat);
        turns
    }
}

/// A type hint with its schema.
fn hint() -> impl Strategy<Value = (String, Value)> {
    let plain = [
        ("int", "integer"),
        ("float", "number"),
        ("str", "string"),
        ("bool", "boolean"),
        ("list", "array"),
        ("dict", "object"),
    ];
    let plain = prop::sample::select(plain.to_vec()).prop_map(|(hint, name)| (hint.to_owned(), json!({"type": name})));
    let chosen =
        prop::sample::select(vec![("Literal['a', 2]", json!({"type": ["string", "integer"], "enum": ["a", 2]}))]);
    let leaf = prop_oneof![
        plain,
        Just(("Any".to_owned(), json!({}))),
        chosen.prop_map(|(hint, schema)| (hint.to_owned(), schema))
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let list = inner
            .clone()
            .prop_map(|(hint, schema)| (format!("list[{hint}]"), json!({"type": "array", "items": schema})));
        let dict = inner.clone().prop_map(|(hint, schema)| {
            (format!("dict[str, {hint}]"), json!({"type": "object", "additionalProperties": schema}))
        });
        let pair = (inner.clone(), inner.clone()).prop_map(|((a, first), (b, second))| {
            (format!("tuple[{a}, {b}]"), json!({"type": "array", "prefixItems": [first, second]}))
        });
        let optional = inner.prop_filter_map("once", |(hint, mut schema)| {
            // `Optional[Any]` and optional optionals are other types.
            if hint == "Any" || hint.starts_with("Optional") {
                return None;
            }
            schema["nullable"] = true.into();
            Some((format!("Optional[{hint}]"), schema))
        });
        prop_oneof![list, dict, pair, optional]
    })
}

#[test]
fn hints_of_any_depth_become_schemas() {
    const MANY: usize = 200;
    let mut runner = TestRunner::deterministic();
    let hints: Vec<(String, Value)> = (0..MANY).map(|_| hint().new_tree(&mut runner).unwrap().current()).collect();
    let mut text = "from typing import *\n\n\n".to_owned();
    for (number, (hint, _)) in hints.iter().enumerate() {
        text += &format!("def f{number}(a: {hint}):\n    \"\"\"Does.\n\n    Args:\n        a: It.\n    \"\"\"\n\n\n");
    }
    let names: Vec<String> = (0..MANY).map(|number| format!("f{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let environments = Folder::with(&text).start(&names, None).unwrap();
    let row = row(nothing());
    for ((hint, mut schema), tool) in hints.into_iter().zip(environments.tools(&row).unwrap()) {
        schema["description"] = "It.".into();
        assert_eq!(tool["function"]["parameters"]["properties"]["a"].to_string(), schema.to_string(), "{hint}");
    }
}

#[test]
fn odd_docstrings_are_read_as_transformers_reads_them() {
    let text = r#"
class Odd:
    def reset(self):
        pass

    def a(self, x: int, y: int = 1):
        """Does: a thing.

        It has Args: in its text.

        Args:
            x:
                The first line
                goes on.

            y: Has a colon: and (choices: [1, 2])

        Raises:
            ValueError: never.
        """

    def b(self) -> int:
        """
        Begins late.
        Returns:
            A number
            of two lines.
        """

    @staticmethod
    def c(x: int):
        """Static.

        Args:
          x: Little indented.
            Deeper.
        """

    def d(self, x: int, y: str, z: float = 0.5, w: int = 1):
        """Has types.

        Args:
            x (int): The first line
                goes on (as it may): with a colon.
                more (int): Deeper, so no argument.
            y (`str`, *optional*):
                Late.
            z(float, defaults to 0.5): Close to its type.
            w  (): Has brackets with nothing in them (choices: [1, 2])

        Returns:
            str: A text.
        """
"#;
    let mut sources = sources(&std::env::temp_dir());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("odd.py"), text).unwrap();
    sources.host.dir = folder.path().to_owned();
    sources.environment_factory = Some("odd.py:Odd".parse().unwrap());
    let environments = crate::Environments::start(&sources).unwrap();
    let row = row(nothing());
    let tools = environments.tools(&row).unwrap();
    let functions: Vec<&Value> = tools.iter().map(|tool| &tool["function"]).collect();
    // The words that begin a section count wherever they stand.
    assert_eq!(functions[0]["description"], "Does: a thing.\n\nIt has");
    let properties = &functions[0]["parameters"]["properties"];
    assert_eq!(properties["x"]["description"], "The first line goes on.");
    assert_eq!(properties["y"], json!({"type": "integer", "description": "Has a colon: and", "enum": [1, 2]}));
    assert_eq!(functions[1]["description"], "Begins late.");
    assert_eq!(functions[1]["return"], json!({"type": "integer", "description": "A number\n    of two lines."}));
    assert_eq!(functions[2]["parameters"]["properties"]["x"]["description"], "Little indented. Deeper.");
    let properties = &functions[3]["parameters"]["properties"];
    let first = "The first line goes on (as it may): with a colon. more (int): Deeper, so no argument.";
    let descriptions = ["x", "y", "z", "w"].map(|name| properties[name]["description"].as_str().unwrap());
    assert_eq!(descriptions, [first, "Late.", "Close to its type.", "Has brackets with nothing in them"]);
    assert_eq!(properties["w"]["enum"], json!([1, 2]));
}
