//! Adapters for training: as a run asks for them, and as a checkpoint holds them.

use std::{collections::HashMap, path::Path};

use exporters::{Adapter, AdapterConfig, Checkpoint};
use shared::{ModelDir, config::TrainConfig, generation::rng};

use super::{LoadOptions, Parameters, kinds::wide_kind};
use crate::error::LearnerError;

/// Distinguishes the first factors' values from other uses of the seed.
const ADAPTER_KEY: u64 = 0x6c6f_7261;

/// The adapter that a run on `model` trains, if it trains one, with the hash of its base.
///
/// # Errors
/// A model with unreadable weights or that is an adapter itself, or `lora_target_modules` that it does not have.
pub fn adapter_config(config: &TrainConfig, model: &ModelDir) -> Result<Option<AdapterConfig>, LearnerError> {
    let Some(mut adapter) = AdapterConfig::of_run(config, model)? else { return Ok(None) };
    if model.has_weights() {
        adapter.base_blake3 = Some(Checkpoint::open(model)?.weights_blake3());
    }
    Ok(Some(adapter))
}

/// The adapter's parameters, in float32 at least: those `saved` in a directory, else as PEFT starts them, with A
/// uniform within ±1/√in and B 0, so that the adapter adds nothing yet. They depend on the seed alone.
///
/// # Errors
/// A directory that cannot be read, or holds an adapter of another kind or for another base.
pub fn load_adapter(
    config: &AdapterConfig,
    model: &ModelDir,
    saved: Option<&Path>,
    seed: u64,
    options: LoadOptions,
) -> Result<Parameters, LearnerError> {
    let of_base = || model.config().parameters();
    let saved = saved.map(|dir| open(config, model, dir)).transpose()?;
    let mut values = HashMap::new();
    for (index, (module, [outputs, inputs])) in config.modules(of_base())?.into_iter().enumerate() {
        let stored = saved.as_ref().and_then(|adapter| adapter.update(&format!("{module}.weight")));
        let factors = if let Some(update) = stored {
            [update.a().to_vec(), update.b().to_vec()]
        } else {
            let (bound, mut stream) =
                (1.0 / (inputs as f64).sqrt(), rng::Stream::new(&[seed, ADAPTER_KEY, index as u64]));
            let first = (0..config.r * inputs).map(|_| (bound * (2.0 * stream.next_f64() - 1.0)) as f32);
            [first.collect(), vec![0.0; outputs * config.r]]
        };
        values.extend(AdapterConfig::tensor_names(&module).into_iter().zip(factors));
    }
    Parameters::load(config.tensors(of_base())?, wide_kind(options.kind), options.device, &mut |name| {
        values.remove(name).ok_or_else(|| LearnerError::Parameter(name.to_owned()))
    })
}

fn open(config: &AdapterConfig, model: &ModelDir, dir: &Path) -> Result<Adapter, LearnerError> {
    let adapter = Adapter::open(dir, model.config().parameters())?;
    let found = adapter.config();
    // Names of layers may be stated in several ways, such as those of a whole model with its towers.
    let layers = |config: &AdapterConfig| config.modules(model.config().parameters());
    if found.r != config.r || layers(found)? != layers(config)? {
        let message = format!(
            "is an adapter of rank {} on {}; the run asks for rank {} on {}",
            found.r,
            found.target_modules.join(", "),
            config.r,
            config.target_modules.join(", ")
        );
        return Err(LearnerError::content(dir, message));
    }
    if found.base_blake3.is_some() && found.base_blake3 != config.base_blake3 {
        return Err(LearnerError::content(
            dir,
            "was trained on other weights than those of `model`; bring those back, or begin a run in another \
             `output_dir`",
        ));
    }
    Ok(adapter)
}
