//! Checkpoints are written whole or not at all.

use std::{fs, path::Path};

use exporters::ExportError;
use shared::{
    ModelDir, PolicyVersion, RunDir, WeightManifest,
    files::{
        atomic::{self, named},
        run_dir::IN_FLIGHT_FILE,
    },
    run::checkpoints,
};

use super::{CRITIC_DIR, OPTIMIZER_FILE, REFERENCE_DIR, STATE_FILE, TrainerState};
use crate::{error::LearnerError, model::Decoder, publish::Publisher, step::Trainer};

/// Which checkpoints stay, when a new one is there and when another one is the best.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retention {
    /// `save_total_limit`.
    pub limit: Option<u32>,
    /// The best one by the evaluations, which counts for the limit and stays beside the newest in any case.
    pub best: Option<u64>,
    /// The one that the guard would go back to, which stays in any case.
    pub healthy: Option<u64>,
}

impl Retention {
    /// Removes the checkpoints of a run that do not stay.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn remove_surplus(self, run_dir: &RunDir) -> Result<(), LearnerError> {
        let surplus = self.surplus(&run_dir.checkpoints()?);
        for step in surplus.into_iter().filter(|step| self.healthy != Some(*step)) {
            atomic::remove_dir(&run_dir.checkpoint(step))?;
        }
        Ok(())
    }

    /// The oldest ones beyond the limit, of those that are there.
    fn surplus(self, steps: &[u64]) -> Vec<u64> {
        let Some(limit) = self.limit else { return Vec::new() };
        let mut others = steps.to_vec();
        others.retain(|step| Some(*step) != self.best);
        let stay = match limit.max(1) as usize {
            limit if others.len() == steps.len() => limit,
            limit => (limit - 1).max(usize::from(steps.last() == others.last())),
        };
        others.truncate(others.len().saturating_sub(stay));
        others
    }
}

/// Writes `checkpoint-N` for the state's step, with the version of that number. `more` adds the files of others, when
/// everything else is written.
///
/// # Errors
/// Any error of the file system; the checkpoint is then not there.
pub fn save(
    run_dir: &RunDir,
    model: &ModelDir,
    publisher: &Publisher,
    trainer: &Trainer,
    state: &TrainerState,
    more: impl FnOnce(&Path) -> Result<(), LearnerError>,
) -> Result<(), LearnerError> {
    atomic::write_dir(&run_dir.checkpoint(state.step), |dir| {
        fill(dir, model, trainer, state)?;
        publisher.fill(dir, PolicyVersion(state.step), trainer.policy().model().weights())?;
        more(dir)?;
        Ok::<_, LearnerError>(checkpoints::seal(dir)?)
    })
}

/// Makes `checkpoint-N` for the state's step from an earlier checkpoint. Models and optimisers are those of the earlier
/// one, and the state says where the run is.
///
/// # Errors
/// A file that cannot be read or written; the checkpoint is then not there.
pub fn go_back(run_dir: &RunDir, earlier: &Path, state: TrainerState) -> Result<(), LearnerError> {
    let carried = TrainerState::read(earlier)?.carried.at(&state.carried);
    let state = TrainerState { carried, ..state };
    atomic::write_dir(&run_dir.checkpoint(state.step), |dir| {
        atomic::copy_files(earlier, dir)?;
        // Groups that were in flight then have been trained on since.
        atomic::remove_file(&dir.join(IN_FLIGHT_FILE))?;
        if let Ok(manifest) = WeightManifest::read(earlier) {
            let version = PolicyVersion(state.step);
            WeightManifest { version, ..manifest }.write(dir).map_err(ExportError::from)?;
        }
        write_state(dir, &state)?;
        Ok::<_, LearnerError>(checkpoints::seal(dir)?)
    })
}

/// Writes everything that training goes on from: policy, optimiser, critic, a reference that moves, and the state.
///
/// # Errors
/// Any error of the file system.
pub fn fill(dir: &Path, model: &ModelDir, trainer: &Trainer, state: &TrainerState) -> Result<(), LearnerError> {
    let policy = trainer.policy();
    fill_policy(dir, model, policy.model())?;
    policy.save_state(Some(&dir.join(OPTIMIZER_FILE)))?;
    if let Some(reference) = trainer.moving_reference() {
        let folder = dir.join(REFERENCE_DIR);
        fs::create_dir(&folder).map_err(named(&folder))?;
        fill_policy(&folder, model, reference)?;
    }
    if let Some(critic) = trainer.credit().critic() {
        let (folder, scorer) = (dir.join(CRITIC_DIR), critic.trained());
        fs::create_dir(&folder).map_err(named(&folder))?;
        let host = scorer.parameters().host();
        exporters::fill_hf_scorer(critic.source(), &folder, &mut |name| Ok(host.values(name)?.into()))?;
        scorer.save_state(Some(&folder.join(OPTIMIZER_FILE)))?;
    }
    write_state(dir, state)
}

/// Called by the other ranks while the first one saves: gives it this rank's part of the optimisers' state, if it has
/// one.
///
/// # Errors
/// A rank that is gone.
pub fn help_to_save(trainer: &Trainer) -> Result<(), LearnerError> {
    trainer.policy().save_state(None)?;
    trainer.credit().critic().map_or(Ok(()), |critic| critic.trained().save_state(None))
}

fn write_state(dir: &Path, state: &TrainerState) -> Result<(), LearnerError> {
    let text = serde_json::to_vec_pretty(state).expect("a trainer state is valid JSON");
    let path = dir.join(STATE_FILE);
    Ok(fs::write(&path, text).map_err(named(&path))?)
}

/// The model, or its adapter, as it is trained.
fn fill_policy(dir: &Path, model: &ModelDir, policy: &Decoder) -> Result<(), LearnerError> {
    let trained = policy.weights().trained().host();
    let mut read = |name: &str| Ok(trained.values(name)?.into());
    match policy.weights().adapter() {
        Some((config, _)) => {
            exporters::fill_adapter(dir, config, model.config().parameters(), &mut read)?;
            exporters::fill_adapter_companions(model, dir)?;
        }
        None => exporters::fill_hf(model, dir, &mut read)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shared::config::TrainConfig;

    use super::*;

    #[test]
    fn the_newest_checkpoints_stay_and_the_best_one_in_the_place_of_an_old_one() {
        let gone = |limit, best, steps: &[u64]| Retention { limit, best, healthy: None }.surplus(steps);
        assert!(gone(None, None, &[1, 2, 3]).is_empty());
        assert_eq!(gone(Some(2), None, &[1, 2, 3]), [1]);
        assert_eq!(gone(Some(0), None, &[1, 2, 3]), [1, 2], "the newest stays");
        assert_eq!(gone(Some(2), Some(1), &[1, 2, 3]), [2]);
        assert_eq!(gone(Some(3), Some(1), &[1, 2, 3, 4]), [2]);
        assert_eq!(gone(Some(1), Some(2), &[1, 2, 3]), [1], "the best and the newest");
        assert_eq!(gone(Some(1), Some(3), &[1, 2, 3]), [1, 2], "the best is the newest");
        assert_eq!(gone(Some(2), Some(9), &[1, 2, 3]), [1], "the best is not there");
    }

    #[test]
    fn a_checkpoint_that_was_the_best_goes_when_another_one_is() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        [2, 4, 6].into_iter().for_each(|step| fs::create_dir(run_dir.checkpoint(step)).unwrap());
        let left = |best, healthy| {
            Retention { limit: Some(1), best, healthy }.remove_surplus(&run_dir).unwrap();
            run_dir.checkpoints().unwrap()
        };
        assert_eq!(left(Some(2), Some(4)), [2, 4, 6]);
        assert_eq!(left(Some(2), Some(2)), [2, 6]);
        assert_eq!(left(Some(6), Some(2)), [2, 6], "the guard would go back to it");
        assert_eq!(left(Some(6), None), [6]);
    }

    #[test]
    fn a_roll_back_does_not_bring_back_what_was_in_flight() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        let state = |step| TrainerState { step, ..TrainerState::start(&TrainConfig::default(), 9) };
        let earlier = run_dir.checkpoint(3);
        fs::create_dir(&earlier).unwrap();
        write_state(&earlier, &state(3)).unwrap();
        fs::write(earlier.join(IN_FLIGHT_FILE), "in flight").unwrap();
        // The shortest file of tensors.
        fs::write(earlier.join(OPTIMIZER_FILE), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        go_back(&run_dir, &earlier, state(5)).unwrap();
        let found = [IN_FLIGHT_FILE, OPTIMIZER_FILE].map(|file| run_dir.checkpoint(5).join(file).exists());
        assert_eq!(found, [false, true]);
        checkpoints::check(&run_dir.checkpoint(5), checkpoints::Depth::Contents).unwrap();
    }
}
