//! LoRA adapters (Hu et al. 2021, arXiv:2106.09685) as PEFT directories: `adapter_config.json` and
//! `adapter_model.safetensors`, with PEFT's names, shapes and meaning.
//!
//! [`AdapterConfig`] is the content of the first file, from which the tensors follow. [`Adapter`] is an opened
//! directory, and [`LowRank`] its update of one linear layer. [`fill_adapter`] writes a directory,
//! [`write_adapter_version`] a directory that is a policy version.

mod adapter;
mod config;
mod low_rank;
mod write;

pub use adapter::Adapter;
pub use config::AdapterConfig;
pub use low_rank::LowRank;
pub use write::{fill_adapter, fill_adapter_version, write_adapter_version};

/// File name of the tensors in a PEFT directory.
pub const ADAPTER_WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// Key in the header of [`ADAPTER_WEIGHTS_FILE`] under which the base is named: PEFT does not read it.
const BASE_KEY: &str = "base_blake3";
