//! Command lines of the two tools that a round calls, with the options of the run that they have a flag for.

use std::{fmt::Display, path::Path};

use serde::Serialize;
use shared::config::TrainConfig;

/// Keeps the draws of the comparisons apart from those of the training steps.
const SEEDS_OF_A_ROUND: u64 = 1_000_003;

/// Words of a command line.
#[derive(Debug)]
pub struct Words(Vec<String>);

impl Words {
    fn of(subcommand: &str) -> Self {
        Self(vec![subcommand.to_owned()])
    }

    /// Adds a flag and its value, in one word: a value may begin with a dash.
    pub fn push(&mut self, flag: &str, value: impl Display) {
        self.0.push(format!("--{flag}={value}"));
    }

    fn push_all<T: Display>(&mut self, flag: &str, values: impl IntoIterator<Item = T>) {
        values.into_iter().for_each(|value| self.push(flag, value));
    }

    /// A choice, as it is written in `run.toml`.
    fn push_choice(&mut self, flag: &str, choice: impl Serialize) {
        let name = serde_json::to_value(choice).expect("a choice has a name");
        self.push(flag, name.as_str().expect("a choice is written as a word"));
    }

    /// The words one by one.
    pub fn list(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

/// `rollout generate`: what the policy says to the prompts whose completions are compared, as it would in training.
pub fn of_sampling(
    config: &TrainConfig,
    policy: &Path,
    prompts: &Path,
    output: &Path,
    judge: &str,
    round: u32,
) -> Words {
    let mut words = Words::of("generate");
    words.push("model", policy.display());
    words.push("prompts", prompts.display());
    words.push("output", output.display());
    words.push_all("system-prompt", &config.system_prompt);
    words.push_all("max-prompt-length", config.max_prompt_length);
    words.push("reward-funcs", judge);
    words.push("reward-timeout", config.reward_timeout);

    words.push("num-generations", config.num_generations);
    words.push("max-completion-length", config.max_completion_length);
    words.push("temperature", config.temperature);
    words.push("top-p", config.top_p);
    words.push("top-k", config.top_k);
    words.push_all("min-p", config.min_p);
    words.push("repetition-penalty", config.repetition_penalty);
    words.push_all("stop", &config.stop);
    words.push("seed", config.seed + u64::from(round) * SEEDS_OF_A_ROUND);

    words.push_choice("device", config.rollout_device);
    words.push_choice("kernels", config.rollout_kernels);
    words.push_choice("rollout-dtype", config.rollout_dtype);
    words.push_choice("kv-dtype", config.kv_dtype);
    words.push_all("threads", config.rollout_threads);
    words.push_all("max-num-seqs", config.max_num_seqs);
    words.push("max-num-batched-tokens", config.max_num_batched_tokens);
    words.push_all("max-model-len", config.max_model_len);
    words.push("speculative-tokens", config.speculative_tokens);
    words
}

/// `learner reward-model`: the reward model of a round, trained further.
pub fn of_reward_model(config: &TrainConfig, model: &Path, pairs: &Path, output: &Path, round: u32) -> Words {
    let mut words = Words::of("reward-model");
    words.push("model", model.display());
    words.push("pairs", pairs.display());
    words.push("output", output.display());
    words.push("seed", config.seed + u64::from(round));
    words.push_choice("device", config.learner_device);
    words.push_all("threads", config.learner_threads);
    words.push("micro-batch-tokens", config.micro_batch_tokens);
    words
}

#[cfg(test)]
mod tests {
    use shared::config::layers;

    use super::*;

    fn config(text: &str) -> TrainConfig {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        layers::load(None, &layers::parse_overrides(&words).unwrap()).unwrap()
    }

    fn has_all(words: &Words, wanted: &str) {
        for word in wanted.split(' ') {
            assert!(words.list().contains(&word), "{word} is missing in {words:?}");
        }
    }

    const PATHS: [&str; 3] = ["in", "rows", "out"];

    #[test]
    fn completions_are_sampled_for_comparison_as_they_are_in_training() {
        let given = "--max_prompt_length=100 --reward_timeout=3 --num_generations=4 --max_completion_length=20 --temperature=0.5 \
                     --top_p=0.75 --top_k=7 --min_p=0.125 --repetition_penalty=1.5 --rollout_device=cuda --rollout_kernels=stock \
                     --rollout_dtype=int8 --kv_dtype=int8 --rollout_threads=3 --max_num_seqs=5 --max_num_batched_tokens=64 \
                     --max_model_len=80 --speculative_tokens=2 --seed=1";
        let mut config = config(given);
        config.stop = vec!["--".into(), "\n\n".into()];
        config.system_prompt = Some("- Be brief".into());
        let [policy, prompts, output] = PATHS.map(Path::new);
        let words = of_sampling(&config, policy, prompts, output, "correctness", 2);
        has_all(&words, "generate --model=in --prompts=rows --output=out --reward-funcs=correctness --seed=2000007");
        let seedless = given.replace(" --seed=1", "").replace("--rollout_dtype", "--dtype");
        let flags = seedless.replace("rollout_", "").replace('_', "-").replace("--dtype", "--rollout-dtype");
        has_all(&words, &flags);
        for word in ["--stop=--", "--stop=\n\n", "--system-prompt=- Be brief"] {
            assert!(words.list().contains(&word), "{word:?} is missing in {words:?}");
        }
    }

    #[test]
    fn what_is_absent_is_left_to_the_tools() {
        let [policy, prompts, output] = PATHS.map(Path::new);
        let words = of_sampling(&TrainConfig::default(), policy, prompts, output, "format", 1);
        for flag in ["min-p", "stop", "threads", "max-model-len", "max-num-seqs", "system-prompt"] {
            let begin = format!("--{flag}=");
            assert!(!words.list().iter().any(|word| word.starts_with(&begin)), "{flag} is among {words:?}");
        }
    }

    #[test]
    fn the_reward_model_is_trained_where_and_as_the_learner_is() {
        let config = config("--learner_device=cuda --learner_threads=3 --micro_batch_tokens=512 --seed=5");
        let [model, pairs, output] = PATHS.map(Path::new);
        let words = of_reward_model(&config, model, pairs, output, 2);
        has_all(&words, "reward-model --model=in --pairs=rows --output=out --seed=7");
        has_all(&words, "--device=cuda --threads=3 --micro-batch-tokens=512");
    }
}
