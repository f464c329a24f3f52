//! The JSON schema of `run.toml`, by which editors complete and check it. It is made of the options' declarations.
//!
//! The schema knows each option by itself. Combinations of options are checked by [`TrainConfig::validate`] alone.
//!
//! [`TrainConfig::validate`]: super::TrainConfig::validate

use serde_json::{Map, Value, json};

use super::{OPTIONS, OptionSpec, ValueKind, schedule};
use crate::declare::Bounds;

/// The dialect of JSON Schema: the newest that the usual editors of TOML understand.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// Options that belong to one run, so that a sweep varies none of them.
pub const OF_ONE_RUN: [&str; 2] = ["output_dir", "resume_from_checkpoint"];

/// The word that takes the value of an optional key back.
const NONE: &str = "none";

/// The schema of a `run.toml`, as JSON Schema of draft 7.
#[must_use]
pub fn schema() -> Value {
    let mut properties = Map::new();
    for option in OPTIONS {
        properties.insert(option.key.to_owned(), of_option(option));
        for alias in option.aliases {
            properties.insert((*alias).to_owned(), json!({ "$ref": format!("#/properties/{}", option.key) }));
        }
    }
    properties.insert("sweep".to_owned(), of_sweep());
    json!({
        "$schema": DIALECT,
        "title": "run.toml of Tandem",
        "description": "The options of a run. `tandem train run.toml --dry-run` also checks what fits together.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

/// The table of `tandem sweep`: lists of values.
fn of_sweep() -> Value {
    let mut lists = Map::new();
    for option in OPTIONS.iter().filter(|option| !OF_ONE_RUN.contains(&option.key)) {
        for key in [option.key].iter().chain(option.aliases) {
            let value = json!({ "$ref": format!("#/properties/{}", option.key) });
            let list = json!({ "type": "array", "items": value, "minItems": 1, "uniqueItems": true });
            lists.insert((*key).to_owned(), list);
        }
    }
    json!({
        "description": "Lists of values, of which `tandem sweep` makes a run for each combination. `tandem train` \
            refuses the table.",
        "type": "object",
        "additionalProperties": false,
        "properties": lists,
    })
}

/// The schema as the text of a file.
///
/// # Panics
/// Never: every value of the schema can be written.
#[must_use]
pub fn text() -> String {
    serde_json::to_string_pretty(&schema()).expect("a value of JSON") + "\n"
}

fn of_option(option: &OptionSpec) -> Value {
    let mut schema = Map::from_iter([("description".to_owned(), description(option).into())]);
    if let Some(default) = option.default_value() {
        schema.insert("default".to_owned(), default.clone());
    }
    let mut forms = vec![of_kind(option)];
    if option.share.is_some() {
        forms.push(json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 }));
    }
    if option.bounds.infinite {
        // JSON has no infinity: a value `inf` of TOML reaches the check of an editor as `null`.
        forms.push(json!({ "type": "null" }));
    }
    let takes_texts = matches!(
        option.kind,
        ValueKind::Text | ValueKind::Path | ValueKind::Paths | ValueKind::Table | ValueKind::TextOrTable
    );
    if option.absent.is_some() && !takes_texts {
        forms.push(json!({ "const": NONE }));
    }
    let form = if forms.len() == 1 { forms.remove(0) } else { json!({ "anyOf": forms }) };
    if let Value::Object(form) = form {
        schema.extend(form);
    }
    Value::Object(schema)
}

/// The values of an option's own type.
fn of_kind(option: &OptionSpec) -> Value {
    let text = || match option.may_be_empty {
        true => json!({ "type": "string" }),
        false => json!({ "type": "string", "minLength": 1 }),
    };
    let texts = || json!({ "type": "array", "items": text() });
    match option.kind {
        ValueKind::Flag => json!({ "type": "boolean" }),
        ValueKind::Whole => {
            let low = option.bounds.low.or(Some((0.0, true)));
            let high = option.bounds.high.or(option.most.map(|most| (most as f64, true)));
            within("integer", &Bounds { low, high, ..option.bounds })
        }
        ValueKind::Number => within("number", &option.bounds),
        ValueKind::Text | ValueKind::Path => text(),
        ValueKind::Paths => json!({ "anyOf": [text(), texts()] }),
        ValueKind::Choice(values) => {
            let words = values.iter().flat_map(|value| [value.word].into_iter().chain(value.aliases.iter().copied()));
            json!({ "enum": words.collect::<Vec<_>>() })
        }
        ValueKind::Texts => texts(),
        ValueKind::TextOrTable => json!({ "anyOf": [
            text(),
            { "type": "object", "additionalProperties": text() }
        ] }),
        ValueKind::Numbers => json!({ "type": "array", "items": within("number", &option.bounds) }),
        ValueKind::Table => {
            let mut table = Map::from_iter([("type".to_owned(), "object".into())]);
            if option.key == "lr_scheduler_kwargs" {
                table.insert("additionalProperties".to_owned(), false.into());
                table.insert("properties".to_owned(), schedule::schema_of_settings());
            }
            // The text of a JSON object, as `config.toml` of a run has it.
            json!({ "anyOf": [table, { "type": "string" }] })
        }
    }
}

/// Numbers of a type within bounds.
fn within(kind: &str, bounds: &Bounds) -> Value {
    let mut schema = Map::from_iter([("type".to_owned(), kind.into())]);
    for (end, included, excluded) in
        [(bounds.low, "minimum", "exclusiveMinimum"), (bounds.high, "maximum", "exclusiveMaximum")]
    {
        if let Some((end, belongs)) = end {
            let word = if belongs { included } else { excluded };
            let whole = end.fract() == 0.0;
            schema.insert(word.to_owned(), if whole { (end as i64).into() } else { end.into() });
        }
    }
    Value::Object(schema)
}

/// The meaning of an option, of its absence and of its values, as Markdown.
fn description(option: &OptionSpec) -> String {
    let mut text = option.doc.to_owned();
    if let Some(meaning) = option.absent {
        text.push_str(&format!("\n\nAbsent by default: {meaning}."));
    }
    if let ValueKind::Choice(values) = option.kind {
        text.push('\n');
        text.extend(values.iter().map(|value| format!("\n- `{}`: {}", value.word, value.doc)));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use harness::json_schema::check;
    use toml::Table;

    use super::*;
    use crate::config::layers;

    /// Whether the reader takes a line of a file, and the value is within its bounds. What the arguments of a schedule
    /// may be is checked with the schedule; which schedule needs some, no schema says.
    fn is_read(line: &str) -> bool {
        let read = layers::parse(line, Path::new("run.toml"), &Vec::new());
        let checks_schedule = line.starts_with("lr_scheduler_kwargs");
        read.is_ok_and(|config| {
            config.out_of_bounds().is_empty() && (!checks_schedule || config.check_schedule().is_ok())
        })
    }

    fn is_valid(schema: &Value, line: &str) -> bool {
        let file = serde_json::to_value(line.parse::<Table>().unwrap()).unwrap();
        check(schema, &file).is_ok()
    }

    /// Values of all types, and numbers on both sides of each bound, as TOML.
    fn samples(option: &OptionSpec) -> Vec<String> {
        let of_any = r#"true 0 1 2 -1 0.5 -0.5 1.5 inf "x" "none" [] ["x"] [0.5] [-1] [true] {a=1} {num_cycles="x"}"#;
        let of_widths = "2.0 -2.0 1e3 4294967295 5000000000 5e9 1e19";
        let mut samples: Vec<String> = of_any.split(' ').chain(of_widths.split(' ')).map(str::to_owned).collect();
        let step = if option.kind == ValueKind::Whole { 1.0 } else { 1e-3 };
        for (end, _) in [option.bounds.low, option.bounds.high].into_iter().flatten() {
            samples.extend([end - step, end, end + step].map(|number| number.to_string()));
            samples.push(format!("[{end}]"));
        }
        if let ValueKind::Choice(values) = option.kind {
            let words = values.iter().flat_map(|value| [value.word].into_iter().chain(value.aliases.iter().copied()));
            samples.extend(words.map(|word| format!("{word:?}")));
        }
        samples
    }

    #[test]
    fn the_schema_takes_what_the_reader_takes() {
        let (schema, mut refused) = (schema(), 0);
        for option in OPTIONS {
            for sample in samples(option) {
                // A schema cannot look into a text for the JSON of a table.
                if option.kind == ValueKind::Table && sample == "\"x\"" {
                    continue;
                }
                for key in [option.key].iter().chain(option.aliases) {
                    let line = format!("{key} = {sample}");
                    let valid = is_valid(&schema, &line);
                    assert_eq!(valid, is_read(&line), "{line}");
                    refused += usize::from(!valid);
                }
            }
        }
        assert!(refused > 1000, "only {refused}");
        assert!(!is_valid(&schema, "learning_rat = 1e-6") && !is_read("learning_rat = 1e-6"));
    }

    #[test]
    fn defaults_and_examples_are_valid() {
        let schema = schema();
        for option in OPTIONS {
            if let Some(default) = option.default_value() {
                let file = Value::Object(Map::from_iter([(option.key.to_owned(), default.clone())]));
                assert_eq!(check(&schema, &file), Ok(()), "{}", option.key);
            }
        }
        assert!(is_valid(&schema, "lr_scheduler_kwargs = { num_decay_steps = 5, decay_type = \"1-sqrt\" }"));
        assert!(is_valid(&schema, "lr_scheduler_kwargs = '{\"power\": 2}'"));
        assert!(!is_valid(&schema, "lr_scheduler_kwargs = { num_decay_step = 5 }"));
        assert!(is_valid(&schema, "chat_template_kwargs = { enable_thinking = false }"));
    }

    #[test]
    fn a_sweep_has_lists_of_the_values_of_options() {
        let schema = schema();
        for (line, valid) in [
            ("sweep = { learning_rate = [1e-6, 1e-5], seed = [1, 2], eps_clip = [0.1] }", true),
            ("sweep = { reward_funcs = [[\"a\"], [\"a\", \"b\"]] }", true),
            ("sweep = { learning_rate = 1e-6 }", false),
            ("sweep = { learning_rate = [] }", false),
            ("sweep = { seed = [1, 1] }", false),
            ("sweep = { seed = [-1] }", false),
            ("sweep = { output_dir = [\"a\", \"b\"] }", false),
            ("sweep = { learning_rat = [1e-6] }", false),
        ] {
            assert_eq!(is_valid(&schema, line), valid, "{line}");
        }
    }

    #[test]
    fn a_property_says_type_bounds_default_and_meaning() {
        let properties = &schema()["properties"];
        assert_eq!(properties["epsilon"]["type"], "number");
        assert_eq!(properties["epsilon"]["exclusiveMaximum"], 1);
        assert_eq!(properties["epsilon"]["default"], 0.2);
        assert_eq!(properties["eps_clip"], json!({ "$ref": "#/properties/epsilon" }));
        assert_eq!(properties["model"].get("default"), None);
        let device = properties["rollout_device"]["description"].as_str().unwrap();
        assert!(device.starts_with("Where the sampler computes.") && device.contains("\n- `cuda`: "), "{device}");
    }
}
