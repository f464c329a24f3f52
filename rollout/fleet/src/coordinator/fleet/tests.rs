//! Fleets whose workers are a few lines: what comes of requests, and which are refused.

use std::path::Path;

use harness::tiny_model::{self, SMALL};
use rollout::{
    data::Tokenizer,
    engine::{Constrained, EngineOptions},
};
use shared::{
    FinishReason, ModelDir, SamplingParams,
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
    let mut fleet = Fleet::start(Silent, scheduler(0.0), publisher, arbiter, false, run_dir, Door::default()).unwrap();
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
            Output::Token { tag, sample, id, logprob, .. } => came.push((tag, sample, id, logprob.logprob)),
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
fn what_engines_refuse_is_refused_before_workers_hear_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut fleet, mut worker, now) = with_a_worker(folder.path());
    let prompt = |ids: &[u32]| GroupRequest { prompt_ids: ids.into(), ..request(7, 1) };
    let sampling = SamplingParams { top_p: 0.0, ..SamplingParams::default() };
    let constraint = Constrained::new("regex", Arc::new(|| unreachable!("nothing begins")));
    for (refused, part) in [
        (prompt(&[]), "no tokens"),
        (prompt(&[1; 64]), "max_model_len (64)"),
        (prompt(&[1, 50]), "token 50"),
        (request(7, 0), "at least one completion"),
        (GroupRequest { lengths: Some(Arc::from([3, 0])), ..request(7, 2) }, "lengths"),
        (GroupRequest { sampling: sampling.into(), ..request(7, 1) }, "top_p"),
        (GroupRequest { constraint: Some(constraint), ..request(7, 1) }, "a lease takes no constraint"),
    ] {
        let error = fleet.begin(Request { stream: true, ..refused.into() }).unwrap_err().to_string();
        assert!(error.starts_with("prompt 7: ") && error.contains(part), "{error}");
    }
    let error = fleet.begin(Request { top_logprobs: 2, ..request(7, 1).into() }).unwrap_err().to_string();
    assert!(error.contains("a lease takes no top_logprobs"), "{error}");
    worker.call(&mut fleet.shared.scheduler(), now, true);
    assert!(fleet.is_idle() && fleet.asked.is_empty() && worker.held.is_empty());
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
