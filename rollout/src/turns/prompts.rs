//! Prompts of conversations: with the tools of the run, and with the first words of an environment.

use std::sync::Arc;

pub use rollout_rewards::opened;
use serde_json::{Map, Value};
use shared::config::RAISE_MAX_MODEL_LEN;

use crate::{
    conversation::{Dialogue, Limits},
    data::{Dataset, DatasetError, PromptRow},
};

/// Adds tools to the prompts of a dataset: to their texts and to their tokens. `tools_of` has the tools of a row.
///
/// # Errors
/// The first row that cannot begin a conversation.
pub fn add_tools(
    dataset: &mut Dataset,
    dialogue: &Dialogue,
    tools_of: impl Fn(&Map<String, Value>) -> Result<Arc<[Value]>, String> + Sync,
) -> Result<(), DatasetError> {
    dataset.change(|row| {
        check_columns(&row.columns)?;
        let tools = tools_of(&environment_row(row))?;
        let Some(beginning) = &mut row.beginning else { return Ok(()) };
        beginning.tools = tools;
        let ids = dialogue.opening(&beginning.messages, &beginning.tools).map_err(|error| error.to_string())?;
        let variables = Map::from_iter([("tools".to_owned(), beginning.tools.to_vec().into())]);
        row.prompt_text = row.tokenizer.render(&beginning.messages, &variables).map_err(|error| error.to_string())?;
        row.prompt_ids = ids.into();
        // Reward functions get the messages that the policy saw, as TRL's trainer gives them.
        row.messages.get_or_insert_with(|| beginning.messages.clone());
        Ok(())
    })
}

/// Columns that change a single prompt, and would be without effect on a conversation.
const WITHOUT_EFFECT: [(&str, &str); 2] = [
    ("chat_template_kwargs", "name the variables in the option `chat_template_kwargs`, for all rows"),
    ("tools", "name them in the option `tools`, and rename or remove the column"),
];

fn check_columns(columns: &Map<String, Value>) -> Result<(), String> {
    let is_given = |column: &str| columns.get(column).is_some_and(|value| !value.is_null());
    match WITHOUT_EFFECT.iter().find(|(column, _)| is_given(column)) {
        Some((column, instead)) => {
            Err(format!("its column `{column}` has no effect in a run with tools or environments: {instead}"))
        }
        None => Ok(()),
    }
}

/// A row as environments are opened with it: every column, the prompt among them.
#[must_use]
pub fn environment_row(row: &PromptRow) -> Map<String, Value> {
    let mut columns = (*row.columns).clone();
    let messages = row.messages.as_deref().or(row.beginning.as_ref().map(|beginning| &*beginning.messages));
    let prompt = messages.map_or_else(|| row.prompt_text.clone().into(), |messages| messages.to_vec().into());
    columns.insert("prompt".into(), prompt);
    columns
}

/// Why a conversation whose prompt has `length` tokens with the first words of its environment cannot begin.
#[must_use]
pub fn without_room(length: usize, limits: Limits) -> Option<String> {
    let most = limits.max_model_len;
    (length >= most).then(|| {
        format!(
            "the prompt with the environment's first words has {length} tokens, which leave no room within \
             `max_model_len` ({most}): {RAISE_MAX_MODEL_LEN} within the model's limit, or let `reset` say less"
        )
    })
}

/// A remark on a prompt that has `length` tokens with the first words of its environment, and `of_row` without them,
/// where these words leave less room than a completion may take.
#[must_use]
pub fn crowded(of_row: usize, length: usize, limits: Limits) -> Option<String> {
    let rest = little_room(length, limits, "let `reset` say less").filter(|_| length > of_row)?;
    Some(format!("a prompt has {length} tokens with the environment's first words, and {of_row} without them. {rest}"))
}

/// The rest of a remark on a prompt of so many tokens, where it leaves less room than a completion may take.
/// `way_out` is the one beside `max_model_len`.
#[must_use]
pub fn little_room(length: usize, limits: Limits, way_out: &str) -> Option<String> {
    let Limits { max_completion_length: wanted, max_model_len: most, .. } = limits;
    let room = most.saturating_sub(length);
    (room < wanted).then(|| {
        format!(
            "`max_model_len` ({most}) leaves {room} tokens for its completions, less than `max_completion_length` \
             ({wanted}), so they are cut off there: {RAISE_MAX_MODEL_LEN} within the model's limit, or {way_out}. This \
             is said once, whatever the number of such prompts"
        )
    })
}

/// Whether a remark on the room of completions was made.
#[derive(Debug, Default)]
pub struct RoomRemark {
    is_made: bool,
}

impl RoomRemark {
    /// The remark, if it is the first one.
    pub fn first(&mut self, remark: Option<String>) -> Option<String> {
        let remark = remark.filter(|_| !self.is_made)?;
        self.is_made = true;
        Some(remark)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn first_words_that_take_the_room_of_completions_are_told_of_with_the_options() {
        let limits = Limits { max_completion_length: 40, max_model_len: 100, max_tool_calling_iterations: None };
        assert_eq!((without_room(99, limits), crowded(20, 60, limits)), (None, None));
        let told = crowded(20, 61, limits).unwrap();
        for words in ["61 tokens", "20 without", "`max_model_len` (100) leaves 39", "`max_completion_length` (40)"] {
            assert!(told.contains(words), "{told}");
        }
        assert_eq!(crowded(61, 61, limits), None, "the row alone is so long, and the dataset is looked over for it");
        let mut room = RoomRemark::default();
        let made = [None, Some("a"), None, Some("b")].map(|remark| room.first(remark.map(str::to_owned)));
        assert_eq!(made, [None, Some("a".to_owned()), None, None], "the first one alone");
        let reason = without_room(100, limits).unwrap();
        assert!(reason.contains("has 100 tokens") && reason.contains(RAISE_MAX_MODEL_LEN), "{reason}");
    }

    #[test]
    fn a_column_that_conversations_would_ignore_is_refused_with_the_option_in_its_place() {
        let refused = |columns: Value| check_columns(columns.as_object().unwrap()).err();
        for (column, option) in [("tools", "option `tools`"), ("chat_template_kwargs", "option `chat_template_kwargs`")]
        {
            let error = refused(json!({ "prompt": [], column: [] })).unwrap();
            assert!(error.contains(&format!("column `{column}`")) && error.contains(option), "{error}");
        }
        assert_eq!(refused(json!({ "tools": null, "answer": "1" })), None, "a column of other files of the dataset");
    }

    #[test]
    fn first_words_follow_the_last_message_of_the_user() {
        let message = |role: &str, content: Value| json!({ "role": role, "content": content });
        let messages = [message("system", "s".into()), message("user", "a".into()), message("user", "b".into())];
        let found = opened(&messages, Some(" c"));
        assert_eq!(found[..2], messages[..2]);
        assert_eq!(found[2], message("user", "b c".into()));
        assert_eq!(opened(&messages, None), messages);
        let parts = json!([{ "type": "text", "text": "b" }]);
        let found = opened(&[message("user", parts)], Some("c"));
        assert_eq!(found[0]["content"][1]["text"], "c");
        let parts = [message("user", json!([{ "type": "text", "text": "b" }]))];
        assert_eq!(opened(&parts, Some("")), parts, "no words");
        let answered = [message("user", "a".into()), message("assistant", "b".into())];
        assert_eq!(opened(&answered, Some("c")), [message("user", "ac".into()), message("assistant", "b".into())]);
        assert_eq!(opened(&[message("user", Value::Null)], Some("c"))[0]["content"], "c");
    }

    #[test]
    fn first_words_follow_the_last_message_where_none_is_of_the_user() {
        let message = |role: &str, content: &str| json!({ "role": role, "content": content });
        let messages = [message("developer", "d"), message("system", "s")];
        assert_eq!(opened(&messages, Some(" c")), [message("developer", "d"), message("system", "s c")]);
        assert_eq!(opened(&[], Some("c")), Vec::<Value>::new(), "no message");
    }
}
