//! The model that a command line names: a model directory, a name on the Hub, a run, or a version that a run has
//! published. What belongs to a run is only read, so the run may go on meanwhile.

use std::path::{self, Path, PathBuf};

use anyhow::Context;
use shared::{
    Dtype, ModelDir, PolicyVersion, RunDir, WeightManifest,
    config::layers,
    model::{manifest::MANIFEST_FILE, model_dir::ADAPTER_CONFIG_FILE},
    run::{
        best::Best,
        checkpoints::{self, Depth},
    },
};
use shared_hub::locate_model;

use super::bench::export;
use crate::engine::positions_of;

/// A model that was found, with its weights.
#[derive(Debug)]
pub struct NamedModel {
    /// Where it was found.
    folder: PathBuf,
    dir: ModelDir,
    /// Whether `folder` is a published version: it has graph and weights, and everything else is with the model of its
    /// run.
    is_version: bool,
    /// The choice that was made, in words, where there was one.
    choice: Option<String>,
}

impl NamedModel {
    /// Finds a model by the path of its directory, its name on the Hub, or the folder of a run or of a version in it.
    /// Of a run, the best checkpoint is taken if it has recorded one, else the newest one, else its last published
    /// version.
    ///
    /// # Errors
    /// With the path or name, and the way out.
    pub fn find(named: &Path) -> anyhow::Result<Self> {
        let (folder, choice) = match run_at(named) {
            Some(run) => chosen_of(&run).map(|(folder, choice)| (folder, Some(choice)))?,
            None => (locate_model(named)?, None),
        };
        let (dir, is_version) = match run_of_version(&folder) {
            Some(run) => (model_of(&run)?, true),
            None => (ModelDir::open(&folder)?, false),
        };
        Ok(Self { folder, dir, is_version, choice })
    }

    /// The same with the chat template of a file or folder, where one is given.
    ///
    /// # Errors
    /// A template that cannot be read, by the name of its flag.
    pub fn with_chat_template(mut self, path: Option<&Path>) -> anyhow::Result<Self> {
        self.dir = self.dir.with_chat_template(path).context("--chat-template")?;
        Ok(self)
    }

    /// The folder that was named, or that was chosen in the run that was named.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its architecture, tokenizer and templates. For a published version these are those of the run's model, whose
    /// weights are others.
    #[must_use]
    pub fn dir(&self) -> &ModelDir {
        &self.dir
    }

    /// Says which model was chosen, where a run was named.
    pub fn tell_choice(&self) {
        if let Some(choice) = &self.choice {
            shared::tell!("the model is {}, {choice}", self.folder.display());
        }
    }

    /// The system prompt that it was trained with, if it is of a run that had one.
    #[must_use]
    pub fn trained_system_prompt(&self) -> Option<String> {
        let above = if self.is_version { 2 } else { 1 };
        let file = RunDir::new(path::absolute(&self.folder).ok()?.ancestors().nth(above)?).config();
        // A configuration of something else has no system prompt.
        file.is_file().then(|| layers::load(Some(&file), &Vec::new()).ok()?.system_prompt)?
    }

    /// The longest sequence that it takes, prompt and completion together.
    ///
    /// # Errors
    /// A published version whose manifest cannot be read.
    pub fn limit(&self) -> anyhow::Result<usize> {
        let config = self.dir.config();
        let of_graph = if self.is_version {
            positions_of(&WeightManifest::read(&self.folder)?, config)
        } else {
            config.max_position_embeddings
        };
        Ok(of_graph.min(config.max_position_embeddings))
    }

    /// The folder of its graph and weights for sequences of up to `max_model_len` tokens: the version itself, or an
    /// export, which is made on first use.
    ///
    /// # Errors
    /// A model that cannot be exported, with its folder.
    pub fn export(&self, dtype: Dtype, max_model_len: usize) -> anyhow::Result<PathBuf> {
        if self.is_version { Ok(self.folder.clone()) } else { export(&self.dir, dtype, max_model_len) }
    }
}

/// The run whose folder a path is. A checkpoint has a configuration too, but it is a model.
fn run_at(path: &Path) -> Option<RunDir> {
    let run = RunDir::new(path);
    let is_model = path.join("config.json").is_file() || path.join(ADAPTER_CONFIG_FILE).is_file();
    (run.config().is_file() && !is_model).then_some(run)
}

/// The best checkpoint of a run if it has recorded one, else the newest that is whole, else the last version that it
/// has published; and which of them it is.
fn chosen_of(run: &RunDir) -> anyhow::Result<(PathBuf, String)> {
    let shown = run.root().display();
    if let Some(best) = Best::of(run)? {
        return Ok((run.checkpoint(best.step), format!("its best checkpoint ({} {:.4})", best.metric, best.value)));
    }
    let newest = checkpoints::newest(run, Depth::Contents).with_context(|| shown.to_string())?;
    if let Some(step) = newest.usable(run).map_err(anyhow::Error::msg)? {
        let choice = match newest.damaged.first() {
            None => "its newest checkpoint".to_owned(),
            Some((later, damage)) => format!("its newest checkpoint that is whole (checkpoint-{later}: {damage})"),
        };
        return Ok((run.checkpoint(step), choice));
    }
    let last = run.versions().with_context(|| shown.to_string())?.pop().with_context(|| {
        format!(
            "the run {shown} has neither a checkpoint nor a published version yet; name one when it is there, or the \
             model that it began with"
        )
    })?;
    let PolicyVersion(steps) = last;
    Ok((run.version(last), format!("its last published version, after {steps} steps: it has no checkpoint yet")))
}

/// The run of a published version, by the folder of the version: `RUN_DIR/weights/vNNNNNN`.
fn run_of_version(folder: &Path) -> Option<RunDir> {
    if !folder.join(MANIFEST_FILE).is_file() || folder.join("config.json").is_file() {
        return None;
    }
    let folder = path::absolute(folder).ok()?;
    let weights = folder.parent()?;
    let run = RunDir::new(weights.parent()?);
    (run.weights() == weights && run.config().is_file()).then_some(run)
}

/// The model that a run began with.
fn model_of(run: &RunDir) -> anyhow::Result<ModelDir> {
    let config = layers::load(Some(&run.config()), &Vec::new())?;
    let model = ModelDir::of_run(&config);
    model.with_context(|| format!("the model that the run {} began with", run.root().display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A run with a configuration and the folders given, each with the files given.
    fn run(model: &Path, files: &[&str]) -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        let config =
            format!("model = {model:?}\ndataset = \"d.jsonl\"\nreward_funcs = [\"accuracy\"]\noutput_dir = \".\"\n");
        fs::write(run.config(), config).unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "{}").unwrap();
        }
        (dir, run)
    }

    fn llama() -> PathBuf {
        harness::golden_dir().join("models/llama")
    }

    #[test]
    fn a_run_that_has_nothing_yet_says_what_to_name() {
        let (dir, _) = run(&llama(), &[]);
        let error = NamedModel::find(dir.path()).unwrap_err().to_string();
        assert!(error.contains("has neither a checkpoint nor a published version yet; name one when"), "{error}");
    }

    #[test]
    fn without_a_checkpoint_the_last_version_is_taken_and_its_model_is_the_runs() {
        let (dir, run) = run(&llama(), &["weights/v000002/manifest.json", "weights/v000010/manifest.json"]);
        let model = NamedModel::find(dir.path()).unwrap();
        assert_eq!(model.folder(), run.version(PolicyVersion(10)));
        assert_eq!(model.dir().path(), llama());
        assert!(model.is_version && model.choice.as_ref().is_some_and(|choice| choice.contains("after 10 steps")));
        assert_eq!(model.export(Dtype::Fp32, 64).unwrap(), model.folder(), "nothing is exported");
        let named = NamedModel::find(&run.version(PolicyVersion(2))).unwrap();
        assert!(named.is_version && named.choice.is_none());
        assert_eq!(named.trained_system_prompt(), None);
        let config = fs::read_to_string(run.config()).unwrap();
        fs::write(run.config(), config + "system_prompt = \"short\"\n").unwrap();
        assert_eq!(named.trained_system_prompt().as_deref(), Some("short"));
        assert_eq!(NamedModel::find(&llama()).unwrap().trained_system_prompt(), None);
    }

    #[test]
    fn a_version_without_its_run_and_a_folder_that_is_no_model_are_refused() {
        let (dir, run) = run(&llama(), &["weights/v000002/manifest.json"]);
        fs::remove_file(run.config()).unwrap();
        for folder in [run.version(PolicyVersion(2)), dir.path().to_owned()] {
            let error = NamedModel::find(&folder).unwrap_err().to_string();
            assert!(error.contains("has no config.json"), "{error}");
        }
        let error = NamedModel::find(Path::new("/no/such/run")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/run: no such directory"), "{error}");
    }
}
