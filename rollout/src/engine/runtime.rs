//! Finding and loading ONNX Runtime, once per process.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

use ort::environment::Environment;
use shared::config::Device;

use super::{EngineError, cuda};

/// Names a library explicitly.
const LIBRARY_VARIABLE: &str = "ORT_DYLIB_PATH";
/// Where `cargo xtask setup` unpacks the library, below the root of the repository.
const SETUP_FOLDER: &str = ".native/onnxruntime";
const LIBRARY: &str = "libonnxruntime.so";

/// The ONNX Runtime library: `ORT_DYLIB_PATH`, else beside this program, else in `.native/onnxruntime` of one of the
/// folders above it.
///
/// # Errors
/// When there is none.
pub fn library_path() -> Result<PathBuf, EngineError> {
    if let Some(path) = env::var_os(LIBRARY_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        return Err(EngineError::Library(format!("{LIBRARY_VARIABLE} names {}, which is no file", path.display())));
    }
    let program = env::current_exe()
        .and_then(|p| p.canonicalize())
        .map_err(|e| EngineError::Library(format!("cannot find the folder of this program: {e}")))?;
    search(&program).ok_or_else(|| {
        EngineError::Library(format!(
            "{LIBRARY} is neither beside {} nor in {SETUP_FOLDER} above it; run `cargo xtask setup`, or let \
             {LIBRARY_VARIABLE} name the library",
            program.display()
        ))
    })
}

fn search(program: &Path) -> Option<PathBuf> {
    let beside = program.parent()?;
    library_in(beside).or_else(|| beside.ancestors().find_map(|dir| library_in(&dir.join(SETUP_FOLDER))))
}

/// `libonnxruntime.so`, or the versioned name that Python wheels carry.
fn library_in(dir: &Path) -> Option<PathBuf> {
    let plain = dir.join(LIBRARY);
    if plain.is_file() {
        return Some(plain);
    }
    let versioned = format!("{LIBRARY}.");
    fs::read_dir(dir)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_file() && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&versioned)))
        .max()
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
        "device {name} needs {provider} beside {}; run `cargo xtask setup --cuda`, or let {LIBRARY_VARIABLE} name the \
         library of an onnxruntime-gpu package",
        library.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_beside_the_program_and_above_it() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("target/release/rollout");
        fs::create_dir_all(program.parent().unwrap()).unwrap();
        assert_eq!(search(&program), None);
        let set_up = root.path().join(SETUP_FOLDER);
        fs::create_dir_all(&set_up).unwrap();
        fs::write(set_up.join("libonnxruntime.so.1.31.1"), "").unwrap();
        fs::write(set_up.join("libonnxruntime_providers_shared.so"), "").unwrap();
        assert_eq!(search(&program), Some(set_up.join("libonnxruntime.so.1.31.1")));
        let beside = program.with_file_name(LIBRARY);
        fs::write(&beside, "").unwrap();
        assert_eq!(search(&program), Some(beside));
    }
}
