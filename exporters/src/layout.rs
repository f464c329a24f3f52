//! Where every tensor lies in `weights.data`, and writing that file.

use std::{borrow::Cow, fs::File, io::Write, path::Path};

use shared::{Dtype, ModelConfig, TensorEntry, TensorRole, files::atomic};

use crate::{ExportError, onnx::decoder::constants, values};

/// Offsets are multiples of a memory page, so that a reader can map a single tensor.
const PAGE: u64 = 4096;

/// The type that a tensor has in a file of some type.
pub(crate) fn stored_as(name: &str, dtype: Dtype) -> Dtype {
    if ModelConfig::is_exact(name) { Dtype::Fp32 } else { dtype }
}

/// The tensors of an export: the parameters in the model's order, then the tables of positions.
pub(crate) fn tensors(config: &ModelConfig, dtype: Dtype, positions: usize) -> Vec<TensorEntry> {
    let tables = constants(config, positions);
    let parameters = config.parameters().into_iter().map(|p| (p, TensorRole::Parameter));
    let mut end = 0_u64;
    parameters
        .chain(tables.into_iter().map(|t| (t, TensorRole::Constant)))
        .map(|((name, shape), role)| {
            let shape: Vec<u64> = shape.into_iter().map(|n| n as u64).collect();
            let dtype = stored_as(&name, dtype);
            let length = shape.iter().product::<u64>() * dtype.size() as u64;
            let offset = end.next_multiple_of(PAGE);
            end = offset + length;
            TensorEntry { name, role, dtype, shape, offset, length, blake3: String::new() }
        })
        .collect()
}

/// Length of `weights.data`.
pub(crate) fn data_length(tensors: &[TensorEntry]) -> u64 {
    tensors.iter().map(|t| t.offset + t.length).max().unwrap_or(0)
}

/// The content of one tensor.
pub(crate) enum Values<'a> {
    /// To be stored in the tensor's type.
    Floats(Cow<'a, [f32]>),
    /// In the tensor's type already, with the hash of the tensor's entry.
    Stored(&'a [u8]),
}

/// Values that are converted and written at once.
const CHUNK: usize = 4 << 20;

/// Writes `weights.data`, whose tensors `give` passes on one by one, and returns their entries with their hashes.
/// Hashing, on all cores, and writing overlap; values that need no conversion are written without a copy.
///
/// # Errors
/// No room on the file system (found before anything is written), any other error of the file system, an error of
/// `give`, or stored bytes that are no longer those of their entry.
pub(crate) fn write_data<'a>(
    path: &Path,
    tensors: &[TensorEntry],
    mut give: impl FnMut(&TensorEntry) -> Result<Values<'a>, ExportError>,
) -> Result<Vec<TensorEntry>, ExportError> {
    atomic::require_space(path, data_length(tensors))?;
    let io = |e| ExportError::io(path, e);
    let mut file = File::create(path).map_err(io)?;
    let mut end = 0;
    let mut written = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        file.write_all(&vec![0; (tensor.offset - end) as usize]).map_err(io)?;
        end = tensor.offset + tensor.length;
        let mut hasher = blake3::Hasher::new();
        let mut put = |bytes: &[u8]| {
            let (_, written) = rayon::join(|| hasher.update_rayon(bytes), || file.write_all(bytes));
            written.map_err(io)
        };
        let size = tensor.dtype.size();
        let check = |found| values::check_length(&tensor.name, &tensor.shape, tensor.length / size as u64, found);
        let stored = match give(tensor)? {
            Values::Stored(bytes) => {
                check(bytes.len() / size)?;
                put(bytes)?;
                true
            }
            Values::Floats(values) => {
                check(values.len())?;
                for chunk in values.chunks(CHUNK) {
                    put(&values::encode(&tensor.name, chunk, tensor.dtype)?)?;
                }
                false
            }
        };
        let blake3 = hasher.finalize().to_hex().to_string();
        if stored && blake3 != tensor.blake3 {
            return Err(ExportError::Damaged { name: tensor.name.clone() });
        }
        written.push(TensorEntry { blake3, ..tensor.clone() });
    }
    Ok(written)
}
