//! What a worker has to know of a run.

use anyhow::Context;
use shared::{
    ModelDir, RunDir,
    channel::fleet::{KernelClass, RunFacts},
    config::{Device, Kernels, TrainConfig, layers},
};
use shared_store::Store;

use super::weights::MODEL;

/// What the figures of a run are computed with.
#[must_use]
pub fn class_of(config: &TrainConfig) -> KernelClass {
    // Elsewhere than on the CPU there are no packed kernels.
    let kernels = if config.rollout_device == Device::Cpu { config.rollout_kernels } else { Kernels::Stock };
    KernelClass {
        device: config.rollout_device,
        kernels,
        rollout_dtype: config.rollout_dtype,
        kv_dtype: config.kv_dtype,
    }
}

/// Leaves configuration and tokenizer of the model in the store, and says what else workers have to know.
///
/// # Errors
/// Files that cannot be read, or a store that does not take them.
pub fn publish(
    store: &Store,
    place: &str,
    config: &TrainConfig,
    run_dir: &RunDir,
    model: &ModelDir,
    max_model_len: usize,
) -> anyhow::Result<RunFacts> {
    let published = store.publish_files(MODEL, &model.sampler_files(), &()).context("`weights_store`")?;
    Ok(RunFacts {
        config: layers::to_toml(config),
        model: published.blake3,
        max_model_len: max_model_len as u64,
        store: place.to_owned(),
        run_dir: config.versions_stay().then(|| run_dir.root().display().to_string()),
    })
}
