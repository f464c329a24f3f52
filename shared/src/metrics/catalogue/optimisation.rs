//! Metrics of the optimiser.

use crate::metrics::metric::section;

section! {
    "Optimisation", "What the optimiser did, as means over the updates of a step.";

    /// The loss, with KL term and entropy bonus.
    ///
    /// Says little in GRPO: advantages add up to 0, so the first update of a batch has a loss near 0 whatever it
    /// teaches. Watch `reward`.
    metric LOSS = "loss" { unit: Number, source: "TRL", chart: LOSS "loss" }

    /// The loss without the entropy bonus.
    ///
    /// As `loss`.
    metric POLICY_LOSS = "policy_loss" {
        unit: Number, source: "TRL", when: "`entropy_coef` above 0 or `use_adaptive_entropy`"
    }

    /// Norm of the gradient of all weights, before it is clipped to `max_grad_norm`. `null` when an update was skipped.
    ///
    /// Of one order of magnitude over a run. 0: nothing earned more than anything else. Growing without end, or spikes
    /// that `reward` does not recover from: the learning rate is too high.
    metric GRAD_NORM = "grad_norm" { unit: Number, source: "TRL", chart: GRADIENT "grad_norm" }

    /// How unevenly the tokens of the passes with gradients choose experts: E Σ f P over the E experts of a layer, with
    /// the share f of choices that an expert has and its mean probability P. Mean over layers. A metric alone: no loss
    /// has it as a term.
    ///
    /// Near 1, which it is where all experts have equal shares. Rising towards E: the router sends all tokens to a few
    /// experts.
    metric LOAD_BALANCING_LOSS = "load_balancing_loss" {
        unit: Number, source: "Megatron-LM `load_balancing_loss`", when: "a model with experts"
    }

    /// By how much the busiest expert of a layer has more tokens than the mean of all, as a share of the mean. Mean
    /// over layers.
    ///
    /// Within some tenths of its value at the start. 0: all are alike. Doubled over a run: some experts learn no more.
    metric MAX_VIO = "max_vio" {
        unit: Number, source: "Wang et al. 2024, arXiv:2408.15664 (MaxVio)", when: "a model with experts"
    }

    /// Learning rate of the last update, after warm-up and schedule.
    ///
    /// As configured.
    metric LEARNING_RATE = "learning_rate" { unit: Number, source: "TRL", chart: LEARNING_RATE "learning_rate" }

    /// Updates left out because loss or gradient was not finite, or because `guard` left out the step or the rest of
    /// it.
    ///
    /// 0. More than a few: lower the learning rate; the completions of the step say what was odd about it.
    metric SKIPPED_UPDATES = "skipped_updates" { unit: Count, source: "Tandem" }

    /// Minibatches left out because their mean ratio was above `early_stop_imp_ratio`.
    ///
    /// 0 without that option. Many: the batch is used for too many updates, or at too high a rate.
    metric EARLY_STOPPED_BATCHES = "early_stopped_batches" { unit: Count, source: "Tandem, after RLinf" }

    /// Steps so far whose updates the guard has left out.
    ///
    /// A few in a long run do no harm. Many: see the notices, which say what was wrong with them.
    metric GUARD_SKIPPED_STEPS = "guard/skipped_steps" {
        unit: Count, source: "Tandem", when: "`guard` has left out a step"
    }

    /// How often the run has gone back to an earlier checkpoint.
    ///
    /// As `guard/skipped_steps`; after `guard_max_roll_backs` the run ends.
    metric GUARD_ROLL_BACKS = "guard/roll_backs" { unit: Count, source: "Tandem", when: "`guard` has gone back" }

    /// What the learning rates of the schedule are multiplied with.
    ///
    /// Halved each time that `guard` lowers the rate. `learning_rate` has it in it.
    metric GUARD_LEARNING_RATE_FACTOR = "guard/learning_rate_factor" {
        unit: Number, source: "Tandem", when: "`guard` has lowered the rate"
    }
}
