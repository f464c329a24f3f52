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

/// Workers, as what samples for the step loop.
pub struct Fleet {
    shared: Arc<Shared>,
    publisher: Publisher,
    arbiter: Arbiter,
    /// Workers are to score what they make.
    workers_score: bool,
    version: PolicyVersion,
    /// Of the completions that came last, what workers have said of those that they have scored.
    rewards: HashMap<(u64, u32), Vec<RewardOutcome>>,
    /// Requests of which more than completions is asked, by their tag.
    asked: HashMap<u64, Asked>,
    pending: Option<Pending>,
    /// The version that the store has lost, on its way again.
    repair: Option<OnItsWay>,
    thread: Option<JoinHandle<()>>,
}

/// A request of which more than completions is asked.
struct Asked {
    request: Request,
    /// The same with the whole context for a prompt, which is long: it is not built for every completion.
    whole: GroupRequest,
    /// Completions that are to come.
    left: usize,
}

struct Pending {
    way: OnItsWay,
    /// What workers were told of.
    announced: bool,
}

impl Fleet {
    /// Begins to answer calls at `end`. `listen` is where workers reach it, for people; `workers_score` has them score
    /// what they make.
    ///
    /// # Errors
    /// When there can be no thread.
    pub fn start(
        end: impl CoordinatorEnd + 'static,
        scheduler: Scheduler,
        publisher: Publisher,
        arbiter: Arbiter,
        workers_score: bool,
        run_dir: RunDir,
        listen: String,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::new(scheduler, publisher.trouble()));
        let thread = Server::start(end, Arc::clone(&shared), run_dir, listen)?;
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

    /// A request for workers; `row` is the row that they score it by.
    fn add(&mut self, request: Request, row: Option<String>) {
        let group = request.whole();
        if request.stream || request.keep {
            let (whole, left) = (group.clone(), group.samples.len());
            self.asked.insert(group.tag, Asked { request, whole, left });
        }
        self.shared.scheduler().add(group, self.version, row);
        self.shared.wake_workers();
    }

    /// What comes of a completion.
    fn outputs(&mut self, sequence: FinishedSequence) -> Vec<Output> {
        let tag = sequence.tag;
        let Some(asked) = self.asked.get(&tag) else { return vec![Output::Ended { sequence, state: None }] };
        let outputs = asked.request.outputs(&asked.whole, sequence);
        self.has_come(tag);
        outputs
    }

    /// One of the completions with a tag is there, or not wanted any more.
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

    /// What becomes of a version that workers refuse and none has in use: the engine beside the learner decides.
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

    /// Takes cases to the engine beside the learner, and what it has decided back.
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
        self.add(request, None);
        Ok(())
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
        let status = table::status(&self.shared.scheduler(), Instant::now());
        let stored_bytes = self.publisher.bytes();
        Some(FleetStatus { stored_bytes, alone_micros: self.shared.alone_micros.load(Ordering::Relaxed), ..status })
    }

    /// Sends the workers home, and waits for a moment until all have heard it.
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
mod tests {
    use std::path::Path;

    use harness::tiny_model::{self, SMALL};
    use rollout::{data::Tokenizer, engine::EngineOptions};
    use shared::{
        FinishReason, ModelDir,
        channel::{ChannelError, fleet::CoordinatorEvent},
        config::TrainConfig,
    };
    use shared_store::Store;

    use super::{
        super::{
            arbiter::ArbiterOptions,
            scheduler::tests::{Fake, completion, edition, request, scheduler},
        },
        *,
    };
    use crate::weights::{Origin, Sending};

    /// A transport over which nobody calls: the workers of these tests call the scheduler themselves.
    struct Silent;

    impl CoordinatorEnd for Silent {
        fn next(&mut self, timeout: Duration) -> Result<Option<CoordinatorEvent>, ChannelError> {
            thread::sleep(timeout);
            Ok(None)
        }

        fn wake(&mut self) {}
    }

    /// A fleet whose version 0 is announced, with a worker that has it.
    fn with_a_worker(folder: &Path) -> (Fleet, Fake, Instant) {
        let model = folder.join("model");
        SMALL.write(&model, 5);
        tiny_model::write_tokenizer(&model);
        let model = ModelDir::open(&model).unwrap();
        let run_dir = RunDir::new(folder);
        let store = Arc::new(Store::open(&run_dir.store().display().to_string()).unwrap());
        let arbiter = Arbiter::new(ArbiterOptions {
            origin: Origin::of(&store, None),
            scratch: folder.to_path_buf(),
            tokenizer: Tokenizer::open_at(&model, TrainConfig::default().template_now()).unwrap(),
            model: model.clone(),
            engine: EngineOptions::new(1, 64),
        });
        let sending = Sending {
            store,
            versions_stay: false,
            model: model.config().clone(),
            conformity_gate: false,
            rounded: None,
            rounded_dir: run_dir.rounded(),
        };
        let publisher = Publisher::open(sending, &run_dir, 1).unwrap();
        let mut fleet =
            Fleet::start(Silent, scheduler(0.0), publisher, arbiter, false, run_dir, String::new()).unwrap();
        fleet.shared.scheduler().announce(edition(0));
        fleet.version = PolicyVersion(0);
        let (mut worker, now) = (Fake::new(1), Instant::now());
        (0..2).for_each(|_| drop(worker.call(&mut fleet.shared.scheduler(), now, true)));
        (fleet, worker, now)
    }

    /// Tag, index and tokens.
    type Completion = (u64, u32, Vec<u32>);

    /// What every honest worker makes of it.
    fn made(tag: u64, sample: u32) -> Completion {
        (tag, sample, completion(0, PromptId(tag), sample, PolicyVersion(0)).token_ids)
    }

    /// The completions of outputs, with the states that they leave, after their tokens have come where they are wanted.
    fn ended(outputs: Vec<Output>, streamed: impl Fn(u64) -> bool) -> Vec<(Completion, Option<Vec<u32>>)> {
        let (mut came, mut ended) = (Vec::new(), Vec::new());
        for output in outputs {
            match output {
                Output::Token { tag, sample, id, logprob } => came.push((tag, sample, id, logprob.logprob)),
                Output::Ended { sequence: FinishedSequence { tag, sample, token_ids, logprobs, .. }, state } => {
                    let tokens = token_ids.iter().zip(&logprobs).map(|(&id, l)| (tag, sample, id, l.logprob));
                    let wanted: Vec<_> = tokens.filter(|_| streamed(tag)).collect();
                    assert_eq!(std::mem::take(&mut came), wanted, "of sample {sample} of {tag}");
                    ended.push(((tag, sample, token_ids), state.map(|state| state.ids().to_vec())));
                }
            }
        }
        assert!(came.is_empty(), "a completion ends after its tokens");
        ended
    }

    #[test]
    fn of_what_workers_make_come_tokens_and_states_where_they_are_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (mut fleet, mut worker, now) = with_a_worker(folder.path());
        fleet.begin(Request { stream: true, keep: true, ..request(0, 2).into() }).unwrap();
        fleet.begin(request(1, 1).into()).unwrap();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        (0..2).for_each(|_| worker.work());
        worker.call(&mut fleet.shared.scheduler(), now, true);
        let outputs = fleet.advance().unwrap();
        let after = |of: &Completion| Some([&[1, 2][..], &of.2].concat());
        let both = [made(0, 0), made(0, 1)].map(|of| (of.clone(), after(&of)));
        assert_eq!(ended(outputs, |tag| tag == 0), both);
        assert!(fleet.asked.is_empty(), "all of it has come");
        worker.work();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        assert_eq!(ended(fleet.advance().unwrap(), |tag| tag == 0), [(made(1, 0), None)], "nothing more was asked");
        assert!(fleet.rewards.is_empty(), "nobody has scored anything");
    }

    #[test]
    fn a_request_after_a_state_is_forgotten_when_all_of_it_has_come_or_was_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let (mut fleet, mut worker, now) = with_a_worker(folder.path());
        fleet.begin(Request { keep: true, ..request(0, 1).into() }).unwrap();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        worker.work();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        let Some(Output::Ended { state: Some(state), .. }) = fleet.advance().unwrap().pop() else {
            panic!("it leaves a state")
        };
        let context = [state.ids(), &[1, 2]].concat();
        fleet.begin(Request { from: Some(state), stream: true, keep: true, ..request(2, 3).into() }).unwrap();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        let leased: Vec<&[u32]> = worker.held.values().map(|lease| &lease.prompt_ids[..]).collect();
        assert_eq!(leased, [&context[..]], "workers know of no states");
        // The first is there, and was not taken.
        worker.work();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        let cancelled = fleet.cancel(2, Some(0));
        assert_eq!(cancelled.len(), 1);
        assert_eq!((2, cancelled[0].sample, cancelled[0].token_ids.clone()), made(2, 0));
        worker.work();
        worker.call(&mut fleet.shared.scheduler(), now, true);
        let second = made(2, 1);
        let state = [&context[..], &second.2].concat();
        assert_eq!(ended(fleet.advance().unwrap(), |_| true), [(second, Some(state))]);
        assert_eq!(fleet.asked[&2].left, 1);
        let reasons: Vec<FinishReason> = fleet.cancel(2, None).iter().map(|gone| gone.finish_reason).collect();
        assert_eq!(reasons, [FinishReason::Aborted]);
        assert!(fleet.asked.is_empty() && fleet.is_idle() && fleet.advance().unwrap().is_empty());
    }
}
