//! Progress of a run.

use crate::metrics::metric::section;

section! {
    "Run", "Where the run is.";

    /// Completed steps, this one included. A step is one generation batch and all optimiser updates on it. In
    /// `eval.jsonl`: the version of the weights that was evaluated, which is the number of steps that made it.
    ///
    /// Counts up by 1. After a restart, records of steps that are made again replace the earlier ones.
    metric STEP = "step" { unit: Count, source: "Hugging Face's Trainer, there in optimiser updates" }

    /// Steps that the run is to have.
    ///
    /// The same in every record.
    metric TOTAL_STEPS = "total_steps" { unit: Count, source: "Tandem" }

    /// Prompts used up so far, divided by the rows of the dataset. Prompts that dynamic sampling dropped count as well.
    ///
    /// Far above 1 with a falling `eval_accuracy` and a rising `reward`: the run learns its prompts by heart.
    metric EPOCH = "epoch" { unit: Number, source: "TRL" }

    /// Tokens of prompts, and sampled tokens of completions, that were trained on so far; a prompt counts once per
    /// completion.
    ///
    /// Grows by about the same number in each step.
    metric NUM_TOKENS = "num_tokens" { unit: Tokens, source: "TRL" }

    /// Seconds from the beginning of a step, when the learner begins to wait for groups, to its end. A checkpoint that
    /// the step writes is not counted.
    ///
    /// Follows `completions/mean_length`. The chart "Step time" says which part has grown.
    metric STEP_TIME = "step_time" { unit: Seconds, source: "TRL" }
}
