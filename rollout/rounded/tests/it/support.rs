//! Versions of small models.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use exporters::{ExportOptions, VersionDir, export, norm, write_version};
use harness::tiny_model::{Qwen2, TINY};
use shared::{Canaries, Dtype, ModelDir, PolicyVersion, config::RolloutDtype, generation::rng::Stream};

/// The formats in which samplers compute.
pub const DTYPES: [RolloutDtype; 6] = [
    RolloutDtype::Auto,
    RolloutDtype::Bf16x3,
    RolloutDtype::Bf16,
    RolloutDtype::Bf16Dot,
    RolloutDtype::Int8,
    RolloutDtype::Int4,
];

/// A model whose matrices have several blocks, the last of which are shorter.
pub const WIDE: Qwen2 = Qwen2 { hidden_size: 256, intermediate_size: 1100, num_attention_heads: 4, ..TINY };

/// Versions of a model, in a folder that goes with them.
pub struct Versions {
    folder: tempfile::TempDir,
}

impl Versions {
    /// With version 0, of a golden model.
    pub fn of_golden(name: &str) -> Self {
        Self::of(&ModelDir::open(harness::golden_model_dir(name)).unwrap())
    }

    /// With version 0, of a random model.
    pub fn of_random(model: Qwen2) -> Self {
        let folder = tempfile::tempdir().unwrap();
        model.write(folder.path(), 1);
        Self::of(&ModelDir::open(folder.path()).unwrap())
    }

    fn of(model: &ModelDir) -> Self {
        let versions = Self { folder: tempfile::tempdir().unwrap() };
        export(model, &versions.path("v0"), &ExportOptions::default()).unwrap();
        versions.write_canaries(0);
        versions
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a version whose values `change` makes from those of the version before.
    pub fn write(&self, version: u64, change: impl Fn(&str, &mut [f32])) {
        let before = VersionDir::open(&self.path(&format!("v{}", version - 1))).unwrap();
        let mut read = |name: &str| {
            let mut values = before.read_f32(name)?;
            change(name, &mut values);
            Ok(values.into())
        };
        let name = format!("v{version}");
        write_version(&self.path("v0"), &self.path(&name), PolicyVersion(version), &mut read).unwrap();
        self.write_canaries(version);
    }

    /// As [`Versions::write`], with every number changed a little.
    pub fn train(&self, version: u64, rate: f32) {
        self.write(version, |name, values| {
            let mut stream = Stream::new(&[version, name.len() as u64]);
            values.iter_mut().for_each(|value| *value += rate * (stream.below(2001) as f32 * 1e-3 - 1.0));
        });
    }

    /// The canaries of a learner that has the weights in the folder; nobody scores them here.
    fn write_canaries(&self, version: u64) {
        let dir = self.path(&format!("v{version}"));
        let stored = VersionDir::open(&dir).unwrap();
        let norm_of = |name: String| (name.clone(), norm(&stored.read_f32(&name).unwrap()));
        let canaries = Canaries {
            version: PolicyVersion(version),
            dtype: Dtype::Fp32,
            token_ids: vec![1, 2, 3],
            logprobs: vec![-1.0],
            norms: stored.manifest().parameters().map(|(name, _)| norm_of(name)).collect(),
        };
        canaries.write(&dir).unwrap();
    }
}

/// Names and bytes of the files of a folder.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}
