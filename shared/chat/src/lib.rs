//! Chat templates, rendered the way transformers' `apply_chat_template` renders them.
//!
//! minijinja runs the templates. This crate adds named templates, Python's methods, values as Python writes them, the
//! switches of a template, and a search for words of messages that a template leaves out. The sampler renders prompts
//! with it; `learner sft` and `learner reward-model` render their rows with it. [`calls`] reads the calls of tools that
//! a model writes.

pub mod calls;
mod content;
mod model;
mod nesting;
mod python;
pub mod turn;
mod written;

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use minijinja::{Environment, Error, ErrorKind, Value as TemplateValue, syntax::SyntaxConfig, value::Serde};
use serde_json::{Map, Value, json};
use shared_bounds::{OneLine, guarded};
use time::OffsetDateTime;

use calls::ToolSupport;
pub use content::text_of;
pub use model::OpenError;

/// A chat template that does not compile, or messages it cannot render.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template's source is wrong.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template raised an error.
    #[error("the chat template cannot render the messages: {0}")]
    Render(String),
    /// A message has a part that is no text.
    #[error("message {index} has a part {kind}, and the model takes text alone; leave such rows out, or such parts")]
    Part {
        /// The message, from 0.
        index: usize,
        /// The kind of the part.
        kind: String,
    },
    /// The assistant's last message does not come out of the template as it went in.
    #[error("the chat template drops or rewrites the last assistant message, so it cannot be continued")]
    LostPrefill,
}

/// Steps that a template may take for one prompt: a conversation of a thousand messages takes some ten thousand, and an
/// endless loop is ended within a second.
pub const FUEL: u64 = 10_000_000;

/// How long a template may take for one prompt, in [`LOOKS`] looks of this length: a single step may sort a long list,
/// and a prompt takes milliseconds. A machine that slept meanwhile has used up one look only.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: u32 = 50;

/// Steps that each millisecond beyond the first look counts as, if the template took fewer: they bound the time of all
/// prompts together.
const STEPS_OF_A_MILLISECOND: u64 = 2_000;

/// Bytes of memory that a template may take for one prompt: steps can each double a text.
const MOST_MEMORY: u64 = 1 << 30;

/// The owner of that memory, for the message.
const WHAT: &str = "the chat template of the model";

/// Bytes of the stack on which a template is compiled and rendered; the system maps them as they are used. See
/// [`nesting`].
const STACK: usize = 256 << 20;

/// Name of the template of an environment.
const NAME: &str = "chat";
/// Name of the template for messages with tools, if that is another one.
const TOOL_USE: &str = "tool_use";
/// Variables that every template is given, and functions that it may call.
const GIVEN: [&str; 4] = ["messages", "add_generation_prompt", "raise_exception", "strftime_now"];
/// Roles that chat templates write.
const USUAL_ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
/// A word that stands nowhere else.
const TRIAL: &str = "words_c2e8a5d1";
/// Most roles that are remembered: clients of an endpoint choose them.
const MOST_ROLES: usize = 64;
/// Marks the end of the message to be continued while the template renders it (transformers does the same).
const CONTINUE: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A compiled chat template with the special tokens of its tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    /// Shared with renderings that nobody waits for any more.
    environment: Arc<Environment<'static>>,
    syntax: SyntaxConfig,
    special_tokens: Map<String, Value>,
    has_tool_use: bool,
    /// Steps of all renderings together.
    steps: AtomicU64,
    /// What it does with tools, once somebody has asked.
    tool_support: OnceLock<ToolSupport>,
    /// Whether it writes messages of a role, of those that were tried.
    roles: Mutex<HashMap<String, bool>>,
}

impl ChatTemplate {
    /// Compiles a template. `special_tokens` are texts that it knows by the names `bos_token`, `eos_token` and so on;
    /// `now` is what `strftime_now` shows, which must not change from prompt to prompt. [`of_model`](Self::of_model)
    /// opens the template of a model.
    ///
    /// # Errors
    /// [`TemplateError::Compile`].
    pub fn new(source: &str, special_tokens: Map<String, Value>, now: OffsetDateTime) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        // Jinja2 as transformers sets it up: trim_blocks, lstrip_blocks, a final newline removed, no escaping.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(|e| TemplateError::Compile(message(&e)))?;
        environment.set_syntax(syntax.clone());
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        python::add_to(&mut environment);
        written::add_to(&mut environment);
        // Python's None is not iterable; minijinja's is, as an empty list.
        environment.add_test("iterable", |value: &TemplateValue| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| strftime(now, format));
        nesting::add_to(&mut environment);
        let environment = Arc::new(environment);
        let mut template = Self {
            environment,
            syntax,
            special_tokens,
            has_tool_use: false,
            steps: AtomicU64::new(0),
            tool_support: OnceLock::new(),
            roles: Mutex::default(),
        };
        template.add(NAME, source)?;
        Ok(template)
    }

    /// Adds another template for messages with tools, as transformers takes the one that is named `tool_use`.
    ///
    /// # Errors
    /// [`TemplateError::Compile`].
    pub fn with_tool_use(mut self, source: Option<&str>) -> Result<Self, TemplateError> {
        if let Some(source) = source {
            self.add(TOOL_USE, source)?;
            self.has_tool_use = true;
        }
        Ok(self)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), TemplateError> {
        // Jinja2 reads every kind of line break in a template as "\n". Line breaks of messages stay as they are.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source =
            nesting::bounded(&without_generation_tags(&source), &self.syntax).map_err(TemplateError::Compile)?;
        let environment = Arc::get_mut(&mut self.environment).expect("nothing is rendered before all is compiled");
        let compile = || guarded(WHAT, MOST_MEMORY, || environment.add_template_owned(name, source));
        on_large_stack(compile)
            .map_err(|e| TemplateError::Compile(format!("no thread for it: {e}")))?
            .map_err(TemplateError::Compile)?
            .map_err(|e| TemplateError::Compile(message(&e)))
    }

    /// Steps that all renderings have taken together.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// The variables that the template reads and that callers do not always give: its switches, such as
    /// `enable_thinking`.
    #[must_use]
    pub fn switches(&self) -> BTreeSet<String> {
        let read =
            || self.environment.templates().flat_map(|(_, template)| template.undeclared_variables(false)).collect();
        // The template is parsed again.
        let read: Vec<String> =
            on_large_stack(|| guarded(WHAT, MOST_MEMORY, read)).ok().and_then(Result::ok).unwrap_or_default();
        let known: BTreeSet<&str> = self.environment.globals().map(|(name, _)| name).collect();
        let is_given = |name: &String| {
            GIVEN.contains(&name.as_str()) || known.contains(name.as_str()) || self.special_tokens.contains_key(name)
        };
        read.into_iter().filter(|name| !is_given(name)).collect()
    }

    /// Whether the template, or the one for tools, has a word in it: a key of messages such as `tool_calls`.
    #[must_use]
    pub fn names(&self, word: &str) -> bool {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.environment.templates().any(|(_, template)| template.source().split(|c| !is_part(c)).any(|w| w == word))
    }

    /// Whether a text stands in the source of the template, or of the one for tools.
    #[must_use]
    pub fn writes(&self, text: &str) -> bool {
        self.environment.templates().any(|(_, template)| template.source().contains(text))
    }

    /// What the template does with tools, calls and replies. It is tried at the first question.
    #[must_use]
    pub fn tool_support(&self) -> ToolSupport {
        *self.tool_support.get_or_init(|| ToolSupport::of(self))
    }

    /// The last message that is not in a rendered prompt: its words are not there, or the template passes over its
    /// role, so that equal words elsewhere are not its own. Words of the assistant do not count.
    #[must_use]
    pub fn lost(&self, messages: &[Value], rendered: &str) -> Option<usize> {
        let has_unknown_role = |message: &Value| message["role"].as_str().is_some_and(|role| !self.writes_role(role));
        messages.iter().rposition(has_unknown_role).max(content::lost(messages, rendered))
    }

    /// Whether the template writes messages of a role. Each role but the usual ones is tried once. A template that
    /// refuses the trial says itself which messages it does not take.
    fn writes_role(&self, role: &str) -> bool {
        if USUAL_ROLES.contains(&role) {
            return true;
        }
        if let Some(known) = self.roles().get(role) {
            return *known;
        }
        let trial = [json!({"role": "user", "content": "hi"}), json!({"role": role, "content": TRIAL})];
        let is_written = self.render(&trial, true, &Map::new()).map_or(true, |text| text.contains(TRIAL));
        let mut roles = self.roles();
        if roles.len() < MOST_ROLES {
            roles.insert(role.to_owned(), is_written);
        }
        is_written
    }

    fn roles(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the source of the template for messages with tools.
    pub(crate) fn of_source_with_tools<T>(&self, read: impl FnOnce(&str) -> T) -> T {
        let name = if self.has_tool_use { TOOL_USE } else { NAME };
        read(self.environment.get_template(name).expect("the template was added before").source())
    }

    /// Renders a prompt to be completed. A last message of the assistant is left open (`continue_final_message`). Any
    /// other last message is followed by the opening of the assistant's turn (`add_generation_prompt`).
    ///
    /// # Errors
    /// The template's own error about the messages, or [`TemplateError::LostPrefill`].
    pub fn render_prompt(&self, messages: &[Value], variables: &Map<String, Value>) -> Result<String, TemplateError> {
        let Some(prefill) = prefill(messages) else {
            return self.render(messages, true, variables);
        };
        let prefill = prefill.into_owned();
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

    /// Renders messages, with or without the opening of the assistant's turn at the end. Content in parts goes to the
    /// template as it is if the template loops over parts, and as one text if the template wants a text.
    ///
    /// # Errors
    /// [`TemplateError::Render`], or [`TemplateError::Part`].
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        if !messages.iter().any(content::has_parts) {
            return self.render_as_given(messages, add_generation_prompt, variables);
        }
        let parts = content::in_parts(messages)?;
        let of_parts = self.render_as_given(&parts, add_generation_prompt, variables);
        if of_parts.as_ref().is_ok_and(|text| content::went_through(&parts, text)) {
            return of_parts;
        }
        self.render_as_given(&content::in_texts(messages)?, add_generation_prompt, variables)
    }

    fn render_as_given(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        // transformers always passes these two, so templates test whether they are none, not whether they are defined.
        let mut all: Map<String, Value> = [("tools", Value::Null), ("documents", Value::Null)]
            .map(|(key, value)| (key.to_owned(), value))
            .into_iter()
            .collect();
        all.extend(self.special_tokens.clone());
        all.extend(variables.clone());
        all.insert("messages".into(), messages.iter().map(without_nulls).collect());
        all.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let has_tools = self.has_tool_use && all.get("tools").is_some_and(|tools| !tools.is_null());
        let name = if has_tools { TOOL_USE } else { NAME };
        let environment = Arc::clone(&self.environment);
        let render = move || {
            guarded(WHAT, MOST_MEMORY, || {
                let template = environment.get_template(name).expect("the template was added before");
                let rendered = template.render_captured(TemplateValue::from(Serde(all)))?;
                let steps = rendered.state().fuel_levels().map_or(0, |(taken, _)| taken);
                Ok::<_, Error>((rendered.into_output(), steps))
            })
        };
        let begun = Instant::now();
        let rendered = for_a_while(render)
            .map_err(|e| TemplateError::Render(format!("no thread for it: {e}")))?
            .ok_or_else(|| TemplateError::Render(endless(&format!("{:?}", LOOK * LOOKS))))?
            .map_err(TemplateError::Render)?;
        let time = u64::try_from(begun.elapsed().saturating_sub(LOOK).as_millis()).unwrap_or(u64::MAX);
        let steps = match &rendered {
            Ok((_, steps)) => *steps,
            Err(error) if error.kind() == ErrorKind::OutOfFuel => FUEL,
            Err(_) => 0,
        };
        self.steps.fetch_add(steps.max(time.saturating_mul(STEPS_OF_A_MILLISECOND)), Ordering::Relaxed);
        rendered.map(|(text, _)| text).map_err(|e| TemplateError::Render(message(&e)))
    }
}

/// The text of a last assistant message: the beginning of the completion, given in advance.
#[must_use]
pub fn prefill(messages: &[Value]) -> Option<Cow<'_, str>> {
    let last = messages.last()?;
    if last["role"] == "assistant" { text_of(&last["content"]) } else { None }
}

/// A message without the keys that hold null, as transformers 5 hands it to templates: templates ask whether a key is
/// there, and messages of Parquet and Arrow have every key that any message has. Nulls within its values stay, as in
/// transformers.
fn without_nulls(message: &Value) -> Value {
    match message {
        Value::Object(keys) => {
            keys.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())).collect()
        }
        other => other.clone(),
    }
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

/// As [`on_large_stack`], for as long as a prompt may take. A thread cannot be ended from outside; one that is not done
/// by then runs on until its steps are used up or the program ends.
fn for_a_while<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Option<T>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().stack_size(STACK).spawn(move || sender.send(work()))?;
    for _ in 0..LOOKS {
        match receiver.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            done => return Ok(Some(done.expect("panics of templates are caught within"))),
        }
    }
    Ok(None)
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

fn strftime(now: OffsetDateTime, format: &str) -> Result<String, Error> {
    let fail = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}"));
    let items = time::format_description::parse_strftime_owned(format).map_err(|e| fail(&e))?;
    now.format(&items).map_err(|e| fail(&e))
}

/// minijinja's message, without its multi-line excerpt.
fn message(error: &Error) -> String {
    let place = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    format!("{}{place}{}", OneLine(detail.as_str()), way_out(error, &detail))
}

/// The error of a prompt that takes more than it may.
fn endless(most: &str) -> String {
    format!(
        "it takes more than {most} for one prompt; leave the row out, or give the run another template with \
         `chat_template`"
    )
}

/// The remedy, if one is known.
fn way_out(error: &Error, detail: &str) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return format!(": {}", endless(&format!("{FUEL} steps")));
    }
    if detail.contains("use % operator") {
        return "; Python's `%` of texts is not known here: write `~` or the filter `format` in a copy of the template, \
            and name it as `chat_template`"
            .to_owned();
    }
    if matches!(error.kind(), ErrorKind::UnknownMethod | ErrorKind::UnknownFilter | ErrorKind::UnknownTest) {
        return "; write it otherwise in a copy of the template, and name that as `chat_template`".to_owned();
    }
    String::new()
}

#[cfg(test)]
mod tests;
