//! What is refused before anything is loaded.

use exporters::{DEFAULT_MAX_POSITIONS, ExportOptions, ROTARY_COS};
use shared::{Dtype, ModelConfig, WeightManifest, config::Device};

use super::{EngineError, EngineOptions, session::dtype_of};

/// More than any machine has.
const MOST_THREADS: usize = 1 << 14;

/// How a model is exported whose graph takes `max_model_len` positions: those of the default where they are enough, so
/// that lengths share an export.
pub(crate) fn export_options(dtype: Dtype, max_model_len: usize) -> ExportOptions {
    let max_positions = (max_model_len > DEFAULT_MAX_POSITIONS).then_some(max_model_len);
    ExportOptions { dtype, max_positions, base: None }
}

/// Positions that an exported graph has tables for.
pub(crate) fn positions_of(manifest: &WeightManifest, config: &ModelConfig) -> usize {
    let table = manifest.tensor(ROTARY_COS);
    table.map_or(config.max_position_embeddings, |table| config.rotary_positions(table.shape[0] as usize))
}

/// Whether the options are in range and go with the weights.
pub(super) fn check_options(
    options: &EngineOptions,
    config: &ModelConfig,
    manifest: &WeightManifest,
) -> Result<(), EngineError> {
    let refuse = |message: String| Err(EngineError::Options(message));
    for (name, value) in [
        ("threads", options.threads),
        ("max_num_seqs", options.max_num_seqs),
        ("max_num_batched_tokens", options.max_num_batched_tokens),
        ("prefill_batch", options.prefill_batch),
    ] {
        if value == 0 {
            return refuse(format!("{name} must be at least 1"));
        }
    }
    if options.threads > MOST_THREADS {
        return refuse(format!("threads must be at most {MOST_THREADS}, got {}", options.threads));
    }
    if options.cuda_graphs && options.device == Device::Tensorrt {
        return refuse("cuda_graphs needs device cuda".into());
    }
    let of_batches = || config.refuses_batches(options.prefill_batch, options.cuda_graphs);
    if let Some(reason) = config.refuses_drafts(options.speculative_tokens).or_else(of_batches) {
        return refuse(reason);
    }
    let dtype = dtype_of(manifest);
    if options.device != Device::Cpu && dtype != options.device.export_dtype() {
        return refuse(format!(
            "device {} needs weights in half precision, and these are {dtype}; export with --dtype fp16",
            options.device
        ));
    }
    let rows = positions_of(manifest, config);
    if !(2..=rows).contains(&options.max_model_len) {
        return refuse(format!(
            "max_model_len must be between 2 and the {rows} positions of the exported graph, got {}",
            options.max_model_len
        ));
    }
    Ok(())
}
