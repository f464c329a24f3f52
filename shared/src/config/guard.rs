//! The entries of `guard`: each one names a sign of trouble and the action to take.
//!
//! An entry is `sign=action`, or `sign=action:above=NUMBER:steps=NUMBER`.

use super::TrainConfig;
use crate::declare::{Choice, choices};

choices! {
    /// Sign of trouble that the guard checks for before an update moves the weights.
    GuardSign {
        /// The loss or the gradient of an update is no finite number.
        NonFinite = "non_finite",
        /// `mismatch_kl`, the distance between sampler and learner, is above 1e-5 where both compute the same in
        /// float32, above 0.1 otherwise.
        Mismatch = "mismatch",
        /// The gradient norm of the first update is above 10 times the median of the last 32 steps.
        GradientSpike = "gradient_spike",
        /// `kl`, the distance from the reference policy, is above 1 nat per token.
        Kl = "kl",
        /// `entropy` is below 0.01 nats per token.
        EntropyGone = "entropy_gone",
        /// More than half of the completions were cut off.
        Truncated = "truncated",
        /// More than 0.99 of the groups have no contrast.
        EqualGroups = "equal_groups",
        /// A reward function failed on more than a tenth of the completions.
        RewardFailures = "reward_failures",
    }
    /// Action of the guard, from the mildest to the strictest.
    GuardAction {
        /// Says so.
        Warn = "warn",
        /// Multiplies the learning rate with `guard_learning_rate_factor`, from the next step on.
        LowerLearningRate = "lower_learning_rate",
        /// Leaves the updates of the step out: the next version has the weights of the one before.
        SkipStep = "skip_step",
        /// Leaves the step out and goes back to the weights of the last healthy checkpoint; prompts used since then are
        /// not used again.
        RollBack = "roll_back",
        /// Ends the run with a checkpoint and an error.
        Stop = "stop",
    }
}

impl GuardSign {
    /// The figure of a sign, in words, and whether low values are the sign.
    #[must_use]
    pub fn figure(self) -> (&'static str, bool) {
        match self {
            Self::NonFinite => ("updates that are not finite", false),
            Self::Mismatch => ("mismatch_kl", false),
            Self::GradientSpike => ("the gradient norm, relative to the median before it,", false),
            Self::Kl => ("kl", false),
            Self::EntropyGone => ("entropy", true),
            Self::Truncated => ("the share of completions that were cut off", false),
            Self::EqualGroups => ("the share of groups without contrast", false),
            Self::RewardFailures => ("the share of completions on which a reward function failed", false),
        }
    }

    /// The threshold of a sign, if the entry gives none.
    fn usual_threshold(self, config: &TrainConfig) -> f64 {
        match self {
            Self::NonFinite => 0.0,
            Self::Mismatch => config.mismatch_explained(),
            Self::GradientSpike => 10.0,
            Self::Kl => 1.0,
            Self::EntropyGone => 0.01,
            Self::Truncated => 0.5,
            Self::EqualGroups => 0.99,
            Self::RewardFailures => 0.1,
        }
    }

    /// Steps in a row for which a sign must last, if the entry gives none. A step has a few prompts, which may all be
    /// hard by chance; but there is no wait for signs of damage that a single update can do.
    fn usual_steps(self) -> u64 {
        match self {
            Self::NonFinite | Self::Mismatch | Self::GradientSpike | Self::Kl | Self::RewardFailures => 1,
            Self::EntropyGone | Self::Truncated | Self::EqualGroups => 3,
        }
    }
}

/// An entry of `guard`, with all open parts filled in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GuardRule {
    /// The sign.
    pub sign: GuardSign,
    /// The action.
    pub action: GuardAction,
    /// The sign is there above this figure; below it where [`GuardSign::figure`] says so.
    pub threshold: f64,
    /// Steps in a row for which the sign must be there.
    pub steps: u64,
}

impl GuardRule {
    fn parse(entry: &str, config: &TrainConfig) -> Result<Self, String> {
        let mut parts = entry.split(':');
        let usage = "an entry is `sign=action`, or `sign=action:above=NUMBER:steps=NUMBER`";
        let (sign, action) = parts.next().and_then(|part| part.split_once('=')).ok_or(usage)?;
        let sign = GuardSign::of_word(sign.trim()).map_err(|e| format!("sign {e}"))?;
        let action = GuardAction::of_word(action.trim()).map_err(|e| format!("action {e}"))?;
        let mut rule = Self { sign, action, threshold: sign.usual_threshold(config), steps: sign.usual_steps() };
        let bound = if sign.figure().1 { "below" } else { "above" };
        for part in parts {
            let (key, value) = part.split_once('=').ok_or(usage)?;
            let number = |wanted: &str| format!("`{key}` must be {wanted}, got {value}");
            match key.trim() {
                "steps" => {
                    rule.steps = value.trim().parse().ok().filter(|&n| n >= 1).ok_or_else(|| number("at least 1"))?;
                }
                word if word == bound && sign != GuardSign::NonFinite => {
                    let parsed = value.trim().parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
                    rule.threshold = parsed.ok_or_else(|| number("a finite number of at least 0"))?;
                }
                other if sign == GuardSign::NonFinite => {
                    return Err(format!("`{other}` is nothing that {sign} has; it has `steps`"));
                }
                other => return Err(format!("`{other}` is nothing that {sign} has; it has `{bound}` and `steps`")),
            }
        }
        Ok(rule)
    }
}

impl TrainConfig {
    /// The entries of `guard`, and the rule that every run has unless an entry overrides it: updates that are not
    /// finite are left out.
    ///
    /// # Errors
    /// The first invalid entry, with the valid forms.
    pub fn guard_rules(&self) -> Result<Vec<GuardRule>, String> {
        let mut rules = Vec::new();
        for entry in &self.guard {
            let rule = GuardRule::parse(entry, self).map_err(|problem| format!("`guard`, {entry}: {problem}"))?;
            if rules.iter().any(|known: &GuardRule| known.sign == rule.sign) {
                return Err(format!("`guard` names {} twice", rule.sign));
            }
            rules.push(rule);
        }
        if !rules.iter().any(|rule| rule.sign == GuardSign::NonFinite) {
            rules.push(GuardRule {
                sign: GuardSign::NonFinite,
                action: GuardAction::SkipStep,
                threshold: 0.0,
                steps: 1,
            });
        }
        if self.beta == 0.0 && rules.iter().any(|rule| rule.sign == GuardSign::Kl) {
            return Err("`guard` kl has no effect without `beta` above 0".into());
        }
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(entries: &[&str]) -> Result<Vec<GuardRule>, String> {
        let guard = entries.iter().map(|entry| (*entry).to_owned()).collect();
        TrainConfig { guard, ..TrainConfig::default() }.guard_rules()
    }

    #[test]
    fn entries_say_what_they_do_not_leave_open() {
        let usual = GuardRule { sign: GuardSign::NonFinite, action: GuardAction::SkipStep, threshold: 0.0, steps: 1 };
        assert_eq!(rules(&[]).unwrap(), [usual]);
        assert_eq!(rules(&["non_finite=stop"]).unwrap(), [GuardRule { action: GuardAction::Stop, ..usual }]);
        let found = rules(&["mismatch=skip_step", "entropy_gone=roll_back:below=0.2:steps=5"]).unwrap();
        let of = |sign, action, threshold, steps| GuardRule { sign, action, threshold, steps };
        assert_eq!(found[0], of(GuardSign::Mismatch, GuardAction::SkipStep, 1e-5, 1));
        assert_eq!(found[1], of(GuardSign::EntropyGone, GuardAction::RollBack, 0.2, 5));
        assert_eq!(found[2], usual);
    }

    #[test]
    fn entries_that_make_no_sense_are_named() {
        for (entries, words) in [
            (&["mismatch"][..], "`guard`, mismatch: an entry is `sign=action`"),
            (&["mismatches=stop"], "sign `mismatches` is none of non_finite, mismatch,"),
            (&["mismatch=halt"], "action `halt` is none of warn,"),
            (&["mismatch=stop:below=1"], "`below` is nothing that mismatch has; it has `above` and `steps`"),
            (&["entropy_gone=stop:above=1"], "it has `below` and `steps`"),
            (&["mismatch=stop:above=nan"], "`above` must be a finite number of at least 0, got nan"),
            (&["mismatch=stop:steps=0"], "`steps` must be at least 1, got 0"),
            (&["non_finite=stop:above=1"], "it has `steps`"),
            (&["mismatch=stop", "mismatch=warn"], "names mismatch twice"),
            (&["kl=stop"], "`guard` kl has no effect without `beta` above 0"),
        ] {
            let error = rules(entries).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
