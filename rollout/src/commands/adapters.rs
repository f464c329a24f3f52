//! Adapters on a model that is served, by the paths that a command line or a client names.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, ensure};
use exporters::{Adapter, Checkpoint, ExportError};
use shared::{Architecture, ModelDir, model::model_dir::ADAPTER_CONFIG_FILE};
use shared_hub::locate_model;

use super::model::NamedModel;

/// A model that adapters are found for.
pub struct Base {
    folder: PathBuf,
    /// Of its weights, once an adapter names those that it is for.
    blake3: Mutex<Option<String>>,
}

impl Base {
    /// That of a named model, which has to be a whole one.
    ///
    /// # Errors
    /// An adapter or a published version.
    pub fn of(model: &NamedModel) -> anyhow::Result<Self> {
        let named = model.folder().display();
        ensure!(
            model.dir().adapter().is_none() && !model.is_version(),
            "adapters need a whole model: let --model name the base of {named}, or merge it with its base: tandem merge"
        );
        Ok(Self { folder: model.dir().path().to_path_buf(), blake3: Mutex::default() })
    }

    /// Opens an adapter for this base: a directory of PEFT, a checkpoint or a published version of a run with
    /// `use_peft`, the run itself, or a name on the Hub.
    ///
    /// # Errors
    /// With the path: nothing of that kind, or an adapter for another base.
    pub fn adapter(&self, named: &Path) -> anyhow::Result<Adapter> {
        let folder = folder_of(named)?;
        let model = ModelDir::open_adapter(&folder, &self.folder)?;
        let (adapter, base) = (Adapter::open(&folder, model.config().parameters())?, self.folder.display());
        let is_for = adapter.is_for(|| self.blake3());
        ensure!(is_for?, "{} is an adapter for other weights than those in {base}", folder.display());
        self.compare(&folder, &adapter.config().base_model_name_or_path, model.config().architecture)?;
        Ok(adapter)
    }

    /// Compares this base with the one that an adapter names, where that is a folder here: adapters of PEFT say nothing
    /// of its weights.
    fn compare(&self, adapter: &Path, named: &str, architecture: Architecture) -> anyhow::Result<()> {
        let is_this = || Some(Path::new(named).canonicalize().ok()? == self.folder.canonicalize().ok()?);
        let Some(other) = ModelDir::open(named).ok().filter(|_| is_this() == Some(false)) else { return Ok(()) };
        let (adapter, base) = (adapter.display(), self.folder.display());
        ensure!(
            other.config().architecture == architecture,
            "{adapter} is an adapter for {named}, a model of another architecture than that in {base}"
        );
        shared::tell!("warning: {adapter} names {named} as its base, and goes onto {base}");
        Ok(())
    }

    fn blake3(&self) -> Result<String, ExportError> {
        let mut known = self.blake3.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blake3) = &*known {
            return Ok(blake3.clone());
        }
        let blake3 = Checkpoint::open(&ModelDir::open(&self.folder)?)?.weights_blake3();
        Ok(known.insert(blake3).clone())
    }
}

/// The directory of an adapter, which is chosen where a run is named.
fn folder_of(named: &Path) -> anyhow::Result<PathBuf> {
    let is_adapter = |folder: &Path| folder.join(ADAPTER_CONFIG_FILE).is_file();
    let located = locate_model(named)?;
    if is_adapter(&located) {
        return Ok(located);
    }
    let model = NamedModel::find(&located).with_context(|| format!("no adapter (without {ADAPTER_CONFIG_FILE})"))?;
    model.tell_choice();
    let folder = model.folder();
    ensure!(is_adapter(folder), "{} is a whole model and no adapter: serve it with --model", folder.display());
    Ok(folder.to_path_buf())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use harness::tiny_model::SMALL;

    use super::*;

    #[test]
    fn an_adapter_for_a_model_of_another_architecture_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [own, alike, other] = ["own", "alike", "other"].map(|name| dir.path().join(name));
        [&own, &alike, &other].into_iter().for_each(|folder| SMALL.write(folder, 1));
        let config = fs::read_to_string(other.join("config.json")).unwrap();
        fs::write(other.join("config.json"), config.replace("\"qwen2\"", "\"llama\"")).unwrap();
        let base = Base { folder: own.clone(), blake3: Mutex::default() };
        let compare = |named: &Path| base.compare(Path::new("a"), named.to_str().unwrap(), Architecture::Qwen2);
        for named in [&own, &alike, Path::new("Qwen/Qwen2.5-0.5B"), Path::new("")] {
            compare(named).unwrap();
        }
        let error = compare(&other).unwrap_err().to_string();
        let words = format!("a is an adapter for {}, a model of another architecture than that in", other.display());
        assert!(error.starts_with(&words), "{error}");
    }
}
