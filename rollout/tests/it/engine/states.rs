//! Sequences that leave a state, and completions that go on from there.

use std::collections::BTreeMap;

use rollout::engine::{Engine, EngineOptions, FinishedSequence, Kernels, Output, Request, State, WeightSource};
use shared::{
    ModelDir, SamplingParams,
    config::{KvDtype, RolloutDtype},
};

use super::support::{
    MODES, Outcome, Steps, exported, finish, golden_model, golden_model_to_grow, group, options, outcome, trained,
    wait_swap,
};

/// The results of some requests: completions and their states.
type Left = BTreeMap<(u64, u32), (FinishedSequence, State)>;

fn hot(max_completion_length: u32) -> SamplingParams {
    SamplingParams { ignore_eos: true, max_completion_length, ..SamplingParams::default() }
}

fn ids(count: u32, of: u32) -> Vec<u32> {
    (0..count).map(|i| 3 + (97 * i + 31 * of) % 250).collect()
}

/// A request whose completions leave states.
fn first(tag: u64, prompt: u32, samples: u32, most: u32) -> Request {
    Request { keep: true, ..group(tag, &ids(prompt, tag as u32), samples, hot(most)).into() }
}

/// A request that goes on from a state.
fn next(tag: u64, from: &State, more: u32, samples: u32, most: u32) -> Request {
    Request { from: Some(from.clone()), ..first(tag, more, samples, most) }
}

fn run(engine: &mut Engine, requests: impl IntoIterator<Item = Request>) -> Left {
    requests.into_iter().for_each(|request| engine.begin(request).unwrap());
    let mut left = Left::new();
    while !engine.is_idle() {
        for output in engine.advance().unwrap() {
            let Output::Ended { sequence, state } = output else { panic!("nobody asked for tokens") };
            left.insert((sequence.tag, sequence.sample), (sequence, state.expect("it was asked for")));
        }
    }
    left
}

fn bits(left: &Left) -> BTreeMap<(u64, u32), Outcome> {
    left.values().map(|(sequence, _)| outcome(sequence.clone())).collect()
}

/// Three turns: two prompts of some completions each; two more completions after each of them, with and without further
/// ids; one after each of those.
fn turns(engine: &mut Engine) -> [Left; 3] {
    let begun = run(engine, [first(0, 21, 3, 13), first(1, 32, 2, 16)]);
    let after = |left: &Left, tags: u64, more: u32, samples, most| -> Vec<Request> {
        let states = left.values().map(|(_, state)| state.clone()).enumerate();
        states.map(|(i, state)| next(tags + i as u64, &state, more * (i as u32 % 2), samples, most)).collect()
    };
    let second = run(engine, after(&begun, 10, 9, 2, 7));
    let third = run(engine, after(&second, 20, 17, 1, 5));
    [begun, second, third]
}

#[test]
fn what_goes_on_is_what_one_pass_over_all_tokens_says_whether_it_was_held_or_not() {
    for name in &harness::golden_models() {
        let folder = tempfile::tempdir().unwrap();
        let model = golden_model_to_grow(name, folder.path());
        let weights = exported(&model, folder.path());
        for (kernels, rollout_dtype, kv_dtype) in MODES {
            let what = format!("{name}, {kernels:?}, {rollout_dtype}, {kv_dtype}");
            let open = |max_num_seqs, max_num_batched_tokens, kept_states, speculative_tokens| {
                let options = EngineOptions {
                    kernels,
                    rollout_dtype,
                    kv_dtype,
                    kept_states,
                    max_num_batched_tokens,
                    speculative_tokens,
                    ..options(max_num_seqs, 2)
                };
                Engine::new(weights.clone(), &model, options).unwrap()
            };
            let mut bare = open(8, 64, 0, 0);
            let expected = turns(&mut bare);
            assert_eq!(bare.held_states(), 0, "none is held unless that is asked for");
            let is_packed = kernels == Kernels::Packed;
            let drafts = if is_packed && !model.config().has_states() { 3 } else { 0 };
            for (slots, batched, kept, drafts) in [(8, 64, 64, 0), (3, 9, 64, drafts), (8, 64, 4, 0)] {
                let mut engine = open(slots, batched, kept, drafts);
                let found = turns(&mut engine);
                for (found, expected) in found.iter().zip(&expected) {
                    assert!(bits(found) == bits(expected), "{what}: {kept} held, {slots} slots");
                }
                let states = found.iter().map(Left::len).sum::<usize>();
                assert_eq!(engine.held_states(), if is_packed { states.min(kept) } else { 0 }, "{what}");
                if kept == 64 && batched == 64 && is_packed {
                    // Second turn: the newest token of each of 5 states, and 9 further ones of 2. Third turn: 10, and
                    // 17 of 5.
                    let computed = (21 + 32) + (5 + 2 * 9) + (10 + 5 * 17);
                    assert_eq!(engine.profile().prefill_tokens, computed, "{what}");
                }
                drop(found);
                assert_eq!(engine.held_states(), 0, "{what}: dropped states");
            }
            let close = if rollout_dtype == RolloutDtype::Auto && kv_dtype == KvDtype::Auto { 1e-4 } else { 0.1 };
            for (sequence, state) in expected.iter().flat_map(Left::values) {
                let (before, own) = state.ids().split_at(state.ids().len() - sequence.token_ids.len());
                assert_eq!(own, sequence.token_ids, "{what}");
                let whole = bare.score(before, own).unwrap();
                for (whole, logprob) in whole.iter().zip(&sequence.logprobs) {
                    let error = (whole - f64::from(logprob.logprob)).abs();
                    assert!(error < close, "{what}, after {} tokens: {error}", before.len());
                }
            }
        }
    }
}

/// Whatever the slots: groups may be larger than these, and prompts longer than a call.
#[test]
fn each_prompt_is_computed_once_for_its_whole_group() {
    for name in &harness::golden_models() {
        let folder = tempfile::tempdir().unwrap();
        let model = golden_model_to_grow(name, folder.path());
        let weights = exported(&model, folder.path());
        for (slots, batched) in [(3, 9), (16, 256)] {
            let own = EngineOptions { max_num_batched_tokens: batched, ..options(slots, 2) };
            let mut engine = Engine::new(weights.clone(), &model, own).unwrap();
            let prompts = [21, 5, 33, 16];
            for (tag, length) in (0..).zip(prompts) {
                engine.add_group(group(tag, &ids(length, tag as u32), 1 + 2 * tag as u32, hot(6))).unwrap();
            }
            assert_eq!(finish(&mut engine).len(), 1 + 3 + 5 + 7);
            let profile = engine.profile();
            let computed = (profile.prefills, profile.prefill_tokens);
            assert_eq!(computed, (4, u64::from(prompts.iter().sum::<u32>())), "{name}, {slots} slots");
        }
    }
}

fn engine(model: &ModelDir, weights: &WeightSource, kept_states: usize) -> Engine {
    Engine::new(weights.clone(), model, EngineOptions { kept_states, hot_swap: true, ..options(6, 1) }).unwrap()
}

#[test]
fn turns_draw_by_numbers_of_their_own_and_forks_by_their_samples() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let mut engine = engine(&model, &exported(&model, folder.path()), 4);
    // Flat enough for every draw to decide.
    let flat = |mut request: Request| {
        let sampling = SamplingParams { temperature: 100.0, ..(*request.group.sampling).clone() };
        request.group.sampling = sampling.into();
        request
    };
    let begun = run(&mut engine, [flat(first(0, 5, 1, 12))]);
    let (sequence, state) = &begun[&(0, 0)];
    // The same prompt id and samples, 0 among them.
    let forks = run(&mut engine, [flat(next(0, state, 0, 3, 12))]);
    let tokens: Vec<_> = forks.values().map(|(fork, _)| &fork.token_ids).collect();
    assert!(!tokens.contains(&&sequence.token_ids), "not the same draws again");
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2]);
    assert_eq!(forks[&(0, 1)].1.ids().len(), 5 + 12 + 12);
}

#[test]
fn held_pages_are_shared_by_forks_and_free_when_nobody_wants_them() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let mut engine = engine(&model, &exported(&model, folder.path()), 8);
    finish_small(&mut engine);
    let (before, page) = (engine.kv_bytes_in_use(), engine.kv_bytes_in_use());
    let begun = run(&mut engine, [first(1, 40, 1, 21)]);
    // Three pages of the prompt, and two of the twenty tokens whose keys and values there are.
    assert_eq!(engine.kv_bytes_in_use(), 5 * page);
    let state = begun[&(1, 0)].1.clone();
    drop(begun);
    let forks = run(&mut engine, [next(2, &state, 3, 2, 2)]);
    assert_eq!(engine.held_states(), 3);
    // Both forks have the full page in common, and a second one of their own; so has the completion that they started
    // from.
    assert_eq!(engine.kv_bytes_in_use(), (5 + 3) * page);
    drop(state);
    assert_eq!((engine.held_states(), engine.kv_bytes_in_use()), (2, (5 + 2) * page));
    drop(forks);
    finish_small(&mut engine);
    assert_eq!((engine.held_states(), engine.kv_bytes_in_use()), (0, before));
}

/// Leaves nothing but a prompt of one page where samples start from.
fn finish_small(engine: &mut Engine) {
    engine.add_group(group(99, &[5], 1, hot(1))).unwrap();
    finish(engine);
}

#[test]
fn after_a_swap_the_new_weights_compute_all_of_it() {
    let model = golden_model("qwen3");
    let folder = tempfile::tempdir().unwrap();
    let v0 = exported(&model, folder.path());
    let v1 = trained("qwen3", &v0, folder.path());
    let mut engine = engine(&model, &v0, 8);
    let begun = run(&mut engine, [first(0, 20, 2, 9)]);
    let states: Vec<State> = begun.values().map(|(_, state)| state.clone()).collect();
    let after = |tag| states.iter().zip(tag..).map(|(state, tag)| next(tag, state, 4, 2, 8)).collect::<Vec<_>>();
    let old = bits(&run(&mut engine, after(1)));

    // One request waits when the weights change, beside one that runs then and is of both versions.
    engine.begin(first(5, 7, 1, 30)).unwrap();
    for _ in 0..4 {
        engine.advance().unwrap();
    }
    engine.set_admission(false);
    after(1).into_iter().for_each(|request| engine.begin(request).unwrap());
    engine.begin_swap(v1.clone()).unwrap();
    wait_swap(&mut engine).unwrap();
    assert_eq!(engine.held_states(), 0, "nothing is held of weights that are no longer in use");
    engine.set_admission(true);
    let mut left = run(&mut engine, []);
    let (mixed, of_both) = left.remove(&(5, 0)).unwrap();
    assert_eq!(mixed.versions.len(), 2);
    assert_eq!(engine.held_states(), left.len(), "of what both have computed nothing is held");
    let new = bits(&left);
    assert!(new != old);
    let mut only = self::engine(&model, &v1, 0);
    assert!(bits(&run(&mut only, after(1))) == new, "as if there had never been other weights");
    let further = || [next(7, &of_both, 2, 1, 6)];
    assert!(bits(&run(&mut engine, further())) == bits(&run(&mut only, further())));
}

#[test]
fn a_context_without_room_or_with_unknown_ids_is_refused() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let mut engine = engine(&model, &exported(&model, folder.path()), 1);
    let begun = run(&mut engine, [first(0, 60, 1, 20)]);
    let state = &begun[&(0, 0)].1;
    let error = engine.begin(next(1, state, 16, 1, 5)).unwrap_err().to_string();
    assert!(error.contains("96 tokens leave no room"), "{error}");
    let mut unknown = next(1, state, 0, 1, 5);
    unknown.group.prompt_ids = [1 << 20].into();
    assert!(engine.begin(unknown).unwrap_err().to_string().contains("vocabulary"));
    assert_eq!(run(&mut engine, [next(1, state, 15, 1, 5)])[&(1, 0)].0.token_ids.len(), 1);
}
