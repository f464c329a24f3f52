//! `completions/tokens-N.jsonl`: what the loss of a step did with every token.

use std::{fs, io};

use shared::{RunDir, TokenLogprob, atomic, ledger::TokenRecord};

use crate::step::{StepBatch, StepInputs, TokenNotes};

/// Writes the tokens of a step and removes those of steps before the newest `kept`.
///
/// # Errors
/// Any error of the file system.
pub fn write(run_dir: &RunDir, step: u64, kept: u64, text: &[u8]) -> io::Result<()> {
    atomic::write(&run_dir.step_tokens(step), text)?;
    for old in run_dir.steps_with_tokens()?.into_iter().filter(|old| old + kept <= step) {
        fs::remove_file(run_dir.step_tokens(old))?;
    }
    Ok(())
}

/// A line for each completion of a step.
///
/// # Errors
/// Values that JSON cannot hold.
pub fn text(batch: &StepBatch<'_>, inputs: &StepInputs, notes: &TokenNotes) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for (index, row) in batch.rows.iter().enumerate() {
        let marked = |marks: &crate::ragged::Ragged<bool>| -> Vec<u32> {
            marks[index].iter().zip(0..).filter(|(marked, _)| **marked).map(|(_, at)| at).collect()
        };
        let float = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
        let weights = inputs.importance.as_ref().map(|importance| float(&importance.rows[index]));
        let record = TokenRecord {
            group: row.group.id.index,
            sample: row.completion.sample,
            tokens: row.completion.token_ids.clone(),
            versions: row.completion.versions.iter().map(|&(first, version)| (first, version.0)).collect(),
            sampler: row.completion.logprobs.iter().map(TokenLogprob::sampling_logprob).collect(),
            learner: float(&inputs.old_logprobs[index]),
            entropy: float(&notes.entropies[index]),
            advantages: float(&inputs.advantages[index]),
            weights: weights.unwrap_or_default(),
            marks: notes.marks.iter().map(|(key, marks)| ((*key).to_owned(), marked(marks))).collect(),
        };
        serde_json::to_writer(&mut text, &record)?;
        text.push(b'\n');
    }
    Ok(text)
}
