//! The parameters of an objective.

use shared::config::{ImportanceSamplingLevel, KlEstimator, LossType, TrainConfig};

use super::Measure;
use crate::verl::LOG_RATIO_BOUND;

/// VESPO's parameters for advantages of at least 0, and for the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vespo {
    /// Exponents. TRL `vespo_k_pos`, `vespo_k_neg`.
    pub k: (f64, f64),
    /// Decays. TRL `vespo_lambda_pos`, `vespo_lambda_neg`.
    pub lambda: (f64, f64),
}

/// How many tokens an objective has to see at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Any run of tokens.
    Token,
    /// Whole completions.
    Row,
    /// A whole logical batch.
    Batch,
}

/// What is optimised. Fields are documented at their options in [`TrainConfig`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// The policy term.
    pub loss_type: LossType,
    /// What the ratio is taken over. Methods of verl have their own.
    pub level: ImportanceSamplingLevel,
    /// Clip range below.
    pub epsilon_low: f64,
    /// Clip range above; the cap itself for cispo.
    pub epsilon_high: f64,
    /// Cap of the unclipped ratio.
    pub delta: Option<f64>,
    /// Bound of the dual clip.
    pub clip_ratio_c: f64,
    /// Bound of a token's log-ratio on both sides: 20 in verl, none in TRL.
    pub log_ratio_bound: Option<f64>,
    /// SAPO's temperatures for advantages above 0, and for the others.
    pub sapo_temperatures: (f64, f64),
    /// VESPO's parameters.
    pub vespo: Vespo,
    /// Where the off-policy mask begins.
    pub off_policy_mask_threshold: Option<f64>,
    /// Share of tokens that are trained on; 1 = all.
    pub top_entropy_quantile: f64,
    /// Mean ratio above which a logical batch is left out.
    pub early_stop_imp_ratio: Option<f64>,
    /// Weight of the entropy bonus, as it is now.
    pub entropy_coef: f64,
    /// Weight of the KL term in the loss; 0 = none.
    pub beta: f64,
    /// Estimator of the KL term.
    pub kl_estimator: KlEstimator,
    /// Whether k3 has verl's bounds. TRL's has none, so they go with verl's loss types.
    pub kl_bounded: bool,
    /// Whether the KL estimate is multiplied by the ratio (DeepSeek-V3.2 eq. 6).
    pub bias_corrected_kl: bool,
}

impl Objective {
    /// The objective that a configuration asks for.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Self {
        let loss_type = config.loss_type;
        let verl = of_verl(loss_type);
        let bounded = matches!(loss_type, LossType::Vanilla | LossType::VerlCispo);
        Self {
            loss_type,
            level: if verl { ImportanceSamplingLevel::Token } else { config.importance_sampling_level },
            epsilon_low: config.epsilon,
            epsilon_high: config.epsilon_high.unwrap_or(config.epsilon),
            delta: config.delta,
            clip_ratio_c: config.clip_ratio_c,
            log_ratio_bound: bounded.then_some(LOG_RATIO_BOUND),
            sapo_temperatures: (config.sapo_temperature_pos, config.sapo_temperature_neg),
            vespo: Vespo {
                k: (config.vespo_k_pos, config.vespo_k_neg),
                lambda: (config.vespo_lambda_pos, config.vespo_lambda_neg),
            },
            off_policy_mask_threshold: config.off_policy_mask_threshold,
            top_entropy_quantile: config.top_entropy_quantile,
            early_stop_imp_ratio: config.early_stop_imp_ratio,
            entropy_coef: config.entropy_coef,
            beta: if config.use_kl_in_reward { 0.0 } else { config.beta },
            kl_estimator: config.kl_estimator,
            kl_bounded: verl,
            bias_corrected_kl: config.use_bias_correction_kl,
        }
    }

    /// How many tokens have to be seen at once.
    #[must_use]
    pub fn scope(&self) -> Scope {
        if self.top_entropy_quantile < 1.0 || self.early_stop_imp_ratio.is_some() {
            Scope::Batch
        } else if self.level == ImportanceSamplingLevel::Sequence
            || matches!(self.loss_type, LossType::Vespo | LossType::Gspo | LossType::GeoMean)
            || self.off_policy_mask_threshold.is_some()
        {
            Scope::Row
        } else {
            Scope::Token
        }
    }

    /// Whether a completion with these advantages can contribute to the gradient, its own or another's, at all.
    #[must_use]
    pub fn trains(&self, advantages: &[f64]) -> bool {
        self.beta != 0.0
            || self.entropy_coef != 0.0
            || self.scope() == Scope::Batch
            || advantages.iter().any(|&advantage| advantage != 0.0)
    }

    /// Whether the policy term counts tokens that it clips by this measure, and a token without advantage never is one.
    /// verl's cispo goes by the ratio alone and counts any.
    #[must_use]
    pub fn clips_by(&self, measure: Measure) -> bool {
        use LossType::{Bnpo, Cispo, Dapo, DrGrpo, GeoMean, Grpo, Gspo, Luspo, Vanilla};
        match measure {
            Measure::ClipLow | Measure::ClipHigh => {
                matches!(self.loss_type, Grpo | Bnpo | DrGrpo | Dapo | Luspo)
            }
            Measure::CispoClip => self.loss_type == Cispo,
            Measure::PgClip => matches!(self.loss_type, Vanilla | Gspo),
            Measure::OutsideClip => self.loss_type == GeoMean,
            Measure::PgClipLower => matches!(self.loss_type, Vanilla | GeoMean),
            _ => false,
        }
    }

    /// Whether a measure counts once per completion instead of once per token.
    #[must_use]
    pub fn per_sequence(&self, measure: Measure) -> bool {
        match measure {
            Measure::Phi => true,
            Measure::ClipLow | Measure::ClipHigh | Measure::CispoClip => {
                self.level == ImportanceSamplingLevel::Sequence
            }
            _ => false,
        }
    }
}

fn of_verl(loss_type: LossType) -> bool {
    use LossType::{GeoMean, Gpg, Gspo, Vanilla, VerlCispo};
    matches!(loss_type, Vanilla | Gspo | VerlCispo | GeoMean | Gpg)
}
