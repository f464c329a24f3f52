//! From a row to a prompt: its messages, their rendering and their tokens.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde_json::{Map, Value};
use shared::PromptId;
use shared_chat::{self as chat, text_of};

use super::{
    Beginning, Marked, PromptOptions, PromptRow, Tokenizer,
    adapters::{self, Prompt},
    oddities::Oddities,
};

/// A row as a prompt, and its oddities.
///
/// # Errors
/// What is wrong with the row.
pub fn prompt_row(
    prompt_id: PromptId,
    mut values: Map<String, Value>,
    tokenizer: &Tokenizer,
    options: &PromptOptions,
) -> Result<(PromptRow, Oddities), String> {
    options.columns.apply(&mut values)?;
    let messages = conversation(&values);
    let row = adapters::adapt(values, tokenizer.template().is_some())?;
    let question = question(&row.prompt);
    let mut oddities = Oddities::default();
    let prompt = with_system_prompt(row.prompt, options.system_prompt.as_deref(), &mut oddities)?;
    let beginning = if options.with_tools { Some(beginning(&prompt)?) } else { None };
    let rendered = tokenise(prompt, &row.columns, tokenizer, &mut oddities);
    let Rendered { text, prefill, ids } = rendered?;
    let vocab_size = tokenizer.model_vocab_size();
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(format!("token {id} of the prompt is not in the model's vocabulary of {vocab_size} tokens"));
    }
    let kept = options.max_prompt_length.map_or(ids.len(), |max| ids.len().min(max as usize));
    if kept == 0 {
        return Err("the prompt has no tokens".into());
    }
    let row = PromptRow {
        prompt_id,
        prompt_text: text,
        prompt_ids: ids[ids.len() - kept..].into(),
        shortened: kept < ids.len(),
        prefill,
        messages,
        question,
        columns: Arc::new(row.columns),
        tokenizer: tokenizer.clone(),
        beginning,
    };
    Ok((row, oddities))
}

/// The messages of a row that has some, as TRL's rewards see them. The beginning of the answer belongs to the
/// completion.
fn conversation(row: &Map<String, Value>) -> Option<Arc<[Value]>> {
    let messages = row.get("prompt")?.as_array()?;
    let kept = messages.len() - usize::from(chat::prefill(messages).is_some());
    Some(messages[..kept].into())
}

/// The messages of a prompt that begins a conversation with tools; which tools, the run adds.
fn beginning(prompt: &Prompt) -> Result<Beginning, String> {
    match prompt {
        Prompt::Messages(messages) if chat::prefill(messages).is_some() => {
            Err("the prompt ends with a message of the assistant, and a conversation with tools begins with the \
                 policy's whole turn; leave that message out"
                .into())
        }
        Prompt::Messages(messages) => Ok(Beginning { messages: messages[..].into(), ..Beginning::default() }),
        Prompt::Text { .. } | Prompt::Ids(_) => {
            Err("the prompt is no list of messages, and tools need a conversation; write `prompt` as \
                 [{\"role\": \"user\", \"content\": …}]"
                .into())
        }
    }
}

/// A hash of the question, with single blanks. For a conversation it covers all words of the user, since the last ones
/// may occur in any other conversation.
fn question(prompt: &Prompt) -> Option<u64> {
    let words = match prompt {
        Prompt::Text { text, .. } => text.clone(),
        Prompt::Messages(messages) => {
            let of_user = messages.iter().filter(|message| message["role"] == "user");
            of_user.filter_map(|message| text_of(&message["content"])).collect::<Vec<_>>().join(" ")
        }
        Prompt::Ids(_) => return None,
    };
    let mut hasher = DefaultHasher::new();
    words.split_whitespace().for_each(|word| word.hash(&mut hasher));
    (!words.trim().is_empty()).then(|| hasher.finish())
}

/// Puts the system prompt before messages that have none of their own, as ms-swift and LLaMA-Factory do.
fn with_system_prompt(prompt: Prompt, system_prompt: Option<&str>, oddities: &mut Oddities) -> Result<Prompt, String> {
    let Some(system_prompt) = system_prompt else { return Ok(prompt) };
    let mut messages = vec![adapters::message("system", system_prompt)];
    match prompt {
        Prompt::Text { text, prefill } => messages.extend(adapters::turns(&text, &prefill)),
        Prompt::Messages(own) if own.iter().any(|message| message["role"] == "system") => {
            oddities.own_system_message = true;
            return Ok(Prompt::Messages(own));
        }
        Prompt::Messages(own) => messages.extend(own),
        Prompt::Ids(_) => return Err("a row of `prompt_ids` cannot take a system prompt".into()),
    }
    oddities.has_system_prompt = true;
    Ok(Prompt::Messages(messages))
}

/// The prompt's text, the prefill at its end, and its tokens.
struct Rendered {
    text: String,
    prefill: String,
    ids: Vec<u32>,
}

fn tokenise(
    prompt: Prompt,
    columns: &Map<String, Value>,
    tokenizer: &Tokenizer,
    oddities: &mut Oddities,
) -> Result<Rendered, String> {
    let encode = |text: &str, special| tokenizer.encode(text, special).map_err(|e| e.to_string());
    match prompt {
        Prompt::Text { text, prefill } => {
            let text = format!("{text}{prefill}");
            let ids = encode(&text, true)?;
            oddities.unused =
                ["tools", "chat_template_kwargs"].into_iter().filter(|key| is_given(columns, key)).collect();
            // The text has the token already, and the tokenizer puts it before the text's own tokens.
            oddities.two_beginnings = ids.len() > 1
                && ids[0] == ids[1]
                && tokenizer.leaves_out(ids[0])
                && ids[1..].starts_with(&encode(&text, false)?);
            Ok(Rendered { text, prefill, ids })
        }
        Prompt::Messages(messages) => {
            let rendered = render(&messages, columns, tokenizer, oddities.has_system_prompt)?;
            let text = rendered.plain(0);
            let ids = tokenizer.prompt_ids(&rendered).map_err(|e| e.to_string())?;
            let given = chat::prefill(&messages).unwrap_or_default();
            // A template may strip the message.
            let prefill = [&*given, given.trim_start(), given.trim_end(), given.trim()]
                .into_iter()
                .find(|p| text.ends_with(p))
                .unwrap_or_default();
            oddities.rendered = true;
            oddities.note_variables(&messages, &shared_data::template_variables(columns)?);
            let lost = tokenizer.template().and_then(|template| template.lost(&messages, &text));
            let lost = lost.map(|at| &messages[at]);
            oddities.lost =
                lost.map(|message| (role(message), text_of(&message["content"]).unwrap_or_default().into()));
            Ok(Rendered { prefill: prefill.to_owned(), text, ids })
        }
        Prompt::Ids(ids) => {
            let text = tokenizer.decode(&ids).map_err(|e| e.to_string())?;
            Ok(Rendered { text, prefill: String::new(), ids })
        }
    }
}

/// Whether a row has something under a key.
fn is_given(columns: &Map<String, Value>, key: &str) -> bool {
    match columns.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.trim().is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(keys)) => !keys.is_empty(),
        Some(_) => true,
    }
}

fn role(message: &Value) -> String {
    message["role"].as_str().unwrap_or_default().to_owned()
}

/// Renders messages. Where the template refuses them because of the run's system prompt, the error says so.
fn render(
    messages: &[Value],
    columns: &Map<String, Value>,
    tokenizer: &Tokenizer,
    has_system_prompt: bool,
) -> Result<Marked, String> {
    let variables = shared_data::template_variables(columns)?;
    tokenizer.prompt(messages, &variables).map_err(|error| {
        if has_system_prompt && tokenizer.render(&messages[1..], &variables).is_ok() {
            return format!(
                "{error}; without `system_prompt` it can: leave that option out and put its words into the user \
                 messages, or name a template that takes it with `chat_template`"
            );
        }
        error.to_string()
    })
}
