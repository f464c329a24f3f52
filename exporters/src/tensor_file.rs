//! safetensors files, read in place and written tensor by tensor.

use std::{
    collections::HashMap,
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use safetensors::{
    SafeTensors,
    tensor::{Metadata, TensorInfo},
};
use shared::{Dtype, files::atomic};

use crate::{ExportError, TensorSource, values};

/// A mapped file; it must not be overwritten while it is mapped.
#[derive(Debug)]
pub(crate) struct TensorFile {
    pub path: PathBuf,
    pub map: Mmap,
    header: Metadata,
    /// Where the tensors begin.
    start: usize,
}

/// Where a tensor lies in its file.
#[derive(Debug)]
pub(crate) struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Range<usize>,
}

/// A tensor that is written as it was read.
pub(crate) struct Carried<'a> {
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
}

impl TensorFile {
    /// Maps a file and reads its header.
    pub fn open(path: PathBuf) -> Result<Self, ExportError> {
        let map = map(&path)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| {
            let why = match shared_bounds::foreign_content(&map) {
                Some(what) => format!("it {what}"),
                None => format!("{e}; download or write it again"),
            };
            ExportError::content(&path, format!("not a whole safetensors file: {why}"))
        })?;
        Ok(Self { path, map, header: metadata, start: header + size_of::<u64>() })
    }

    /// An entry of the header beside the tensors.
    pub fn entry(&self, key: &str) -> Option<&str> {
        Some(self.header.metadata().as_ref()?.get(key)?)
    }

    /// The tensors in the order of the file.
    pub fn tensors(&self) -> Result<Vec<(String, Tensor)>, ExportError> {
        let tensor = |name: String| {
            let info = self.header.info(&name).expect("the name is one of the file's");
            let dtype = match info.dtype {
                safetensors::Dtype::F32 => Dtype::Fp32,
                safetensors::Dtype::F16 => Dtype::Fp16,
                safetensors::Dtype::BF16 => Dtype::Bf16,
                _ if is_inverse_frequencies(&name) => return None,
                other => {
                    let message = format!(
                        "tensor {name} has element type {other}; supported: F32, F16, BF16; of quantised weights, take \
                         the repository of the whole ones, or dequantise the model in transformers \
                         (`model.dequantize()`) and save it"
                    );
                    return Some(Err(ExportError::content(&self.path, message)));
                }
            };
            let bytes = self.start + info.data_offsets.0..self.start + info.data_offsets.1;
            Some(Ok((name, Tensor { dtype, shape: info.shape.clone(), bytes })))
        };
        self.header.offset_keys().into_iter().filter_map(tensor).collect()
    }

    /// The values of a tensor of the file.
    pub fn read_f32(&self, tensor: &Tensor) -> Vec<f32> {
        values::decode(&self.map[tensor.bytes.clone()], tensor.dtype)
    }
}

/// Maps a file of weights.
pub(crate) fn map(path: &Path) -> Result<Mmap, ExportError> {
    let file = shared_bounds::open(path).map_err(|e| ExportError::io(path, e))?;
    // SAFETY: the mapping is read-only and goes out as shared slices only. Files of weights are written once and
    // replaced by renaming, never in place (`shared::files::atomic`); truncation by a stranger would end the process
    // with SIGBUS.
    unsafe { Mmap::map(&file) }.map_err(|e| ExportError::io(path, e))
}

/// blake3 of a file's content, in hex.
pub(crate) fn hash(content: &[u8]) -> String {
    blake3::Hasher::new().update_rayon(content).finalize().to_hex().to_string()
}

/// Buffers that transformers once saved and now computes.
pub(crate) fn is_inverse_frequencies(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}

/// As [`write`], in fp32.
pub(crate) fn write_f32(
    path: &Path,
    tensors: &[(String, Vec<usize>)],
    entries: impl IntoIterator<Item = (String, String)>,
    read: TensorSource<'_, '_>,
) -> Result<(), ExportError> {
    write(path, Dtype::Fp32, tensors, entries, read, &[])
}

/// Writes a file of tensors of one type, given as names and shapes, with the values that `read` gives, and with further
/// `entries` of the header, and tensors that are `carried` as they are. The file is then opened and must hold them, bit
/// for bit.
pub(crate) fn write(
    path: &Path,
    dtype: Dtype,
    tensors: &[(String, Vec<usize>)],
    entries: impl IntoIterator<Item = (String, String)>,
    read: TensorSource<'_, '_>,
    carried: &[Carried<'_>],
) -> Result<(), ExportError> {
    let (header, length) = header(dtype, tensors, carried, entries);
    atomic::require_space(path, header.len() as u64 + length)?;
    let mut hashes = Vec::with_capacity(tensors.len());
    atomic::write_with(path, |file| {
        file.write_all(&header).map_err(|e| ExportError::io(path, e))?;
        for (name, shape) in tensors {
            let values = read(name).map_err(|source| ExportError::Tensor { name: name.clone(), source })?;
            values::check_length(name, shape, shape.iter().product::<usize>() as u64, values.len())?;
            let bytes = values::encode(name, &values, dtype)?;
            file.write_all(&bytes).map_err(|e| ExportError::io(path, e))?;
            hashes.push(hash(&bytes));
        }
        for tensor in carried {
            file.write_all(tensor.bytes).map_err(|e| ExportError::io(path, e))?;
            hashes.push(hash(tensor.bytes));
        }
        Ok::<_, ExportError>(())
    })?;
    let names = tensors.iter().map(|(name, _)| name.as_str()).chain(carried.iter().map(|tensor| tensor.name));
    require_written(path, names.zip(hashes))
}

/// Opens a written file again and checks that its tensors have these hashes.
fn require_written<'a>(path: &Path, meant: impl Iterator<Item = (&'a str, String)>) -> Result<(), ExportError> {
    let file = TensorFile::open(path.to_owned())?;
    let written: HashMap<_, _> = file.tensors()?.into_iter().collect();
    for (name, meant) in meant {
        if written.get(name).is_none_or(|tensor| hash(&file.map[tensor.bytes.clone()]) != meant) {
            return Err(ExportError::unlike(name));
        }
    }
    Ok(())
}

/// Length prefix and header of the file, and the length of the tensors that follow. The crate's own writer wants all
/// tensors at hand, which a trainer with little memory to spare cannot give.
fn header(
    dtype: Dtype,
    tensors: &[(String, Vec<usize>)],
    carried: &[Carried<'_>],
    entries: impl IntoIterator<Item = (String, String)>,
) -> (Vec<u8>, u64) {
    let mut end = 0;
    let kind = |dtype| match dtype {
        Dtype::Fp32 => safetensors::Dtype::F32,
        Dtype::Fp16 => safetensors::Dtype::F16,
        Dtype::Bf16 => safetensors::Dtype::BF16,
    };
    let own = tensors.iter().map(|(name, shape)| (name.as_str(), dtype, shape.as_slice()));
    let tensors = own
        .chain(carried.iter().map(|tensor| (tensor.name, tensor.dtype, tensor.shape)))
        .map(|(name, dtype, shape)| {
            let start = end;
            end += shape.iter().product::<usize>() * dtype.size();
            let info = TensorInfo { dtype: kind(dtype), shape: shape.to_vec(), data_offsets: (start, end) };
            (name.to_owned(), info)
        })
        .collect();
    // transformers refuses files without this entry.
    let format = ("format".to_string(), "pt".to_string());
    let entries: HashMap<String, String> = entries.into_iter().chain([format]).collect();
    let metadata = Metadata::new(Some(entries), tensors).expect("the tensors follow one another without a gap");
    let mut header = serde_json::to_value(&metadata).expect("a header is always valid JSON");
    // The entries of the map come in any order, but the same content must give the same bytes.
    header["__metadata__"].as_object_mut().map(serde_json::Map::sort_keys);
    let mut json = header.to_string().into_bytes();
    json.resize(json.len().next_multiple_of(size_of::<u64>()), b' ');
    ([&(json.len() as u64).to_le_bytes(), json.as_slice()].concat(), end as u64)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_does_not_hold_what_was_written_is_named_by_its_tensor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let tensors = [("a".to_owned(), vec![3]), ("b".to_owned(), vec![2])];
        write_f32(&path, &tensors, [], &mut |name| Ok(vec![1.5; if name == "a" { 3 } else { 2 }].into())).unwrap();
        let meant = || {
            let hash_of = |values: &[f32]| hash(bytemuck::cast_slice(values));
            [("a", hash_of(&[1.5; 3])), ("b", hash_of(&[1.5; 2]))].into_iter()
        };
        require_written(&path, meant()).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        let error = require_written(&path, meant()).unwrap_err().to_string();
        assert_eq!(error, "tensor b: was not read back as it was written; check the disk");
    }
}
