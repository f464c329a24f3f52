//! Reward functions by name.
//!
//! A function is asked for as `name` or, with parameters, `name:key=value:key=value`; no comma or quote is needed, so
//! the same text works in lists on a command line and in `run.toml`. A colon within a value is written `\:`.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

use super::{Reward, rules::ENTRIES};
use crate::data::Dataset;

/// A reward function that cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// No such function.
    #[error("unknown reward function `{name}`{}; there are {}", hint(.suggestion), .known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest name.
        suggestion: Option<String>,
        /// Every name.
        known: Vec<&'static str>,
    },
    /// A parameter is unknown, missing or out of range.
    #[error("reward function `{name}`: {reason}")]
    Parameter {
        /// The function.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The dataset has no row that the function could score.
    #[error("reward function `{name}` needs the column {}, but no row of {path} has it", .columns.join(" or "))]
    Columns {
        /// The function.
        name: String,
        /// The columns, any of which would do.
        columns: Vec<&'static str>,
        /// The dataset.
        path: String,
    },
}

fn hint(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|s| format!(" (did you mean `{s}`?)")).unwrap_or_default()
}

/// A parameter of a function.
#[derive(Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value when not given; a parameter without one must be given.
    pub default: Option<&'static str>,
    /// What it means.
    pub about: &'static str,
}

/// A function as the registry knows it.
pub struct Entry {
    /// Its name. The name with `_reward` appended is accepted too, as theLMbook and TRL call theirs.
    pub name: &'static str,
    /// What it rewards, in one line.
    pub about: &'static str,
    /// Columns of the dataset that it reads; on a row with none of them it abstains. Empty = it needs none.
    pub columns: &'static [&'static str],
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Makes the function.
    pub build: fn(&Parameters) -> Result<Arc<dyn Reward>, String>,
}

/// Parameter values, defaults filled in.
pub struct Parameters(BTreeMap<&'static str, String>);

impl Parameters {
    /// The value of a declared parameter.
    ///
    /// # Errors
    /// When the value is not of the wanted type.
    pub fn get<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.0.get(name).ok_or_else(|| format!("parameter `{name}` is missing"))?;
        text.parse().map_err(|_| format!("parameter `{name}` has the unusable value `{text}`"))
    }
}

/// A reward function ready for use.
#[derive(Clone)]
pub struct RewardFunction {
    name: String,
    columns: &'static [&'static str],
    reward: Arc<dyn Reward>,
}

impl std::fmt::Debug for RewardFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RewardFunction").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RewardFunction {
    /// Makes a function from `name` or `name:key=value:…`.
    ///
    /// # Errors
    /// An unknown name or a bad parameter.
    pub fn from_spec(spec: &str) -> Result<Self, RewardError> {
        let (name, settings) = spec.split_once(':').unwrap_or((spec, ""));
        let entry = find(name)?;
        let fail = |reason: String| RewardError::Parameter { name: entry.name.to_owned(), reason };
        let parameters = parameters(entry, settings).map_err(fail)?;
        let reward = (entry.build)(&parameters).map_err(fail)?;
        Ok(Self { name: spec.to_owned(), columns: entry.columns, reward })
    }

    /// Makes every function of a list.
    ///
    /// # Errors
    /// As [`RewardFunction::from_spec`], for the first that fails.
    pub fn from_specs(specs: &[String]) -> Result<Vec<Self>, RewardError> {
        specs.iter().map(|spec| Self::from_spec(spec)).collect()
    }

    /// A function that is not in the registry.
    #[must_use]
    pub fn custom(name: impl Into<String>, reward: Arc<dyn Reward>) -> Self {
        Self { name: name.into(), columns: &[], reward }
    }

    /// The text that it was asked for with: its name in metrics and outputs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The function itself.
    #[must_use]
    pub fn reward(&self) -> &Arc<dyn Reward> {
        &self.reward
    }

    /// Checks that the function can score at least one row of a dataset.
    ///
    /// # Errors
    /// [`RewardError::Columns`].
    pub fn check(&self, dataset: &Dataset) -> Result<(), RewardError> {
        let has_any = |row: &crate::data::PromptRow| self.columns.iter().any(|c| row.columns.contains_key(*c));
        if self.columns.is_empty() || dataset.rows().iter().any(has_any) {
            return Ok(());
        }
        Err(RewardError::Columns {
            name: self.name.clone(),
            columns: self.columns.to_vec(),
            path: dataset.path().display().to_string(),
        })
    }
}

/// Every function, in the order in which they are listed.
#[must_use]
pub fn entries() -> &'static [Entry] {
    ENTRIES
}

fn find(name: &str) -> Result<&'static Entry, RewardError> {
    let bare = name.strip_suffix("_reward").unwrap_or(name);
    if let Some(entry) = ENTRIES.iter().find(|e| e.name == name || e.name == bare) {
        return Ok(entry);
    }
    let suggestion = ENTRIES
        .iter()
        .map(|e| (strsim::jaro_winkler(e.name, bare), e.name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score > 0.75)
        .map(|(_, name)| name.to_owned());
    Err(RewardError::Unknown { name: name.to_owned(), suggestion, known: ENTRIES.iter().map(|e| e.name).collect() })
}

/// The parts between colons; `\:` is a colon of a part.
fn split(settings: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = settings;
    while let Some(c) = rest.chars().next() {
        let part = parts.last_mut().expect("there is always a part");
        let (taken, width) = if rest.starts_with("\\:") { (':', 2) } else { (c, c.len_utf8()) };
        rest = &rest[width..];
        if taken == ':' && width == 1 { parts.push(String::new()) } else { part.push(taken) }
    }
    parts
}

fn parameters(entry: &Entry, settings: &str) -> Result<Parameters, String> {
    let known = || entry.parameters.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let mut values: BTreeMap<&'static str, String> =
        entry.parameters.iter().filter_map(|p| Some((p.name, p.default?.to_owned()))).collect();
    for setting in split(settings).iter().filter(|s| !s.is_empty()) {
        let (key, value) = setting.split_once('=').ok_or_else(|| {
            format!("`{setting}` is not of the form key=value (a colon within a value is written `\\:`)")
        })?;
        if entry.parameters.is_empty() {
            return Err(format!("takes no parameters, got `{key}`"));
        }
        let parameter = entry
            .parameters
            .iter()
            .find(|p| p.name == key)
            .ok_or_else(|| format!("unknown parameter `{key}`; there are {}", known()))?;
        values.insert(parameter.name, value.to_owned());
    }
    match entry.parameters.iter().find(|p| !values.contains_key(p.name)) {
        Some(missing) => Err(format!("needs `{}` ({}), as in {}:{0}=…", missing.name, missing.about, entry.name)),
        None => Ok(Parameters(values)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(spec: &str) -> String {
        RewardFunction::from_spec(spec).unwrap_err().to_string()
    }

    #[test]
    fn every_function_can_be_made() {
        // A model needs a directory; `rollout/tests/reward_model.rs` makes one.
        for entry in entries().iter().filter(|entry| entry.name != "model") {
            let given: String =
                entry.parameters.iter().filter(|p| p.default.is_none()).map(|p| format!(":{}=4", p.name)).collect();
            let spec = format!("{}{given}", entry.name);
            assert_eq!(RewardFunction::from_spec(&spec).unwrap().name(), spec);
        }
    }

    #[test]
    fn names_of_thelmbook_and_trl_are_understood() {
        for spec in ["correctness_reward", "format_reward", "accuracy_reward", "think_format_reward"] {
            assert!(RewardFunction::from_spec(spec).is_ok(), "{spec}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error("corectness").contains("did you mean `correctness`?"), "{}", error("corectness"));
        assert!(error("zzz").contains("there are correctness, format"), "{}", error("zzz"));
        assert_eq!(error("format:x=1"), "reward function `format`: takes no parameters, got `x`");
        assert!(error("sentence_share").contains("needs `word`"), "{}", error("sentence_share"));
        assert!(error("sentence_share:wrod=dog").contains("unknown parameter `wrod`; there are word"));
        assert!(error("repetition_penalty:ngram_size=two").contains("unusable value `two`"));
        assert!(error("repetition_penalty:ngram_size").contains("not of the form key=value"));
        assert!(error("model:path=/no/such/model").contains("/no/such/model: no such directory"));
    }

    #[test]
    fn colons_within_values_are_escaped() {
        assert_eq!(split(r"a=b:c=d\:e\:f:"), ["a=b", "c=d:e:f", ""]);
        let path = error(r"model:path=/no\:where");
        assert!(path.contains("/no:where: no such directory"), "{path}");
        assert!(error("model:path=/no:where").contains(r"a colon within a value is written `\:`"));
    }
}
