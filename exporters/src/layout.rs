//! Where every tensor lies in `weights.data`, and writing that file.

use std::{io::Write, path::Path};

use shared::{Dtype, ModelConfig, TensorEntry, TensorRole, atomic};

use crate::{
    ExportError,
    onnx::decoder::{ROTARY_COS, ROTARY_SIN},
};

/// Offsets are multiples of a memory page, so that a reader can map a single tensor.
const PAGE: u64 = 4096;

/// The tensors of an export: the parameters in the model's order, then the rotary tables.
pub(crate) fn tensors(config: &ModelConfig, dtype: Dtype, positions: usize) -> Vec<TensorEntry> {
    let tables = [ROTARY_COS, ROTARY_SIN].map(|name| (name.to_string(), vec![positions, config.head_dim / 2]));
    let parameters = config.parameters().into_iter().map(|p| (p, TensorRole::Parameter));
    let mut end = 0_u64;
    parameters
        .chain(tables.into_iter().map(|t| (t, TensorRole::Constant)))
        .map(|((name, shape), role)| {
            let shape: Vec<u64> = shape.into_iter().map(|n| n as u64).collect();
            let length = shape.iter().product::<u64>() * dtype.size() as u64;
            let offset = end.next_multiple_of(PAGE);
            end = offset + length;
            TensorEntry { name, role, dtype, shape, offset, length }
        })
        .collect()
}

/// Length of `weights.data`.
pub(crate) fn data_length(tensors: &[TensorEntry]) -> u64 {
    tensors.iter().map(|t| t.offset + t.length).max().unwrap_or(0)
}

/// Takes the bytes of one tensor, all at once.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), ExportError>;

/// Writes `weights.data`, whose tensors `give` passes on one by one, and returns its blake3 in hex.
///
/// # Errors
/// No room on the file system (found before anything is written), any other error of it, or an error of `give`.
pub(crate) fn write_data(
    path: &Path,
    tensors: &[TensorEntry],
    mut give: impl FnMut(&TensorEntry, Sink<'_>) -> Result<(), ExportError>,
) -> Result<String, ExportError> {
    atomic::require_space(path, data_length(tensors))?;
    let mut hasher = blake3::Hasher::new();
    atomic::write_with(path, |file| {
        let mut end = 0;
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            file.write_all(bytes).map_err(|e| ExportError::io(path, e))
        };
        for tensor in tensors {
            put(&vec![0; (tensor.offset - end) as usize])?;
            give(tensor, &mut |bytes| {
                check_length(tensor, bytes.len())?;
                put(bytes)
            })?;
            end = tensor.offset + tensor.length;
        }
        Ok::<_, ExportError>(())
    })?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn check_length(tensor: &TensorEntry, found: usize) -> Result<(), ExportError> {
    if found as u64 == tensor.length {
        return Ok(());
    }
    let size = tensor.dtype.size();
    let message =
        format!("has {} values, but shape {:?} needs {}", found / size, tensor.shape, tensor.length / size as u64);
    Err(ExportError::Values { name: tensor.name.clone(), message })
}
