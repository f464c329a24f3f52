//! Workers as the generator of a run.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rollout::{
    data::PromptRow,
    engine::{EngineError, FinishedSequence, GroupRequest, Output, Request, SwapReport, WeightSource},
    generate::{Generate, PairGenerator},
    structured_outputs::OPTION,
};
use shared::{
    Placed, PolicyVersion, PromptId, RewardOutcome, RunDir, WeightSender,
    channel::{
        FleetStatus,
        fleet::{CALL_INTERVAL, CoordinatorEnd, Edition},
    },
};

use super::{
    arbiter::Arbiter,
    scheduler::Scheduler,
    server::{Server, Shared},
    table,
};
use crate::{
    scores,
    weights::{OnItsWay, Publisher, Received},
};

/// The version of a coordinator that has announced none.
const NONE: PolicyVersion = PolicyVersion(u64::MAX);
/// How long [`Generate::advance`] of a [`Fleet`] waits for completions.
const STEP: Duration = Duration::from_millis(5);

/// Where workers reach the coordinator, for messages.
#[derive(Debug, Clone, Default)]
pub struct Door {
    /// The address.
    pub listen: String,
    /// The command that starts a worker.
    pub join: String,
}

/// Workers as the generator of the step loop.
pub struct Fleet {
    shared: Arc<Shared>,
    publisher: Publisher,
    arbiter: Arbiter,
    /// Whether workers score the completions that they make.
    workers_score: bool,
    version: PolicyVersion,
    /// The rewards of the completions that came last, where workers have scored them.
    rewards: HashMap<(u64, u32), Vec<RewardOutcome>>,
    /// Requests that ask for more than completions, by their tag.
    asked: HashMap<u64, Asked>,
    pending: Option<Pending>,
    /// The version that the store has lost, on its way again.
    repair: Option<OnItsWay>,
    thread: Option<JoinHandle<()>>,
}

/// A request that asks for tokens as they come, or for kept states.
struct Asked {
    request: Request,
    /// The same with the whole context as its prompt, a long one that is not built anew for every completion.
    whole: GroupRequest,
    /// Completions that are to come.
    left: usize,
}

struct Pending {
    way: OnItsWay,
    /// Whether workers were told of it.
    announced: bool,
}

impl Fleet {
    /// Begins to answer calls at `end`. `door` is where workers reach it, for messages. With
    /// `workers_score`, workers score the completions that they make.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        end: impl CoordinatorEnd + 'static,
        scheduler: Scheduler,
        publisher: Publisher,
        arbiter: Arbiter,
        workers_score: bool,
        run_dir: RunDir,
        door: Door,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(scheduler, publisher.trouble()));
        let thread = Server::start(end, Arc::clone(&shared), run_dir, door)?;
        Ok(Self {
            shared,
            publisher,
            arbiter,
            workers_score,
            version: NONE,
            rewards: HashMap::new(),
            asked: HashMap::new(),
            pending: None,
            repair: None,
            thread: Some(thread),
        })
    }

    /// Adds a request for workers; `row` is the row by which they score it. A request that their engines would refuse
    /// is refused here.
    fn add(&mut self, request: Request, row: Option<String>) -> Result<(), EngineError> {
        let (vocab_size, max_model_len) = self.shared.scheduler().bounds();
        let group = request.check(vocab_size, max_model_len)?;
        // That of the run is in its configuration, which workers have.
        if group.constraint.as_ref().is_some_and(|constraint| constraint.name() != OPTION) {
            let message = "a lease takes no constraint but the run's: workers know no grammars".into();
            return Err(EngineError::Request { prompt: group.prompt_id.0, message });
        }
        if request.top_logprobs > 0 {
            let message = "a lease takes no top_logprobs: workers tell the log-probs of drawn tokens alone".into();
            return Err(EngineError::Request { prompt: group.prompt_id.0, message });
        }
        if request.stream || request.keep {
            let (whole, left) = (group.clone(), group.samples.len());
            self.asked.insert(group.tag, Asked { request, whole, left });
        }
        self.shared.scheduler().add(group, self.version, row);
        self.shared.wake_workers();
        Ok(())
    }

    /// The outputs for a completion.
    fn outputs(&mut self, sequence: FinishedSequence) -> Vec<Output> {
        let tag = sequence.tag;
        let Some(asked) = self.asked.get(&tag) else { return vec![Output::Ended { sequence, state: None }] };
        let outputs = asked.request.outputs(&asked.whole, sequence);
        self.has_come(tag);
        outputs
    }

    /// Counts a completion of a tag that has come, or that nobody wants any more.
    fn has_come(&mut self, tag: u64) {
        if let Some(asked) = self.asked.get_mut(&tag) {
            asked.left -= 1;
            if asked.left == 0 {
                self.asked.remove(&tag);
            }
        }
    }

    /// Tells workers of a version that is in the store.
    fn announce(&mut self, edition: Edition) {
        let in_use = {
            let mut scheduler = self.shared.scheduler();
            scheduler.announce(edition.clone());
            scheduler.editions_in_use()
        };
        self.shared.wake_workers();
        if let Err(error) = self.publisher.let_go(edition, &in_use) {
            tracing::warn!("{error}");
        }
        self.shared.store_bytes.store(self.publisher.bytes(), Ordering::Relaxed);
        self.shared.store_versions.store(self.publisher.versions() as u64, Ordering::Relaxed);
    }

    /// Sends a version again that workers find damaged in the store.
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
        let Some((edition, reason)) = self.shared.scheduler().damage() else { return Ok(()) };
        let version = edition.version;
        let failed = |e| EngineError::Swap { version, message: format!("no thread to publish it: {e}") };
        match self.publisher.repair(edition).map_err(failed)? {
            Some(repair) => {
                tracing::warn!("weights v{version} are sent again: {reason}");
                self.repair = Some(repair);
            }
            None => self.shared.scheduler().drop_finding_damage(),
        }
        Ok(())
    }

    /// Handles a version that workers refuse and none has in use: the engine beside the learner decides.
    fn refused(&mut self, version: PolicyVersion, refusals: &[String]) -> Result<(), EngineError> {
        let Some(edition) = self.shared.scheduler().edition().cloned() else { return Ok(()) };
        match self.arbiter.opinion(&edition) {
            None => self.arbiter.look_at(edition),
            Some(Ok(())) => {
                self.shared.scheduler().drop_refusing("it refuses weights that the engine beside the learner takes")
            }
            Some(Err(reason)) => {
                self.pending = None;
                let reason = format!("{}; beside the learner: {reason}", refusals.join("; "));
                return Err(EngineError::Refused { version, reason });
            }
        }
        Ok(())
    }

    /// Takes the decisions of the engine beside the learner, and gives it new cases.
    fn arbitrate(&mut self) {
        let decided = self.arbiter.decided();
        let mut scheduler = self.shared.scheduler();
        for (check, verdict) in decided {
            scheduler.decide(&check, verdict);
        }
        if self.arbiter.is_free() {
            let edition = scheduler.edition().cloned();
            let cases = scheduler.take_cases(Instant::now());
            drop(scheduler);
            self.arbiter.take(cases, edition);
        }
    }
}

impl Generate for Fleet {
    fn version(&self) -> PolicyVersion {
        self.version
    }

    fn capacity(&self) -> usize {
        self.shared.scheduler().places()
    }

    fn running(&self) -> usize {
        self.shared.scheduler().running()
    }

    fn waiting(&self) -> usize {
        self.shared.scheduler().waiting()
    }

    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        self.add(request, None)
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        self.arbitrate();
        self.mend_store()?;
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err(EngineError::Library("the thread that answers workers has ended; see above".into()));
        }
        let mut scheduler = self.shared.scheduler();
        let mut finished = scheduler.take_finished();
        if finished.is_empty() {
            scheduler = self.shared.arrived.wait_timeout(scheduler, STEP).unwrap_or_else(PoisonError::into_inner).0;
            finished = scheduler.take_finished();
        }
        drop(scheduler);
        self.rewards.clear();
        let mut outputs = Vec::new();
        for (sequence, rewards) in finished {
            if !rewards.is_empty() {
                self.rewards.insert((sequence.tag, sequence.sample), rewards);
            }
            outputs.extend(self.outputs(sequence));
        }
        Ok(outputs)
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        let cancelled = self.shared.scheduler().cancel(tag, sample);
        cancelled.iter().for_each(|sequence| self.has_come(sequence.tag));
        self.shared.wake_workers();
        cancelled
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        let version = weights.version;
        self.repair = None;
        let in_use = self.shared.scheduler().editions_in_use();
        let begun = self.publisher.publish(Received { source: weights, in_use });
        let way = begun.map_err(|e| EngineError::Swap { version, message: format!("no thread to publish it: {e}") })?;
        self.pending = Some(Pending { way, announced: false });
        Ok(())
    }

    /// A version is in use once the first worker has it.
    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        self.arbitrate();
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
            let mut scheduler = self.shared.scheduler();
            (scheduler.take_refusals(), scheduler.is_in_use())
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

    /// Does nothing: each worker finishes the completions that it has begun before it changes weights, where it has to.
    fn set_admission(&mut self, _: bool) {}
}

impl PairGenerator for Fleet {
    fn begin_row(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        self.add(request, Some(row).filter(|_| self.workers_score).map(scores::text_of))
    }

    fn take_rewards(&mut self, sequence: &FinishedSequence) -> Vec<RewardOutcome> {
        self.rewards.remove(&(sequence.tag, sequence.sample)).unwrap_or_default()
    }

    fn is_here(&self) -> bool {
        false
    }

    fn fleet(&self) -> Option<FleetStatus> {
        let status = table::status(&self.shared.scheduler(), Instant::now());
        let stored_bytes = self.publisher.bytes();
        Some(FleetStatus { stored_bytes, alone_micros: self.shared.alone_micros.load(Ordering::Relaxed), ..status })
    }

    /// Tells the workers that the run is over, and waits for a moment until all have heard it.
    fn close(&mut self) {
        self.shared.scheduler().close();
        self.shared.wake_workers();
        let until = Instant::now() + CALL_INTERVAL * 3;
        let is_left =
            |scheduler: &Scheduler| scheduler.workers().all(|(_, worker)| worker.is_gone() || !worker.is_welcome());
        while Instant::now() < until && !is_left(&self.shared.scheduler()) {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn handed_over(&mut self, group: &Placed) {
        self.shared.scheduler().handed_over(group.prompt_id, group.epoch, group.id.step.0);
    }

    fn distrusted(&mut self) -> Vec<(PromptId, u32)> {
        self.shared.scheduler().take_distrusted()
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

#[cfg(test)]
mod tests;
