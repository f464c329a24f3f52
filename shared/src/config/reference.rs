//! The page of all options, `docs/configuration.md`, made of the very doc comments that describe them in the code.

use std::fmt::Write;

use serde_json::Value;

use super::layers::{ALIASES, defaults};

const OPTIONS: &str = include_str!("options.rs");
const CHOICES: &str = include_str!("choices.rs");

const HEAD: &str = "\
# Configuration

<!-- Written by `cargo xtask docs` from shared/src/config. Do not edit. -->

Every option of a run, as a key of `run.toml` and as `--key value` on the command line of `tandem train`. The command line
wins over the file, the file over the defaults. In the file, relative paths are relative to the file's folder; on the
command line, to the working directory, as are those of `resume_from_checkpoint` and within `reward_funcs` in either place.
`none` takes the value of an optional key back. An unknown key is refused with the nearest known one, and combinations that
make no sense are refused with the reason.

Names and defaults are TRL's where TRL has the option, else verl's or RLinf's. `tandem import-config` translates a
configuration of any of these.

How much the sampler and the learner log is no option but an environment variable: `TANDEM_LOG` takes a filter as of
Rust's `tracing`, for instance `debug`, `warn` or `rollout::engine=trace`; without it, it is `info`.
";

/// An option as it is declared.
#[derive(Debug, Default)]
struct Item {
    name: String,
    kind: String,
    text: String,
    attributes: String,
}

/// The page as Markdown.
///
/// # Panics
/// When the source of the options is not laid out as one expects of it: a test sees to that.
#[must_use]
pub fn page() -> String {
    let defaults = defaults();
    let mut page = HEAD.to_owned();
    for line in items(body(OPTIONS, "pub struct TrainConfig {")) {
        match line {
            Line::Section(title) => {
                let (first, rest) = title.split_at(1);
                write!(page, "\n## {}{rest}\n", first.to_uppercase()).expect("writing to a String");
            }
            Line::Item(item) => page.push_str(&option(&item, &defaults[&item.name])),
        }
    }
    page
}

fn option(item: &Item, default: &Value) -> String {
    let kind = item.kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>')).unwrap_or(&item.kind);
    let default = match default {
        Value::Null => "absent by default".to_owned(),
        Value::String(text) if text.is_empty() => "required".to_owned(),
        Value::Array(list) if list.is_empty() => "default empty".to_owned(),
        Value::String(text) => format!("default `{text}`"),
        value => format!("default `{value}`"),
    };
    let spellings: Vec<String> =
        ALIASES.iter().filter(|(_, name)| *name == item.name).map(|(alias, _)| format!("`{alias}`")).collect();
    let also = if spellings.is_empty() { String::new() } else { format!("; also spelt {}", spellings.join(", ")) };
    let mut text = format!("\n### `{}`\n\n*{}, {default}{also}*\n\n{}\n", item.name, words(kind), item.text);
    let values = values(kind);
    if !values.is_empty() {
        text.push('\n');
        text.push_str(&values);
    }
    text
}

/// A type in words.
fn words(kind: &str) -> &str {
    match kind {
        "bool" => "true or false",
        "PathBuf" => "path",
        "String" => "text",
        "u32" | "u64" | "usize" => "whole number",
        "f32" | "f64" => "number",
        "Vec<String>" => "list of texts",
        "Vec<f64>" => "list of numbers",
        _ => "one of the values below",
    }
}

/// The values of a choice as a list; empty for other types.
fn values(kind: &str) -> String {
    let head = format!("pub enum {kind} {{");
    let Some(at) = CHOICES.find(&head) else {
        return String::new();
    };
    let kebab = CHOICES[..at].rfind("rename_all").is_some_and(|from| CHOICES[from..at].contains("kebab-case"));
    let mut list = String::new();
    for line in items(body(CHOICES, &head)) {
        let Line::Item(item) = line else { continue };
        let name = quoted(&item.attributes, "rename = ").next().map_or_else(
            || {
                let separator = if kebab { '-' } else { '_' };
                spelt(&item.name, separator)
            },
            str::to_owned,
        );
        let aliases: Vec<String> = quoted(&item.attributes, "alias = ").map(|alias| format!("`{alias}`")).collect();
        let also = if aliases.is_empty() { String::new() } else { format!(" (also {})", aliases.join(", ")) };
        writeln!(list, "- `{name}`{also}: {}", item.text).expect("writing to a String");
    }
    list
}

/// `DrGrpo` as `dr_grpo`.
fn spelt(name: &str, separator: char) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(separator);
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// The texts in quotation marks behind a word.
fn quoted<'a>(attributes: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    attributes.split(word).skip(1).filter_map(|rest| rest.strip_prefix('"')?.split('"').next())
}

/// The lines of a declaration.
fn body<'a>(source: &'a str, head: &str) -> &'a str {
    let (_, rest) = source.split_once(head).expect("the declaration is there");
    rest.split_once("\n}").expect("it ends").0
}

enum Line {
    Section(String),
    Item(Item),
}

fn items(body: &str) -> Vec<Line> {
    let mut list = Vec::new();
    let mut item = Item::default();
    for line in body.lines().map(str::trim) {
        if let Some(title) = line.strip_prefix("// --- ").and_then(|title| title.strip_suffix(" ---")) {
            list.push(Line::Section(title.to_owned()));
        } else if let Some(text) = line.strip_prefix("///") {
            item.text = format!("{}{text}", item.text).trim().to_owned();
        } else if line.starts_with("#[") {
            item.attributes.push_str(line);
        } else if let Some(declared) = line.strip_suffix(',') {
            let (name, kind) = declared.split_once(": ").unwrap_or((declared, ""));
            item.name = name.trim_start_matches("pub ").to_owned();
            item.kind = kind.to_owned();
            list.push(Line::Item(std::mem::take(&mut item)));
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layers::known_keys;

    #[test]
    fn every_option_is_on_the_page_with_its_meaning() {
        let page = page();
        let titles: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`')).collect();
        assert_eq!(titles, known_keys());
        for item in items(body(OPTIONS, "pub struct TrainConfig {")) {
            if let Line::Item(item) = item {
                assert!(item.text.len() > 10, "{} is not described", item.name);
            }
        }
        assert!(page.contains("\n## Mismatch between sampler and learner\n"));
    }

    #[test]
    fn the_values_on_the_page_are_the_ones_that_are_read() {
        for (kind, found) in [
            ("LossType", "- `dr_grpo`: "),
            ("LossType", "- `geo_mean` (also `gmpo`): "),
            ("LossAggregation", "- `seq-mean-token-sum-norm`: "),
            ("KlEstimator", "- `k3+`: "),
            ("KlEstimator", "- `k1` (also `kl`): "),
        ] {
            assert!(values(kind).contains(found), "{}", values(kind));
        }
        // Each listed value is accepted.
        for item in items(body(OPTIONS, "pub struct TrainConfig {")) {
            let Line::Item(item) = item else { continue };
            let kind = item.kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>')).unwrap_or(&item.kind);
            for line in values(kind).lines() {
                let (listed, _) = line.split_once(": ").unwrap();
                for value in listed.split('`').skip(1).step_by(2) {
                    let overrides = vec![(item.name.clone(), value.to_owned())];
                    crate::config::layers::load(None, &overrides).unwrap();
                }
            }
        }
    }
}
