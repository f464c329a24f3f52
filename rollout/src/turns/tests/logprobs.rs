//! Conversations over a real model, in random schedules. The log-prob of every token that the model chose is that of
//! one forward pass over all ids of the conversation.

use std::{cell::RefCell, collections::HashMap, convert::Infallible, fs, mem, thread, time::Duration};

use exporters::{ExportOptions, export, write_version};
use harness::tiny_model::{Qwen2, SMALL, write_safetensors};
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use shared::{
    ModelDir, PolicyVersion, WeightReceiver,
    channel::{Refusal, weights::Publication},
    config::WeightSwap,
    generation::rng::Stream,
};

use super::*;
use crate::{
    engine::{Constrained, Constraint, Engine, EngineOptions, SwapReport, WeightSource},
    generate::follower::WeightFollower,
};

const VERSIONS: u64 = 3;
/// Tokens of a turn that the model chooses. A call follows, which it is made to write.
const FREE: usize = 6;
const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call><|im_end|>";
const MAX_MODEL_LEN: usize = 1400;

/// Anything for [`FREE`] tokens, and then a call.
struct Calling {
    call: Vec<u32>,
    drawn: usize,
    allowed: Vec<u32>,
}

impl Constraint for Calling {
    fn allowed(&mut self) -> Result<&[u32], String> {
        self.allowed = vec![0; (END as usize + 1).div_ceil(32)];
        let forced = self.drawn.checked_sub(FREE).map(|at| self.call[at]);
        for token in (0..=END).filter(|&token| forced.is_none_or(|forced| forced == token)) {
            self.allowed[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(&self.allowed)
    }

    fn push(&mut self, _: u32) -> Result<bool, String> {
        self.drawn += 1;
        Ok(self.drawn == FREE + self.call.len())
    }
}

fn calling() -> Constrained {
    let begin = || Box::new(Calling { call: ids(CALL), drawn: 0, allowed: Vec::new() }) as Box<dyn Constraint>;
    Constrained::new("the test", Arc::new(begin))
}

/// A random model over the tokens of the dialogue, and several versions of its weights.
struct Model {
    _folder: tempfile::TempDir,
    dir: ModelDir,
    versions: Vec<WeightSource>,
}

impl Model {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let sizes = Qwen2 { vocab_size: END as usize + 1, ..SMALL };
        sizes.write(&path, 1);
        let values = |version: u64, name: &str, count: usize| -> Vec<f32> {
            let mut stream = Stream::new(&[
                version,
                name.bytes().fold(7_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())),
            ]);
            // Large enough for every token of the context to matter.
            let weight = |drawn: u64| if name.ends_with("norm.weight") { 1.0 } else { drawn as f32 / 1e3 - 0.5 };
            (0..count).map(|_| weight(stream.below(1000))).collect()
        };
        let count = |shape: &[usize]| shape.iter().product();
        let first = sizes.parameters().into_iter().map(|(name, shape)| {
            let values = values(0, &name, count(&shape));
            (name, shape, values)
        });
        write_safetensors(&path, first);
        fs::write(path.join("generation_config.json"), json!({ "eos_token_id": END }).to_string()).unwrap();
        let dir = ModelDir::open(&path).unwrap();
        let source = |version: u64| WeightSource {
            dir: folder.path().join(format!("v{version}")),
            version: PolicyVersion(version),
        };
        export(&dir, &source(0).dir, &ExportOptions::default()).unwrap();
        let shapes: Vec<(String, Vec<usize>)> = sizes.parameters();
        for version in 1..VERSIONS {
            let mut read = |name: &str| {
                let (_, shape) = shapes.iter().find(|(known, _)| known == name).unwrap();
                Ok(values(version, name, count(shape)).into())
            };
            write_version(&source(0).dir, &source(version).dir, PolicyVersion(version), &mut read).unwrap();
        }
        Self { dir, versions: (0..VERSIONS).map(source).collect(), _folder: folder }
    }

    fn engine(&self, version: u64, options: EngineOptions) -> Engine {
        Engine::new(self.versions[version as usize].clone(), &self.dir, options).unwrap()
    }
}

/// Publishes what a test says.
struct Publishing(Publication);

impl WeightReceiver for Publishing {
    type Error = Infallible;

    fn newest(&mut self) -> Result<Option<Publication>, Infallible> {
        Ok(Some(self.0.clone()))
    }

    fn taking(&mut self, _: &Publication, _: PolicyVersion) {}

    fn taken(&mut self, _: &SwapReport) {}

    fn refused(&mut self, refusal: Refusal) {
        panic!("{refusal:?}");
    }

    fn failed(&mut self) {
        panic!("every version can be loaded");
    }
}

#[derive(Debug, Clone)]
struct Schedule {
    slots: usize,
    batched: usize,
    kept: usize,
    swap: WeightSwap,
    /// Rounds after which the next version is published.
    published: Vec<usize>,
    /// Rounds that a tool takes, by turn and sample.
    delays: Vec<usize>,
    groups: Vec<u32>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let swap = prop_oneof![Just(WeightSwap::Drain), Just(WeightSwap::Recompute), Just(WeightSwap::Continue)];
    let sizes = (1_usize..6, 16_usize..300, 0_usize..5);
    let times = (prop::collection::vec(1_usize..150, 0..3), prop::collection::vec(0_usize..90, 1..9));
    (sizes, swap, times, prop::collection::vec(1_u32..4, 1..4)).prop_map(
        |((slots, batched, kept), swap, (published, delays), groups)| Schedule {
            slots,
            batched,
            kept,
            swap,
            published,
            delays,
            groups,
        },
    )
}

/// Opens at once, and lets a test say when its tools answer.
fn slow(sample: Sample, asked: &Asked) -> Option<Event> {
    match asked {
        Asked::Step(_) => None,
        other => adding(sample, other),
    }
}

/// Plays a schedule, and returns the conversations with the number of swaps.
fn play(model: &Model, schedule: &Schedule) -> (Vec<Conversed>, usize) {
    let options = EngineOptions {
        max_num_batched_tokens: schedule.batched,
        kept_states: schedule.kept,
        hot_swap: true,
        recompute: schedule.swap == WeightSwap::Recompute,
        ..EngineOptions::new(schedule.slots, MAX_MODEL_LEN)
    };
    let engine = Box::new(model.engine(0, options));
    let mut world = world_over(engine, slow, dialogue(900, MAX_MODEL_LEN), 0);
    let publication = |version: u64| Publication {
        source: model.versions[version as usize].clone(),
        number: version,
        is_last: false,
        replaces: false,
    };
    let (mut follower, mut receiver) = (WeightFollower::new(schedule.swap), Publishing(publication(0)));
    let (mut to_publish, mut to_begin) =
        (schedule.published.iter().zip(1..), schedule.groups.iter().zip(0..).peekable());
    let mut next = to_publish.next();
    let (mut working, mut turns, mut ended) = (Vec::new(), 0, Vec::new());
    let (mut begun, mut since, mut steps) = (0, 0, HashMap::<Sample, u32>::new());
    loop {
        since += 1;
        if let Some((_, version)) = next.filter(|(after, _)| since >= **after && !follower.pending()) {
            receiver.0 = publication(version);
            (next, since) = (to_publish.next(), 0);
        }
        follower.follow(&mut world.generator, &mut receiver).unwrap();
        if follower.pending() {
            // A version is loaded in its own time.
            thread::sleep(Duration::from_millis(1));
        }
        if follower.takes_groups(&world.generator)
            && let Some((&samples, tag)) = to_begin.next()
        {
            begun += samples as usize;
            let sampling = SamplingParams { max_completion_length: 900, ..SamplingParams::default() };
            let group =
                GroupRequest { constraint: Some(calling()), sampling: sampling.into(), ..request(tag, samples) };
            world.generator.begin_row(group.into(), &row()).unwrap();
        }
        for (sample, asked) in mem::take(&mut *world.log.lock().unwrap()) {
            if let Asked::Step(turn) = asked {
                working.push((schedule.delays[turns % schedule.delays.len()], sample, turn));
                turns += 1;
            }
        }
        for (delay, ..) in &mut working {
            *delay = delay.saturating_sub(1);
        }
        for (_, sample, turn) in working.extract_if(.., |(delay, ..)| *delay == 0) {
            let steps: &mut u32 = steps.entry(sample).or_default();
            *steps += 1;
            // Sample 0 has one call, sample 1 two, and so on.
            let done = *steps > sample.index;
            world.sender.send((sample, Event::Stepped(Step { done, ..step(&turn, "5") }))).unwrap();
        }
        for output in world.generator.advance().unwrap() {
            let Output::Ended { sequence, .. } = output else { panic!("no token is told") };
            ended.push(world.generator.take_conversation(&sequence).unwrap());
        }
        if ended.len() == begun && to_begin.peek().is_none() && !follower.pending() {
            let swaps = world.generator.version().0 as usize;
            return (ended, swaps);
        }
    }
}

/// What the cases of the test had between them, so that none of it is left out.
#[derive(Debug, Default)]
struct Met {
    swapped: [usize; 3],
    recomputed: u32,
    mixed: usize,
    checked: usize,
}

/// Checks all tokens that the model chose in a conversation.
fn check(conversed: &Conversed, swap: WeightSwap, judges: &mut [Engine], met: &mut Met) {
    let (prompt, episode) = (conversed.prompt_ids.as_deref().unwrap(), &conversed.episode);
    assert!(episode.is_sound(), "{episode:?}");
    let versions: Vec<(usize, PolicyVersion)> = episode.versions().map(|(at, v)| (at as usize, v)).collect();
    let scores: Vec<Vec<f64>> =
        judges.iter_mut().map(|judge| judge.score(prompt, episode.token_ids()).unwrap()).collect();
    let mut logprobs = episode.logprobs();
    for span in episode.sampled_spans() {
        let first = versions.iter().rfind(|(at, _)| *at <= span.start).unwrap().1;
        for (at, logprob) in span.clone().zip(logprobs.by_ref()) {
            let version = versions.iter().rfind(|(begin, _)| *begin <= at).unwrap().1;
            met.mixed += usize::from(version != first);
            // A token that it was made to write has the log-prob 0. With `continue`, what follows a swap within a turn
            // has keys and values of two versions.
            if at >= span.start + FREE || swap == WeightSwap::Continue && version != first {
                continue;
            }
            let error = (scores[version.0 as usize][at] - f64::from(logprob.logprob)).abs();
            assert!(error < 1e-4, "{swap}, v{version}, token {at} of {span:?} in {versions:?}: {error}");
            met.checked += 1;
        }
    }
    let is_of_one = versions.iter().all(|(_, version)| *version == versions[0].1);
    assert!(swap != WeightSwap::Drain || is_of_one, "{versions:?}");
}

#[test]
fn log_probs_are_those_of_one_pass_over_the_whole_conversation() {
    let model = Model::new();
    let judge = |version| model.engine(version, EngineOptions::new(1, MAX_MODEL_LEN));
    let (judges, met) = (RefCell::new((0..VERSIONS).map(judge).collect::<Vec<_>>()), RefCell::new(Met::default()));
    let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha)).run(
        &schedule(),
        |schedule| {
            let (conversations, swaps) = play(&model, &schedule);
            let met = &mut *met.borrow_mut();
            met.swapped[schedule.swap as usize] += swaps;
            for conversed in &conversations {
                met.recomputed += conversed.exchange.recomputed;
                check(conversed, schedule.swap, &mut judges.borrow_mut(), met);
            }
            Ok(())
        },
    );
    result.unwrap();
    let met = met.into_inner();
    assert!(met.swapped.iter().all(|swaps| *swaps > 0) && met.recomputed > 0 && met.mixed > 0, "{met:?}");
    assert!(met.checked > 250, "{met:?}");
}
