//! Rules that turn keys of other systems into options.

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::Value;
use shared::config;

/// The fate of a key.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// An option of the same meaning.
    Option(&'static str),
    /// An option whose value is written differently.
    Convert(&'static str, Convert),
    /// Taken into account together with other keys, by [`Rules::combine`].
    Combined,
    /// No option, with the reason or the way out.
    Hint(&'static str),
    /// No option, and leaving it out would change the training: the run does not start with it, unless its value is one
    /// of these, which change nothing.
    Refused(&'static str, &'static [String]),
    /// An unknown key in a part of the configuration that decides what is trained.
    Doubtful,
}

/// The unit of an option that counts one thing in another system and another thing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Optimiser updates there, generation batches here.
    Updates,
    /// Generation batches there, optimiser updates here.
    Batches,
}

impl Count {
    /// Converts their number to ours, for `updates_per_step` updates in a generation batch; rounded up, so that a run
    /// is not shorter than it was.
    pub fn convert(self, theirs: u64, updates_per_step: u64) -> u64 {
        match self {
            Self::Updates => theirs.div_ceil(updates_per_step),
            Self::Batches => theirs.saturating_mul(updates_per_step),
        }
    }

    /// Whether the converted number is exact, and not rounded up.
    pub fn is_exact(self, theirs: u64, updates_per_step: u64) -> bool {
        match self {
            Self::Updates => theirs.is_multiple_of(updates_per_step),
            Self::Batches => true,
        }
    }

    /// The unit there, and the unit here.
    pub fn words(self) -> [&'static str; 2] {
        let words = ["optimiser updates", "generation batches"];
        match self {
            Self::Updates => words,
            Self::Batches => [words[1], words[0]],
        }
    }
}

/// Values on their way into `run.toml`: options in the order in which they were found.
pub type Options = Vec<(String, Value)>;

/// The value of a key, if it is given.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<Value>;

/// Why a value cannot be taken over.
pub type Reason = Cow<'static, str>;

/// How a value is written here, or why it cannot be taken over.
pub type Convert = fn(&Value) -> Result<Value, Reason>;

/// A key of theirs whose value cannot be taken over, the option that would make up for it (empty if there is none), and
/// the reason.
pub type Refusal = (String, String, String);

/// A key whose value is written differently, with its option.
pub type Converted = (&'static str, &'static str, Convert);

/// Keys whose fate depends on their name alone. A name that ends in `*` stands for all keys that begin so.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// Keys that [`Rules::combine`] turns into options.
    combined: Vec<String>,
    /// Options of the same meaning, by their keys.
    options: BTreeMap<String, String>,
    /// Keys that are no option.
    hints: Vec<Hint>,
    /// Keys that are no option and change prompts, rewards or weights.
    refused: Vec<Hint>,
    /// Parts of the configuration in which an unknown key may change what is trained.
    doubtful: Vec<String>,
    /// The options that make up for combined keys, where there is one.
    given_as: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hint {
    words: String,
    keys: Vec<String>,
    /// Values of a refused key that change nothing, in addition to empty ones.
    #[serde(default)]
    unless: Vec<String>,
}

impl Keys {
    /// Reads the file of a dialect.
    pub fn parse(file: &str) -> Self {
        toml::from_str(file).expect("the file of a dialect is valid, as a test sees")
    }

    /// The rule for a key that is no option, from the longest name that stands for the key.
    fn hint(&'static self, key: &str) -> Option<Rule> {
        let of = |hints: &'static [Hint], rule: fn(&'static Hint) -> Rule| {
            hints.iter().flat_map(move |hint| hint.keys.iter().map(move |name| (name, rule(hint))))
        };
        let said = of(&self.hints, |hint| Rule::Hint(&hint.words))
            .chain(of(&self.refused, |hint| Rule::Refused(&hint.words, &hint.unless)))
            .chain(self.doubtful.iter().map(|name| (name, Rule::Doubtful)));
        // A name for the end of a key says more than a name for its beginning.
        let weight = |name: &str| (name.starts_with('*') || !name.ends_with('*'), name.len());
        said.filter(|(name, _)| stands(name, key)).max_by_key(|(name, _)| weight(name)).map(|(_, rule)| rule)
    }

    /// The option that makes up for a combined key.
    pub fn given_as(&self, key: &str) -> &str {
        self.given_as.get(key).map_or("", String::as_str)
    }
}

/// Whether a name stands for a key: a name that ends in `*` stands for all keys that begin so, a name that begins with
/// `*` for all that end so.
fn stands(name: &str, key: &str) -> bool {
    match (name.strip_suffix('*'), name.strip_prefix('*')) {
        (Some(begin), _) => key.starts_with(begin),
        (None, Some(end)) => key.ends_with(end),
        (None, None) => name == key,
    }
}

/// The rules of a dialect.
#[derive(Clone, Copy)]
pub struct Rules {
    /// The keys in its file.
    pub keys: &'static LazyLock<Keys>,
    /// Keys whose values are written differently.
    pub converted: &'static [Converted],
    /// Whether our own keys and their other spellings are understood too.
    pub ours: bool,
    /// Options for keys that are not given, where the dialect's default differs from ours.
    pub implied: &'static [(&'static str, &'static str)],
    /// The same where the default depends on other keys.
    pub implied_by: fn(Lookup<'_>) -> Options,
    /// Options with another unit there.
    pub counts: &'static [(&'static str, Count)],
    /// Keys that another key leaves without an effect, with the reason.
    pub overruled: fn(Lookup<'_>) -> Vec<(&'static str, &'static str)>,
    /// Options that follow from several keys.
    pub combine: fn(Lookup<'_>) -> Options,
    /// Remarks on values that were taken over.
    pub remarks: fn(Lookup<'_>) -> Vec<String>,
    /// Values of combined keys that cannot be taken over.
    pub refusals: fn(Lookup<'_>) -> Vec<Refusal>,
    /// The rules of its launcher.
    pub launcher: Option<&'static Rules>,
}

impl Rules {
    /// The rule for a key; none if there is no rule for it.
    pub fn find(&self, key: &str) -> Option<Rule> {
        let keys: &'static Keys = self.keys;
        let converted = self.converted.iter().find(|(name, ..)| *name == key);
        let named = || keys.options.get(key).map(|option| Rule::Option(option));
        let own = || config::option(key).filter(|_| self.ours).map(|option| Rule::Option(option.key));
        let combined = || keys.combined.iter().any(|name| stands(name, key)).then_some(Rule::Combined);
        let rule = converted.map(|&(_, option, convert)| Rule::Convert(option, convert));
        let of_launcher = || self.launcher.and_then(|rules| rules.find(key));
        rule.or_else(named).or_else(combined).or_else(own).or_else(|| keys.hint(key)).or_else(of_launcher)
    }
}

/// No defaults that depend on other keys.
pub fn nothing_implied(_: Lookup<'_>) -> Options {
    Options::new()
}

/// A path; a list may hold one.
pub fn one_path(value: &Value) -> Result<Value, Reason> {
    match value {
        Value::Array(list) if list.len() == 1 => one_path(&list[0]),
        Value::Array(_) => Err("one file is read; join them into one".into()),
        value => Ok(value.clone()),
    }
}

/// As [`one_path`], for an option that takes several.
pub fn paths(value: &Value) -> Result<Value, Reason> {
    match value {
        Value::Array(list) => list.iter().map(one_path).collect(),
        value => one_path(value),
    }
}

/// A text, or several.
pub fn texts(value: &Value) -> Result<Value, Reason> {
    Ok(if value.is_string() { vec![value.clone()].into() } else { value.clone() })
}

/// A number of steps; -1 means no limit.
pub fn limit(value: &Value) -> Result<Value, Reason> {
    Ok(if value.as_f64().is_some_and(|n| n <= 0.0) { Value::Null } else { value.clone() })
}

/// `top_k`; -1, or more tokens than any vocabulary has, turns it off.
pub fn top_k(value: &Value) -> Result<Value, Reason> {
    let off = value.as_f64().is_none_or(|k| k <= 0.0 || k >= 1e6);
    Ok(if off { 0.into() } else { value.clone() })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::ValueEnum;

    use super::*;
    use crate::import_config::dialect::Dialect;

    #[test]
    fn every_rule_leads_to_an_option_that_exists() {
        for dialect in Dialect::value_variants() {
            let rules = dialect.rules();
            let converted = rules.converted.iter().map(|&(key, option, _)| (key, option));
            let named = rules.keys.options.iter().map(|(key, option)| (key.as_str(), option.as_str()));
            let options: Vec<(&str, &str)> = converted.chain(named).collect();
            for (key, name) in &options {
                assert!(config::OPTIONS.iter().any(|option| option.key == *name), "{key}: {name}");
            }
            let hints = rules.keys.hints.iter().chain(&rules.keys.refused).flat_map(|hint| &hint.keys);
            let others = hints.chain(&rules.keys.combined).chain(&rules.keys.doubtful).map(String::as_str);
            let mut seen = HashSet::new();
            for key in options.iter().map(|(key, _)| *key).chain(others) {
                assert!(seen.insert(key), "{key} is there twice");
                let named = key.ends_with('*') || key.starts_with('*') || rules.keys.options.contains_key(key);
                assert!(!rules.ours || named || !matches!(rules.find(key), None | Some(Rule::Option(_))));
            }
            for (key, name) in &rules.keys.given_as {
                assert!(config::option(name).is_some() && rules.keys.combined.contains(key), "{key}: {name}");
            }
            for (name, value) in rules.implied {
                config::layers::load(None, &vec![((*name).to_owned(), (*value).to_owned())]).unwrap();
            }
            for (name, _) in rules.counts {
                assert!(config::option(name).is_some(), "{name}");
            }
        }
    }
}
