//! Schedules of the learning rate in Megatron's terms, which verl and RLinf use.

use serde_json::{Value, json};

use super::rules::Options;

/// The given values of a schedule.
#[derive(Debug, Default)]
pub struct Told {
    /// `constant`, `linear`, `cosine` …
    pub style: Option<String>,
    /// Rate at the end of the schedule.
    pub min_lr: f64,
    /// The highest rate, if it is given.
    pub lr: Option<f64>,
    /// Updates after which the schedule ends, if not at the end of the run.
    pub decay_updates: Option<u64>,
    /// Updates of the warm-up.
    pub warmup_steps: u64,
    /// Share of the warm-up in the updates of the decay, or of the run.
    pub warmup_share: f64,
}

impl Told {
    /// The options of the schedule.
    ///
    /// # Errors
    /// Why it is none of our schedules, and what to do.
    pub fn options(&self) -> Result<Options, String> {
        let mut options = Options::new();
        let mut set = |key: &str, value: Value| options.push((key.to_owned(), value));
        let style = self.style.as_deref().unwrap_or("constant").to_lowercase().replace('_', "-");
        let warm = self.warmup_steps > 0 || self.warmup_share > 0.0;
        let ends = self.min_lr > 0.0;
        match (style.as_str(), ends) {
            ("constant", _) if warm => set("lr_scheduler_type", "constant_with_warmup".into()),
            ("constant" | "torch-constant", _) => set("lr_scheduler_type", "constant".into()),
            ("linear", false) => set("lr_scheduler_type", "linear".into()),
            ("linear", true) => {
                set("lr_scheduler_type", "polynomial".into());
                set("lr_scheduler_kwargs", json!({ "lr_end": self.min_lr, "power": 1.0 }));
            }
            ("cosine", false) => set("lr_scheduler_type", "cosine".into()),
            ("cosine", true) => {
                set("lr_scheduler_type", "cosine_with_min_lr".into());
                set("lr_scheduler_kwargs", json!({ "min_lr": self.min_lr }));
            }
            ("inverse-square-root", false) if warm => set("lr_scheduler_type", "inverse_sqrt".into()),
            _ => {
                let end = if ends { format!(" that ends at {}", self.min_lr) } else { String::new() };
                return Err(format!(
                    "there is no schedule `{style}`{end}; name one of ours with --lr_scheduler_type \
                     (docs/configuration.md)"
                ));
            }
        }
        let is_constant = style.ends_with("constant");
        if let (Some(updates), false) = (self.decay_updates, is_constant) {
            return Err(format!(
                "it ends after {updates} updates there, and at the end of the run here; set `max_steps` to as many, \
                 and name the schedule with --lr_scheduler_type"
            ));
        }
        if let (Some(lr), true, false) = (self.lr, ends, is_constant)
            && self.min_lr >= lr
        {
            return Err(format!("it ends at {}, which is not below `learning_rate` {lr}", self.min_lr));
        }
        let of_decay = self.decay_updates.filter(|_| self.warmup_share > 0.0);
        match of_decay {
            // A begun update counts as one of warm-up, so the next update is the first at the full rate.
            Some(updates) => set("warmup_steps", ((self.warmup_share * updates as f64).ceil() as u64).into()),
            None if self.warmup_share > 0.0 => set("warmup_ratio", self.warmup_share.into()),
            None if self.warmup_steps > 0 => set("warmup_steps", self.warmup_steps.into()),
            None => {}
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(told: Told) -> String {
        told.options().map_or_else(
            |reason| reason,
            |options| options.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "),
        )
    }

    #[test]
    fn a_schedule_of_megatron_is_the_one_with_the_same_rates() {
        let told = |style: &str, min_lr: f64| Told { style: Some(style.to_owned()), min_lr, ..Told::default() };
        for (told, expected) in [
            (Told::default(), "lr_scheduler_type=\"constant\""),
            (Told { warmup_steps: 5, ..Told::default() }, "lr_scheduler_type=\"constant_with_warmup\" warmup_steps=5"),
            (told("linear", 0.0), "lr_scheduler_type=\"linear\""),
            (
                told("linear", 1e-7),
                "lr_scheduler_type=\"polynomial\" lr_scheduler_kwargs={\"lr_end\":1e-7,\"power\":1.0}",
            ),
            (told("cosine", 1e-7), "lr_scheduler_type=\"cosine_with_min_lr\" lr_scheduler_kwargs={\"min_lr\":1e-7}"),
            (
                Told { warmup_steps: 5, ..told("inverse_square_root", 0.0) },
                "lr_scheduler_type=\"inverse_sqrt\" warmup_steps=5",
            ),
            (
                Told { warmup_share: 0.01, decay_updates: Some(250), ..told("constant", 0.0) },
                "lr_scheduler_type=\"constant_with_warmup\" warmup_steps=3",
            ),
            (Told { warmup_share: 0.1, ..told("cosine", 0.0) }, "lr_scheduler_type=\"cosine\" warmup_ratio=0.1"),
        ] {
            assert_eq!(of(told), expected);
        }
        assert!(of(told("WSD", 0.0)).contains("no schedule `wsd`"));
        assert!(of(Told { decay_updates: Some(9), ..told("cosine", 0.0) }).contains("after 9 updates"));
        assert!(of(Told { lr: Some(1e-6), ..told("cosine", 1e-5) }).contains("not below"));
    }
}
