//! `workers.json`: the registry as people see it.

use std::time::{Duration, Instant};

use shared::{
    channel::FleetStatus,
    run::workers::{WorkerRow, WorkerState, WorkersTable, now as clock},
};

use super::{registry::Worker, scheduler::Scheduler};
use crate::messages::class_in_words;

/// A worker that has not called for so long is shown as silent.
const SILENT: Duration = Duration::from_secs(3);

/// The workers' status for the learner. Others fill in the bytes in the store and the time without workers.
#[must_use]
pub fn status(scheduler: &Scheduler, now: Instant) -> FleetStatus {
    let newest = scheduler.edition().map(|edition| edition.version.0);
    let totals = scheduler.totals();
    let mut status = FleetStatus {
        verified: scheduler.checks().agreed,
        disputed: scheduler.checks().disputes,
        expired: totals.expired,
        twice: totals.twice,
        fetched_bytes: totals.fetched_bytes,
        ..FleetStatus::default()
    };
    for (_, worker) in scheduler.workers() {
        // The number of its leases is not told here.
        if state(worker, 0, now).at_work() {
            status.workers += 1;
            status.tokens_per_s += worker.rate().unwrap_or(0.0) as u64;
            status.staleness = status.staleness.max(staleness(worker, newest).unwrap_or(0));
        }
    }
    status
}

/// The table of a scheduler's workers.
#[must_use]
pub fn of(scheduler: &Scheduler, now: Instant) -> WorkersTable {
    let newest = scheduler.edition().map(|edition| edition.version.0);
    let mut rows: Vec<(Instant, WorkerRow)> = scheduler
        .workers()
        .map(|(number, worker)| (worker.joined, row(scheduler, *number, worker, newest, now)))
        .collect();
    rows.sort_by_key(|(joined, _)| *joined);
    let (refused_calls, refusals) = scheduler.refused_calls();
    let mut table = WorkersTable {
        written: clock(),
        workers: rows.into_iter().map(|(_, row)| row).collect(),
        version: newest,
        verified: scheduler.checks().agreed,
        disputed: scheduler.checks().disputes,
        check_trouble: scheduler.checks().trouble.clone(),
        refused_calls,
        refusals: refusals.clone(),
        ..WorkersTable::default()
    };
    table.forget();
    table
}

fn row(scheduler: &Scheduler, number: u64, worker: &Worker, newest: Option<u64>, now: Instant) -> WorkerRow {
    let leases = scheduler.leases_of(number) as u64;
    let time = worker.work.busy_s + worker.work.idle_s;
    WorkerRow {
        number: format!("{number:016x}"),
        name: worker.name.clone(),
        state: state(worker, leases, now),
        reason: worker.dropped().or(worker.unfetched.as_ref().map(|what| &*what.reason)).map(str::to_owned),
        class: worker.class.map(class_in_words).unwrap_or_default(),
        version: worker.version().map(|version| version.0),
        staleness: staleness(worker, newest),
        tokens: worker.work.tokens,
        tokens_per_s: worker.rate().unwrap_or(0.0),
        busy_share: if time > 0.0 { worker.work.busy_s / time } else { 0.0 },
        leases,
        completions: worker.completions,
        scored: worker.work.scored,
        twice: worker.twice,
        expired: worker.expired,
        failures: worker.failures,
        fetched_bytes: worker.work.fetched_bytes,
        fetch_s: worker.work.fetch_s,
        swap_s: worker.work.swap_s,
        clock_off_s: worker.clock_off_s,
        last_call_s: worker.silence(now).as_secs_f64(),
        joined_s: now.duration_since(worker.joined).as_secs_f64(),
    }
}

/// How many versions a worker is behind.
fn staleness(worker: &Worker, newest: Option<u64>) -> Option<u64> {
    newest.zip(worker.version()).map(|(newest, version)| newest.saturating_sub(version.0))
}

fn state(worker: &Worker, leases: u64, now: Instant) -> WorkerState {
    if !worker.is_welcome() {
        WorkerState::Dropped
    } else if worker.is_gone() {
        WorkerState::Gone
    } else if worker.silence(now) > SILENT {
        WorkerState::Silent
    } else if worker.edition.is_none() {
        if worker.class.is_some() { WorkerState::Loading } else { WorkerState::Joining }
    } else if leases > 0 {
        WorkerState::Sampling
    } else {
        WorkerState::Waiting
    }
}
