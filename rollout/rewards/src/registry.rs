//! Reward functions by name.
//!
//! A function is asked for as `name` or, with parameters, `name:key=value:key=value`; no comma or quote is needed, so
//! the same text works in lists on a command line and in `run.toml`. A colon within a value is written `\:`. The first
//! value may stand without a key where only one must be given, as in `judge:rubric.md`. Functions in Python are named
//! as [`PythonFunction`] says.

use std::collections::BTreeMap;

use rayon::prelude::*;
use shared::config::{
    RewardHost, TrainConfig,
    rewards::{PythonFunction, parts},
};

use crate::{
    RewardError, RewardFunction,
    entry::{Entry, Parameters},
    judge,
    program::{command, python},
    rules,
};

/// The functions that can be asked for.
pub struct Registry {
    /// The known functions besides those of this crate.
    further: &'static [Entry],
    host: RewardHost,
}

impl Default for Registry {
    fn default() -> Self {
        Self::with(&[])
    }
}

impl Registry {
    /// The functions of this crate and further ones, in processes as they are by default.
    #[must_use]
    pub fn with(further: &'static [Entry]) -> Self {
        Self { further, host: TrainConfig::default().reward_host() }
    }

    /// The same functions, in processes that `host` describes.
    #[must_use]
    pub fn on(&self, host: RewardHost) -> Self {
        Self { further: self.further, host }
    }

    /// Every function, in the order in which they are listed.
    pub fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        rules::ENTRIES.iter().chain([command::ENTRY, judge::ENTRY]).chain(self.further)
    }

    /// Makes a function from `name` or `name:key=value:…`.
    ///
    /// # Errors
    /// An unknown name or a bad parameter.
    pub fn function(&self, spec: &str) -> Result<RewardFunction, RewardError> {
        if let Some(function) = PythonFunction::parse(spec) {
            return python::load(spec, &function, &self.host);
        }
        let (name, settings) = spec.split_once(':').unwrap_or((spec, ""));
        let entry = self.find(name)?;
        let fail = |reason: String| RewardError::Parameter { name: entry.name.to_owned(), reason };
        let values = parameters(entry, settings).map_err(fail)?;
        let reward = (entry.build)(&Parameters { values, host: self.host.clone() }).map_err(fail)?;
        let (name, columns, own) = (spec.to_owned(), entry.columns, entry.name == command::NAME);
        Ok(RewardFunction { name, columns, own, is_rater: false, reward })
    }

    /// Makes every function of a list; those that take long to load do so at the same time.
    ///
    /// # Errors
    /// As [`Registry::function`], for the first that fails.
    pub fn functions(&self, specs: &[String]) -> Result<Vec<RewardFunction>, RewardError> {
        let made: Vec<_> = specs.par_iter().map(|spec| self.function(spec)).collect();
        made.into_iter().collect()
    }

    /// The entry of the name in `name` or `name:key=value:…`. Functions in Python have none.
    #[must_use]
    pub fn entry(&self, spec: &str) -> Option<&'static Entry> {
        let name = spec.split(':').next().unwrap_or(spec);
        PythonFunction::parse(spec).is_none().then(|| self.find(name).ok())?
    }

    /// Whether the function `name` or `name:key=value:…` judges answers: a completion that gets at least
    /// [`Reward::correct_at`](crate::Reward::correct_at) is right. Unknown functions do not.
    #[must_use]
    pub fn judges(&self, spec: &str) -> bool {
        self.entry(spec).is_some_and(|entry| !entry.columns.is_empty())
    }

    fn find(&self, name: &str) -> Result<&'static Entry, RewardError> {
        let bare = name.strip_suffix("_reward").unwrap_or(name);
        if let Some(entry) = self.entries().find(|e| e.name == name || e.name == bare) {
            return Ok(entry);
        }
        let suggestion = self
            .entries()
            .map(|e| (strsim::jaro_winkler(e.name, bare), e.name))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(score, _)| *score > 0.75)
            .map(|(_, name)| name.to_owned());
        Err(RewardError::Unknown { name: name.to_owned(), suggestion, known: self.entries().map(|e| e.name).collect() })
    }
}

/// Whether the name of a function in Python says that it judges answers, as `accuracy_reward` does.
#[must_use]
pub fn seems_to_judge(spec: &str) -> bool {
    let Some(function) = PythonFunction::parse(spec).and_then(|python| python.function) else { return false };
    let name = function.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    has(&JUDGES) && !has(&NO_JUDGES)
}

/// Parts of names of functions that judge answers, and of functions that judge something about answers.
const JUDGES: [&str; 10] =
    ["accura", "correct", "solve", "judge", "verif", "exact_match", "equal", "right_answer", "is_right", "outcome"];
const NO_JUDGES: [&str; 5] = ["format", "length", "style", "penalty", "tag"];

fn parameters(entry: &Entry, settings: &str) -> Result<BTreeMap<&'static str, String>, String> {
    let names = || entry.parameters.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
    let mut values: BTreeMap<&'static str, String> =
        entry.parameters.iter().filter_map(|p| Some((p.name, p.default?.to_owned()))).collect();
    let mut wanted = entry.parameters.iter().filter(|p| p.default.is_none());
    let mut given: Vec<&str> = Vec::new();
    let only = wanted.next().filter(|_| wanted.next().is_none()).map(|parameter| parameter.name);
    for (at, setting) in parts(settings).iter().filter(|s| !s.is_empty()).enumerate() {
        let alone = only.filter(|_| at == 0).map(|key| (key, setting.as_str()));
        let (key, value) = setting.split_once('=').or(alone).ok_or_else(|| {
            format!("`{setting}` is not of the form key=value (a colon within a value is written `\\:`)")
        })?;
        if entry.parameters.is_empty() {
            return Err(format!("takes no parameters, got `{key}`"));
        }
        let parameter = entry
            .parameters
            .iter()
            .find(|p| p.name == key)
            .ok_or_else(|| format!("unknown parameter `{key}`; there are {}", names()))?;
        if given.contains(&parameter.name) {
            return Err(format!("`{}` is given twice; keep one of them", parameter.name));
        }
        given.push(parameter.name);
        values.insert(parameter.name, value.to_owned());
    }
    match entry.parameters.iter().find(|p| !values.contains_key(p.name)) {
        Some(missing) => Err(format!("needs `{}` ({}), as in {}:{0}=…", missing.name, missing.about, entry.name)),
        None => Ok(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(spec: &str) -> String {
        Registry::default().function(spec).unwrap_err().to_string()
    }

    #[test]
    fn every_function_can_be_made() {
        // A judge needs files and an endpoint, and has tests of its own.
        for entry in Registry::default().entries().filter(|entry| entry.name != judge::NAME) {
            let given: String =
                entry.parameters.iter().filter(|p| p.default.is_none()).map(|p| format!(":{}=4", p.name)).collect();
            let spec = format!("{}{given}", entry.name);
            assert_eq!(Registry::default().function(&spec).unwrap().name(), spec);
        }
    }

    #[test]
    fn names_of_thelmbook_and_trl_are_understood() {
        for spec in ["correctness_reward", "format_reward", "accuracy_reward", "think_format_reward"] {
            assert!(Registry::default().function(spec).is_ok(), "{spec}");
        }
    }

    #[test]
    fn a_python_function_is_no_rule_of_the_same_name() {
        assert!(Registry::default().judges("gsm8k") && !Registry::default().judges("my_rewards.py:gsm8k"));
        assert!(Registry::default().entry("lib.gsm8k").is_none());
    }

    #[test]
    fn names_of_python_functions_tell_judges() {
        for spec in [
            "trl.rewards.accuracy_reward",
            "r.py:correctness",
            "lib.is_solved",
            "r.py:llm_judge",
            "r.py:verify_math",
            "r.py:exact_match",
        ] {
            assert!(seems_to_judge(spec), "{spec}");
        }
        for spec in ["r.py:correct_format", "r.py:close", "trl.rewards.think_format_reward", "accuracy", "r.py"] {
            assert!(!seems_to_judge(spec), "{spec}");
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
        assert_eq!(
            error("length:target=5:target=30"),
            "reward function `length`: `target` is given twice; keep one of them"
        );
        assert!(error("sentence_share:dog:word=cat").contains("`word` is given twice"));
        assert!(
            error("judge:a.md:rubric=b.md").contains("`rubric` is given twice"),
            "{}",
            error("judge:a.md:rubric=b.md")
        );
        assert!(error("sentence_share:dog:cat").contains("`cat` is not of the form key=value"));
        assert!(Registry::default().function("sentence_share:dog").is_ok());
    }

    #[test]
    fn colons_within_values_are_escaped() {
        assert_eq!(parts(r"a=b:c=d\:e\:f:"), ["a=b", "c=d:e:f", ""]);
        assert!(error("sentence_share:word=/no:where").contains(r"a colon within a value is written `\:`"));
    }
}
