//! Known shapes of dataset rows, and the prompts made from them.
//!
//! | row | prompt | columns |
//! |---|---|---|
//! | `prompt`: text | the text as it is | the others |
//! | `prompt`: messages | rendered by the chat template | the others |
//! | `prompt_ids`: token ids | the ids as they are | the others |
//! | verl: `prompt`, `reward_model` with `ground_truth` | as above | the others; `answer`, unless there is one, is the ground truth |
//! | GSM8K: `question`, `answer` | the question; a user message if the model has a chat template | all; `answer` becomes the text after `####`, the whole is `solution` |
//! | countdown: `nums`, `target` | TinyZero's task; a chat if the model has a chat template | all |

use rollout_rewards::rules::gsm8k;
use serde_json::{Map, Value, json};
use shared_data::{Content, Shape};

/// A prompt before templating and tokenising.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Plain text; `prefill` follows it and belongs to the answer.
    Text {
        /// The prompt.
        text: String,
        /// The beginning of the answer, often empty.
        prefill: String,
    },
    /// Messages for the chat template.
    Messages(Vec<Value>),
    /// Token ids.
    Ids(Vec<u32>),
}

/// A row taken apart.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapted {
    /// The prompt.
    pub prompt: Prompt,
    /// The columns that rewards get to see.
    pub columns: Map<String, Value>,
}

/// Takes a row apart by its columns.
///
/// # Errors
/// What is wrong with the row.
pub fn adapt(mut row: Map<String, Value>, has_template: bool) -> Result<Adapted, String> {
    let shape = Shape::of(&row)?;
    let mut take = |key: &str| row.shift_remove(key).unwrap_or_default();
    let prompt = match shape {
        Shape::Ids => Prompt::Ids(token_ids(&take("prompt_ids"))?),
        Shape::Text | Shape::Conversational => generic(take("prompt"))?,
        Shape::Verl => {
            let prompt = generic(take("prompt"))?;
            adopt_ground_truth(&mut row);
            prompt
        }
        Shape::Countdown => countdown(&row, has_template)?,
        Shape::Question => {
            let Some(Value::String(question)) = row.get("question").cloned() else {
                return Err("`question` is no text".into());
            };
            split_solution(&mut row);
            text_or_chat(question, String::new(), has_template)
        }
    };
    Ok(Adapted { prompt, columns: row })
}

/// A chat message.
#[must_use]
pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn token_ids(value: &Value) -> Result<Vec<u32>, String> {
    let ids: Option<Vec<u32>> = value
        .as_array()
        .and_then(|list| list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect());
    ids.ok_or_else(|| "`prompt_ids` is no list of token ids".into())
}

fn generic(prompt: Value) -> Result<Prompt, String> {
    Ok(match shared_data::messages("prompt", prompt)? {
        Content::Text(text) => Prompt::Text { text, prefill: String::new() },
        Content::Messages(messages) => Prompt::Messages(messages),
    })
}

fn text_or_chat(text: String, prefill: String, has_template: bool) -> Prompt {
    if !has_template {
        return Prompt::Text { text, prefill };
    }
    Prompt::Messages(turns(&text, &prefill))
}

/// A user message and, if the answer has a beginning, the assistant's.
pub(super) fn turns(text: &str, prefill: &str) -> Vec<Value> {
    let mut messages = vec![message("user", text)];
    messages.extend((!prefill.is_empty()).then(|| message("assistant", prefill)));
    messages
}

/// verl keeps the right answer beside the way to judge it. The list of a single answer becomes that answer.
fn adopt_ground_truth(row: &mut Map<String, Value>) {
    let truth = match &row["reward_model"]["ground_truth"] {
        Value::Array(answers) if answers.len() == 1 => answers[0].clone(),
        truth => truth.clone(),
    };
    row.entry("answer").or_insert(truth);
}

/// GSM8K keeps the solution and, after `####`, the answer in one column.
fn split_solution(row: &mut Map<String, Value>) {
    let Some(Value::String(solution)) = row.get("answer").cloned() else { return };
    if let Some(answer) = gsm8k::answer(&solution) {
        row.insert("answer".into(), answer.into());
        row.entry("solution").or_insert(solution.into());
    }
}

/// The beginning of the answer in TinyZero's prompts.
const COUNTDOWN_PREFILL: &str = "Let me solve this step by step.\n<think>";

/// The countdown task in the manner of TinyZero (Jiayi-Pan/TinyZero, `examples/data_preprocess/countdown.py`): the
/// reasoning goes between `<think>` tags, the equation between `<answer>` tags.
fn countdown(row: &Map<String, Value>, has_template: bool) -> Result<Prompt, String> {
    let nums: Option<Vec<i64>> =
        row["nums"].as_array().and_then(|list| list.iter().map(Value::as_i64).collect::<Option<Vec<_>>>());
    let nums = nums.filter(|n| !n.is_empty()).ok_or("`nums` is no list of whole numbers")?;
    let target = row["target"].as_i64().ok_or("`target` is no whole number")?;
    let task = format!(
        "Using the numbers {nums:?}, create an equation that equals {target}. You can use basic arithmetic operations \
         (+, -, *, /) and each number can only be used once. Show your work in <think> </think> tags. And return the \
         final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
    );
    if has_template {
        return Ok(text_or_chat(task, COUNTDOWN_PREFILL.into(), true));
    }
    let text = format!(
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The \
         assistant first thinks about the reasoning process in the mind and then provides the user with the \
         answer.\nUser: {task}\nAssistant: "
    );
    Ok(Prompt::Text { text, prefill: COUNTDOWN_PREFILL.into() })
}
