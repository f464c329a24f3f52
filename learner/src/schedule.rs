//! Learning-rate schedules, as transformers' `get_scheduler` (`transformers.optimization`, 5.24).

use std::f64::consts::PI;

use shared::config::{LrSchedulerType, RampShape, ScheduleSettings, TrainConfig};

/// A learning rate as a function of the number of updates done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Shape after the warm-up.
    pub kind: LrSchedulerType,
    /// Peak rate.
    pub peak: f64,
    /// Updates of warm-up; `constant` has none.
    pub warmup: u64,
    /// Updates of the whole run.
    pub total: u64,
    /// Further settings of the shape.
    pub settings: ScheduleSettings,
}

impl Schedule {
    /// The schedule of a run of `total` updates.
    ///
    /// # Panics
    /// With settings that [`TrainConfig::validate`] refuses.
    #[must_use]
    pub fn from_config(config: &TrainConfig, total: u64) -> Self {
        let warmup = match config.warmup_steps {
            0 => (total as f64 * config.warmup_ratio).ceil() as u64,
            steps => steps,
        };
        let settings = config.schedule_settings().expect("the configuration of a run is valid");
        Self { kind: config.lr_scheduler_type, peak: config.learning_rate, warmup, total, settings }
    }

    /// Rate of the update that follows `done` updates.
    #[must_use]
    pub fn rate(&self, done: u64) -> f64 {
        self.peak * self.factor(done)
    }

    fn factor(&self, done: u64) -> f64 {
        match self.kind {
            LrSchedulerType::Constant => return 1.0,
            LrSchedulerType::CosineWarmupWithMinLr => return self.cosine_from_above_0(done),
            LrSchedulerType::WarmupStableDecay => return self.stages(done),
            _ => {}
        }
        if done < self.warmup {
            return done as f64 / self.warmup as f64;
        }
        let after = (done - self.warmup) as f64;
        let length = self.length();
        match self.kind {
            LrSchedulerType::Linear => (1.0 - after / length).max(0.0),
            LrSchedulerType::Cosine => match self.settings.num_cycles {
                // The same curve as in the other arm with half a wave. The last bits of that arm differ, and would
                // change the bytes of earlier runs.
                None => (0.5 * (1.0 + (PI * after / length).cos())).max(0.0),
                Some(_) => self.wave(after / length).max(0.0),
            },
            LrSchedulerType::CosineWithRestarts => match after / length {
                progress if progress >= 1.0 => 0.0,
                progress => {
                    let cycles = self.settings.num_cycles.unwrap_or(1.0);
                    (0.5 * (1.0 + (PI * ((cycles * progress) % 1.0)).cos())).max(0.0)
                }
            },
            LrSchedulerType::Polynomial => self.polynomial(done),
            LrSchedulerType::InverseSqrt => {
                // Without a warm-up, transformers counts in 10,000 updates.
                let usual = if self.warmup == 0 { 10_000 } else { self.warmup };
                let timescale = self.settings.timescale.unwrap_or(usual) as f64;
                1.0 / ((after + timescale) / timescale).sqrt()
            }
            LrSchedulerType::CosineWithMinLr => between(self.wave(after / length), self.least()).max(0.0),
            _ => 1.0,
        }
    }

    /// Updates after the warm-up, at least one.
    fn length(&self) -> f64 {
        self.total.saturating_sub(self.warmup).max(1) as f64
    }

    /// A cosine from 1, with `num_cycles` waves while the progress goes from 0 to 1.
    fn wave(&self, progress: f64) -> f64 {
        0.5 * (1.0 + (PI * self.settings.num_cycles.unwrap_or(0.5) * 2.0 * progress).cos())
    }

    /// The smallest rate as a share of the peak.
    fn least(&self) -> f64 {
        let of_rate = self.settings.min_lr.filter(|_| self.peak > 0.0).map(|rate| rate / self.peak);
        of_rate.or(self.settings.min_lr_rate).unwrap_or(0.0)
    }

    fn polynomial(&self, done: u64) -> f64 {
        let end = self.settings.polynomial_end();
        let length = self.total.saturating_sub(self.warmup) as f64;
        if done > self.total || length == 0.0 {
            return end / self.peak;
        }
        let left = 1.0 - (done - self.warmup) as f64 / length;
        ((self.peak - end) * left.powf(self.settings.power.unwrap_or(1.0)) + end) / self.peak
    }

    /// `cosine_warmup_with_min_lr`, whose first update has a rate above 0.
    fn cosine_from_above_0(&self, done: u64) -> f64 {
        let (done, warmup) = (done as f64, self.warmup as f64);
        if done < warmup {
            return match self.settings.warmup_lr_rate {
                None => (done + 1.0) / warmup,
                Some(first) => first + (1.0 - first) * done / (warmup - 1.0).max(1.0),
            };
        }
        between(self.wave((done - warmup + 1.0) / self.length()), self.least()).max(0.0)
    }

    /// `warmup_stable_decay`.
    fn stages(&self, done: u64) -> f64 {
        let settings = &self.settings;
        let (done, warmup) = (done as f64, self.warmup as f64);
        let decay = settings.num_decay_steps.unwrap_or(0) as f64;
        let least = settings.min_lr_ratio.unwrap_or(0.0);
        if done < warmup {
            let progress = done / warmup;
            let factor = match settings.warmup_type.unwrap_or(RampShape::Linear) {
                RampShape::Linear => progress,
                RampShape::Cosine => 0.5 * (1.0 - (PI * progress).cos()),
                RampShape::OneMinusSqrt => 1.0 - (1.0 - progress).sqrt(),
            };
            return between(factor, least).max(0.0);
        }
        // Below 0 if warm-up and decay are longer than the run. The run then begins within the decay.
        let stable = settings.num_stable_steps.map_or(self.total as f64 - warmup - decay, |steps| steps as f64);
        let into = done - warmup - stable;
        if into < 0.0 {
            return 1.0;
        }
        if into >= decay {
            return least;
        }
        let progress = into / decay;
        let factor = match settings.decay_type.unwrap_or(RampShape::Cosine) {
            RampShape::Linear => 1.0 - progress,
            RampShape::Cosine => self.wave(progress),
            RampShape::OneMinusSqrt => 1.0 - progress.sqrt(),
        };
        between(factor, least).max(0.0)
    }
}

/// Moves a factor between 0 and 1 to lie between `least` and 1.
fn between(factor: f64, least: f64) -> f64 {
    factor * (1.0 - least) + least
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: LrSchedulerType, warmup: u64) -> impl Fn(u64) -> f64 {
        let settings = ScheduleSettings::default();
        move |done| Schedule { kind, peak: 2.0, warmup, total: 10, settings }.rate(done)
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

    /// Rates of every update as transformers' own functions give them, with the settings read as a run's are.
    #[test]
    fn golden_schedules() {
        let golden = harness::golden("schedules.json");
        let cases = golden["cases"].as_array().unwrap();
        let mut seen = std::collections::HashSet::new();
        for case in cases {
            let params = &case["params"];
            let config = TrainConfig {
                lr_scheduler_type: params["lr_scheduler_type"].as_str().unwrap().parse().unwrap(),
                lr_scheduler_kwargs: serde_json::from_value(params["lr_scheduler_kwargs"].clone()).unwrap(),
                learning_rate: params["learning_rate"].as_f64().unwrap(),
                warmup_steps: params["warmup_steps"].as_u64().unwrap(),
                ..TrainConfig::default()
            };
            seen.insert(config.lr_scheduler_type);
            let schedule = Schedule::from_config(&config, params["total"].as_u64().unwrap());
            for (done, expected) in case["expected"]["rates"].as_array().unwrap().iter().enumerate() {
                let (found, expected) = (schedule.rate(done as u64), expected.as_f64().unwrap());
                let close = (found - expected).abs() <= 1e-12 * config.learning_rate.max(expected.abs());
                assert!(close, "{}: {found} at {done}, expected {expected}", case["name"]);
            }
        }
        assert_eq!(seen.len(), <LrSchedulerType as shared::config::Choice>::ALL.len(), "every schedule has a case");
    }
}
