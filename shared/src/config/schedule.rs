//! `lr_scheduler_kwargs`: the settings of each schedule, with the names and the rules of `transformers.optimization`
//! (5.24).

use serde_json::{Value, json};

use super::{ConfigError, JsonTable, LrSchedulerType, TrainConfig};

/// The shape of a warm-up or a decay of `warmup_stable_decay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RampShape {
    /// A straight line.
    Linear,
    /// A cosine.
    Cosine,
    /// One minus a square root.
    OneMinusSqrt,
}

/// Settings of a schedule in addition to warm-up and length; missing ones have the defaults of transformers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ScheduleSettings {
    /// Waves of a cosine, or restarts.
    pub num_cycles: Option<f64>,
    /// Rate at which `polynomial` ends.
    pub lr_end: Option<f64>,
    /// Power of `polynomial`.
    pub power: Option<f64>,
    /// Time scale of `inverse_sqrt`, in updates.
    pub timescale: Option<u64>,
    /// Smallest rate.
    pub min_lr: Option<f64>,
    /// Smallest rate as a share of the peak.
    pub min_lr_rate: Option<f64>,
    /// Share of the peak at which the warm-up of `cosine_warmup_with_min_lr` begins.
    pub warmup_lr_rate: Option<f64>,
    /// Updates of the decay of `warmup_stable_decay`.
    pub num_decay_steps: Option<u64>,
    /// Updates at the peak of `warmup_stable_decay`.
    pub num_stable_steps: Option<u64>,
    /// Shape of the warm-up of `warmup_stable_decay`.
    pub warmup_type: Option<RampShape>,
    /// Shape of the decay of `warmup_stable_decay`.
    pub decay_type: Option<RampShape>,
    /// Share of the peak at which `warmup_stable_decay` begins and ends.
    pub min_lr_ratio: Option<f64>,
}

/// The settings that a schedule has.
fn names(kind: LrSchedulerType) -> &'static [&'static str] {
    match kind {
        LrSchedulerType::Constant | LrSchedulerType::ConstantWithWarmup | LrSchedulerType::Linear => &[],
        LrSchedulerType::Cosine | LrSchedulerType::CosineWithRestarts => &["num_cycles"],
        LrSchedulerType::Polynomial => &["lr_end", "power"],
        LrSchedulerType::InverseSqrt => &["timescale"],
        LrSchedulerType::CosineWithMinLr => &["num_cycles", "min_lr", "min_lr_rate"],
        LrSchedulerType::CosineWarmupWithMinLr => &["num_cycles", "min_lr", "min_lr_rate", "warmup_lr_rate"],
        LrSchedulerType::WarmupStableDecay => {
            &["num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"]
        }
    }
}

/// The settings of all schedules with the values that [`settings`] takes, as properties of a JSON schema.
pub(super) fn schema_of_settings() -> Value {
    let rate = json!({ "type": "number", "minimum": 0 });
    let share = json!({ "type": "number", "minimum": 0, "maximum": 1 });
    let above_0 = json!({ "type": "number", "exclusiveMinimum": 0 });
    let updates = |least: u64| json!({ "type": "integer", "minimum": least });
    let shape = json!({ "enum": ["linear", "cosine", "1-sqrt"] });
    json!({
        "num_cycles": above_0,
        "lr_end": rate,
        "power": above_0,
        "timescale": updates(1),
        "min_lr": rate,
        "min_lr_rate": share,
        "warmup_lr_rate": share,
        "num_decay_steps": updates(0),
        "num_stable_steps": updates(0),
        "warmup_type": shape,
        "decay_type": shape,
        "min_lr_ratio": share,
    })
}

impl TrainConfig {
    /// The settings of the schedule.
    ///
    /// # Errors
    /// A setting that the schedule does not have, that is missing, or that is out of its range.
    pub fn schedule_settings(&self) -> Result<ScheduleSettings, ConfigError> {
        let kind = self.lr_scheduler_type;
        let given = self.lr_scheduler_kwargs.clone().unwrap_or_default();
        settings(kind, &given, self.learning_rate)
            .map_err(|reason| ConfigError::Value(format!("`lr_scheduler_kwargs` of {kind}: {reason}")))
    }

    /// A remark on a warm-up that cannot act in a run of so many updates: the schedule has none, or the run ends before
    /// the peak.
    #[must_use]
    pub fn warmup_remark(&self, updates: Option<u64>) -> Option<String> {
        let kind = self.lr_scheduler_type;
        if kind == LrSchedulerType::Constant {
            // Steps win over a ratio.
            let key = match (self.warmup_steps, self.warmup_ratio) {
                (0, 0.0) => return None,
                (0, _) => "warmup_ratio",
                _ => "warmup_steps",
            };
            return Some(format!(
                "`{key}` has no effect with `lr_scheduler_type` constant; constant_with_warmup has a warm-up"
            ));
        }
        // The first update of the other schedules has a rate of 0.
        let is_early = kind == LrSchedulerType::CosineWarmupWithMinLr;
        let to_peak = self.warmup_steps.saturating_add(u64::from(!is_early));
        let updates = updates.filter(|updates| self.warmup_steps > 0 && *updates < to_peak)?;
        Some(format!(
            "`warmup_steps` {} is not below the {updates} updates of the run, so the learning rate never reaches its \
             peak",
            self.warmup_steps
        ))
    }

    pub(super) fn check_schedule(&self) -> Result<(), ConfigError> {
        self.schedule_settings().map(drop)
    }
}

fn settings(kind: LrSchedulerType, given: &JsonTable, peak: f64) -> Result<ScheduleSettings, String> {
    let known = names(kind);
    if let Some((name, _)) = given.values().iter().find(|(name, _)| !known.contains(&name.as_str())) {
        let has = if known.is_empty() { "it has none".to_owned() } else { format!("it has {}", known.join(", ")) };
        return Err(format!("unknown setting `{name}`; {has}"));
    }
    let share = |name: &str| number(given, name, |x| (0.0..=1.0).contains(&x), "a number in [0, 1]");
    let rate = |name: &str| number(given, name, |x| x >= 0.0, "a rate of at least 0");
    let settings = ScheduleSettings {
        num_cycles: cycles(given)?,
        lr_end: rate("lr_end")?,
        power: number(given, "power", |x| x > 0.0, "a number above 0")?,
        timescale: count(given, "timescale", 1)?,
        min_lr: rate("min_lr")?,
        min_lr_rate: share("min_lr_rate")?,
        warmup_lr_rate: share("warmup_lr_rate")?,
        num_decay_steps: count(given, "num_decay_steps", 0)?,
        num_stable_steps: count(given, "num_stable_steps", 0)?,
        warmup_type: shape(given, "warmup_type")?,
        decay_type: shape(given, "decay_type")?,
        min_lr_ratio: share("min_lr_ratio")?,
    };
    check(kind, &settings, peak).map(|()| settings)
}

/// Checks required settings, and settings that exclude each other.
fn check(kind: LrSchedulerType, settings: &ScheduleSettings, peak: f64) -> Result<(), String> {
    match kind {
        LrSchedulerType::CosineWithMinLr | LrSchedulerType::CosineWarmupWithMinLr => {
            match (settings.min_lr, settings.min_lr_rate) {
                (Some(_), Some(_)) => Err("`min_lr` and `min_lr_rate` say the same; give one of them".into()),
                (None, None) => Err("give `min_lr` (a rate) or `min_lr_rate` (a share of `learning_rate`)".into()),
                (Some(min), None) if min > peak => Err(format!("`min_lr` {min:e} is above `learning_rate` {peak:e}")),
                _ => Ok(()),
            }
        }
        LrSchedulerType::WarmupStableDecay if settings.num_decay_steps.is_none() => {
            Err("give `num_decay_steps`, the optimiser updates of the decay".into())
        }
        LrSchedulerType::Polynomial => match settings.polynomial_end() {
            end if end >= peak => Err(format!("`lr_end` {end:e} must be below `learning_rate` {peak:e}")),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Default rate at which `polynomial` ends.
const POLYNOMIAL_END: f64 = 1e-7;

impl ScheduleSettings {
    /// Rate at which `polynomial` ends.
    #[must_use]
    pub fn polynomial_end(&self) -> f64 {
        self.lr_end.unwrap_or(POLYNOMIAL_END)
    }
}

/// `num_cycles`: as in transformers, it need not be whole even for restarts.
fn cycles(given: &JsonTable) -> Result<Option<f64>, String> {
    number(given, "num_cycles", |x| x > 0.0, "a number above 0")
}

fn number(given: &JsonTable, name: &str, fits: impl Fn(f64) -> bool, wanted: &str) -> Result<Option<f64>, String> {
    let Some(value) = given.values().get(name) else { return Ok(None) };
    let number = value.as_f64().filter(|number| number.is_finite() && fits(*number));
    number.map(Some).ok_or_else(|| format!("`{name}` must be {wanted}, got {value}"))
}

fn count(given: &JsonTable, name: &str, least: u64) -> Result<Option<u64>, String> {
    let Some(value) = given.values().get(name) else { return Ok(None) };
    let whole = |value: &Value| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64);
    let number = value.as_u64().or_else(|| whole(value)).filter(|number| *number >= least);
    number.map(Some).ok_or_else(|| format!("`{name}` must be a whole number of at least {least} updates, got {value}"))
}

fn shape(given: &JsonTable, name: &str) -> Result<Option<RampShape>, String> {
    let Some(value) = given.values().get(name) else { return Ok(None) };
    match value.as_str() {
        Some("linear") => Ok(Some(RampShape::Linear)),
        Some("cosine") => Ok(Some(RampShape::Cosine)),
        Some("1-sqrt") => Ok(Some(RampShape::OneMinusSqrt)),
        _ => Err(format!("`{name}` must be linear, cosine or 1-sqrt, got {value}")),
    }
}

/// Why a schedule of transformers is not supported here, if the reason is known.
pub(super) fn not_here(word: &str) -> Option<&'static str> {
    match word {
        "reduce_lr_on_plateau" => Some(
            "it waits for an evaluation loss to stop falling, and a run of rewards has none; name a schedule that goes \
             by updates, or lower the rate by a sign of trouble (`guard`, lower_learning_rate)",
        ),
        "greedy" => Some(
            "it follows a loss, and the loss of a policy gradient says nothing of progress; name a schedule that goes \
             by updates",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Choice;

    fn of(kind: LrSchedulerType, given: Value) -> Result<ScheduleSettings, String> {
        let config = TrainConfig {
            lr_scheduler_type: kind,
            lr_scheduler_kwargs: Some(serde_json::from_value(given).unwrap()),
            ..TrainConfig::default()
        };
        config.schedule_settings().map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_those_of_the_schedule() {
        let found = of(LrSchedulerType::CosineWithMinLr, json!({ "min_lr_rate": 0.1, "num_cycles": 1 })).unwrap();
        assert_eq!((found.min_lr_rate, found.num_cycles), (Some(0.1), Some(1.0)));
        let found = of(LrSchedulerType::WarmupStableDecay, json!({ "num_decay_steps": 5.0, "decay_type": "1-sqrt" }));
        let found = found.unwrap();
        assert_eq!((found.num_decay_steps, found.decay_type), (Some(5), Some(RampShape::OneMinusSqrt)));
        assert_eq!(of(LrSchedulerType::Linear, json!({})), Ok(ScheduleSettings::default()));
    }

    #[test]
    fn a_warm_up_that_cannot_act_is_told() {
        let remark = |kind, warmup_steps, warmup_ratio, updates| {
            let config = TrainConfig { lr_scheduler_type: kind, warmup_steps, warmup_ratio, ..TrainConfig::default() };
            config.warmup_remark(updates).unwrap_or_default()
        };
        let (constant, linear) = (LrSchedulerType::Constant, LrSchedulerType::Linear);
        let early = LrSchedulerType::CosineWarmupWithMinLr;
        assert!(remark(constant, 5, 0.1, None).starts_with("`warmup_steps` has no effect with `lr_scheduler_type`"));
        assert!(remark(constant, 0, 0.1, Some(100)).starts_with("`warmup_ratio` has no effect"));
        assert_eq!(remark(constant, 0, 0.0, Some(1)), "");
        assert!(remark(linear, 10, 0.0, Some(10)).starts_with("`warmup_steps` 10 is not below the 10 updates of the"));
        for (kind, steps, updates) in [
            (linear, 9, Some(10)),
            (linear, 10, None),
            (linear, 0, Some(1)),
            (early, 10, Some(10)),
            (LrSchedulerType::ConstantWithWarmup, 0, Some(1)),
        ] {
            assert_eq!(remark(kind, steps, 0.1, updates), "", "{kind}, {steps} of {updates:?}");
        }
        assert!(!remark(early, 11, 0.0, Some(10)).is_empty());
    }

    /// Each setting takes a value here where the schema says so: values on both sides of every bound.
    #[test]
    fn the_schema_of_the_settings_is_what_is_read() {
        let schema = json!({ "additionalProperties": false, "properties": schema_of_settings() });
        let mut settings: Vec<&str> = Vec::new();
        for kind in LrSchedulerType::ALL {
            for name in names(*kind) {
                for value in
                    [json!(-1), json!(0), json!(5e-7), json!(0.5), json!(1), json!(2), json!("cosine"), json!("x")]
                {
                    let given = json!({ *name: value });
                    let others = match *kind {
                        LrSchedulerType::CosineWithMinLr | LrSchedulerType::CosineWarmupWithMinLr
                            if !name.starts_with("min_lr") =>
                        {
                            json!({ "min_lr": 0 })
                        }
                        LrSchedulerType::WarmupStableDecay if *name != "num_decay_steps" => {
                            json!({ "num_decay_steps": 1 })
                        }
                        _ => json!({}),
                    };
                    let all = others.as_object().unwrap().iter().chain(given.as_object().unwrap());
                    let all: Value = all.map(|(name, value)| (name.clone(), value.clone())).collect();
                    // Two rates may not be above the peak, which no schema knows.
                    let read = of(*kind, all).is_ok();
                    let above_peak = ["lr_end", "min_lr"].contains(name) && value.as_f64() > Some(1e-6);
                    let valid = harness::json_schema::check(&schema, &given).is_ok() && !above_peak;
                    assert_eq!(read, valid, "{kind}: {given}");
                }
                settings.push(*name);
            }
        }
        let declared = schema["properties"].as_object().unwrap();
        assert!(declared.keys().all(|name| settings.contains(&name.as_str())), "a setting that no schedule has");
    }

    #[test]
    fn what_a_schedule_does_not_have_is_refused_by_name() {
        for (kind, given, words) in [
            (LrSchedulerType::Linear, json!({ "power": 2 }), "of linear: unknown setting `power`; it has none"),
            (LrSchedulerType::Cosine, json!({ "min_lr": 0.1 }), "unknown setting `min_lr`; it has num_cycles"),
            (LrSchedulerType::CosineWithMinLr, json!({}), "give `min_lr` (a rate) or `min_lr_rate`"),
            (LrSchedulerType::CosineWithMinLr, json!({ "min_lr": 0, "min_lr_rate": 0 }), "give one of them"),
            (LrSchedulerType::CosineWithMinLr, json!({ "min_lr": 1 }), "is above `learning_rate` 1e-6"),
            (LrSchedulerType::CosineWarmupWithMinLr, json!({ "min_lr_rate": 1.5 }), "must be a number in [0, 1]"),
            (LrSchedulerType::WarmupStableDecay, json!({}), "give `num_decay_steps`"),
            (LrSchedulerType::WarmupStableDecay, json!({ "num_decay_steps": 0.5 }), "must be a whole number"),
            (LrSchedulerType::WarmupStableDecay, json!({ "num_decay_steps": 1, "decay_type": "sqrt" }), "1-sqrt, got"),
            (LrSchedulerType::Polynomial, json!({ "lr_end": 1e-6 }), "must be below `learning_rate`"),
            (LrSchedulerType::InverseSqrt, json!({ "timescale": 0 }), "at least 1"),
            (LrSchedulerType::CosineWithRestarts, json!({ "num_cycles": "2" }), "must be a number above 0"),
        ] {
            let message = of(kind, given).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }
}
