//! Who makes what: requests, leases and workers, without a transport or a clock.
//!
//! A request is a group that the plan has begun. Its samples wait until they are leased, and are *open* until somebody has
//! made them: a lease may run out or be made by a worker that comes back late, and the first completion counts. So nothing
//! that happens to a worker can lose a completion or count one twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use shared::{
    PolicyVersion, PromptId, RewardOutcome,
    channel::fleet::{Edition, KernelClass, Lease as LeaseMessage, Made, Orders, Report, RunFacts},
    config::Kernels,
};

use super::{
    check::{Check, Checks, Found},
    roster::{Standing, Worker},
};
use crate::engine::{FinishedSequence, GroupRequest, tolerance_between};

/// How long a worker whose connection is gone keeps what it was given: a link that is cut for a moment costs no work.
const GRACE: Duration = Duration::from_secs(5);
/// A lease that takes so many times as long as leases usually do is given to a worker without anything to do as well.
const LATE: u32 = 3;
/// Part of the usual time of a lease that the newest one is.
const NEWEST_SHARE: f64 = 0.1;
/// Workers of which something is remembered. The oldest that are gone are forgotten first.
const MOST_WORKERS: usize = 4096;
/// Reasons of refused calls that are counted each for itself.
const MOST_REASONS: usize = 16;

/// What a desk works with.
pub struct DeskOptions {
    /// Number of the hub.
    pub hub: u64,
    /// What a worker has to know of the run.
    pub facts: RunFacts,
    /// What the run's figures are computed with.
    pub class: KernelClass,
    /// Whether workers of another class are welcome.
    pub accept_other_kernels: bool,
    /// Without a new token for so long, a worker's leases are given to others.
    pub lease_timeout: Duration,
    /// Tokens of the model.
    pub vocab_size: usize,
    /// Reward functions of the run.
    pub rewards: usize,
    /// What is made again, and what came of it.
    pub checks: Checks,
}

/// A group that is being made.
struct Request {
    request: GroupRequest,
    /// The oldest version that its tokens may be of.
    version: PolicyVersion,
    /// Samples that nobody has made.
    open: BTreeSet<u32>,
    /// What reward functions see of it, where the worker that makes all of it is to score it.
    row: Option<String>,
}

impl Request {
    /// The row, for somebody who is asked for these samples.
    fn row_for(&self, samples: &BTreeSet<u32>) -> Option<String> {
        self.row.clone().filter(|_| samples.len() == self.request.samples.len())
    }
}

/// Samples of a request that a worker was asked for.
struct Lease {
    worker: u64,
    request: u64,
    samples: BTreeSet<u32>,
    /// What the worker has made of it.
    made: Vec<Made>,
    /// Taken back: the worker is no longer asked for it. What it has made all the same counts.
    withdrawn: bool,
    /// When it was given.
    given: Instant,
    /// Another worker was asked for the same.
    doubled: bool,
    /// It is made a second time, to be compared.
    check: Option<Check>,
}

/// What all workers have done together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Leases that were taken back.
    pub expired: u64,
    /// Completions that another was first with.
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

/// The hub's books.
pub struct Desk {
    options: DeskOptions,
    edition: Option<Edition>,
    /// The newest version that was announced: a learner that was started again makes older ones anew.
    newest: PolicyVersion,
    requests: BTreeMap<u64, Request>,
    /// Samples to be leased, in the order of their requests.
    waiting: BTreeSet<(u64, u32)>,
    leases: BTreeMap<u64, Lease>,
    workers: BTreeMap<u64, Worker>,
    /// Names of workers whose completions were wrong.
    banned: BTreeMap<String, String>,
    finished: Vec<(FinishedSequence, Vec<RewardOutcome>)>,
    checks: Checks,
    next_number: u64,
    /// Seconds from the moment in which a lease is given to its last completion.
    usual_s: Option<f64>,
    /// What workers have done that are not remembered any more.
    forgotten: Totals,
    over: bool,
    /// Calls that could not be read.
    refused_calls: u64,
    /// The same by reason.
    refusals: BTreeMap<String, u64>,
}

impl Desk {
    /// A desk without requests and workers.
    #[must_use]
    pub fn new(mut options: DeskOptions) -> Self {
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

    /// A group is wanted, of `version` or a later one; scored, where there is a row.
    pub fn add(&mut self, request: GroupRequest, version: PolicyVersion, row: Option<String>) {
        let number = self.number();
        let open: BTreeSet<u32> = request.samples.iter().copied().collect();
        self.waiting.extend(open.iter().map(|&sample| (number, sample)));
        self.requests.insert(number, Request { request, version, open, row });
    }

    /// Workers are to sample from this edition from now on.
    pub fn announce(&mut self, edition: Edition) {
        self.checks.forget_before(edition.version);
        self.newest = self.newest.max(edition.version);
        self.edition = Some(edition);
    }

    /// What workers are to sample from.
    #[must_use]
    pub fn edition(&self) -> Option<&Edition> {
        self.edition.as_ref()
    }

    /// Whether a worker has the announced edition in use.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.edition.is_some() && self.workers.values().any(|worker| worker.is_welcome() && worker.has(&self.edition))
    }

    /// What workers sample from.
    #[must_use]
    pub fn editions_in_use(&self) -> Vec<Edition> {
        let at_work = self.workers.values().filter(|worker| worker.is_welcome());
        at_work.filter_map(|worker| worker.edition.clone()).collect()
    }

    /// The announced edition, if a worker finds something else in its place, with what it finds.
    #[must_use]
    pub fn damage(&self) -> Option<(Edition, String)> {
        let edition = self.edition.as_ref()?;
        let is_damaged = |worker: &&Worker| {
            let unfetched = worker.unfetched.as_ref();
            unfetched.is_some_and(|what| what.is_damage && what.publication == edition.publication)
        };
        let worker = self.workers.values().filter(|worker| worker.is_welcome()).find(is_damaged)?;
        let reason = worker.unfetched.as_ref().map(|what| what.reason.as_str()).unwrap_or_default();
        Some((edition.clone(), format!("worker {}: {reason}", worker.name)))
    }

    /// A call was refused before anybody here has seen it.
    pub fn refused(&mut self, reason: String) {
        self.refused_calls += 1;
        if self.refusals.len() < MOST_REASONS || self.refusals.contains_key(&reason) {
            *self.refusals.entry(reason).or_default() += 1;
        }
    }

    /// Calls that were refused so, and how many of them for which reason.
    #[must_use]
    pub fn refused_calls(&self) -> (u64, &BTreeMap<String, u64>) {
        (self.refused_calls, &self.refusals)
    }

    /// The run is over: workers are sent home.
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

    /// Samples that were leased and have not been taken with [`Desk::take_finished`].
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

    /// What all workers have done, those included that are not remembered any more.
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

    /// Whether a worker could make something.
    #[must_use]
    pub fn has_someone_at_work(&self) -> bool {
        self.workers.values().any(|worker| worker.can_sample(&self.edition))
    }

    /// What was compared so far.
    #[must_use]
    pub fn checks(&self) -> &Checks {
        &self.checks
    }

    /// Checks to be decided beside the learner: those that no other worker can make, and those of which two differ.
    pub fn take_cases(&mut self, now: Instant) -> Vec<Check> {
        let mut able = self.workers.values().filter(|worker| worker.can_sample(&self.edition));
        let alone = able.next().is_none() || able.next().is_none();
        self.checks.take_cases(alone, self.options.lease_timeout, now)
    }

    /// What a case has turned out to be. Workers that were wrong are dropped.
    pub fn judge(&mut self, check: &Check, verdict: Result<Found, String>) {
        for (worker, reason) in self.checks.judge(check, verdict) {
            self.drop_worker(worker, reason, true);
        }
    }

    /// Prompts of which a worker that was dropped for wrong completions has made something; each once.
    pub fn take_distrusted(&mut self) -> Vec<(PromptId, u32)> {
        self.workers.values_mut().flat_map(Worker::take_distrusted).collect()
    }

    /// A group of these prompts goes to the learner, for a step.
    pub fn handed_over(&mut self, prompt: PromptId, epoch: u32, step: u64) {
        self.workers.values_mut().for_each(|worker| worker.handed_over((prompt, epoch), step));
    }

    /// Answers a call.
    pub fn call(&mut self, report: &Report, now: Instant) -> Orders {
        let hub = self.options.hub;
        let finished = self.over;
        if let Some(reason) = self.refuses(report) {
            self.turn_away(report, &reason, now);
            return Orders { hub, refused: Some(reason), finished, ..Orders::default() };
        }
        if report.name.is_empty() {
            // It only wants to know whether it could be a worker.
            let facts = Some(self.options.facts.clone());
            return Orders { hub, facts, edition: self.edition.clone(), finished, ..Orders::default() };
        }
        self.note(report, now);
        let knows_us = report.hub == hub;
        if knows_us {
            report.made.iter().for_each(|made| self.take(report.worker, made, now));
        }
        if let Some(reason) = self.workers[&report.worker].dropped() {
            return Orders { hub, refused: Some(reason.to_owned()), finished, ..Orders::default() };
        }
        if knows_us && !finished {
            self.grant(report.worker, now);
        }
        let leases: Vec<u64> = self.active(report.worker).collect();
        let is_new = |id: &&u64| !knows_us || report.held.binary_search(id).is_err();
        let granted = leases.iter().filter(is_new).filter_map(|id| self.message(*id)).collect();
        Orders {
            hub,
            facts: (!knows_us).then(|| self.options.facts.clone()),
            edition: self.edition.clone(),
            leases,
            granted,
            refused: None,
            finished,
        }
    }

    /// Why nothing is wanted of a worker.
    fn refuses(&self, report: &Report) -> Option<String> {
        if let Some(reason) = self.banned.get(&report.name) {
            let advice = "mend it and give it another --name";
            return Some(format!("a worker of the name {} was dropped: {reason}; {advice}", report.name));
        }
        let build = env!("CARGO_PKG_VERSION");
        if report.build != build {
            return Some(format!("it is version {} and the run is version {build}; use one build", report.build));
        }
        let class = report.class.filter(|class| *class != self.options.class && !self.options.accept_other_kernels)?;
        Some(format!(
            "it computes with {} and the run with {}: the last bits of its figures are others; let the run accept that with \
             `accept_other_kernels`, or give it the same",
            in_words(class),
            in_words(self.options.class)
        ))
    }

    /// Takes down that a worker is refused. Whoever only asks is no worker.
    fn turn_away(&mut self, report: &Report, reason: &str, now: Instant) {
        if report.name.is_empty() {
            return;
        }
        if !self.workers.contains_key(&report.worker) {
            self.make_room();
        }
        self.withdraw(report.worker);
        let worker = self.workers.entry(report.worker).or_insert_with(|| Worker::new(report, now));
        (worker.seen, worker.class) = (now, report.class);
        if worker.is_welcome() {
            tracing::warn!("worker {} is refused: {reason}", report.name);
            worker.drop_it(Standing::Dropped { reason: reason.to_owned(), wrong: false });
        }
    }

    /// Takes down what a worker says of itself.
    fn note(&mut self, report: &Report, now: Instant) {
        if !self.workers.contains_key(&report.worker) {
            self.make_room();
            tracing::info!("worker {} ({:x}) joins", report.name, report.worker);
        }
        let worker = self.workers.entry(report.worker).or_insert_with(|| Worker::new(report, now));
        if worker.class != report.class
            && let Some(class) = report.class.filter(|class| *class != self.options.class)
        {
            tracing::warn!("worker {} computes with {}, and the run is not repeatable", report.name, in_words(class));
        }
        worker.note(report, now);
        if let Some(problem) = &report.problem {
            self.drop_worker(report.worker, problem.clone(), false);
        }
    }

    fn make_room(&mut self) {
        if self.workers.len() >= MOST_WORKERS {
            let oldest =
                self.workers.iter().filter(|(_, worker)| worker.is_gone()).min_by_key(|(_, worker)| worker.seen);
            if let Some(number) = oldest.map(|(number, _)| *number) {
                self.workers.remove(&number).iter().for_each(|worker| self.forgotten.add(worker));
            }
        }
    }

    fn active(&self, worker: u64) -> impl Iterator<Item = u64> {
        let is_its = move |(id, lease): (&u64, &Lease)| (lease.worker == worker && !lease.withdrawn).then_some(*id);
        self.leases.iter().filter_map(is_its)
    }

    fn message(&self, id: u64) -> Option<LeaseMessage> {
        let lease = self.leases.get(&id)?;
        let (request, version, row) = match &lease.check {
            Some(check) => (&check.request, check.version, None),
            None => {
                let of = self.requests.get(&lease.request)?;
                (&of.request, of.version, of.row_for(&lease.samples))
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

    /// Gives a worker what it can make: checks first, which are few, then its share of what waits, by its rate.
    fn grant(&mut self, number: u64, now: Instant) {
        let worker = &self.workers[&number];
        if !worker.can_sample(&self.edition) || worker.rests(now) {
            return;
        }
        let (places, version) = (worker.places(), worker.version());
        let same_class = worker.class == Some(self.options.class);
        let held: usize =
            self.active(number).map(|id| self.leases[&id].samples.len() - self.leases[&id].made.len()).sum();
        let mut room = self.quota(number, held, now).min(places * 3 / 2).saturating_sub(held);
        while room > 0
            && same_class
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

    /// Gives a worker that has nothing to do what another one is late with. Whoever is first with a completion counts.
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
        self.leases.insert(id, Lease { worker, request, samples, made, withdrawn, given, doubled, check });
    }

    /// The part of all open samples that a worker should hold, so that all are done at the same time.
    fn quota(&self, number: u64, held: usize, now: Instant) -> usize {
        let open = self.waiting.len() + self.leased();
        let is_able = |worker: &&Worker| worker.can_sample(&self.edition) && !worker.rests(now);
        let able: Vec<&Worker> = self.workers.values().filter(is_able).collect();
        let known: Vec<f64> = able.iter().filter_map(|worker| worker.rate()).collect();
        let mean = if known.is_empty() { 1.0 } else { known.iter().sum::<f64>() / known.len() as f64 };
        let rate = |worker: &Worker| worker.rate().unwrap_or(mean).max(mean * 1e-3);
        let all: f64 = able.iter().map(|worker| rate(worker)).sum();
        let share = rate(&self.workers[&number]) / all.max(f64::MIN_POSITIVE);
        // Whoever has nothing takes at least one, whatever the others' rates.
        ((open as f64 * share).ceil() as usize).max(usize::from(held == 0))
    }

    /// Takes a completion.
    fn take(&mut self, number: u64, made: &Made, now: Instant) {
        let worker = self.workers.get_mut(&number).expect("it was noted");
        let Some(lease) = self.leases.get_mut(&made.lease) else {
            // Of a lease whose samples others have made meanwhile, or that was answered before.
            worker.twice += 1;
            return;
        };
        if lease.worker != number || !lease.samples.contains(&made.sample) {
            worker.failures += 1;
            return;
        }
        if lease.made.iter().any(|known| known.sample == made.sample) {
            return;
        }
        let (request, oldest) = match (&lease.check, self.requests.get(&lease.request)) {
            (Some(check), _) => (&check.request, check.version),
            (None, Some(request)) => (&request.request, request.version),
            (None, None) => return,
        };
        let possible = is_possible(made, request, (oldest, self.newest), self.options.vocab_size);
        let scored = [0, self.options.rewards].contains(&made.rewards.len());
        if let Err(problem) = possible.and_then(|()| scored.then_some(()).ok_or("other rewards".to_owned())) {
            let prompt = request.prompt_id;
            self.drop_worker(number, format!("a completion of prompt {prompt} that cannot be: {problem}"), true);
            return;
        }
        worker.progressed(now);
        lease.made.push(made.clone());
        let complete = lease.made.len() == lease.samples.len();
        if lease.check.is_none() {
            worker.made((request.prompt_id, request.epoch));
            self.finish(number, made);
        }
        if complete {
            self.complete(made.lease, now);
        }
    }

    /// A sample is made, unless it was before.
    fn finish(&mut self, number: u64, made: &Made) {
        let id = self.leases[&made.lease].request;
        let request = self.requests.get_mut(&id).expect("a lease has an open request");
        if !request.open.remove(&made.sample) {
            self.workers.get_mut(&number).expect("it was noted").twice += 1;
            return;
        }
        self.waiting.remove(&(id, made.sample));
        self.workers.get_mut(&number).expect("it was noted").completions += 1;
        let sequence = FinishedSequence {
            tag: request.request.tag,
            sample: made.sample,
            token_ids: made.token_ids.clone(),
            logprobs: made.logprobs.clone(),
            versions: made.versions.clone(),
            finish_reason: made.finish_reason,
            queue_seconds: 0.0,
            ttft_seconds: 0.0,
            total_seconds: made.seconds,
        };
        self.finished.push((sequence, made.rewards.clone()));
    }

    /// All of a lease is there: it is compared, or may be chosen to be made again. Leases of which nothing is wanted any more go,
    /// and so does a request of which all is there.
    fn complete(&mut self, id: u64, now: Instant) {
        let lease = self.leases.remove(&id).expect("it was just looked at");
        if let Some(check) = lease.check {
            self.checks.second(check, lease.worker, lease.made, now);
            return;
        }
        let seconds = now.duration_since(lease.given).as_secs_f64();
        self.usual_s = Some(self.usual_s.map_or(seconds, |usual| usual + NEWEST_SHARE * (seconds - usual)));
        let request = &self.requests[&lease.request];
        if let Some(class) = self.workers[&lease.worker].class {
            let own = self.options.class;
            // Only the packed kernels make the same bits whatever else they have to do.
            let is_exact = class == own && class.kernels == Kernels::Packed;
            let tolerance = (!is_exact).then(|| tolerance_between(class, own));
            self.checks.first(&request.request, lease.worker, lease.made, tolerance, now);
        }
        let open = &request.open;
        let is_of_use =
            |other: &Lease| other.check.is_some() || other.request != lease.request || !other.samples.is_disjoint(open);
        self.leases.retain(|_, other| is_of_use(other));
        if open.is_empty() {
            self.requests.remove(&lease.request);
        }
    }

    /// Takes back what workers do not get on with, or that are gone with.
    pub fn tick(&mut self, now: Instant) {
        let timeout = self.options.lease_timeout;
        let late = |(number, worker): (&u64, &Worker)| {
            let gone = worker.gone_since.is_some_and(|since| now.duration_since(since) > GRACE.min(timeout));
            (gone || now.duration_since(worker.progress) > timeout).then_some((*number, gone))
        };
        let late: Vec<(u64, bool)> = self.workers.iter().filter_map(late).collect();
        for (number, gone) in late {
            let expired = self.withdraw(number);
            let worker = self.workers.get_mut(&number).expect("it was just looked at");
            if expired == 0 {
                continue;
            }
            worker.expired += expired as u64;
            let why = if gone { "it is gone".to_owned() } else { format!("no token for {} s", timeout.as_secs_f64()) };
            tracing::warn!("worker {} loses {expired} leases: {why}", worker.name);
            worker.rest_until = Some(now + timeout.min(Duration::from_secs(60))).filter(|_| !gone);
        }
    }

    /// The connection to a worker is gone.
    pub fn gone(&mut self, number: u64, now: Instant) {
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.gone_since.get_or_insert(now);
            if worker.is_welcome() {
                tracing::info!("worker {} is gone", worker.name);
            }
        }
    }

    /// Takes back a worker's leases; how many there were.
    fn withdraw(&mut self, number: u64) -> usize {
        let ids: Vec<u64> = self.active(number).collect();
        for id in &ids {
            let lease = self.leases.get_mut(id).expect("it was just listed");
            lease.withdrawn = true;
            if let Some(check) = lease.check.take() {
                self.leases.remove(id);
                self.checks.again(check);
                continue;
            }
            let open = &self.requests[&lease.request].open;
            self.waiting.extend(lease.samples.intersection(open).map(|&sample| (lease.request, sample)));
        }
        ids.len()
    }

    /// Wants nothing more of a worker. With `wrong`, nothing that it has made is trusted either.
    fn drop_worker(&mut self, number: u64, reason: String, wrong: bool) {
        self.withdraw(number);
        if wrong {
            // Nor what it may still send.
            self.leases.retain(|_, lease| lease.worker != number);
        }
        let Some(worker) = self.workers.get_mut(&number).filter(|worker| worker.dropped().is_none()) else { return };
        if wrong {
            tracing::error!("worker {} is dropped: {reason}", worker.name);
            let steps = worker.trained_steps();
            if !steps.is_empty() {
                tracing::error!("steps that were given completions of worker {}: {}", worker.name, steps.join(", "));
            }
            self.banned.insert(worker.name.clone(), reason.clone());
        } else {
            tracing::warn!("worker {} leaves: {reason}", worker.name);
        }
        worker.drop_it(Standing::Dropped { reason, wrong });
    }

    /// Drops the workers that refuse the announced edition although another has it in use, and tells what they say where nobody
    /// has.
    pub fn take_refusals(&mut self) -> Vec<String> {
        if !self.is_in_use() {
            return self.refusing().into_iter().map(|(_, reason)| reason).collect();
        }
        self.drop_refusing("it refuses weights that others have in use");
        Vec::new()
    }

    /// Drops the workers that refuse the announced edition, for this reason.
    pub fn drop_refusing(&mut self, why: &str) {
        for (number, reason) in self.refusing() {
            self.drop_worker(number, format!("{why}: {reason}"), false);
        }
    }

    /// The workers that refuse the announced edition, with what they say.
    fn refusing(&self) -> Vec<(u64, String)> {
        let Some(edition) = &self.edition else { return Vec::new() };
        let is_about =
            |report: &(PolicyVersion, u64, String)| (report.0, report.1) == (edition.version, edition.publication);
        let refusing = self.workers.iter().filter_map(|(number, worker)| {
            let refusal = worker.refusal.as_ref().filter(|refusal| worker.is_welcome() && is_about(refusal))?;
            Some((*number, format!("worker {}: {}", worker.name, refusal.2)))
        });
        refusing.collect()
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }
}

/// Whether a completion can be what a request asked for; all of it was sent by somebody else.
fn is_possible(
    made: &Made,
    request: &GroupRequest,
    (oldest, newest): (PolicyVersion, PolicyVersion),
    vocab_size: usize,
) -> Result<(), String> {
    let length = made.token_ids.len();
    if length == 0 || length > request.sampling.max_completion_length as usize {
        return Err(format!("{length} tokens"));
    }
    if let Some(token) = made.token_ids.iter().find(|&&token| token as usize >= vocab_size) {
        return Err(format!("token {token} of a vocabulary of {vocab_size}"));
    }
    if made.logprobs.len() != length {
        return Err(format!("{} log-probs for {length} tokens", made.logprobs.len()));
    }
    let is_logprob = |value: f32| value.is_finite() && value <= 1e-3;
    if !made.logprobs.iter().all(|l| is_logprob(l.logprob) && is_logprob(l.logprob_at_temperature)) {
        return Err("a log-prob above 0 or not finite".into());
    }
    let runs = &made.versions;
    let begins = runs.first().is_some_and(|(first, _)| *first == 0);
    let ascend = runs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
    let inside = runs.iter().all(|(at, version)| (*at as usize) < length && (oldest..=newest).contains(version));
    if !(begins && ascend && inside) {
        return Err(format!("weights {runs:?}, asked for v{oldest} to v{newest}"));
    }
    Ok(())
}

pub(super) fn in_words(class: KernelClass) -> String {
    let KernelClass { device, kernels, rollout_dtype, kv_dtype } = class;
    format!("{kernels} kernels on {device} in {rollout_dtype}, keys and values in {kv_dtype}")
}

/// A request for some samples of another.
pub(super) fn part_of(request: &GroupRequest, samples: impl IntoIterator<Item = u32>) -> GroupRequest {
    GroupRequest { samples: Arc::from_iter(samples), ..request.clone() }
}

#[cfg(test)]
mod tests;
