//! What only a device needs.
//!
//! [`cuda`] is its memory, and [`providers`] says which part of ONNX Runtime computes on it. [`lever`] is what decode
//! steps may do there in another way, on request: `candidates` leaves logits on the device, and `captured` runs steps
//! as CUDA graphs.
//!
//! TensorRT is no lever. It takes part in no step: it is an execution provider, which compiles the graph when a session
//! is made.

mod candidates;
mod captured;
pub(super) mod cuda;
pub(super) mod lever;
pub(super) mod providers;

use shared::{config::Device, system::native::ONNXRUNTIME_VARIABLE};

use super::{EngineError, runtime::library_path};

/// Checks that the ONNX Runtime at hand was built for the device, and loads what its provider needs, before ONNX
/// Runtime complains less clearly.
///
/// # Errors
/// When the provider library or one that it links is missing.
pub(super) fn require(device: Device) -> Result<(), EngineError> {
    if device == Device::Cpu {
        return Ok(());
    }
    let provider = format!("libonnxruntime_providers_{device}.so");
    let library = library_path()?;
    let library = library.canonicalize().unwrap_or(library);
    if library.with_file_name(&provider).is_file() {
        return cuda::load_libraries(device);
    }
    Err(EngineError::Library(format!(
        "device {device} needs {provider} beside {}; run `cargo xtask setup --cuda`, or let {ONNXRUNTIME_VARIABLE} \
         name the library of an onnxruntime-gpu package",
        library.display()
    )))
}
