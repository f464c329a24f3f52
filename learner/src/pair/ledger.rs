//! What became of every completion of a step, for the ledger.

use std::collections::BTreeSet;

use shared::{
    Completion, Dropped, EpisodeEnd, Exchange, Group, LedgerGroup, LedgerState, Placed, Provenance, RewardOutcome,
    metrics::{self, MetricRecord},
    run::ledger::{Completions, LedgerEvent, LedgerLine},
};

use super::Collector;
use crate::step::{BatchRow, Fate, Fates, StepBatch};

/// The groups of a batch and those that were dropped on the way to it. `step` is the number of the step.
#[must_use]
pub fn groups(batch: &StepBatch<'_>, fates: &Fates, step: u64) -> Vec<LedgerGroup> {
    let mut found = Vec::new();
    let mut first = 0;
    for rows in batch.by_group() {
        let state = |(index, row): (usize, &BatchRow<'_>)| state_of(row, first + index, batch, fates);
        found.extend(placed(rows[0].group, step, rows.iter().enumerate().map(state).collect()));
        first += rows.len();
    }
    found
}

/// What is in flight when a run ends before step number `step`, which would begin at the position `cursor`: groups that
/// have reached the learner, and those that the sampler had, whole or in the making.
#[must_use]
pub fn left(
    collector: &Collector,
    at_sampler: &[Group],
    (step, cursor): (u64, u64),
    num_generations: usize,
) -> Vec<LedgerGroup> {
    let in_flight = vec![LedgerState::InFlight; num_generations];
    let arrived = |group: &Placed| placed(group, group.id.step.0 + 1, in_flight.clone());
    let mut left: Vec<LedgerGroup> = collector.left().flat_map(arrived).collect();
    let known: BTreeSet<u64> = left.iter().map(|group| group.position).collect();
    let more = at_sampler.iter().filter(|group| group.position >= cursor && !known.contains(&group.position));
    left.extend(more.map(|group| LedgerGroup {
        step,
        group: None,
        position: group.position,
        prompt_id: group.prompt_id.0,
        epoch: group.epoch,
        states: in_flight.clone(),
        filler: false,
    }));
    left
}

/// How the completions of a group, and of those that were dropped on the way to it, came through a death of the
/// sampler, where there was one, and which of them were drawn again.
pub fn survivals(group: &Placed, step: u64) -> impl Iterator<Item = LedgerLine> {
    let dropped = group.dropped.iter().map(|dropped| (dropped.position, None, &dropped.completions));
    let all = dropped.chain([(group.position, Some(group.id.index), &group.completions)]);
    all.flat_map(move |(position, group, completions)| {
        let of = |provenance| {
            let has = |completion: &&Completion| completion.provenance == provenance;
            let samples: Vec<u32> = completions.iter().filter(has).map(|completion| completion.sample).collect();
            (!samples.is_empty()).then_some(Completions { position, group, samples })
        };
        let carried = of(Provenance::CarriedOver).map(LedgerEvent::CarriedOver);
        let again = of(Provenance::MadeAgain).map(LedgerEvent::MadeAgain);
        let drawn_again = of(Provenance::DrawnAgain).map(LedgerEvent::DrawnAgain);
        carried.into_iter().chain(again).chain(drawn_again).map(move |event| LedgerLine::Event { step, event })
    })
}

/// A group behind those that were dropped on the way to it.
fn placed(group: &Placed, step: u64, states: Vec<LedgerState>) -> Vec<LedgerGroup> {
    let mut found = dropped(group, step);
    found.push(LedgerGroup {
        step,
        group: Some(group.id.index),
        position: group.position,
        prompt_id: group.prompt_id.0,
        epoch: group.epoch,
        states,
        filler: group.filler,
    });
    found
}

fn dropped(group: &Placed, step: u64) -> Vec<LedgerGroup> {
    let of = |dropped: &Dropped| LedgerGroup {
        step,
        group: None,
        position: dropped.position,
        prompt_id: dropped.prompt_id.0,
        epoch: dropped.epoch,
        states: vec![
            if dropped.stale { LedgerState::Stale } else { LedgerState::NoContrast };
            dropped.completions.len()
        ],
        filler: false,
    };
    group.dropped.iter().map(of).collect()
}

fn state_of(row: &BatchRow<'_>, index: usize, batch: &StepBatch<'_>, fates: &Fates) -> LedgerState {
    let failed = || row.completion.rewards.iter().any(RewardOutcome::has_failed);
    let has_reward = batch.rewards.rewards[index].is_some();
    if row.completion.environment_failed() {
        let is_straggler = |exchange: &Exchange| exchange.end == EpisodeEnd::Straggler;
        match row.completion.exchange.as_deref().is_some_and(is_straggler) {
            true => LedgerState::Straggler,
            false => LedgerState::EnvironmentFailed,
        }
    } else if !row.completion.is_usable() {
        LedgerState::Aborted
    } else if !row.valid {
        LedgerState::Stale
    } else if row.excluded || !has_reward && failed() {
        LedgerState::RewardFailed
    } else if !row.trained {
        LedgerState::Truncated
    } else if !has_reward {
        LedgerState::Abstained
    } else {
        state_of_fate(fates.of(index).expect("whatever may be trained on was in an update of the plan"))
    }
}

fn state_of_fate(fate: Fate) -> LedgerState {
    match fate {
        Fate::Trained => LedgerState::Trained,
        Fate::OffPolicy => LedgerState::OffPolicy,
        Fate::OffPolicyMasked => LedgerState::OffPolicyMasked,
        Fate::LowEntropy => LedgerState::LowEntropy,
        Fate::EarlyStopped => LedgerState::EarlyStopped,
        Fate::UpdateSkipped => LedgerState::StepSkipped,
        Fate::CriticWarmup => LedgerState::CriticWarmup,
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
