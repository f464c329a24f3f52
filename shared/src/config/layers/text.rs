//! The text of a `run.toml` as keys and values with their lines, and errors for a text that is no TOML.

use std::{io, path::Path};

use toml::{Table, Value, de::DeTable};

use super::end_of;
use crate::config::option;

/// A key of a file.
pub struct Line {
    /// Number of the line, from 1.
    pub number: usize,
    /// The key as it is spelt in the file.
    pub key: String,
    /// Its value.
    pub value: Value,
}

/// The keys of a text, in its order.
///
/// # Errors
/// The fault with its line, and a remedy.
pub fn parse(text: &str, path: &Path) -> Result<Vec<Line>, String> {
    let text = with_flags_of_python(text);
    let mut values: Table = text.parse().map_err(|error| refusal(&text, path, &error))?;
    let spans = DeTable::parse(&text).map_err(|error| refusal(&text, path, &error))?;
    let number = |at: usize| text[..at].matches('\n').count() + 1;
    let keys = spans.get_ref().keys().map(|key| (number(key.span().start), key.get_ref().to_string()));
    let line = |(number, key): (usize, String)| values.remove(&key).map(|value| Line { number, key, value });
    let mut lines: Vec<Line> = keys.filter_map(line).collect();
    lines.sort_by_key(|line| line.number);
    Ok(lines)
}

/// The error for a file that cannot be read.
pub fn unreadable(path: &Path, error: &io::Error) -> String {
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    if error.kind() == io::ErrorKind::NotFound && !is_toml && path.is_relative() && path.components().count() == 2 {
        return "no such file; the first word is the run.toml. If this is a name on the Hugging Face Hub, download it \
                (`hf download NAME --local-dir DIR`) and name the folder as --model"
            .to_owned();
    }
    if path.is_dir() {
        return "is a folder; the first word is the run.toml. A model is named as --model, a folder of a run as \
                --output_dir"
            .to_owned();
    }
    format!("cannot be read: {error}")
}

/// Replaces Python's `True` and `False` by TOML's spelling. Only lines that TOML refuses are changed, so nothing within
/// a text changes.
fn with_flags_of_python(text: &str) -> String {
    let mut text = text.to_owned();
    while let Err(error) = text.parse::<Table>() {
        let Some(begin) = error.span().map(|span| text[..span.start].rfind('\n').map_or(0, |at| at + 1)) else { break };
        let line = text[begin..].lines().next().unwrap_or_default();
        let value = line.split_once('=').map(|(_, value)| value.split('#').next().unwrap_or_default().trim());
        let Some(word) = value.filter(|value| ["True", "False"].contains(value)) else { break };
        let at = begin + line.find('=').unwrap_or_default();
        let at = at + text[at..].find(word).unwrap_or_default();
        let lower = word.to_ascii_lowercase();
        text.replace_range(at..at + lower.len(), &lower);
    }
    text
}

/// Why a text is no TOML, with the line, or the format that it has instead.
fn refusal(text: &str, path: &Path, error: &toml::de::Error) -> String {
    let number = error.span().map_or(0, |span| text[..span.start].matches('\n').count());
    let line = text.lines().nth(number).unwrap_or_default().trim();
    if let Some(format) = other_format(text, line, path) {
        return format!(
            "is {format} and no TOML; `tandem train` takes a file of TRL, verl or RLinf as it is where its name ends \
             in .yaml, .json or .sh; in TOML, options are written `key = value`"
        );
    }
    if error.message().contains("duplicate key") {
        let key = line.split('=').next().unwrap_or_default().trim();
        return format!("line {}: `{key}` is given twice", number + 1);
    }
    let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    let value = value.split('#').next().unwrap_or_default().trim();
    let wanted = option(key.trim()).map_or_else(String::new, |option| match end_of(option, &value.into()) {
        Some(end) => format!("; `{}` must be {end}", option.key),
        None => format!("; `{}` takes {}", option.key, option.kind.wanted()),
    });
    format!("line {}: {message} in `{line}`{wanted}", number + 1)
}

/// The format that a text has instead, if its name or its first bad line says so.
fn other_format(text: &str, line: &str, path: &Path) -> Option<&'static str> {
    let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
    let is_word = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-. ".contains(c));
    let pair = || {
        line.split_once(':').is_some_and(|(key, value)| is_word(key) && (value.is_empty() || value.starts_with(' ')))
    };
    match extension.to_str() {
        Some("yaml" | "yml") => Some("YAML"),
        Some("json") => Some("JSON"),
        _ if text.trim_start().starts_with('{') => Some("JSON"),
        _ if line.starts_with("- ") || line == "---" || pair() => Some("YAML"),
        _ => None,
    }
}
