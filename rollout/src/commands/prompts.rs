//! The prompts that a command completes: the rows of a dataset, texts of the command line, or rows on stdin.

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use shared_data::{DataError, Location, Row, Table};

use crate::data::{Tokenizer, adapters};

/// The word that stands for stdin where a prompt or a file is expected.
pub const STDIN: &str = "-";
/// The flag of prompts as texts.
const FLAG: &str = "--prompt";
/// The name of stdin in messages.
const NAME_OF_STDIN: &str = "stdin";
/// Most bytes that are read from stdin.
const MOST_BYTES: u64 = 1 << 30;

/// Where prompts come from.
#[derive(Debug)]
pub enum Prompts<'a> {
    /// A file, a folder or a name on the Hub, and the split that is taken without --split.
    Dataset(&'a Path, &'a str),
    /// Rows that are in no file.
    Given(Given),
}

/// Prompts that are in no file.
#[derive(Debug)]
pub enum Given {
    /// Texts. Each is a user message if the model has a chat template; with `raw` it is the prompt as it stands.
    Texts {
        /// The texts, none of them empty.
        texts: Vec<String>,
        /// Whether they are left as they stand.
        raw: bool,
    },
    /// Rows of JSON lines, read from stdin.
    Lines(Vec<u8>),
}

impl Given {
    /// Texts of the command line, one of which may be `-`, the text on stdin.
    ///
    /// # Errors
    /// An empty text, stdin named twice, or a text on stdin that is no UTF-8.
    pub fn texts(texts: &[String], raw: bool) -> anyhow::Result<Self> {
        let of_stdin = texts.iter().filter(|text| *text == STDIN).count();
        ensure!(of_stdin < 2, "{FLAG} {STDIN} is given {of_stdin} times, but stdin can be read once");
        let text = |text: &String| {
            let (text, name) = match text.as_str() {
                STDIN => (text_of(&read_stdin()?)?, format!("{FLAG} {STDIN}: the text on stdin")),
                text => (text.to_owned(), FLAG.to_owned()),
            };
            ensure!(!text.trim().is_empty(), "{name} is empty; give the model something to complete");
            Ok(text)
        };
        Ok(Self::Texts { texts: texts.iter().map(text).collect::<anyhow::Result<_>>()?, raw })
    }

    /// The rows on stdin.
    ///
    /// # Errors
    /// When stdin cannot be read.
    pub fn lines_of_stdin() -> anyhow::Result<Self> {
        read_stdin().map(Self::Lines)
    }

    /// What stands for the name of a file in messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Texts { .. } => FLAG,
            Self::Lines(_) => NAME_OF_STDIN,
        }
    }

    /// The rows, for a model with this tokenizer.
    ///
    /// # Errors
    /// A bad row, with its line.
    pub fn table(&self, tokenizer: &Tokenizer) -> Result<Table, DataError> {
        let (texts, raw) = match self {
            Self::Texts { texts, raw } => (texts, *raw),
            Self::Lines(bytes) => return shared_data::json_lines(self.name(), bytes.clone()),
        };
        let is_chat = !raw && tokenizer.template().is_some();
        let prompt = |text: &String| if is_chat { json!([adapters::message("user", text)]) } else { json!(text) };
        let row = |(text, number): (&String, usize)| {
            let values = [("prompt".to_owned(), prompt(text))].into_iter().collect::<serde_json::Map<String, Value>>();
            Row { values, place: Location { path: Path::new(FLAG).into(), unit: "text", number } }
        };
        let rows: Vec<Row> = texts.iter().zip(1..).map(row).collect();
        Ok(Table { about: format!("{} texts", rows.len()), rows, left_out: Vec::new() })
    }
}

/// All that comes from stdin.
fn read_stdin() -> anyhow::Result<Vec<u8>> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        shared::tell!("reading from the terminal until Ctrl-D at the beginning of a line");
    }
    let mut bytes = Vec::new();
    stdin.take(MOST_BYTES + 1).read_to_end(&mut bytes).context(NAME_OF_STDIN)?;
    ensure!(bytes.len() as u64 <= MOST_BYTES, "stdin gives more than {MOST_BYTES} bytes; name a file with --prompts");
    Ok(bytes)
}

/// The text in some bytes. The end of its last line is that of a command such as `echo`, and no part of it.
fn text_of(bytes: &[u8]) -> anyhow::Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            let text = text.strip_suffix('\n').unwrap_or(text);
            Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
        }
        Err(error) => bail!(
            "{FLAG} {STDIN}: stdin is not UTF-8 from byte {} on; convert the text, for instance with iconv",
            error.valid_up_to() + 1
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, PromptOptions, testing::byte_tokenizer};

    const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[answer]";

    /// The prompts as the model sees them.
    fn rendered(given: &Given, template: Option<&str>, options: &PromptOptions) -> Vec<String> {
        let tokenizer = byte_tokenizer(template);
        let table = given.table(&tokenizer).unwrap();
        let dataset = Dataset::of_table(given.name(), table, &tokenizer, options).unwrap();
        dataset.rows().iter().map(|row| row.prompt_text.clone()).collect()
    }

    #[test]
    fn a_text_is_a_user_message_where_the_model_has_a_template() {
        let texts = ["1+2=".to_owned(), "-3".to_owned()];
        let [chat, raw] = [false, true].map(|raw| Given::texts(&texts, raw).unwrap());
        let options = PromptOptions::default();
        assert_eq!(rendered(&chat, None, &options), texts);
        assert_eq!(rendered(&chat, Some(TEMPLATE), &options), ["[user]1+2=[answer]", "[user]-3[answer]"]);
        assert_eq!(rendered(&raw, Some(TEMPLATE), &options), texts);
        let options = PromptOptions { system_prompt: Some("short".into()), ..options };
        assert_eq!(rendered(&chat, Some(TEMPLATE), &options)[0], "[system]short[user]1+2=[answer]");
    }

    #[test]
    fn rows_on_stdin_are_rows_of_a_file() {
        let lines = "{\"prompt\": \"ab\"}\n\n{\"question\": \"c?\", \"answer\": \"d\"}\n";
        let given = Given::Lines(lines.into());
        assert_eq!(rendered(&given, Some(TEMPLATE), &PromptOptions::default()), ["ab", "[user]c?[answer]"]);
        let tokenizer = byte_tokenizer(None);
        let error = Given::Lines("{\"prompt\": \"ab\"}\n1+2=\n".into()).table(&tokenizer).unwrap_err().to_string();
        assert!(error.starts_with("stdin, line 2: "), "{error}");
        assert!(Given::Lines(Vec::new()).table(&tokenizer).is_err());
    }

    #[test]
    fn what_is_no_prompt_is_refused() {
        let refusal = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            Given::texts(&texts, false).unwrap_err().to_string()
        };
        assert_eq!(refusal(&["a", " \n"]), "--prompt is empty; give the model something to complete");
        assert_eq!(refusal(&["-", "a", "-"]), "--prompt - is given 2 times, but stdin can be read once");
        assert!(text_of(b"ab\xff").unwrap_err().to_string().contains("not UTF-8 from byte 3 on"));
        for (bytes, text) in [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a", "a"), ("", "")] {
            assert_eq!(text_of(bytes.as_bytes()).unwrap(), text);
        }
    }
}
