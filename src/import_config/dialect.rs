//! Whose configuration it is.

use anyhow::{Result, bail};

use super::{read::Entry, rlinf, rules::Rules, trl, verl};

/// A system whose configuration can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// TRL's `GRPOConfig` with script arguments, as YAML or JSON.
    Trl,
    /// verl's overrides, one after the other, or as YAML.
    Verl,
    /// RLinf's YAML.
    Rlinf,
}

impl Dialect {
    /// The name of the system.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trl => "TRL",
            Self::Verl => "verl",
            Self::Rlinf => "RLinf",
        }
    }

    /// How its keys translate.
    pub fn rules(self) -> Rules {
        match self {
            Self::Trl => trl::RULES,
            Self::Verl => verl::RULES,
            Self::Rlinf => rlinf::RULES,
        }
    }

    /// Tells the dialect by its keys.
    ///
    /// # Errors
    /// When they are nobody's.
    pub fn detect(entries: &[Entry]) -> Result<Self> {
        let has = |prefix: &str| entries.iter().any(|(key, _)| key.starts_with(prefix));
        if has("actor_rollout_ref.") || has("algorithm.adv_estimator") {
            return Ok(Self::Verl);
        }
        if has("algorithm.adv_type") || has("algorithm.group_size") || (has("runner.") && has("algorithm.")) {
            return Ok(Self::Rlinf);
        }
        let known = entries.iter().filter(|(key, _)| trl::RULES.find(key).is_some()).count();
        if known > 0 {
            return Ok(Self::Trl);
        }
        bail!("no key is one of TRL, verl or RLinf; if it is theirs all the same, say so with --from")
    }
}
