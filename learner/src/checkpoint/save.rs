//! Checkpoints are written whole or not at all.

use std::{fs, path::Path};

use shared::{
    ModelDir, RunDir, atomic,
    manifest::{DATA_FILE, MANIFEST_FILE, MODEL_FILE},
};
use tch::Tensor;

use super::{CRITIC_DIR, OPTIMIZER_FILE, REFERENCE_DIR, STATE_FILE, TrainerState};
use crate::{error::LearnerError, step::Trainer};

/// Writes `checkpoint-N` for the state's step and removes the oldest ones beyond `limit`.
///
/// `version_dir` is the published version with the same weights; its files are shared, not copied, where the file
/// system can.
///
/// # Errors
/// Any error of the file system; the checkpoint is then not there.
pub fn save(
    run_dir: &RunDir,
    model: &ModelDir,
    version_dir: &Path,
    trainer: &Trainer,
    state: &TrainerState,
    limit: Option<u32>,
) -> Result<(), LearnerError> {
    atomic::write_dir(&run_dir.checkpoint(state.step), |dir| {
        fill(dir, model, trainer, state)?;
        for name in [MODEL_FILE, DATA_FILE, MANIFEST_FILE] {
            share(&version_dir.join(name), &dir.join(name))?;
        }
        Ok::<_, LearnerError>(())
    })?;
    let Some(limit) = limit else {
        return Ok(());
    };
    let steps = run_dir.checkpoints()?;
    let surplus = steps.len().saturating_sub(limit.max(1) as usize);
    for step in &steps[..surplus] {
        atomic::remove_dir(&run_dir.checkpoint(*step))?;
    }
    Ok(())
}

/// Writes everything that training goes on from: policy, optimiser, critic, a reference that moves, and the state.
///
/// # Errors
/// Any error of the file system.
pub(super) fn fill(dir: &Path, model: &ModelDir, trainer: &Trainer, state: &TrainerState) -> Result<(), LearnerError> {
    let policy = trainer.policy();
    exporters::fill_hf(model, dir, &mut |name| policy.parameters().read_f32(name).map_err(Into::into))?;
    Tensor::write_safetensors(&policy.state(), dir.join(OPTIMIZER_FILE))?;
    if let Some(reference) = trainer.moving_reference() {
        let parameters = reference.weights().trained();
        let folder = dir.join(REFERENCE_DIR);
        fs::create_dir(&folder)?;
        exporters::fill_hf(model, &folder, &mut |name| parameters.read_f32(name).map_err(Into::into))?;
    }
    if let Some(critic) = trainer.credit().critic() {
        let (folder, scorer) = (dir.join(CRITIC_DIR), critic.trained());
        fs::create_dir(&folder)?;
        let read = &mut |name: &str| scorer.parameters().read_f32(name).map_err(Into::into);
        exporters::fill_hf_scorer(critic.source(), &folder, read)?;
        Tensor::write_safetensors(&scorer.state(), folder.join(OPTIMIZER_FILE))?;
    }
    let text = serde_json::to_vec_pretty(state).expect("a trainer state is valid JSON");
    fs::write(dir.join(STATE_FILE), text)?;
    Ok(())
}

/// Version files never change, so one copy on disk serves both names.
fn share(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(|_| ()))
}
