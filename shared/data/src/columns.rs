//! Prompt and answer in columns of other names.

use serde_json::{Value, json};

use crate::{Values, json, messages};

/// Columns of prompt and answer, if rows call them otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The column to take as `prompt`.
    pub prompt: Option<String>,
    /// The column to take as `answer`. `a.b` is the field `b` of the column `a`.
    pub answer: Option<String>,
    /// Whether a row without a prompt gets an empty message of the user, which an environment goes on with (TRL).
    pub may_lack_prompt: bool,
}

impl Columns {
    /// Adds `prompt` and `answer` to a row, as copies: reward functions may ask for the columns by their own names.
    /// Messages of `prompt` that are written in another way become objects with `role` and `content`.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn apply(&self, row: &mut Values) -> Result<(), String> {
        self.check(row)?;
        // Both are found before either is written, since a column may already have the name that another one gets.
        let found: Vec<_> =
            self.named().filter_map(|(name, column, _)| Some((name.to_owned(), find(row, column)?.clone()))).collect();
        row.extend(found);
        // CSV gives such a column as numbers, with the digits that the cells had.
        if self.prompt.is_some()
            && let Some(Value::Number(number)) = row.get("prompt")
        {
            row.insert("prompt".to_owned(), number.to_string().into());
        }
        if self.may_lack_prompt && lacks_prompt(row) {
            row.insert("prompt".to_owned(), json!([{"role": "user", "content": ""}]));
        }
        if let Some(prompt) = row.get_mut("prompt") {
            messages::settle(prompt);
        }
        Ok(())
    }

    /// Whether a row has the columns.
    ///
    /// # Errors
    /// The missing column, with the option that names it, and the columns that exist.
    pub fn check(&self, row: &Values) -> Result<(), String> {
        match self.named().find(|(_, column, _)| find(row, column).is_none()) {
            Some((_, column, option)) => Err(format!("has no column `{column}` (`{option}`), but {}", names(row))),
            None => Ok(()),
        }
    }

    /// The prompt of a row.
    pub(crate) fn prompt_of<'a>(&self, row: &'a Values) -> Option<&'a Value> {
        find(row, self.prompt.as_deref().unwrap_or("prompt"))
    }

    /// The columns that are named: their roles, their names, and the options that name them.
    fn named(&self) -> impl Iterator<Item = (&'static str, &str, &'static str)> {
        let all = [("prompt", &self.prompt, "prompt_column"), ("answer", &self.answer, "answer_column")];
        all.into_iter().filter_map(|(name, column, option)| Some((name, column.as_deref()?, option)))
    }
}

/// Whether a row has no column that a prompt is made of ([`Shape`](crate::Shape)).
fn lacks_prompt(row: &Values) -> bool {
    let has = |column: &str| row.contains_key(column);
    let is_found = ["prompt", "prompt_ids", "question"].into_iter().any(has) || has("nums") && has("target");
    !is_found
}

/// The columns of a row, for error messages.
pub(crate) fn names(row: &Values) -> String {
    match row.is_empty() {
        true => "no column at all".to_owned(),
        false => row.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "),
    }
}

/// Characters of a text that are shown.
const SHOWN: usize = 40;

/// The variables that a row gives its chat template beside the messages: `tools`, and the entries of
/// `chat_template_kwargs`. Either may be a text of JSON, as in TRL. An empty text counts as absent.
///
/// # Errors
/// `tools` that are no list, since a template would loop over the letters of a text, `chat_template_kwargs` that are no
/// object, and a key that a text of JSON gives twice.
pub fn template_variables(row: &Values) -> Result<Values, String> {
    let parsed = |key: &str| {
        let Some(value) = row.get(key) else { return Ok(None) };
        match value.as_str().map(|text| json::parse(text.as_bytes())) {
            Some(Ok(held)) if held.is_array() || held.is_object() => Ok(Some(held)),
            Some(Err(error)) if error.is_data() => Err(format!("`{key}`: {error}")),
            _ => Ok(Some(value.clone())),
        }
    };
    let mut variables = match parsed("chat_template_kwargs")? {
        Some(Value::Object(variables)) => variables,
        None | Some(Value::Null) => Values::new(),
        Some(_) => return Err("`chat_template_kwargs` is no object".into()),
    };
    let tools = match parsed("tools")? {
        None => return Ok(variables),
        Some(Value::String(text)) if matches!(text.trim(), "" | "null") => Value::Null,
        Some(tools @ (Value::Array(_) | Value::Null)) => tools,
        Some(Value::String(text)) => {
            let begins: String = text.chars().take(SHOWN).collect();
            return Err(format!("`tools` is a text that is no list in JSON: {begins:?}"));
        }
        Some(Value::Object(keys)) => {
            return Err(format!(
                "`tools` is no list, but an object of {}; write one tool as a list of one",
                names(&keys)
            ));
        }
        Some(_) => return Err("`tools` is no list".into()),
    };
    variables.insert("tools".into(), tools);
    Ok(variables)
}

/// A column by its name, or a field of a column by its path.
fn find<'a>(row: &'a Values, path: &str) -> Option<&'a Value> {
    row.get(path).or_else(|| {
        let (column, rest) = path.split_once('.')?;
        find(row.get(column)?.as_object()?, rest)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(prompt: Option<&str>, answer: Option<&str>, row: Value) -> Result<Value, String> {
        let Value::Object(mut row) = row else { panic!("a row is an object") };
        let (prompt, answer) = (prompt.map(str::to_owned), answer.map(str::to_owned));
        let columns = Columns { prompt, answer, ..Columns::default() };
        columns.apply(&mut row).map(|()| row.into())
    }

    #[test]
    fn named_columns_are_taken_for_prompt_and_answer_and_stay() {
        let row = json!({"task": "2+3", "extra": {"final": {"value": 5}}, "a.b": 1});
        let found = applied(Some("task"), Some("extra.final.value"), row.clone()).unwrap();
        assert_eq!((&found["prompt"], &found["answer"], &found["task"]), (&json!("2+3"), &json!(5), &json!("2+3")));
        assert_eq!(applied(None, Some("a.b"), row.clone()).unwrap()["answer"], 1);
        assert_eq!(applied(None, None, row.clone()).unwrap(), row);
        let swapped = applied(Some("answer"), Some("prompt"), json!({"prompt": "2+3", "answer": "5"})).unwrap();
        assert_eq!(swapped, json!({"prompt": "5", "answer": "2+3"}), "the inverse task");
        let number = applied(Some("n"), None, json!({"n": 12})).unwrap();
        assert_eq!(number, json!({"n": 12, "prompt": "12"}), "a prompt is a text");
        let error = applied(None, Some("extra.value"), row).unwrap_err();
        assert_eq!(error, "has no column `extra.value` (`answer_column`), but `task`, `extra`, `a.b`");
    }

    #[test]
    fn a_row_without_a_prompt_begins_with_an_empty_message_where_it_may() {
        let mut row = json!({"maze": "SG"}).as_object().unwrap().clone();
        Columns::default().apply(&mut row).unwrap();
        assert!(!row.contains_key("prompt"));
        let columns = Columns { may_lack_prompt: true, ..Columns::default() };
        columns.apply(&mut row).unwrap();
        assert_eq!(row["prompt"], json!([{"role": "user", "content": ""}]));
        for own in [json!({"prompt": "2+3"}), json!({"question": "2+3?"}), json!({"prompt_ids": [1]})] {
            let mut row = own.as_object().unwrap().clone();
            columns.apply(&mut row).unwrap();
            assert_eq!(Value::from(row), own, "a prompt of any kind stays");
        }
    }

    #[test]
    fn templates_get_tools_and_switches_written_as_texts_too() {
        let tools = json!([{"type": "function"}]);
        for (row, expected) in [
            (json!({"tools": tools, "chat_template_kwargs": {"a": true}}), json!({"a": true, "tools": tools})),
            (
                json!({"tools": tools.to_string(), "chat_template_kwargs": "{\"a\": true}"}),
                json!({"a": true, "tools": tools}),
            ),
            (json!({"tools": " "}), json!({"tools": null})),
            (json!({"tools": null, "chat_template_kwargs": null}), json!({"tools": null})),
            (json!({}), json!({})),
        ] {
            assert_eq!(Value::Object(template_variables(row.as_object().unwrap()).unwrap()), expected, "{row}");
        }
        for (wrong, words) in [
            (json!("none"), "`tools` is a text that is no list in JSON: \"none\""),
            (json!("[oops"), "`tools` is a text that is no list in JSON: \"[oops\""),
            (json!({"a": 1}), "`tools` is no list, but an object of `a`; write one tool as a list of one"),
            (json!("{\"a\": 1}"), "`tools` is no list, but an object of `a`"),
            (json!(7), "`tools` is no list"),
        ] {
            let error = template_variables(json!({"tools": wrong}).as_object().unwrap()).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
        for key in ["tools", "chat_template_kwargs"] {
            let row = json!({ key: "{\"a\": 1, \"a\": 2}" });
            let error = template_variables(row.as_object().unwrap()).unwrap_err();
            assert!(error.starts_with(&format!("`{key}`: the key `a` is given twice")), "{error}");
        }
        for wrong in [json!([1]), json!("a = 1"), json!(true)] {
            let error = template_variables(json!({"chat_template_kwargs": wrong}).as_object().unwrap()).unwrap_err();
            assert_eq!(error, "`chat_template_kwargs` is no object");
        }
    }
}
