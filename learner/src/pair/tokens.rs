//! `completions/tokens-N.jsonl`: what the loss of a step did with every token.

use std::{fs, io};

use shared::{Episode, RunDir, TokenLogprob, files::atomic, run::ledger::TokenRecord};

use crate::{
    ragged::Ragged,
    step::{StepBatch, StepInputs, TokenNotes},
};

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
        let episode = &row.completion.episode;
        let marked = |marks: &Ragged<bool>| -> Vec<u32> {
            sampled_places(episode).zip(&marks[index]).filter(|(_, marked)| **marked).map(|(at, _)| at).collect()
        };
        let float = |values: &[f64]| among_given(episode, values.iter().map(|&value| value as f32).collect());
        let weights = inputs.importance.as_ref().map(|importance| match &importance.rows[index] {
            // Of the completion.
            [weight] if importance.per_sequence => vec![*weight as f32],
            weights => float(weights),
        });
        let record = TokenRecord {
            group: row.group.id.index,
            sample: row.completion.sample,
            tokens: episode.token_ids().to_vec(),
            owner: if episode.given() == 0 { Vec::new() } else { episode.owner_mask().map(u8::from).collect() },
            branches: episode.paths().skip(1).map(|path| path.start as u32).collect(),
            versions: episode.versions().map(|(first, version)| (first, version.0)).collect(),
            sampler: among_given(episode, episode.logprobs().map(TokenLogprob::sampling_logprob).collect()),
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

/// Where the sampled tokens stand among all tokens.
fn sampled_places(episode: &Episode) -> impl Iterator<Item = u32> {
    episode.owner_mask().zip(0..).filter(|(sampled, _)| *sampled).map(|(_, at)| at)
}

/// Values of the sampled tokens with NaN for the given ones between them; of a row that nothing is known of, nothing.
fn among_given(episode: &Episode, sampled: Vec<f32>) -> Vec<f32> {
    if sampled.is_empty() || episode.given() == 0 {
        return sampled;
    }
    let mut sampled = sampled.into_iter();
    episode.owner_mask().map(|owned| if owned { sampled.next().unwrap_or(f32::NAN) } else { f32::NAN }).collect()
}

#[cfg(test)]
mod tests {
    use shared::{FinishReason, PolicyVersion, Segment, Why};

    use super::*;

    #[test]
    fn values_of_sampled_tokens_stand_at_their_places_among_given_ones() {
        let mut episode = Episode::default();
        let turn = |ids: &'static [u32]| Segment::Sampled {
            ids,
            logprobs: &[TokenLogprob { logprob: 0.0, logprob_at_temperature: -0.5, log_kept_mass: 0.0, kept_count: 0 };
                2],
            versions: &[(0, PolicyVersion(1))],
            finish: FinishReason::Stop,
        };
        episode.push(turn(&[1, 2]));
        episode.push(Segment::Given { ids: &[3, 4, 5], why: Why::Reply });
        episode.push(turn(&[6, 7]));
        assert_eq!(sampled_places(&episode).collect::<Vec<_>>(), [0, 1, 5, 6]);
        let shown = format!("{:?}", among_given(&episode, vec![0.1, 0.2, 0.3, 0.4]));
        assert_eq!(shown, "[0.1, 0.2, NaN, NaN, NaN, 0.3, 0.4]");
        assert_eq!(among_given(&episode, Vec::new()), [0.0; 0], "nothing is known");
        let one_turn = Episode::of_one_turn(vec![1], vec![TokenLogprob::default()], Vec::new(), FinishReason::Stop);
        assert_eq!(among_given(&one_turn, vec![0.5]), [0.5]);
    }
}
