//! The system whose rows they are, by their columns.

use serde_json::Value;

use crate::{Columns, DataError, LeftOut, Row, Table, Values, columns::names, messages::Written};

/// A known shape of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `prompt_ids`: token ids.
    Ids,
    /// verl's: `prompt` with messages, and `reward_model` with `ground_truth`.
    Verl,
    /// TRL's conversational: `prompt` with messages.
    Conversational,
    /// TRL's standard: `prompt` with a text.
    Text,
    /// Countdown: `nums` and `target`.
    Countdown,
    /// GSM8K's: `question`, and `answer` with the solution and the answer after `####`.
    Question,
}

impl Shape {
    /// The shape of a row.
    ///
    /// # Errors
    /// The columns that a row must have, if it has no known shape.
    pub fn of(row: &Values) -> Result<Self, String> {
        let has = |key: &str| row.contains_key(key);
        let verl = || row.get("reward_model").is_some_and(|model| model.get("ground_truth").is_some());
        match row.get("prompt") {
            _ if has("prompt_ids") => Ok(Self::Ids),
            Some(_) if verl() => Ok(Self::Verl),
            Some(Value::Array(_)) => Ok(Self::Conversational),
            Some(_) => Ok(Self::Text),
            None if has("nums") && has("target") => Ok(Self::Countdown),
            None if has("question") => Ok(Self::Question),
            None => Err(format!(
                "has neither `prompt` (a text or a list of messages) nor `prompt_ids`, GSM8K's `question` and \
                 `answer`, or countdown's `nums` and `target`, but {}; `prompt_column` names the column with the \
                 prompt",
                names(row)
            )),
        }
    }

    /// In words, with the place of the right answer.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Ids => "rows of token ids (`prompt_ids`)",
            Self::Verl => "verl's rows (the answer is `reward_model.ground_truth`)",
            Self::Conversational => "TRL's conversational rows (`prompt` is a list of messages)",
            Self::Text => "plain prompts, which the model gets without a chat template unless `system_prompt` is given",
            Self::Countdown => "countdown's rows (`nums`, `target`)",
            Self::Question => "questions in GSM8K's shape (`question`, `answer`)",
        }
    }
}

impl Table {
    /// The rows in a line: format, split, number and shape.
    ///
    /// # Errors
    /// A first row of no known shape, or a row without a column of `columns`.
    pub fn describe(&self, columns: &Columns) -> Result<String, DataError> {
        let left_out: String =
            self.left_out.iter().map(|LeftOut { reason, .. }| format!("; left out: {reason}")).collect();
        let failed = |row: &Row, reason: String| row.error(format!("{reason}{left_out}"));
        for row in &self.rows {
            columns.check(&row.values).map_err(|reason| failed(row, reason))?;
        }
        let first = &self.rows[0];
        let mut values = first.values.clone();
        let shape =
            columns.apply(&mut values).and_then(|()| Shape::of(&values)).map_err(|reason| failed(first, reason))?;
        let written = match columns.prompt_of(&first.values).and_then(Written::of) {
            Some(Written::ShareGpt) => "; ShareGPT's messages (`from`, `value`) are read as `role` and `content`",
            Some(Written::JsonText) => "; its messages are written as texts of JSON, and read as messages",
            Some(Written::PythonText | Written::BrokenJson) | None => "",
        };
        Ok(format!("{}; {}{written}{}", self.about, shape.words(), self.of_other_kind(columns)))
    }

    /// How many rows have messages where the first row has a text, or the other way round, in words.
    fn of_other_kind(&self, columns: &Columns) -> String {
        let has_messages = |row: &Row| -> Option<bool> {
            let ids = row.values.contains_key("prompt_ids");
            let prompt = columns.prompt_of(&row.values).filter(|_| !ids)?;
            Some(prompt.is_array() || Written::of(prompt).is_some_and(Written::is_read))
        };
        let Some(first) = has_messages(&self.rows[0]) else { return String::new() };
        let others = self.rows.iter().filter(|row| has_messages(row) == Some(!first)).count();
        let what = if first { "have a text as their prompt, which gets no chat template" } else { "have messages" };
        if others == 0 { String::new() } else { format!("; {others} of {} rows {what}", self.rows.len()) }
    }

    /// Oddities of rows that can still be used, a line for each one.
    #[must_use]
    pub fn warnings(&self, columns: &Columns) -> Vec<String> {
        let mut found: Vec<String> = self
            .left_out
            .iter()
            .map(|LeftOut { column, reason }| format!("column `{column}` is left out: {reason}"))
            .collect();
        let name = columns.prompt.as_deref().unwrap_or("prompt");
        for (kind, looks, remedy) in [
            (
                Written::PythonText,
                "a list of messages as Python prints it",
                "write the rows as JSON lines or Parquet, where messages stay lists",
            ),
            (
                Written::BrokenJson,
                "a list of messages in JSON that is not whole",
                "was it cut off when the rows were written?",
            ),
        ] {
            let is_of_kind = |row: &&Row| columns.prompt_of(&row.values).and_then(Written::of) == Some(kind);
            let mut rows = self.rows.iter().filter(is_of_kind);
            let Some(first) = rows.next() else { continue };
            found.push(format!(
                "`{name}` of {} of {} rows looks like {looks}, and is taken as a text ({}); {remedy}",
                1 + rows.count(),
                self.rows.len(),
                first.place
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_told_by_their_columns() {
        let messages = json!([{"role": "user", "content": "2+3?"}]);
        for (row, shape) in [
            (json!({"prompt": "2+3"}), Shape::Text),
            (json!({"prompt": messages, "answer": 5}), Shape::Conversational),
            (json!({"prompt": messages, "reward_model": {"ground_truth": "5"}}), Shape::Verl),
            (json!({"prompt": messages, "reward_model": "m"}), Shape::Conversational),
            (json!({"prompt_ids": [1], "prompt": "a"}), Shape::Ids),
            (json!({"question": "2+3?", "answer": "5\n#### 5"}), Shape::Question),
            (json!({"nums": [2, 3], "target": 5, "prompt": "a"}), Shape::Text),
            (json!({"nums": [2, 3], "target": 5}), Shape::Countdown),
        ] {
            assert_eq!(Shape::of(row.as_object().unwrap()), Ok(shape), "{row}");
        }
        let error = Shape::of(json!({"text": "a"}).as_object().unwrap()).unwrap_err();
        assert!(error.starts_with("has neither `prompt`") && error.contains("but `text`; `prompt_column`"), "{error}");
    }
}
