//! Who makes what: requests, leases and workers, without a transport or a clock.
//!
//! A request is a group that the plan has begun. Its samples wait until they are leased, and stay *open* until somebody
//! has made them. A lease may run out, or a worker may come back late and make it all the same; the first completion
//! counts. So nothing that happens to a worker can lose a completion or count one twice.
//!
//! | file | subject |
//! |---|---|
//! | `grants` | who is given what |
//! | `arrivals` | what workers send, and whether it can be |
//! | `pool` | workers that come, go, and are of no use |

mod arrivals;
mod grants;
mod pool;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use rollout::engine::{FinishedSequence, GroupRequest};
use shared::{
    FinishReason, PolicyVersion, PromptId, RewardOutcome,
    channel::fleet::{Edition, KernelClass, Made, Orders, Report, RunFacts},
};

use super::{
    check::{Check, Checks, Found},
    registry::Worker,
};

/// Everything that a scheduler works with.
pub struct SchedulerOptions {
    /// Number of the coordinator.
    pub coordinator: u64,
    /// The facts of the run that a worker has to know.
    pub facts: RunFacts,
    /// The kernels with which the run's figures are computed.
    pub class: KernelClass,
    /// Whether workers of another class are welcome.
    pub accept_other_kernels: bool,
    /// After this long without a new token, a worker's leases are given to others.
    pub lease_timeout: Duration,
    /// Tokens of the model.
    pub vocab_size: usize,
    /// Reward functions of the run.
    pub rewards: usize,
    /// The checks of leases that are made again, and their results.
    pub checks: Checks,
}

/// A group that is being made.
struct Request {
    request: GroupRequest,
    /// The oldest version that its tokens may be sampled from.
    version: PolicyVersion,
    /// Samples that nobody has made.
    open: BTreeSet<u32>,
    /// The row that reward functions see, where a worker that makes all samples is to score them.
    row: Option<String>,
}

impl Request {
    /// The row, for a worker that is asked for these samples: only all samples together are scored.
    fn row_for(&self, samples: &BTreeSet<u32>) -> Option<&String> {
        self.row.as_ref().filter(|_| samples.len() == self.request.samples.len())
    }
}

/// Samples of a request that a worker was asked for.
struct Lease {
    worker: u64,
    request: u64,
    samples: BTreeSet<u32>,
    /// The completions that the worker has made.
    made: Vec<Made>,
    /// Whether it was taken back: the worker is no longer asked for it, but its completions still count.
    withdrawn: bool,
    /// When it was given.
    given: Instant,
    /// Whether another worker was asked for the same.
    doubled: bool,
    /// The check, where the lease is made a second time to be compared.
    check: Option<Check>,
    /// Whether its completions may be of weights that were made anew since, and then have the number of others.
    is_of_old_weights: bool,
}

/// The work of all workers together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Leases that were taken back.
    pub expired: u64,
    /// Completions that another worker made first.
    pub twice: u64,
    /// Bytes fetched from the store.
    pub fetched_bytes: u64,
}

impl Totals {
    fn add(&mut self, worker: &Worker) {
        self.expired += worker.expired;
        self.twice += worker.twice;
        self.fetched_bytes += worker.work.fetched_bytes;
    }
}

/// Requests, leases and workers of a run.
pub struct Scheduler {
    options: SchedulerOptions,
    edition: Option<Edition>,
    /// The newest version that was announced. A learner that was restarted makes older ones anew.
    newest: PolicyVersion,
    requests: BTreeMap<u64, Request>,
    /// Samples to be leased, in the order of their requests.
    waiting: BTreeSet<(u64, u32)>,
    leases: BTreeMap<u64, Lease>,
    workers: BTreeMap<u64, Worker>,
    /// Names and hosts of workers whose completions were wrong, with the reasons.
    banned: BTreeMap<pool::Banned, String>,
    finished: Vec<(FinishedSequence, Vec<RewardOutcome>)>,
    checks: Checks,
    next_number: u64,
    /// The usual number of seconds from giving a lease to its last completion.
    usual_s: Option<f64>,
    /// The work of workers that are not remembered any more.
    forgotten: Totals,
    over: bool,
    /// Calls that could not be read.
    refused_calls: u64,
    /// The same by reason.
    refusals: BTreeMap<String, u64>,
}

impl Scheduler {
    /// A scheduler without requests and workers.
    #[must_use]
    pub fn new(mut options: SchedulerOptions) -> Self {
        Self {
            checks: std::mem::replace(&mut options.checks, Checks::new(0.0)),
            options,
            edition: None,
            newest: PolicyVersion(0),
            requests: BTreeMap::new(),
            waiting: BTreeSet::new(),
            leases: BTreeMap::new(),
            workers: BTreeMap::new(),
            banned: BTreeMap::new(),
            finished: Vec::new(),
            next_number: 1,
            usual_s: None,
            forgotten: Totals::default(),
            over: false,
            refused_calls: 0,
            refusals: BTreeMap::new(),
        }
    }

    /// Tokens of the model, and the greatest length of a prompt with its completion.
    #[must_use]
    pub fn bounds(&self) -> (usize, usize) {
        (self.options.vocab_size, self.options.facts.max_model_len as usize)
    }

    /// Adds a group that is wanted from `version` or a later one. Workers score it where there is a row.
    pub fn add(&mut self, request: GroupRequest, version: PolicyVersion, row: Option<String>) {
        let number = self.number();
        let open: BTreeSet<u32> = request.samples.iter().copied().collect();
        self.waiting.extend(open.iter().map(|&sample| (number, sample)));
        self.requests.insert(number, Request { request, version, open, row });
    }

    /// Cancels one completion, or all, of the requests with a tag. Later completions of these samples are passed over.
    /// Returns the cancelled completions. Those that nobody has made are returned as aborted; those that have come and
    /// were not taken with [`Scheduler::take_finished`] are returned as they are.
    pub fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        let of_tag = self.requests.iter().filter(|(_, request)| request.request.tag == tag);
        let numbers: Vec<u64> = of_tag.map(|(number, _)| *number).collect();
        let is_it = |index: u32| sample.is_none_or(|sample| sample == index);
        // Otherwise they would come as ended although they were cancelled.
        let come = self.finished.extract_if(.., |(made, _)| made.tag == tag && is_it(made.sample));
        let mut cancelled: Vec<FinishedSequence> = come.map(|(made, _)| made).collect();
        for number in numbers {
            let open = &mut self.requests.get_mut(&number).expect("it was just looked at").open;
            let ended: Vec<u32> = open.extract_if(.., |index| is_it(*index)).collect();
            for index in ended {
                self.waiting.remove(&(number, index));
                cancelled.push(FinishedSequence {
                    tag,
                    sample: index,
                    token_ids: Vec::new(),
                    logprobs: Vec::new(),
                    top_logprobs: Vec::new(),
                    versions: Vec::new(),
                    routing: None,
                    finish_reason: FinishReason::Aborted,
                    queue_seconds: 0.0,
                    ttft_seconds: 0.0,
                    total_seconds: 0.0,
                });
            }
            self.retire(number);
        }
        cancelled
    }

    /// Makes this the edition that workers are to sample from.
    pub fn announce(&mut self, edition: Edition) {
        let is_anew = |known: &Edition| edition.version <= self.newest && !edition.has_bytes_of(known);
        if self.edition.as_ref().is_some_and(is_anew) {
            // A check knows weights by their version alone.
            self.checks.forget_all();
            self.leases.retain(|_, lease| lease.check.is_none());
            self.leases.values_mut().for_each(|lease| lease.is_of_old_weights = true);
        }
        self.checks.forget_before(edition.version);
        self.newest = self.newest.max(edition.version);
        self.edition = Some(edition);
    }

    /// The edition that workers are to sample from.
    #[must_use]
    pub fn edition(&self) -> Option<&Edition> {
        self.edition.as_ref()
    }

    /// Whether a worker has the announced edition in use.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.edition.is_some() && self.workers.values().any(|worker| worker.is_welcome() && worker.has(&self.edition))
    }

    /// The editions that workers sample from.
    #[must_use]
    pub fn editions_in_use(&self) -> Vec<Edition> {
        let at_work = self.workers.values().filter(|worker| worker.is_welcome());
        at_work.filter_map(|worker| worker.edition.clone()).collect()
    }

    /// Ends the run: workers are told to end.
    pub fn close(&mut self) {
        self.over = true;
    }

    /// Completions that have arrived since the last call, with their rewards where they were scored.
    pub fn take_finished(&mut self) -> Vec<(FinishedSequence, Vec<RewardOutcome>)> {
        std::mem::take(&mut self.finished)
    }

    /// Samples that were leased and are open.
    fn leased(&self) -> usize {
        self.requests.values().map(|request| request.open.len()).sum::<usize>() - self.waiting.len()
    }

    /// Samples that were leased and have not been taken with [`Scheduler::take_finished`].
    #[must_use]
    pub fn running(&self) -> usize {
        self.leased() + self.finished.len()
    }

    /// Samples to be leased.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Samples that all workers can decode at once, with what they are given ahead.
    #[must_use]
    pub fn places(&self) -> usize {
        let at_work = self.workers.values().filter(|worker| worker.is_welcome() && !worker.is_gone());
        at_work.map(|worker| worker.places() * 3 / 2).sum()
    }

    /// The workers, by number.
    pub fn workers(&self) -> impl Iterator<Item = (&u64, &Worker)> {
        self.workers.iter()
    }

    /// The work of all workers, including those that are not remembered any more.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals = self.forgotten;
        self.workers.values().for_each(|worker| totals.add(worker));
        totals
    }

    /// Leases that a worker holds.
    #[must_use]
    pub fn leases_of(&self, worker: u64) -> usize {
        self.active(worker).count()
    }

    /// Whether any worker could sample.
    #[must_use]
    pub fn has_someone_at_work(&self) -> bool {
        self.workers.values().any(|worker| worker.can_sample(&self.edition))
    }

    /// The checks and their results so far.
    #[must_use]
    pub fn checks(&self) -> &Checks {
        &self.checks
    }

    /// Checks to be decided beside the learner: those that no other worker can make, and those in which two workers
    /// differ.
    pub fn take_cases(&mut self, now: Instant) -> Vec<Check> {
        let mut able = self.workers.values().filter(|worker| worker.can_sample(&self.edition));
        let alone = able.next().is_none() || able.next().is_none();
        self.checks.take_cases(alone, self.options.lease_timeout, now)
    }

    /// Takes the finding about a case. Workers that were wrong are dropped.
    pub fn decide(&mut self, check: &Check, verdict: Result<Found, String>) {
        for (worker, reason) in self.checks.decide(check, verdict) {
            self.drop_worker(worker, reason, true);
        }
    }

    /// Prompts for which a worker that was dropped for wrong completions has made something; each is returned once.
    pub fn take_distrusted(&mut self) -> Vec<(PromptId, u32)> {
        self.workers.values_mut().flat_map(Worker::take_distrusted).collect()
    }

    /// Notes that a group of this prompt goes to the learner, for a step.
    pub fn handed_over(&mut self, prompt: PromptId, epoch: u32, step: u64) {
        self.workers.values_mut().for_each(|worker| worker.handed_over((prompt, epoch), step));
    }

    /// Answers a call.
    pub fn call(&mut self, report: &Report, now: Instant) -> Orders {
        let coordinator = self.options.coordinator;
        let finished = self.over;
        if let Some(reason) = self.refuses(report) {
            self.turn_away(report, &reason, now);
            return Orders { coordinator, refused: Some(reason), finished, ..Orders::default() };
        }
        if report.name.is_empty() {
            // The caller only wants to know whether it could be a worker.
            let facts = Some(self.options.facts.clone());
            return Orders { coordinator, facts, edition: self.edition.clone(), finished, ..Orders::default() };
        }
        self.note(report, now);
        let knows_us = report.coordinator == coordinator;
        if knows_us {
            report.made.iter().for_each(|made| self.take(report.worker, made, now));
        }
        if let Some(reason) = self.workers[&report.worker].dropped() {
            return Orders { coordinator, refused: Some(reason.to_owned()), finished, ..Orders::default() };
        }
        if knows_us && !finished {
            self.grant(report.worker, now);
        }
        let leases: Vec<u64> = self.active(report.worker).collect();
        let is_new = |id: &&u64| !knows_us || report.held.binary_search(id).is_err();
        let granted = leases.iter().filter(is_new).filter_map(|id| self.message(*id)).collect();
        Orders {
            coordinator,
            facts: (!knows_us).then(|| self.options.facts.clone()),
            edition: self.edition.clone(),
            leases,
            granted,
            refused: None,
            finished,
        }
    }

    fn active(&self, worker: u64) -> impl Iterator<Item = u64> {
        let is_its = move |(id, lease): (&u64, &Lease)| (lease.worker == worker && !lease.withdrawn).then_some(*id);
        self.leases.iter().filter_map(is_its)
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

#[cfg(test)]
pub(super) mod tests;
