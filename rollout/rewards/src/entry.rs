//! What a reward function is before it is made: its name, its parameters, and how it is made of them.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

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
    /// Columns of the dataset that say what is right; on a row with none of them it abstains. A function with such columns
    /// judges answers, which is what dynamic sampling goes by; one without reads the completions alone.
    pub columns: &'static [&'static str],
    /// Its parameters.
    pub parameters: &'static [Parameter],
    /// Makes the function.
    pub build: fn(&Parameters) -> Result<Arc<dyn Reward>, String>,
}

/// Parameter values, defaults filled in.
pub struct Parameters(pub(crate) BTreeMap<&'static str, String>);

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
