//! The index of `rounded.bin`: which block of which tensor lies where.

use std::{iter, path::Path};

use serde::{Deserialize, Serialize};
use shared::{Dtype, TensorEntry, WeightManifest, files::atomic::named};

use super::{
    RoundedError,
    form::{Form, Grid},
};

/// Version of the format.
pub const FORMAT: u32 = 1;
/// Most bytes of an index: that of a model of 70 billion parameters has a fifth of that.
const MOST_BYTES: u64 = 128 << 20;
/// The offset of a tensor in the data of a version is the next multiple of this number behind the tensor before.
const PAGE: u64 = 4096;

/// Description of `rounded.bin`, beside the manifest that the version has once it is unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// [`FORMAT`].
    pub format: u32,
    /// [`data_blake3`](WeightManifest::data_blake3) of the version as the learner published it.
    pub of: String,
    /// For a difference, [`data_blake3`](WeightManifest::data_blake3) of the version, rounded likewise, to which it is
    /// one.
    pub base: Option<String>,
    /// In the order of the manifest.
    pub tensors: Vec<PackedTensor>,
}

/// A tensor in `rounded.bin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedTensor {
    /// The form in which it is kept.
    pub form: Form,
    /// Its blocks, one after the other.
    pub blocks: Vec<Block>,
}

/// A block of a tensor: whether it is a difference, and the bytes of each of its planes. A plane of no bytes is all
/// zeros, a plane with all its bytes is stored as it is, and any other is compressed with zstd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block(pub bool, pub Vec<u32>);

impl Block {
    /// Its bytes in the file.
    pub(crate) fn len(&self) -> u64 {
        self.1.iter().map(|&length| u64::from(length)).sum()
    }
}

/// The part of an index that is read before its format is known.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

impl Index {
    /// Reads an index and checks it against the manifest beside it.
    ///
    /// # Errors
    /// Another format, or a file that is no index of these tensors.
    pub fn read(path: &Path, manifest: &WeightManifest) -> Result<Self, RoundedError> {
        let text = shared_bounds::read(path, MOST_BYTES).map_err(named(path))?;
        Self::parse(&text, path, manifest)
    }

    /// As [`Index::read`], from the content of the file at `path`.
    ///
    /// # Errors
    /// As [`Index::read`].
    pub fn parse(text: &[u8], path: &Path, manifest: &WeightManifest) -> Result<Self, RoundedError> {
        let refuse = |message: String| RoundedError::Index { path: path.display().to_string(), message };
        let none = |error: serde_json::Error| refuse(format!("not an index of rounded weights: {error}"));
        let AnyFormat { format } = serde_json::from_slice(text).map_err(none)?;
        if format != FORMAT {
            return Err(RoundedError::UnknownFormat { path: path.display().to_string(), found: format, known: FORMAT });
        }
        let index: Self = serde_json::from_slice(text).map_err(none)?;
        index.check(manifest).map_err(refuse)?;
        Ok(index)
    }

    /// Whether every block has a place for each of its planes, and no more than that. An index that passes makes nobody
    /// allocate more than the tensors of the manifest.
    fn check(&self, manifest: &WeightManifest) -> Result<(), String> {
        if self.tensors.len() != manifest.tensors.len() {
            return Err(format!("has {} tensors, the manifest {}", self.tensors.len(), manifest.tensors.len()));
        }
        let mut end = 0_u64;
        for (tensor, entry) in self.tensors.iter().zip(&manifest.tensors) {
            if entry.dtype != Dtype::Fp32 || entry.offset != end.next_multiple_of(PAGE) {
                return Err(format!("tensor {} is not where an fp32 version has it", entry.name));
            }
            end = entry.offset + entry.length;
            if !self.fits(tensor, entry) {
                return Err(format!("the blocks of tensor {} do not fit it", entry.name));
            }
        }
        if end == manifest.data_length { Ok(()) } else { Err("the tensors are not all of the data".into()) }
    }

    fn fits(&self, tensor: &PackedTensor, entry: &TensorEntry) -> bool {
        let grid = Grid::of(entry);
        let fits = |(number, Block(is_difference, lengths)): (usize, &Block)| {
            let runs = tensor.form.runs(grid.rows_of(number), grid.depth);
            let planes: Vec<usize> = runs.flat_map(|(width, count)| iter::repeat_n(count, width)).collect();
            let within = lengths.iter().zip(&planes).all(|(&length, &whole)| length as usize <= whole);
            lengths.len() == planes.len() && within && (!is_difference || self.base.is_some())
        };
        tensor.blocks.len() == grid.blocks() && tensor.blocks.iter().enumerate().all(fits)
    }

    /// Length of `rounded.bin`.
    #[must_use]
    pub fn data_length(&self) -> u64 {
        self.tensors.iter().flat_map(|tensor| &tensor.blocks).map(Block::len).sum()
    }
}
