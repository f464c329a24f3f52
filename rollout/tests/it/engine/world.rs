//! Random arrivals, lengths, stops, pauses, new versions, cancels, forks and aborts. Whatever happens around it, a
//! completion is the same as without any neighbours, it comes once, and every page comes back.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use exporters::Checkpoint;
use proptest::prelude::*;
use rollout::engine::{
    Engine, EngineOptions, FinishedSequence, GroupRequest, Output, Request, State, StopCriterion, WeightSource,
};
use shared::{FinishReason, ModelDir, SamplingParams};

use super::support::{Nth, Outcome, Steps, exported, finish, golden_model, group, options, outcome, wait_swap, write};

/// A model, and its weights under two numbers.
struct World {
    _folder: tempfile::TempDir,
    model: ModelDir,
    versions: [WeightSource; 2],
}

/// Families of one kind each: pages alone, every kind of states, experts, pages of two widths that layers share.
const FAMILIES: [&str; 6] = ["llama", "lfm2", "qwen3_5", "granite4_h", "qwen3_moe", "gemma4"];

static WORLDS: LazyLock<Vec<World>> =
    LazyLock::new(|| FAMILIES.into_iter().filter(|family| harness::has_golden_model(family)).map(world).collect());

fn world(family: &str) -> World {
    let (folder, model) = (tempfile::tempdir().unwrap(), golden_model(family));
    let v0 = exported(&model, folder.path());
    let weights = Checkpoint::open(&model).unwrap();
    let v1 = write(&v0, folder.path(), 1, |name| weights.read_f32(name).unwrap());
    World { _folder: folder, model, versions: [v0, v1] }
}

/// The next event.
#[derive(Debug, Clone)]
enum Event {
    /// A group arrives: tokens of its prompt, completions, their longest, and the token at which each stops.
    Group {
        prompt: usize,
        samples: u32,
        most: u32,
        stop: Option<u32>,
    },
    Steps(usize),
    /// A group goes on from one of the states that there are: which, further ids, completions, and their longest.
    Fork {
        state: usize,
        more: usize,
        samples: u32,
        most: u32,
    },
    /// Nobody wants one of the groups any more, or a completion of it.
    Cancel {
        group: usize,
        sample: Option<u32>,
    },
    /// A state is dropped.
    Drop(usize),
    Swap,
    Admission(bool),
    Abort,
}

fn event() -> impl Strategy<Value = Event> {
    let group = (1_usize..70, 1_u32..7, 1_u32..26, prop::option::of(1_u32..20));
    let fork = (any::<usize>(), 0_usize..20, 1_u32..4, 1_u32..12);
    let cancel = (any::<usize>(), prop::option::of(0_u32..7));
    prop_oneof![
        4 => fork.prop_map(|(state, more, samples, most)| Event::Fork { state, more, samples, most }),
        2 => cancel.prop_map(|(group, sample)| Event::Cancel { group, sample }),
        1 => any::<usize>().prop_map(Event::Drop),
        6 => group.prop_map(|(prompt, samples, most, stop)| Event::Group { prompt, samples, most, stop }),
        8 => (1_usize..12).prop_map(Event::Steps),
        2 => Just(Event::Swap),
        1 => any::<bool>().prop_map(Event::Admission),
        1 => Just(Event::Abort),
    ]
}

/// Groups with the same tag have the same prompt, and so share no randomness with others.
fn request(tag: u64, prompt: usize, samples: u32, most: u32, stop: Option<u32>) -> GroupRequest {
    let mut stream = shared::generation::rng::Stream::new(&[tag]);
    let prompt: Vec<u32> = (0..prompt).map(|_| stream.below(250) as u32 + 3).collect();
    let sampling = SamplingParams { max_completion_length: most, ..SamplingParams::default() };
    let stop_criterion = stop.map(|n| {
        let criterion = move || Box::new(Nth(n)) as Box<dyn StopCriterion>;
        Arc::new(criterion) as Arc<dyn Fn() -> _ + Send + Sync>
    });
    GroupRequest { stop_criterion, ..group(tag, &prompt, samples, sampling) }
}

/// The completions of groups that run one after the other.
fn alone(world: &World, groups: &[Request]) -> BTreeMap<(u64, u32), Outcome> {
    let mut engine = Engine::new(world.versions[0].clone(), &world.model, options(8, 1)).unwrap();
    let of_group = |group: &Request| {
        engine.begin(Request { keep: false, ..group.clone() }).unwrap();
        finish(&mut engine)
    };
    groups.iter().flat_map(of_group).map(outcome).collect()
}

/// Everything that has come from an engine.
#[derive(Default)]
struct Seen {
    streamed: BTreeMap<(u64, u32), Vec<u32>>,
    ended: Vec<FinishedSequence>,
    states: Vec<State>,
}

impl Seen {
    fn advance(&mut self, engine: &mut Engine) {
        for output in engine.advance().unwrap() {
            match output {
                Output::Token { tag, sample, id, .. } => self.streamed.entry((tag, sample)).or_default().push(id),
                Output::Ended { sequence, state } => {
                    let is_streamed = sequence.tag.is_multiple_of(3);
                    assert_eq!(state.is_some(), sequence.tag.is_multiple_of(2));
                    let came = self.streamed.remove(&(sequence.tag, sequence.sample));
                    assert_eq!(came, is_streamed.then(|| sequence.token_ids.clone()));
                    self.states.extend(state);
                    self.ended.push(sequence);
                }
            }
        }
    }
}

/// Some groups stream, and some leave states.
fn wanted(group: GroupRequest, from: Option<State>) -> Request {
    let (stream, keep) = (group.tag.is_multiple_of(3), group.tag.is_multiple_of(2));
    Request { from, stream, keep, ..group.into() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn nothing_is_lost_shared_or_mixed_up(
        family in 0..FAMILIES.len(),
        slots in 1_usize..7,
        batched in 8_usize..80,
        drafts in 0_usize..4,
        kept_states in 0_usize..5,
        recompute in any::<bool>(),
        events in prop::collection::vec(event(), 1..40),
    ) {
        let world = &WORLDS[family % WORLDS.len()];
        let own = EngineOptions {
            max_num_batched_tokens: batched,
            // Drafts are refused with a state.
            speculative_tokens: if world.model.config().has_states() { 0 } else { drafts },
            kept_states,
            recompute,
            hot_swap: true,
            ..options(slots, 1)
        };
        let mut engine = Engine::new(world.versions[0].clone(), &world.model, own).unwrap();
        let (mut groups, mut seen, mut aborted) = (Vec::new(), Seen::default(), Vec::new());
        for event in events {
            match event {
                Event::Group { prompt, samples, most, stop } => {
                    let group = wanted(request(groups.len() as u64, prompt, samples, most, stop), None);
                    engine.begin(group.clone()).unwrap();
                    groups.push(group);
                }
                Event::Fork { state, more, samples, most } if !seen.states.is_empty() => {
                    let from = &seen.states[state % seen.states.len()];
                    let group = request(groups.len() as u64, more, samples, most, None);
                    if from.ids().len() + more < engine.options().max_model_len {
                        let group = wanted(group, Some(from.clone()));
                        engine.begin(group.clone()).unwrap();
                        groups.push(group);
                    }
                }
                Event::Cancel { group, sample } if !groups.is_empty() => {
                    let cancelled = engine.cancel((group % groups.len()) as u64, sample);
                    cancelled.iter().for_each(|gone| drop(seen.streamed.remove(&(gone.tag, gone.sample))));
                    aborted.extend(cancelled);
                }
                Event::Drop(state) if !seen.states.is_empty() => {
                    let state = state % seen.states.len();
                    seen.states.swap_remove(state);
                }
                Event::Fork { .. } | Event::Cancel { .. } | Event::Drop(_) => (),
                Event::Steps(steps) => (0..steps).for_each(|_| seen.advance(&mut engine)),
                Event::Swap => {
                    let other = world.versions.iter().find(|version| version.version != engine.version()).unwrap();
                    engine.begin_swap(other.clone()).unwrap();
                    seen.advance(&mut engine);
                    wait_swap(&mut engine).unwrap();
                }
                Event::Admission(admit) => engine.set_admission(admit),
                Event::Abort => {
                    aborted.extend(engine.abort_all());
                    seen.streamed.clear();
                }
            }
            prop_assert!(engine.running() <= slots && engine.held_states() <= kept_states);
        }
        engine.set_admission(true);
        while !engine.is_idle() {
            seen.advance(&mut engine);
        }
        let Seen { ended, states, .. } = seen;

        let expected = alone(world, &groups);
        prop_assert_eq!(ended.len() + aborted.len(), expected.len());
        let mut seen = BTreeMap::new();
        for sequence in aborted {
            let ((tag, sample), (tokens, logprobs, reason)) = outcome(sequence);
            let (whole, whole_logprobs, _) = &expected[&(tag, sample)];
            prop_assert!(whole.starts_with(&tokens) && whole_logprobs.starts_with(&logprobs));
            prop_assert_eq!(reason, FinishReason::Aborted);
            prop_assert!(seen.insert((tag, sample), ()).is_none());
        }
        for sequence in ended {
            let (id, outcome) = outcome(sequence);
            prop_assert!(outcome == expected[&id], "{:?} is another one than alone", id);
            prop_assert!(seen.insert(id, ()).is_none());
        }

        drop((states, groups));
        prop_assert_eq!(engine.held_states(), 0);
        // A pool that has lost a page has not enough for this.
        for tag in 0..3 {
            engine.add_group(request(1000 + tag, 70, slots as u32, 25, None)).unwrap();
        }
        finish(&mut engine);
        let mut fresh = Engine::new(engine_weights(world, &engine), &world.model, options(slots, 1)).unwrap();
        fresh.add_group(request(1002, 70, 1, 1, None)).unwrap();
        finish(&mut fresh);
        prop_assert_eq!(engine.kv_bytes_in_use(), fresh.kv_bytes_in_use(), "of one prompt");
    }
}

fn engine_weights(world: &World, engine: &Engine) -> WeightSource {
    world.versions.iter().find(|version| version.version == engine.version()).unwrap().clone()
}
