//! The subcommands of `learner`.

pub mod bench;
pub mod init;
pub mod logprobs;
pub mod replay;
pub mod reward_model;
pub mod run;
pub mod score;
pub mod sft;

use std::path::PathBuf;

use anyhow::Context;
use serde::de::DeserializeOwned;
use shared::ModelDir;
use tch::{Device, Kind};

use crate::{
    device,
    model::{self, Decoder, LoadOptions},
};

/// Flags of every subcommand that computes.
#[derive(Debug, clap::Args)]
pub struct ComputeArgs {
    /// Where to compute: cpu, or cuda with the CUDA build of libtorch.
    #[arg(long, default_value = "cpu", value_parser = word::<shared::config::Device>, env = "TANDEM_LEARNER_DEVICE")]
    pub device: shared::config::Device,
    /// Threads; all cores without it.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Most tokens of one forward pass, padding included. Bounds memory, never changes a result.
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub micro_batch_tokens: u32,
}

impl ComputeArgs {
    /// Opens the device and sets the threads.
    ///
    /// # Errors
    /// A device that cannot be used.
    pub fn open(&self) -> anyhow::Result<Device> {
        let device = device::open(self.device)?;
        device::set_threads(self.threads);
        Ok(device)
    }
}

/// A value that is written as in `run.toml`.
fn word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|e| e.to_string())
}

/// The model of a directory; with random weights when it has none and a seed is given.
fn load_or_initialise(
    path: &PathBuf,
    init_seed: Option<u64>,
    device: Device,
    trainable: bool,
) -> anyhow::Result<(ModelDir, Decoder)> {
    let model = ModelDir::open(path)?;
    let options = LoadOptions { kind: Kind::Float, device, trainable };
    let decoder = match init_seed {
        Some(seed) if !model::has_weights(&model) => {
            tracing::info!("{} has no weights: random ones from seed {seed}", path.display());
            model::initialise(&model, seed, options)
        }
        _ => model::load(&model, options),
    };
    let decoder = decoder.with_context(|| format!("the model {} cannot be loaded", path.display()))?;
    Ok((model, decoder))
}
