//! Learning-rate schedules, as transformers' `get_scheduler`.

use std::f64::consts::PI;

use shared::config::{LrSchedulerType, TrainConfig};

/// A learning rate as a function of the number of updates done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Shape after the warm-up.
    pub kind: LrSchedulerType,
    /// Peak rate.
    pub peak: f64,
    /// Updates of linear warm-up; `constant` has none.
    pub warmup: u64,
    /// Updates of the whole run.
    pub total: u64,
}

impl Schedule {
    /// The schedule of a run of `total` updates.
    #[must_use]
    pub fn from_config(config: &TrainConfig, total: u64) -> Self {
        let warmup = match config.warmup_steps {
            0 => (total as f64 * config.warmup_ratio).ceil() as u64,
            steps => steps,
        };
        Self { kind: config.lr_scheduler_type, peak: config.learning_rate, warmup, total }
    }

    /// Rate of the update that follows `done` updates.
    #[must_use]
    pub fn rate(&self, done: u64) -> f64 {
        self.peak * self.factor(done)
    }

    fn factor(&self, done: u64) -> f64 {
        if self.kind == LrSchedulerType::Constant {
            return 1.0;
        }
        if done < self.warmup {
            return done as f64 / self.warmup as f64;
        }
        let after = (done - self.warmup) as f64;
        let length = self.total.saturating_sub(self.warmup).max(1) as f64;
        match self.kind {
            LrSchedulerType::Constant | LrSchedulerType::ConstantWithWarmup => 1.0,
            LrSchedulerType::Linear => (1.0 - after / length).max(0.0),
            LrSchedulerType::Cosine => (0.5 * (1.0 + (PI * after / length).cos())).max(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: LrSchedulerType, warmup: u64) -> impl Fn(u64) -> f64 {
        move |done| Schedule { kind, peak: 2.0, warmup, total: 10 }.rate(done)
    }

    /// Figures of transformers' schedules with the same arguments.
    #[test]
    fn shapes() {
        let linear = schedule(LrSchedulerType::Linear, 2);
        assert_eq!(
            [linear(0), linear(1), linear(2), linear(6), linear(10), linear(11)],
            [0.0, 1.0, 2.0, 1.0, 0.0, 0.0]
        );
        let cosine = schedule(LrSchedulerType::Cosine, 2);
        assert_eq!([cosine(1), cosine(2)], [1.0, 2.0]);
        assert!((cosine(6) - 1.0).abs() < 1e-12 && cosine(10).abs() < 1e-12);
        assert_eq!(schedule(LrSchedulerType::ConstantWithWarmup, 4)(2), 1.0);
        assert_eq!(schedule(LrSchedulerType::Constant, 4)(0), 2.0);
        assert_eq!(schedule(LrSchedulerType::Linear, 0)(0), 2.0);
    }

    #[test]
    fn steps_win_over_the_ratio() {
        let mut config = TrainConfig { warmup_ratio: 0.25, ..TrainConfig::default() };
        assert_eq!(Schedule::from_config(&config, 10).warmup, 3);
        config.warmup_steps = 5;
        assert_eq!(Schedule::from_config(&config, 10).warmup, 5);
    }
}
