//! Keys that change prompts and the ends of completions: chat templates and their variables, and texts that end a
//! completion.

use std::path::Path;

use serde_json::{Map, Value};
use shared::config::on_hub;

use super::rules::{Options, Refusal, top_k};

/// Values by their names, as the variables of a chat template, given as keys below one key, or as one value; a null
/// value counts as absent.
pub fn named_values(given: Option<Value>, below: Option<Value>) -> Result<Option<Map<String, Value>>, String> {
    let mut variables = match given {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map,
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => map,
            _ => return Err("it must be a mapping of names to values".to_owned()),
        },
        Some(_) => return Err("it must be a mapping of names to values".to_owned()),
    };
    // Dotted names stand for nested mappings.
    for (name, value) in below.and_then(|below| below.as_object().cloned()).unwrap_or_default() {
        let mut place = &mut variables;
        let mut parts = name.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                place.insert(part.to_owned(), value.clone());
                break;
            }
            let inner = place.entry(part).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(map) = inner else { break };
            place = map;
        }
    }
    variables.retain(|_, value| !value.is_null());
    Ok(Some(variables).filter(|variables| !variables.is_empty()))
}

/// A chat template: the path of a template, or why a text cannot be taken.
///
/// # Errors
/// A template that is written out, with what to do about it.
pub fn template(value: &Value) -> Result<Value, std::borrow::Cow<'static, str>> {
    match value.as_str() {
        Some(text) if text.contains(['{', '\n']) => {
            Err("it is a template written out; write it to a file, and name that".into())
        }
        Some(text)
            if !Path::new(text).exists() && !text.ends_with(".jinja") && on_hub(text, Path::new("")).is_some() =>
        {
            Err("it is a name on the Hub; download its chat_template.jinja, or tokenizer_config.json, and name the \
                file or folder"
                .into())
        }
        _ => Ok(value.clone()),
    }
}

/// Settings of generation that have an option of the same meaning.
const GENERATION: [(&str, &str); 9] = [
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("repetition_penalty", "repetition_penalty"),
    ("max_tokens", "max_completion_length"),
    ("max_new_tokens", "max_completion_length"),
    ("stop", "stop"),
    ("stop_strings", "stop"),
];

/// Settings that change nothing here, whatever their value, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    ("seed", "one seed serves the whole run: seed"),
    ("use_cache", "keys and values are always kept"),
    ("detokenize", "completions are always texts too"),
];

/// A line on each setting of generation that is given and changes nothing here.
pub fn without_effect(key: &str, given: &Map<String, Value>) -> Vec<String> {
    let is_given = |name: &str| given.get(name).is_some_and(|value| !value.is_null());
    let given = WITHOUT_EFFECT.iter().filter(|(name, _)| is_given(name));
    given.map(|(name, why)| format!("{key}.{name} has no effect: {why}")).collect()
}

/// Whether a value is what training does anyhow: it always samples, and `num_generations` says how often.
fn is_neutral(name: &str, value: &Value) -> bool {
    match name {
        "do_sample" => value.is_null() || *value == Value::Bool(true),
        "n" => value.is_null() || value.as_u64() == Some(1),
        _ => value.is_null() || *value == Value::Bool(false) || value.as_f64() == Some(0.0),
    }
}

/// The options that settings of generation lead to, and the settings without an option.
pub fn generation(key: &str, given: &Map<String, Value>) -> (Options, Vec<Refusal>) {
    let (mut options, mut refusals) = (Options::new(), Vec::new());
    for (name, value) in given {
        match GENERATION.iter().find(|(theirs, _)| theirs == name) {
            Some((_, "stop")) => {
                let list = if value.is_string() { vec![value.clone()].into() } else { value.clone() };
                options.push(("stop".to_owned(), list));
            }
            Some((_, "top_k")) => options.push(("top_k".to_owned(), top_k(value).unwrap_or_else(|_| value.clone()))),
            Some((_, option)) => options.push(((*option).to_owned(), value.clone())),
            None if is_neutral(name, value) || WITHOUT_EFFECT.iter().any(|(it, _)| it == name) => {}
            None => refusals.push((
                format!("{key}.{name}"),
                String::new(),
                "it changes completions and has no counterpart; take it out of the file if the run may go without"
                    .to_owned(),
            )),
        }
    }
    (options, refusals)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_are_read_in_every_spelling() {
        let expected = json!({ "enable_thinking": false });
        for (given, below) in [
            (json!({ "enable_thinking": false, "other": null }), json!({})),
            (json!("{\"enable_thinking\": false}"), json!({})),
            (json!(null), json!({ "enable_thinking": false })),
        ] {
            let found = named_values(Some(given), Some(below)).unwrap();
            assert_eq!(found.map(Value::Object), Some(expected.clone()));
        }
        let nested = named_values(None, Some(json!({ "a.b": 1, "a.c": 2 }))).unwrap().unwrap();
        assert_eq!(Value::Object(nested), json!({ "a": { "b": 1, "c": 2 } }));
        assert_eq!(named_values(None, Some(json!({}))), Ok(None));
        assert!(named_values(Some(json!([1])), None).is_err());
    }

    #[test]
    fn settings_of_generation_are_options_or_refused() {
        let given = json!({ "stop": "</answer>", "top_p": 0.9, "max_new_tokens": 5, "presence_penalty": 0.5,
            "do_sample": true });
        let (options, refusals) = generation("generation_kwargs", given.as_object().unwrap());
        let names: Vec<&str> = options.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["stop", "top_p", "max_completion_length"]);
        assert_eq!(options[0].1, json!(["</answer>"]));
        assert_eq!(refusals.len(), 1);
        assert_eq!(refusals[0].0, "generation_kwargs.presence_penalty");
        let given = json!({ "do_sample": false, "n": 2, "num_beams": 0, "seed": 3 });
        let refused: Vec<String> =
            generation("g", given.as_object().unwrap()).1.into_iter().map(|(key, ..)| key).collect();
        assert_eq!(refused, ["g.do_sample", "g.n"]);
    }
}
