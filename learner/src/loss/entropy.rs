//! The entropy bonus and its adaptive coefficient.

use serde::{Deserialize, Serialize};
use shared::config::TrainConfig;
use tch::{Kind, Tensor};

/// Mean entropy, as it enters the loss.
#[derive(Debug)]
pub struct Bonus {
    /// Weighted sum of the entropies.
    pub value: f64,
    /// Its derivative with respect to each entropy, `[N]`.
    pub gradient_N: Tensor,
    /// Sum of the entropies that count, and their number.
    pub active: (f64, f64),
}

/// The mean entropy of the active tokens (`active_N` 1; absent = all), given the weights that make a mean of all
/// tokens.
#[must_use]
pub fn bonus(entropies_N: &Tensor, active_N: Option<&Tensor>, weights_N: &Tensor) -> Bonus {
    let number = |x: &Tensor| x.sum(Kind::Double).double_value(&[]);
    let tokens = entropies_N.numel() as f64;
    let (gradient_N, active) = match active_N {
        None => (weights_N.shallow_clone(), (number(entropies_N), tokens)),
        Some(active_N) => {
            let count = number(active_N);
            (weights_N * active_N * (tokens / count.max(1.0)), (number(&(entropies_N * active_N)), count))
        }
    };
    Bonus { value: number(&(entropies_N * &gradient_N)), gradient_N, active }
}

/// The coefficient of the bonus over a run: constant, or led by the measured entropy (TRL `use_adaptive_entropy`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EntropyController {
    /// The coefficient.
    pub coef: f64,
    /// Entropy of the last update; none before the first, so that a run begins without a bonus.
    last_entropy: Option<f64>,
    adaptive: Option<Adaptive>,
}

/// What an adaptive controller carries from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EntropyState {
    coef: f64,
    last_entropy: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Adaptive {
    least: f64,
    most: f64,
    delta: f64,
    target: f64,
}

impl EntropyController {
    /// The controller that a configuration asks for.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        let adaptive = config.use_adaptive_entropy.then_some(Adaptive {
            least: config.entropy_coef_min,
            most: config.entropy_coef_max,
            delta: config.entropy_coef_delta,
            target: config.entropy_target,
        });
        Self { coef: config.entropy_coef, last_entropy: None, adaptive }
    }

    /// Whether the run can have a bonus at all.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.coef != 0.0 || self.adaptive.is_some()
    }

    /// The coefficient that the next update applies: an adaptive one only while the entropy is not above its target.
    #[must_use]
    pub fn applied(&self) -> f64 {
        match self.adaptive {
            Some(adaptive) if self.last_entropy.is_none_or(|last| last > adaptive.target) => 0.0,
            _ => self.coef,
        }
    }

    /// The state for a checkpoint; absent when the coefficient is constant.
    #[must_use]
    pub fn state(&self) -> Option<EntropyState> {
        self.adaptive.map(|_| EntropyState { coef: self.coef, last_entropy: self.last_entropy })
    }

    /// Goes on from a saved state.
    pub fn restore(&mut self, state: Option<EntropyState>) {
        if let (Some(_), Some(state)) = (self.adaptive, state) {
            (self.coef, self.last_entropy) = (state.coef, state.last_entropy);
        }
    }

    /// Takes note of the mean entropy of an update.
    pub fn observe(&mut self, entropy: f64) {
        let Some(adaptive) = self.adaptive.filter(|_| entropy.is_finite()) else { return };
        self.last_entropy = Some(entropy);
        self.coef = if entropy <= adaptive.target {
            (self.coef + adaptive.delta).min(adaptive.most)
        } else {
            (self.coef - adaptive.delta).max(adaptive.least)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_adaptive_coefficient_rises_below_the_target_and_falls_above_it() {
        let config = TrainConfig {
            use_adaptive_entropy: true,
            entropy_coef: 0.01,
            entropy_coef_delta: 0.005,
            entropy_coef_max: 0.02,
            entropy_target: 0.5,
            ..TrainConfig::default()
        };
        let mut controller = EntropyController::from_config(&config);
        assert_eq!(controller.applied(), 0.0, "nothing was measured yet");
        for expected in [0.015, 0.02, 0.02] {
            controller.observe(0.3);
            assert!((controller.coef - expected).abs() < 1e-12);
            assert_eq!(controller.applied(), controller.coef);
        }
        for expected in [0.015, 0.01, 0.005, 0.0, 0.0] {
            controller.observe(0.7);
            assert!((controller.coef - expected).abs() < 1e-12);
            assert_eq!(controller.applied(), 0.0);
        }
        controller.observe(f64::NAN);
        assert_eq!(controller.last_entropy, Some(0.7), "an update without tokens says nothing");
    }

    #[test]
    fn a_constant_coefficient_stays() {
        let mut controller =
            EntropyController::from_config(&TrainConfig { entropy_coef: 0.1, ..TrainConfig::default() });
        controller.observe(9.0);
        assert_eq!((controller.applied(), controller.enabled()), (0.1, true));
        assert!(!EntropyController::from_config(&TrainConfig::default()).enabled());
    }
}
