//! The configuration of a run: `run.toml`, with TRL's names and defaults.
//!
//! [`TrainConfig`] is flat, like TRL's `GRPOConfig`, and is the single place where an option is declared and described.
//! [`layers`] merges file and command line; [`TrainConfig::validate`] checks the result.

pub mod layers;
mod validate;

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{manifest::Dtype, sampling::SamplingParams};

/// How per-token losses become one number. TRL `loss_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum LossType {
    /// Mean over a sequence's tokens, then over sequences (DeepSeekMath eq. 3).
    Grpo,
    /// Mean over the tokens of the logical batch.
    Bnpo,
    /// Sum over tokens divided by (sequences × `max_completion_length`) (Dr. GRPO).
    DrGrpo,
    /// Sum over tokens divided by the tokens of the whole generation batch (DAPO eq. 8).
    #[default]
    Dapo,
}

/// Divisor of the centred rewards. TRL `scale_rewards`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ScaleRewards {
    /// The group's standard deviation (n − 1), plus 1e-4.
    #[default]
    Group,
    /// The whole batch's standard deviation, plus 1e-4.
    Batch,
    /// None: centred rewards as they are.
    None,
}

/// Learning-rate schedule. transformers `lr_scheduler_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum LrSchedulerType {
    /// The peak rate throughout.
    Constant,
    /// The peak rate after a linear warm-up.
    ConstantWithWarmup,
    /// Linear to 0 after a linear warm-up.
    #[default]
    Linear,
    /// Half a cosine to 0 after a linear warm-up.
    Cosine,
}

/// What happens to running sequences when new weights arrive (only with `max_staleness` above 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum WeightSwap {
    /// Running sequences finish on the weights they began with; new ones wait until the swap.
    #[default]
    Drain,
    /// Running sequences go on under the new weights with the keys and values they have; each token carries its
    /// version.
    Continue,
}

/// Where a process computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// Processor cores.
    #[default]
    Cpu,
    /// The first CUDA device.
    Cuda,
    /// TensorRT where it can take the graph, CUDA for the rest (sampler only).
    Tensorrt,
}

impl Device {
    /// The element type that the sampler's graph is exported in: single precision on the CPU, whose kernels have no
    /// other; half precision elsewhere, because GroupQueryAttention on CUDA (ONNX Runtime 1.31) decodes wrongly in
    /// single precision when the cache is extended in place.
    #[must_use]
    pub fn rollout_dtype(self) -> Dtype {
        match self {
            Self::Cpu => Dtype::Fp32,
            Self::Cuda | Self::Tensorrt => Dtype::Fp16,
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Tensorrt => "tensorrt",
        })
    }
}

/// Everything a run can be told. Field names are the keys of `run.toml` and of the command line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    // --- model and data ---
    /// Hugging Face model directory to start from. TRL `model_name_or_path`.
    #[serde(alias = "model_name_or_path")]
    pub model: PathBuf,
    /// Training prompts: a JSONL file with `prompt` (text or messages), or GSM8K's `question`/`answer`, or
    /// countdown's `nums`/`target`. TRL `dataset_name`.
    #[serde(alias = "dataset_name")]
    pub dataset: PathBuf,
    /// Evaluation prompts, in the same formats.
    pub eval_dataset: Option<PathBuf>,
    /// Where the run is written. TRL `output_dir`.
    pub output_dir: PathBuf,
    /// Put before the messages of every prompt as a system message (a plain text prompt becomes a user message then).
    pub system_prompt: Option<String>,
    /// Keep at most this many prompt tokens, from the end. `None` = all.
    pub max_prompt_length: Option<u32>,
    /// Draw the prompts in a seeded random order, a new one each epoch. TRL `shuffle_dataset`.
    pub shuffle_dataset: bool,

    // --- rewards ---
    /// Names of the reward functions; `rollout rewards` lists them. TRL `reward_funcs`.
    pub reward_funcs: Vec<String>,
    /// One weight per reward function; empty = all 1. TRL `reward_weights`.
    pub reward_weights: Vec<f64>,
    /// Seconds that one reward function may take for one completion before it counts as failed.
    pub reward_timeout: f64,

    // --- generation ---
    /// Completions per prompt (the group size G). TRL `num_generations`.
    pub num_generations: u32,
    /// Longest completion in tokens. TRL `max_completion_length`.
    pub max_completion_length: u32,
    /// Divides the logits. TRL `temperature`.
    pub temperature: f32,
    /// Nucleus sampling; 1 = off. TRL `top_p`.
    pub top_p: f32,
    /// Keep the k likeliest tokens; 0 = off. TRL `top_k`.
    pub top_k: u32,
    /// Drop tokens less likely than this times the likeliest; absent = off. TRL `min_p`.
    pub min_p: Option<f32>,
    /// Penalty on tokens already seen; 1 = off. TRL `repetition_penalty`.
    pub repetition_penalty: f32,
    /// Texts that end a completion.
    pub stop: Vec<String>,

    // --- batch and schedule ---
    /// Completions of one logical micro-batch. TRL `per_device_train_batch_size`.
    pub per_device_train_batch_size: u32,
    /// Logical micro-batches per optimiser update. TRL `gradient_accumulation_steps`.
    pub gradient_accumulation_steps: u32,
    /// Logical micro-batches per generation batch; absent = `gradient_accumulation_steps`. TRL
    /// `steps_per_generation`.
    pub steps_per_generation: Option<u32>,
    /// Completions per step; absent = `per_device_train_batch_size × steps_per_generation`. Rounded up to whole
    /// groups. TRL `generation_batch_size`.
    pub generation_batch_size: Option<u32>,
    /// Passes over the training prompts; `max_steps` wins. TRL `num_train_epochs`.
    pub num_train_epochs: f64,
    /// Number of steps (generation batches); absent = from `num_train_epochs`. TRL `max_steps`.
    pub max_steps: Option<u64>,
    /// Optimisation passes over each generation batch (μ). TRL `num_iterations`.
    pub num_iterations: u32,
    /// Most tokens (prompt and completion, padding included) that the learner holds in one forward pass. It bounds
    /// memory and never changes a gradient.
    pub micro_batch_tokens: u32,

    // --- objective ---
    /// How per-token losses are reduced. TRL `loss_type`.
    pub loss_type: LossType,
    /// What centred rewards are divided by. TRL `scale_rewards`.
    pub scale_rewards: ScaleRewards,
    /// Weight of the k3 KL penalty against the frozen starting policy; 0 = no reference model in memory. TRL `beta`.
    pub beta: f64,
    /// Multiply the KL estimate by the importance ratio, so that it stays unbiased over several updates. TRL
    /// `use_bias_correction_kl`.
    pub use_bias_correction_kl: bool,
    /// Clip range below (and above, without `epsilon_high`). TRL `epsilon`.
    pub epsilon: f64,
    /// Clip range above; absent = `epsilon`. TRL `epsilon_high`.
    pub epsilon_high: Option<f64>,
    /// Leave truncated completions out of the loss; they still count in the baseline. TRL
    /// `mask_truncated_completions`.
    pub mask_truncated_completions: bool,

    // --- optimiser ---
    /// Peak learning rate of AdamW. TRL `learning_rate`.
    pub learning_rate: f64,
    /// Schedule after the warm-up. TRL `lr_scheduler_type`.
    pub lr_scheduler_type: LrSchedulerType,
    /// Optimiser updates of linear warm-up; wins over `warmup_ratio`. TRL `warmup_steps`.
    pub warmup_steps: u64,
    /// Share of all updates spent warming up. TRL `warmup_ratio`.
    pub warmup_ratio: f64,
    /// AdamW β₁. TRL `adam_beta1`.
    pub adam_beta1: f64,
    /// AdamW β₂. TRL `adam_beta2`.
    pub adam_beta2: f64,
    /// AdamW ε. TRL `adam_epsilon`.
    pub adam_epsilon: f64,
    /// Decoupled weight decay on matrices. TRL `weight_decay`.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 = no clipping. TRL `max_grad_norm`.
    pub max_grad_norm: f64,

    // --- the pair ---
    /// How many versions behind the learner a group may have been sampled. 0 = synchronous and reproducible; larger
    /// values let generation and learning overlap.
    pub max_staleness: u64,
    /// What happens to running sequences when new weights arrive and `max_staleness` is above 0.
    pub weight_swap: WeightSwap,
    /// Device of the sampler.
    pub rollout_device: Device,
    /// Device of the learner.
    pub learner_device: Device,
    /// Threads of the sampler; absent = all cores when synchronous, half of them otherwise.
    pub rollout_threads: Option<usize>,
    /// Threads of the learner; absent = as for the sampler.
    pub learner_threads: Option<usize>,
    /// Sequences decoded at once. vLLM `max_num_seqs`; absent = the generation batch, as far as memory allows.
    pub max_num_seqs: Option<usize>,
    /// Tokens of one prefill call. vLLM `max_num_batched_tokens`.
    pub max_num_batched_tokens: usize,
    /// Longest prompt plus completion; absent = the model's limit, or what the dataset needs. vLLM `max_model_len`.
    pub max_model_len: Option<usize>,
    /// Seconds without any sign of life of the other process before a process gives up.
    pub peer_timeout: f64,
    /// How often the launcher restarts a process that died.
    pub max_restarts: u32,

    // --- bookkeeping ---
    /// Seed of everything random. TRL `seed`.
    pub seed: u64,
    /// Steps between checkpoints. TRL `save_steps`.
    pub save_steps: u64,
    /// Keep this many checkpoints, the oldest go; absent = all. TRL `save_total_limit`.
    pub save_total_limit: Option<u32>,
    /// Steps between evaluations on `eval_dataset`; absent = only when asked for. TRL `eval_steps`.
    pub eval_steps: Option<u64>,
    /// Steps between progress lines when not on a terminal. TRL `logging_steps`.
    pub logging_steps: u64,
    /// Write every step's completions to `completions/`. TRL `log_completions`.
    pub log_completions: bool,
    /// `latest`, or the path of a `checkpoint-N` to go on from. TRL `resume_from_checkpoint`.
    pub resume_from_checkpoint: Option<String>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        let sampling = SamplingParams::default();
        Self {
            model: PathBuf::new(),
            dataset: PathBuf::new(),
            eval_dataset: None,
            output_dir: PathBuf::from("runs/grpo"),
            system_prompt: None,
            max_prompt_length: None,
            shuffle_dataset: true,
            reward_funcs: Vec::new(),
            reward_weights: Vec::new(),
            reward_timeout: 10.0,
            num_generations: 8,
            max_completion_length: sampling.max_completion_length,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            stop: Vec::new(),
            per_device_train_batch_size: 8,
            gradient_accumulation_steps: 1,
            steps_per_generation: None,
            generation_batch_size: None,
            num_train_epochs: 3.0,
            max_steps: None,
            num_iterations: 1,
            micro_batch_tokens: 8192,
            loss_type: LossType::default(),
            scale_rewards: ScaleRewards::default(),
            beta: 0.0,
            use_bias_correction_kl: true,
            epsilon: 0.2,
            epsilon_high: None,
            mask_truncated_completions: false,
            learning_rate: 1e-6,
            lr_scheduler_type: LrSchedulerType::default(),
            warmup_steps: 0,
            warmup_ratio: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
            max_staleness: 0,
            weight_swap: WeightSwap::default(),
            rollout_device: Device::default(),
            learner_device: Device::default(),
            rollout_threads: None,
            learner_threads: None,
            max_num_seqs: None,
            max_num_batched_tokens: 8192,
            max_model_len: None,
            peer_timeout: 300.0,
            max_restarts: 3,
            seed: 42,
            save_steps: 500,
            save_total_limit: None,
            eval_steps: None,
            logging_steps: 1,
            log_completions: true,
            resume_from_checkpoint: None,
        }
    }
}

/// A configuration that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {message}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// A key that does not exist.
    #[error("unknown option `{key}` ({origin}){}", suggestion.as_ref().map(|s| format!("; did you mean `{s}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key.
        key: String,
        /// File or command line.
        origin: String,
        /// The nearest known key.
        suggestion: Option<String>,
    },
    /// A value that is out of range or does not fit another option.
    #[error("{0}")]
    Value(String),
}

impl TrainConfig {
    /// The sampling parameters.
    #[must_use]
    pub fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            max_completion_length: self.max_completion_length,
            stop: self.stop.clone(),
            ignore_eos: false,
            seed: self.seed,
        }
    }

    /// Groups per step: the generation batch in whole groups, rounded up.
    #[must_use]
    pub fn groups_per_step(&self) -> u32 {
        let steps = self.steps_per_generation.unwrap_or(self.gradient_accumulation_steps);
        let completions = self.generation_batch_size.unwrap_or(self.per_device_train_batch_size.saturating_mul(steps));
        completions.div_ceil(self.num_generations)
    }

    /// Completions per step.
    #[must_use]
    pub fn completions_per_step(&self) -> u32 {
        self.groups_per_step() * self.num_generations
    }

    /// Optimiser updates per step.
    #[must_use]
    pub fn updates_per_step(&self) -> u64 {
        let per_update = self.per_device_train_batch_size.saturating_mul(self.gradient_accumulation_steps);
        u64::from(self.completions_per_step().div_ceil(per_update)) * u64::from(self.num_iterations)
    }

    /// Steps of the run, given the number of training prompts.
    #[must_use]
    pub fn total_steps(&self, prompts: u64) -> u64 {
        self.max_steps.unwrap_or_else(|| {
            let per_epoch = prompts as f64 / f64::from(self.groups_per_step());
            ((per_epoch * self.num_train_epochs).ceil() as u64).max(1)
        })
    }

    /// Weight of each reward function.
    #[must_use]
    pub fn weighted_rewards(&self) -> Vec<(String, f64)> {
        self.reward_funcs
            .iter()
            .enumerate()
            .map(|(i, name)| (name.clone(), self.reward_weights.get(i).copied().unwrap_or(1.0)))
            .collect()
    }

    /// Threads of (sampler, learner) on a machine with `cores` cores.
    #[must_use]
    pub fn threads(&self, cores: usize) -> (usize, usize) {
        let share = if self.max_staleness == 0 { cores } else { (cores / 2).max(1) };
        (self.rollout_threads.unwrap_or(share), self.learner_threads.unwrap_or(share))
    }
}
