//! The declaration of a reward function: its name, its parameters, and how it is made from them.

use std::{collections::BTreeMap, path::PathBuf, str::FromStr, sync::Arc};

use shared::config::RewardHost;

use crate::Reward;

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
    /// Columns of the dataset that hold the right answer; on a row with none of them the function abstains. A function
    /// with such columns judges answers, and dynamic sampling goes by it. A function without them reads the completions
    /// alone.
    pub columns: &'static [&'static str],
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Makes the function.
    pub build: fn(&Parameters) -> Result<Arc<dyn Reward>, String>,
}

/// Parameter values, defaults filled in.
pub struct Parameters {
    pub(crate) values: BTreeMap<&'static str, String>,
    pub(crate) host: RewardHost,
}

impl Parameters {
    /// The value of a declared parameter.
    ///
    /// # Errors
    /// When the value is not of the wanted type.
    pub fn get<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.values.get(name).ok_or_else(|| format!("parameter `{name}` is missing"))?;
        text.parse().map_err(|_| format!("parameter `{name}` has the unusable value `{text}`"))
    }

    /// The value of a declared parameter that is a whole number of at least 1.
    ///
    /// # Errors
    /// When the value is none.
    pub fn positive(&self, name: &str) -> Result<usize, String> {
        match self.get(name)? {
            0 => Err(format!("parameter `{name}` must be at least 1")),
            n => Ok(n),
        }
    }

    /// The value of a declared parameter that is a path.
    ///
    /// # Errors
    /// When it is not declared.
    pub fn path(&self, name: &str) -> Result<PathBuf, String> {
        Ok(self.host.path(&self.get::<PathBuf>(name)?))
    }

    /// How processes are started.
    #[must_use]
    pub fn host(&self) -> &RewardHost {
        &self.host
    }
}
