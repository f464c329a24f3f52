//! Checkpoints are written whole or not at all.

use std::{fs, path::Path};

use shared::{
    ModelDir, RunDir, atomic,
    manifest::{DATA_FILE, MANIFEST_FILE, MODEL_FILE},
};
use tch::Tensor;

use super::{CRITIC_DIR, OPTIMIZER_FILE, REFERENCE_DIR, STATE_FILE, TrainerState};
use crate::{error::LearnerError, model::Decoder, step::Trainer};

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
    let adapted = trainer.policy().model().weights().adapter().is_some();
    atomic::write_dir(&run_dir.checkpoint(state.step), |dir| {
        fill(dir, model, trainer, state)?;
        // An adapter's version has no graph and no weights.
        let shared: &[&str] = if adapted { &[] } else { &[MODEL_FILE, DATA_FILE, MANIFEST_FILE] };
        for name in shared {
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
    fill_policy(dir, model, policy.model())?;
    Tensor::write_safetensors(&policy.state(), dir.join(OPTIMIZER_FILE))?;
    if let Some(reference) = trainer.moving_reference() {
        let folder = dir.join(REFERENCE_DIR);
        fs::create_dir(&folder)?;
        fill_policy(&folder, model, reference)?;
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

/// The model, or its adapter, as it is trained.
fn fill_policy(dir: &Path, model: &ModelDir, policy: &Decoder) -> Result<(), LearnerError> {
    let trained = policy.weights().trained();
    let mut read = |name: &str| trained.read_f32(name).map_err(Into::into);
    match policy.weights().adapter() {
        Some((config, _)) => exporters::fill_adapter(dir, config, model.config().parameters(), &mut read)?,
        None => exporters::fill_hf(model, dir, &mut read)?,
    }
    Ok(())
}

/// Version files never change, so one copy on disk serves both names.
fn share(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(|_| ()))
}
