//! The leases that workers are given.

use std::{collections::BTreeSet, time::Instant};

use shared::channel::fleet::Lease as LeaseMessage;

use super::{Lease, Scheduler};
use crate::coordinator::{check::Check, registry::Worker};

/// A lease that takes this many times the usual time is also given to a worker without anything to do.
const LATE: u32 = 3;

impl Scheduler {
    /// The message about a lease, for its worker.
    pub(super) fn message(&self, id: u64) -> Option<LeaseMessage> {
        let lease = self.leases.get(&id)?;
        let (request, version, row) = match &lease.check {
            Some(check) => (&check.request, check.version, None),
            None => {
                let of = self.requests.get(&lease.request)?;
                (&of.request, of.version, of.row_for(&lease.samples).cloned())
            }
        };
        Some(LeaseMessage {
            id,
            version,
            prompt_id: request.prompt_id,
            epoch: request.epoch,
            prompt_ids: request.prompt_ids.to_vec(),
            samples: lease.samples.iter().copied().collect(),
            sampling: (*request.sampling).clone(),
            row,
        })
    }

    /// Gives a worker leases: checks first, which are few, then its share of the waiting samples, by its rate.
    pub(super) fn grant(&mut self, number: u64, now: Instant) {
        let worker = &self.workers[&number];
        if !worker.can_sample(&self.edition) || worker.rests(now) {
            return;
        }
        let (places, version) = (worker.places(), worker.version());
        let makes_checks = worker.class == Some(self.options.class) && worker.has_weights_of(&self.edition);
        let held: usize =
            self.active(number).map(|id| self.leases[&id].samples.len() - self.leases[&id].made.len()).sum();
        let mut room = self.quota(number, held, now).min(places * 3 / 2).saturating_sub(held);
        while room > 0
            && makes_checks
            && let Some(check) = self.checks.next_for(number, version, now)
        {
            let samples: BTreeSet<u32> = check.request.samples.iter().copied().collect();
            room = room.saturating_sub(samples.len());
            self.lease(number, 0, samples, Some(check), now);
        }
        while room > 0 {
            let able = |(request, _): &&(u64, u32)| version.is_some_and(|has| self.requests[request].version <= has);
            let Some(&(request, _)) = self.waiting.iter().find(able) else { break };
            let all = self.waiting.range((request, 0)..=(request, u32::MAX)).map(|(_, sample)| *sample);
            let all: BTreeSet<u32> = all.collect();
            let is_scored = self.requests[&request].row_for(&all).is_some();
            let samples = if is_scored { all } else { all.into_iter().take(room).collect() };
            room = room.saturating_sub(samples.len());
            self.waiting.retain(|(of, sample)| *of != request || !samples.contains(sample));
            self.lease(number, request, samples, None, now);
        }
        if self.active(number).next().is_none() {
            self.double(number, places * 3 / 2, now);
        }
        if held == 0 && self.active(number).next().is_some() {
            self.workers.get_mut(&number).expect("it has just been looked at").begins(now);
        }
    }

    /// Gives a worker without anything to do the lease that another one is late with. The first completion counts.
    fn double(&mut self, number: u64, room: usize, now: Instant) {
        let (Some(usual), Some(has)) = (self.usual_s, self.workers[&number].version()) else { return };
        let is_late = |lease: &&mut Lease| {
            let is_of_other = lease.worker != number && !lease.withdrawn && !lease.doubled && lease.check.is_none();
            is_of_other && now.duration_since(lease.given).as_secs_f64() > usual * f64::from(LATE)
        };
        let requests = &self.requests;
        let can = |lease: &&mut Lease| requests[&lease.request].version <= has;
        let Some(late) = self.leases.values_mut().filter(is_late).filter(can).min_by_key(|lease| lease.given) else {
            return;
        };
        late.doubled = true;
        let request = late.request;
        let samples = late.samples.intersection(&requests[&request].open).copied().take(room).collect();
        self.lease(number, request, samples, None, now);
    }

    fn lease(&mut self, worker: u64, request: u64, samples: BTreeSet<u32>, check: Option<Check>, given: Instant) {
        let id = self.number();
        let (made, withdrawn, doubled) = (Vec::new(), false, false);
        let is_of_old_weights = self.workers[&worker].has_lost_weights(&self.edition);
        let lease = Lease { worker, request, samples, made, withdrawn, given, doubled, check, is_of_old_weights };
        self.leases.insert(id, lease);
    }

    /// The part of all open samples that a worker should hold, so that all workers are done at the same time.
    fn quota(&self, number: u64, held: usize, now: Instant) -> usize {
        let open = self.waiting.len() + self.leased();
        let is_able = |worker: &&Worker| worker.can_sample(&self.edition) && !worker.rests(now);
        let able: Vec<&Worker> = self.workers.values().filter(is_able).collect();
        let known: Vec<f64> = able.iter().filter_map(|worker| worker.rate()).collect();
        let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        let rate = |worker: &Worker| worker.rate().unwrap_or(mean).max(mean * 1e-3);
        let all: f64 = able.iter().map(|worker| rate(worker)).sum();
        let share = rate(&self.workers[&number]) / all.max(f64::MIN_POSITIVE);
        // A worker without leases takes at least one sample, whatever the others' rates.
        ((open as f64 * share).ceil() as usize).max(usize::from(held == 0))
    }
}
