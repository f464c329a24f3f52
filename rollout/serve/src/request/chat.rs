//! The body of `POST /v1/chat/completions`.

use rollout::data::{Marked, Tokenizer, TokenizerError};
use serde_json::{Map, Value};
use shared_chat::ChatTemplate;

use super::{
    Fields, Streaming,
    completion::{Prompt, check_ids, check_text, check_top},
    sampling::{Sampling, max_tokens, room},
    take_model,
    tools::{self, Calling, Choice},
};
use crate::{
    error::ApiError,
    models::{Model, Models},
};

/// What is asked for.
#[derive(Debug)]
pub struct Chat {
    /// Who is asked.
    pub model: Model,
    /// The conversation as the template writes it.
    pub prompt: Prompt,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// In which way the answer comes.
    pub streaming: Streaming,
    /// Whether log-probs of the drawn tokens come along.
    pub logprobs: bool,
    /// The likeliest tokens that come with each of them.
    pub top_logprobs: u32,
    /// Whether token ids come along.
    pub return_token_ids: bool,
    /// Whether tokens in log-probs are named by their ids.
    pub tokens_as_ids: bool,
    /// How calls are read, where tools may be called.
    pub calling: Option<Calling>,
    /// The messages as the template gets them.
    pub messages: Vec<Value>,
    /// The tools that there are.
    pub tools: Vec<Value>,
    /// Whether the request has variables of its own for the template.
    pub has_variables: bool,
}

impl AsRef<Model> for Chat {
    fn as_ref(&self) -> &Model {
        &self.model
    }
}

impl Chat {
    /// Reads a body.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(
        body: &[u8],
        models: &Models,
        tokenizer: &Tokenizer,
        max_model_len: Option<usize>,
    ) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let model = take_model(&mut fields, models)?;
        let mut sampling = Sampling::take(&mut fields, tokenizer.model_vocab_size())?;
        let streaming = Streaming::take(&mut fields)?;
        let logprobs = fields.take("logprobs")?.unwrap_or(false);
        let top_logprobs = fields.take("top_logprobs")?.unwrap_or(0);
        check_top("top_logprobs", top_logprobs)?;
        if top_logprobs > 0 && !logprobs {
            return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`: true"));
        }
        let wanted = max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
        let return_token_ids = fields.take("return_token_ids")?.unwrap_or(false);
        let tokens_as_ids = fields.take("return_tokens_as_token_ids")?.unwrap_or(return_token_ids);
        let choice = Choice::take(&mut fields)?;
        let parallel = fields.take("parallel_tool_calls")?.unwrap_or(true) && !matches!(choice, Choice::Named(_));
        refuse_unless(&mut fields, "function_call", &["auto", "none"])?;
        let Conversation { rendered, goes_on, messages, tools, has_variables } = conversation(&mut fields, tokenizer)?;
        fields.end()?;
        let text = rendered.plain(0);
        max_model_len.map_or(Ok(()), |most| check_text("messages", &text, most))?;
        let support = tokenizer.template().map(ChatTemplate::tool_support);
        let calling = if choice == Choice::None { None } else { Calling::new(&tools, support, &text, parallel)? };
        if let Some(tools) = choice.must_call(&tools)? {
            check_forced(&sampling, goes_on)?;
            sampling.grammar = calling.as_ref().map(|calling| calling.must_call(&tools, tokenizer)).transpose()?;
        }
        let (ids, max_tokens) = match max_model_len {
            Some(most) => {
                let refuse = |error: TokenizerError| ApiError::field("messages", error.to_string());
                let ids = tokenizer.prompt_ids(&rendered).map_err(refuse)?;
                check_ids("messages", &ids, tokenizer.model_vocab_size())?;
                let max_tokens = room("messages", ids.len(), wanted, most)?;
                (ids, max_tokens)
            }
            None => (Vec::new(), wanted.unwrap_or(u32::MAX)),
        };
        let prompt = Prompt { text: String::new(), ids: ids.into(), max_tokens, goes_on };
        Ok(Self {
            model,
            prompt,
            sampling,
            streaming,
            logprobs,
            top_logprobs,
            return_token_ids,
            tokens_as_ids,
            calling,
            messages,
            tools,
            has_variables,
        })
    }
}

/// Refuses a call that must come where something else says what the answer is.
fn check_forced(sampling: &Sampling, goes_on: bool) -> Result<(), ApiError> {
    let refuse = |message: String| Err(ApiError::field("tool_choice", message));
    if let Some(asked) = &sampling.grammar {
        let field = asked.field;
        return refuse(format!("`tool_choice` and `{field}` both say what the answer may be: leave one of them out"));
    }
    if goes_on {
        return refuse("an answer whose text has begun cannot be made to call a tool: see the last message".into());
    }
    Ok(())
}

/// Refuses a field with another value.
fn refuse_unless(fields: &mut Fields, name: &str, words: &[&str]) -> Result<(), ApiError> {
    match fields.take::<Value>(name)? {
        Some(value) if !words.iter().any(|word| value == *word) => {
            Err(ApiError::field(name, format!("`{name}` takes {} only", words.join(" and "))))
        }
        _ => Ok(()),
    }
}

/// A conversation.
pub struct Conversation {
    /// As the template writes it.
    pub rendered: Marked,
    /// Whether its last message is to be continued.
    pub goes_on: bool,
    /// Its messages as the template gets them.
    pub messages: Vec<Value>,
    /// The tools that there are.
    pub tools: Vec<Value>,
    /// Whether it has variables of its own for the template.
    pub has_variables: bool,
}

/// Takes messages and what else the template reads.
///
/// # Errors
/// Messages that are none, or that the template refuses; tools that are none, or that it would leave out; a model
/// without a template.
pub fn conversation(fields: &mut Fields, tokenizer: &Tokenizer) -> Result<Conversation, ApiError> {
    let support = tokenizer.template().map(ChatTemplate::tool_support);
    let mut messages: Vec<Value> = fields.require("messages")?;
    let refuse = |message: String| ApiError::field("messages", message);
    shared_data::check_messages("messages", &messages).map_err(refuse)?;
    tools::prepare(&mut messages, support)?;
    let is_open = shared_chat::prefill(&messages).is_some();
    if fields.take::<bool>("continue_final_message")?.is_some_and(|wanted| wanted != is_open) {
        let message =
            "`continue_final_message` is true where the last message is a text of the assistant's, and else false";
        return Err(ApiError::field("continue_final_message", message));
    }
    if fields.take::<bool>("add_generation_prompt")?.is_some_and(|wanted| wanted == is_open) {
        let message =
            "`add_generation_prompt` is false where the last message is a text of the assistant's, and else true";
        return Err(ApiError::field("add_generation_prompt", message));
    }
    let mut variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    let has_variables = !variables.is_empty();
    let tools = tools::take(fields, support)?;
    if !tools.is_empty() {
        variables.insert("tools".into(), tools.as_slice().into());
    }
    let rendered = render(&mut messages, &variables, tokenizer).map_err(refuse)?;
    Ok(Conversation { rendered, goes_on: is_open, messages, tools, has_variables })
}

/// Renders messages. A template that does not know OpenAI's role `developer` gets those messages as `system`.
///
/// # Errors
/// The template's own error, and a message that it leaves out.
fn render(messages: &mut [Value], variables: &Map<String, Value>, tokenizer: &Tokenizer) -> Result<Marked, String> {
    let rendered = |messages: &[Value]| {
        let prompt = tokenizer.prompt(messages, variables).map_err(|error| error.to_string())?;
        // Templates may write replies of tools in a form of their own.
        let lost = tokenizer.template().and_then(|template| template.lost(messages, &prompt.plain(0)));
        let lost = lost.filter(|&index| messages[index]["role"] != "tool");
        let Some(index) = lost else { return Ok(prompt) };
        let role = &messages[index]["role"];
        Err(format!("the model's chat template leaves out the words of `messages[{index}]`, whose role is {role}"))
    };
    let result = rendered(messages);
    let is_of_developer = |message: &Value| message["role"] == "developer";
    if result.is_ok() || !messages.iter().any(is_of_developer) {
        return result;
    }
    for message in messages.iter_mut().filter(|message| is_of_developer(message)) {
        message["role"] = "system".into();
    }
    rendered(messages)
}
