//! The weight manifest: the place of each tensor in `weights.data`, so that a new version can be written without
//! touching the graph.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    files::atomic::named,
    generation::ids::PolicyVersion,
    model::model_config::ModelConfig,
    system::compute::{Dtype, RolloutDtype},
};

/// File name of the graph in a version directory or export.
pub const MODEL_FILE: &str = "model.onnx";
/// File name of the external data.
pub const DATA_FILE: &str = "weights.data";
/// File name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Most bytes of a manifest: a model of a thousand layers has a tenth of that.
const MOST_BYTES: u64 = 64 << 20;
/// Version of the manifest's own format.
pub const MANIFEST_FORMAT: u32 = 3;
/// Format of the manifest of an adapter on an export: programs that know no adapters refuse it.
pub const ADAPTER_FORMAT: u32 = 4;
/// Format of the manifest of a version whose weights were rounded to a sampler's number format.
pub const ROUNDED_FORMAT: u32 = 5;

/// Role of a tensor in training.
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
    /// The name of the Hugging Face parameter; for a constant, the initialiser's own name. It is also the name of the
    /// initialiser in the graph.
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
    /// blake3 of its bytes, in hex; empty before they are written.
    pub blake3: String,
}

impl TensorEntry {
    /// [`Self::shape`] as the lengths of dimensions in memory.
    #[must_use]
    pub fn dimensions(&self) -> Vec<usize> {
        self.shape.iter().map(|&n| n as usize).collect()
    }
}

/// The adapter that turns an export into a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterEntry {
    /// Folder of the export.
    pub base: PathBuf,
    /// blake3 of `adapter_model.safetensors` beside the manifest, in hex.
    pub blake3: String,
}

/// Description of one version directory: `model.onnx` and `weights.data` in it, or those of an export elsewhere with an
/// adapter to add (`adapter_config.json` and `adapter_model.safetensors`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightManifest {
    /// [`MANIFEST_FORMAT`], with an adapter [`ADAPTER_FORMAT`], rounded [`ROUNDED_FORMAT`].
    pub format: u32,
    /// The version of the weights; 0 for an export.
    pub version: PolicyVersion,
    /// Length of `weights.data` in bytes.
    pub data_length: u64,
    /// blake3 over the hashes of the tensors ([`hash_of`]), in hex.
    pub data_blake3: String,
    /// blake3 of `model.onnx`, in hex.
    pub model_blake3: String,
    /// Every tensor, by ascending offset.
    pub tensors: Vec<TensorEntry>,
    /// The adapter; graph and data are then those of its base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterEntry>,
    /// Number format to which the weights were rounded. They are then the version's weights for samplers that compute
    /// in this format, and for no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounded: Option<RolloutDtype>,
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
        /// The fault.
        message: String,
    },
}

/// As text: the message holds all of it, and code that prints a chain of causes would print it twice.
impl From<std::io::Error> for ManifestError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

/// blake3 over the hashes of tensors, in their order, in hex: no byte of the data needs to be hashed twice.
#[must_use]
pub fn hash_of(tensors: &[TensorEntry]) -> String {
    let mut hasher = blake3::Hasher::new();
    for tensor in tensors {
        hasher.update(tensor.blake3.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

fn refused(file: &Path, message: String) -> ManifestError {
    ManifestError::Content { path: file.display().to_string(), message }
}

impl WeightManifest {
    /// Reads `dir/manifest.json` and checks that `weights.data` has the length it states and that a base is the one
    /// that the adapter was made for.
    ///
    /// # Errors
    /// A [`ManifestError`] that names the file.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let manifest = Self::read_alone(dir)?;
        if let Some(AdapterEntry { base, .. }) = &manifest.adapter {
            let export = Self::read(base)?;
            if export.adapter.is_some() || export.rounded.is_some() || export.data_blake3 != manifest.data_blake3 {
                let base = base.display();
                return Err(refused(&path, format!("is of an adapter for other weights than those in {base}")));
            }
        }
        let data = manifest.export_dir(dir).join(DATA_FILE);
        let (length, stated) = (fs::metadata(&data).map_err(named(&data))?.len(), manifest.data_length);
        if length != stated {
            return Err(refused(&data, format!("is {length} bytes long, the manifest says {stated}")));
        }
        Ok(manifest)
    }

    /// Reads `dir/manifest.json` where its `weights.data` need not be.
    ///
    /// # Errors
    /// A [`ManifestError`] that names the file.
    pub fn read_alone(dir: &Path) -> Result<Self, ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let text = shared_bounds::read(&path, MOST_BYTES).map_err(named(&path))?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|e| refused(&path, format!("not a weight manifest: {e}")))?;
        let (found, known) = (manifest.format, manifest.own_format());
        if found != known {
            let words = format!("manifest format {found} is not the format {known} of this program");
            return Err(refused(&path, format!("{words}; export the model again")));
        }
        manifest.check_entries(&path)?;
        if manifest.data_blake3 != hash_of(&manifest.tensors) {
            return Err(refused(&path, "`data_blake3` is not that of the tensors".into()));
        }
        Ok(manifest)
    }

    /// The format of a manifest with this content.
    fn own_format(&self) -> u32 {
        match (&self.adapter, self.rounded) {
            (Some(_), _) => ADAPTER_FORMAT,
            (None, Some(_)) => ROUNDED_FORMAT,
            (None, None) => MANIFEST_FORMAT,
        }
    }

    /// The folder of graph and data: that of the manifest, `dir`, or the base of the adapter.
    #[must_use]
    pub fn export_dir<'a>(&'a self, dir: &'a Path) -> &'a Path {
        self.adapter.as_ref().map_or(dir, |adapter| &adapter.base)
    }

    /// This manifest for a version with these tensors, rounded for samplers that compute in `dtype`.
    #[must_use]
    pub fn with_rounded(self, tensors: Vec<TensorEntry>, dtype: RolloutDtype) -> Self {
        Self { format: ROUNDED_FORMAT, data_blake3: hash_of(&tensors), tensors, rounded: Some(dtype), ..self }
    }

    /// This manifest for a version that adds an adapter to the export in `dir`.
    #[must_use]
    pub fn with_adapter(self, dir: &Path, version: PolicyVersion, blake3: String) -> Self {
        let base = self.export_dir(dir).to_path_buf();
        Self { format: ADAPTER_FORMAT, version, adapter: Some(AdapterEntry { base, blake3 }), ..self }
    }

    /// A reader may map any entry: each must lie inside the file, after the entry before it, and have the length that
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

    /// Writes `dir/manifest.json`, into a folder that is not to be seen yet.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(&self, dir: &Path) -> Result<(), ManifestError> {
        let text = serde_json::to_vec_pretty(self).expect("a manifest is always valid JSON");
        let path = dir.join(MANIFEST_FILE);
        Ok(fs::write(&path, text).map_err(named(&path))?)
    }

    /// Whether the parameters are, by name and shape, those of a model with this configuration.
    #[must_use]
    pub fn is_of(&self, config: &ModelConfig) -> bool {
        self.parameters().eq(config.parameters())
    }

    /// Names and shapes of the parameters, as [`ModelConfig::parameters`] gives them.
    pub fn parameters(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let stored = self.tensors.iter().filter(|t| t.role == TensorRole::Parameter);
        stored.map(|t| (t.name.clone(), t.dimensions()))
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
            blake3: format!("of {name}"),
        }
    }

    /// A folder with a manifest of two tensors and its data; the closure spoils the manifest.
    fn read_spoilt(spoil: impl FnOnce(&mut WeightManifest)) -> Result<WeightManifest, String> {
        let dir = tempfile::tempdir().unwrap();
        let tensors = vec![entry("a", &[2], 0), entry("b", &[2, 3], 4096)];
        let mut manifest = WeightManifest {
            format: MANIFEST_FORMAT,
            version: PolicyVersion(3),
            data_length: 4096 + 24,
            data_blake3: hash_of(&tensors),
            model_blake3: String::new(),
            tensors,
            adapter: None,
            rounded: None,
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
        let error = read_spoilt(|m| m.tensors[1].blake3 = "of another".into()).unwrap_err();
        assert!(error.contains("manifest.json: `data_blake3` is not that of the tensors"), "{error}");
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
    fn an_adapter_has_graph_and_data_of_its_base_and_a_format_of_its_own() {
        let run = tempfile::tempdir().unwrap();
        let [base, version] = ["base", "v1"].map(|name| run.path().join(name));
        fs::create_dir(&base).unwrap();
        fs::create_dir(&version).unwrap();
        fs::write(base.join(DATA_FILE), [0; 8]).unwrap();
        let mut export = WeightManifest {
            format: MANIFEST_FORMAT,
            version: PolicyVersion(0),
            data_length: 8,
            data_blake3: hash_of(&[entry("a", &[2], 0)]),
            model_blake3: String::new(),
            tensors: vec![entry("a", &[2], 0)],
            adapter: None,
            rounded: None,
        };
        export.write(&base).unwrap();
        let adapter = export.clone().with_adapter(&base, PolicyVersion(1), "of the adapter".into());
        adapter.write(&version).unwrap();
        let read = WeightManifest::read(&version).unwrap();
        assert_eq!((&read, read.format, read.version), (&adapter, ADAPTER_FORMAT, PolicyVersion(1)));
        assert_eq!((read.export_dir(&version), export.export_dir(&base)), (&*base, &*base));
        // The base of a version that is derived from another version is the export all the same.
        assert_eq!(read.with_adapter(&version, PolicyVersion(2), String::new()).export_dir(&version), base);

        export.tensors[0].blake3 = "of another".into();
        export.data_blake3 = hash_of(&export.tensors);
        export.write(&base).unwrap();
        let error = WeightManifest::read(&version).unwrap_err().to_string();
        assert!(error.contains("v1/manifest.json: is of an adapter for other weights than those in"), "{error}");
        fs::remove_dir_all(&base).unwrap();
        let error = WeightManifest::read(&version).unwrap_err().to_string();
        assert!(error.contains("base/manifest.json"), "{error}");
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
