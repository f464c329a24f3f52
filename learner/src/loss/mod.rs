//! The objective: from log-probs to a loss and its gradient.
//!
//! The tokens of one minibatch (or, for methods that look at one token at a time, any run of them) go through
//! [`Objective::per_token`]: the policy term of the loss type ([`policy`], over the ratios of [`ratio`]), times the
//! masks of [`masks`], times the correction for the mismatch between sampler and learner, plus the KL term. Each
//! token's loss is then weighed as the [`reduction`] says and summed, and the entropy bonus is subtracted.
//! [`Objective::differentiate`] is the only way in, for training as for tests. Everything is float64 on `[N]` tensors,
//! which costs nothing next to a forward pass.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod entropy;
pub mod masks;
mod metrics;
mod objective;
pub mod old_policy;
pub mod policy;
pub mod ratio;
pub mod reduction;
mod rows;
mod tokens;

use shared::{
    config::{ImportanceSamplingLevel, KlEstimator},
    methods::{
        ImportanceWeights, KlCorrection, LossMetric, Ratio,
        metric::{KL, LOW_ENTROPY, OFF_POLICY},
    },
};
use tch::{Kind, Tensor};

pub use metrics::LossMetrics;
pub use objective::Objective;
pub use rows::Rows;
pub use tokens::{Importance, Tokens};

use crate::{error::LearnerError, kl, model::TokenGradients};

/// Losses of N tokens, before weighting.
#[derive(Debug)]
pub struct TokenLoss {
    /// Policy term with masks and importance weight, plus KL term, `[N]`.
    pub loss_N: Tensor,
    /// 1 for tokens that count in the policy term and the entropy bonus, `[N]`; absent = all.
    pub active_N: Option<Tensor>,
    /// The ratio that the method works with, `[N]`.
    pub ratio_N: Tensor,
    /// Values of the metrics, `[N]` each.
    pub metrics: Vec<(LossMetric, Tensor)>,
}

/// Weighted loss of N tokens.
#[derive(Debug)]
pub struct LossGradient {
    /// The loss, entropy bonus included.
    pub value: f64,
    /// The loss without the entropy bonus.
    pub policy_value: f64,
    /// Derivatives with respect to log-probs and entropies.
    pub gradients: TokenGradients,
    /// Sum of the entropies in the bonus, and their number.
    pub active_entropy: (f64, f64),
    /// Whether `early_stop_imp_ratio` set loss and gradients to 0.
    pub stopped: bool,
    /// Values of the metrics, `[N]` each.
    pub metrics: Vec<(LossMetric, Tensor)>,
}

impl Objective {
    /// Losses before weighting. `logprobs_N` is the variable that is differentiated, `entropies_N` a constant.
    ///
    /// # Panics
    /// When the objective has a KL term and there are no reference log-probs.
    #[must_use]
    pub fn per_token(&self, logprobs_N: &Tensor, entropies_N: &Tensor, tokens: &Tokens) -> TokenLoss {
        let config = &*self.config;
        let policy::PolicyLoss { mut loss_N, ratio_N, mut metrics } = policy::policy_loss(self, logprobs_N, tokens);
        if let Some(threshold) = config.off_policy_mask_threshold {
            let drawn_N = tokens.sampling_logprobs_N.as_ref().or(tokens.old_logprobs_N.as_ref());
            let log_ratio_N = ratio::log_ratio(logprobs_N, drawn_N).detach();
            let kept_N = masks::off_policy(&log_ratio_N, &tokens.advantages_N, &tokens.rows, threshold);
            loss_N *= &kept_N;
            metrics.push((OFF_POLICY, 1.0 - kept_N));
        }
        let quantile = config.top_entropy_quantile;
        let active_N = (quantile < 1.0).then(|| masks::top_entropy(entropies_N, quantile));
        if let Some(active_N) = &active_N {
            loss_N *= active_N;
            metrics.push((LOW_ENTROPY, 1.0 - active_N));
        }
        match (&tokens.importance, self.spec.importance) {
            (Some(importance), ImportanceWeights::Multiply) => loss_N *= &importance.weights_N,
            (Some(_), ImportanceWeights::Inside) | (None, _) => {}
        }
        if self.beta != 0.0 {
            let reference_N = tokens.ref_logprobs_N.as_ref().expect("a KL term has reference log-probs");
            let mut kl_N = kl::estimate(config.kl_estimator_in_use(), logprobs_N, reference_N, self.spec.kl_bounded);
            if let Some(factor_N) = self.kl_factor(logprobs_N, &ratio_N, tokens) {
                kl_N *= factor_N;
            }
            loss_N += &kl_N * self.beta;
            metrics.push((KL, kl_N.detach()));
        }
        if self.old_policy_kl_coef != 0.0 {
            let current_N = logprobs_N.detach();
            let old_N = tokens.old_logprobs_N.as_ref().unwrap_or(&current_N);
            // On samples of the old policy, r − 1 − log r estimates the divergence from the old policy to the current
            // one.
            loss_N += kl::estimate(KlEstimator::K3, old_N, logprobs_N, self.spec.kl_bounded) * self.old_policy_kl_coef;
        }
        TokenLoss { loss_N, active_N, ratio_N: ratio_N.detach(), metrics }
    }

    /// Factor of each token's KL estimate (`use_bias_correction_kl`); absent where it is 1. `ratio_N` is the ratio of
    /// the policy term, which can be that of a whole completion.
    fn kl_factor(&self, logprobs_N: &Tensor, ratio_N: &Tensor, tokens: &Tokens) -> Option<Tensor> {
        let of_token = || match (self.spec.ratio, self.level) {
            (Ratio::Chosen | Ratio::OfToken, ImportanceSamplingLevel::Token) => ratio_N.shallow_clone(),
            (Ratio::OfCompletion, _) | (_, ImportanceSamplingLevel::Sequence) => {
                let log_ratio_N = ratio::log_ratio(logprobs_N, tokens.old_logprobs_N.as_ref());
                ratio::bounded(&log_ratio_N, self.spec.log_ratio_bound).exp()
            }
        };
        match (self.config.use_bias_correction_kl, self.config.kl_estimator_in_use().spec().correction) {
            (Some(false), _) | (None, KlCorrection::Nothing) => None,
            (Some(true), _) => Some(ratio_N.shallow_clone()),
            (None, KlCorrection::Ratio { .. }) => Some(of_token()),
            // On policy it is 1.
            (None, KlCorrection::DetachedRatio { .. }) => tokens.old_logprobs_N.is_some().then(|| of_token().detach()),
        }
    }

    /// Weighted loss and its derivatives.
    ///
    /// The tokens are a whole minibatch, whole rows or any run, whichever [`Self::scope`] asks for.
    pub fn differentiate(
        &self,
        logprobs_N: &Tensor,
        entropies_N: &Tensor,
        tokens: &Tokens,
    ) -> Result<LossGradient, LearnerError> {
        let entropies_N = entropies_N.detach().to_kind(Kind::Double);
        let variable_N = logprobs_N.detach().to_kind(Kind::Double).set_requires_grad(true);
        let (parts, policy_value, gradient_N) = tch::with_grad(|| -> Result<_, LearnerError> {
            let parts = self.per_token(&variable_N, &entropies_N, tokens);
            let loss = (&parts.loss_N * &tokens.weights_N).sum(None::<Kind>);
            let value = f64::try_from(&loss.detach())?;
            let gradient_N = Tensor::f_run_backward(&[loss], &[&variable_N], false, false)?.remove(0);
            Ok((parts, value, gradient_N))
        })?;
        let bonus = entropy::bonus(&entropies_N, parts.active_N.as_ref(), &tokens.entropy_weights_N);
        let mut found = LossGradient {
            value: policy_value,
            policy_value,
            gradients: TokenGradients { logprobs_N: gradient_N, entropies_N: None },
            active_entropy: bonus.active,
            stopped: self.stops(&parts.ratio_N),
            metrics: parts.metrics,
        };
        if self.entropy_coef != 0.0 {
            found.value -= self.entropy_coef * bonus.value;
            found.gradients.entropies_N = Some(bonus.gradient_N * -self.entropy_coef);
        }
        if found.stopped {
            found.leave_out();
        }
        Ok(found)
    }

    /// Whether the mean ratio of a minibatch is above `early_stop_imp_ratio` (RLinf).
    fn stops(&self, ratio_N: &Tensor) -> bool {
        self.config.early_stop_imp_ratio.is_some_and(|bound| ratio_N.mean(Kind::Double).double_value(&[]) > bound)
    }
}

impl LossGradient {
    fn leave_out(&mut self) {
        (self.value, self.policy_value) = (0.0, 0.0);
        let zeros_N = self.gradients.logprobs_N.zeros_like();
        self.gradients = zeros_N.into();
    }
}

#[cfg(test)]
mod tests;
