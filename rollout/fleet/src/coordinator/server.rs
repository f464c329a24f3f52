//! The thread that answers workers, and the state that it shares with the step loop.

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shared::{
    RunDir,
    channel::fleet::{CoordinatorEnd, CoordinatorEvent},
    run::workers,
};

use super::{fleet::Door, scheduler::Scheduler, table};
use crate::weights::Trouble;

/// How long the thread waits for a call before it looks whether workers are to be woken.
const POLL: Duration = Duration::from_millis(2);
/// Time between two looks at deadlines.
const TICK: Duration = Duration::from_millis(100);
/// Time between two warnings that nobody samples.
const ALONE: Duration = Duration::from_secs(60);

/// The state that the step loop and the answering thread share.
pub(super) struct Shared {
    scheduler: Mutex<Scheduler>,
    /// Signals that completions have come.
    pub(super) arrived: Condvar,
    /// Whether workers are to be woken.
    news: AtomicBool,
    /// Whether the thread is to end.
    pub(super) over: AtomicBool,
    /// Bytes sent to the store, for the table.
    pub(super) store_bytes: AtomicU64,
    /// Versions that the store has, for the table.
    pub(super) store_versions: AtomicU64,
    store_trouble: Trouble,
    /// Microseconds in which nobody sampled.
    pub(super) alone_micros: AtomicU64,
}

impl Shared {
    pub(super) fn new(scheduler: Scheduler, store_trouble: Trouble) -> Self {
        Self {
            scheduler: Mutex::new(scheduler),
            arrived: Condvar::new(),
            news: AtomicBool::new(false),
            over: AtomicBool::new(false),
            store_bytes: AtomicU64::new(0),
            store_versions: AtomicU64::new(0),
            store_trouble,
            alone_micros: AtomicU64::new(0),
        }
    }

    pub(super) fn scheduler(&self) -> MutexGuard<'_, Scheduler> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes workers, so that they call.
    pub(super) fn wake_workers(&self) {
        self.news.store(true, Ordering::Release);
    }
}

/// The thread that answers.
pub(super) struct Server<E> {
    end: E,
    shared: Arc<Shared>,
    run_dir: RunDir,
    door: Door,
    /// The time since which nobody samples.
    alone: Instant,
    /// When a warning last said so.
    told: Option<Instant>,
}

impl<E: CoordinatorEnd + 'static> Server<E> {
    /// Begins to answer calls at `end`. `door` is where workers reach it, for messages.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(end: E, shared: Arc<Shared>, run_dir: RunDir, door: Door) -> io::Result<JoinHandle<()>> {
        let mut server = Self { end, shared, run_dir, door, alone: Instant::now(), told: None };
        thread::Builder::new().name("coordinator".into()).spawn(move || server.run())
    }

    fn run(&mut self) {
        let (mut tick, mut written) = (Instant::now(), Instant::now());
        while !self.shared.over.load(Ordering::Relaxed) {
            if self.shared.news.swap(false, Ordering::Acquire) {
                self.end.wake();
            }
            match self.end.next(POLL) {
                Ok(Some(event)) => self.handle(event),
                Ok(None) => (),
                Err(error) => {
                    tracing::error!("workers are not heard any more: {error}");
                    return;
                }
            }
            let now = Instant::now();
            if now >= tick {
                tick = now + TICK;
                let mut scheduler = self.shared.scheduler();
                scheduler.tick(now);
                if !scheduler.has_someone_at_work() {
                    self.shared.alone_micros.fetch_add(TICK.as_micros() as u64, Ordering::Relaxed);
                }
            }
            if now >= written {
                written = now + workers::INTERVAL;
                self.write(now);
            }
        }
        self.write(Instant::now());
    }

    fn handle(&mut self, event: CoordinatorEvent) {
        let now = Instant::now();
        match event {
            CoordinatorEvent::Call(call) => {
                let orders = self.shared.scheduler().call(call.report(), now);
                self.shared.arrived.notify_all();
                call.answer(&orders);
            }
            CoordinatorEvent::Gone(worker) => self.shared.scheduler().gone(worker, now),
            CoordinatorEvent::Refused { from, reason } => {
                tracing::warn!("a call from {from} is refused: {reason}");
                self.shared.scheduler().refused(reason);
            }
        }
    }

    /// Writes the table, and warns when nobody samples.
    fn write(&mut self, now: Instant) {
        let mut table = table::of(&self.shared.scheduler(), now);
        if table.at_work() > 0 {
            (self.alone, self.told) = (now, None);
        } else if now.duration_since(self.told.unwrap_or(self.alone)) >= ALONE {
            let seconds = now.duration_since(self.alone).as_secs();
            tracing::warn!("no worker has sampled for {seconds} s; start some: {}", self.door.join);
            self.told = Some(now);
        }
        table.listen.clone_from(&self.door.listen);
        table.join.clone_from(&self.door.join);
        table.alone_s = now.duration_since(self.alone).as_secs_f64();
        table.store_bytes_out = self.shared.store_bytes.load(Ordering::Relaxed);
        table.store_versions = self.shared.store_versions.load(Ordering::Relaxed);
        table.store_trouble = self.shared.store_trouble.now();
        if let Err(error) = table.write(&self.run_dir) {
            tracing::debug!("the table of workers is not written: {error}");
        }
    }
}
