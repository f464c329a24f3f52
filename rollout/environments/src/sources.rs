//! Where environments come from.

use std::time::Duration;

use shared::config::RewardHost;

/// The options of environments.
#[derive(Debug, Clone)]
pub struct Sources {
    /// TRL's `tools`: functions as `file.py:function` or `module.function`, or built in as `builtin:calculator`. They
    /// come first in the prompt, in this order.
    pub tools: Vec<String>,
    /// TRL's `environment_factory`.
    pub environment_factory: Option<Factory>,
    /// TRL's `reward_funcs`. Those in Python that ask for `environments` are called where the environments are.
    pub reward_funcs: Vec<String>,
    /// Interpreter, folder, number and limits of the processes: those of rewards.
    pub host: RewardHost,
    /// How long a call of a tool, a reset and a score may take, each (`environment_timeout`).
    pub timeout: Duration,
}

/// TRL's `environment_factory`: one class, or several that the column `environment` of a row chooses from. A class is
/// `file.py:Class` or `module.Class`, or built in as `builtin:maze`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Factory {
    /// The same for every row.
    One(String),
    /// Names with their classes, in order.
    ByColumn(Vec<(String, String)>),
}

impl Factory {
    /// Each class with the name that chooses it; no name where there is one class.
    pub(crate) fn entries(&self) -> Vec<(Option<&str>, &str)> {
        match self {
            Self::One(entry) => vec![(None, entry)],
            Self::ByColumn(entries) => {
                entries.iter().map(|(name, entry)| (Some(name.as_str()), entry.as_str())).collect()
            }
        }
    }
}
