//! safetensors files and folders of them.

use std::{collections::BTreeMap, path::Path};

use safetensors::tensor::Metadata;

use crate::{
    Rounding, Tensor, VerifyError, Weights,
    file::{Float, Pieces, json},
};

/// Most bytes of a header, as the format has it.
const MOST_HEADER: u64 = 100_000_000;

/// Where a tensor lies.
struct Entry {
    /// The number of its file.
    file: usize,
    float: Float,
    shape: Vec<usize>,
    offset: u64,
    length: u64,
}

/// The tensors of one or several files.
pub struct Safetensors {
    files: Vec<Pieces>,
    tensors: BTreeMap<String, Entry>,
}

impl Safetensors {
    /// Opens `model.safetensors` of a folder, or the shards that `model.safetensors.index.json` names.
    pub fn of_folder(dir: &Path) -> Result<Self, VerifyError> {
        let single = dir.join("model.safetensors");
        if single.is_file() {
            return Self::open([single.as_path()]);
        }
        let index = dir.join("model.safetensors.index.json");
        let stated = json(&index)?;
        let map = stated["weight_map"].as_object();
        let mut shards: Vec<&str> = map.into_iter().flatten().filter_map(|(_, shard)| shard.as_str()).collect();
        shards.sort_unstable();
        shards.dedup();
        if shards.is_empty() {
            return Err(VerifyError::file(&index, "`weight_map` names no file"));
        }
        let paths: Vec<_> = shards.iter().map(|shard| dir.join(shard)).collect();
        Self::open(paths.iter().map(|path| path.as_path()))
    }

    /// Gives the tensors other names, and forgets those that get none.
    pub fn rename(&mut self, name: impl Fn(&str) -> Option<String>) {
        let all = std::mem::take(&mut self.tensors);
        self.tensors = all.into_iter().filter_map(|(stored, entry)| Some((name(&stored)?, entry))).collect();
    }

    /// Opens files.
    pub fn open<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, VerifyError> {
        let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
        for path in paths {
            let pieces = Pieces::open(path)?;
            let length = pieces.read(0, 8)?.try_into().map(u64::from_le_bytes).expect("eight bytes were read");
            if length > MOST_HEADER {
                return Err(pieces.wrong(format!("states a header of {length} bytes")));
            }
            let header: Metadata = serde_json::from_slice(&pieces.read(8, length)?)
                .map_err(|e| pieces.wrong(format!("is no whole safetensors file: {e}")))?;
            for (name, info) in header.tensors() {
                let float = match info.dtype {
                    safetensors::Dtype::F32 => Float::F32,
                    safetensors::Dtype::F16 => Float::F16,
                    safetensors::Dtype::BF16 => Float::Bf16,
                    // Tables that transformers once saved and now computes.
                    _ if name.ends_with(".inv_freq") => continue,
                    other => return Err(pieces.wrong(format!("tensor {name} has the type {other}"))),
                };
                let (begin, end) = info.data_offsets;
                let (offset, length) = (8 + length + begin as u64, (end - begin) as u64);
                let entry = Entry { file: files.len(), float, shape: info.shape.clone(), offset, length };
                tensors.insert(name, entry);
            }
            files.push(pieces);
        }
        Ok(Self { files, tensors })
    }

    /// Leaves out a tensor.
    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Leaves out the tables that transformers once saved and now computes.
    pub fn remove_tables(&mut self) {
        self.tensors.retain(|name, _| !name.ends_with(".inv_freq"));
    }
}

impl Weights for Safetensors {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Tensor, VerifyError> {
        let missing = || VerifyError::Differs(format!("it has no tensor {name}"));
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        let bytes = self.files[entry.file].read(entry.offset, entry.length)?;
        let values = entry.float.decode(&bytes);
        Ok(Tensor { shape: entry.shape.clone(), values, rounding: entry.float.rounding() })
    }
}

impl Float {
    /// The rounding of values that are stored as this type.
    pub fn rounding(self) -> Rounding {
        match self {
            Self::F32 => Rounding::None,
            Self::F16 => Rounding::Nearest { relative: 1.0 / 2048.0, smallest: (-25_f32).exp2() },
            // The smallest numbers of bf16 are those of fp32, with fewer digits.
            Self::Bf16 => Rounding::Nearest { relative: 1.0 / 256.0, smallest: (-134_f32).exp2() },
        }
    }
}
