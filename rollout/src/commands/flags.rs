//! Flags that several subcommands share. Each has an environment twin `TANDEM_<FLAG>`; the flag wins. A flag with the
//! meaning of an option of a run takes its description and default from the declaration of that option.

use std::{fmt::Display, iter, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context, bail, ensure};
use clap::{
    ArgAction,
    builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser},
};
use rollout_rewards::RewardFunction;
use shared::{
    Dtype, ModelDir, PolicyVersion, SamplingParams,
    config::{
        self, Choice, ChoiceSpec, Device, JsonTable, KvDtype, OptionValue, RewardHost, RolloutDtype, TrainConfig,
    },
    process::{command_line::tell_warnings, pace::Waiting},
};
use shared_data::{Columns, Selection};
use shared_hub::locate_dataset;

use super::{
    model::{self, NamedModel},
    prompts::Prompts,
    rows::check_writable,
};
use crate::{
    assembly::Scoring,
    data::{Dataset, PromptOptions, Tokenizer},
    engine::{Engine, EngineOptions, Kernels, WeightSource},
    reward, trace,
};

/// How tokens are drawn. Names and defaults are TRL's.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    #[arg(long, env = "TANDEM_TEMPERATURE", value_name = "T", allow_negative_numbers = true,
          help = help("temperature") + "; 0 takes the likeliest token (greedy)")]
    pub(super) temperature: Option<f32>,
    #[arg(long, env = "TANDEM_TOP_K", value_name = "K", default_value_t = defaults().top_k, help = help("top_k"))]
    pub(super) top_k: u32,
    #[arg(long, env = "TANDEM_TOP_P", value_name = "P", default_value_t = defaults().top_p, help = help("top_p"))]
    pub(super) top_p: f32,
    #[arg(long, env = "TANDEM_MIN_P", value_name = "P", help = help("min_p"))]
    pub(super) min_p: Option<f32>,
    #[arg(long, env = "TANDEM_REPETITION_PENALTY", value_name = "R", default_value_t = defaults().repetition_penalty,
          help = help("repetition_penalty"))]
    pub(super) repetition_penalty: f32,
    #[arg(long, env = "TANDEM_MAX_COMPLETION_LENGTH", value_name = "N",
          help = format!("{} [default: {}, within the model's room]", help("max_completion_length"),
                         defaults().max_completion_length))]
    pub(super) max_completion_length: Option<u32>,
    #[arg(long, value_name = "TEXT", help = help("stop") + "; may be given several times")]
    pub(super) stop: Vec<String>,
    #[arg(long, env = "TANDEM_SEED", value_name = "N", default_value_t = defaults().seed, help = help("seed"))]
    pub(super) seed: u64,
}

impl SamplingFlags {
    /// The sampling parameters; `temperature` holds without `--temperature`.
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
            max_completion_length: self.max_completion_length.unwrap_or(defaults().max_completion_length),
            stop: self.stop.clone(),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            ignore_eos: false,
            seed: self.seed,
        };
        ensure!(params.stop.iter().all(|s| !s.is_empty()), "--stop must not be empty");
        params.validate().map_err(|message| anyhow::anyhow!(as_flag(&message)))?;
        Ok(params)
    }
}

/// A remark on options, by the names of flags.
#[must_use]
fn as_flags(remark: &str) -> String {
    ["chat_template_kwargs", "chat_template", "system_prompt"]
        .iter()
        .fold(remark.to_owned(), |text, key| text.replace(&format!("`{key}`"), &format!("--{}", key.replace('_', "-"))))
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
    #[arg(long, env = "TANDEM_MAX_NUM_SEQS", value_name = "N",
          help = help("max_num_seqs") + " [default: all of them, at most 64, as far as memory allows]")]
    pub(super) max_num_seqs: Option<usize>,
    #[arg(long, env = "TANDEM_MAX_NUM_BATCHED_TOKENS", value_name = "N",
          help = format!("{} [default: {}]", help("max_num_batched_tokens"), defaults().max_num_batched_tokens))]
    pub(super) max_num_batched_tokens: Option<usize>,
    #[arg(long, env = "TANDEM_PREFILL_BATCH", value_name = "N", default_value_t = defaults().rollout_prefill_batch,
          help = help("rollout_prefill_batch"))]
    pub(super) prefill_batch: usize,
    #[arg(long, env = "TANDEM_MAX_MODEL_LEN", value_name = "N",
          help = help("max_model_len") + " [default: what the longest prompt and completion need, within the model's \
              limit]")]
    pub(super) max_model_len: Option<usize>,
    #[arg(long, env = "TANDEM_SPECULATIVE_TOKENS", value_name = "N", default_value_t = defaults().speculative_tokens,
          help = help("speculative_tokens"))]
    pub(super) speculative_tokens: usize,
    #[arg(long, env = "TANDEM_THREADS", value_name = "N", help = help("rollout_threads") + " [default: all cores]")]
    pub(super) threads: Option<usize>,
    #[arg(long, env = "TANDEM_DEVICE", value_name = "DEVICE", default_value_t = defaults().rollout_device,
          value_parser = choice::<Device>(), help = help("rollout_device"))]
    pub(super) device: Device,
    #[arg(long, env = "TANDEM_KERNELS", value_name = "KERNELS", value_parser = choice::<Kernels>(),
          help = format!("{} [default: {}]", help("rollout_kernels"), defaults().rollout_kernels))]
    pub(super) kernels: Option<Kernels>,
    #[arg(long, env = "TANDEM_ROLLOUT_DTYPE", value_name = "DTYPE", default_value_t = defaults().rollout_dtype,
          value_parser = choice::<RolloutDtype>(), help = help("rollout_dtype"))]
    pub(super) rollout_dtype: RolloutDtype,
    #[arg(long, env = "TANDEM_KV_DTYPE", value_name = "DTYPE", default_value_t = defaults().kv_dtype,
          value_parser = choice::<KvDtype>(), help = help("kv_dtype"))]
    pub(super) kv_dtype: KvDtype,
    #[arg(long, env = "TANDEM_CANDIDATES", value_name = "N", default_value_t = defaults().rollout_candidates,
          help = help("rollout_candidates"))]
    pub(super) candidates: usize,
    #[arg(long, env = "TANDEM_CUDA_GRAPHS", value_parser = clap::builder::BoolishValueParser::new(),
          help = help("rollout_cuda_graphs"))]
    pub(super) cuda_graphs: bool,
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
        let max_num_seqs = self.max_num_seqs.unwrap_or_else(|| sequences.clamp(1, DEFAULT_MAX_NUM_SEQS));
        let max_model_len = self.max_model_len.unwrap_or_else(|| tokens.min(model_limit));
        // These subcommands have the machine to themselves and keep their weights.
        let (threads, spinning) = (self.threads()?, true);
        Ok(EngineOptions { threads, spinning, ..EngineOptions::computing(&self.config(), max_num_seqs, max_model_len) })
    }

    /// The same as a configuration, as far as a run has options with the same meaning.
    pub fn config(&self) -> TrainConfig {
        let defaults = defaults();
        TrainConfig {
            rollout_device: self.device,
            rollout_kernels: self.kernels.unwrap_or(defaults.rollout_kernels),
            rollout_dtype: self.rollout_dtype,
            kv_dtype: self.kv_dtype,
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or(defaults.max_num_batched_tokens),
            speculative_tokens: self.speculative_tokens,
            rollout_prefill_batch: self.prefill_batch,
            rollout_candidates: self.candidates,
            rollout_cuda_graphs: self.cuda_graphs,
            ..defaults
        }
    }

    /// Fits `max_num_seqs` to the memory if the user did not set it.
    ///
    /// # Errors
    /// When there is too little memory for one sequence.
    pub fn fit(&self, options: &mut EngineOptions, model: &ModelDir, dtype: Dtype) -> anyhow::Result<()> {
        Ok(options.fit(self.max_num_seqs, model.config(), dtype)?)
    }

    /// Fits the sizes to the memory, exports the model if need be, and starts an engine. Also returns the folder of its
    /// graph and weights.
    ///
    /// # Errors
    /// Too little memory, a model that cannot be exported, what the engine reports.
    pub fn engine(&self, model: &NamedModel, mut options: EngineOptions) -> anyhow::Result<(Engine, PathBuf)> {
        let dtype = options.device.export_dtype();
        self.fit(&mut options, model.dir(), dtype)?;
        let dir = model::export(model, dtype, options.max_model_len)?;
        let weights = WeightSource { dir: dir.clone(), version: PolicyVersion(0) };
        let _waiting = Waiting::new("loading the model");
        Ok((Engine::new(weights, model.dir(), options)?, dir))
    }
}

/// The configuration of a run without any options.
fn defaults() -> TrainConfig {
    TrainConfig::default()
}

/// The help of an option of a run, for the flag with the same meaning.
pub(super) fn help(key: &str) -> String {
    let option = config::option(key).expect("the key of an option");
    option.doc.trim_end_matches('.').to_owned()
}

/// A number within the bounds of an option of a run.
pub(super) fn bounded<T: OptionValue + FromStr<Err: Display> + Clone + Send + Sync + 'static>(
    key: &'static str,
) -> impl TypedValueParser<Value = T> {
    StringValueParser::new().try_map(move |text| {
        let value: T = text.parse().map_err(|e: T::Err| e.to_string())?;
        config::option(key).expect("the key of an option").check(&value).map(|()| value)
    })
}

/// The values of a choice, each with its meaning.
fn choice<T: Choice + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let value = |spec: &ChoiceSpec| PossibleValue::new(spec.word).aliases(spec.aliases).help(spec.doc);
    PossibleValuesParser::new(T::WORDS.iter().map(value)).try_map(|word| T::of_word(&word))
}

/// The model that is asked.
#[derive(Debug, Clone, clap::Args)]
pub struct ModelFlag {
    /// The model: a Hugging Face directory, a checkpoint or an adapter; a run, of which the best checkpoint is taken if
    /// it has recorded one, else the newest; a published version in a run's `weights`; or a name on the Hub
    #[arg(long, env = "TANDEM_MODEL", value_name = "DIR")]
    pub model: PathBuf,
}

/// The model and how prompts are made for it.
#[derive(Debug, Clone, clap::Args)]
pub struct PromptFlags {
    /// The model.
    #[command(flatten)]
    pub named: ModelFlag,
    /// How prompts are made.
    #[command(flatten)]
    pub rows: RowFlags,
}

/// What the system says before a prompt.
#[derive(Debug, Clone, clap::Args)]
pub struct SystemFlag {
    #[arg(long, env = "TANDEM_SYSTEM_PROMPT", value_name = "TEXT", help = help("system_prompt"))]
    pub(super) system_prompt: Option<String>,
}

/// How messages are rendered.
#[derive(Debug, Clone, clap::Args)]
pub struct TemplateFlags {
    #[arg(long, env = "TANDEM_CHAT_TEMPLATE", value_name = "FILE", help = help("chat_template"))]
    pub(super) chat_template: Option<PathBuf>,
    #[arg(long, env = "TANDEM_CHAT_TEMPLATE_KWARGS", value_name = "JSON", help = help("chat_template_kwargs"))]
    pub(super) chat_template_kwargs: Option<JsonTable>,
}

/// How prompts are made of rows.
#[derive(Debug, Clone, clap::Args)]
pub struct RowFlags {
    /// What the system says.
    #[command(flatten)]
    pub(super) system: SystemFlag,
    /// How messages are rendered.
    #[command(flatten)]
    pub(super) template: TemplateFlags,
    #[arg(long, env = "TANDEM_MAX_PROMPT_LENGTH", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..), help = help("max_prompt_length"))]
    pub(super) max_prompt_length: Option<u32>,
    #[arg(long, env = "TANDEM_PROMPT_COLUMN", value_name = "NAME", help = help("prompt_column"))]
    pub(super) prompt_column: Option<String>,
    #[arg(long, env = "TANDEM_ANSWER_COLUMN", value_name = "NAME", help = help("answer_column"))]
    pub(super) answer_column: Option<String>,
    /// Split of the prompts, where they are a folder with several [default: test for `eval` and `compare`, else train]
    #[arg(long, env = "TANDEM_SPLIT", value_name = "NAME")]
    pub(super) split: Option<String>,
    #[arg(long, env = "TANDEM_DATASET_CONFIG", value_name = "NAME", help = help("dataset_config"))]
    pub(super) dataset_config: Option<String>,
    /// Take only the first N prompts: less work, and a less certain figure
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

impl PromptFlags {
    /// Finds the model, and says which one was chosen in a run.
    ///
    /// # Errors
    /// With the path.
    pub fn model(&self) -> anyhow::Result<NamedModel> {
        self.rows.template.model(&self.named)
    }
}

impl SystemFlag {
    /// Says that a model was trained with a system prompt, where none is given: it would answer otherwise than in
    /// training.
    pub fn tell_of_system_prompt(&self, model: &NamedModel) {
        if self.system_prompt.is_none()
            && let Some(trained) = model.trained_system_prompt()
        {
            shared::tell!("the model was trained with a system prompt, which --system-prompt gives: {trained:?}");
        }
    }
}

impl TemplateFlags {
    /// Finds the model that `--model` names, with the template of the flags, and says which one was chosen in a run.
    ///
    /// # Errors
    /// With the path.
    pub fn model(&self, named: &ModelFlag) -> anyhow::Result<NamedModel> {
        let model = NamedModel::find(&named.model).context("--model")?;
        model.tell_choice();
        Ok(model.with_chat_template(self.chat_template.as_deref())?)
    }

    /// The tokenizer of a model, which renders messages as the flags say. Oddities of the model's tokens and templates
    /// are told.
    ///
    /// # Errors
    /// A missing or broken file, by name.
    pub fn tokenizer(&self, model: &ModelDir) -> anyhow::Result<Tokenizer> {
        let tokenizer = Tokenizer::open(model)?.with_template_kwargs(self.chat_template_kwargs.as_ref());
        tell_warnings(tokenizer.remarks().iter().map(|remark| as_flags(remark)));
        Ok(tokenizer)
    }
}

impl RowFlags {
    /// As [`TemplateFlags::tokenizer`].
    ///
    /// # Errors
    /// As [`TemplateFlags::tokenizer`].
    pub fn tokenizer(&self, model: &ModelDir) -> anyhow::Result<Tokenizer> {
        self.template.tokenizer(model)
    }

    /// Reads prompts.
    ///
    /// # Errors
    /// With the path, and with the place of a bad row.
    pub fn dataset(&self, prompts: &Prompts<'_>, tokenizer: &Tokenizer) -> anyhow::Result<Dataset> {
        self.dataset_for(prompts, tokenizer, None)
    }

    /// As [`RowFlags::dataset`]: prompts of conversations, where there are tools.
    ///
    /// # Errors
    /// As [`RowFlags::dataset`], and prompts that would be cut.
    pub fn dataset_for(
        &self,
        prompts: &Prompts<'_>,
        tokenizer: &Tokenizer,
        tools: Option<&TrainConfig>,
    ) -> anyhow::Result<Dataset> {
        ensure!(
            tools.is_none() || self.max_prompt_length.is_none(),
            "--max-prompt-length would cut the description of the tools from the prompt: leave it out, or the tools \
             (--without-tools)"
        );
        let options = PromptOptions {
            system_prompt: self.system.system_prompt.clone(),
            max_prompt_length: self.max_prompt_length,
            columns: Columns {
                prompt: self.prompt_column.clone(),
                answer: self.answer_column.clone(),
                may_lack_prompt: tools.is_some_and(|tools| tools.environment_factory.is_some()),
            },
            with_tools: tools.is_some(),
        };
        let mut dataset = match prompts {
            Prompts::Dataset(path, split) => {
                let split = self.split.as_deref().unwrap_or(split);
                let part = Selection { split, config: self.dataset_config.as_deref() };
                Dataset::load(&[locate_dataset(path, part)?], part, tokenizer, &options)?
            }
            Prompts::Given(given) => Dataset::of_table(given.name(), given.table(tokenizer)?, tokenizer, &options)?,
        };
        tell_warnings(dataset.remarks(tokenizer, &options).iter().map(|remark| as_flags(remark)));
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
    #[arg(long, env = "TANDEM_REWARD_FUNCS", value_name = "NAMES", value_delimiter = ',',
          help = help("reward_funcs") + ". Separated by commas")]
    pub(super) reward_funcs: Vec<String>,
    #[arg(long, env = "TANDEM_REWARD_WEIGHTS", value_name = "WEIGHTS", value_delimiter = ',',
          allow_negative_numbers = true, help = help("reward_weights") + ". Separated by commas")]
    pub(super) reward_weights: Vec<f64>,
    #[arg(long, env = "TANDEM_REWARD_TIMEOUT", value_name = "SECONDS", default_value_t = defaults().reward_timeout,
          help = help("reward_timeout"))]
    pub(super) reward_timeout: f64,
    #[arg(long, env = "TANDEM_REWARD_PYTHON", value_name = "PYTHON", default_value_t = defaults().reward_python,
          help = help("reward_python"))]
    pub(super) reward_python: String,
    #[arg(long, env = "TANDEM_REWARD_PROCESSES", value_name = "N", default_value_t = defaults().reward_processes,
          value_parser = clap::value_parser!(u32).range(1..), help = help("reward_processes"))]
    pub(super) reward_processes: u32,
    #[arg(long, env = "TANDEM_REWARD_NETWORK", value_name = "BOOL", default_value_t = defaults().reward_network,
          action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = clap::builder::BoolishValueParser::new(), help = help("reward_network"))]
    pub(super) reward_network: bool,
    #[arg(long, env = "TANDEM_REWARD_ENV", value_name = "NAMES", value_delimiter = ',',
          help = help("reward_env") + ". Separated by commas")]
    pub(super) reward_env: Vec<String>,
    #[arg(long, env = "TANDEM_REWARD_WRITABLE", value_name = "PATHS", value_delimiter = ',',
          help = help("reward_writable") + ". Separated by commas")]
    pub(super) reward_writable: Vec<PathBuf>,
    #[arg(long, env = "TANDEM_REWARD_MEMORY", value_name = "GIB", value_parser = bounded::<f64>("reward_memory"),
          help = help("reward_memory") + " [default: half of what there is]")]
    pub(super) reward_memory: Option<f64>,
    #[arg(long, env = "TANDEM_REWARD_CPU", value_name = "SECONDS", default_value_t = defaults().reward_cpu,
          value_parser = bounded::<u64>("reward_cpu"), help = help("reward_cpu"))]
    pub(super) reward_cpu: u64,
    #[arg(long, env = "TANDEM_REWARD_MAX_PROCESSES", value_name = "N",
          default_value_t = defaults().reward_max_processes, value_parser = bounded::<u32>("reward_max_processes"),
          help = help("reward_max_processes"))]
    pub(super) reward_max_processes: u32,
    #[arg(long, env = "TANDEM_REWARD_FILE_SIZE", value_name = "GIB", default_value_t = defaults().reward_file_size,
          value_parser = bounded::<f64>("reward_file_size"), help = help("reward_file_size"))]
    pub(super) reward_file_size: f64,
    #[arg(long, env = "TANDEM_REWARD_DISK", value_name = "GIB", value_parser = bounded::<f64>("reward_disk"),
          help = help("reward_disk") + " [default: four times --reward-file-size]")]
    pub(super) reward_disk: Option<f64>,
    #[arg(long, env = "TANDEM_JUDGE_BASE_URL", value_name = "URL", help = help("judge_base_url"))]
    pub(super) judge_base_url: Option<String>,
    #[arg(long, env = "TANDEM_JUDGE_MODEL", value_name = "NAME", help = help("judge_model"))]
    pub(super) judge_model: Option<String>,
    #[arg(long, env = "TANDEM_JUDGE_API_KEY_ENV", value_name = "VARIABLE",
          default_value_t = defaults().judge_api_key_env, help = help("judge_api_key_env"))]
    pub(super) judge_api_key_env: String,
}

impl RewardFlags {
    /// Makes the functions. Where completions are conversations with these `tools`, functions that ask for environments
    /// are called where the environments are.
    ///
    /// # Errors
    /// An unknown function, a bad parameter or weight.
    pub fn functions(&self, tools: Option<&TrainConfig>) -> anyhow::Result<Vec<RewardFunction>> {
        let with_environments = tools.is_some_and(|tools| tools.environment_factory.is_some());
        let host = RewardHost { with_environments, ..self.host() };
        let functions = reward::registry().on(host).functions(&self.reward_funcs).context("--reward-funcs")?;
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

    /// How functions of other processes are started, as in a run with these options.
    fn host(&self) -> RewardHost {
        self.config().reward_host()
    }

    /// The same as a configuration.
    pub fn config(&self) -> TrainConfig {
        TrainConfig {
            reward_python: self.reward_python.clone(),
            reward_processes: self.reward_processes,
            reward_network: self.reward_network,
            reward_env: self.reward_env.clone(),
            reward_writable: Some(self.reward_writable.iter().cloned().collect()),
            reward_memory: self.reward_memory,
            reward_cpu: self.reward_cpu,
            reward_max_processes: self.reward_max_processes,
            reward_file_size: self.reward_file_size,
            reward_disk: self.reward_disk,
            judge_base_url: self.judge_base_url.clone(),
            judge_model: self.judge_model.clone(),
            judge_api_key_env: self.judge_api_key_env.clone(),
            ..defaults()
        }
    }

    /// The pool that scores a dataset's completions, and its names and weights; `None` without functions.
    /// Conversations, `held` with these options, also have the rewards of their environments.
    ///
    /// # Errors
    /// When a function needs a column that no row has, or threads cannot be started.
    pub fn scoring(
        &self,
        functions: Vec<RewardFunction>,
        dataset: &Dataset,
        threads: usize,
        held: Option<&TrainConfig>,
    ) -> anyhow::Result<Option<Scoring>> {
        if functions.is_empty() && held.is_none() {
            return Ok(None);
        }
        reward::check(&functions, dataset).context("--reward-funcs")?;
        tell_warnings(reward::unreadable(&functions, dataset));
        let deadline = Duration::from_secs_f64(self.reward_timeout);
        // Without weights, every function has the weight 1.
        let weights = self.reward_weights.iter().copied().chain(iter::repeat(1.0));
        let entries: Vec<String> = functions.iter().map(|function| function.name().to_owned()).collect();
        let of_functions = || config::rewards::names(&entries).into_iter().zip(weights).collect();
        let names = held.map_or_else(of_functions, TrainConfig::weighted_rewards);
        let scoring = reward::scoring(&functions, threads, deadline, names);
        Ok(Some(scoring.context("threads for the reward functions")?))
    }
}
