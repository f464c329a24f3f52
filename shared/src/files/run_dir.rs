//! The run directory: one type that names every file of a run.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

use crate::{
    files::atomic::{self, named},
    generation::ids::PolicyVersion,
    system::memory::SHARED_MEMORY,
};

/// File of a checkpoint with what was in flight at the sampler ([`crate::channel::in_flight`]).
pub const IN_FLIGHT_FILE: &str = "in_flight.frames";

/// Prefix of folders in shared memory that hold versions of a run.
pub(crate) const VERSIONS_PREFIX: &str = "tandem-weights-";

/// Paths of a run, below `output_dir` of the configuration.
#[derive(Debug, Clone)]
pub struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// Names a run directory without touching the disk.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Creates the folders of the run.
    ///
    /// # Errors
    /// When the directory cannot be written, with its path.
    pub fn create(&self) -> io::Result<()> {
        // A link into shared memory whose target a restart of the machine has removed.
        if self.weights().is_symlink() && !self.weights().exists() {
            fs::remove_file(self.weights()).map_err(named(&self.weights()))?;
        }
        for dir in [self.root.clone(), self.logs(), self.completions(), self.weights()] {
            fs::create_dir_all(&dir).map_err(named(&dir))?;
        }
        Ok(())
    }

    /// Refuses what stands in the place of a file or folder that the run will write: a link, a pipe, a device. In a
    /// directory made by somebody else, a link may lead to any file of the user's. The directory itself, and what
    /// is above it, may be reached by links; `weights` may be a link to where versions lie ([`crate::run::versions`]).
    ///
    /// # Errors
    /// The first such place, by name.
    pub fn check_places(&self) -> io::Result<()> {
        let logs = ["learner", "rollout", "report_to"].map(|process| self.log(process));
        let files = [
            self.config(),
            self.lock(),
            self.run_id(),
            self.metrics(),
            self.eval(),
            self.comparisons(),
            self.notices(),
            self.ledger(),
            self.prompts(),
            self.workers(),
            self.finished(),
            self.ended(),
            self.best(),
            self.in_flight(),
            self.editions(),
            self.trace(),
            self.report(),
        ];
        files.iter().chain(&logs).try_for_each(|path| shared_bounds::require_replaceable(path).map_err(named(path)))?;
        for folder in [self.logs(), self.completions(), self.batches(), self.rounded()] {
            match fs::symlink_metadata(&folder) {
                Ok(there) if !there.is_dir() => {
                    let what =
                        if there.is_symlink() { "is a link, which is not written through" } else { "is no folder" };
                    let message = format!("{}: {what}; remove it, or move it away", folder.display());
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                }
                _ => (),
            }
        }
        check_link(&self.weights())
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The resolved configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// Folder of the processes' logs.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// Log of one of the processes, `rollout` or `learner`.
    #[must_use]
    pub fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    /// Held by the launcher as long as it runs, so that two launchers never share a run.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("run.lock")
    }

    /// The id of the run, new at every start of a launcher ([`crate::channel::RunId`]).
    #[must_use]
    pub fn run_id(&self) -> PathBuf {
        self.root.join("run.id")
    }

    /// One JSON object per step, written by the learner.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }

    /// One JSON object per evaluation, written by the sampler.
    #[must_use]
    pub fn eval(&self) -> PathBuf {
        self.root.join("eval.jsonl")
    }

    /// One JSON object for each time that `compare` examined a model of the run.
    #[must_use]
    pub fn comparisons(&self) -> PathBuf {
        self.root.join("comparisons.jsonl")
    }

    /// The run's notices, one JSON object per notice, written by the learner.
    #[must_use]
    pub fn notices(&self) -> PathBuf {
        self.root.join("notices.jsonl")
    }

    /// What became of every prompt and completion ([`crate::run::ledger`]), written by the learner.
    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.root.join("ledger.jsonl")
    }

    /// The loss's treatment of every token of a step, one JSON object per completion.
    #[must_use]
    pub fn step_tokens(&self, step: u64) -> PathBuf {
        self.completions().join(format!("tokens-{step}.jsonl"))
    }

    /// Prompts that the sampler leaves out or shortens, if there are any ([`crate::run::prompts`]).
    #[must_use]
    pub fn prompts(&self) -> PathBuf {
        self.root.join("prompts.json")
    }

    /// The samplers on other hosts as they are now ([`crate::run::workers`]), of a run that has some; written by the
    /// coordinator.
    #[must_use]
    pub fn workers(&self) -> PathBuf {
        self.root.join("workers.json")
    }

    /// Folder of the sampled completions.
    #[must_use]
    pub fn completions(&self) -> PathBuf {
        self.root.join("completions")
    }

    /// Completions of a step, one JSON object per line.
    #[must_use]
    pub fn step_completions(&self, step: u64) -> PathBuf {
        self.completions().join(format!("step-{step}.jsonl"))
    }

    /// Steps whose completions were kept, ascending.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn logged_steps(&self) -> io::Result<Vec<u64>> {
        numbered(&self.completions(), |name| name.strip_prefix("step-")?.strip_suffix(".jsonl")?.parse().ok())
    }

    /// Steps of which [`RunDir::step_tokens`] is there, ascending.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn steps_with_tokens(&self) -> io::Result<Vec<u64>> {
        numbered(&self.completions(), |name| name.strip_prefix("tokens-")?.strip_suffix(".jsonl")?.parse().ok())
    }

    /// Removes the records of completions of later steps, which will be made again.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn remove_completions_after(&self, step: u64) -> io::Result<()> {
        let [samples, tokens] = [self.logged_steps()?, self.steps_with_tokens()?];
        let later = |steps: Vec<u64>| steps.into_iter().filter(move |known| *known > step);
        let paths = later(samples).map(|step| self.step_completions(step));
        for path in paths.chain(later(tokens).map(|step| self.step_tokens(step))) {
            atomic::remove_file(&path)?;
        }
        Ok(())
    }

    /// Folder of the published weight versions, or a link to it; see [`crate::run::versions`].
    #[must_use]
    pub fn weights(&self) -> PathBuf {
        self.root.join("weights")
    }

    /// Folder of one weight version.
    #[must_use]
    pub fn version(&self, version: PolicyVersion) -> PathBuf {
        self.weights().join(format!("v{:06}", version.0))
    }

    /// Versions on disk whose folder is complete, ascending.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn versions(&self) -> io::Result<Vec<PolicyVersion>> {
        let number = |name: &str| name.strip_prefix('v').and_then(|n| n.parse().ok()).map(PolicyVersion);
        numbered(&self.weights(), number)
    }

    /// Folder of a checkpoint taken after `step` completed steps.
    #[must_use]
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.root.join(format!("checkpoint-{step}"))
    }

    /// Completed steps of every checkpoint on disk, ascending.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn checkpoints(&self) -> io::Result<Vec<u64>> {
        numbered(&self.root, |name| name.strip_prefix("checkpoint-").and_then(|n| n.parse().ok()))
    }

    /// Folder of the steps that `save_step_batches` keeps.
    #[must_use]
    pub fn batches(&self) -> PathBuf {
        self.root.join("batches")
    }

    /// The batch of a step and the state at its beginning; `step` counts from 1, as in the metrics.
    #[must_use]
    pub fn step_batch(&self, step: u64) -> PathBuf {
        self.batches().join(format!("step-{step}"))
    }

    /// Steps that were kept, ascending.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn step_batches(&self) -> io::Result<Vec<u64>> {
        numbered(&self.batches(), |name| name.strip_prefix("step-").and_then(|n| n.parse().ok()))
    }

    /// Written by the learner when every step of the run is done: its last status, for a sampler that starts too late
    /// to hear it.
    #[must_use]
    pub fn finished(&self) -> PathBuf {
        self.root.join("finished.json")
    }

    /// How the last start of the run ended ([`crate::run::ended`]), for people; written by the launcher.
    #[must_use]
    pub fn ended(&self) -> PathBuf {
        self.root.join("ended.json")
    }

    /// The best checkpoint by the evaluations ([`crate::run::best`]), with `metric_for_best_model`; written by the
    /// learner.
    #[must_use]
    pub fn best(&self) -> PathBuf {
        self.root.join("best.json")
    }

    /// With `load_best_model_at_end`, a link to the checkpoint that is the run's model, once the run has ended.
    #[must_use]
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }

    /// The checkpoint that [`RunDir::model`] leads to, if the link is there and the checkpoint too.
    #[must_use]
    pub fn chosen_checkpoint(&self) -> Option<PathBuf> {
        let target = fs::read_link(self.model()).ok()?;
        let step = target.to_str()?.strip_prefix("checkpoint-")?.parse().ok()?;
        Some(self.checkpoint(step)).filter(|checkpoint| checkpoint.is_dir())
    }

    /// Makes [`RunDir::model`] a link to the checkpoint of a step, in the place of an earlier link.
    ///
    /// # Errors
    /// Something else than a link in its place, or any error of the file system, with the path.
    pub fn link_model(&self, step: u64) -> io::Result<()> {
        let (link, target) = (self.model(), format!("checkpoint-{step}"));
        match fs::symlink_metadata(&link) {
            Ok(there) if !there.is_symlink() => {
                let message = format!("{}: is no link, and stays as it is; move it away", link.display());
                Err(io::Error::new(io::ErrorKind::AlreadyExists, message))
            }
            _ => atomic::link(&link, Path::new(&target)),
        }
    }

    /// What the sampler has in flight, on its way into a checkpoint ([`crate::channel::in_flight`]).
    #[must_use]
    pub fn in_flight(&self) -> PathBuf {
        self.root.join(IN_FLIGHT_FILE)
    }

    /// The store of a run with workers, unless `weights_store` says otherwise.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.root.join("store")
    }

    /// The run's versions in the store of its workers.
    #[must_use]
    pub fn editions(&self) -> PathBuf {
        self.root.join("editions.json")
    }

    /// Versions as workers fetch them, if they fetch rounded ones.
    #[must_use]
    pub fn rounded(&self) -> PathBuf {
        self.root.join("rounded")
    }

    /// Timeline of the sampler, with `rollout_trace`; written when it ends.
    #[must_use]
    pub fn trace(&self) -> PathBuf {
        self.root.join("trace.json")
    }

    /// The self-contained report.
    #[must_use]
    pub fn report(&self) -> PathBuf {
        self.root.join("report.html")
    }

    /// Removes the mark that the run is finished, and the link to its model; for a process that resumes it.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn reopen(&self) -> io::Result<()> {
        if self.model().is_symlink() {
            atomic::remove_file(&self.model())?;
        }
        atomic::remove_file(&self.finished())
    }

    /// Removes half-written files of killed processes; for the process that holds the run.
    ///
    /// # Errors
    /// When a folder cannot be listed or an entry cannot be removed.
    pub fn remove_litter(&self) -> io::Result<()> {
        let folders = [self.root.clone(), self.weights(), self.completions(), self.batches()];
        folders.iter().filter(|dir| dir.is_dir()).try_for_each(|dir| atomic::remove_temporary(dir))
    }
}

/// Refuses a `weights` that is a link, unless it leads to this user's folder of versions in shared memory.
///
/// # Errors
/// Its target, with the way out.
fn check_link(weights: &Path) -> io::Result<()> {
    let Ok(target) = fs::read_link(weights) else { return Ok(()) };
    let is_place = target.parent() == Some(Path::new(SHARED_MEMORY))
        && target.file_name().is_some_and(|name| name.to_string_lossy().starts_with(VERSIONS_PREFIX));
    let is_ours = match fs::symlink_metadata(&target) {
        // A target that is gone with a restart of the machine does no harm.
        Err(e) if e.kind() == io::ErrorKind::NotFound => true,
        there => there.is_ok_and(|there| there.is_dir() && there.uid() == geteuid().as_raw()),
    };
    if is_place && is_ours {
        return Ok(());
    }
    let (weights, target) = (weights.display(), target.display());
    let message = format!("{weights}: is a link to {target}, where no versions of this user lie; remove it");
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

fn numbered<T: Ord>(dir: &Path, parse: impl Fn(&str) -> Option<T>) -> io::Result<Vec<T>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(named(dir)(e)),
    };
    let numbers = entries.map(|entry| Ok(parse(&entry?.file_name().to_string_lossy())));
    let mut found: Vec<T> = numbers.filter_map(io::Result::transpose).collect::<io::Result<_>>()?;
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_checkpoints_are_listed_in_order_of_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path().join("run"));
        assert!(run.versions().unwrap().is_empty() && run.checkpoints().unwrap().is_empty());
        run.create().unwrap();
        for step in [10, 9, 100] {
            fs::create_dir(run.checkpoint(step)).unwrap();
            fs::create_dir(run.version(PolicyVersion(step))).unwrap();
        }
        fs::create_dir(run.root().join("checkpoint-best")).unwrap();
        fs::create_dir(run.weights().join(".tmp-1-v000101")).unwrap();
        assert_eq!(run.checkpoints().unwrap(), [9, 10, 100]);
        assert_eq!(run.versions().unwrap(), [9, 10, 100].map(PolicyVersion));
    }

    #[test]
    fn the_link_to_the_model_moves_on_and_goes_with_the_mark_of_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        for step in [4, 8] {
            fs::create_dir(run.checkpoint(step)).unwrap();
            run.link_model(step).unwrap();
            assert_eq!(run.model().canonicalize().unwrap(), run.checkpoint(step).canonicalize().unwrap());
            assert_eq!(run.chosen_checkpoint(), Some(run.checkpoint(step)));
        }
        fs::remove_dir(run.checkpoint(8)).unwrap();
        assert_eq!(run.chosen_checkpoint(), None);
        run.reopen().unwrap();
        assert!(fs::symlink_metadata(run.model()).is_err());
        fs::create_dir(run.model()).unwrap();
        let error = run.link_model(8).unwrap_err().to_string();
        run.reopen().unwrap();
        assert!(error.contains("is no link") && run.model().is_dir(), "{error}");
    }

    #[test]
    fn only_litter_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        run.create().unwrap();
        fs::create_dir(run.weights().join(".tmp-7-v000003")).unwrap();
        fs::write(run.weights().join(".tmp-7-v000003/weights.data"), "half").unwrap();
        fs::write(run.root().join(".tmp-7-metrics.jsonl"), "half").unwrap();
        fs::write(run.metrics(), "whole").unwrap();
        fs::create_dir(run.version(PolicyVersion(2))).unwrap();
        run.remove_litter().unwrap();
        assert!(run.metrics().exists() && run.version(PolicyVersion(2)).exists());
        assert_eq!(fs::read_dir(run.weights()).unwrap().count(), 1);
        assert!(!run.root().join(".tmp-7-metrics.jsonl").exists());
    }

    #[test]
    fn completions_of_steps_that_are_made_again_go() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        run.create().unwrap();
        for step in [9, 10, 11] {
            fs::write(run.step_completions(step), "").unwrap();
            fs::write(run.step_tokens(step), "").unwrap();
        }
        run.remove_completions_after(9).unwrap();
        assert_eq!((run.logged_steps().unwrap(), run.steps_with_tokens().unwrap()), (vec![9], vec![9]));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let error = RunDir::new(dir.path().join("file/run")).create().unwrap_err();
        assert!(error.to_string().contains("file/run"), "{error}");
    }

    #[test]
    fn links_and_pipes_in_the_places_of_a_run_are_refused_by_name_and_links_to_it_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("thesis"), "").unwrap();
        std::os::unix::fs::symlink(dir.path().join("real"), dir.path().join("run")).unwrap();
        fs::create_dir(dir.path().join("real")).unwrap();
        let run = RunDir::new(dir.path().join("run"));
        run.create().unwrap();
        run.check_places().unwrap();
        let files =
            ["run.lock", "run.id", "config.toml", "metrics.jsonl", "ledger.jsonl", "notices.jsonl", "report.html"];
        for name in files.into_iter().chain(["logs/learner.log", "logs/rollout.log", "finished.json"]) {
            let path = run.root().join(name);
            std::os::unix::fs::symlink(outside.join("thesis"), &path).unwrap();
            let error = run.check_places().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("is a link"), "{error}");
            fs::remove_file(&path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            let error = run.check_places().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("is a pipe"), "{error}");
            fs::remove_file(&path).unwrap();
        }
        for name in ["logs", "completions", "batches", "weights"] {
            let path = run.root().join(name);
            let _ = fs::remove_dir_all(&path);
            std::os::unix::fs::symlink(&outside, &path).unwrap();
            let error = run.check_places().unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("link"), "{error}");
            fs::remove_file(&path).unwrap();
        }
        run.check_places().unwrap();
        assert!(outside.join("thesis").exists());
    }
}
