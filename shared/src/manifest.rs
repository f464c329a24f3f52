//! The weight manifest: what lies where in `weights.data`, so that a new version can be written without touching the
//! graph.

use std::{fmt, fs, path::Path};

use serde::{Deserialize, Serialize};

use crate::{
    atomic::{self, named},
    ids::PolicyVersion,
    model_config::ModelConfig,
};

/// File name of the graph in a version directory or export.
pub const MODEL_FILE: &str = "model.onnx";
/// File name of the external data.
pub const DATA_FILE: &str = "weights.data";
/// File name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Version of the manifest's own format.
pub const MANIFEST_FORMAT: u32 = 1;

/// Element type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32-bit float.
    Fp32,
    /// 16-bit IEEE float.
    Fp16,
    /// 16-bit brain float.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Fp32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        })
    }
}

/// What a tensor is to the learner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorRole {
    /// A parameter of the policy, named and laid out as in the Hugging Face checkpoint (row-major `[out, in]`).
    Parameter,
    /// A table of the graph that training never changes (rotary cosines and sines); copied from version to version.
    Constant,
}

/// One tensor of `weights.data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEntry {
    /// The Hugging Face parameter name for parameters; the initialiser's own name for constants. It is also the
    /// initialiser's name in the graph.
    pub name: String,
    /// Parameter or constant.
    pub role: TensorRole,
    /// Element type in the file.
    pub dtype: Dtype,
    /// Shape, row-major.
    pub shape: Vec<u64>,
    /// Byte offset in the file; a multiple of 4096, so that it can be mapped.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// Description of one version directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightManifest {
    /// [`MANIFEST_FORMAT`].
    pub format: u32,
    /// The version these weights are; 0 for an export.
    pub version: PolicyVersion,
    /// Length of `weights.data` in bytes.
    pub data_length: u64,
    /// blake3 of `weights.data`, in hex.
    pub data_blake3: String,
    /// blake3 of `model.onnx`, in hex.
    pub model_blake3: String,
    /// Every tensor, by ascending offset.
    pub tensors: Vec<TensorEntry>,
}

/// A manifest that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file cannot be read or written.
    #[error("cannot read the weight manifest: {0}")]
    Io(String),
    /// It is no valid manifest, of another version of this program, or does not describe `weights.data`.
    #[error("{path}: {message}")]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        message: String,
    },
}

/// As text: the message holds all of it, and whoever prints a chain of causes would print it twice.
impl From<std::io::Error> for ManifestError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

fn refused(file: &Path, message: String) -> ManifestError {
    ManifestError::Content { path: file.display().to_string(), message }
}

impl WeightManifest {
    /// Reads `dir/manifest.json` and checks that `weights.data` has the length it states.
    ///
    /// # Errors
    /// A [`ManifestError`] that names the file.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let text = fs::read(&path).map_err(named(&path))?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|e| refused(&path, format!("not a weight manifest: {e}")))?;
        let found = manifest.format;
        if found != MANIFEST_FORMAT {
            let words = format!("manifest format {found} is not the format {MANIFEST_FORMAT} of this program");
            return Err(refused(&path, format!("{words}; export the model again")));
        }
        let data = dir.join(DATA_FILE);
        let (length, stated) = (fs::metadata(&data).map_err(named(&data))?.len(), manifest.data_length);
        if length != stated {
            return Err(refused(&data, format!("is {length} bytes long, the manifest says {stated}")));
        }
        manifest.check_entries(&path)?;
        Ok(manifest)
    }

    /// A reader may map any entry: each must lie inside the file, after the one before it, and have the length that
    /// its shape and type give.
    fn check_entries(&self, path: &Path) -> Result<(), ManifestError> {
        let mut end = 0;
        for tensor in &self.tensors {
            let elements = tensor.shape.iter().try_fold(1_u64, |product, &n| product.checked_mul(n));
            let length = elements.and_then(|n| n.checked_mul(tensor.dtype.size() as u64));
            let next = tensor.offset.checked_add(tensor.length);
            if length != Some(tensor.length) || tensor.offset < end || next.is_none_or(|n| n > self.data_length) {
                let name = &tensor.name;
                return Err(refused(
                    path,
                    format!("the entry of tensor {name} does not fit its shape or the data file"),
                ));
            }
            end = tensor.offset + tensor.length;
        }
        Ok(())
    }

    /// Writes `dir/manifest.json`.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(&self, dir: &Path) -> Result<(), ManifestError> {
        let text = serde_json::to_vec_pretty(self).expect("a manifest is always valid JSON");
        atomic::write(&dir.join(MANIFEST_FILE), &text)?;
        Ok(())
    }

    /// Whether the parameters are, by name and shape, those of a model with this configuration.
    #[must_use]
    pub fn is_of(&self, config: &ModelConfig) -> bool {
        let stored = self.tensors.iter().filter(|t| t.role == TensorRole::Parameter);
        let stored = stored.map(|t| (t.name.clone(), t.shape.iter().map(|&n| n as usize).collect()));
        stored.eq(config.parameters())
    }

    /// The tensor of that name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorEntry> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, shape: &[u64], offset: u64) -> TensorEntry {
        let length = shape.iter().product::<u64>() * 4;
        TensorEntry {
            name: name.into(),
            role: TensorRole::Parameter,
            dtype: Dtype::Fp32,
            shape: shape.to_vec(),
            offset,
            length,
        }
    }

    /// A folder with a manifest of two tensors and its data; the closure spoils the manifest.
    fn read_spoilt(spoil: impl FnOnce(&mut WeightManifest)) -> Result<WeightManifest, String> {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = WeightManifest {
            format: MANIFEST_FORMAT,
            version: PolicyVersion(3),
            data_length: 4096 + 24,
            data_blake3: String::new(),
            model_blake3: String::new(),
            tensors: vec![entry("a", &[2], 0), entry("b", &[2, 3], 4096)],
        };
        fs::write(dir.path().join(DATA_FILE), vec![0; 4096 + 24]).unwrap();
        spoil(&mut manifest);
        manifest.write(dir.path()).unwrap();
        WeightManifest::read(dir.path()).map_err(|e| e.to_string())
    }

    #[test]
    fn a_manifest_is_read_as_written() {
        let manifest = read_spoilt(|_| ()).unwrap();
        assert_eq!(manifest.version, PolicyVersion(3));
        assert_eq!(manifest.tensor("b").unwrap().shape, [2, 3]);
        assert!(manifest.tensor("c").is_none());
    }

    #[test]
    fn damage_is_named() {
        let error = read_spoilt(|m| m.data_length += 1).unwrap_err();
        assert!(error.contains("weights.data: is 4120 bytes long, the manifest says 4121"), "{error}");
        let error = read_spoilt(|m| m.format = 99).unwrap_err();
        assert!(error.contains("format 99") && error.contains("export the model again"), "{error}");
        let spoils: [fn(&mut WeightManifest); 4] = [
            |m| m.tensors[1].offset = 4100,
            |m| m.tensors[1].offset = 4,
            |m| m.tensors[1].length = 20,
            |m| m.tensors[1].shape = vec![u64::MAX, 2],
        ];
        for spoil in spoils {
            let error = read_spoilt(spoil).unwrap_err();
            assert!(error.contains("manifest.json: the entry of tensor b"), "{error}");
        }
    }

    #[test]
    fn missing_files_and_foreign_json_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let error = WeightManifest::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains(&dir.path().join(MANIFEST_FILE).display().to_string()), "{error}");
        fs::write(dir.path().join(MANIFEST_FILE), "{}").unwrap();
        let error = WeightManifest::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("manifest.json: not a weight manifest"), "{error}");
    }
}
