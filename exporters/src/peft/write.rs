//! Writing a PEFT directory.

use std::path::Path;

use shared::{atomic, model_dir::ADAPTER_CONFIG_FILE};

use super::{ADAPTER_WEIGHTS_FILE, AdapterConfig, BASE_KEY};
use crate::{ExportError, TensorSource, tensor_file};

/// Writes both files of an adapter into a folder that is there, one part of a larger [`atomic::write_dir`]. `read` gives the
/// fp32 values of the [`tensors`](AdapterConfig::tensors) one by one, in their order, for a base with these `parameters`.
///
/// # Errors
/// As [`write_hf`](crate::write_hf), or an unknown module; the folder may then have some of the files.
pub fn fill_adapter(
    dir: &Path,
    config: &AdapterConfig,
    parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
    read: TensorSource<'_>,
) -> Result<(), ExportError> {
    let base = config.base_blake3.iter().map(|hash| (BASE_KEY.to_owned(), hash.clone()));
    tensor_file::write_f32(&dir.join(ADAPTER_WEIGHTS_FILE), &config.tensors(parameters)?, base, read)?;
    atomic::write(&dir.join(ADAPTER_CONFIG_FILE), format!("{:#}\n", config.to_json()).as_bytes())?;
    Ok(())
}
