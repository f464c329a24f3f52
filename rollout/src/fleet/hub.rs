//! The hub: what samples for the step loop is workers on other hosts.

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use shared::{
    PolicyVersion, PromptId, RewardOutcome, RolloutGroup, RunDir,
    channel::{
        FleetStatus,
        fleet::{CALL_INTERVAL, Edition, HubEnd, HubEvent},
    },
    workers,
};

use super::{
    desk::Desk,
    judge::Judge,
    scores, table,
    weights::{OnItsWay, Publisher, Trouble},
};
use crate::{
    data::PromptRow,
    engine::{EngineError, FinishedSequence, Output, Request, SwapReport, WeightSource},
    generate::{Generate, PairGenerator},
};

/// The version of a hub that has announced none.
const NONE: PolicyVersion = PolicyVersion(u64::MAX);
/// How long the thread waits for a call before it looks whether to ring.
const POLL: Duration = Duration::from_millis(2);
/// How long [`Generate::advance`] of a [`Fleet`] waits for completions.
const STEP: Duration = Duration::from_millis(5);
/// Time between two looks at deadlines.
const TICK: Duration = Duration::from_millis(100);
/// Time between two words on a run that nobody samples for.
const ALONE: Duration = Duration::from_secs(60);

/// Workers, as what samples for the step loop.
pub struct Fleet {
    shared: Arc<Shared>,
    publisher: Publisher,
    judge: Judge,
    /// Workers are to score what they make.
    workers_score: bool,
    version: PolicyVersion,
    /// Of the completions that came last, what workers have said of them.
    rewards: HashMap<(u64, u32), Vec<RewardOutcome>>,
    /// Of what more than completions is asked, by its tag: the request, and how many of it are to come.
    asked: HashMap<u64, (Request, usize)>,
    pending: Option<Pending>,
    /// The version that the store has lost, on its way again.
    repair: Option<OnItsWay>,
    thread: Option<JoinHandle<()>>,
}

struct Pending {
    way: OnItsWay,
    /// What workers were told of.
    announced: bool,
}

/// What the step loop and the thread that answers share.
struct Shared {
    desk: Mutex<Desk>,
    /// Completions have come.
    arrived: Condvar,
    /// Workers are to be rung.
    news: AtomicBool,
    over: AtomicBool,
    /// For the table.
    store_bytes: AtomicU64,
    store_versions: AtomicU64,
    store_trouble: Trouble,
    /// Microseconds in which nobody sampled.
    alone_micros: AtomicU64,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        self.news.store(true, Ordering::Release);
    }
}

impl Fleet {
    /// Begins to answer calls at `end`. `listen` is where workers reach it, for people; `workers_score` has them score what
    /// they make.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(
        end: impl HubEnd + 'static,
        desk: Desk,
        publisher: Publisher,
        judge: Judge,
        workers_score: bool,
        run_dir: RunDir,
        listen: String,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            desk: Mutex::new(desk),
            arrived: Condvar::new(),
            news: AtomicBool::new(false),
            over: AtomicBool::new(false),
            store_bytes: AtomicU64::new(0),
            store_versions: AtomicU64::new(0),
            store_trouble: publisher.trouble(),
            alone_micros: AtomicU64::new(0),
        });
        let mut desk_clerk =
            Clerk { end, shared: Arc::clone(&shared), run_dir, listen, alone: Instant::now(), told: None };
        let thread = thread::Builder::new().name("hub".into()).spawn(move || desk_clerk.run())?;
        Ok(Self {
            shared,
            publisher,
            judge,
            workers_score,
            version: NONE,
            rewards: HashMap::new(),
            asked: HashMap::new(),
            pending: None,
            repair: None,
            thread: Some(thread),
        })
    }

    /// A request for workers; `row` is what they score it by.
    fn add(&mut self, request: Request, row: Option<String>) {
        let group = request.whole();
        if request.stream || request.keep {
            self.asked.insert(group.tag, (request, group.samples.len()));
        }
        self.shared.desk().add(group, self.version, row);
        self.shared.ring();
    }

    /// What comes of a completion.
    fn outputs(&mut self, sequence: FinishedSequence) -> Vec<Output> {
        let tag = sequence.tag;
        let Some((request, _)) = self.asked.get(&tag) else { return vec![Output::Ended { sequence, state: None }] };
        let outputs = request.outputs(sequence);
        self.has_come(tag);
        outputs
    }

    /// One of the completions with a tag is there, or not wanted any more.
    fn has_come(&mut self, tag: u64) {
        if let Some((_, left)) = self.asked.get_mut(&tag) {
            *left -= 1;
            if *left == 0 {
                self.asked.remove(&tag);
            }
        }
    }

    /// Tells workers of a version that is in the store.
    fn announce(&mut self, edition: Edition) {
        let in_use = {
            let mut desk = self.shared.desk();
            desk.announce(edition.clone());
            desk.editions_in_use()
        };
        self.shared.ring();
        self.publisher.keep(edition, &in_use);
        self.shared.store_bytes.store(self.publisher.bytes(), Ordering::Relaxed);
        self.shared.store_versions.store(self.publisher.versions() as u64, Ordering::Relaxed);
    }

    /// Sends again what workers find damaged in the store.
    fn mend_store(&mut self) -> Result<(), EngineError> {
        if let Some(way) = &mut self.repair {
            let Some(result) = way.try_join() else { return Ok(()) };
            self.repair = None;
            self.announce(result?);
            return Ok(());
        }
        if self.pending.as_ref().is_some_and(|pending| !pending.announced) {
            return Ok(());
        }
        let Some((edition, reason)) = self.shared.desk().damage() else { return Ok(()) };
        let version = edition.version;
        let failed = |e| EngineError::Swap { version, message: format!("no thread to publish it: {e}") };
        match self.publisher.repair(edition).map_err(failed)? {
            Some(repair) => {
                tracing::warn!("weights v{version} are sent again: {reason}");
                self.repair = Some(repair);
            }
            None => self.shared.desk().drop_finding_damage(),
        }
        Ok(())
    }

    /// What becomes of a version that workers refuse and none has in use: the engine beside this hub decides.
    fn refused(&mut self, version: PolicyVersion, refusals: &[String]) -> Result<(), EngineError> {
        let Some(edition) = self.shared.desk().edition().cloned() else { return Ok(()) };
        match self.judge.opinion(&edition) {
            None => self.judge.look_at(edition),
            Some(Ok(())) => {
                self.shared.desk().drop_refusing("it refuses weights that the engine beside the learner takes")
            }
            Some(Err(reason)) => {
                self.pending = None;
                let reason = format!("{}; beside the learner: {reason}", refusals.join("; "));
                return Err(EngineError::Refused { version, reason });
            }
        }
        Ok(())
    }

    /// Takes cases to the engine beside this hub, and back.
    fn hold_court(&mut self) {
        let decided = self.judge.decided();
        let mut desk = self.shared.desk();
        for (check, verdict) in decided {
            desk.judge(&check, verdict);
        }
        if self.judge.is_free() {
            let edition = desk.edition().cloned();
            let cases = desk.take_cases(Instant::now());
            drop(desk);
            self.judge.take(cases, edition);
        }
    }
}

impl Generate for Fleet {
    fn version(&self) -> PolicyVersion {
        self.version
    }

    fn capacity(&self) -> usize {
        self.shared.desk().places()
    }

    fn running(&self) -> usize {
        self.shared.desk().running()
    }

    fn waiting(&self) -> usize {
        self.shared.desk().waiting()
    }

    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        self.add(request, None);
        Ok(())
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        self.hold_court();
        self.mend_store()?;
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(EngineError::Library("the thread that answers workers has ended; see above".into()));
        }
        let mut desk = self.shared.desk();
        let mut finished = desk.take_finished();
        if finished.is_empty() {
            desk = self.shared.arrived.wait_timeout(desk, STEP).unwrap_or_else(PoisonError::into_inner).0;
            finished = desk.take_finished();
        }
        drop(desk);
        self.rewards.clear();
        let mut outputs = Vec::new();
        for (sequence, rewards) in finished {
            self.rewards.insert((sequence.tag, sequence.sample), rewards);
            outputs.extend(self.outputs(sequence));
        }
        Ok(outputs)
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        let cancelled = self.shared.desk().cancel(tag, sample);
        cancelled.iter().for_each(|sequence| self.has_come(sequence.tag));
        self.shared.ring();
        cancelled
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        let version = weights.version;
        self.repair = None;
        let in_use = self.shared.desk().editions_in_use();
        let begun = self.publisher.begin(weights, in_use);
        let way = begun.map_err(|e| EngineError::Swap { version, message: format!("no thread to publish it: {e}") })?;
        self.pending = Some(Pending { way, announced: false });
        Ok(())
    }

    /// A version is in use once the first worker has it.
    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        self.hold_court();
        self.mend_store()?;
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let version = pending.way.source.version;
        if !pending.announced {
            let Some(result) = pending.way.try_join() else { return Ok(None) };
            match result {
                Ok(edition) => self.announce(edition),
                Err(error) => {
                    self.pending = None;
                    return Err(error);
                }
            }
            self.pending.as_mut().expect("it was just looked at").announced = true;
        }
        let (refusals, is_in_use) = {
            let mut desk = self.shared.desk();
            (desk.take_refusals(), desk.is_in_use())
        };
        if !is_in_use {
            if !refusals.is_empty() {
                self.refused(version, &refusals)?;
            }
            return Ok(None);
        }
        let begun = self.pending.take().expect("it was just looked at").way.begun;
        self.version = version;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Some(SwapReport { version, seconds, stall_seconds: 0.0, gate_seconds: 0.0 }))
    }

    /// Each worker finishes what it has begun before it changes weights, where it is to.
    fn set_admission(&mut self, _: bool) {}
}

impl PairGenerator for Fleet {
    fn begin_row(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        self.add(request, Some(row).filter(|_| self.workers_score).map(scores::text_of));
        Ok(())
    }

    fn take_rewards(&mut self, sequence: &FinishedSequence) -> Vec<RewardOutcome> {
        self.rewards.remove(&(sequence.tag, sequence.sample)).unwrap_or_default()
    }

    fn is_here(&self) -> bool {
        false
    }

    fn fleet(&self) -> Option<FleetStatus> {
        let status = table::status(&self.shared.desk(), Instant::now());
        let stored_bytes = self.publisher.bytes();
        Some(FleetStatus { stored_bytes, alone_micros: self.shared.alone_micros.load(Ordering::Relaxed), ..status })
    }

    /// Sends the workers home, and waits for a moment until all have heard it.
    fn close(&mut self) {
        self.shared.desk().close();
        self.shared.ring();
        let until = Instant::now() + CALL_INTERVAL * 3;
        let is_left = |desk: &Desk| desk.workers().all(|(_, worker)| worker.is_gone() || !worker.is_welcome());
        while Instant::now() < until && !is_left(&self.shared.desk()) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn handed_over(&mut self, group: &RolloutGroup) {
        self.shared.desk().handed_over(group.prompt_id, group.epoch, group.id.step.0);
    }

    fn distrusted(&mut self) -> Vec<(PromptId, u32)> {
        self.shared.desk().take_distrusted()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread that answers.
struct Clerk<E> {
    end: E,
    shared: Arc<Shared>,
    run_dir: RunDir,
    listen: String,
    /// Since when nobody samples.
    alone: Instant,
    /// When that was last said.
    told: Option<Instant>,
}

impl<E: HubEnd> Clerk<E> {
    fn run(&mut self) {
        let (mut tick, mut written) = (Instant::now(), Instant::now());
        while !self.shared.over.load(Ordering::Relaxed) {
            if self.shared.news.swap(false, Ordering::Acquire) {
                self.end.ring();
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
                let mut desk = self.shared.desk();
                desk.tick(now);
                if !desk.has_someone_at_work() {
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

    fn handle(&mut self, event: HubEvent) {
        let now = Instant::now();
        match event {
            HubEvent::Call(call) => {
                let orders = self.shared.desk().call(call.report(), now);
                self.shared.arrived.notify_all();
                call.answer(&orders);
            }
            HubEvent::Gone(worker) => self.shared.desk().gone(worker, now),
            HubEvent::Refused { from, reason } => {
                tracing::warn!("a call from {from} is refused: {reason}");
                self.shared.desk().refused(reason);
            }
        }
    }

    /// Writes the table, and says so when nobody samples.
    fn write(&mut self, now: Instant) {
        let mut table = table::of(&self.shared.desk(), now);
        if table.at_work() > 0 {
            (self.alone, self.told) = (now, None);
        } else if now.duration_since(self.told.unwrap_or(self.alone)) >= ALONE {
            let seconds = now.duration_since(self.alone).as_secs();
            tracing::warn!("no worker has sampled for {seconds} s; start some: {}", workers::join(&self.listen));
            self.told = Some(now);
        }
        table.listen.clone_from(&self.listen);
        table.alone_s = now.duration_since(self.alone).as_secs_f64();
        table.store_bytes_out = self.shared.store_bytes.load(Ordering::Relaxed);
        table.store_versions = self.shared.store_versions.load(Ordering::Relaxed);
        table.store_trouble = self.shared.store_trouble.now();
        if let Err(error) = table.write(&self.run_dir) {
            tracing::debug!("the table of workers is not written: {error}");
        }
    }
}
