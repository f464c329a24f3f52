//! `batches/step-N/`: the groups of a step beside the state that it began with, a checkpoint without the ONNX model.

use std::path::Path;

use shared::{
    ModelDir, Placed, RunDir,
    channel::in_flight::{read_groups, write_groups},
    files::atomic,
};

use super::{TrainerState, save::fill};
use crate::{error::LearnerError, step::Trainer};

/// The groups, as [`write_groups`] writes them.
const GROUPS_FILE: &str = "groups.frames";

/// Keeps the groups of the step that is about to be trained, and the state before it.
///
/// # Errors
/// Any error of the file system; the step is then not kept.
pub fn save_step_batch(
    run_dir: &RunDir,
    model: &ModelDir,
    trainer: &Trainer,
    state: &TrainerState,
    groups: &[Placed],
) -> Result<(), LearnerError> {
    atomic::write_dir(&run_dir.step_batch(state.step + 1), |dir| {
        fill(dir, model, trainer, state)?;
        write_groups(&dir.join(GROUPS_FILE), groups)?;
        Ok(())
    })
}

/// The groups of a kept step.
///
/// # Errors
/// A missing, damaged or foreign file, by name.
pub fn read_step_batch(dir: &Path) -> Result<Vec<Placed>, LearnerError> {
    let path = dir.join(GROUPS_FILE);
    let groups = read_groups(&path).map_err(|e| LearnerError::content(&path, e.to_string()))?;
    if groups.is_empty() {
        return Err(LearnerError::content(&path, "has no group"));
    }
    Ok(groups)
}
