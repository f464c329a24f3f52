//! What became of every completion of a step, for the ledger.

use shared::{
    DroppedGroup, LedgerGroup, LedgerState, RolloutGroup,
    metrics::{self, MetricRecord},
};

use crate::step::{Row, StepBatch, StepInputs};

/// The groups of a batch and those that were dropped on the way to it. `step` is the number of the step, `skipped` whether none
/// of its updates was made.
#[must_use]
pub fn groups(batch: &StepBatch<'_>, inputs: &StepInputs, step: u64, skipped: bool) -> Vec<LedgerGroup> {
    let mut found = Vec::new();
    let mut first = 0;
    for rows in batch.by_group() {
        let state = |(index, row): (usize, &Row<'_>)| state_of(row, batch, inputs, first + index, skipped);
        found.extend(placed(rows[0].group, step, rows.iter().enumerate().map(state).collect()));
        first += rows.len();
    }
    found
}

/// A group that has arrived for a step that is not made, and those that were dropped on the way to it.
#[must_use]
pub fn in_flight(group: &RolloutGroup) -> Vec<LedgerGroup> {
    placed(group, group.id.step.0 + 1, vec![LedgerState::InFlight; group.completions.len()])
}

/// A group behind those that were dropped on the way to it.
fn placed(group: &RolloutGroup, step: u64, states: Vec<LedgerState>) -> Vec<LedgerGroup> {
    let mut found = dropped(group, step);
    found.push(LedgerGroup {
        step,
        group: Some(group.id.index),
        position: group.cursor - 1,
        prompt_id: group.prompt_id.0,
        epoch: group.epoch,
        states,
        filler: group.filler,
    });
    found
}

fn dropped(group: &RolloutGroup, step: u64) -> Vec<LedgerGroup> {
    let of = |(position, dropped): (u64, &DroppedGroup)| LedgerGroup {
        step,
        group: None,
        position,
        prompt_id: dropped.prompt_id.0,
        epoch: dropped.epoch,
        states: vec![
            if dropped.stale { LedgerState::Stale } else { LedgerState::NoContrast };
            dropped.completions.len()
        ],
        filler: false,
    };
    (group.begin()..).zip(&group.dropped).map(of).collect()
}

fn state_of(row: &Row<'_>, batch: &StepBatch<'_>, inputs: &StepInputs, index: usize, skipped: bool) -> LedgerState {
    let masked = || {
        let weights = inputs.importance.as_ref().map(|importance| &importance.rows[index]);
        weights.is_some_and(|weights| !weights.is_empty() && weights.iter().all(|&weight| weight == 0.0))
    };
    if !row.completion.is_usable() {
        LedgerState::Aborted
    } else if !row.valid {
        LedgerState::Stale
    } else if row.excluded || batch.rewards.rewards[index].is_none() {
        LedgerState::RewardFailed
    } else if !row.trained {
        LedgerState::Truncated
    } else if skipped {
        LedgerState::StepSkipped
    } else if masked() {
        LedgerState::OffPolicy
    } else {
        LedgerState::Trained
    }
}

/// Completions of a step by their state.
pub fn record(groups: &[LedgerGroup], line: &mut MetricRecord) {
    let mut counts: Vec<(LedgerState, u64)> = Vec::new();
    for &state in groups.iter().flat_map(|group| &group.states) {
        match counts.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => counts.push((state, 1)),
        }
    }
    for (state, count) in counts {
        line.count(metrics::LEDGER.of(state.to_string()), count);
    }
}
