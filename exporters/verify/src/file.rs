//! Reading files piece by piece: no export needs to fit into memory as a whole.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::VerifyError;

/// Most bytes of a JSON file of a model.
const MOST_JSON: u64 = 64 << 20;

/// A file that is read in pieces.
#[derive(Debug)]
pub struct Pieces {
    file: File,
    path: PathBuf,
    length: u64,
}

impl Pieces {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, VerifyError> {
        let file = shared_bounds::open(path).map_err(|e| VerifyError::file(path, e))?;
        let length = file.metadata().map_err(|e| VerifyError::file(path, e))?.len();
        Ok(Self { file, path: path.to_owned(), length })
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Some bytes of it; the error for a piece that is not there names the file, and nothing is allocated for it.
    pub fn read(&self, offset: u64, length: u64) -> Result<Vec<u8>, VerifyError> {
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(self.wrong(format!("ends before byte {}", offset.saturating_add(length))));
        }
        let mut bytes = vec![0; length as usize];
        self.file.read_exact_at(&mut bytes, offset).map_err(|e| self.wrong(e))?;
        Ok(bytes)
    }

    /// An error that names the file.
    pub fn wrong(&self, message: impl std::fmt::Display) -> VerifyError {
        VerifyError::file(&self.path, message)
    }
}

/// A JSON file.
pub fn json(path: &Path) -> Result<Value, VerifyError> {
    let bytes = shared_bounds::read(path, MOST_JSON).map_err(|e| VerifyError::file(path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| VerifyError::file(path, format!("is not valid JSON: {e}")))
}

/// Element types of stored floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    Bf16,
}

impl Float {
    /// Bytes of a value.
    pub fn size(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// The values of little-endian bytes.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let halves = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
        match self {
            Self::F32 => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            Self::F16 => halves().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
            Self::Bf16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        }
    }
}
