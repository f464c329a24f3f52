//! Conversations with tools and environments.

use crate::metrics::metric::section;

section! {
    "Tools and environments", "Conversations of runs with `tools`, `environment_factory` or `agent`. A turn is what \
        the policy samples in one go. A reply of a tool is given to it. Lengths of completions count sampled tokens \
        alone.";

    /// Calls of tools per conversation.
    ///
    /// Above 0. At 0 the policy never calls a tool, and nothing teaches it to: show it how in the prompt, or start from
    /// a model that calls tools.
    metric TOOLS_CALL_FREQUENCY = "tools/call_frequency" { unit: Number, source: "TRL",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Share of the calls that failed; `null` without calls. The policy reads the errors as replies.
    ///
    /// Falling. At 1 every call fails: the messages of completions have the errors.
    metric TOOLS_FAILURE_FREQUENCY = "tools/failure_frequency" { unit: Share, source: "TRL",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations that called a tool and have not lost their environment.
    ///
    /// Above 0. At 0 with calls, the run trains only on conversations that call nothing.
    metric TOOLS_CALLERS_KEPT = "tools/callers_kept" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Mean number of turns.
    ///
    /// 1 where no tool is called.
    metric TURNS_MEAN = "turns/mean" { unit: Number, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Largest number of turns.
    ///
    /// At most one more than `max_tool_calling_iterations`.
    metric TURNS_MAX = "turns/max" { unit: Count, source: "Tandem", when: "`tools`, `environment_factory` or `agent`" }

    /// Share of the tokens of completions that were given to the policy.
    ///
    /// High with long replies: they take room of `max_completion_length` and time of both halves, and teach nothing by
    /// themselves.
    metric TURNS_GIVEN_SHARE = "turns/given_share" { unit: Share, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Turns whose context was computed again, because `max_kept_states` others were held.
    ///
    /// 0, or far below the number of turns. Otherwise raise `max_kept_states`, if there is memory.
    metric TURNS_RECOMPUTED = "turns/recomputed" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations whose environment failed. They have no reward and are not trained on.
    ///
    /// 0. The reasons are in `logs/rollout.log` and with the completions.
    metric ENVIRONMENT_FAILED = "environment/failed" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations whose environment did not answer within `environment_timeout`, or that took longer than
    /// `episode_timeout`. They have no reward and are not trained on.
    ///
    /// 0. If only long conversations are late, the policy learns brevity: raise these bounds.
    metric ENVIRONMENT_LATE = "environment/late" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations that took much longer than others of their group (`straggler_after`), and were left out. They have
    /// no reward and are not trained on.
    ///
    /// 0, or few. If only long conversations are stragglers, the policy learns brevity: raise `straggler_after`, or use
    /// `stragglers` drop.
    metric ENVIRONMENT_STRAGGLERS = "environment/stragglers" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Groups that were dropped for their stragglers, and whose prompts were drawn again.
    ///
    /// 0, or few: what was sampled for them is lost.
    metric ENVIRONMENT_DRAWN_AGAIN = "environment/drawn_again" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Share of the time of conversations in which they waited for their environments.
    ///
    /// As slow as the tools are. The sampler works on other conversations meanwhile; where there are too few of them,
    /// `rollout/idle_share` and the time of a step rise.
    metric ENVIRONMENT_WAIT_SHARE = "environment/wait_share" { unit: Share, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }

    /// Conversations by why they ended: stop, length, turn_limit, reply_too_long, deadline, environment_failed,
    /// aborted, straggler.
    ///
    /// Mostly stop. With many of turn_limit, reply_too_long or length, the limit of that name is too low for the task.
    family EPISODE_ENDED = "episode/ended/{reason}" { unit: Count, source: "Tandem",
        when: "`tools`, `environment_factory` or `agent`" }
}
