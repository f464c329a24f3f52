//! The model that a command line names: a model directory, a name on the Hub, a run, or a version that a run has
//! published. What belongs to a run is only read, so the run may go on meanwhile.

use std::{
    io,
    path::{self, Path, PathBuf},
};

use shared::{
    ModelDir, PolicyVersion, RunDir,
    config::layers,
    metrics::Figure,
    model::{
        manifest::MANIFEST_FILE,
        model_dir::{ADAPTER_CONFIG_FILE, ModelDirError, has_base},
    },
    run::{
        best::Best,
        checkpoints::{self, Depth},
    },
};

use crate::{HubError, locate_model};

/// How often a model is chosen in a run that goes on: the chosen one may be removed while it is read.
const TRIES: usize = 3;

/// A model that cannot be found or opened.
#[derive(Debug, thiserror::Error)]
pub enum NamedModelError {
    /// A name on the Hub that cannot be used.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A directory that is no model.
    #[error(transparent)]
    Directory(#[from] ModelDirError),
    /// A file or folder of a run that cannot be read.
    #[error("{path}: {reason}")]
    Io {
        /// The run, or its file.
        path: String,
        /// The reason.
        reason: io::Error,
    },
    /// A run without a model that can be used; the text says what to name.
    #[error("{0}")]
    Run(String),
}

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
    /// version. A run that goes on may remove the chosen one while it is read; then another one is chosen.
    ///
    /// # Errors
    /// With the path or name, and the way out.
    pub fn find(named: &Path) -> Result<Self, NamedModelError> {
        let Some(run) = run_at(named) else {
            return Self::open(locate_model(named)?, None);
        };
        let listed = || (run.checkpoints().ok(), run.versions().ok());
        for _ in 0..TRIES {
            let before = listed();
            match chosen_of(&run).and_then(|(folder, choice)| Self::open(folder, Some(choice))) {
                Err(_) if listed() != before => {}
                found => return found,
            }
        }
        Err(NamedModelError::Run(format!(
            "the run {} has moved on while its model was read, {TRIES} times; ask again, or name a checkpoint that it \
             keeps",
            named.display()
        )))
    }

    fn open(folder: PathBuf, choice: Option<String>) -> Result<Self, NamedModelError> {
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
    pub fn with_chat_template(mut self, path: Option<&Path>) -> Result<Self, NamedModelError> {
        let failed = |error| NamedModelError::Run(format!("--chat-template: {error}"));
        self.dir = self.dir.with_chat_template(path).map_err(failed)?;
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

    /// Whether its folder is a published version: graph and weights, whose architecture and tokenizer are those of the
    /// run's model.
    #[must_use]
    pub fn is_version(&self) -> bool {
        self.is_version
    }

    /// Says which model was chosen, where a run was named.
    pub fn tell_choice(&self) {
        tell(&self.folder, self.choice.as_deref());
    }

    /// The system prompt that it was trained with, if it is of a run that had one.
    #[must_use]
    pub fn trained_system_prompt(&self) -> Option<String> {
        // A configuration of something else has no system prompt.
        layers::load(Some(&self.run()?.config()), &Vec::new()).ok()?.system_prompt
    }

    /// Whether its folder has been removed since it was found, as a run that goes on removes older ones: words for the
    /// error of what was read of it.
    #[must_use]
    pub fn gone(&self) -> Option<String> {
        (!self.folder.is_dir()).then(|| {
            format!(
                "{} has been removed meanwhile, as a run that goes on removes older ones; name the run, or a newer one",
                self.folder.display()
            )
        })
    }

    /// The run that it belongs to, as a checkpoint or version of it; a run has a configuration.
    #[must_use]
    pub fn run(&self) -> Option<RunDir> {
        run_above(&self.folder, if self.is_version { 2 } else { 1 })
    }
}

/// A LoRA adapter that was found, and whose base is not on this machine.
#[derive(Debug)]
pub struct NamedAdapter {
    folder: PathBuf,
    choice: Option<String>,
}

impl NamedAdapter {
    /// Finds an adapter as [`NamedModel::find`] does; none where the name leads to something else, or where the base is
    /// on this machine.
    ///
    /// # Errors
    /// As [`NamedModel::find`].
    pub fn find(named: &Path) -> Result<Option<Self>, NamedModelError> {
        let (folder, choice) = match run_at(named) {
            Some(run) => chosen_of(&run).map(|(folder, choice)| (folder, Some(choice)))?,
            None => (locate_model(named)?, None),
        };
        let is_alone = folder.join(ADAPTER_CONFIG_FILE).is_file() && !has_base(&folder)?;
        Ok(is_alone.then_some(Self { folder, choice }))
    }

    /// The folder that was named, or that was chosen in the run that was named.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Says which adapter was chosen, where a run was named.
    pub fn tell_choice(&self) {
        tell(&self.folder, self.choice.as_deref());
    }

    /// The run that it belongs to, as a checkpoint of it.
    #[must_use]
    pub fn run(&self) -> Option<RunDir> {
        run_above(&self.folder, 1)
    }
}

/// Says which folder was chosen in a run.
fn tell(folder: &Path, choice: Option<&str>) {
    if let Some(choice) = choice {
        shared::tell!("the model is {}, {choice}", folder.display());
    }
}

/// The run so many folders above one, if it is a run: it has a configuration.
fn run_above(folder: &Path, above: usize) -> Option<RunDir> {
    let run = RunDir::new(path::absolute(folder).ok()?.ancestors().nth(above)?);
    run.config().is_file().then_some(run)
}

/// The run whose folder a path is. A model may lie beside a configuration in two places: in a folder that is no run,
/// and in a run to whose folder a script has saved it, as TRL's do. That copy is as old as the saving.
fn run_at(path: &Path) -> Option<RunDir> {
    let run = RunDir::new(path);
    let is_model = path.join("config.json").is_file() || path.join(ADAPTER_CONFIG_FILE).is_file();
    (run.config().is_file() && (!is_model || run.metrics().is_file())).then_some(run)
}

/// The best checkpoint of a run if it has recorded one that is whole, else the newest that is whole, else the last
/// version that it has published; and which of them it is.
fn chosen_of(run: &RunDir) -> Result<(PathBuf, String), NamedModelError> {
    let not_best = match Best::of(run) {
        Ok(None) => String::new(),
        Ok(Some(best)) => match checkpoints::check(&run.checkpoint(best.step), Depth::Contents) {
            Ok(_) => {
                let choice = format!("its best checkpoint ({} {:.4})", best.metric, Figure(best.value));
                return Ok((run.checkpoint(best.step), choice));
            }
            Err(damage) => format!("; its best one is not whole (checkpoint-{}: {damage})", best.step),
        },
        Err(error) => format!("; its best one is not known ({error})"),
    };
    let (folder, choice) = newest_of(run)?;
    Ok((folder, choice + &not_best))
}

/// The newest checkpoint of a run that is whole, else the last version that it has published; and which of them it is.
fn newest_of(run: &RunDir) -> Result<(PathBuf, String), NamedModelError> {
    let shown = run.root().display();
    let io = |reason| NamedModelError::Io { path: shown.to_string(), reason };
    let newest = checkpoints::newest(run, Depth::Contents).map_err(io)?;
    if let Some(step) = newest.usable(run).map_err(NamedModelError::Run)? {
        let choice = match newest.damaged.first() {
            None => "its newest checkpoint".to_owned(),
            Some((later, damage)) => format!("its newest checkpoint that is whole (checkpoint-{later}: {damage})"),
        };
        return Ok((run.checkpoint(step), choice));
    }
    let last = run.versions().map_err(io)?.pop().ok_or_else(|| {
        NamedModelError::Run(format!(
            "the run {shown} has neither a checkpoint nor a published version yet; name one when it is there, or the \
             model that it began with"
        ))
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
fn model_of(run: &RunDir) -> Result<ModelDir, NamedModelError> {
    let config = layers::load(Some(&run.config()), &Vec::new()).map_err(|e| NamedModelError::Run(e.to_string()))?;
    ModelDir::of_run(&config).map_err(|error| {
        NamedModelError::Run(format!("the model that the run {} began with: {error}", run.root().display()))
    })
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
        let named = NamedModel::find(&run.version(PolicyVersion(2))).unwrap();
        assert!(named.is_version && named.choice.is_none());
        assert_eq!(named.trained_system_prompt(), None);
        let config = fs::read_to_string(run.config()).unwrap();
        fs::write(run.config(), config + "system_prompt = \"short\"\n").unwrap();
        assert_eq!(named.trained_system_prompt().as_deref(), Some("short"));
        assert_eq!(NamedModel::find(&llama()).unwrap().trained_system_prompt(), None);
    }

    #[test]
    fn a_best_checkpoint_that_cannot_be_used_gives_way_to_the_newest_and_the_choice_says_why() {
        let (dir, run) = run(&llama(), &[]);
        for step in [2, 4] {
            let checkpoint = run.checkpoint(step);
            fs::create_dir(&checkpoint).unwrap();
            fs::write(checkpoint.join("trainer_state.json"), "{}").unwrap();
            harness::tiny_model::SMALL.write(&checkpoint, step);
            checkpoints::seal(&checkpoint).unwrap();
        }
        let chosen = || {
            let found = NamedModel::find(dir.path()).unwrap();
            (found.folder, found.choice.unwrap())
        };
        let metric = "eval_accuracy".to_owned();
        Best { step: 2, metric, value: 0.5, greater_is_better: true }.write(&run).unwrap();
        assert_eq!(chosen(), (run.checkpoint(2), "its best checkpoint (eval_accuracy 0.5000)".to_owned()));
        fs::write(run.checkpoint(2).join("model.safetensors"), "cut").unwrap();
        let (folder, choice) = chosen();
        assert_eq!(folder, run.checkpoint(4));
        let words = "its newest checkpoint; its best one is not whole (checkpoint-2: model.safetensors is not what was";
        assert!(choice.starts_with(words), "{choice}");
        fs::write(run.best(), "{").unwrap();
        let (folder, choice) = chosen();
        assert_eq!(folder, run.checkpoint(4));
        assert!(
            choice.starts_with("its newest checkpoint; its best one is not known (") && choice.contains("best.json")
        );
    }

    /// TRL's scripts end with `trainer.save_model(training_args.output_dir)`, and the run may go on after that.
    #[test]
    fn a_model_that_a_script_saved_into_the_run_is_not_taken_for_the_run() {
        let (dir, run) = run(&llama(), &["weights/v000002/manifest.json", "metrics.jsonl", "config.json"]);
        assert_eq!(NamedModel::find(dir.path()).unwrap().folder(), run.version(PolicyVersion(2)));
        fs::remove_file(run.metrics()).unwrap();
        assert!(run_at(dir.path()).is_none(), "a model with a configuration beside it");
    }

    #[test]
    fn a_model_that_has_gone_since_it_was_found_is_said_to_have_gone() {
        let (dir, run) = run(&llama(), &["weights/v000002/manifest.json"]);
        let model = NamedModel::find(dir.path()).unwrap();
        assert!(model.run().is_some_and(|run| run.root() == dir.path()) && model.gone().is_none());
        fs::remove_dir_all(run.weights()).unwrap();
        assert!(model.gone().unwrap().contains("v000002 has been removed meanwhile"));
    }

    /// An adapter goes to others without its base.
    #[test]
    fn an_adapter_without_its_base_is_found_by_itself() {
        let (dir, run) = run(&llama(), &["checkpoint-2/adapter_config.json"]);
        let checkpoint = run.checkpoint(2);
        let base = |base: &Path| {
            let config = format!("{{\"base_model_name_or_path\": {base:?}}}");
            fs::write(checkpoint.join(ADAPTER_CONFIG_FILE), config).unwrap();
        };
        base(Path::new("/no/such/base"));
        assert!(NamedModel::find(&checkpoint).is_err());
        let found = NamedAdapter::find(&checkpoint).unwrap().unwrap();
        assert!(found.folder() == checkpoint && found.run().is_some_and(|run| run.root() == dir.path()));
        let link = checkpoint.join("tokenizer.json");
        std::os::unix::fs::symlink("/etc/hostname", &link).unwrap();
        let error = NamedAdapter::find(&checkpoint).unwrap_err().to_string();
        assert!(error.contains("is a link to /etc/hostname, outside of the model"), "{error}");
        fs::remove_file(link).unwrap();
        base(&llama());
        assert!(NamedAdapter::find(&checkpoint).unwrap().is_none(), "its base is here");
        assert!(NamedAdapter::find(&llama()).unwrap().is_none(), "a whole model");
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
