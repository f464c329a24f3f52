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
        let unknown = config.unknown_to_packed().map_or("this graph".to_owned(), |part| format!("the model: {part}"));
        tracing::warn!(
            folder = %source.dir.display(),
            "the packed kernels do not know {unknown}; the kernels of ONNX Runtime are used"
        );
    }
    if let Some(option) = option_of_packed(options, config) {
        let message = format!("{option} needs the packed kernels, which take fp32 exports on the CPU");
        return Err(refusal(&option, config).unwrap_or(EngineError::Options(message)));
    }
    Ok(Box::new(StockBackend::open(source, config, manifest, options)?))
}

/// Checks before a model is exported that the packed kernels know it where an option needs them.
///
/// # Errors
/// The option, and what the kernels do not know.
pub fn check_model(config: &ModelConfig, options: &EngineOptions) -> Result<(), EngineError> {
    let is_packed = sizes(options.device.export_dtype(), options).packed();
    let option = option_of_packed(options, config).filter(|_| is_packed);
    option.and_then(|option| refusal(&option, config)).map_or(Ok(()), Err)
}

fn refusal(option: &str, config: &ModelConfig) -> Option<EngineError> {
    let part = config.unknown_to_packed()?;
    let message =
        format!("{option} needs the packed kernels, which do not know the model: {part}; leave the option out");
    Some(EngineError::Options(message))
}

/// An option that the packed kernels alone follow, if one is set.
fn option_of_packed(options: &EngineOptions, config: &ModelConfig) -> Option<String> {
    let EngineOptions { rollout_dtype, kv_dtype, speculative_tokens, keep_routing, .. } = *options;
    let format = (rollout_dtype != RolloutDtype::Auto).then(|| format!("rollout_dtype {rollout_dtype}"));
    let replays = keep_routing && config.experts.is_some();
    format
        .or_else(|| (kv_dtype != KvDtype::Auto).then(|| format!("kv_dtype {kv_dtype}")))
        .or_else(|| replays.then(|| "router_replay".to_owned()))
        .or_else(|| (speculative_tokens > 0).then(|| "speculative_tokens".to_owned()))
}
