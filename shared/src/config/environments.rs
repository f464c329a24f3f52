//! Tools and environments of a run, as far as all programs must agree on them.
//!
//! A tool is a Python function, written like a [reward function](super::rewards), or a built-in one as
//! `builtin:calculator`. An environment is a Python class or a built-in one as `builtin:maze`. A program, as
//! `command:./my_env`, has tools or is an environment.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use shared_bounds::KeysOnce;

use super::{TrainConfig, rewards};
use crate::declare::{OptionValue, ValueKind};

/// What stands before the name of a built-in tool or environment.
pub const BUILT_IN: &str = "builtin:";

/// What stands before the command line of a program that has tools or is an environment.
pub const COMMAND: &str = "command:";

/// The column that names the environment of a row, where the run has several (TRL).
pub const ENVIRONMENT_COLUMN: &str = "environment";

/// The environments of a run (TRL `environment_factory`): one for all rows, or several by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentFactory {
    /// One class for all rows.
    One(String),
    /// Several classes; a row names one in its column `environment`.
    Named(BTreeMap<String, String>),
}

impl EnvironmentFactory {
    /// The classes with the names that rows give them; the only one has none.
    pub fn classes(&self) -> impl Iterator<Item = (Option<&str>, &str)> {
        let (one, named) = match self {
            Self::One(class) => (Some(class), None),
            Self::Named(classes) => (None, Some(classes)),
        };
        let named = named.into_iter().flatten().map(|(name, class)| (Some(name.as_str()), class.as_str()));
        one.into_iter().map(|class| (None, class.as_str())).chain(named)
    }

    /// The entries of the classes, each once, in order: the reward of a class is one column.
    #[must_use]
    pub fn entries(&self) -> Vec<String> {
        let mut entries: Vec<String> = Vec::new();
        for (_, class) in self.classes() {
            if !entries.iter().any(|known| known == class) {
                entries.push(class.to_owned());
            }
        }
        entries
    }
}

/// Reads the JSON of an object as a table, and any other text as a class.
impl FromStr for EnvironmentFactory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.trim_start().starts_with('{') {
            return Ok(Self::One(text.to_owned()));
        }
        let wrong = |error| format!("must be a class, or the JSON of an object of names and classes: {error}");
        let KeysOnce(classes) = serde_json::from_str(text).map_err(wrong)?;
        serde_json::from_value(classes).map(Self::Named).map_err(wrong)
    }
}

impl fmt::Display for EnvironmentFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(class) => f.write_str(class),
            Self::Named(classes) => f.write_str(&serde_json::to_string(classes).expect("texts have JSON")),
        }
    }
}

impl Serialize for EnvironmentFactory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EnvironmentFactory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Text(String),
            Table(BTreeMap<String, String>),
        }
        match Given::deserialize(deserializer)? {
            Given::Text(text) => text.parse().map_err(D::Error::custom),
            Given::Table(classes) => Ok(Self::Named(classes)),
        }
    }
}

impl OptionValue for EnvironmentFactory {
    const KIND: ValueKind = ValueKind::TextOrTable;

    /// A table without a class is empty too: its conversations would have no environment.
    fn has_empty_text(&self) -> bool {
        self.classes().next().is_none() || self.classes().any(|(_, class)| class.is_empty())
    }
}

/// What metrics call the reward of an agent.
pub const AGENT_REWARD: &str = "agent";

/// What an `agent` begins with that is a server of verifiers, and not a command line.
pub(crate) const VERIFIERS: &str = "verifiers:";

impl TrainConfig {
    /// The server of verifiers that plays the episodes of the run, as `HOST:PORT`.
    #[must_use]
    pub fn verifiers(&self) -> Option<&str> {
        self.agent.as_deref()?.strip_prefix(VERIFIERS)?.strip_prefix("tcp://")
    }

    /// Whether completions are conversations with tools or an environment.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        !self.tools.is_empty() || self.environment_factory.is_some()
    }

    /// Finished turns whose keys and values a sampler of `max_num_seqs` sequences holds while tools work.
    #[must_use]
    pub fn kept_states(&self, max_num_seqs: usize) -> usize {
        if self.has_tools() || self.agent.is_some() { self.max_kept_states.unwrap_or(max_num_seqs) } else { 0 }
    }

    /// Each reward of the run as metrics call it, with its weight: reward functions, then environments with the weight
    /// 1 (TRL).
    #[must_use]
    pub fn weighted_rewards(&self) -> Vec<(String, f64)> {
        let weights = self.reward_weights.iter().copied().chain(std::iter::repeat(1.0));
        let names = rewards::names(&self.reward_entries());
        let functions = self.reward_funcs.len();
        let of_environments = names[functions..].iter().map(|name| (name.clone(), 1.0));
        names[..functions].iter().cloned().zip(weights).chain(of_environments).collect()
    }

    /// What gives rewards: the entries of `reward_funcs`, then the classes of the environments, or the agent.
    #[must_use]
    pub fn reward_entries(&self) -> Vec<String> {
        let environments = self.environment_factory.iter().flat_map(EnvironmentFactory::entries);
        let agent = self.agent.iter().map(|_| AGENT_REWARD.to_owned());
        let functions = self.reward_funcs.iter().cloned();
        functions.chain(environments.map(|entry| bare(&entry).to_owned())).chain(agent).collect()
    }
}

/// An entry without the mark of what is built in.
#[must_use]
pub fn bare(entry: &str) -> &str {
    entry.strip_prefix(BUILT_IN).unwrap_or(entry)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_class_is_a_text_and_several_are_a_table_that_is_written_as_json() {
        let one: EnvironmentFactory = serde_json::from_value(json!("my_env.py:Maze")).unwrap();
        assert_eq!(one, EnvironmentFactory::One("my_env.py:Maze".into()));
        let table = json!({ "maze": "my_env.py:Maze", "game": "builtin:maze" });
        let named: EnvironmentFactory = serde_json::from_value(table).unwrap();
        let classes: Vec<_> = named.classes().collect();
        assert_eq!(classes, [(Some("game"), "builtin:maze"), (Some("maze"), "my_env.py:Maze")]);
        let written = serde_json::to_value(&named).unwrap();
        assert_eq!(written, r#"{"game":"builtin:maze","maze":"my_env.py:Maze"}"#);
        assert_eq!(serde_json::from_value::<EnvironmentFactory>(written).unwrap(), named);
        let twice = json!(r#"{"a": "a.py:A", "a": "a.py:B"}"#);
        for wrong in [json!("{"), json!("{\"a\": 1}"), json!(["a.py:A"]), json!({ "a": 1 }), twice] {
            assert!(serde_json::from_value::<EnvironmentFactory>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_rewards_of_environments_follow_those_of_functions_with_weight_1() {
        let mut config = TrainConfig { reward_funcs: vec!["format".into(), "a.py:f".into()], ..TrainConfig::default() };
        config.reward_weights = vec![0.5, 2.0];
        config.environment_factory = Some("my_env.py:Maze".parse().unwrap());
        let names = |config: &TrainConfig| config.weighted_rewards();
        assert_eq!(names(&config), [("format".into(), 0.5), ("f".into(), 2.0), ("Maze".into(), 1.0)]);
        config.environment_factory =
            Some(r#"{"x": "builtin:maze", "y": "e.py:f", "z": "builtin:maze"}"#.parse().unwrap());
        let expected = [("format".into(), 0.5), ("a.f".into(), 2.0), ("maze".into(), 1.0), ("e.f".into(), 1.0)];
        assert_eq!(names(&config), expected);
    }

    #[test]
    fn states_are_kept_only_for_conversations() {
        let config = TrainConfig::default();
        assert_eq!((config.has_tools(), config.kept_states(4)), (false, 0));
        let config = TrainConfig { tools: vec!["builtin:calculator".into()], ..config };
        assert_eq!((config.has_tools(), config.kept_states(4)), (true, 4));
        assert_eq!(TrainConfig { max_kept_states: Some(9), ..config }.kept_states(4), 9);
    }
}
