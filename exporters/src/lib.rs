//! Hugging Face directory to ONNX and back.
//!
//! [`export()`] writes `model.onnx` with all weights as external data in `weights.data`, whose layout is a
//! [`WeightManifest`](shared::WeightManifest). [`write_version`] writes the weights of a later policy version under
//! the same graph, without touching it; [`version_to_hf`] and [`write_hf`] lead back to a directory that transformers
//! loads. No runtime is linked: neither ONNX Runtime nor libtorch.
//!
//! [`gguf`] writes the file that llama.cpp opens.
//!
//! The bytes of an export depend on the model and the options alone. A model with a key that the graph cannot express
//! is refused, with that key and its value. Exports are kept in a cache, keyed by the content that they were made of.
//! [`Checkpoint`] and [`VersionDir`] add a LoRA adapter to the weights of its base as these are read, so their users
//! need to know nothing of adapters. [`genai`] writes folders for ONNX Runtime GenAI.

mod cache;
mod checkpoint;
mod codes;
mod error;
mod export;
mod finite;
pub mod genai;
pub mod gguf;
mod hf;
mod layout;
mod names;
pub mod onnx;
pub mod peft;
mod tensor_file;
mod values;
mod version;
mod weight_files;
mod wrapper;

pub use cache::{cache_dir, ensure_export, ensure_export_in, renew_export};
pub use checkpoint::Checkpoint;
pub use codes::{Codes, NF4};
pub use error::{ExportError, SourceError};
pub use export::{DEFAULT_MAX_POSITIONS, ExportOptions, export, export_values, refuse_unsupported};
pub use hf::{
    fill_adapter_companions, fill_hf, fill_hf_as, fill_hf_scorer, merge, stored_name, version_to_hf, write_hf,
    write_hf_scorer,
};
pub use onnx::decoder::{QUERY_FACTORS, ROTARY_COS, ROTARY_SIN, reads_positions, rotary_names};
pub use peft::{Adapter, AdapterConfig, LowRank, fill_adapter, fill_adapter_version, write_adapter_version};
pub use values::{TensorSource, hash_and_norm_of, norm};
pub use version::{Inspected, VersionDir, fill_tensors, fill_version, write_version};
