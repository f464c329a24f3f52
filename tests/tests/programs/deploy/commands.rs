//! Command lines that users are told to write, against what the programs say that they take.

use std::collections::BTreeMap;

use harness::cli;
use shared::config::layers;

/// Splits a line as a shell does: blanks, quotes, and a comment at the end.
pub fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let (mut quote, mut open) = (None, false);
    for c in line.chars() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                if !open {
                    words.push(String::new());
                }
                open = true;
            }
            (None, c) if c.is_whitespace() => open = false,
            (None, '#') if !open => break,
            (_, c) => {
                if !open {
                    words.push(String::new());
                }
                open = true;
                words.last_mut().expect("one was begun").push(c);
            }
        }
    }
    words
}

/// The flags of a command line with their values, and what stands without a flag.
fn parts(words: &[String]) -> (Vec<(String, String)>, Vec<String>) {
    let (mut flags, mut others) = (Vec::new(), Vec::new());
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        match word.strip_prefix("--") {
            Some(name) => {
                let value = words.next_if(|next| !next.starts_with("--"));
                flags.push((name.to_owned(), value.cloned().unwrap_or_default()));
            }
            None => others.push(word.clone()),
        }
    }
    (flags, others)
}

/// The help of each subcommand, asked for once.
#[derive(Default)]
pub struct Programs {
    help: BTreeMap<String, String>,
}

impl Programs {
    /// Why `tandem` would not take these words behind its name, if so.
    pub fn refusal(&mut self, line: &[String]) -> Option<String> {
        let (subcommand, rest) = line.split_first()?;
        let (flags, others) = parts(rest);
        let shown = || format!("tandem {}", line.join(" "));
        let help = self.help.entry(subcommand.clone()).or_insert_with(|| {
            let asked = cli::run("tandem", [subcommand.as_str(), "--help"]);
            if asked.status.success() { asked.stdout } else { String::new() }
        });
        if help.is_empty() {
            return Some(format!("{}: there is no `tandem {subcommand}`", shown()));
        }
        let known = |name: &str| help.split([' ', ',', '=', '\n', '[', ']']).any(|word| word == format!("--{name}"));
        if let Some((name, _)) = flags.iter().find(|(name, _)| !known(name)) {
            return Some(format!("{}: `tandem {subcommand}` has no --{name}", shown()));
        }
        let valued = |name: &str| help.contains(&format!("--{name} <"));
        if let Some((name, value)) = flags.iter().find(|(name, value)| valued(name) == value.is_empty()) {
            return Some(format!("{}: --{name} with the value `{value}`", shown()));
        }
        if subcommand != "train" {
            return (!others.is_empty()).then(|| format!("{}: what is {others:?}?", shown()));
        }
        if others.len() != 1 || !others[0].ends_with(".toml") {
            return Some(format!("{}: a run.toml and nothing else, not {others:?}", shown()));
        }
        let needed = [("model", "m"), ("dataset", "d"), ("reward_funcs", "format")];
        let needed = needed.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let config = layers::load(None, &flags.into_iter().chain(needed).collect::<Vec<_>>());
        let problem = match config {
            Ok(config) => config.validate().err()?.to_string(),
            Err(error) => error.to_string(),
        };
        Some(format!("{}: {problem}", shown()))
    }
}
