//! What is optimised: a loss with the options that go with it.

use std::sync::Arc;

use shared::{
    config::{ImportanceSamplingLevel, TrainConfig},
    methods::{Counted, LossMetric, LossSpec, Scope},
};

/// What is optimised. [`super::policy`] has the formula, [`LossSpec`] says everything else about the loss.
#[derive(Debug, Clone)]
pub struct Objective {
    /// The options of the run; formulas read theirs.
    pub config: Arc<TrainConfig>,
    /// The description of the loss.
    pub spec: &'static LossSpec,
    /// Whether a ratio is that of a token or of a completion.
    pub level: ImportanceSamplingLevel,
    /// Current weight of the entropy bonus.
    pub entropy_coef: f64,
    /// Weight of the KL term in the loss; 0 = none.
    pub beta: f64,
    /// Current weight of the penalty on the distance from the old policy; 0 = none.
    pub old_policy_kl_coef: f64,
}

impl Objective {
    /// The objective that a configuration asks for.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        let spec = config.loss_type.spec();
        Self {
            spec,
            level: spec.ratio.level(config.importance_sampling_level),
            entropy_coef: config.entropy_coef,
            beta: if config.use_kl_in_reward { 0.0 } else { config.beta },
            old_policy_kl_coef: config.old_policy_kl_coef,
            config: Arc::new(config.clone()),
        }
    }

    /// The tokens that the objective has to see at once.
    #[must_use]
    pub fn scope(&self) -> Scope {
        let masks = if self.config.top_entropy_quantile < 1.0 || self.config.early_stop_imp_ratio.is_some() {
            Scope::Minibatch
        } else if self.config.off_policy_mask_threshold.is_some() {
            Scope::Completion
        } else {
            Scope::Token
        };
        self.spec.scope.max(self.level.scope()).max(masks)
    }

    /// Whether a completion with these advantages can contribute to the gradient, by its own loss or by that of
    /// another.
    #[must_use]
    pub fn trains(&self, advantages: &[f64]) -> bool {
        self.beta != 0.0
            || self.old_policy_kl_coef != 0.0
            || self.entropy_coef != 0.0
            || self.scope() == Scope::Minibatch
            || self.spec.moves_without_advantage
            || advantages.iter().any(|&advantage| advantage != 0.0)
    }

    /// Whether a metric counts once per completion instead of once per token.
    #[must_use]
    pub fn per_sequence(&self, metric: LossMetric) -> bool {
        match metric.counted {
            Counted::Token => false,
            Counted::Completion => true,
            Counted::Ratio => self.level.scope() == Scope::Completion,
        }
    }
}
