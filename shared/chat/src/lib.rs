//! Chat templates, rendered the way transformers' `apply_chat_template` renders them.

mod nesting;

use std::{io, thread};

use minijinja::{
    Environment, Error, ErrorKind, Value as TemplateValue,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use serde::Serialize;
use serde_json::{Map, Value, ser};
use shared_bounds::{OneLine, guarded};
use time::OffsetDateTime;

/// A chat template that does not compile, or messages it cannot render.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template's source is wrong.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template raised an error.
    #[error("the chat template cannot render the messages: {0}")]
    Render(String),
    /// The assistant's last message does not come out of the template as it went in.
    #[error("the chat template drops or rewrites the last assistant message, so it cannot be continued")]
    LostPrefill,
}

/// Steps that a template may take for one prompt: a conversation of a thousand messages takes some ten thousand, and a loop
/// that does not end is ended within a second.
const FUEL: u64 = 10_000_000;

/// Bytes of memory that a template may take for one prompt: steps can each double a text.
const MOST_MEMORY: u64 = 1 << 30;

/// Whose memory it is, for the message.
const WHAT: &str = "the chat template of the model";

/// Most spaces that JSON may be indented by.
const MOST_INDENT: usize = 64;

/// Bytes of the stack on which a template is compiled and rendered, taken as they are used: see [`nesting`].
const STACK: usize = 256 << 20;

/// Name of the one template of an environment.
const NAME: &str = "chat";
/// Marks the end of the message to be continued while the template renders it (transformers does the same).
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A compiled chat template with the special tokens of its tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// Compiles a template. `tokenizer_config` is `tokenizer_config.json`, where the special tokens come from; `now` is what
    /// `strftime_now` shows, which must not change from prompt to prompt.
    ///
    /// # Errors
    /// [`TemplateError::Compile`].
    pub fn new(source: &str, tokenizer_config: &Value, now: OffsetDateTime) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        // Jinja2 as transformers sets it up: trim_blocks, lstrip_blocks, a final newline removed, no escaping.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(|e| TemplateError::Compile(message(&e)))?;
        environment.set_syntax(syntax.clone());
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        // Python's None is not iterable; minijinja's is, as an empty list.
        environment.add_test("iterable", |value: &TemplateValue| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| strftime(now, format));
        nesting::add_to(&mut environment);
        let source = nesting::bounded(&without_generation_tags(source), &syntax).map_err(TemplateError::Compile)?;
        let compile = || guarded(WHAT, MOST_MEMORY, || environment.add_template_owned(NAME, source));
        on_large_stack(compile)
            .map_err(|e| TemplateError::Compile(format!("no thread for it: {e}")))?
            .map_err(TemplateError::Compile)?
            .map_err(|e| TemplateError::Compile(message(&e)))?;
        Ok(Self { environment, special_tokens: special_tokens(tokenizer_config) })
    }

    /// Renders a prompt to be completed. A last message of the assistant is left open (`continue_final_message`),
    /// anything else is followed by the opening of the assistant's turn (`add_generation_prompt`).
    ///
    /// # Errors
    /// What the template says about the messages, or [`TemplateError::LostPrefill`].
    pub fn render_prompt(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<String, TemplateError> {
        let Some(prefill) = prefill(messages) else {
            return self.render(messages, true, variables);
        };
        let mut messages = messages.to_vec();
        if let Some(last) = messages.last_mut() {
            last["content"] = format!("{prefill}{CONTINUE}").into();
        }
        let mut text = self.render(&messages, false, variables)?;
        let end = text.rfind(CONTINUE.trim_end()).ok_or(TemplateError::LostPrefill)?;
        if !text.contains(prefill.trim()) {
            return Err(TemplateError::LostPrefill);
        }
        let trimmed = !text[end..].starts_with(CONTINUE);
        text.truncate(end);
        if trimmed {
            // The template strips messages: so it would have stripped the unmarked one.
            text.truncate(text.trim_end().len());
        }
        Ok(text)
    }

    /// Renders messages, with or without the opening of the assistant's turn at the end.
    ///
    /// # Errors
    /// [`TemplateError::Render`].
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        // transformers always passes these two, so templates test them for none, not for being defined.
        let mut all: Map<String, Value> = [("tools", Value::Null), ("documents", Value::Null)]
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect();
        all.extend(self.special_tokens.clone());
        all.extend(variables.clone());
        all.insert("messages".into(), messages.iter().map(without_nulls).collect());
        all.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let template = self.environment.get_template(NAME).expect("the template was added at construction");
        let render = || guarded(WHAT, MOST_MEMORY, || template.render(TemplateValue::from(Serde(all))));
        on_large_stack(render)
            .map_err(|e| TemplateError::Render(format!("no thread for it: {e}")))?
            .map_err(TemplateError::Render)?
            .map_err(|e| TemplateError::Render(message(&e)))
    }
}

/// The text of a last assistant message: the beginning of the completion, given in advance.
#[must_use]
pub fn prefill(messages: &[Value]) -> Option<&str> {
    let last = messages.last()?;
    if last["role"] == "assistant" { last["content"].as_str() } else { None }
}

/// A message without the keys that hold nothing, as transformers 5 hands it to templates: they ask whether a key is there,
/// and messages of Parquet and Arrow have every key that any message has. What lies deeper stays, as it does there.
fn without_nulls(message: &Value) -> Value {
    match message {
        Value::Object(keys) => {
            keys.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())).collect()
        }
        other => other.clone(),
    }
}

/// `bos_token`, `eos_token` and so on; each is a text or an object with `content`.
fn special_tokens(config: &Value) -> Map<String, Value> {
    let Some(config) = config.as_object() else { return Map::new() };
    let text = |value: &Value| value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned);
    config
        .iter()
        .filter(|(key, _)| key.ends_with("_token"))
        .filter_map(|(key, value)| Some((key.clone(), text(value)?.into())))
        .collect()
}

/// transformers' `{% generation %}` blocks only mark text for its training masks: their content is rendered as it is.
fn without_generation_tags(source: &str) -> String {
    let opening = regex::Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}").expect("a valid pattern");
    let closing = regex::Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}").expect("a valid pattern");
    let source = opening.replace_all(source, "{%$1 if true $2%}");
    closing.replace_all(&source, "{%$1 endif $2%}").into_owned()
}

fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work)?;
        Ok(thread.join().expect("panics of templates are caught within"))
    })
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime(now: OffsetDateTime, format: &str) -> Result<String, Error> {
    let fail = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}"));
    let items = time::format_description::parse_strftime_owned(format).map_err(|e| fail(&e))?;
    now.format(&items).map_err(|e| fail(&e))
}

/// What minijinja says, without its multi-line excerpt.
fn message(error: &Error) -> String {
    let place = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("{}{place}", OneLine(detail))
}

/// Python's `json.dumps(value, ensure_ascii=False)`: `", "` and `": "` between items, nothing escaped for HTML.
struct PythonFormatter;

impl ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

fn to_json(value: &TemplateValue, kwargs: Kwargs) -> Result<TemplateValue, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    // Accepted for compatibility: this is how the filter works anyway.
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let mut bytes = Vec::new();
    let result = match indent {
        Some(width) if width > MOST_INDENT => {
            let reason = format!("tojson: indent is {width}, and may be {MOST_INDENT}");
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        Some(width) => {
            let indent = " ".repeat(width);
            let formatter = ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, PythonFormatter)),
    };
    result.map_err(|e| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    let text = String::from_utf8(bytes).expect("JSON is UTF-8");
    Ok(TemplateValue::from_safe_string(text))
}

#[cfg(test)]
mod tests;
