//! The difference between sampler and learner.

use crate::metrics::metric::section;

section! {
    "Sampler against \
     learner", "Both compute the log-prob of every sampled token. These metrics say how far the two are apart, and \
         what importance sampling does about it. With rollouts in fp32 and `max_staleness` 0 they agree up to \
         rounding.";

    /// KL divergence between sampler and learner: mean of exp(d) − 1 − d over the tokens, where d is the learner's
    /// log-prob under the weights that the step began with minus the sampler's.
    ///
    /// Below 1e-9 with fp32 on both sides; about 1e-8 with bf16x3, up to some 1e-2 with bf16, fp16 or int8, more with
    /// staleness. Above that, or rising over a run: the two do not compute the same distribution.
    metric MISMATCH_KL = "mismatch_kl" {
        unit: Nats, source: "prime-rl `mismatch_kl`; verl `rollout_corr/k3_kl`", chart: MISMATCH "mismatch_kl"
    }

    /// Mean of |d|.
    ///
    /// Below 1e-5 with fp32 on both sides.
    metric SAMPLING_SAMPLING_LOGP_DIFFERENCE_MEAN = "sampling/sampling_logp_difference/mean" {
        unit: Nats, source: "TRL", chart: DIFFERENCE "mean"
    }

    /// Largest |d| of a token.
    ///
    /// Below 1e-3 with fp32 on both sides. A single large value: a token that one side takes for almost impossible.
    metric SAMPLING_SAMPLING_LOGP_DIFFERENCE_MAX = "sampling/sampling_logp_difference/max" {
        unit: Nats, source: "TRL", chart: DIFFERENCE "max"
    }

    /// Share of the sampler's choices of experts that the learner makes too, over the tokens of its passes with
    /// gradients. With `router_replay` R3 it computes with the sampler's, and counts what it would have chosen.
    ///
    /// 1 with fp32 on both sides and one update for each batch; some thousandths less with rounded weights. Much less:
    /// near-equal experts are chosen by rounding; replay the choices.
    metric ROUTER_AGREEMENT = "router_agreement" { unit: Share, source: "Tandem", when: "`router_replay`" }

    /// Smallest importance weight, of a token or (`importance_sampling_mode` sequence_…) of a completion.
    ///
    /// Near 1. At 0 something is masked.
    metric SAMPLING_IMPORTANCE_SAMPLING_RATIO_MIN = "sampling/importance_sampling_ratio/min" {
        unit: Number, source: "TRL", when: "`importance_sampling_correction` and `decoupled_objective`"
    }

    /// Mean importance weight, after bounds and normalisation.
    ///
    /// Near 1. Far below: much is masked or cut off, and the step teaches little.
    metric SAMPLING_IMPORTANCE_SAMPLING_RATIO_MEAN = "sampling/importance_sampling_ratio/mean" {
        unit: Number, source: "TRL", when: "`importance_sampling_correction` and `decoupled_objective`"
    }

    /// Largest importance weight.
    ///
    /// Near 1, and never above `importance_sampling_clip_max` unless weights are normalised.
    metric SAMPLING_IMPORTANCE_SAMPLING_RATIO_MAX = "sampling/importance_sampling_ratio/max" {
        unit: Number, source: "TRL", when: "`importance_sampling_correction` and `decoupled_objective`"
    }

    /// Effective sample size, as a share of the batch: this share of samples with equal weights would give a mean of
    /// the same variance.
    ///
    /// Near 1. Below a half: a few completions decide the gradient; lower `max_staleness`, or sample in a wider format.
    metric ROLLOUT_CORR_ROLLOUT_IS_EFF_SAMPLE_SIZE = "rollout_corr/rollout_is_eff_sample_size" {
        unit: Share, source: "verl", when: "`importance_sampling_correction` and `decoupled_objective`"
    }

    /// Share of tokens with weight 0.
    ///
    /// 0, or below 0.01 with token_mask.
    metric ROLLOUT_CORR_ROLLOUT_RS_MASKED_FRACTION = "rollout_corr/rollout_rs_masked_fraction" {
        unit: Share, source: "verl", when: "`importance_sampling_correction` and `importance_sampling_mode` \
            token_truncate or token_mask"
    }

    /// Share of completions with weight 0.
    ///
    /// 0, or below 0.1 with sequence_mask. More: long completions are lost; prefer a mode on token level, or sample in
    /// a wider format.
    metric ROLLOUT_CORR_ROLLOUT_RS_SEQ_MASKED_FRACTION = "rollout_corr/rollout_rs_seq_masked_fraction" {
        unit: Share, source: "verl", when: "`importance_sampling_correction` and `importance_sampling_mode` \
            sequence_truncate or sequence_mask"
    }

    /// Tokens for which sampler and learner kept different numbers of candidates under `top_k`, `top_p`, `min_p` or
    /// `structured_outputs_regex`.
    ///
    /// 0, but for a few tokens at the very edge of the support.
    metric SAMPLING_SUPPORT_MISMATCH = "sampling/support_mismatch" {
        unit: Count, source: "Tandem", when: "`top_p` or `top_k` or `min_p` or `structured_outputs_regex`"
    }

    /// Mean number of versions between the weights that sampled a group and those that are trained on it.
    ///
    /// 0 with `max_staleness` 0, else at most that.
    metric SAMPLE_STALENESS_MEAN = "sample/staleness_mean" { unit: Number, source: "TRL (async GRPO)",
        chart: STALENESS "mean" }

    /// The largest such number.
    ///
    /// As `sample/staleness_mean`.
    metric SAMPLE_STALENESS_MAX = "sample/staleness_max" { unit: Count, source: "TRL (async GRPO)",
        chart: STALENESS "max" }

    /// Completions of this step that were not trained on because they were staler than `max_staleness`. TRL's
    /// `sample/dropped_stale_total` counts them over the whole run.
    ///
    /// 0. Completions older than that are a remainder of a restart.
    metric SAMPLE_DROPPED_STALE = "sample/dropped_stale" { unit: Count, source: "Tandem" }
}
