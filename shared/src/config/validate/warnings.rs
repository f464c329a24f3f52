//! Settings that work and are probably not meant.

use super::word;
use crate::config::{AdvantageEstimator, KlEstimator, KvDtype, LossType, RolloutDtype, TrainConfig};

impl TrainConfig {
    /// Remarks on settings that are allowed and probably not meant, one line each; for the launcher to show.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut list = Vec::new();
        let mut warn = |condition: bool, message: String| {
            if condition {
                list.push(message);
            }
        };
        warn(
            !(0.7..=1.0).contains(&self.temperature),
            format!(
                "`temperature` {} is outside 0.7 to 1.0: below it completions of a prompt hardly differ, above it they \
                 fall apart",
                self.temperature
            ),
        );
        warn(
            self.num_generations < 4,
            format!("`num_generations` {} makes a poor baseline; 8 or more is usual", self.num_generations),
        );
        let whitens = matches!(
            self.advantage_estimator,
            AdvantageEstimator::ReinforcePlusPlus
                | AdvantageEstimator::ReinforcePlusPlusBaseline
                | AdvantageEstimator::Gae
        );
        let estimator = word(self.advantage_estimator);
        warn(
            self.normalize_advantages && whitens,
            format!("`normalize_advantages` adds nothing: `advantage_estimator` {estimator} whitens by itself"),
        );
        let discounts =
            matches!(self.advantage_estimator, AdvantageEstimator::Gae | AdvantageEstimator::ReinforcePlusPlus);
        warn(self.gamma != 1.0 && !discounts, format!("`gamma` has no effect with `advantage_estimator` {estimator}"));
        warn(
            self.beta > 0.0
                && self.kl_estimator == KlEstimator::K1
                && !self.use_kl_in_reward
                && !self.use_bias_correction_kl,
            "`kl_estimator` k1 in the loss has a gradient of 0 on average and holds nothing back; use k2, k3 or k1+, or \
             `use_kl_in_reward`"
                .into(),
        );
        warn(
            self.num_iterations > 4,
            format!(
                "`num_iterations` {} goes over each batch many times; the ratios may drift far",
                self.num_iterations
            ),
        );
        warn(
            !self.importance_sampling_correction && self.max_staleness > 0 && self.decoupled_objective,
            "`importance_sampling_correction` is off with `max_staleness` above 0: nothing corrects for older weights"
                .into(),
        );
        warn(
            !self.importance_sampling_correction && self.rollout_dtype != RolloutDtype::Auto,
            "`importance_sampling_correction` is off with a rounded `rollout_dtype`: nothing corrects for the rounding"
                .into(),
        );
        warn(
            !self.importance_sampling_correction && self.kv_dtype != KvDtype::Auto,
            "`importance_sampling_correction` is off with a rounded `kv_dtype`: nothing corrects for the rounding"
                .into(),
        );
        warn(
            self.eval_dataset.is_some() && self.eval_steps.is_none(),
            "`eval_dataset` is not evaluated on: `eval_steps`, the steps between evaluations, is absent".into(),
        );
        for (key, loss_type) in self.unused_by_loss() {
            warn(true, format!("`{key}` is an option of `loss_type` {} and has no effect", word(loss_type)));
        }
        list
    }

    /// Options of another loss that are not at their defaults.
    fn unused_by_loss(&self) -> impl Iterator<Item = (&'static str, LossType)> {
        let plain = Self::default();
        let options = [
            ("clip_ratio_c", LossType::Vanilla, self.clip_ratio_c != plain.clip_ratio_c),
            ("sapo_temperature_pos", LossType::Sapo, self.sapo_temperature_pos != plain.sapo_temperature_pos),
            ("sapo_temperature_neg", LossType::Sapo, self.sapo_temperature_neg != plain.sapo_temperature_neg),
            ("vespo_k_pos", LossType::Vespo, self.vespo_k_pos != plain.vespo_k_pos),
            ("vespo_lambda_pos", LossType::Vespo, self.vespo_lambda_pos != plain.vespo_lambda_pos),
            ("vespo_k_neg", LossType::Vespo, self.vespo_k_neg != plain.vespo_k_neg),
            ("vespo_lambda_neg", LossType::Vespo, self.vespo_lambda_neg != plain.vespo_lambda_neg),
        ];
        let own = self.loss_type;
        let unused = options.into_iter().filter(move |(_, of, changed)| *changed && *of != own);
        unused.map(|(key, of, _)| (key, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::validate::testing::valid;

    #[test]
    fn the_defaults_are_not_remarked_on() {
        assert_eq!(valid().warnings(), Vec::<String>::new());
    }

    #[test]
    fn every_remark_names_its_option() {
        type Change = fn(&mut TrainConfig);
        let cases: [(&str, Change); 12] = [
            ("temperature", |c| c.temperature = 1.2),
            ("temperature", |c| c.temperature = 0.5),
            ("num_generations", |c| c.num_generations = 2),
            ("normalize_advantages", |c| {
                (c.normalize_advantages, c.advantage_estimator) = (true, AdvantageEstimator::ReinforcePlusPlus);
            }),
            ("gamma", |c| c.gamma = 0.9),
            ("kl_estimator", |c| {
                (c.beta, c.kl_estimator, c.use_bias_correction_kl) = (0.1, KlEstimator::K1, false);
            }),
            ("num_iterations", |c| c.num_iterations = 8),
            ("importance_sampling_correction", |c| {
                (c.max_staleness, c.importance_sampling_correction) = (2, false);
            }),
            ("importance_sampling_correction", |c| {
                (c.rollout_dtype, c.importance_sampling_correction) = (RolloutDtype::Int8, false);
            }),
            ("kv_dtype", |c| (c.kv_dtype, c.importance_sampling_correction) = (KvDtype::Int8, false)),
            ("eval_dataset", |c| c.eval_dataset = Some("eval.jsonl".into())),
            ("vespo_k_pos", |c| c.vespo_k_pos = 1.0),
        ];
        for (key, change) in cases {
            let mut config = valid();
            change(&mut config);
            config.validate().unwrap();
            let found = config.warnings();
            assert!(found.len() == 1 && found[0].contains(&format!("`{key}`")), "{key}: {found:?}");
            assert!(!found[0].contains('\n'));
        }
    }
}
