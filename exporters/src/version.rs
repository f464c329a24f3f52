//! Version directories: the weights of one policy version with the graph they belong to.

use std::{fs, path::Path};

use memmap2::Mmap;
use rayon::prelude::*;
use shared::{
    Dtype, PolicyVersion, TensorEntry, TensorRole, WeightManifest,
    files::atomic,
    model::manifest::{DATA_FILE, MANIFEST_FORMAT, MODEL_FILE, hash_of},
};

use crate::{
    Adapter, ExportError, TensorSource,
    layout::{self, Values},
    tensor_file, values,
};

/// Writes the folder `out` of a new version: the graph and constants of `base` (an export or an earlier version) with
/// the parameters that `read` gives, asked for one by one in the manifest's order. `out` appears whole or not at all,
/// but may be lost when the machine stops: nothing waits for the disk.
///
/// # Errors
/// An unusable `base`, an error of `read` or of the file system, or values that do not fit (by name).
pub fn write_version(
    base: &Path,
    out: &Path,
    version: PolicyVersion,
    read: TensorSource<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    let mut manifest = None;
    atomic::write_passing_dir(out, |dir| {
        manifest = Some(fill_version(base, dir, version, read)?);
        Ok::<_, ExportError>(())
    })?;
    Ok(manifest.expect("a folder that was written has a manifest"))
}

/// As [`write_version`], into an existing folder: one part of a larger [`atomic::write_dir`], such as a checkpoint.
///
/// # Errors
/// As [`write_version`]; the folder may then have some of the files.
pub fn fill_version(
    base: &Path,
    dir: &Path,
    version: PolicyVersion,
    read: TensorSource<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    let base = VersionDir::open(base)?;
    fill(dir, version, &base.manifest.tensors, &base.graph, |tensor| match tensor.role {
        TensorRole::Constant => Ok(Values::Stored(base.bytes(tensor))),
        TensorRole::Parameter => match read(&tensor.name) {
            Ok(values) => Ok(Values::Floats(values)),
            Err(source) => Err(ExportError::Tensor { name: tensor.name.clone(), source }),
        },
    })
}

/// Writes a version into an existing folder, given its graph and the tensors of a manifest, whose values `read` gives
/// one by one. The returned manifest has the hashes of the written tensors.
///
/// # Errors
/// As [`write_version`]; the folder may then have some of the files.
pub fn fill_tensors(
    dir: &Path,
    version: PolicyVersion,
    tensors: &[TensorEntry],
    graph: &[u8],
    read: TensorSource<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    fill(dir, version, tensors, graph, |tensor| {
        let values = read(&tensor.name);
        values.map(Values::Floats).map_err(|source| ExportError::Tensor { name: tensor.name.clone(), source })
    })
}

/// Writes the three files of a version into a folder that is not visible yet: the graph, the tensors, which `give`
/// passes on one by one, and the manifest.
pub(crate) fn fill<'a>(
    dir: &Path,
    version: PolicyVersion,
    tensors: &[TensorEntry],
    graph: &[u8],
    give: impl FnMut(&TensorEntry) -> Result<Values<'a>, ExportError>,
) -> Result<WeightManifest, ExportError> {
    let tensors = layout::write_data(&dir.join(DATA_FILE), tensors, give)?;
    let model = dir.join(MODEL_FILE);
    fs::write(&model, graph).map_err(|e| ExportError::io(&model, e))?;
    let manifest = WeightManifest {
        format: MANIFEST_FORMAT,
        version,
        data_length: layout::data_length(&tensors),
        data_blake3: hash_of(&tensors),
        model_blake3: blake3::hash(graph).to_hex().to_string(),
        tensors,
        adapter: None,
        rounded: None,
    };
    manifest.write(dir)?;
    Ok(manifest)
}

/// A tensor as it is stored.
#[derive(Debug)]
pub struct Inspected<'a> {
    /// Its entry in the manifest.
    pub entry: &'a TensorEntry,
    /// Whether its bytes are those the manifest was written for.
    pub intact: bool,
    /// Its 2-norm ([`norm`](crate::norm)).
    pub norm: f64,
}

/// An export or version directory, opened for reading.
#[derive(Debug)]
pub struct VersionDir {
    manifest: WeightManifest,
    graph: Vec<u8>,
    data: Mmap,
    adapter: Option<Adapter>,
}

impl VersionDir {
    /// Opens a folder and checks that its parts belong together; the weights themselves are mapped, not read, but for
    /// those of an adapter.
    ///
    /// # Errors
    /// A missing or damaged manifest, graph, data file or adapter, by name.
    pub fn open(dir: &Path) -> Result<Self, ExportError> {
        let manifest = WeightManifest::read(dir)?;
        let export = manifest.export_dir(dir);
        let model_path = export.join(MODEL_FILE);
        let graph = fs::read(&model_path).map_err(|e| ExportError::io(&model_path, e))?;
        if blake3::hash(&graph).to_hex().as_str() != manifest.model_blake3 {
            return Err(ExportError::content(&model_path, "is not the graph that the manifest was written for"));
        }
        let (data, adapter) = (tensor_file::map(&export.join(DATA_FILE))?, Adapter::of_version(dir, &manifest)?);
        Ok(Self { manifest, graph, data, adapter })
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &WeightManifest {
        &self.manifest
    }

    /// The mapped weights, for a reader of its own.
    #[must_use]
    pub fn into_data(self) -> Mmap {
        self.data
    }

    /// The serialised graph.
    #[must_use]
    pub fn graph(&self) -> &[u8] {
        &self.graph
    }

    /// The values of a tensor, row-major, with what an adapter adds to it.
    ///
    /// # Errors
    /// An unknown name.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, ExportError> {
        let unknown = || ExportError::values(name, "the manifest has no tensor of that name");
        let tensor = self.manifest.tensor(name).ok_or_else(unknown)?;
        let values = values::decode(self.bytes(tensor), tensor.dtype);
        Ok(match &self.adapter {
            Some(adapter) => adapter.merged(name, values),
            None => values,
        })
    }

    /// Whether the weights are, bit for bit, those the manifest was written for; reads all of them.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.damaged().next().is_none()
    }

    /// The names of tensors whose bytes are not those the manifest was written for.
    pub fn damaged(&self) -> impl Iterator<Item = &str> {
        let differs = |tensor: &&TensorEntry| tensor_file::hash(self.bytes(tensor)) != tensor.blake3;
        self.manifest.tensors.iter().filter(differs).map(|tensor| tensor.name.as_str())
    }

    /// Every tensor as it is stored, in the order of the file, without what an adapter adds; reads all of them once, on
    /// all cores.
    #[must_use]
    pub fn inspect(&self) -> Vec<Inspected<'_>> {
        let inspect = |entry| {
            let (hash, norm) = values::hash_and_norm(self.bytes(entry), entry.dtype);
            Inspected { entry, intact: hash == entry.blake3, norm }
        };
        self.manifest.tensors.par_iter().map(inspect).collect()
    }

    /// The adapter of the version, if it is one.
    #[must_use]
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapter.as_ref()
    }

    /// Checks that the stored parameters are those that `read` gives, bit for bit.
    ///
    /// # Errors
    /// The first that is not, by name, or an error of `read`.
    pub fn require(&self, read: TensorSource<'_, '_>) -> Result<(), ExportError> {
        for tensor in self.manifest.tensors.iter().filter(|tensor| tensor.role == TensorRole::Parameter) {
            let name = &tensor.name;
            let meant = read(name).map_err(|source| ExportError::Tensor { name: name.clone(), source })?;
            if *values::encode(name, &meant, tensor.dtype)? != *self.bytes(tensor) {
                return Err(ExportError::unlike(name));
            }
        }
        Ok(())
    }

    /// The tensors that an adapter changes, each with its merged values as the graph takes them.
    pub fn merged(&self) -> impl Iterator<Item = Result<(&TensorEntry, Vec<u8>), ExportError>> {
        let changes = |tensor: &&TensorEntry| self.adapter.as_ref().is_some_and(|a| a.update(&tensor.name).is_some());
        self.manifest.tensors.iter().filter(changes).map(|tensor| {
            let values = self.read_f32(&tensor.name)?;
            Ok((tensor, values::encode(&tensor.name, &values, tensor.dtype)?.into_owned()))
        })
    }

    /// The stored values of one of its tensors, in place, if they are fp32; without what an adapter adds to them.
    #[must_use]
    pub fn floats(&self, tensor: &TensorEntry) -> Option<&[f32]> {
        let floats = bytemuck::try_cast_slice(self.bytes(tensor)).ok();
        floats.filter(|_| tensor.dtype == Dtype::Fp32)
    }

    pub(crate) fn bytes(&self, tensor: &TensorEntry) -> &[u8] {
        &self.data[tensor.offset as usize..(tensor.offset + tensor.length) as usize]
    }
}
