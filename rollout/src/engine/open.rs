//! Which backend runs a version.
//!
//! | backend | graph | runs on |
//! |---|---|---|
//! | [`packed`] | the published graph rewritten to a few operators of [`rollout_kernels`] | fp32 exports on the CPU |
//! | [`stock`](super::stock) | the published graph as it is | any device |

use shared::{
    ModelConfig, WeightManifest,
    config::{KvDtype, RolloutDtype},
};

use super::{
    EngineError, EngineOptions, WeightSource,
    backend::Backend,
    gate::Gate,
    memory::sizes,
    packed::{self, PackedBackend},
    session::dtype_of,
    stock::StockBackend,
};

/// Loads a version into the backend that the options ask for and reserves the memory of every slot.
pub(super) fn open(
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, EngineError> {
    Gate::of(options).examine_graph(source, manifest)?;
    if sizes(dtype_of(manifest), options).packed() {
        if packed::supports(source, config, manifest)? {
            return Ok(Box::new(PackedBackend::open(source, config, manifest, options)?));
        }
        tracing::warn!(
            folder = %source.dir.display(),
            "the packed kernels do not know this graph; the kernels of ONNX Runtime are used"
        );
    }
    let EngineOptions { rollout_dtype, kv_dtype, speculative_tokens, .. } = *options;
    let needs_packed = (rollout_dtype != RolloutDtype::Auto).then(|| format!("rollout_dtype {rollout_dtype}"));
    let needs_packed = needs_packed.or((kv_dtype != KvDtype::Auto).then(|| format!("kv_dtype {kv_dtype}")));
    let replays = options.keep_routing && config.experts.is_some();
    let needs_packed = needs_packed.or(replays.then(|| "router_replay".to_owned()));
    if let Some(option) = needs_packed.or((speculative_tokens > 0).then(|| "speculative_tokens".to_owned())) {
        let message = format!("{option} needs the packed kernels, which take fp32 exports on the CPU");
        return Err(EngineError::Options(message));
    }
    Ok(Box::new(StockBackend::open(source, config, manifest, options)?))
}
