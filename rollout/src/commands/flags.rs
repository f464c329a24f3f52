//! Flags that several subcommands share. Each has an environment twin `TANDEM_<FLAG>`; the flag wins.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use rollout_rewards::{RewardFunction, RewardPool};
use serde::de::{DeserializeOwned, IntoDeserializer, value};
use shared::{
    ModelDir, SamplingParams,
    config::{Device, KvDtype, RolloutDtype},
};

use super::rows::check_writable;
use crate::{
    data::{Dataset, PromptOptions, Tokenizer},
    engine::types::{EngineOptions, Kernels},
    reward, trace,
};

/// How tokens are drawn. Names and defaults are TRL's.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Divides the logits: lower is safer and more alike, higher more varied; 0 takes the likeliest token (greedy)
    #[arg(long, env = "TANDEM_TEMPERATURE", value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Draw from the K likeliest tokens only: fewer slips, less variety; 0 = off
    #[arg(long, env = "TANDEM_TOP_K", value_name = "K", default_value_t = SamplingParams::default().top_k)]
    pub top_k: u32,
    /// Draw from the smallest set of tokens that holds this probability: cuts the unlikely tail; 1 = off
    #[arg(long, env = "TANDEM_TOP_P", value_name = "P", default_value_t = SamplingParams::default().top_p)]
    pub top_p: f32,
    /// Drop tokens less likely than P times the likeliest: a cut that adapts to how sure the model is
    #[arg(long, env = "TANDEM_MIN_P", value_name = "P")]
    pub min_p: Option<f32>,
    /// Make tokens that have appeared less likely: fewer loops, but also fewer rightful repeats; 1 = off
    #[arg(long, env = "TANDEM_REPETITION_PENALTY", value_name = "R",
          default_value_t = SamplingParams::default().repetition_penalty)]
    pub repetition_penalty: f32,
    /// Most tokens of a completion: time and memory grow with it, and what is longer is cut off
    #[arg(long, env = "TANDEM_MAX_COMPLETION_LENGTH", value_name = "N",
          default_value_t = SamplingParams::default().max_completion_length)]
    pub max_completion_length: u32,
    /// End a completion when its text contains this, which saves the tokens that would follow; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Seed of the sampling: the same seed gives the same completions whatever the batch size or number of threads
    #[arg(long, env = "TANDEM_SEED", value_name = "N", default_value_t = SamplingParams::default().seed)]
    pub seed: u64,
}

impl SamplingFlags {
    /// The sampling parameters; `temperature` is what holds without `--temperature`.
    ///
    /// # Errors
    /// A value out of range, by the name of its flag.
    pub fn params(&self, temperature: f32) -> anyhow::Result<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(temperature),
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            max_completion_length: self.max_completion_length,
            stop: self.stop.clone(),
            ignore_eos: false,
            seed: self.seed,
        };
        ensure!(params.stop.iter().all(|s| !s.is_empty()), "--stop must not be empty");
        params.validate().map_err(|message| anyhow::anyhow!(as_flag(&message)))?;
        Ok(params)
    }
}

/// `top_p must be …` as `--top-p must be …`.
fn as_flag(message: &str) -> String {
    match message.split_once(' ') {
        Some((name, rest)) => format!("--{} {rest}", name.replace('_', "-")),
        None => message.to_owned(),
    }
}

/// Sizes and resources of the engine. Names are vLLM's. No size changes a token of a completion, but for
/// `max_model_len`, which may cut it short, and `prefill_batch`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Batching")]
pub struct BatchingFlags {
    /// Sequences decoded at once: more is faster in total, but each takes longer and needs memory for its keys and
    /// values [default: all of them, at most 64, as far as memory allows]
    #[arg(long, env = "TANDEM_MAX_NUM_SEQS", value_name = "N")]
    pub max_num_seqs: Option<usize>,
    /// Prompt tokens prefilled between two decode steps: more fills free places sooner, less keeps running sequences
    /// waiting less. A longer prompt is computed in pieces while sequences run; with the stock kernels, as a whole
    /// [default: 8192]
    #[arg(long, env = "TANDEM_MAX_NUM_BATCHED_TOKENS", value_name = "N")]
    pub max_num_batched_tokens: Option<usize>,
    /// Prompts prefilled in one call, padded to the longest: fewer calls, which should pay on devices, but a place in the KV
    /// cache for each, and on the CPU log-probs whose last digits depend on which prompts met. With the stock kernels; not
    /// yet run on a GPU
    #[arg(long, env = "TANDEM_PREFILL_BATCH", value_name = "N", default_value_t = 1)]
    pub prefill_batch: usize,
    /// Longest prompt plus completion, for which each sequence reserves memory [default: what the longest prompt and
    /// completion need, within the model's limit]
    #[arg(long, env = "TANDEM_MAX_MODEL_LEN", value_name = "N")]
    pub max_model_len: Option<usize>,
    /// Most tokens that are computed ahead of a sequence in one step, guessed from its prompt and its group: saves steps
    /// while few sequences run and completions repeat each other, costs the work of wrong guesses, which are not made where
    /// they were seen not to pay; changes no completion; 0 = off
    #[arg(long, env = "TANDEM_SPECULATIVE_TOKENS", value_name = "N", default_value_t = 0)]
    pub speculative_tokens: usize,
    /// Threads of the engine: as many as there are cores free for it; more take each other's time [default: all cores]
    #[arg(long, env = "TANDEM_THREADS", value_name = "N")]
    pub threads: Option<usize>,
    /// Where the model runs: cpu (fp32, bit for bit the same everywhere), cuda (fp16, many times faster; needs ONNX
    /// Runtime's CUDA build) or tensorrt (compiles what it can of the graph, which takes minutes for new weights, and leaves
    /// the rest to CUDA; not yet run on a GPU)
    #[arg(long, env = "TANDEM_DEVICE", value_name = "DEVICE", default_value = "cpu", value_parser = parse_choice::<Device>)]
    pub device: Device,
    /// What computes the model on the CPU: packed (this program's operators, fp32: faster, prompts held once for all
    /// their completions, new weights in use sooner) or stock (ONNX Runtime's, to compare with); completions of the two
    /// differ by rounding [default: packed]
    #[arg(long, env = "TANDEM_KERNELS", value_name = "KERNELS", value_parser = parse_choice::<Kernels>)]
    pub kernels: Option<Kernels>,
    /// What the linear layers compute in, with the packed kernels: auto (the exported type), int8 (a quarter of the
    /// memory and several times faster with VNNI or AMX; log-probs are those of the rounded model), bf16 (half of the
    /// memory and faster with AMX; closer to fp32 than int8) or bf16x3 (the memory of fp32, log-probs within some 1e-4
    /// of it; faster with AMX and many sequences)
    #[arg(long, env = "TANDEM_ROLLOUT_DTYPE", value_name = "DTYPE", default_value = "auto",
          value_parser = parse_choice::<RolloutDtype>)]
    pub rollout_dtype: RolloutDtype,
    /// What keys and values are stored as, with the packed kernels: auto (the exported type) or int8 (a quarter of the
    /// memory and faster with long contexts; log-probs are those of attention over the rounded keys and values)
    #[arg(long, env = "TANDEM_KV_DTYPE", value_name = "DTYPE", default_value = "auto",
          value_parser = parse_choice::<KvDtype>)]
    pub kv_dtype: KvDtype,
    /// Logits of a row that are fetched from the device to draw a token, which needs a few blocks of them; a row whose distribution
    /// needs more (a flat distribution with --top-p, --repetition-penalty) is fetched whole. More covers flatter ones,
    /// fewer fetch less; the completions are the same. 0 fetches everything always. With the stock kernels; not yet
    /// run on a GPU, where 8192 is worth a try
    #[arg(long, env = "TANDEM_CANDIDATES", value_name = "N", default_value_t = 0)]
    pub candidates: usize,
    /// Record decode steps as CUDA graphs and replay them: saves the launches of small models and few sequences, costs
    /// padding to the next of a few batch sizes, attention laid out for --max-model-len, and a moment for each size at its
    /// first use. With --device cuda; not yet run on a GPU
    #[arg(long, env = "TANDEM_CUDA_GRAPHS", value_parser = clap::builder::BoolishValueParser::new())]
    pub cuda_graphs: bool,
}

/// The timeline.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceFlags {
    /// Write a timeline of prefill, decode steps, sampling, rewards and swaps of weights, which https://ui.perfetto.dev
    /// opens: costs a few events a step and at most 40 MB, for which only the newest events are kept
    #[arg(long, env = "TANDEM_TRACE", value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

impl TraceFlags {
    /// Starts the recording if it is wanted.
    ///
    /// # Errors
    /// When the file could not be written in the end.
    pub fn start(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.trace {
            check_writable("--trace", path)?;
            trace::start();
        }
        Ok(())
    }

    /// Writes the recording.
    ///
    /// # Errors
    /// With the path.
    pub fn write(&self) -> anyhow::Result<()> {
        if let Some(path) = &self.trace {
            let dropped = trace::write(path).context("--trace")?;
            if dropped > 0 {
                tracing::warn!(dropped, "--trace keeps the newest events; the first ones are not in the file");
            }
        }
        Ok(())
    }
}

/// Sequences decoded at once when the user does not say: beyond this a processor gains little.
const DEFAULT_MAX_NUM_SEQS: usize = 64;
/// Prompt tokens between two decode steps when the user does not say.
const DEFAULT_MAX_NUM_BATCHED_TOKENS: usize = 8192;

impl BatchingFlags {
    /// The number of threads.
    ///
    /// # Errors
    /// When `--threads` is 0.
    pub fn threads(&self) -> anyhow::Result<usize> {
        ensure!(self.threads != Some(0), "--threads must be at least 1");
        Ok(self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)))
    }

    /// Engine options for `sequences` completions that need at most `tokens` tokens each, prompt included, on a model
    /// that takes `model_limit`. `max_num_seqs` is still to be fitted to the memory if the user did not set it.
    ///
    /// # Errors
    /// A size of 0, by the name of its flag.
    pub fn engine_options(&self, sequences: usize, tokens: usize, model_limit: usize) -> anyhow::Result<EngineOptions> {
        for (flag, value) in [
            ("--max-num-seqs", self.max_num_seqs),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
            ("--prefill-batch", Some(self.prefill_batch)),
            ("--max-model-len", self.max_model_len),
        ] {
            ensure!(value != Some(0), "{flag} must be at least 1");
        }
        ensure!(!self.cuda_graphs || self.device == Device::Cuda, "--cuda-graphs needs --device cuda");
        if let Some(wanted) = self.max_model_len.filter(|&n| n > model_limit) {
            bail!("--max-model-len {wanted} is beyond the model's limit of {model_limit} (max_position_embeddings)");
        }
        Ok(EngineOptions {
            device: self.device,
            kernels: self.kernels.unwrap_or(Kernels::Packed),
            rollout_dtype: self.rollout_dtype,
            kv_dtype: self.kv_dtype,
            threads: self.threads()?,
            max_num_seqs: self.max_num_seqs.unwrap_or_else(|| sequences.clamp(1, DEFAULT_MAX_NUM_SEQS)),
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or(DEFAULT_MAX_NUM_BATCHED_TOKENS),
            speculative_tokens: self.speculative_tokens,
            prefill_batch: self.prefill_batch,
            max_model_len: self.max_model_len.unwrap_or_else(|| tokens.min(model_limit)),
            candidates: self.candidates,
            cuda_graphs: self.cuda_graphs,
            // These subcommands have the machine to themselves and keep their weights.
            spinning: true,
            hot_swap: false,
        })
    }
}

/// A choice by its name in `run.toml`.
///
/// # Errors
/// The names there are.
fn parse_choice<T: DeserializeOwned>(name: &str) -> Result<T, String> {
    T::deserialize(name.into_deserializer()).map_err(|e: value::Error| e.to_string())
}

/// The model and how prompts are made for it.
#[derive(Debug, Clone, clap::Args)]
pub struct PromptFlags {
    /// Hugging Face model directory (config.json, model.safetensors, tokenizer.json)
    #[arg(long, env = "TANDEM_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// System message put before every prompt, whose tokens are prefilled with each; a plain text prompt becomes a user
    /// message then
    #[arg(long, env = "TANDEM_SYSTEM_PROMPT", value_name = "TEXT")]
    pub system_prompt: Option<String>,
    /// Keep at most this many tokens of a prompt, from its end: bounds time and memory, loses the beginning
    #[arg(long, env = "TANDEM_MAX_PROMPT_LENGTH", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_prompt_length: Option<u32>,
    /// Take only the first N prompts: less work, and a less certain figure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

impl PromptFlags {
    /// Opens the model directory.
    ///
    /// # Errors
    /// With the path.
    pub fn model(&self) -> anyhow::Result<ModelDir> {
        ModelDir::open(&self.model).context("--model")
    }

    /// Reads a file of prompts.
    ///
    /// # Errors
    /// With the path, and with the line of a bad row.
    pub fn dataset(&self, path: &Path, tokenizer: &Tokenizer) -> anyhow::Result<Dataset> {
        let options =
            PromptOptions { system_prompt: self.system_prompt.clone(), max_prompt_length: self.max_prompt_length };
        let mut dataset = Dataset::load(path, tokenizer, &options)?;
        if let Some(limit) = self.limit {
            dataset.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(dataset)
    }
}

/// Reward functions and how they count.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Rewards")]
pub struct RewardFlags {
    /// Reward functions by name, separated by commas, parameters as in `sentence_share:word=dog`; `rollout rewards`
    /// lists them. Rules cost next to nothing, programs and reward models take cores from the engine
    #[arg(long, env = "TANDEM_REWARD_FUNCS", value_name = "NAMES", value_delimiter = ',')]
    pub reward_funcs: Vec<String>,
    /// Weight of each reward function in the sum, separated by commas: more of one counts for less of the others
    /// [default: 1 each]
    #[arg(
        long,
        env = "TANDEM_REWARD_WEIGHTS",
        value_name = "WEIGHTS",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    pub reward_weights: Vec<f64>,
    /// Seconds that one call of a reward function may take before it counts as failed, for one completion, or for all of a
    /// prompt where the function sees them together (`command`, `model`, `relative_length`): more is kinder to slow
    /// functions, less keeps a hanging one from holding everything up
    #[arg(long, env = "TANDEM_REWARD_TIMEOUT", value_name = "SECONDS", default_value_t = 10.0)]
    pub reward_timeout: f64,
}

impl RewardFlags {
    /// Makes the functions.
    ///
    /// # Errors
    /// An unknown function, a bad parameter or weight.
    pub fn functions(&self) -> anyhow::Result<Vec<RewardFunction>> {
        let functions = reward::registry().functions(&self.reward_funcs).context("--reward-funcs")?;
        ensure!(
            self.reward_weights.is_empty() || self.reward_weights.len() == functions.len(),
            "--reward-weights has {} entries for {} reward functions",
            self.reward_weights.len(),
            functions.len()
        );
        ensure!(self.reward_weights.iter().all(|w| w.is_finite()), "--reward-weights must be finite numbers");
        ensure!(
            self.reward_timeout > 0.0 && Duration::try_from_secs_f64(self.reward_timeout).is_ok(),
            "--reward-timeout must be a number of seconds above 0, got {}",
            self.reward_timeout
        );
        Ok(functions)
    }

    /// One weight per function.
    #[must_use]
    pub fn weights(&self, functions: usize) -> Vec<f64> {
        if self.reward_weights.is_empty() { vec![1.0; functions] } else { self.reward_weights.clone() }
    }

    /// A pool for the functions, which must be able to score the dataset; `None` without functions.
    ///
    /// # Errors
    /// When a function needs a column that no row has, or threads cannot be started.
    pub fn pool(
        &self,
        functions: Vec<RewardFunction>,
        dataset: &Dataset,
        threads: usize,
    ) -> anyhow::Result<Option<RewardPool>> {
        if functions.is_empty() {
            return Ok(None);
        }
        let check = |function: &RewardFunction| function.check(dataset.path(), dataset.columns());
        functions.iter().try_for_each(check).context("--reward-funcs")?;
        let deadline = Duration::from_secs_f64(self.reward_timeout);
        reward::pool(functions, threads, deadline).map(Some).context("threads for the reward functions")
    }
}
