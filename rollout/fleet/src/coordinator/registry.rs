//! The coordinator's record of a worker.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use shared::{
    PolicyVersion, PromptId,
    channel::fleet::{Edition, KernelClass, Report, Unfetched, Work},
};

/// Prompts that are remembered of a worker: the newest ones, some of which may not be trained on yet.
const REMEMBERED: usize = 1 << 16;
/// Seconds of the past that a worker's rate covers.
const RATE_MEMORY_S: f64 = 20.0;

/// A row of the dataset in an epoch.
pub type Prompt = (PromptId, u32);

/// Whether the coordinator takes completions of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Welcome,
    /// It does not.
    Dropped {
        /// The reason.
        reason: String,
        /// Whether the worker's completions were wrong.
        wrong: bool,
    },
}

/// A worker that has called.
#[derive(Debug)]
pub struct Worker {
    /// Its name, for people.
    pub name: String,
    /// The kernels that it computes with, once it has begun to compute.
    pub class: Option<KernelClass>,
    /// When it joined.
    pub joined: Instant,
    /// When it last called.
    pub seen: Instant,
    /// When it last made progress with its leases, or got leases after it had none.
    pub progress: Instant,
    /// Since when its connection is gone.
    pub gone_since: Option<Instant>,
    /// The time until which it gets no leases, because it was stuck.
    pub rest_until: Option<Instant>,
    /// The edition that it has in use.
    pub edition: Option<Edition>,
    /// The edition that it refuses, by version and publication, with the reason.
    pub refusal: Option<(PolicyVersion, u64, String)>,
    /// The edition that it cannot get from the store.
    pub unfetched: Option<Unfetched>,
    /// Its counters.
    pub work: Work,
    /// How far its clock is from this host's, in seconds.
    pub clock_off_s: f64,
    /// Completions that counted.
    pub completions: u64,
    /// Completions that another worker made first.
    pub twice: u64,
    /// Leases that were taken back.
    pub expired: u64,
    /// Messages that made no sense.
    pub failures: u64,
    max_num_seqs: usize,
    rate: Option<f64>,
    standing: Standing,
    /// Prompts for which it has made something, with the step for which each was handed over.
    made: BTreeMap<Prompt, Option<u64>>,
    distrusted: BTreeSet<Prompt>,
}

impl Worker {
    pub(super) fn new(report: &Report, now: Instant) -> Self {
        Self {
            name: report.name.clone(),
            class: report.class,
            joined: now,
            seen: now,
            progress: now,
            gone_since: None,
            rest_until: None,
            edition: None,
            refusal: None,
            unfetched: None,
            work: Work::default(),
            clock_off_s: 0.0,
            completions: 0,
            twice: 0,
            expired: 0,
            failures: 0,
            max_num_seqs: 0,
            rate: None,
            standing: Standing::Welcome,
            made: BTreeMap::new(),
            distrusted: BTreeSet::new(),
        }
    }

    pub(super) fn note(&mut self, report: &Report, now: Instant) {
        if self.gone_since.take().is_some() {
            tracing::info!("worker {} is back", self.name);
        }
        let (tokens, busy) =
            (report.work.tokens.saturating_sub(self.work.tokens), report.work.busy_s - self.work.busy_s);
        // Reward functions have a deadline of their own.
        if tokens > 0 || report.work.scoring > 0 {
            self.progress = now;
        }
        if tokens > 0 && busy > 0.0 {
            let (rate, weight) = (tokens as f64 / busy, 1.0 - (-busy / RATE_MEMORY_S).exp());
            self.rate = Some(self.rate.map_or(rate, |before| before + weight * (rate - before)));
        }
        self.seen = now;
        self.clock_off_s = report.clock - shared::run::workers::now();
        self.class = report.class;
        self.max_num_seqs = report.max_num_seqs as usize;
        self.edition.clone_from(&report.edition);
        self.refusal = report.refusal.clone().map(|refusal| (refusal.version, refusal.publication, refusal.reason));
        if report.unfetched.is_some() && report.unfetched != self.unfetched {
            let reason = report.unfetched.as_ref().map(|what| what.reason.as_str()).unwrap_or_default();
            tracing::warn!("worker {} has trouble with its weights: {reason}", self.name);
        }
        self.unfetched.clone_from(&report.unfetched);
        self.work = report.work;
    }

    /// Whether the coordinator takes completions of it.
    #[must_use]
    pub fn is_welcome(&self) -> bool {
        self.standing == Standing::Welcome
    }

    /// The reason why it was dropped.
    #[must_use]
    pub fn dropped(&self) -> Option<&str> {
        match &self.standing {
            Standing::Welcome => None,
            Standing::Dropped { reason, .. } => Some(reason),
        }
    }

    /// Whether its connection is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone_since.is_some()
    }

    /// Whether it could sample from the announced edition, or from the one before.
    #[must_use]
    pub fn can_sample(&self, announced: &Option<Edition>) -> bool {
        self.is_welcome() && !self.is_gone() && self.max_num_seqs > 0 && self.edition.is_some() && announced.is_some()
    }

    /// Whether it has an edition in use.
    #[must_use]
    pub fn has(&self, edition: &Option<Edition>) -> bool {
        self.edition == *edition
    }

    /// Whether it has the weights of an edition in use, of whatever publication.
    #[must_use]
    pub fn has_weights_of(&self, edition: &Option<Edition>) -> bool {
        let (Some(own), Some(edition)) = (&self.edition, edition) else { return false };
        own.has_bytes_of(edition)
    }

    /// Whether it has weights in use that the learner has lost: their number is that of the announced edition, or of a
    /// later one, and their bytes are others.
    #[must_use]
    pub fn has_lost_weights(&self, announced: &Option<Edition>) -> bool {
        let (Some(own), Some(announced)) = (&self.edition, announced) else { return false };
        own.version >= announced.version && !own.has_bytes_of(announced)
    }

    /// The version that it has in use.
    #[must_use]
    pub fn version(&self) -> Option<PolicyVersion> {
        self.edition.as_ref().map(|edition| edition.version)
    }

    /// Sequences that it decodes at once.
    #[must_use]
    pub fn places(&self) -> usize {
        self.max_num_seqs
    }

    /// Tokens per second while it has something to do.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }

    pub(super) fn rests(&self, now: Instant) -> bool {
        self.rest_until.is_some_and(|until| now < until)
    }

    pub(super) fn progressed(&mut self, now: Instant) {
        self.progress = now;
        self.rest_until = None;
    }

    /// Notes that it has leases to work on.
    pub(super) fn begins(&mut self, now: Instant) {
        self.progress = now;
    }

    pub(super) fn made(&mut self, prompt: Prompt) {
        if self.made.len() >= REMEMBERED {
            self.made.pop_first();
        }
        self.made.insert(prompt, None);
    }

    pub(super) fn handed_over(&mut self, prompt: Prompt, step: u64) {
        if let Some(of) = self.made.get_mut(&prompt) {
            *of = Some(step);
        }
    }

    /// Steps that were given some of its completions, counted from 1, in words; none if there are none.
    pub(super) fn trained_steps(&self) -> Option<String> {
        let steps: BTreeSet<u64> = self.made.values().filter_map(|step| *step).collect();
        let mut spans: Vec<(u64, u64)> = Vec::new();
        for step in steps.into_iter().map(|step| step + 1) {
            match spans.last_mut() {
                Some((_, last)) if *last + 1 == step => *last = step,
                _ => spans.push((step, step)),
            }
        }
        let in_words = |(first, last): (u64, u64)| match first == last {
            true => first.to_string(),
            false => format!("{first} to {last}"),
        };
        let words: Vec<String> = spans.into_iter().map(in_words).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    pub(super) fn drop_it(&mut self, standing: Standing) {
        if matches!(standing, Standing::Dropped { wrong: true, .. }) {
            self.distrusted = std::mem::take(&mut self.made).into_keys().collect();
        }
        self.standing = standing;
    }

    pub(super) fn take_distrusted(&mut self) -> BTreeSet<Prompt> {
        std::mem::take(&mut self.distrusted)
    }

    /// Time since it last called.
    #[must_use]
    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.seen)
    }
}
