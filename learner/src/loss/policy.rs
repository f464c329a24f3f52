//! Policy terms: the loss of each token before importance weights, KL and reduction.
//!
//! Each method is a small function of `[N]` tensors inside the autograd graph, and a line of [`policy_loss`] that
//! passes its options. Everything else about a method is in its description, [`shared::methods::loss`]. A method that
//! looks at whole rows repeats a row's value at each of its tokens.

use shared::{
    config::{LossType, TrainConfig},
    methods::{
        LossMetric, Ratio,
        loss::{
            CAPPED, CISPO_CLIP, CLIP_HIGH, CLIP_LOW, CLIP_REGION, OUTSIDE, OUTSIDE_ANY, PG_CLIP, PG_CLIP_LOWER, PHI,
        },
        metric::{PPO_KL, RATIO},
    },
};
use tch::{Kind, Tensor};

use super::{Importance, Objective, Tokens, masks, ratio, rows::Rows};
use crate::verl::EPSILON;

/// The policy term of N tokens.
#[derive(Debug)]
pub struct PolicyLoss {
    /// Losses, `[N]`.
    pub loss_N: Tensor,
    /// The ratio that the method works with, `[N]`.
    pub ratio_N: Tensor,
    /// Values of the metrics, `[N]` each.
    pub metrics: Vec<(LossMetric, Tensor)>,
}

/// The policy term that an objective asks for.
pub fn policy_loss(objective: &Objective, logprobs_N: &Tensor, tokens: &Tokens) -> PolicyLoss {
    let log_ratio_N = ratio::log_ratio(logprobs_N, tokens.old_logprobs_N.as_ref());
    let (rows, advantages_N) = (&tokens.rows, &tokens.advantages_N);
    let ratio_N = match objective.spec.ratio {
        Ratio::Chosen | Ratio::OfToken => {
            ratio::ratio(&log_ratio_N, rows, objective.level, objective.spec.log_ratio_bound)
        }
        Ratio::OfCompletion => ratio::gspo_token(logprobs_N, &log_ratio_N, rows),
    };
    let config = &*objective.config;
    let epsilon_high = config.epsilon_high.unwrap_or(config.epsilon);
    let (low, high) = (1.0 - config.epsilon, 1.0 + epsilon_high);
    let (loss_N, mut metrics) = match config.loss_type {
        LossType::Grpo | LossType::Bnpo | LossType::DrGrpo | LossType::Dapo | LossType::Luspo => {
            surrogate(&ratio_N, advantages_N, low, high, config.delta)
        }
        LossType::Cispo => cispo(&ratio_N, advantages_N, logprobs_N, epsilon_high),
        LossType::Sapo => sapo(&ratio_N, advantages_N, config.sapo_temperature_pos, config.sapo_temperature_neg),
        LossType::Vespo => vespo(config, &log_ratio_N, logprobs_N, tokens),
        LossType::Vanilla => dual_clip(&ratio_N, advantages_N, low, high, config.clip_ratio_c),
        LossType::Gspo => clipped(&ratio_N, advantages_N, low, high),
        LossType::VerlCispo => verl_cispo(&ratio_N, advantages_N, logprobs_N, low, high),
        LossType::GeoMean => geo_mean(&log_ratio_N, tokens, config.epsilon, epsilon_high),
        LossType::Gpg => ((logprobs_N * advantages_N).neg(), Vec::new()),
        LossType::DppoTv => dppo(config, &probability_change(logprobs_N, tokens), &ratio_N, logprobs_N, advantages_N),
        LossType::DppoKl => dppo(config, &signed_divergence(logprobs_N, tokens), &ratio_N, logprobs_N, advantages_N),
        LossType::ClipCov => clip_cov(config, &ratio_N, logprobs_N, tokens, low, high),
        LossType::KlCov => kl_cov(config, &ratio_N, &log_ratio_N, logprobs_N, advantages_N),
        LossType::Dro => {
            let beta = config.dro_beta.expect("a configuration without `dro_beta` is refused");
            (log_ratio_N.square() * (beta / 2.0) - logprobs_N * advantages_N, Vec::new())
        }
    };
    metrics.push((RATIO, ratio_N.detach()));
    let bounded_N = ratio::bounded(&log_ratio_N.detach(), objective.spec.log_ratio_bound);
    metrics.push((PPO_KL, bounded_N.neg()));
    PolicyLoss { loss_N, ratio_N, metrics }
}

type Term = (Tensor, Vec<(LossMetric, Tensor)>);

/// PPO's clipped surrogate, negated: `−min(min(r, δ)·A, clip(r, low, high)·A)` (Schulman et al. 2017 eq. 7; DAPO's
/// clip-higher when the two bounds are not symmetric; δ caps the unclipped side as in INTELLECT-2).
fn surrogate(ratio_N: &Tensor, advantages_N: &Tensor, low: f64, high: f64, delta: Option<f64>) -> Term {
    let bounded_N = ratio_N.clamp(low, high);
    let capped_N = delta.map_or_else(|| ratio_N.shallow_clone(), |delta| ratio_N.clamp_max(delta));
    let loss_N = (&capped_N * advantages_N).minimum(&(bounded_N * advantages_N)).neg();
    let low_N = capped_N.lt(low).logical_and(&advantages_N.lt(0.0));
    let high_N = capped_N.gt(high).logical_and(&advantages_N.gt(0.0));
    let either_N = low_N.logical_or(&high_N);
    (loss_N, vec![(CLIP_LOW, low_N), (CLIP_HIGH, high_N), (CLIP_REGION, either_N)])
}

/// `−min(r, cap)·A·logprob` with a detached ratio (MiniMax-M1 eq. 4, TRL's form: no lower bound).
fn cispo(ratio_N: &Tensor, advantages_N: &Tensor, logprobs_N: &Tensor, cap: f64) -> Term {
    let weight_N = ratio_N.detach().clamp_max(cap);
    let capped_N = ratio_N.gt(cap).logical_and(&advantages_N.gt(0.0));
    ((weight_N * advantages_N * logprobs_N).neg(), vec![(CISPO_CLIP, capped_N)])
}

/// `−clip(r, low, high)·A·logprob` with a detached ratio (MiniMax-M1 eq. 4, verl's form).
fn verl_cispo(ratio_N: &Tensor, advantages_N: &Tensor, logprobs_N: &Tensor, low: f64, high: f64) -> Term {
    let weight_N = ratio_N.detach().clamp(low, high);
    let clipped_N = weight_N.ne_tensor(&ratio_N.detach());
    ((weight_N * advantages_N * logprobs_N).neg(), vec![(OUTSIDE_ANY, clipped_N)])
}

/// `−σ(τ(r − 1))·4/τ·A` with τ by the sign of the advantage (SAPO eq. 6).
fn sapo(ratio_N: &Tensor, advantages_N: &Tensor, positive: f64, negative: f64) -> Term {
    let temperature_N = choose(&advantages_N.gt(0.0), positive, negative);
    let gate_N = (&temperature_N * (ratio_N - 1.0)).sigmoid() * 4.0 / &temperature_N;
    ((gate_N * advantages_N).neg(), Vec::new())
}

/// `−φ·A·logprob` with the detached weight `φ = exp(λ + k·s − λ·e^s)`, where s is the log of the sequence's ratio to
/// the old policy times its importance weight (VESPO; TRL `get_gamma_weights`). k and λ depend on the sign of the
/// advantage.
fn vespo(config: &TrainConfig, log_ratio_N: &Tensor, logprobs_N: &Tensor, tokens: &Tokens) -> Term {
    const BOUND: f64 = 20.0;
    let floor = 1e-8f64.ln();
    let mut log_R = tokens.rows.sum(&log_ratio_N.detach().clamp(-BOUND, BOUND));
    if let Some(importance) = &tokens.importance {
        log_R += importance.log_weight(&tokens.rows, floor, BOUND);
    }
    let log_N = tokens.rows.spread(&log_R.clamp(floor, BOUND));
    let positive_N = tokens.advantages_N.ge(0.0);
    let k_N = choose(&positive_N, config.vespo_k_pos, config.vespo_k_neg);
    let lambda_N = choose(&positive_N, config.vespo_lambda_pos, config.vespo_lambda_neg);
    let phi_N = (&lambda_N + k_N * &log_N - &lambda_N * log_N.exp()).exp();
    let loss_N = (&phi_N * &tokens.advantages_N * logprobs_N).neg();
    (loss_N, vec![(PHI, phi_N)])
}

/// `max(−A·r, −A·clip(r, low, high))`, with verl's clip fraction.
fn clipped(ratio_N: &Tensor, advantages_N: &Tensor, low: f64, high: f64) -> Term {
    let plain_N = (ratio_N * advantages_N).neg();
    let clipped_N = (ratio_N.clamp(low, high) * advantages_N).neg();
    let metric = (PG_CLIP, clipped_N.gt_tensor(&plain_N));
    (plain_N.maximum(&clipped_N), vec![metric])
}

/// verl's `vanilla`: the clipped surrogate, which is at most `−A·c` for tokens with a negative advantage (dual clip, Ye
/// et al. 2020).
fn dual_clip(ratio_N: &Tensor, advantages_N: &Tensor, low: f64, high: f64, c: f64) -> Term {
    let (loss_N, mut metrics) = clipped(ratio_N, advantages_N, low, high);
    let bound_N = advantages_N * -c;
    let negative_N = advantages_N.lt(0.0);
    metrics.push((PG_CLIP_LOWER, loss_N.gt_tensor(&bound_N).logical_and(&negative_N)));
    (bound_N.minimum(&loss_N).where_self(&negative_N, &loss_N), metrics)
}

/// GMPO: minus the row's mean advantage times the geometric mean of its clipped ratios (verl `geo_mean`, whose means
/// divide by the length plus 1e-8). A log-ratio is clipped to [−ε_low, ε_high], but only in the direction of its
/// advantage. Importance weights enter as their geometric mean.
fn geo_mean(log_ratio_N: &Tensor, tokens: &Tokens, epsilon_low: f64, epsilon_high: f64) -> Term {
    let Tokens { rows, advantages_N, .. } = tokens;
    let mean = |x_N: &Tensor| rows.sum(x_N) / (rows.lengths() + 1e-8);
    let bounded_N = log_ratio_N.clamp(-epsilon_low, epsilon_high);
    let sign_N = advantages_N.sign();
    let log_N = &sign_N * (&sign_N * log_ratio_N).minimum(&(&sign_N * &bounded_N));
    let mut loss_R = mean(advantages_N) * mean(&log_N).exp();
    if let Some(importance) = &tokens.importance {
        loss_R *= mean(&(&importance.weights_N + 1e-10).log()).exp();
    }
    let outside_N = bounded_N.ne_tensor(log_ratio_N);
    let clipped = |pushes_N: Tensor| outside_N.logical_and(&pushes_N);
    let metrics = vec![(OUTSIDE, clipped(advantages_N.gt(0.0))), (PG_CLIP_LOWER, clipped(advantages_N.lt(0.0)))];
    (rows.spread(&loss_R).neg(), metrics)
}

/// `−min(r, c)·A·logprob` with a detached ratio, and 0 for tokens that have moved too far in the direction of their
/// advantage (arXiv 2602.04879; verl `dppo_tv` and `dppo_kl`). An advantage of 0 counts as a negative one.
fn dppo(config: &TrainConfig, moved_N: &Tensor, ratio_N: &Tensor, logprobs_N: &Tensor, advantages_N: &Tensor) -> Term {
    let (low, high) = (config.epsilon, config.epsilon_high.unwrap_or(config.epsilon));
    let outside_N = moved_N.gt(high).where_self(&advantages_N.gt(0.0), &moved_N.lt(-low));
    let kept_N = outside_N.logical_not();
    let weight_N = ratio_N.detach().clamp_max(config.clip_ratio_c) * &kept_N;
    let capped_N = ratio_N.gt(config.clip_ratio_c).logical_and(&kept_N);
    ((weight_N * advantages_N * logprobs_N).neg(), vec![(OUTSIDE_ANY, outside_N), (CAPPED, capped_N)])
}

/// Probabilities of tokens minus those under the old policy.
fn probability_change(logprobs_N: &Tensor, tokens: &Tokens) -> Tensor {
    let current_N = logprobs_N.detach();
    let old_N = tokens.old_logprobs_N.as_ref().unwrap_or(&current_N);
    current_N.exp() - old_N.exp()
}

/// KL divergence from the old policy to the current one, where a token stands against all others together; negative if
/// the token has become less likely.
fn signed_divergence(logprobs_N: &Tensor, tokens: &Tokens) -> Tensor {
    let current_N = logprobs_N.detach();
    let old_N = tokens.old_logprobs_N.as_ref().unwrap_or(&current_N);
    let (current_others_N, old_others_N) = (1.0 - current_N.exp(), 1.0 - old_N.exp());
    let others_N: Tensor = (&old_others_N + EPSILON) / (current_others_N + EPSILON);
    let divergence_N = old_N.exp() * (old_N - &current_N) + old_others_N * others_N.log();
    divergence_N * (&current_N - old_N).sign()
}

/// The clipped surrogate, and 0 for some tokens that are drawn by lot: those not clipped whose covariance lies between
/// two bounds (arXiv 2505.22617; verl `clip_cov`).
fn clip_cov(config: &TrainConfig, ratio_N: &Tensor, logprobs_N: &Tensor, tokens: &Tokens, low: f64, high: f64) -> Term {
    let covariance_N = covariance(logprobs_N, &tokens.advantages_N);
    let (loss_N, clipping) = clipped(ratio_N, &tokens.advantages_N, low, high);
    let between_N = covariance_N.gt(config.clip_cov_lb).logical_and(&covariance_N.lt(config.clip_cov_ub));
    let eligible_N = between_N.logical_and(&clipping[0].1.logical_not());
    let count = share(config.clip_cov_ratio, &covariance_N).min(eligible_N.sum(Kind::Int64).int64_value(&[]));
    let lots_N = tokens.lots_N.as_ref().expect("a loss that draws tokens has lots");
    let dropped_N = masks::largest(&(lots_N * &eligible_N), count);
    (loss_N * dropped_N.logical_not(), vec![(OUTSIDE_ANY, dropped_N)])
}

/// The surrogate without a clip, with a penalty on the absolute log-ratio of the tokens of largest covariance (arXiv
/// 2505.22617; verl `kl_cov`).
fn kl_cov(
    config: &TrainConfig,
    ratio_N: &Tensor,
    log_ratio_N: &Tensor,
    logprobs_N: &Tensor,
    advantages_N: &Tensor,
) -> Term {
    let covariance_N = covariance(logprobs_N, advantages_N);
    let penalised_N = masks::largest(&covariance_N, share(config.kl_cov_ratio, &covariance_N));
    (log_ratio_N.abs() * penalised_N * config.ppo_kl_coef - ratio_N * advantages_N, Vec::new())
}

/// Each token's part of the covariance of log-probs and advantages over the minibatch.
fn covariance(logprobs_N: &Tensor, advantages_N: &Tensor) -> Tensor {
    let centred = |values_N: &Tensor| values_N - values_N.mean(Kind::Double);
    centred(&logprobs_N.detach()) * centred(advantages_N)
}

/// A share of some tokens as a number of them, rounded down; one at least, if there are any.
fn share(share: f64, tokens_N: &Tensor) -> i64 {
    let tokens = tokens_N.numel() as i64;
    ((share * tokens as f64) as i64).max(1).min(tokens)
}

impl Importance {
    /// Log of each row's weight: the row's own, or the product of its tokens' weights. The log of each weight is
    /// clamped to [floor, ceiling].
    fn log_weight(&self, rows: &Rows, floor: f64, ceiling: f64) -> Tensor {
        let log_N = self.weights_N.log().clamp(floor, ceiling);
        if self.per_sequence { rows.mean(&log_N) } else { rows.sum(&log_N) }
    }
}

/// One number where the condition holds and another elsewhere, `[N]` float64.
fn choose(condition_N: &Tensor, yes: f64, no: f64) -> Tensor {
    condition_N.to_kind(Kind::Double) * (yes - no) + no
}
