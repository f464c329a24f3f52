//! The KL penalty in the reward, and the critic.

use crate::metrics::metric::section;

section! {
    "KL penalty and critic", "What PPO adds: a KL penalty that is taken off each token's reward, and a critic.";

    /// KL divergence of the old policy from the reference by `kl_estimator`: mean over a completion's tokens, then over
    /// completions. TRL's `objective/kl` is a sum over the tokens instead.
    ///
    /// Around `kl_target` with an adaptive controller. Rising: raise `beta`.
    metric ACTOR_REWARD_KL_PENALTY = "actor/reward_kl_penalty" { unit: Nats, source: "verl",
        when: "`use_kl_in_reward`" }

    /// Weight of the penalty in this step.
    ///
    /// `beta`, or what the adaptive `kl_controller` has made of it.
    metric ACTOR_REWARD_KL_PENALTY_COEFF = "actor/reward_kl_penalty_coeff" {
        unit: Number, source: "verl", when: "`use_kl_in_reward`"
    }

    /// The critic's clipped value loss, half the mean square of its error.
    ///
    /// Falls at the start and then follows the spread of the returns.
    metric LOSS_VALUE_AVG = "loss/value_avg" {
        unit: Number, source: "TRL (PPO); verl `critic/vf_loss`", when: "`advantage_estimator` gae"
    }

    /// Share of tokens for which the clipped value loss is the larger one.
    ///
    /// Below 0.1. More: lower `critic_learning_rate`.
    metric VAL_CLIPFRAC_AVG = "val/clipfrac_avg" {
        unit: Share, source: "TRL (PPO); verl `critic/vf_clipfrac`", when: "`advantage_estimator` gae"
    }

    /// Share of the variance of the returns that the critic's values account for, `1 − var(R − V) / var(R)`.
    ///
    /// Rises towards 1. Below 0: the critic is worse than a constant; give it a warm-up (`critic_warmup_steps`).
    metric CRITIC_VF_EXPLAINED_VAR = "critic/vf_explained_var" {
        unit: Number, source: "verl", when: "`advantage_estimator` gae"
    }

    /// Mean of what the critic predicts during its updates.
    ///
    /// Near `critic/returns/mean`.
    metric CRITIC_VPRED_MEAN = "critic/vpred_mean" { unit: Points, source: "verl", when: "`advantage_estimator` gae" }

    /// Norm of the critic's gradient, before clipping.
    ///
    /// As `grad_norm`.
    metric CRITIC_GRAD_NORM = "critic/grad_norm" { unit: Number, source: "verl", when: "`advantage_estimator` gae" }

    /// The critic's learning rate in the last update.
    ///
    /// As configured.
    metric CRITIC_LR = "critic/lr" { unit: Number, source: "verl", when: "`advantage_estimator` gae" }

    /// Updates of the critic left out because loss or gradient was not finite.
    ///
    /// 0.
    metric CRITIC_SKIPPED_UPDATES = "critic/skipped_updates" { unit: Count, source: "Tandem",
        when: "`advantage_estimator` gae" }

    /// Mean over the tokens of the `returns` (what the critic should have said), the `values` (what it said when the
    /// step began) or the `advantages` (what the policy is trained with).
    ///
    /// Values near returns; advantages near 0, since they are whitened.
    family CRITIC_MEAN = "critic/{name}/mean" { unit: Points, source: "verl", when: "`advantage_estimator` gae" }

    /// The largest of them.
    ///
    /// Of one order of magnitude over a run.
    family CRITIC_MAX = "critic/{name}/max" { unit: Points, source: "verl", when: "`advantage_estimator` gae" }

    /// The smallest of them.
    ///
    /// As the largest.
    family CRITIC_MIN = "critic/{name}/min" { unit: Points, source: "verl", when: "`advantage_estimator` gae" }
}
