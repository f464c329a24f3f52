//! Oddities of the prompts of a dataset: allowed, and probably not meant.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use shared_data::Values;

use super::{PromptOptions, Tokenizer};

/// Most characters that are shown of the words of a row.
const SHOWN: usize = 60;

/// The oddities of one prompt.
#[derive(Debug, Clone, Default)]
pub struct Oddities {
    /// A chat template has made it.
    pub rendered: bool,
    /// The run's system prompt is in it.
    pub has_system_prompt: bool,
    /// It keeps a system message of its own in place of the run's.
    pub own_system_message: bool,
    /// It begins twice: with the text of the token that the tokenizer puts before texts.
    pub two_beginnings: bool,
    /// Role and text of a message whose words are not in it.
    pub lost: Option<(String, String)>,
    /// The variables that it gives the chat template: `tools`, `tool_calls` of messages, and the row's own switches.
    pub variables: BTreeSet<String>,
    /// Columns for a chat template, in a row whose text gets none.
    pub unused: Vec<&'static str>,
    place: String,
}

/// The key under which messages call tools, beside the column `tools`.
const CALLS: &str = "tool_calls";

impl Oddities {
    /// Notes the variables that a prompt of messages gives the chat template.
    pub fn note_variables(&mut self, messages: &[Value], variables: &Values) {
        let is_given = |value: &Value| !value.is_null() && value.as_array().is_none_or(|items| !items.is_empty());
        let given = variables.iter().filter(|(_, value)| is_given(value)).map(|(name, _)| name.clone());
        let calls = messages.iter().any(|message| is_given(&message[CALLS])).then(|| CALLS.to_owned());
        self.variables = given.chain(calls).collect();
    }

    /// Adds the place of the row, for messages.
    #[must_use]
    pub fn at(self, place: &impl ToString) -> Self {
        // Most rows have no oddity whose message names a place.
        let place = if self.lost.is_some() || self.two_beginnings { place.to_string() } else { String::new() };
        Self { place, ..self }
    }
}

/// How many prompts of a dataset are odd.
#[derive(Debug, Clone, Default)]
pub struct OddPrompts {
    rows: u64,
    rendered: u64,
    own_system_message: u64,
    two_beginnings: u64,
    lost: u64,
    /// Numbers of prompts by the variables that they give the chat template.
    variables: BTreeMap<String, u64>,
    /// Numbers of prompts without a chat template, by columns for one.
    unused: BTreeMap<&'static str, u64>,
    /// The first row whose words are lost: its place, and the message's role and text.
    example: Option<(String, String, String)>,
}

impl OddPrompts {
    /// Counts a prompt.
    pub fn count(&mut self, row: Oddities) {
        self.rows += 1;
        self.rendered += u64::from(row.rendered);
        self.own_system_message += u64::from(row.own_system_message);
        self.two_beginnings += u64::from(row.two_beginnings);
        row.variables.into_iter().for_each(|name| *self.variables.entry(name).or_default() += 1);
        row.unused.into_iter().for_each(|column| *self.unused.entry(column).or_default() += 1);
        if let Some((role, text)) = row.lost {
            self.lost += 1;
            self.example.get_or_insert((row.place, role, text));
        }
    }

    /// Remarks on the prompts, one a line.
    #[must_use]
    pub fn remarks(&self, dataset: &str, tokenizer: &Tokenizer, options: &PromptOptions) -> Vec<String> {
        let rows = self.rows;
        let mut told = Vec::new();
        if let Some((place, role, text)) = &self.example {
            let text: String = text.chars().take(SHOWN).collect();
            told.push(format!(
                "in {} of {rows} prompts of {dataset} words of the messages are missing: the chat template passes over \
                 them. In {place}, it is the message of role `{role}`: {text:?}. Give messages the roles and contents \
                 that the template reads, or name another template with `chat_template`",
                self.lost
            ));
        }
        if self.own_system_message > 0 {
            told.push(format!(
                "{} of {rows} prompts of {dataset} have a system message of their own, which stands in place of \
                 `system_prompt`",
                self.own_system_message
            ));
        }
        if self.two_beginnings > 0 {
            told.push(format!(
                "{} of {rows} prompts of {dataset} begin with the token that the tokenizer puts before every text, and \
                 so have it twice; write them without it, or as messages, which the chat template renders",
                self.two_beginnings
            ));
        }
        told.extend(self.unread(dataset, tokenizer));
        if self.rendered == 0 && options.system_prompt.is_none() && tokenizer.has_template_kwargs() {
            told.push(format!(
                "`chat_template_kwargs` changes nothing for {dataset}: its prompts are texts, which get no chat \
                 template"
            ));
        }
        told
    }

    /// Remarks on variables that the chat template does not read, and on columns for one beside plain prompts.
    fn unread<'a>(&'a self, dataset: &'a str, tokenizer: &'a Tokenizer) -> impl Iterator<Item = String> + 'a {
        let rows = self.rows;
        let switches = tokenizer.template().filter(|_| !self.variables.is_empty()).map(|template| template.switches());
        let is_read = move |name: &str| match name {
            CALLS => tokenizer.template().is_some_and(|template| template.names(CALLS)),
            name => switches.as_ref().is_some_and(|read| read.contains(name)),
        };
        let unread = self.variables.iter().filter(move |(name, _)| !is_read(name)).map(move |(name, count)| {
            let of_row = if ["tools", CALLS].contains(&name.as_str()) { "" } else { " in `chat_template_kwargs`" };
            format!(
                "{count} of {rows} prompts of {dataset} have `{name}`{of_row}, which changes nothing: the chat \
                 template does not read it; name another template with `chat_template`"
            )
        });
        let unused = self.unused.iter().map(move |(column, count)| {
            format!(
                "{count} of {rows} prompts of {dataset} have `{column}` beside a text, which changes nothing: texts \
                 get no chat template; write such prompts as messages"
            )
        });
        unread.chain(unused)
    }
}
