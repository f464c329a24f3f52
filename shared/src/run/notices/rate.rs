//! Learning rates far from usual ones.

use super::{Notice, NoticeKind};
use crate::config::TrainConfig;

/// Rates below this are those of runs without an adapter (TRL's default is 1e-6).
const LORA_LEAST: f64 = 5e-6;
/// Above this, reinforcement learning of an adapter falls apart: recipes use 1e-5 to 1e-4, and up to 5e-4 is reported.
const LORA_MOST: f64 = 2e-3;
/// Below this, an update of AdamW, whose size is about the rate, is lost in the rounding of float32 weights of usual
/// size (1e-2).
const LEAST: f64 = 1e-9;
/// Above this, reinforcement learning of a whole model falls apart: recipes use 1e-7 to 1e-5.
const MOST: f64 = 1e-4;
/// An update of AdamW moves each weight by about the rate, and a model's weights are about 0.02 in size: above this,
/// one update overwrites any model or adapter.
const OVERWRITES: f64 = 2e-2;
/// Models with fewer weights bear larger rates; 1e-3 is usual for models of some thousand weights.
const SMALL_MODEL: u64 = 100_000_000;

/// A notice on a rate that is far from usual ones for an adapter, or for a whole model with `weights` weights.
#[must_use]
pub fn learning_rate(config: &TrainConfig, weights: u64) -> Option<Notice> {
    let (rate, small) = (config.learning_rate, weights < SMALL_MODEL);
    let remark = |text: &str, remedy: &str| {
        let shown = if rate == 0.0 { "0".to_owned() } else { format!("{rate:e}") };
        let text = format!("`learning_rate` {shown} {text}");
        Some(Notice::new(NoticeKind::LearningRate, 0, text, remedy))
    };
    match (config.use_peft, rate) {
        (_, 0.0) => {
            remark("moves no weight", "set it above 0; 1e-6 is usual for a whole model and 1e-5 for an adapter")
        }
        (_, OVERWRITES..) => remark(
            "overwrites the weights: an update moves each of them by about as much, which is more than they are in \
             size",
            "1e-6 to 1e-5 is usual for a whole model, 1e-5 to 1e-4 for an adapter, and up to 1e-3 for a tiny model",
        ),
        (true, ..LORA_LEAST) => remark(
            "looks like one for training all weights",
            "an adapter wants about ten times as much, say 1e-5 to 1e-4",
        ),
        (true, LORA_MOST..) if !small => remark("is far above what an adapter bears", "try 1e-5 to 1e-4"),
        (false, ..LEAST) => remark("is lost in the rounding of the weights", "1e-6 is usual for a whole model"),
        (false, MOST..) if !small => {
            remark("is far above what a whole model bears", "try 1e-6 to 1e-5, or train an adapter with `use_peft`")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rates_far_from_what_works_are_remarked_on() {
        let told = |use_peft, learning_rate, weights| {
            let config = TrainConfig { use_peft, learning_rate, ..TrainConfig::default() };
            super::learning_rate(&config, weights).map(|notice| notice.to_string())
        };
        let (large, small) = (500_000_000, 100_000);
        assert_eq!(told(false, 1e-6, large), None);
        assert_eq!(told(false, 1e-3, small), None);
        assert_eq!(told(true, 1e-5, large), None);
        assert_eq!(told(true, 1e-2, small), None);
        assert_eq!(told(false, 1e-2, small), None);
        for (found, words) in [
            (told(true, 1e-6, small), "`learning_rate` 1e-6 looks like one for training all weights; an adapter wants"),
            (told(true, 1e-2, large), "`learning_rate` 1e-2 is far above what an adapter bears"),
            (told(false, 1e-3, large), "`learning_rate` 1e-3 is far above what a whole model bears"),
            (told(false, 1e-10, small), "lost in the rounding"),
            (told(false, 0.1, small), "`learning_rate` 1e-1 overwrites the weights"),
            (told(true, 10.0, large), "`learning_rate` 1e1 overwrites the weights"),
            (told(false, 1e6, small), "`learning_rate` 1e6 overwrites the weights"),
            (told(true, 0.0, small), "`learning_rate` 0 moves no weight"),
        ] {
            let found = found.unwrap();
            assert!(found.contains(words), "{found}");
        }
    }
}
