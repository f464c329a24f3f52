//! Numbers of steps that are given as shares of all steps, as in transformers 5: `save_steps = 0.25`.

use toml::{Table, Value};

use super::{OPTIONS, OptionSpec, TrainConfig};

/// The share in a value, if its option takes shares and the value is one.
pub(super) fn share(option: &OptionSpec, value: &Value) -> Option<f64> {
    value.as_float().filter(|number| option.share_of(*number).is_some())
}

/// Moves every share to the option for shares.
pub(super) fn told_apart(mut values: Table) -> Table {
    for option in OPTIONS {
        let (Some(other), Some(value)) = (option.share, values.get(option.key)) else { continue };
        if let Some(share) = share(option, value) {
            values.remove(option.key);
            values.insert(other.to_owned(), Value::Float(share));
        }
    }
    values
}

impl TrainConfig {
    /// Replaces shares by numbers of steps, in a run of `steps` steps: `ceil(steps * share)`, as in transformers.
    /// `warmup_ratio` stays, since it counts updates.
    pub fn resolve_shares(&mut self, steps: u64) {
        let of = |share: f64| ((steps as f64 * share).ceil() as u64).max(1);
        if let Some(share) = self.save_ratio.take() {
            self.save_steps = of(share);
        }
        if let Some(share) = self.eval_ratio.take() {
            self.eval_steps = Some(of(share));
        }
        if let Some(share) = self.logging_ratio.take() {
            self.logging_steps = of(share);
        }
    }

    /// Whether the run evaluates while it trains.
    #[must_use]
    pub fn evaluates(&self) -> bool {
        self.eval_steps.is_some() || self.eval_ratio.is_some()
    }
}
