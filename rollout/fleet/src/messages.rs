//! What both sides put into messages, and make of them: the facts of a run, the class of a worker's kernels, a
//! completion.

use anyhow::Context;
use rollout::engine::FinishedSequence;
use shared::{
    ModelDir, RunDir,
    channel::fleet::{KernelClass, Made, RunFacts},
    config::{Device, Kernels, TrainConfig, layers},
};
use shared_store::Store;

use crate::weights::MODEL;

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

/// The name of a worker that was given none: its host, and its process.
#[must_use]
pub fn name_on(host: &str, process: u32) -> String {
    format!("{host}/{process}")
}

/// The host in such a name; none in another name.
#[must_use]
pub fn host_of(name: &str) -> Option<&str> {
    let (host, process) = name.rsplit_once('/')?;
    let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !host.is_empty()).then_some(host)
}

/// What computes, in words.
#[must_use]
pub fn class_in_words(class: KernelClass) -> String {
    let KernelClass { device, kernels, rollout_dtype, kv_dtype } = class;
    format!("{kernels} kernels on {device} in {rollout_dtype}, keys and values in {kv_dtype}")
}

/// Leaves configuration and tokenizer of the model in the store, and says what else workers have to know of a run.
///
/// # Errors
/// Files that cannot be read, or a store that does not take them.
pub fn publish_facts(
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

/// What an engine has made of a lease, as it is sent.
#[must_use]
pub fn made(lease: u64, sequence: FinishedSequence) -> Made {
    Made {
        lease,
        sample: sequence.sample,
        token_ids: sequence.token_ids,
        logprobs: sequence.logprobs,
        versions: sequence.versions,
        finish_reason: sequence.finish_reason,
        seconds: sequence.total_seconds,
        rewards: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_found_in_the_name_of_a_worker_that_was_given_none() {
        assert_eq!(host_of(&name_on("node-1", 4711)), Some("node-1"));
        assert_eq!(host_of("rack/2/17"), Some("rack/2"));
        for other in ["", "node-1", "node-1/", "/17", "node-1/a17"] {
            assert_eq!(host_of(other), None, "{other}");
        }
    }
}
