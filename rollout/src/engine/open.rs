//! Which backend runs a version.
//!
//! | backend | graph | runs on |
//! |---|---|---|
//! | [`packed`] | the published graph rewritten to a few operators of [`rollout_kernels`] | fp32 exports on the CPU |
//! | [`stock`](super::stock) | the published graph as it is | any device |
//! | [`device`] | the same, with logits or launches of decode steps kept on the device | devices, on request |

use std::fmt::Display;

use shared::{
    ModelConfig, WeightManifest,
    config::{KvDtype, RolloutDtype},
};

use super::{
    EngineError, EngineOptions, WeightSource,
    backend::Backend,
    device::{self, DeviceBackend},
    packed::{self, PackedBackend},
    session::dtype_of,
    stock::StockBackend,
};

fn needs_packed(option: &str, dtype: impl Display) -> EngineError {
    EngineError::Options(format!("{option} {dtype} needs the packed kernels, which take fp32 exports on the CPU"))
}

/// Loads a version into the backend that the options ask for and reserves the memory of every slot.
pub(super) fn open(
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
    options: &EngineOptions,
) -> Result<Box<dyn Backend>, EngineError> {
    if packed::wanted(options.kernels, options.device, dtype_of(manifest)) {
        if packed::supports(source, config, manifest)? {
            return Ok(Box::new(PackedBackend::open(source, config, manifest, options)?));
        }
        tracing::warn!(
            folder = %source.dir.display(),
            "the packed kernels do not know this graph; the kernels of ONNX Runtime are used"
        );
    }
    if options.rollout_dtype != RolloutDtype::Auto {
        return Err(needs_packed("rollout_dtype", options.rollout_dtype));
    }
    if options.kv_dtype != KvDtype::Auto {
        return Err(needs_packed("kv_dtype", options.kv_dtype));
    }
    let stock = StockBackend::open(source, config, manifest, options)?;
    if device::wanted(options) {
        return Ok(Box::new(DeviceBackend::new(stock, config, options)?));
    }
    Ok(Box::new(stock))
}
