//! The thread that calls the coordinator, and what it and the session leave for each other.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use shared::{
    channel::fleet::{CALL_BYTES, CALL_INTERVAL, Lease, Made, Orders, Report, WorkerEnd},
    run::workers,
};

use super::WorkerOptions;

/// How long a call may take.
const CALL: Duration = Duration::from_secs(10);
/// Time between two looks at whether there is something to say while nothing is heard.
const POLL: Duration = Duration::from_millis(1);
/// Pause after a call that failed.
const PAUSE: Duration = Duration::from_millis(300);
/// Time between two words on a coordinator that does not answer.
const SAID: Duration = Duration::from_secs(10);

/// The session's end of that thread.
pub struct Client {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    notes: Mutex<Notes>,
    /// There are new orders.
    ordered: Condvar,
    /// There is something to say.
    news: AtomicBool,
    over: AtomicBool,
}

struct Notes {
    report: Report,
    orders: Option<Orders>,
    /// The coordinator has not answered for so long that there is no use in calling any more.
    given_up: Option<String>,
    /// Calls that were answered.
    answered: u64,
}

impl Shared {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Begins to call.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(end: impl WorkerEnd + 'static, number: u64, options: &WorkerOptions) -> anyhow::Result<Self> {
        let build = env!("CARGO_PKG_VERSION").to_owned();
        let report = Report { worker: number, name: options.name.clone(), build, ..Report::default() };
        let notes = Mutex::new(Notes { report, orders: None, given_up: None, answered: 0 });
        let shared =
            Shared { notes, ordered: Condvar::new(), news: AtomicBool::new(true), over: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let mut caller = Caller { end, shared: Arc::clone(&shared), retry_for: options.retry_for };
        let thread =
            thread::Builder::new().name("calls".into()).spawn(move || caller.run()).context("thread of calls")?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Changes what the next call says.
    pub fn update(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.shared.notes().report);
    }

    /// As [`Client::update`], and calls at once.
    pub fn report(&self, change: impl FnOnce(&mut Report)) {
        self.update(change);
        self.shared.news.store(true, Ordering::Release);
    }

    /// The newest orders since the last call, waiting at most so long for them.
    ///
    /// # Errors
    /// When the coordinator has been silent for too long.
    pub fn orders(&self, timeout: Duration) -> anyhow::Result<Option<Orders>> {
        let mut notes = self.shared.notes();
        if notes.orders.is_none() && notes.given_up.is_none() && !timeout.is_zero() {
            notes = self.shared.ordered.wait_timeout(notes, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
        match notes.given_up.clone() {
            Some(reason) => Err(anyhow::anyhow!(reason)),
            None => Ok(notes.orders.take()),
        }
    }

    /// Waits, for a moment at most, until what the report says now has arrived.
    pub fn say_last(&self) {
        let answered = self.shared.notes().answered;
        self.shared.news.store(true, Ordering::Release);
        let until = Instant::now() + Duration::from_secs(2);
        // The call that is under way may have begun before.
        while Instant::now() < until && self.shared.notes().answered < answered + 2 {
            self.shared.news.store(true, Ordering::Release);
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Caller<E> {
    end: E,
    shared: Arc<Shared>,
    retry_for: Duration,
}

impl<E: WorkerEnd> Caller<E> {
    fn run(&mut self) {
        let mut heard = Instant::now();
        let mut said = heard;
        while !self.shared.over.load(Ordering::Relaxed) {
            self.shared.news.store(false, Ordering::Relaxed);
            let report = part_of(&self.shared.notes().report, CALL_BYTES);
            let left = self.retry_for.saturating_sub(heard.elapsed());
            match self.end.exchange(&report, CALL.min(left.max(CALL_INTERVAL))) {
                Ok(orders) => {
                    if said > heard {
                        tracing::info!("the coordinator answers again");
                    }
                    heard = Instant::now();
                    self.answered(&report, orders);
                    self.listen();
                }
                Err(error) => {
                    let silent = heard.elapsed();
                    if said <= heard || said.elapsed() >= SAID {
                        tracing::warn!("no answer from the coordinator for {:.0} s: {error}", silent.as_secs_f64());
                        said = Instant::now();
                    }
                    if silent >= self.retry_for {
                        let seconds = silent.as_secs();
                        self.shared.notes().given_up =
                            Some(format!("no answer from the coordinator for {seconds} s (--retry-for): {error}"));
                        self.shared.ordered.notify_all();
                        return;
                    }
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// What was said has arrived.
    fn answered(&self, report: &Report, orders: Orders) {
        let mut notes = self.shared.notes();
        // What was made since stands behind it.
        let arrived = if orders.coordinator == report.coordinator || report.coordinator == 0 {
            report.made.len()
        } else {
            notes.report.made.len()
        };
        let arrived = arrived.min(notes.report.made.len());
        notes.report.made.drain(..arrived);
        if !notes.report.made.is_empty() {
            self.shared.news.store(true, Ordering::Release);
        }
        // Granted once: the session must see them all.
        if let Some(before) = notes.orders.take().filter(|before| before.coordinator == orders.coordinator) {
            notes.orders = Some(joined(before, orders));
        } else {
            notes.orders = Some(orders);
        }
        notes.answered += 1;
        drop(notes);
        self.shared.ordered.notify_all();
    }

    /// Until the coordinator wakes it, there is something to say, or it is time.
    fn listen(&mut self) {
        let until = Instant::now() + CALL_INTERVAL;
        while Instant::now() < until
            && !self.shared.news.load(Ordering::Acquire)
            && !self.shared.over.load(Ordering::Relaxed)
        {
            if self.end.listen(POLL) {
                return;
            }
        }
    }
}

/// What a call says: of what was made as much as `most` bytes, or one. Of the rest its leases are held.
fn part_of(report: &Report, most: usize) -> Report {
    let mut bytes = 0;
    let fits = |made: &&Made| {
        bytes += size_of::<Made>() + size_of_val(&*made.token_ids) + size_of_val(&*made.logprobs);
        bytes <= most
    };
    let count = report.made.iter().take_while(fits).count().max(1).min(report.made.len());
    let (now, later) = report.made.split_at(count);
    let mut held: Vec<u64> = report.held.iter().copied().chain(later.iter().map(|made| made.lease)).collect();
    held.sort_unstable();
    held.dedup();
    let (clock, made) = (workers::now(), now.to_vec());
    Report {
        clock,
        held,
        made,
        name: report.name.clone(),
        build: report.build.clone(),
        edition: report.edition.clone(),
        refusal: report.refusal.clone(),
        unfetched: report.unfetched.clone(),
        problem: report.problem.clone(),
        ..*report
    }
}

/// Two orders of one coordinator as one.
fn joined(before: Orders, mut orders: Orders) -> Orders {
    let is_new = |lease: &Lease| {
        orders.leases.contains(&lease.id) && orders.granted.iter().all(|granted| granted.id != lease.id)
    };
    let earlier: Vec<_> = before.granted.into_iter().filter(is_new).collect();
    orders.granted.splice(0..0, earlier);
    orders.facts = orders.facts.or(before.facts);
    orders
}

#[cfg(test)]
mod tests {
    use shared::{FinishReason, TokenLogprob};

    use super::*;

    fn made(lease: u64, tokens: usize) -> Made {
        Made {
            lease,
            sample: 0,
            token_ids: vec![1; tokens],
            logprobs: vec![TokenLogprob::default(); tokens],
            versions: Vec::new(),
            finish_reason: FinishReason::Stop,
            seconds: 0.0,
            rewards: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_fit_into_a_call_is_held_until_the_next() {
        let one = size_of::<Made>() + 100 * (size_of::<u32>() + size_of::<TokenLogprob>());
        let report =
            Report { held: vec![3, 9], made: [1, 1, 5, 3].map(|lease| made(lease, 100)).to_vec(), ..Report::default() };
        let of = |most| {
            let said = part_of(&report, most);
            (said.made.len(), said.held)
        };
        assert_eq!(of(4 * one), (4, vec![3, 9]));
        assert_eq!(of(3 * one), (3, vec![3, 9]));
        assert_eq!(of(2 * one + 1), (2, vec![3, 5, 9]));
        assert_eq!(of(1), (1, vec![1, 3, 5, 9]), "something gets through, whatever its size");
        assert_eq!(part_of(&Report::default(), 1).made, []);
    }
}
