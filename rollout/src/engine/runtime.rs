//! Finding and loading ONNX Runtime, once per process.

use std::{
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use ort::environment::Environment;
use shared::{
    config::Device,
    native::{self, ONNXRUNTIME_VARIABLE},
};

use super::{EngineError, cuda};

pub(super) fn library_path() -> Result<PathBuf, EngineError> {
    native::onnxruntime().map_err(|e| EngineError::Library(e.to_string()))
}

/// Loads ONNX Runtime on first use.
///
/// # Errors
/// When the library is missing, too old or does not load.
pub fn environment() -> Result<&'static Environment, EngineError> {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    static FIRST_USE: Mutex<()> = Mutex::new(());
    // A process may have one environment only, and a failed attempt may be repeated.
    let _first = FIRST_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = ENVIRONMENT.get() {
        return Ok(environment);
    }
    // The providers of devices are looked for beside the library itself, not beside a link to it.
    let path = library_path()?;
    let path = path.canonicalize().unwrap_or(path);
    let doing = format!("cannot load {}", path.display());
    let environment = ort::init_from(&path)
        .map_err(EngineError::runtime(&doing))?
        .with_name("rollout")
        .with_telemetry(false)
        .build()
        .map_err(EngineError::runtime(&doing))?;
    environment.set_log_level(ort::logging::LogLevel::Error);
    Ok(ENVIRONMENT.get_or_init(|| environment))
}

/// Checks that the ONNX Runtime at hand was built for the device, and loads what its provider needs, before ONNX Runtime
/// complains less clearly.
///
/// # Errors
/// When the provider library or one that it links is missing.
pub fn require_device(device: Device) -> Result<(), EngineError> {
    let (name, provider) = match device {
        Device::Cpu => return Ok(()),
        Device::Cuda => ("cuda", "libonnxruntime_providers_cuda.so"),
        Device::Tensorrt => ("tensorrt", "libonnxruntime_providers_tensorrt.so"),
    };
    let library = library_path()?;
    let library = library.canonicalize().unwrap_or(library);
    if library.with_file_name(provider).is_file() {
        return cuda::load_libraries(device);
    }
    Err(EngineError::Library(format!(
        "device {name} needs {provider} beside {}; run `cargo xtask setup --cuda`, or let {ONNXRUNTIME_VARIABLE} name the \
         library of an onnxruntime-gpu package",
        library.display()
    )))
}
