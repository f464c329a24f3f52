//! How a key of another system becomes an option.

use serde_json::Value;
use shared::config;

/// What becomes of a key.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// An option of the same meaning.
    Option(&'static str),
    /// An option whose value is written differently.
    Convert(&'static str, fn(&Value) -> Result<Value, &'static str>),
    /// Taken into account together with other keys, by [`Rules::combine`].
    Combined,
    /// No option, and the reason or the way.
    Hint(&'static str),
}

/// What an option counts in another system and something else here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Optimiser updates there, generation batches here.
    Updates,
    /// Generation batches there, optimiser updates here.
    Batches,
}

impl Count {
    /// A number of theirs as one of ours, when a generation batch has so many updates; rounded up, so that a run is not
    /// shorter than it was.
    pub fn convert(self, theirs: u64, updates_per_step: u64) -> u64 {
        match self {
            Self::Updates => theirs.div_ceil(updates_per_step),
            Self::Batches => theirs.saturating_mul(updates_per_step),
        }
    }

    /// What is counted there, and what is here.
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

/// The dictionary of a dialect.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Keys in full; one that ends in `*` stands for all keys that begin so.
    pub keys: &'static [(&'static str, Rule)],
    /// Whether our own keys and their other spellings are understood too.
    pub ours: bool,
    /// Options that stand for defaults that differ from ours, for keys that are not given.
    pub implied: &'static [(&'static str, &'static str)],
    /// Options that are counted in something else there.
    pub counts: &'static [(&'static str, Count)],
    /// Options that follow from several keys.
    pub combine: fn(Lookup<'_>) -> Options,
}

impl Rules {
    /// What becomes of a key; nothing is known of it when there is no rule.
    pub fn find(&self, key: &str) -> Option<Rule> {
        let exact = self.keys.iter().find(|(name, _)| *name == key);
        let own = || self.ours.then(|| config::option(key).map(|o| Rule::Option(o.key))).flatten();
        let prefixed = || self.keys.iter().find(|(name, _)| name.strip_suffix('*').is_some_and(|p| key.starts_with(p)));
        exact.map(|(_, rule)| *rule).or_else(own).or_else(|| prefixed().map(|(_, rule)| *rule))
    }
}

/// A path, of which a list may name one.
pub fn one_path(value: &Value) -> Result<Value, &'static str> {
    match value {
        Value::Array(list) if list.len() == 1 => one_path(&list[0]),
        Value::Array(_) => Err("one file is read; join them into one"),
        Value::String(text) if text.contains('$') => Err("it names a shell variable"),
        value => Ok(value.clone()),
    }
}

/// A number of steps, of which -1 means no limit.
pub fn limit(value: &Value) -> Result<Value, &'static str> {
    Ok(if value.as_f64().is_some_and(|n| n <= 0.0) { Value::Null } else { value.clone() })
}

/// `top_k`, which is off with -1 or with more tokens than any vocabulary has.
pub fn top_k(value: &Value) -> Result<Value, &'static str> {
    let off = value.as_f64().is_none_or(|k| k <= 0.0 || k >= 1e6);
    Ok(if off { 0.into() } else { value.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import_config::dialect::Dialect;

    #[test]
    fn every_rule_leads_to_an_option_that_exists() {
        for dialect in [Dialect::Trl, Dialect::Verl, Dialect::Rlinf] {
            let rules = dialect.rules();
            for (key, rule) in rules.keys {
                if let Rule::Option(name) | Rule::Convert(name, _) = rule {
                    assert!(config::OPTIONS.iter().any(|option| option.key == *name), "{key}: {name}");
                }
                assert_eq!(rules.keys.iter().filter(|(other, _)| other == key).count(), 1, "{key}");
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
