//! Messages of rows as the model's chat template writes them.

use serde_json::Value;
use shared::ModelDir;
use shared_chat::{ChatTemplate, OpenError};
use shared_data::{Content, Values};
use time::OffsetDateTime;

use crate::error::LearnerError;

/// Renders messages with the model's chat template, if it has one.
#[derive(Debug)]
pub struct Conversations {
    template: Option<ChatTemplate>,
}

impl Conversations {
    /// With the chat template of a model; without one, rows must have texts.
    ///
    /// # Errors
    /// A file that cannot be read, or a template that does not compile.
    pub fn open(model: &ModelDir) -> Result<Self, LearnerError> {
        let opened = ChatTemplate::of_model(model, OffsetDateTime::now_utc()).map_err(|error| match error {
            OpenError::Directory(error) => error.into(),
            OpenError::Template(error) => LearnerError::content(model.path(), error.to_string()),
        });
        Ok(Self { template: opened? })
    }

    /// Messages as a text.
    ///
    /// # Errors
    /// No template, or the template's own error about the messages.
    pub fn text(&self, messages: &[Value], variables: &Values) -> Result<String, String> {
        self.render(messages, false, variables)
    }

    /// Two texts: the prompt, which ends with the opening of the assistant's turn, and the rest of the text of `prompt`
    /// and `completion` together. The rest is the completion with whatever the template puts behind it.
    ///
    /// # Errors
    /// As [`Self::text`]; a template that writes the prompt differently where a completion follows, so that the model
    /// would be trained on a text that it never sees.
    pub fn prompt_and_completion(
        &self,
        prompt: &[Value],
        completion: &[Value],
        variables: &Values,
    ) -> Result<(String, String), String> {
        let before = self.render(prompt, true, variables)?;
        let whole = self.render(&[prompt, completion].concat(), false, variables)?;
        match whole.strip_prefix(&before) {
            Some(completion) => Ok((before, completion.to_owned())),
            None => {
                let same = before.chars().zip(whole.chars()).take_while(|(a, b)| a == b).count();
                let end: String = before.chars().skip(same).take(SHOWN).collect();
                Err(format!(
                    "the chat template writes `prompt` otherwise where `completion` follows: {end:?} at its end is not \
                     there; write the completion as the template expects it, or both as texts"
                ))
            }
        }
    }

    /// Role and words of a message that the chat template has passed over. Words of the assistant do not count, because
    /// templates leave out thoughts.
    #[must_use]
    pub fn lost(&self, messages: &[Value], rendered: &str) -> Option<String> {
        let message = &messages[self.template.as_ref()?.lost(messages, rendered)?];
        let text: String = shared_chat::text_of(&message["content"]).unwrap_or_default().chars().take(SHOWN).collect();
        Some(format!("of role `{}`: {text:?}", message["role"].as_str().unwrap_or_default()))
    }

    fn render(&self, messages: &[Value], opens: bool, variables: &Values) -> Result<String, String> {
        let template = self.template.as_ref().ok_or(
            "the model has no chat template for messages; add chat_template.jinja to the model directory, or write \
             texts",
        )?;
        template.render(messages, opens, variables).map_err(|error| error.to_string())
    }
}

/// Characters that are shown of a lost message.
const SHOWN: usize = 60;

/// A column as a text or messages; absent if the row does not have it.
///
/// # Errors
/// A value that is neither.
pub fn content(key: &str, value: Option<Value>) -> Result<Option<Content>, String> {
    value.map(|value| shared_data::messages(key, value)).transpose()
}

/// The variables that a row gives its chat template beside messages.
///
/// # Errors
/// A text that should be JSON and is not.
pub fn variables(tools: Option<Value>, chat_template_kwargs: Option<Value>) -> Result<Values, String> {
    let columns = [("tools", tools), ("chat_template_kwargs", chat_template_kwargs)];
    let row: Values = columns.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    shared_data::template_variables(&row)
}
