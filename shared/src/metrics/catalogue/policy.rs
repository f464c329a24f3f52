//! Metrics of the losses.

use crate::metrics::metric::section;

section! {
    "Policy", "How the policy differs from the one that the step began with (old) and from the reference, and what the \
        loss does about it. Means over the tokens of every update of a step, unless said otherwise. The ratio is the \
        probability of a token under the policy divided by that under the old one; in the first update on a batch it \
        is 1, so nothing is clipped in a run with one update per batch.";

    /// Entropy of the distribution that tokens are drawn from, in the first pass over each completion.
    ///
    /// Falls slowly. Near 0: completions of a prompt hardly differ and there is nothing left to choose from; raise
    /// `epsilon_high`, or use `entropy_coef`. Rising fast: the policy falls apart.
    metric ENTROPY = "entropy" { unit: Nats, source: "TRL", chart: ENTROPY "entropy" }

    /// Weight of the entropy bonus after the last update.
    ///
    /// Constant, or with `use_adaptive_entropy` led by the entropy.
    metric ENTROPY_COEF = "entropy_coef" {
        unit: Number, source: "TRL", when: "`entropy_coef` above 0 or `use_adaptive_entropy`"
    }

    /// KL divergence of the policy from the reference by `kl_estimator`, bias correction included.
    ///
    /// 0 at the start, then below some tenths. Rising fast: the policy leaves what the reference can say; raise `beta`
    /// or lower the learning rate.
    metric KL = "kl" { unit: Nats, source: "TRL", when: "`beta` not 0 and `use_kl_in_reward` off", chart: KL "kl" }

    /// Mean ratio, over the completions that have a gradient.
    ///
    /// Within some hundredths of 1.
    metric RATIO = "ratio" { unit: Number, source: "TRL (async GRPO)" }

    /// Share of tokens (with `importance_sampling_level` sequence, of completions) whose ratio is below its bound while
    /// their advantage is negative.
    ///
    /// Below 0.1. More: updates reach further than the clip range allows; lower the learning rate or use a batch for
    /// fewer updates.
    metric CLIP_RATIO_LOW_MEAN = "clip_ratio/low_mean" {
        unit: Share, source: "TRL", when: "`loss_type` grpo, bnpo, dr_grpo, dapo or luspo", chart: CLIPPED "low"
    }

    /// The smallest such share of a completion.
    ///
    /// 0.
    metric CLIP_RATIO_LOW_MIN = "clip_ratio/low_min" {
        unit: Share, source: "TRL", when: "`loss_type` grpo, bnpo, dr_grpo, dapo or luspo"
    }

    /// Share of tokens (or completions) whose ratio is above its bound while their advantage is positive.
    ///
    /// As `clip_ratio/low_mean`. Much more than that: unlikely tokens are held back; `epsilon_high` gives them room.
    metric CLIP_RATIO_HIGH_MEAN = "clip_ratio/high_mean" {
        unit: Share, source: "TRL", when: "`loss_type` grpo, bnpo, dr_grpo, dapo or luspo", chart: CLIPPED "high"
    }

    /// The largest such share of a completion.
    ///
    /// At 1, some completion does not contribute to the gradient any more.
    metric CLIP_RATIO_HIGH_MAX = "clip_ratio/high_max" {
        unit: Share, source: "TRL", when: "`loss_type` grpo, bnpo, dr_grpo, dapo or luspo"
    }

    /// The sum of `clip_ratio/low_mean` and `clip_ratio/high_mean`.
    ///
    /// As these.
    metric CLIP_RATIO_REGION_MEAN = "clip_ratio/region_mean" {
        unit: Share, source: "TRL", when: "`loss_type` grpo, bnpo, dr_grpo, dapo or luspo", chart: CLIPPED "either"
    }

    /// Share of tokens (or completions) with a positive advantage whose ratio is above the cap, `epsilon_high`.
    ///
    /// Below 0.1. Such tokens keep a gradient, which the cap bounds.
    metric CISPO_CLIP_RATIO = "cispo_clip_ratio" {
        unit: Share, source: "TRL", when: "`loss_type` cispo", chart: CLIPPED "capped"
    }

    /// Mean weight φ of a completion that has a gradient. TRL averages over all.
    ///
    /// Around 1. Near 0: the policy is so far from the sampler that hardly anything is learnt.
    metric VESPO_PHI_SEQ_MEAN = "vespo/phi_seq_mean" { unit: Number, source: "TRL", when: "`loss_type` vespo" }

    /// Share of tokens for which the clipped loss is the larger one.
    ///
    /// As `clip_ratio/low_mean`.
    metric POLICY_CLIPFRAC_AVG = "policy/clipfrac_avg" {
        unit: Share, source: "TRL (PPO); verl \
            `actor/pg_clipfrac`", when: "`loss_type` vanilla or gspo", chart: CLIPPED "clipped"
    }

    /// Share of tokens that verl counts as clipped: verl_cispo those outside the clip range, whatever their advantage;
    /// geo_mean those outside it with a positive advantage; dppo_tv and dppo_kl those that have moved too far, and
    /// clip_cov those that it has drawn. Of completions with a gradient, except with geo_mean and clip_cov; verl counts
    /// the others too.
    ///
    /// As `clip_ratio/low_mean`. TRL has no metric of this definition.
    metric ACTOR_PG_CLIPFRAC = "actor/pg_clipfrac" {
        unit: Share, source: "verl", when: "`loss_type` verl_cispo, geo_mean, dppo_tv, dppo_kl or clip_cov",
            chart: CLIPPED "clipped (verl)"
    }

    /// Share of tokens with a negative advantage that the second bound `clip_ratio_c` clips (vanilla), or that lie
    /// outside the clip range (geo_mean). With dppo_tv and dppo_kl, share of the tokens with a gradient that weigh
    /// `clip_ratio_c` and not their ratio.
    ///
    /// Near 0, except with geo_mean: the second bound is for ratios that have run away.
    metric ACTOR_PG_CLIPFRAC_LOWER = "actor/pg_clipfrac_lower" {
        unit: Share, source: "verl", when: "`loss_type` vanilla, geo_mean, dppo_tv or dppo_kl",
            chart: CLIPPED "lower (verl)"
    }

    /// KL divergence of the policy from the old one, as the mean of `old_logprobs − logprobs` over the completions that
    /// have a gradient. TRL's `policy/approxkl_avg` is another estimate, half the mean square.
    ///
    /// Within some hundredths of 0.
    metric ACTOR_PPO_KL = "actor/ppo_kl" { unit: Nats, source: "verl" }

    /// Share of tokens that `off_policy_mask_threshold` leaves out.
    ///
    /// Near 0. Much: the completions were sampled by a policy too far from this one.
    metric OFF_POLICY_MASKED_FRAC = "off_policy_masked_frac" {
        unit: Share, source: "Tandem", when: "`off_policy_mask_threshold`"
    }

    /// Share of tokens that `top_entropy_quantile` leaves out.
    ///
    /// 1 minus the option.
    metric LOW_ENTROPY_MASKED_FRAC = "low_entropy_masked_frac" {
        unit: Share, source: "Tandem", when: "`top_entropy_quantile` below 1"
    }

    /// KL divergence per token of a step's last policy from the one that it began with.
    ///
    /// Near `old_policy_kl_target`, where one is set: the weight of the penalty sees to that.
    metric ACTOR_OLD_POLICY_KL = "actor/old_policy_kl" { unit: Nats, source: "Tandem, after PPO, section \
        4", when: "`old_policy_kl_coef` above 0" }

    /// Weight of the penalty on that divergence in the step.
    ///
    /// Settles when `old_policy_kl_target` can be met; one that goes on doubling means that the learning rate is too
    /// high.
    metric ACTOR_OLD_POLICY_KL_COEFF = "actor/old_policy_kl_coeff" { unit: Number, source: "Tandem, after PPO, section \
        4", when: "`old_policy_kl_coef` above 0" }
}
