//! Workers as they come, go, and are dropped.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use shared::{
    PolicyVersion,
    channel::fleet::{Edition, Report, Unfetched},
};

use super::Scheduler;
use crate::{
    coordinator::registry::{Standing, Worker},
    messages::{class_in_words, host_of},
};

/// How long a worker whose connection is gone keeps its leases: a link that is cut for a moment costs no work.
const GRACE: Duration = Duration::from_secs(5);
/// Most workers that are remembered. The oldest ones that are gone are forgotten first.
const MOST_WORKERS: usize = 4096;
/// Reasons of refused calls that are counted separately.
pub(super) const MOST_REASONS: usize = 16;

/// The workers that wrong completions keep out: those of a name, or all of a host where the name has the process. No
/// `--name` can be mistaken for a host.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Banned {
    Name(String),
    Host(String),
}

impl Banned {
    /// Those that a worker of this name belongs to.
    fn of(name: &str) -> Self {
        host_of(name).map_or_else(|| Self::Name(name.to_owned()), |host| Self::Host(host.to_owned()))
    }
}

impl Scheduler {
    /// Counts a call that was refused before the scheduler saw it.
    pub fn refused(&mut self, reason: String) {
        self.refused_calls += 1;
        if self.refusals.len() < MOST_REASONS || self.refusals.contains_key(&reason) {
            *self.refusals.entry(reason).or_default() += 1;
        }
    }

    /// Number of calls that were refused before the scheduler saw them, and their numbers by reason.
    #[must_use]
    pub fn refused_calls(&self) -> (u64, &BTreeMap<String, u64>) {
        (self.refused_calls, &self.refusals)
    }

    /// The reason why a worker is refused; `None` if it is not.
    pub(super) fn refuses(&self, report: &Report) -> Option<String> {
        if let Some(reason) = self.why_banned(report) {
            return Some(reason);
        }
        let build = env!("CARGO_PKG_VERSION");
        if report.build != build {
            return Some(format!("it is version {} and the run is version {build}; use one build", report.build));
        }
        let class = report.class.filter(|class| *class != self.options.class && !self.options.accept_other_kernels)?;
        Some(format!(
            "it computes with {} and the run with {}: the last bits of its figures are others; let the run accept that \
             with `accept_other_kernels`, or give it the same",
            class_in_words(class),
            class_in_words(self.options.class)
        ))
    }

    /// The reason why a worker is refused because one of its name, or of its host, has made wrong completions. Workers
    /// of that host which joined before may stay: their completions are checked as before.
    fn why_banned(&self, report: &Report) -> Option<String> {
        let banned = Banned::of(&report.name);
        let reason = self.banned.get(&banned)?;
        match banned {
            Banned::Name(name) => {
                let advice = "mend it and give it another --name";
                Some(format!("a worker of the name {name} was dropped: {reason}; {advice}"))
            }
            Banned::Host(host) => {
                let is_at_work = self.workers.get(&report.worker).is_some_and(Worker::is_welcome);
                let advice = "mend the host, and give its workers a --name";
                (!is_at_work).then(|| format!("a worker on {host} was dropped: {reason}; {advice}"))
            }
        }
    }

    /// Notes that a worker is refused. A caller without a name only asks, and is no worker.
    pub(super) fn turn_away(&mut self, report: &Report, reason: &str, now: Instant) {
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

    /// Notes what a worker reports of itself.
    pub(super) fn note(&mut self, report: &Report, now: Instant) {
        if !self.workers.contains_key(&report.worker) {
            self.make_room();
            tracing::info!("worker {} ({:x}) joins", report.name, report.worker);
        }
        let worker = self.workers.entry(report.worker).or_insert_with(|| Worker::new(report, now));
        if worker.class != report.class
            && let Some(class) = report.class.filter(|class| *class != self.options.class)
        {
            tracing::warn!(
                "worker {} computes with {}, and the run is not repeatable",
                report.name,
                class_in_words(class)
            );
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

    /// Takes back the leases of workers that make no progress or are gone.
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

    /// Notes that the connection to a worker is gone.
    pub fn gone(&mut self, number: u64, now: Instant) {
        if let Some(worker) = self.workers.get_mut(&number) {
            worker.gone_since.get_or_insert(now);
            if worker.is_welcome() {
                tracing::info!("worker {} is gone", worker.name);
            }
        }
    }

    /// Takes back a worker's leases, and returns their number.
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

    /// Drops a worker. With `wrong`, nothing that it has made is trusted either, its reason names the steps that were
    /// given some of it, and it is refused when it is started again.
    pub(super) fn drop_worker(&mut self, number: u64, reason: String, wrong: bool) {
        self.withdraw(number);
        if wrong {
            // Nor is anything that it may still send.
            self.leases.retain(|_, lease| lease.worker != number);
        }
        let Some(worker) = self.workers.get_mut(&number).filter(|worker| worker.dropped().is_none()) else { return };
        if !wrong {
            tracing::warn!("worker {} leaves: {reason}", worker.name);
            worker.drop_it(Standing::Dropped { reason, wrong });
            return;
        }
        let told = match worker.trained_steps() {
            Some(steps) => format!("{reason}; steps that were given its completions: {steps}"),
            None => reason.clone(),
        };
        tracing::error!("worker {} is dropped: {told}", worker.name);
        self.banned.insert(Banned::of(&worker.name), reason);
        worker.drop_it(Standing::Dropped { reason: told, wrong });
    }

    /// The announced edition, if a worker finds something else in its place, and the worker's finding.
    #[must_use]
    pub fn damage(&self) -> Option<(Edition, String)> {
        let (_, reason) = self.finding_damage().into_iter().next()?;
        Some((self.edition.clone()?, reason))
    }

    /// Drops the workers that find something else in the place of the announced edition: sending it again has not
    /// helped.
    pub fn drop_finding_damage(&mut self) {
        for (number, reason) in self.finding_damage() {
            let why =
                "weights were sent again several times and do not come to it; look at the store, and at its --store";
            self.drop_worker(number, format!("{why}: {reason}"), false);
        }
    }

    /// The workers that find something else in the place of the announced edition, with their findings.
    fn finding_damage(&self) -> Vec<(u64, String)> {
        let Some(edition) = &self.edition else { return Vec::new() };
        let finding = self.workers.iter().filter_map(|(number, worker)| {
            let is_meant = |what: &&Unfetched| what.is_damage && what.publication == edition.publication;
            let found = worker.unfetched.as_ref().filter(|what| worker.is_welcome() && is_meant(what))?;
            Some((*number, format!("worker {}: {}", worker.name, found.reason)))
        });
        finding.collect()
    }

    /// Drops the workers that refuse the announced edition although another one has it in use. Where nobody has it in
    /// use, returns their reasons.
    pub fn take_refusals(&mut self) -> Vec<String> {
        if !self.is_in_use() {
            return self.refusing().into_iter().map(|(_, reason)| reason).collect();
        }
        self.drop_refusing("it refuses weights that others have in use");
        Vec::new()
    }

    /// Drops the workers that refuse the announced edition; the reason begins with `why`.
    pub fn drop_refusing(&mut self, why: &str) {
        for (number, reason) in self.refusing() {
            self.drop_worker(number, format!("{why}: {reason}"), false);
        }
    }

    /// The workers that refuse the announced edition, with their reasons.
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
}
