//! The subcommands of `learner`.

pub mod bench;
pub mod init;
pub mod logprobs;
pub mod rank;
pub mod replay;
pub mod reward_model;
pub mod run;
pub mod score;
pub mod sft;

use std::path::Path;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use shared::{
    Dtype, ModelConfig, ModelDir,
    config::TrainConfig,
    files::{atomic, leftovers, output_dir},
    run::memory_plan::{LearnerSizes, Machine, Workload},
};
use shared_hub::locate_model;
use tch::Device;

use crate::{
    cores,
    device::{self, RankHere},
    model::{self, Decoder, LoadOptions},
};

/// Flags of every subcommand that computes.
#[derive(Debug, clap::Args)]
pub struct ComputeArgs {
    /// Where to compute: cpu, or cuda with the CUDA build of libtorch.
    #[arg(long, default_value_t = TrainConfig::default().learner_device, env = "TANDEM_LEARNER_DEVICE")]
    pub device: shared::config::Device,
    /// Threads; all cores without it.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Most tokens of one forward pass, a prompt that several completions share counted once. Bounds memory and changes
    /// a result by rounding alone [default: the smallest that is as fast as larger ones, less where memory is too
    /// small]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub micro_batch_tokens: Option<u32>,
}

/// Flags of subcommands that train without a configuration.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct TrainingArgs {
    /// Compute the layers in bfloat16, with float32 copies of what is trained.
    #[arg(long)]
    pub bf16: bool,
    /// Keep each layer's input alone and compute the layer again on the way back: less memory, more time, the same
    /// bits.
    #[arg(long)]
    pub gradient_checkpointing: bool,
}

impl TrainingArgs {
    fn load_options(self, device: Device) -> LoadOptions {
        LoadOptions::training(device, self.bf16, self.gradient_checkpointing)
    }

    fn sizes(self, model: &ModelConfig) -> LearnerSizes<'_> {
        let Self { bf16, gradient_checkpointing } = self;
        LearnerSizes { trained: true, bf16, gradient_checkpointing, ..LearnerSizes::evaluated(model) }
    }
}

impl ComputeArgs {
    /// Opens the device and sets the threads.
    ///
    /// # Errors
    /// A device that cannot be used.
    pub fn open(&self) -> anyhow::Result<Device> {
        self.open_of_rank(RankHere::ALONE)
    }

    /// As [`Self::open`], for one of several ranks.
    ///
    /// # Errors
    /// As [`Self::open`]; fewer GPUs than ranks.
    pub fn open_of_rank(&self, here: RankHere) -> anyhow::Result<Device> {
        let device = device::open_of_rank(self.device, here)?;
        let threads = cores::set_threads(self.threads);
        if let (Device::Cpu, Some(words)) = (device, shared::system::load::too_busy_for(threads, "--threads 1")) {
            shared::tell!("warning: {words}");
        }
        Ok(device)
    }

    /// Most tokens of one forward pass: the number that is asked for, else one that suits the model and the work.
    ///
    /// # Errors
    /// When the system does not tell how much memory there is.
    pub fn budget(&self, sizes: &LearnerSizes<'_>, work: &Workload) -> anyhow::Result<u32> {
        let automatic = || -> anyhow::Result<u32> {
            let machine = Machine::this(None)?;
            Ok(u32::try_from(sizes.budget(self.device, work, machine.room(self.device)))?)
        };
        self.micro_batch_tokens.map_or_else(automatic, Ok)
    }
}

/// A value that is written as in `run.toml`.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|e| e.to_string())
}

/// Refuses an output folder that the model cannot be written to, before hours of training: the folder of the model that
/// is read, a folder with content, which would be lost, and a folder that cannot be made. What an interrupted command
/// has left of it is removed.
fn check_output(output: &Path, model: &Path) -> anyhow::Result<()> {
    if let (Ok(output), Ok(model)) = (output.canonicalize(), model.canonicalize())
        && output == model
    {
        bail!("--output is the --model directory; name another one");
    }
    output_dir::check(output, &[]).context("--output")?;
    if let Err(error) = leftovers::remove(output) {
        tracing::warn!("--output: what an earlier command has left: {error}");
    }
    Ok(())
}

/// Refuses, before any training, an output without room for the weights, which are written in float32.
fn check_room(output: &Path, model: &ModelDir) -> anyhow::Result<()> {
    let bytes = model.config().parameter_count() * Dtype::Fp32.size() as u64;
    atomic::require_space(output, bytes).context("--output")
}

/// Refuses a number that is not above 0.
fn above_zero(flag: &str, value: f64) -> anyhow::Result<()> {
    check(flag, value, "a finite number above 0", value > 0.0)
}

/// Refuses a negative number.
fn not_negative(flag: &str, value: f64) -> anyhow::Result<()> {
    check(flag, value, "a finite number of at least 0", value >= 0.0)
}

/// Refuses a number that is not a share below the whole.
fn below_one(flag: &str, value: f64) -> anyhow::Result<()> {
    check(flag, value, "at least 0 and below 1", (0.0..1.0).contains(&value))
}

fn check(flag: &str, value: f64, allowed: &str, holds: bool) -> anyhow::Result<()> {
    if !(holds && value.is_finite()) {
        bail!("{flag} must be {allowed}, got {value}");
    }
    Ok(())
}

/// The model of a directory; with random weights when it has none and a seed is given.
fn load_or_initialise(
    path: &Path,
    init_seed: Option<u64>,
    options: LoadOptions,
) -> anyhow::Result<(ModelDir, Decoder)> {
    let model = ModelDir::open(locate_model(path)?)?;
    let decoder = match init_seed {
        Some(seed) if !model.has_weights() => {
            tracing::info!("{} has no weights: random ones from seed {seed}", path.display());
            model::initialise(&model, seed, options)
        }
        _ => model::load(&model, options),
    };
    let decoder = decoder.with_context(|| format!("the model {} cannot be loaded", path.display()))?;
    Ok((model, decoder))
}
