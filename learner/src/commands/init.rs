//! `learner init`: random weights for a model directory that has none.

use std::path::PathBuf;

use anyhow::{Context, bail};
use safetensors::{Dtype, tensor::TensorView};
use shared::{ModelDir, files::atomic};

use crate::model::{self, LoadOptions};

/// Flags of `learner init`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model directory with config.json; model.safetensors is written into it.
    #[arg(long)]
    pub model: PathBuf,
    /// Seed of the weights.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
}

/// Writes `model.safetensors` with random weights, as transformers initialises them.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = ModelDir::open(&args.model)?;
    if model.has_weights() {
        bail!("{} has weights already; remove them first", args.model.display());
    }
    let decoder = model::initialise(&model, args.seed, LoadOptions { trainable: false, ..LoadOptions::default() })?;
    let parameters = decoder.weights().base();
    let named: Vec<(String, Vec<usize>, Vec<f32>)> = parameters
        .named()
        .map(|(name, shape)| {
            let stored = exporters::stored_name(model.config(), name);
            Ok((stored, shape.iter().map(|&n| n as usize).collect(), parameters.read_f32(name)?))
        })
        .collect::<Result<_, crate::LearnerError>>()?;
    let views = named
        .iter()
        .map(|(name, shape, values)| {
            Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values))?))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    // transformers wants to be told which framework wrote the file.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    let bytes = safetensors::serialize(views, Some(metadata)).context("the weights cannot be serialised")?;
    atomic::write_output(&args.model.join("model.safetensors"), &bytes)?;
    tracing::info!("{} parameters in {}", model.config().parameter_count(), args.model.display());
    Ok(())
}
