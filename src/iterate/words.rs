//! Command lines of the two tools that a round calls.
//!
//! Values and spellings come from the declaration of the options; this file names the options that each tool is given.
//! Two things are not in the declaration: the tools' own flags, and the decision of `tandem iterate` to sample
//! comparisons as in training, but with a seed of their own and without a trace.

use std::path::Path;

use shared::config::TrainConfig;

use crate::programs::tool::Words;

/// Keeps the random numbers of the comparisons apart from those of the training steps.
const SEEDS_OF_A_ROUND: u64 = 1_000_003;

/// Options that `rollout generate` has under the same name.
const OF_SAMPLING: [&str; 34] = [
    "system_prompt",
    "chat_template",
    "chat_template_kwargs",
    "max_prompt_length",
    "prompt_column",
    "answer_column",
    "reward_timeout",
    "reward_python",
    "reward_processes",
    "reward_network",
    "reward_env",
    "reward_writable",
    "reward_memory",
    "reward_cpu",
    "reward_max_processes",
    "reward_file_size",
    "reward_disk",
    "judge_base_url",
    "judge_model",
    "judge_api_key_env",
    "num_generations",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop",
    "rollout_dtype",
    "kv_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "speculative_tokens",
];

/// `rollout generate`: samples the policy's completions that are compared, as in training.
pub fn of_sampling(
    config: &TrainConfig,
    policy: &Path,
    prompts: &Path,
    output: &Path,
    judge: &str,
    round: u32,
) -> Words {
    let words = Words::of("generate")
        .with("model", policy.display())
        .with("prompts", prompts.display())
        .with("output", output.display())
        .with("reward-funcs", judge)
        .with("seed", config.seed.wrapping_add(u64::from(round) * SEEDS_OF_A_ROUND))
        .with_option(config, "device", "rollout_device")
        .with_option(config, "kernels", "rollout_kernels")
        .with_option(config, "threads", "rollout_threads");
    OF_SAMPLING.iter().fold(words, |words, key| words.with_option(config, key, key))
}

/// `learner reward-model`: the reward model of a round, trained further.
pub fn of_reward_model(config: &TrainConfig, model: &Path, pairs: &Path, output: &Path, round: u32) -> Words {
    Words::of("reward-model")
        .with("model", model.display())
        .with("pairs", pairs.display())
        .with("output", output.display())
        .with("seed", config.seed.wrapping_add(u64::from(round)))
        .with_option(config, "device", "learner_device")
        .with_option(config, "threads", "learner_threads")
        .with_option(config, "micro_batch_tokens", "micro_batch_tokens")
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
            assert!(words.0.iter().any(|given| given == word), "{word} is missing in {words:?}");
        }
    }

    const PATHS: [&str; 3] = ["in", "rows", "out"];

    #[test]
    fn completions_are_sampled_for_comparison_as_they_are_in_training() {
        let given = "--max_prompt_length=100 --reward_timeout=2.5 --num_generations=4 --max_completion_length=20 \
            --temperature=0.5 --top_p=0.75 --top_k=7 --min_p=0.125 --repetition_penalty=1.5 --rollout_device=cuda \
            --rollout_kernels=stock --rollout_dtype=int8 --kv_dtype=int8 --rollout_threads=3 --max_num_seqs=5 \
            --max_num_batched_tokens=64 --max_model_len=80 --speculative_tokens=2 --seed=1";
        let mut config = config(given);
        config.stop = vec!["--".into(), "\n\n".into()];
        config.system_prompt = Some("- Be brief".into());
        config.answer_column = Some("extra.answer".into());
        config.chat_template = Some("short.jinja".into());
        config.chat_template_kwargs = Some("{\"enable_thinking\": false}".parse().unwrap());
        let [policy, prompts, output] = PATHS.map(Path::new);
        let words = of_sampling(&config, policy, prompts, output, "correctness", 2);
        has_all(&words, "generate --model=in --prompts=rows --output=out --reward-funcs=correctness --seed=2000007");
        let seedless = given.replace(" --seed=1", "").replace("--rollout_dtype", "--dtype");
        let flags = seedless.replace("rollout_", "").replace('_', "-").replace("--dtype", "--rollout-dtype");
        has_all(&words, &flags);
        for word in [
            "--stop=--",
            "--stop=\n\n",
            "--system-prompt=- Be brief",
            "--answer-column=extra.answer",
            "--chat-template=short.jinja",
        ] {
            assert!(words.0.iter().any(|given| given == word), "{word:?} is missing in {words:?}");
        }
        has_all(&words, "--chat-template-kwargs={\"enable_thinking\":false}");
    }

    #[test]
    fn what_is_absent_is_left_to_the_tools() {
        let [policy, prompts, output] = PATHS.map(Path::new);
        let words = of_sampling(&TrainConfig::default(), policy, prompts, output, "format", 1);
        for flag in ["min-p", "stop", "threads", "max-model-len", "max-num-seqs", "system-prompt"] {
            let begin = format!("--{flag}=");
            assert!(!words.0.iter().any(|word| word.starts_with(&begin)), "{flag} is among {words:?}");
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
