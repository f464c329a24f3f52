//! Metrics of evaluations.

use crate::metrics::metric::section;

section! {
    "Evaluation", "What `eval.jsonl` holds of each version that was evaluated on `eval_dataset`, after its `step`, and \
        what `tandem eval` prints of a model. Names that training has too begin with TRL's prefix `eval_`.";

    /// Prompts evaluated.
    ///
    /// The rows of `eval_dataset`.
    metric EVAL_PROMPTS = "eval_prompts" { unit: Count, source: "Tandem" }

    /// Prompts that the first reward function could judge; without reward functions, the environment of their row.
    /// Those on which it failed, or from which it abstained altogether, are left out of `avg@{k}` and `pass@{k}`. Of
    /// the others, completions from which it abstained count as not correct.
    ///
    /// As `eval_prompts`. Fewer: a reward failed or abstained; `tandem eval` says which of the two, and on how many.
    metric EVAL_SCORED_PROMPTS = "eval_scored_prompts" { unit: Count, source: "Tandem" }

    /// Prompts of which a completion has no score, or no reward, because an environment or a reward function failed. A
    /// reward that abstains is no failure.
    ///
    /// Absent. With more than a tenth of `eval_prompts`, `metric_for_best_model` and `early_stopping_patience` leave
    /// the evaluation out; with more than half, `tandem eval` ends with an error.
    metric EVAL_FAILED_PROMPTS = "eval_failed_prompts" { unit: Count, source: "Tandem", when: "where something failed" }

    /// The score of the first reward function, or of an environment, from which a completion counts as correct.
    ///
    /// The full score of the function, unless `--correct-at` says otherwise.
    metric EVAL_CORRECT_AT = "eval_correct_at" { unit: Points, source: "Tandem" }

    /// Share of correct completions, k for each prompt.
    ///
    /// Rises with training.
    family AVG = "avg@{k}" { unit: Share, source: "verl `val-core/…/mean@k`" }

    /// Chance that at least one of k completions of a prompt is correct, estimated without bias from all of them (Chen
    /// et al. 2021, eq. 1).
    ///
    /// Above `avg@{k}`. The distance is what training can still gain; it shrinks as the policy settles on one answer.
    family PASS = "pass@{k}" { unit: Share, source: "verl `val-core/…/best@k`" }

    /// Share of prompts of which the majority of k completions is right: the answer that most of them name, the first
    /// of those that are named as often (self-consistency). A completion without an answer has no vote.
    ///
    /// Above `avg@{k}` where the policy is right more often than it makes any one mistake; with k = 1 the same.
    family MAJ = "maj@{k}" {
        unit: Share,
        source: "verl `val-core/…/maj@k`, lm-evaluation-harness `maj@k`",
        when: "where the first reward function extracts an answer (tandem eval)"
    }

    /// Lower end of the 95 % interval of `avg@{k}`: Wilson's where each prompt counts as 0 or 1, as it does with k = 1;
    /// else Student's t over prompts (standard errors clustered by prompt), cut to 0 and 1.
    ///
    /// Nearer to `avg@{k}` with more prompts.
    family AVG_CI95_LOW = "avg_ci95_low@{k}" { unit: Share, source: "Tandem" }

    /// Upper end of the 95 % interval of `avg@{k}`.
    ///
    /// As `avg_ci95_low@{k}`.
    family AVG_CI95_HIGH = "avg_ci95_high@{k}" { unit: Share, source: "Tandem" }

    /// Lower end of the 95 % interval of `pass@{k}`, made as `avg_ci95_low@{k}`.
    ///
    /// As `avg_ci95_low@{k}`.
    family PASS_CI95_LOW = "pass_ci95_low@{k}" { unit: Share, source: "Tandem" }

    /// Upper end of the 95 % interval of `pass@{k}`.
    ///
    /// As `avg_ci95_low@{k}`.
    family PASS_CI95_HIGH = "pass_ci95_high@{k}" { unit: Share, source: "Tandem" }

    /// Lower end of the 95 % interval of `maj@{k}`: Wilson's.
    ///
    /// As `avg_ci95_low@{k}`.
    family MAJ_CI95_LOW = "maj_ci95_low@{k}" { unit: Share, source: "Tandem", when: "where the first reward function \
        extracts an answer (tandem eval)" }

    /// Upper end of the 95 % interval of `maj@{k}`.
    ///
    /// As `avg_ci95_low@{k}`.
    family MAJ_CI95_HIGH = "maj_ci95_high@{k}" { unit: Share, source: "Tandem", when: "where the first reward function \
        extracts an answer (tandem eval)" }

    /// Standard error of `avg@{k}`, over prompts. For an interval take `avg_ci95_low@{k}` and `avg_ci95_high@{k}`.
    ///
    /// 0.5 / √prompts at most. Differences of less than two of it between models say little.
    family AVG_STDERR = "avg_stderr@{k}" { unit: Share, source: "lm-evaluation-harness `acc_stderr`" }

    /// Standard error of `pass@{k}`, over prompts.
    ///
    /// As `avg_stderr@{k}`.
    family PASS_STDERR = "pass_stderr@{k}" { unit: Share, source: "lm-evaluation-harness `acc_stderr`" }

    /// Standard error of `maj@{k}`, over prompts.
    ///
    /// As `avg_stderr@{k}`.
    family MAJ_STDERR = "maj_stderr@{k}" {
        unit: Share,
        source: "lm-evaluation-harness `acc_stderr`",
        when: "where the first reward function extracts an answer (tandem eval)"
    }

    /// Mean reward of the completions.
    ///
    /// Rises with `reward`, of which it is the greedy counterpart on prompts that are not trained on.
    metric EVAL_REWARD = "eval_reward" { unit: Points, source: "TRL" }

    /// Share of completions that the first reward function, or the environment of the row, takes for correct;
    /// `avg@{k}`, whatever k is.
    ///
    /// Rises. Falling while `reward` rises: the policy exploits a reward, or has learnt its prompts by heart.
    metric EVAL_ACCURACY = "eval_accuracy" { unit: Share, source: "Tandem", chart: EVALUATION "accuracy" }

    /// Mean score of one reward function.
    ///
    /// As `rewards/{name}/mean`.
    family EVAL_REWARDS_MEAN = "eval_rewards/{name}/mean" { unit: Points, source: "TRL" }

    /// Completions for which the function failed.
    ///
    /// As `rewards/{name}/failed`.
    family EVAL_REWARDS_FAILED = "eval_rewards/{name}/failed" { unit: Count, source: "Tandem" }

    /// Mean length of the completions.
    ///
    /// As `completions/mean_length`.
    metric EVAL_COMPLETIONS_MEAN_LENGTH = "eval_completions/mean_length" { unit: Tokens, source: "TRL" }

    /// Share of completions that are truncated.
    ///
    /// As `completions/clipped_ratio`.
    metric EVAL_COMPLETIONS_CLIPPED_RATIO = "eval_completions/clipped_ratio" { unit: Share, source: "TRL" }

    /// Completion tokens.
    ///
    /// As `completions/num_tokens`.
    metric EVAL_NUM_TOKENS = "eval_num_tokens" { unit: Tokens, source: "Tandem" }

    /// Calls of tools per conversation.
    ///
    /// As `tools/call_frequency`.
    metric EVAL_TOOLS_CALL_FREQUENCY = "eval_tools/call_frequency" { unit: Number, source: "TRL",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Share of the calls that failed; `null` without calls.
    ///
    /// As `tools/failure_frequency`.
    metric EVAL_TOOLS_FAILURE_FREQUENCY = "eval_tools/failure_frequency" { unit: Share, source: "TRL",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Mean number of turns.
    ///
    /// As `turns/mean`.
    metric EVAL_TURNS_MEAN = "eval_turns/mean" { unit: Number, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Largest number of turns.
    ///
    /// As `turns/max`.
    metric EVAL_TURNS_MAX = "eval_turns/max" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations whose environment failed. They have no reward.
    ///
    /// 0. `tandem eval` says the first reason.
    metric EVAL_ENVIRONMENT_FAILED = "eval_environment/failed" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations that took too long, or whose environment did. They have no reward.
    ///
    /// As `environment/late`.
    metric EVAL_ENVIRONMENT_LATE = "eval_environment/late" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations by why they ended.
    ///
    /// As `episode/ended/{reason}`.
    family EVAL_EPISODE_ENDED = "eval_episode/ended/{reason}" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// How long the evaluation took.
    ///
    /// Steady.
    metric EVAL_SECONDS = "eval_seconds" { unit: Seconds, source: "Tandem" }

    /// Completion tokens per second.
    ///
    /// Near `rollout/tokens_per_s`.
    metric EVAL_TOKENS_PER_S = "eval_tokens_per_s" { unit: TokensPerSecond, source: "Tandem" }
}
