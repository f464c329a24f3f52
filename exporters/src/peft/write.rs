//! Writing a PEFT directory.

use std::{collections::HashMap, path::Path};

use shared::{PolicyVersion, WeightManifest, files::atomic, model::model_dir::ADAPTER_CONFIG_FILE};

use super::{ADAPTER_WEIGHTS_FILE, AdapterConfig, BASE_KEY};
use crate::{ExportError, TensorSource, tensor_file};

/// Writes the folder `out` of a new version that is an adapter on `base` (an export, or an earlier version of this
/// kind): a PEFT directory with a manifest that names base and adapter by their hashes. `out` appears whole or not at
/// all.
///
/// # Errors
/// An unusable `base`, or as [`fill_adapter`].
pub fn write_adapter_version(
    base: &Path,
    out: &Path,
    version: PolicyVersion,
    config: &AdapterConfig,
    read: TensorSource<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    let mut manifest = None;
    atomic::write_passing_dir(out, |dir| {
        manifest = Some(fill_adapter_version(base, dir, version, config, read)?);
        Ok::<_, ExportError>(())
    })?;
    Ok(manifest.expect("a folder that was written has a manifest"))
}

/// As [`write_adapter_version`], into an existing folder: one part of a larger [`atomic::write_dir`], such as a
/// checkpoint.
///
/// # Errors
/// As [`write_adapter_version`]; the folder may then have some of the files.
pub fn fill_adapter_version(
    base: &Path,
    dir: &Path,
    version: PolicyVersion,
    config: &AdapterConfig,
    read: TensorSource<'_, '_>,
) -> Result<WeightManifest, ExportError> {
    // An absolute path, because versions may be moved.
    let base = std::path::absolute(base)?;
    let export = WeightManifest::read(&base)?;
    fill_adapter(dir, config, export.parameters(), read)?;
    let hash = tensor_file::hash(&tensor_file::map(&dir.join(ADAPTER_WEIGHTS_FILE))?);
    let manifest = export.with_adapter(&base, version, hash);
    manifest.write(dir)?;
    Ok(manifest)
}

/// Writes both files of an adapter into an existing folder, one part of a larger [`atomic::write_dir`]. `read` gives
/// the fp32 values of the [`tensors`](AdapterConfig::tensors) one by one, in their order, for a base with these
/// `parameters`.
///
/// # Errors
/// As [`write_hf`](crate::write_hf), or an unknown module; the folder may then have some of the files.
pub fn fill_adapter(
    dir: &Path,
    config: &AdapterConfig,
    parameters: impl IntoIterator<Item = (String, Vec<usize>)>,
    read: TensorSource<'_, '_>,
) -> Result<(), ExportError> {
    let base = config.base_blake3.iter().map(|hash| (BASE_KEY.to_owned(), hash.clone()));
    let modules = config.modules(parameters)?;
    let tensors = config.tensors_of(&modules);
    let own: HashMap<String, &str> =
        tensors.iter().map(|(name, _)| (config.stored_name(name), name.as_str())).collect();
    let stored: Vec<_> = tensors.iter().map(|(name, shape)| (config.stored_name(name), shape.clone())).collect();
    tensor_file::write_f32(&dir.join(ADAPTER_WEIGHTS_FILE), &stored, base, &mut |name| read(own[name]))?;
    atomic::write(&dir.join(ADAPTER_CONFIG_FILE), format!("{:#}\n", config.to_json(&modules)).as_bytes())?;
    Ok(())
}
