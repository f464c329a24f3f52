//! Whose configuration it is.

use anyhow::{Result, bail};

use super::{
    accelerate,
    read::Entry,
    rlinf,
    rules::{Rule, Rules},
    trl, verl,
};

/// A system whose configuration can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Dialect {
    /// TRL's `GRPOConfig` with script arguments, as YAML, JSON or the flags of `trl grpo`.
    Trl,
    /// accelerate's YAML, which says how a script of TRL is started.
    Accelerate,
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
            Self::Accelerate => "accelerate",
            Self::Verl => "verl",
            Self::Rlinf => "RLinf",
        }
    }

    /// How its keys translate.
    pub fn rules(self) -> Rules {
        match self {
            Self::Trl => trl::RULES,
            Self::Accelerate => accelerate::RULES,
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
        let own = Rules { launcher: None, ..trl::RULES };
        let is_option = |key: &str| own.find(key).is_some_and(|rule| !matches!(rule, Rule::Hint(_) | Rule::Combined));
        if has("compute_environment") && !entries.iter().any(|(key, _)| is_option(key)) {
            return Ok(Self::Accelerate);
        }
        if entries.iter().any(|(key, _)| own.find(key).is_some()) {
            return Ok(Self::Trl);
        }
        bail!(
            "no key is one of TRL, accelerate, verl or RLinf; if it is theirs all the same, say so with `tandem import-config --from`"
        )
    }
}
