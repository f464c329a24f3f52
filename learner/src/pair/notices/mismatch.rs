//! Sampler and learner that compute different distributions.

use shared::{
    config::TrainConfig,
    metrics,
    run::notices::{Notice, NoticeKind},
};

use super::{Detector, Seen, streak::Streak};

/// Log-probs of sampler and learner are apart, several steps running.
pub struct Apart {
    streak: Streak,
}

impl Apart {
    pub fn new(config: &TrainConfig) -> Self {
        Self { streak: Streak::new(config) }
    }
}

impl Detector for Apart {
    fn look(&mut self, seen: &Seen<'_>) -> Vec<Notice> {
        let (exact, explained) = (seen.config.computes_alike(), seen.config.mismatch_explained());
        let kl = seen.record.get(metrics::MISMATCH_KL).unwrap_or(0.0);
        if !self.streak.is_long(kl > explained) {
            return Vec::new();
        }
        let step = seen.step();
        let text = format!(
            "sampler and learner disagree: mismatch_kl was {kl:.1e} in step {step}, and {:e} is the most that {} \
             explain",
            explained,
            if exact { "float32 and equal weights" } else { "rounded formats and older weights" }
        );
        let remedy = if exact {
            "compare token by token with `tandem generate` and `tandem logprobs`; this is an error of ours or of the \
             model's files"
        } else {
            "lower `max_staleness`, take a wider `rollout_dtype` and `kv_dtype`, or a lower `learning_rate`"
        };
        vec![Notice::new(NoticeKind::Mismatch, step, text, remedy)]
    }
}

#[cfg(test)]
mod tests {
    use shared::{config::RolloutDtype, metrics::MetricRecord};

    use super::{super::testing::told, *};

    #[test]
    fn a_mismatch_is_told_of_when_formats_and_staleness_do_not_explain_it() {
        let exact = TrainConfig::default();
        let rounded = TrainConfig { rollout_dtype: RolloutDtype::Int8, ..TrainConfig::default() };
        let stale = TrainConfig { max_staleness: 2, ..TrainConfig::default() };
        let bf16 = TrainConfig { bf16: true, ..TrainConfig::default() };
        let after = |config: &TrainConfig, steps, kl: f64| {
            let change = |record: &mut MetricRecord| {
                record.set(metrics::MISMATCH_KL, kl);
            };
            told(&mut Apart::new(config), config, steps, change)
        };
        assert_eq!((after(&exact, 2, 1.0), after(&exact, 9, 1e-6)), (vec![], vec![]));
        assert!(after(&exact, 3, 2e-4)[0].text.contains("mismatch_kl was 2.0e-4 in step 3"));
        for other in [&rounded, &stale, &bf16] {
            assert_eq!(after(other, 9, 2e-2), []);
            assert!(after(other, 3, 0.5)[0].remedy.contains("`rollout_dtype`"));
        }
    }
}
