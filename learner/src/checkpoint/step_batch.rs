//! `batches/step-N/`: the groups of a step beside the state that it began with, a checkpoint without the ONNX model.

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use shared::{ModelDir, RolloutGroup, RunDir, atomic, channel::frame};

use super::{TrainerState, save::fill};
use crate::{error::LearnerError, step::Trainer};

/// The groups, as frames of the channel behind their lengths (8 bytes, little-endian).
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
    groups: &[RolloutGroup],
) -> Result<(), LearnerError> {
    atomic::write_dir(&run_dir.step_batch(state.step + 1), |dir| {
        fill(dir, model, trainer, state)?;
        atomic::write_with(&dir.join(GROUPS_FILE), |file| {
            for group in groups {
                let frame = frame::encode(group);
                file.write_all(&(frame.len() as u64).to_le_bytes())?;
                file.write_all(&frame)?;
            }
            Ok::<_, io::Error>(())
        })?;
        Ok(())
    })
}

/// The groups of a kept step.
///
/// # Errors
/// A missing, damaged or foreign file, by name.
pub fn read_step_batch(dir: &Path) -> Result<Vec<RolloutGroup>, LearnerError> {
    let path = dir.join(GROUPS_FILE);
    let damaged = |message: String| LearnerError::content(&path, message);
    let bytes = fs::read(&path).map_err(|e| damaged(format!("cannot be read: {e}")))?;
    let (mut rest, mut groups) = (bytes.as_slice(), Vec::new());
    while let Some((length, tail)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let (frame, tail) = tail.split_at_checked(length).ok_or_else(|| damaged("ends within a group".into()))?;
        groups.push(frame::decode(frame).map_err(|e| damaged(e.to_string()))?);
        rest = tail;
    }
    if !rest.is_empty() || groups.is_empty() {
        return Err(damaged("ends within a group".into()));
    }
    Ok(groups)
}
