//! Finding and loading ONNX Runtime, once per process.

use std::{
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
};

use ort::environment::Environment;
use shared::system::native;

use super::EngineError;

pub(super) fn library_path() -> Result<PathBuf, EngineError> {
    native::onnxruntime().map_err(|e| EngineError::Library(e.to_string()))
}

/// Loads ONNX Runtime on first use.
///
/// # Errors
/// When the library is missing, too old or does not load, or when it would report to its maker.
pub fn environment() -> Result<&'static Environment, EngineError> {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    static FIRST_USE: Mutex<()> = Mutex::new(());
    // A process may have one environment only, and a failed attempt may be repeated.
    let _first = FIRST_USE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(environment) = ENVIRONMENT.get() {
        return Ok(environment);
    }
    if !native::telemetry_is_disabled() {
        let message =
            "ONNX Runtime is not loaded, since its telemetry is on: set ORT_DISABLE_TELEMETRY=1, which the programs do";
        return Err(EngineError::Library(message.to_owned()));
    }
    // The providers of devices are looked for beside the library itself, not beside a link to it.
    let path = library_path()?;
    let path = path.canonicalize().unwrap_or(path);
    let doing = format!("cannot load {}", path.display());
    let environment = ort::init_from(&path)
        .map_err(EngineError::runtime(&doing))?
        .with_name("rollout")
        .build()
        .map_err(EngineError::runtime(&doing))?;
    environment.set_log_level(ort::logging::LogLevel::Error);
    Ok(ENVIRONMENT.get_or_init(|| environment))
}
