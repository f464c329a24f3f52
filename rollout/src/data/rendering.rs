//! Messages to text with marks, and text with marks to ids: control tokens come from the template alone.
//!
//! Conversations of a run, requests of the endpoint and prompts of messages all go this way. So the same messages have
//! the same ids wherever they come from.

use serde_json::{Map, Value};
use shared_chat::{ChatTemplate, TemplateError, prefill};
use shared_tokenizer::{ControlTokens, Marks};

use super::{Tokenizer, TokenizerError};

/// Variables of templates that hold texts from elsewhere. Others are settings.
const OF_TEXTS: [&str; 2] = ["tools", "documents"];

/// A rendered text whose control tokens from elsewhere are marked.
#[derive(Debug)]
pub struct Marked {
    /// The text with its marks.
    pub text: String,
    /// Which characters the marks are.
    pub marks: Marks,
}

impl Marked {
    /// The text from a byte on, as the template writes it.
    #[must_use]
    pub fn plain(&self, from: usize) -> String {
        self.marks.removed_from(&self.text[from..])
    }

    /// The text for a person, who sees no marks of places.
    pub(crate) fn shown(&self, from: usize) -> String {
        self.plain(from).replace(self.marks.places, "…")
    }
}

impl Tokenizer {
    /// The control tokens of tokenizer and template.
    pub(crate) fn control_tokens(&self) -> &ControlTokens {
        let writes = |text: &str| self.template().is_some_and(|template| template.writes(text));
        self.control.get_or_init(|| self.text_tokenizer().control_tokens(writes))
    }

    /// Marks that none of these values has.
    ///
    /// # Errors
    /// When they have all characters that could be marks.
    pub(crate) fn marks<'a>(&'a self, values: impl IntoIterator<Item = &'a Value>) -> Result<Marks, TokenizerError> {
        let writes = |text: &str| self.template().is_some_and(|template| template.writes(text));
        let values = values.into_iter().chain(self.template_kwargs().values());
        let full = || TokenizerError::Encode("the messages have every rare character that could mark a place".into());
        Marks::unused_in(values, |mark| writes(mark.encode_utf8(&mut [0; 4]))).ok_or_else(full)
    }

    /// The prompt of messages, as [`Tokenizer::render`] renders it, with marks around control tokens that no template
    /// wrote.
    ///
    /// # Errors
    /// As those of [`Tokenizer::render`].
    pub fn prompt(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<Marked, TokenizerError> {
        let marks = self.marks(messages.iter().chain(variables.values()))?;
        self.render_marked(messages, variables, marks)
    }

    /// Token ids of such a prompt.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub fn prompt_ids(&self, prompt: &Marked) -> Result<Vec<u32>, TokenizerError> {
        self.encode_marked(&prompt.text, &prompt.marks, true)
    }

    /// As [`Tokenizer::prompt`], with marks that messages and variables do not have.
    ///
    /// # Errors
    /// As those of [`Tokenizer::render`].
    pub(crate) fn render_marked(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        marks: Marks,
    ) -> Result<Marked, TokenizerError> {
        let control = self.control_tokens();
        let mut variables = variables.clone();
        for (_, texts) in variables.iter_mut().filter(|(name, _)| OF_TEXTS.contains(&name.as_str())) {
            *texts = control.mark(texts, &marks);
        }
        let rendered = self.render(&self.marked(messages, &marks), &variables);
        let mut text = rendered.map_err(|error| match error {
            TokenizerError::Template(TemplateError::Render(reason)) => {
                TokenizerError::Template(TemplateError::Render(marks.removed_from(&reason)))
            }
            other => other,
        })?;
        // A template that escapes letters has escaped the marks too.
        let escapes =
            |template: &ChatTemplate| template.writes("ensure_ascii=true") || template.writes("ensure_ascii=True");
        if self.template().is_some_and(escapes) {
            text = marks.unescaped_in(&text);
        }
        Ok(Marked { text, marks })
    }

    /// Ids of a marked text. `begins` says whether it begins a prompt.
    ///
    /// # Errors
    /// When the tokenizer cannot represent the text.
    pub(crate) fn encode_marked(&self, text: &str, marks: &Marks, begins: bool) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.text_tokenizer().encode_marked(text, marks, self.control_tokens(), begins);
        ids.map_err(TokenizerError::Encode)
    }

    /// Messages with marks in their texts. The beginning of an answer has none: it is encoded as the policy would have
    /// drawn it. A system message is the author's, who may name `<think>` in it and means the token.
    fn marked(&self, messages: &[Value], marks: &Marks) -> Vec<Value> {
        let control = self.control_tokens();
        let begun = prefill(messages).map(|_| messages.len() - 1);
        let mark = |(at, message): (usize, &Value)| {
            let mut marked = control.mark(message, marks);
            let is_trusted = ["assistant", "system", "developer"].iter().any(|role| message["role"] == *role);
            if let Some(content) = message.get("content").filter(|_| is_trusted) {
                marked["content"] =
                    if begun == Some(at) { content.clone() } else { control.mark_special(content, marks) };
            }
            marked
        };
        messages.iter().enumerate().map(mark).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::data::testing::{BOS, byte_tokenizer_and, byte_tokenizer_with};

    /// As Qwen3's: thoughts of the assistant are looked for and left out, tools come first.
    const TEMPLATE: &str = "{% if tools %}{{ tools | tojson(ensure_ascii=true) }}{% endif %}{% for m in messages \
        %}{{ m.role }}:{{ m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content \
        }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    const END: u32 = BOS + 1;

    fn tokenizer() -> Tokenizer {
        byte_tokenizer_with(Some(TEMPLATE), &["<|im_end|>"])
    }

    fn ids(messages: &Value, variables: &Value) -> Vec<u32> {
        let tokenizer = tokenizer();
        let prompt = tokenizer.prompt(messages.as_array().unwrap(), variables.as_object().unwrap()).unwrap();
        let ids = tokenizer.prompt_ids(&prompt).unwrap();
        assert_eq!(tokenizer.text_tokenizer().decode_all(&ids).unwrap(), prompt.plain(0));
        ids
    }

    #[test]
    fn control_tokens_of_messages_and_tools_are_text() {
        let messages = json!([{"role": "user", "content": "a<|im_end|>b"}]);
        let found = ids(&messages, &json!({"tools": [{"description": "<|im_end|>é"}]}));
        let text = "[{\"description\": \"<|im_end|>\\u00e9\"}]user:a<|im_end|>b";
        let bytes = |text: &str| tokenizer().encode(&text.replace("<|im_end|>", "<!im_end!>"), false).unwrap();
        assert_eq!(found.len(), bytes(text).len() + 1 + bytes("assistant:").len(), "a byte each");
        assert_eq!(found.iter().position(|id| *id == END), Some(text.len()));
        assert_eq!(found.iter().filter(|id| **id == END).count(), 1);
    }

    #[test]
    fn of_a_system_message_special_tokens_alone_are_text() {
        let tokenizer = byte_tokenizer_and(TEMPLATE, &["<|im_end|>"], "</think>");
        let count = |role: &str, content: &str, token: u32| {
            let prompt = tokenizer.prompt(&[json!({"role": role, "content": content})], &Map::new()).unwrap();
            tokenizer.prompt_ids(&prompt).unwrap().into_iter().filter(|id| *id == token).count()
        };
        assert_eq!([count("system", "a</think>", END + 1), count("user", "a</think>", END + 1)], [1, 0]);
        assert_eq!([count("system", "a<|im_end|>", END), count("user", "a<|im_end|>", END)], [1; 2], "the template's");
    }

    #[test]
    fn prompts_without_control_tokens_are_encoded_as_ever() {
        let tokenizer = tokenizer();
        let messages = json!([
            {"role": "system", "content": "> quoted <"}, {"role": "user", "content": ["a", "b"]},
            {"role": "assistant", "content": "<think>\nso\n</think>\n\n5"}, {"role": "user", "content": "é\u{2a6df}"}
        ]);
        let text = tokenizer.render(messages.as_array().unwrap(), &Map::new()).unwrap();
        assert_eq!(ids(&messages, &json!({})), tokenizer.encode(&text, false).unwrap());
        assert!(text.contains("assistant:5<|im_end|>"), "{text}");
    }

    #[test]
    fn the_beginning_of_an_answer_has_the_tokens_that_its_text_has() {
        let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b<|im_end|>c"}]);
        let found = ids(&messages, &json!({}));
        assert_eq!(found.iter().filter(|id| **id == END).count(), 2);
        let earlier = json!([messages[0], messages[1], messages[0]]);
        assert_eq!(ids(&earlier, &json!({})).iter().filter(|id| **id == END).count(), 3, "one after each message");
    }

    #[test]
    fn errors_of_templates_show_no_marks() {
        let refusing = "{{ raise_exception('no ' ~ messages[0].content) }}";
        let tokenizer = byte_tokenizer_with(Some(refusing), &["<|im_end|>"]);
        let error = tokenizer.prompt(&[json!({"role": "user", "content": "<|im_end|>"})], &Map::new()).unwrap_err();
        assert!(error.to_string().contains("cannot render the messages: no <|im_end|>"), "{error}");
    }
}
