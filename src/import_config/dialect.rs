//! The system that a configuration is written for.

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

    /// Detects the dialect by the keys.
    ///
    /// # Errors
    /// When no dialect has these keys.
    pub fn detect(entries: &[Entry]) -> Result<Self> {
        let has = |prefix: &str| entries.iter().any(|entry| entry.key.starts_with(prefix));
        if has("actor_rollout_ref.") || has("algorithm.adv_estimator") {
            return Ok(Self::Verl);
        }
        if has("algorithm.adv_type") || has("algorithm.group_size") || (has("runner.") && has("algorithm.")) {
            return Ok(Self::Rlinf);
        }
        let own = Rules { launcher: None, ..trl::RULES };
        let is_option =
            |key: &str| own.find(key).is_some_and(|rule| matches!(rule, Rule::Option(_) | Rule::Convert(..)));
        if has("compute_environment") && !entries.iter().any(|entry| is_option(&entry.key)) {
            return Ok(Self::Accelerate);
        }
        let known = entries.iter().filter(|entry| own.find(&entry.key).is_some()).count();
        if known > 0 && 3 * known >= entries.len() {
            return Ok(Self::Trl);
        }
        if known > 0 {
            bail!(
                "{known} of its {} keys are TRL's, so it is another trainer's, which is not read; if it is TRL's all \
                 the same, say so with `tandem import-config --from trl`",
                entries.len()
            );
        }
        bail!(
            "no key is one of TRL, accelerate, verl or RLinf; if it is theirs all the same, say so with `tandem \
             import-config --from`"
        )
    }
}
