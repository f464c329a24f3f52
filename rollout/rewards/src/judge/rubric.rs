//! The text that a judge gets.

use serde_json::Value;

use crate::{RewardCompletion, RewardInput, opened};

/// What stands for the completion, and for all messages of a conversation.
const COMPLETION: &str = "completion";
const CONVERSATION: &str = "conversation";
/// What stands for the prompt.
const PROMPT: &str = "prompt";

/// A text with places for values, written `{{ name }}`: `prompt`, `completion`, `conversation`, and columns of the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rubric(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(String),
}

impl Rubric {
    /// Reads a text.
    ///
    /// # Errors
    /// A place that is not closed or has no name, and a text without the completion.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, place)) = rest.split_once("{{") {
            let (name, after) = place.split_once("}}").ok_or("a `{{` has no `}}`")?;
            let name = name.trim();
            if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
                return Err(format!("`{{{{{name}}}}}` names no column: write {{{{ name }}}}"));
            }
            parts.extend([Part::Text(before.to_owned()), Part::Value(name.to_owned())]);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let shows = |part: &Part| matches!(part, Part::Value(name) if name == COMPLETION || name == CONVERSATION);
        if !parts.iter().any(shows) {
            return Err("the judge would not see what it judges: write {{ completion }} where it belongs".to_owned());
        }
        Ok(Self(parts))
    }

    /// The text for a completion.
    ///
    /// # Errors
    /// A column that the row does not have.
    pub fn fill(&self, input: &RewardInput, completion: &RewardCompletion) -> Result<String, String> {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Value(name) => text.push_str(&value(name, input, completion)?),
            }
        }
        Ok(text)
    }
}

fn value(name: &str, input: &RewardInput, completion: &RewardCompletion) -> Result<String, String> {
    let conversation = completion.conversation.as_deref();
    match name {
        COMPLETION => Ok(completion.text.clone()),
        CONVERSATION => {
            let messages = conversation.map(|conversation| written(&conversation.messages));
            Ok(messages.unwrap_or_else(|| completion.text.clone()))
        }
        PROMPT => {
            let opening = conversation.and_then(|conversation| conversation.opening.as_deref());
            let messages = input.messages.as_deref().map(|messages| opened(messages, opening));
            Ok(match messages.as_deref() {
                Some([only]) => text_of(&only["content"]),
                Some(messages) => written(messages),
                None => input.prompt.to_string() + opening.unwrap_or_default(),
            })
        }
        column => match input.columns.get(column) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Null) => Err(format!("the rubric asks for `{column}`, which is null in the row")),
            Some(value) => Ok(value.to_string()),
            None => {
                let columns: Vec<&str> = input.columns.keys().map(String::as_str).collect();
                Err(format!("the rubric asks for `{column}`, and the row has the columns {}", columns.join(", ")))
            }
        },
    }
}

/// Messages below each other, each after its role.
fn written(messages: &[Value]) -> String {
    let message = |message: &Value| {
        let calls = message.get("tool_calls").map(|calls| format!(" {calls}")).unwrap_or_default();
        format!("{}: {}{calls}", message["role"].as_str().unwrap_or_default(), text_of(&message["content"]))
    };
    messages.iter().map(message).collect::<Vec<_>>().join("\n\n")
}

/// The text of a content, also of one in blocks.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use shared::FinishReason;

    use super::*;
    use crate::Conversation;

    #[test]
    fn places_get_the_values_of_the_row_and_the_completion() {
        let rubric = Rubric::parse("Q: {{prompt}}\nA: {{ completion }}\n({{ answer }}, {{ level }})").unwrap();
        let mut input = RewardInput {
            prompt: "<user>2+3?".into(),
            columns: Arc::new(json!({"answer": "five", "level": 2}).as_object().unwrap().clone()),
            ..RewardInput::default()
        };
        let completion = RewardCompletion::of_one_turn("It is {{ answer }}.", vec![1], FinishReason::Stop);
        assert_eq!(rubric.fill(&input, &completion).unwrap(), "Q: <user>2+3?\nA: It is {{ answer }}.\n(five, 2)");
        let nothing = json!({"answer": "five", "level": null}).as_object().unwrap().clone();
        let without = RewardInput { columns: Arc::new(nothing), ..input.clone() };
        let error = rubric.fill(&without, &completion).unwrap_err();
        assert_eq!(error, "the rubric asks for `level`, which is null in the row");
        input.messages = Some([json!({"role": "user", "content": "2+3?"})].into());
        let messages = vec![
            json!({"role": "assistant", "content": "", "tool_calls": [1]}),
            json!({"role": "tool", "content": [{"type": "text", "text": "5"}]}),
        ];
        let conversation = Some(Arc::new(Conversation { messages, opening: Some(" Go.".to_owned()) }));
        let completion = RewardCompletion { conversation, ..completion };
        let all = Rubric::parse("{{ prompt }} / {{ conversation }}").unwrap();
        assert_eq!(all.fill(&input, &completion).unwrap(), "2+3? Go. / assistant:  [1]\n\ntool: 5");
        let missing = Rubric::parse("{{ completion }} {{ solution }}").unwrap().fill(&input, &completion);
        assert!(missing.unwrap_err().contains("`solution`, and the row has the columns answer, level"));
    }

    #[test]
    fn a_text_that_cannot_be_a_rubric_is_refused() {
        for (text, words) in [
            ("{{ completion", "has no `}}`"),
            ("{{ }} {{ completion }}", "names no column"),
            ("{{ a b }} {{ completion }}", "`{{a b}}` names no column"),
            ("How good is it?", "{{ completion }}"),
        ] {
            let refused = Rubric::parse(text).unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }
}
