//! The engine on its own kernels: ONNX Runtime runs a rewritten graph whose operators are those of [`rollout_kernels`].
//!
//! The published `model.onnx` stays as it is. `graph` replaces it by the same computation in a few large operators,
//! `operators` implements these, `weights` packs a version for them, and `session` joins the three. The graph holds no
//! weights and no cache: a new version is one pass of packing and the exchange of a pointer, and keys and values lie in
//! pages that completions of one prompt share.

mod backend;
mod graph;
mod operators;
mod session;
mod weights;

pub(super) use backend::PackedBackend;
pub(super) use session::{PackedOptions, PackedSession};
pub(super) use weights::{PackedWeights, PanelMemory};

use rollout_kernels::{element::KvFormat, pages::PageShape};
use shared::{Dtype, ModelConfig, WeightManifest, config::Device};

use super::{EngineError, WeightSource, types::Kernels};

/// Pages beyond those of the longest sequence: prefix and completion each may leave one partly filled.
const PARTIAL_PAGES: usize = 2;

/// Sizes of the pool of pages: every slot may hold a sequence of its own of the greatest length.
pub(super) fn page_shape(config: &ModelConfig, slots: usize, positions: usize, format: KvFormat) -> PageShape {
    PageShape {
        layers: config.num_hidden_layers,
        kv_heads: config.num_key_value_heads,
        head_dim: config.head_dim,
        pages: slots * (PageShape::pages_for(positions) + PARTIAL_PAGES),
        format,
    }
}

/// Whether these options ask for the packed kernels.
pub(super) fn wanted(kernels: Kernels, device: Device, dtype: Dtype) -> bool {
    kernels == Kernels::Packed && device == Device::Cpu && dtype == Dtype::Fp32
}

/// Whether the packed kernels can stand for the graph of a folder: it must be the one that this program exports.
pub(super) fn supports(
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
) -> Result<bool, EngineError> {
    Ok(graph::is_known(source, config, manifest)? && config.head_dim <= rollout_kernels::attention::MAX_HEAD_DIM)
}
