//! The model that a command line names ([`NamedModel`]), as the engine takes it.

use std::path::PathBuf;

use shared::{Dtype, WeightManifest};
pub use shared_hub::NamedModel;

use super::bench;
use crate::engine::positions_of;

/// The longest sequence that a model takes, prompt and completion together.
///
/// # Errors
/// A published version whose manifest cannot be read.
pub fn limit(model: &NamedModel) -> anyhow::Result<usize> {
    let config = model.dir().config();
    let of_graph = if model.is_version() {
        let manifest = WeightManifest::read(model.folder()).map_err(anyhow::Error::new);
        positions_of(&read(model, manifest)?, config)
    } else {
        config.max_position_embeddings
    };
    Ok(of_graph.min(config.max_position_embeddings))
}

/// The folder of a model's graph and weights for sequences of up to `max_model_len` tokens: the version itself, or an
/// export, which is made on first use.
///
/// # Errors
/// A model that cannot be exported, with its folder.
pub fn export(model: &NamedModel, dtype: Dtype, max_model_len: usize) -> anyhow::Result<PathBuf> {
    if model.is_version() {
        return Ok(model.folder().to_owned());
    }
    read(model, bench::export(model.dir(), dtype, max_model_len))
}

/// What was read of a model; the error says so if its folder has gone since it was found.
fn read<T>(model: &NamedModel, result: anyhow::Result<T>) -> anyhow::Result<T> {
    result.map_err(|error| match model.gone() {
        None => error,
        Some(gone) => error.context(gone),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use shared::RunDir;

    use super::*;

    #[test]
    fn a_version_is_its_own_export_and_is_said_to_have_gone_when_it_has() {
        let (dir, llama) = (tempfile::tempdir().unwrap(), harness::golden_dir().join("models/llama"));
        let run = RunDir::new(dir.path());
        let of = |model: &Path| {
            format!("model = {model:?}\ndataset = \"d.jsonl\"\nreward_funcs = [\"accuracy\"]\noutput_dir = \".\"\n")
        };
        fs::write(run.config(), of(&llama)).unwrap();
        let version = run.weights().join("v000002");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("manifest.json"), "{}").unwrap();
        let model = NamedModel::find(dir.path()).unwrap();
        assert_eq!(export(&model, Dtype::Fp32, 64).unwrap(), model.folder(), "nothing is exported");
        assert!(!format!("{:#}", limit(&model).unwrap_err()).contains("meanwhile"), "it is there, but is no manifest");
        fs::remove_dir_all(run.weights()).unwrap();
        let error = limit(&model).unwrap_err().to_string();
        assert!(error.contains("v000002 has been removed meanwhile"), "{error}");
    }
}
