//! The list of the checks, and the bounds of their figures.

use anyhow::{Result, bail};

/// A comparison with another program.
#[derive(Debug)]
pub struct Check {
    /// Its name on the command line and on the page.
    pub name: &'static str,
    /// The other program, and the part of it that is compared.
    pub rival: &'static str,
    /// The subject of the comparison.
    pub about: &'static str,
    /// Figures that its script reports, each with a bound.
    pub figures: &'static [Figure],
}

/// A number that is 0 if both programs agree.
#[derive(Debug)]
pub struct Figure {
    /// Its key in the answer of the script.
    pub key: &'static str,
    /// Its meaning.
    pub about: &'static str,
    /// The largest value that passes.
    pub bound: f64,
}

impl Check {
    /// The script, from the root of the workspace.
    pub fn script(&self) -> String {
        format!("tests/conformity/{}.py", self.name.replace('-', "_"))
    }
}

const fn figure(key: &'static str, about: &'static str, bound: f64) -> Figure {
    Figure { key, about, bound }
}

/// All checks, in the order in which they run.
///
/// Log-probs of two float32 programs may differ by 1e-4, as between sampler and learner of a run; after updates by
/// twice that, since AdamW turns the rounding error of a gradient near 0 into a share of the learning rate. For golden
/// figures that are recomputed, the bounds of tests/golden/README.md hold: 1e-9 for float64, 1e-5 for float32, and 1e-6
/// for metrics. Weights after three steps of AdamW are compared by the error of the gradients that would explain their
/// difference: 1e-5 of the largest entry, as for float32 there. Their own distance has no bound that means anything: a
/// weight with a gradient near 0 may be a whole step away.
pub const CHECKS: &[Check] = &[
    Check {
        name: "golden-models",
        rival: "transformers, torch",
        about: "`model_numerics.json` and its models: forward passes, a greedy continuation, entropies and three \
                training steps, by the functions of `model_numerics.py`, which also makes two of the models anew",
        figures: &[
            figure("figure", "largest difference of a figure", 1e-5),
            figure(
                "weight",
                "largest difference of a weight, over that which an error of the gradients of 1e-5 explains",
                1.0,
            ),
        ],
    },
    Check {
        name: "golden-adapter",
        rival: "PEFT",
        about: "`adapter.json` and its adapter, by `adapter.py`",
        figures: &[
            figure("figure", "largest difference of a figure", 1e-5),
            figure("weight", "largest difference of a weight", 1e-6),
        ],
    },
    Check {
        name: "golden-schedules",
        rival: "transformers, `optimization.py`",
        about: "`schedules.json`, by `schedules.py`",
        figures: &[figure("rate", "largest difference of a rate, as a share of the peak", 1e-9)],
    },
    Check {
        name: "golden-sampling",
        rival: "transformers, logits processors",
        about: "`sampling.json`: what temperature, top-k, top-p, min-p and the repetition penalty leave of a \
                distribution",
        figures: &[
            figure("kept", "distributions that keep other tokens", 0.0),
            figure("logprob", "largest difference of a probability or log-prob", 1e-9),
        ],
    },
    Check {
        name: "trl-loss",
        rival: "TRL, `GRPOTrainer._compute_loss`",
        about: "`trl_policy_loss.json`: loss, gradient and metrics of every loss type that TRL has",
        figures: &[
            figure("loss", "largest difference of a loss", 1e-9),
            figure("gradient", "largest difference of a derivative", 1e-9),
            figure("metric", "largest difference of a metric", 1e-6),
        ],
    },
    Check {
        name: "trl-defaults",
        rival: "TRL, `GRPOConfig`",
        about: "`trl_1.16_defaults.json` and `tandem_rl`: the defaults of all options",
        figures: &[figure("default", "options with another default", 0.0)],
    },
    Check {
        name: "trl-rewards",
        rival: "TRL, `trl.rewards`",
        about: "`overlong_punishment.json` and `repetition_penalty_reward.json`",
        figures: &[figure("reward", "largest difference of a reward", 1e-9)],
    },
    Check {
        name: "checkpoint",
        rival: "transformers",
        about: "checkpoints of a run, of every family: transformers opens them, and completes prompts as \
                `tandem generate` does and scores completions as `tandem logprobs` does",
        figures: &[
            figure("logprob", "largest difference of a log-prob", 1e-4),
            figure("greedy", "greedy tokens that differ", 0.0),
        ],
    },
    Check {
        name: "adapter",
        rival: "PEFT",
        about: "LoRA checkpoints of a run, of every family: PEFT opens and merges them, and transformers opens what \
                `tandem merge` makes of them",
        figures: &[
            figure("logprob", "largest difference of a log-prob", 1e-4),
            figure("merged_logprob", "the same of the merged model", 1e-4),
            figure("merged_weight", "largest difference of a merged weight", 1e-6),
        ],
    },
    Check {
        name: "onnx-graph",
        rival: "onnxruntime, onnx",
        about: "the `model.onnx` of checkpoints, of every family, in plain Python: log-probs token by token, with the \
                keys and values of each call given to the next",
        figures: &[figure("logprob", "largest difference of a log-prob", 1e-4)],
    },
    Check {
        name: "genai",
        rival: "onnxruntime-genai, onnxruntime; transformers",
        about: "folders for ONNX Runtime GenAI in fp32, fp16, int8 and int4, of every family: it continues prompts and \
                scores completions, ONNX Runtime's quantiser makes the same blocks of the weights, and transformers \
                with these blocks and inputs in 8 bits gives the same log-probs as the folders of integers",
        figures: &[
            figure("logprob", "largest difference of a log-prob in fp32", 1e-4),
            figure("fp16_logprob", "the same in fp16", 3e-2),
            figure("int8_logprob", "the same in int8", 1.0),
            figure("int4_logprob", "the same in int4", 5.0),
            figure("int8_rounded", "the same in int8, from transformers with the same rounding", 0.2),
            figure("int4_rounded", "the same in int4, from transformers with the same rounding", 0.2),
            figure("moved", "share of completions beyond 1e-3 in int8 and int4: an input rounds the other way", 0.25),
            figure("greedy", "greedy tokens that differ in fp32", 0.0),
            figure("page", "texts of the lines in docs/exporting-genai.md that differ in fp32", 0.0),
            figure("blocks", "weights whose blocks are not those of ONNX Runtime's quantiser", 0.0),
        ],
    },
    Check {
        name: "llama-cpp",
        rival: "llama.cpp, xllamacpp",
        about: "GGUF files in fp32, of every family but LFM3, two of them with YaRN: it continues prompts and scores \
                completions",
        figures: &[
            figure("logprob", "largest difference of a log-prob", 1e-4),
            figure("table_logprob", "mean difference in Gemma, whose GELU llama.cpp takes from a table in fp16", 2e-3),
            figure("greedy", "greedy completions that differ", 0.0),
        ],
    },
    Check {
        name: "serve",
        rival: "lm-eval, `local-completions`",
        about: "`tandem serve`, asked by lm-eval with tasks of its own over local rows: its log-likelihoods are those \
                of `tandem logprobs`, greedy flags and texts those of `tandem generate`; stories260K, and random \
                weights over the tokenizer of Qwen2.5",
        figures: &[
            figure("likelihood", "largest difference of a log-likelihood", 1e-4),
            figure("greedy", "greedy flags that differ", 0.0),
            figure("text", "texts that differ", 0.0),
            figure("ids", "texts with other token ids", 0.0),
        ],
    },
    Check {
        name: "chat-templates",
        rival: "transformers, with TRL's templates",
        about: "every chat template that TRL ships, with system messages, several turns, tools and switches: token \
                ids of prompts, and what is refused",
        figures: &[figure("prompt", "prompts that differ", 0.0)],
    },
    Check {
        name: "grpo",
        rival: "TRL, `GRPOTrainer`",
        about: "a step of `tandem train`, two updates with clipped ratios, and the same by TRL from the same \
                completions and rewards, with every loss type that TRL has",
        figures: &[
            figure("loss", "largest difference of the mean loss of the updates", 1e-5),
            figure("norm", "largest relative difference of the mean gradient norm", 1e-5),
            figure("logprob", "largest difference of a log-prob afterwards", 2e-4),
        ],
    },
    Check {
        name: "sft",
        rival: "TRL, `SFTTrainer`",
        about: "`tandem sft`: three updates on the same rows, of every family",
        figures: &[
            figure("loss", "largest difference of the last update's loss", 1e-5),
            figure(
                "exact_loss",
                "largest distance of the last update's loss from double precision, over 1e-5 or three times TRL's, \
                 where that is more",
                1.0,
            ),
            figure("logprob", "largest difference of a log-prob afterwards", 2e-4),
        ],
    },
    Check {
        name: "reward-model",
        rival: "TRL, `RewardTrainer`; transformers",
        about: "reward models, of every family: transformers opens them and scores as `tandem score` does, and \
                `tandem reward-model` trains on the same pairs to the same scores",
        figures: &[
            figure("score", "largest difference of a score", 1e-5),
            figure("trained_score", "the same after three more updates", 1e-4),
        ],
    },
];

/// The checks of these names, in the order of the list; all if no names are given.
///
/// # Errors
/// When there is no check of a name.
pub fn chosen(names: &[String]) -> Result<Vec<&'static Check>> {
    if let Some(unknown) = names.iter().find(|name| CHECKS.iter().all(|check| check.name != name.as_str())) {
        let known: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        bail!("no check is called {unknown}; there are {}", known.join(", "));
    }
    Ok(CHECKS.iter().filter(|check| names.is_empty() || names.iter().any(|name| name == check.name)).collect())
}

/// The output of `--list`: each check, the program that it compares with, and the subject.
pub fn list() -> String {
    let line = |check: &Check| format!("{:<18}{:<34}{}\n", check.name, check.rival, check.about);
    CHECKS.iter().map(line).collect()
}
