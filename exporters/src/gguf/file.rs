//! The file: head, places, values.

use std::{io::Write, path::Path};

use shared::files::atomic;

use super::{
    metadata::{Metadata, write_text},
    tensors::{Source, Tensor},
};
use crate::{ExportError, TensorSource, values};

/// Version of the format.
const VERSION: u32 = 3;
/// Every tensor begins at a multiple of so many bytes: the format's default.
const ALIGNMENT: u64 = 32;

/// Writes a file. One tensor at a time is in memory.
pub(super) fn write(
    path: &Path,
    metadata: &Metadata,
    tensors: &[Tensor],
    read: TensorSource<'_, '_>,
) -> Result<(), ExportError> {
    let (head, length) = head(metadata, tensors);
    atomic::require_space(path, head.len() as u64 + length)?;
    let io = |e| ExportError::io(path, e);
    atomic::write_with(path, |file| {
        file.write_all(&head).map_err(io)?;
        for tensor in tensors {
            let mut put = |values: &[f32]| {
                values::check_length(&tensor.name, &tensor.shape, tensor.needed() as u64, values.len())?;
                file.write_all(&tensor.encode(values)?).map_err(io)
            };
            let mut read =
                |name: &String| read(name).map_err(|source| ExportError::Tensor { name: name.clone(), source });
            match &tensor.source {
                Source::Numbers(numbers) => put(numbers)?,
                Source::Half(name, _) => put(&read(name)?)?,
                Source::Parameters(names) => names.iter().try_for_each(|name| put(&read(name)?))?,
            }
            let padding = tensor.length().next_multiple_of(ALIGNMENT) - tensor.length();
            file.write_all(&[0; ALIGNMENT as usize][..padding as usize]).map_err(io)?;
        }
        Ok(())
    })
}

/// Everything before the values, and the length of these.
fn head(metadata: &Metadata, tensors: &[Tensor]) -> (Vec<u8>, u64) {
    let mut head = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((metadata.len() as u64).to_le_bytes());
    metadata.write(&mut head);
    let mut offset = 0_u64;
    for tensor in tensors {
        write_text(&tensor.name, &mut head);
        head.extend((tensor.shape.len() as u32).to_le_bytes());
        // The fastest-running dimension comes first.
        head.extend(tensor.shape.iter().rev().flat_map(|size| (*size as u64).to_le_bytes()));
        head.extend(tensor.kind.number().to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += tensor.length().next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    (head, offset)
}
