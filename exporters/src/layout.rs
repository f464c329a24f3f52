//! Where every tensor lies in `weights.data`, and writing that file.

use std::{
    borrow::Cow,
    io::{self, Write},
    path::Path,
    sync::mpsc,
    thread,
};

use shared::{Dtype, ModelConfig, TensorEntry, TensorRole, atomic};

use crate::{
    ExportError,
    onnx::decoder::{ROTARY_COS, ROTARY_SIN},
    values,
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

/// The content of one tensor.
pub(crate) enum Values<'a> {
    /// To be stored in the tensor's type.
    Floats(Cow<'a, [f32]>),
    /// Stored so already.
    Stored(&'a [u8]),
}

/// Bytes on their way to the file.
enum Piece<'a> {
    Floats(Cow<'a, [f32]>),
    Bytes(Cow<'a, [u8]>),
}

/// Values of one piece that are converted at once.
const CHUNK: usize = 4 << 20;
/// Pieces that may wait for the file system.
const WAITING: usize = 2;

/// Writes `weights.data`, whose tensors `give` passes on one by one, and returns its blake3 in hex. Reading and converting
/// a tensor, hashing and writing the one before it overlap, on all cores.
///
/// # Errors
/// No room on the file system (found before anything is written), any other error of it, or an error of `give`.
pub(crate) fn write_data<'a>(
    path: &Path,
    tensors: &[TensorEntry],
    give: impl FnMut(&TensorEntry) -> Result<Values<'a>, ExportError>,
) -> Result<String, ExportError> {
    atomic::require_space(path, data_length(tensors))?;
    let mut hasher = blake3::Hasher::new();
    atomic::write_with(path, |file| {
        let (pieces, arriving) = mpsc::sync_channel(WAITING);
        thread::scope(|scope| {
            let hasher = &mut hasher;
            let writer = scope.spawn(move || arriving.into_iter().try_for_each(|piece| put(&piece, file, hasher)));
            let made = make_pieces(tensors, give, &pieces);
            drop(pieces);
            let written = writer.join().expect("writing does not panic");
            // Of both, the error of the file system comes first: it ends the other side too.
            written.map_err(|e| ExportError::io(path, e)).and(made)
        })
    })?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Sends the tensors and the gaps between them; stops without an error when nobody takes them any more.
fn make_pieces<'a>(
    tensors: &[TensorEntry],
    mut give: impl FnMut(&TensorEntry) -> Result<Values<'a>, ExportError>,
    pieces: &mpsc::SyncSender<Piece<'a>>,
) -> Result<(), ExportError> {
    let mut end = 0;
    for tensor in tensors {
        let gap = vec![0_u8; (tensor.offset - end) as usize];
        end = tensor.offset + tensor.length;
        let mut taken = pieces.send(Piece::Bytes(gap.into())).is_ok();
        let size = tensor.dtype.size();
        let check = |found| values::check_length(&tensor.name, &tensor.shape, tensor.length / size as u64, found);
        match give(tensor)? {
            Values::Stored(bytes) => {
                check(bytes.len() / size)?;
                taken &= pieces.send(Piece::Bytes(bytes.into())).is_ok();
            }
            Values::Floats(values) => {
                check(values.len())?;
                if tensor.dtype == Dtype::Fp32 {
                    taken &= pieces.send(Piece::Floats(values)).is_ok();
                } else {
                    for chunk in values.chunks(CHUNK) {
                        let bytes = values::encode(&tensor.name, chunk, tensor.dtype)?.into_owned();
                        taken &= pieces.send(Piece::Bytes(bytes.into())).is_ok();
                    }
                }
            }
        }
        if !taken {
            break;
        }
    }
    Ok(())
}

fn put(piece: &Piece<'_>, file: &mut (impl Write + Send), hasher: &mut blake3::Hasher) -> io::Result<()> {
    let bytes: &[u8] = match piece {
        Piece::Bytes(bytes) => bytes,
        Piece::Floats(values) => bytemuck::cast_slice(values),
    };
    let (_, written) = rayon::join(|| hasher.update_rayon(bytes), || file.write_all(bytes));
    written
}
