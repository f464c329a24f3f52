//! Conversations in random schedules: turns, pauses, forks, dropped states and new weights. The log-prob of every token
//! is that of one forward pass of its version over all ids, and every token says which version drew it.

use std::{cell::RefCell, collections::BTreeMap, sync::LazyLock};

use exporters::Checkpoint;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use rollout::engine::{Engine, EngineOptions, FinishedSequence, Output, Request, State, WeightSource};
use shared::{ModelDir, PolicyVersion, SamplingParams, config::WeightSwap, generation::rng::Stream};

use super::support::{exported, golden_model, group, options, wait_swap, write};

const VERSIONS: usize = 3;

/// A model, and three versions of its weights.
struct World {
    _folder: tempfile::TempDir,
    model: ModelDir,
    versions: Vec<WeightSource>,
}

/// Families of one kind each: pages alone, every kind of states, experts, pages of two widths that layers share.
const FAMILIES: [&str; 6] = ["qwen2", "lfm2", "qwen3_5", "granite4_h", "qwen3_moe", "gemma4"];

static WORLDS: LazyLock<Vec<World>> =
    LazyLock::new(|| FAMILIES.into_iter().filter(|family| harness::has_golden_model(family)).map(world).collect());

fn world(family: &str) -> World {
    let (folder, model) = (tempfile::tempdir().unwrap(), golden_model(family));
    let mut versions = vec![exported(&model, folder.path())];
    let weights = Checkpoint::open(&model).unwrap();
    for version in 1..VERSIONS as u64 {
        let scale = 1.0 + 0.2 * version as f32;
        let scaled = |name: &str| weights.read_f32(name).unwrap().into_iter().map(|w| w * scale).collect();
        versions.push(write(&versions[0], folder.path(), version, scaled));
    }
    World { _folder: folder, model, versions }
}

/// One engine for each version, which scores tokens in one forward pass.
struct Judges(Vec<Engine>);

impl Judges {
    fn new(world: &World) -> Self {
        let judge = |source: &WeightSource| Engine::new(source.clone(), &world.model, options(1, 1)).unwrap();
        Self(world.versions.iter().map(judge).collect())
    }

    /// Log-probs of the last `own` of some ids.
    fn score(&mut self, version: PolicyVersion, ids: &[u32], own: usize) -> Vec<f64> {
        let (before, own) = ids.split_at(ids.len() - own);
        self.0[version.0 as usize].score(before, own).unwrap()
    }
}

/// The next event.
#[derive(Debug, Clone)]
enum Event {
    /// Conversations with one prompt begin.
    Begin { prompt: usize, samples: u32, most: u32 },
    /// The reply to a turn comes, and the conversation goes on, perhaps in several ways.
    Reply { which: usize, more: usize, forks: u32, most: u32 },
    /// Tools take their time.
    Steps(usize),
    /// Nobody wants to go on from a turn.
    Forget(usize),
    /// New weights.
    Swap,
}

fn event() -> impl Strategy<Value = Event> {
    let begin = (1_usize..40, 1_u32..5, 1_u32..12);
    let reply = (any::<usize>(), 0_usize..20, 1_u32..3, 1_u32..12);
    prop_oneof![
        3 => begin.prop_map(|(prompt, samples, most)| Event::Begin { prompt, samples, most }),
        6 => reply.prop_map(|(which, more, forks, most)| Event::Reply { which, more, forks, most }),
        6 => (1_usize..10).prop_map(Event::Steps),
        1 => any::<usize>().prop_map(Event::Forget),
        2 => Just(Event::Swap),
    ]
}

fn swap() -> impl Strategy<Value = WeightSwap> {
    prop_oneof![Just(WeightSwap::Drain), Just(WeightSwap::Recompute), Just(WeightSwap::Continue)]
}

/// An engine, and what has come from it.
struct Conversations {
    world: &'static World,
    engine: Engine,
    swap: WeightSwap,
    next: u64,
    /// Of each sequence, the version that was in use when each token came.
    drawn: BTreeMap<(u64, u32), Vec<PolicyVersion>>,
    ended: Vec<(FinishedSequence, Vec<u32>)>,
    waiting: Vec<State>,
}

impl Conversations {
    fn new(world: &'static World, swap: WeightSwap, own: EngineOptions) -> Self {
        // Drafts are refused with a state.
        let speculative_tokens = if world.model.config().has_states() { 0 } else { own.speculative_tokens };
        let recompute = swap == WeightSwap::Recompute;
        let own = EngineOptions { hot_swap: true, recompute, speculative_tokens, ..own };
        let engine = Engine::new(world.versions[0].clone(), &world.model, own).unwrap();
        Self { world, engine, swap, next: 0, drawn: BTreeMap::new(), ended: Vec::new(), waiting: Vec::new() }
    }

    fn ask(&mut self, from: Option<State>, more: usize, samples: u32, most: u32) {
        let before = from.as_ref().map_or(0, |state| state.ids().len());
        if before + more == 0 || before + more >= self.engine.options().max_model_len {
            return;
        }
        let tag = self.next;
        self.next += 1;
        let mut stream = Stream::new(&[tag]);
        let ids: Vec<u32> = (0..more).map(|_| stream.below(250) as u32 + 3).collect();
        let sampling = SamplingParams { ignore_eos: true, max_completion_length: most, ..SamplingParams::default() };
        let request = Request { from, stream: true, keep: true, ..group(tag, &ids, samples, sampling).into() };
        self.engine.begin(request).unwrap();
    }

    fn advance(&mut self) {
        for output in self.engine.advance().unwrap() {
            match output {
                Output::Token { tag, sample, .. } => {
                    self.drawn.entry((tag, sample)).or_default().push(self.engine.version());
                }
                Output::Ended { sequence, state } => {
                    let state = state.expect("it was asked for");
                    self.ended.push((sequence, state.ids().to_vec()));
                    self.waiting.push(state);
                }
            }
        }
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Begin { prompt, samples, most } => self.ask(None, prompt, samples, most),
            Event::Reply { which, more, forks, most } if !self.waiting.is_empty() => {
                let state = self.waiting.swap_remove(which % self.waiting.len());
                self.ask(Some(state), more, forks, most);
            }
            Event::Forget(which) if !self.waiting.is_empty() => {
                let which = which % self.waiting.len();
                self.waiting.swap_remove(which);
            }
            Event::Reply { .. } | Event::Forget(_) => {}
            Event::Steps(steps) => (0..steps).for_each(|_| self.advance()),
            Event::Swap => self.swap(),
        }
    }

    fn swap(&mut self) {
        let version = (self.engine.version().0 as usize + 1) % VERSIONS;
        if self.swap == WeightSwap::Drain {
            self.engine.set_admission(false);
            while self.engine.running() > 0 {
                self.advance();
            }
        }
        self.engine.begin_swap(self.world.versions[version].clone()).unwrap();
        let (running, waiting) = (self.engine.running(), self.engine.waiting());
        wait_swap(&mut self.engine).unwrap();
        self.engine.set_admission(true);
        assert_eq!(self.engine.running() + self.engine.waiting(), running + waiting, "nothing is lost");
        assert_eq!(self.engine.held_states(), 0);
        assert!(self.waiting.iter().all(|state| !state.is_held()), "states know that they are computed again");
    }
}

/// Checks the tokens of a turn, whose context and own ids are `ids`.
fn check(turn: &FinishedSequence, ids: &[u32], drawn: &[PolicyVersion], swap: WeightSwap, judges: &mut Judges) {
    let own = turn.token_ids.len();
    assert_eq!(turn.token_ids, ids[ids.len() - own..]);
    assert!(turn.logprobs.len() == own && drawn.len() == own);
    let begins = turn.versions.iter().map(|(begin, _)| *begin as usize);
    let ends = begins.clone().skip(1).chain([own]);
    for (run, (begin, end)) in begins.zip(ends).enumerate() {
        let version = turn.versions[run].1;
        assert!(drawn[begin..end].iter().all(|drawn| *drawn == version), "{:?} and {drawn:?}", turn.versions);
        if swap == WeightSwap::Continue && run > 0 {
            // Its keys and values are of several versions, so no forward pass has these log-probs.
            continue;
        }
        let whole = judges.score(version, ids, own);
        for (whole, logprob) in whole[begin..end].iter().zip(&turn.logprobs[begin..end]) {
            let error = (whole - f64::from(logprob.logprob)).abs();
            assert!(error < 1e-4, "{swap}, v{version}, run {run} of {:?}: {error}", turn.versions);
        }
    }
    assert!(swap != WeightSwap::Drain || turn.versions.len() == 1, "{:?}", turn.versions);
}

#[test]
fn log_probs_are_those_of_one_pass_whatever_happens_between_and_within_turns() {
    WORLDS.iter().for_each(log_probs_are_those_of_one_pass);
}

fn log_probs_are_those_of_one_pass(of: &'static World) {
    let judges = RefCell::new(Judges::new(of));
    let (slots, batched, drafts, kept) = (1_usize..6, 8_usize..80, 0_usize..4, 0_usize..5);
    let schedule = (slots, batched, drafts, kept, swap(), prop::collection::vec(event(), 4..40));
    let mixed = RefCell::new(0);
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&schedule, |(slots, batched, drafts, kept_states, swap, events)| {
        let own = EngineOptions {
            max_num_batched_tokens: batched,
            speculative_tokens: drafts,
            kept_states,
            ..options(slots, 1)
        };
        let mut world = Conversations::new(of, swap, own);
        for event in &events {
            world.happens(event);
            prop_assert!(world.engine.running() <= slots && world.engine.held_states() <= kept_states);
            let held = world.waiting.iter().filter(|state| state.is_held()).count();
            prop_assert!(held <= kept_states, "{} states say that they are held", held);
        }
        while !world.engine.is_idle() {
            world.advance();
        }
        let mut judges = judges.borrow_mut();
        for (turn, ids) in &world.ended {
            check(turn, ids, &world.drawn[&(turn.tag, turn.sample)], swap, &mut judges);
            *mixed.borrow_mut() += usize::from(swap == WeightSwap::Recompute && turn.versions.len() > 1);
        }
        Ok(())
    });
    result.unwrap();
    assert!(mixed.into_inner() > 0, "{}: no turn went on under new weights", of.model.path().display());
}

/// What waits longest goes first, but not what is about to go on.
#[test]
fn beyond_the_bound_the_longest_waiting_state_is_dropped() {
    let own = EngineOptions { kept_states: 2, ..options(4, 1) };
    let mut world = Conversations::new(&WORLDS[0], WeightSwap::Drain, own);
    let turn = |world: &mut Conversations| {
        world.ask(None, 9, 1, 3);
        while !world.engine.is_idle() {
            world.advance();
        }
    };
    let held = |world: &Conversations| world.waiting.iter().map(State::is_held).collect::<Vec<_>>();
    (0..3).for_each(|_| turn(&mut world));
    assert_eq!(held(&world), [false, true, true]);
    // The second one is to go on, and another turn ends before it can.
    world.ask(None, 9, 1, 3);
    world.advance();
    world.engine.set_admission(false);
    let asked = world.waiting.remove(1);
    world.ask(Some(asked), 1, 1, 1);
    while world.engine.running() > 0 {
        world.advance();
    }
    assert_eq!(held(&world), [false, false, true], "in its place the next one is dropped");
    world.engine.set_admission(true);
    let prefilled = world.engine.profile().prefill_tokens;
    while !world.engine.is_idle() {
        world.advance();
    }
    assert_eq!(world.engine.profile().prefill_tokens - prefilled, 2, "the newest token, and a further one");
    // The first one is computed again.
    let dropped = world.waiting.remove(0);
    let prefilled = world.engine.profile().prefill_tokens;
    world.ask(Some(dropped), 1, 1, 1);
    while !world.engine.is_idle() {
        world.advance();
    }
    assert_eq!(world.engine.profile().prefill_tokens - prefilled, 9 + 3 + 1);
}
