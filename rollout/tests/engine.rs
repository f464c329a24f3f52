//! The engine on real models: agreement with transformers, independence of the batch, swaps of weights.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use exporters::{Checkpoint, ExportOptions, export, write_version};
use rollout::engine::{
    Engine, EngineError, EngineOptions, FinishedSequence, GroupRequest, Kernels, StopWatch, WeightSource,
};
use serde_json::Value;
use shared::{
    FinishReason, ModelDir, PolicyVersion, PromptId, SamplingParams, TokenLogprob,
    config::{Device, KvDtype, RolloutDtype},
};

fn options(max_num_seqs: usize, threads: usize) -> EngineOptions {
    EngineOptions {
        device: Device::Cpu,
        kernels: Kernels::default(),
        rollout_dtype: RolloutDtype::default(),
        kv_dtype: KvDtype::default(),
        threads,
        max_num_seqs,
        max_num_batched_tokens: 64,
        speculative_tokens: 0,
        prefill_batch: 1,
        max_model_len: 96,
        candidates: 0,
        cuda_graphs: false,
        spinning: false,
        hot_swap: false,
    }
}

/// What computes the model, in every way there is on the CPU.
const MODES: [(Kernels, RolloutDtype, KvDtype); 6] = [
    (Kernels::Packed, RolloutDtype::Auto, KvDtype::Auto),
    (Kernels::Stock, RolloutDtype::Auto, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Int8, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Bf16, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Bf16x3, KvDtype::Auto),
    (Kernels::Packed, RolloutDtype::Auto, KvDtype::Int8),
];

fn golden_model(name: &str) -> ModelDir {
    ModelDir::open(tests::golden_dir().join("models").join(name)).unwrap()
}

/// Exports a model as version 0 into `folder`.
fn exported(model: &ModelDir, folder: &Path) -> WeightSource {
    let dir = folder.join("v0");
    export(model, &dir, &ExportOptions::default()).unwrap();
    WeightSource { dir, version: PolicyVersion(0) }
}

/// Version 1: the weights of the golden training run's end.
fn trained(name: &str, base: &WeightSource, folder: &Path) -> WeightSource {
    let model = golden_model(name);
    let after = folder.join("after");
    std::fs::create_dir(&after).unwrap();
    for file in model.companions() {
        std::fs::copy(&file, after.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::copy(model.path().join("after_3_steps/model.safetensors"), after.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(&ModelDir::open(after).unwrap()).unwrap();
    write(base, folder, 1, |name| checkpoint.read_f32(name).unwrap())
}

fn write(base: &WeightSource, folder: &Path, version: u64, read: impl Fn(&str) -> Vec<f32>) -> WeightSource {
    let (dir, version) = (folder.join(format!("v{version}")), PolicyVersion(version));
    write_version(&base.dir, &dir, version, &mut |name| Ok(read(name))).unwrap();
    WeightSource { dir, version }
}

fn group(tag: u64, prompt_ids: &[u32], num_generations: u32, sampling: SamplingParams) -> GroupRequest {
    GroupRequest {
        tag,
        prompt_id: PromptId(tag),
        epoch: 0,
        prompt_ids: Arc::from(prompt_ids),
        num_generations,
        sampling: Arc::new(sampling),
        lengths: None,
        stop_watch: None,
    }
}

fn greedy(max_completion_length: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, max_completion_length, ignore_eos: true, ..SamplingParams::default() }
}

/// Steps until nothing is left; no sequence may get lost.
fn finish(engine: &mut Engine) -> Vec<FinishedSequence> {
    let begun = engine.running() + engine.waiting();
    let mut finished = Vec::new();
    while !engine.is_idle() {
        finished.extend(engine.step().unwrap());
    }
    assert_eq!(finished.len(), begun, "every sequence ends once");
    finished
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

fn check_reference(what: &str, finished: &FinishedSequence, continuation: &Value, logprobs: &Value) {
    assert_eq!(finished.token_ids, ids(continuation), "{what}");
    let expected = logprobs.as_array().expect("log-probs");
    assert_eq!(finished.logprobs.len(), expected.len(), "{what}");
    for (t, (got, expected)) in finished.logprobs.iter().zip(expected).enumerate() {
        let error = (f64::from(got.logprob) - expected.as_f64().expect("a number")).abs();
        assert!(error <= 1e-4, "{what}: log-prob of token {t} is off by {error}");
    }
}

#[test]
fn golden_greedy_through_the_engine() {
    let golden = tests::golden("model_numerics.json");
    for case in golden["cases"].as_array().expect("cases") {
        let name = case["name"].as_str().expect("a name");
        let model = ModelDir::open(tests::golden_dir().join(case["params"]["model_dir"].as_str().unwrap())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut engine = Engine::new(exported(&model, folder.path()), &model, options(2, 1)).unwrap();
        let expected = &case["expected"]["greedy"];
        let mut keys: Vec<&String> = expected.as_object().expect("an object").keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, ["continuation_ids", "logprobs", "min_argmax_margin", "prompt_ids"], "{name}");
        let length = expected["continuation_ids"].as_array().unwrap().len() as u32;
        engine.add_group(group(0, &ids(&expected["prompt_ids"]), 2, greedy(length))).unwrap();
        for finished in finish(&mut engine) {
            check_reference(name, &finished, &expected["continuation_ids"], &expected["logprobs"]);
        }
    }
}

#[test]
fn pretrained_model_reproduces_its_reference() {
    let Some(data) = tests::data_dir("pretrained_model_reproduces_its_reference") else { return };
    let dir = data.join("stories260K");
    let reference: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let model = ModelDir::open(dir).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { max_model_len: 512, ..options(3, 2) };
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options).unwrap();
    let cases = reference["cases"].as_array().expect("cases");
    for (tag, case) in cases.iter().enumerate() {
        let length = case["max_new_tokens"].as_u64().expect("a length") as u32;
        engine.add_group(group(tag as u64, &ids(&case["prompt_ids"]), 1, greedy(length))).unwrap();
    }
    let finished = finish(&mut engine);
    assert_eq!(finished.len(), cases.len());
    for sequence in finished {
        let case = &cases[sequence.tag as usize];
        check_reference(&format!("{}", case["prompt"]), &sequence, &case["continuation_ids"], &case["logprobs"]);
    }
}

/// Everything about a completion that must not depend on how it was batched.
type Outcome = (Vec<u32>, Vec<[u32; 4]>, FinishReason);

fn outcome(sequence: FinishedSequence) -> ((u64, u32), Outcome) {
    let bits = |l: &TokenLogprob| {
        [l.logprob.to_bits(), l.logprob_at_temperature.to_bits(), l.log_kept_mass.to_bits(), l.kept_count]
    };
    let logprobs = sequence.logprobs.iter().map(bits).collect();
    ((sequence.tag, sequence.sample), (sequence.token_ids, logprobs, sequence.finish_reason))
}

/// Prompts of many lengths (1 among them) with different laws, ragged by end-of-sequence tokens and length limits.
fn mixed_groups() -> Vec<GroupRequest> {
    let base = SamplingParams { max_completion_length: 40, ..SamplingParams::default() };
    let laws = [
        base.clone(),
        SamplingParams { temperature: 0.7, top_k: 20, ..base.clone() },
        SamplingParams { temperature: 1.3, top_p: 0.9, min_p: Some(0.02), ..base.clone() },
        SamplingParams { repetition_penalty: 1.2, max_completion_length: 11, ..base.clone() },
        SamplingParams { temperature: 0.0, ..base },
    ];
    let mut stream = shared::rng::Stream::new(&[11]);
    (0..12u64)
        .map(|tag| {
            let length = [1, 2, 3, 5, 8, 13, 21, 30, 17, 16, 4, 33][tag as usize];
            let prompt: Vec<u32> = (0..length).map(|_| stream.below(500) as u32 + 3).collect();
            let law = &laws[tag as usize % laws.len()];
            let max_completion_length = law.max_completion_length.min(40 - 3 * tag as u32);
            let sampling = SamplingParams { max_completion_length, ..law.clone() };
            group(tag, &prompt, [8, 1, 5][tag as usize % 3], sampling)
        })
        .collect()
}

#[test]
fn completions_do_not_depend_on_batching_threads_or_arrival() {
    for name in ["llama", "qwen2", "qwen3"] {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let weights = exported(&model, folder.path());
        for mode in MODES {
            check_independence(&format!("{name}, {mode:?}"), &model, &weights, mode);
        }
    }
}

#[test]
fn candidates_give_the_completions_of_full_logits() {
    for name in ["llama", "qwen3"] {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let weights = exported(&model, folder.path());
        let mut whole_rows = Vec::new();
        let mut run = |candidates: usize, seed: u64| -> BTreeMap<_, _> {
            let options = EngineOptions { kernels: Kernels::Stock, candidates, ..options(24, 2) };
            let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
            for group in mixed_groups() {
                let sampling = SamplingParams { seed, ..(*group.sampling).clone() };
                engine.add_group(GroupRequest { sampling: Arc::new(sampling), ..group }).unwrap();
            }
            let finished = finish(&mut engine).into_iter().map(|s| ((s.tag, s.sample), s)).collect();
            let profile = engine.profile();
            whole_rows.push((profile.whole_rows, profile.decode_tokens));
            finished
        };
        for seed in 0..12 {
            let expected = run(0, seed);
            // All 512 logits, a few blocks of 32, one, none.
            for candidates in [512, 96, 32, 1] {
                let got = run(candidates, seed);
                assert_eq!(got.len(), expected.len());
                for (key, expected) in &expected {
                    let (what, got) = (format!("{name}, {candidates} candidates, seed {seed}, {key:?}"), &got[key]);
                    assert_eq!(got.token_ids, expected.token_ids, "{what}");
                    assert_eq!(got.finish_reason, expected.finish_reason, "{what}");
                    for (got, expected) in got.logprobs.iter().zip(&expected.logprobs) {
                        assert_eq!(got.kept_count, expected.kept_count, "{what}");
                        for (got, expected) in [
                            (got.logprob, expected.logprob),
                            (got.logprob_at_temperature, expected.logprob_at_temperature),
                            (got.log_kept_mass, expected.log_kept_mass),
                        ] {
                            assert!((got - expected).abs() < 5e-6, "{what}: {got} against {expected}");
                        }
                    }
                }
            }
        }
        let share = |n: usize| {
            let of = whole_rows.iter().skip(n).step_by(5);
            let (whole, all) = of.fold((0, 0), |(a, b), &(whole, all)| (a + whole, b + all));
            whole as f64 / all as f64
        };
        // Some laws have a repetition penalty, which takes the whole row.
        assert!(share(0) == 1.0 && share(4) == 1.0, "{whole_rows:?}");
        assert!(share(1) < share(2) && share(2) <= share(3) && share(3) < 1.0, "{whole_rows:?}");
    }
}

/// On the CPU nothing is recorded: batches are padded, inputs and logits lie in fixed memory, and a replay is a run.
#[test]
fn steps_of_fixed_sizes_give_the_same_completions() {
    for name in ["llama", "qwen2", "qwen3"] {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let v0 = exported(&model, folder.path());
        let v1 = trained(name, &v0, folder.path());
        for (max_num_seqs, candidates) in [(1, 0), (7, 0), (7, 64), (64, 0)] {
            let run = |cuda_graphs: bool| {
                let options = EngineOptions {
                    kernels: Kernels::Stock,
                    candidates,
                    cuda_graphs,
                    hot_swap: true,
                    ..options(max_num_seqs, 2)
                };
                let mut engine = Engine::new(v0.clone(), &model, options).unwrap();
                mixed_groups().into_iter().for_each(|g| engine.add_group(g).unwrap());
                let mut finished = Vec::new();
                for step in 0.. {
                    match step {
                        6 => engine.begin_swap(v1.clone()).unwrap(),
                        9 => drop(engine.wait_swap().unwrap().expect("a swap is pending")),
                        _ if engine.is_idle() => break,
                        _ => {}
                    }
                    finished.extend(engine.step().unwrap());
                }
                let finished: BTreeMap<_, _> = finished.into_iter().map(outcome).collect();
                let profile = engine.profile();
                // Sizes that were not used before run as without graphs while weights are loaded.
                let taken = if cuda_graphs { profile.decode_steps - 3..=profile.decode_steps } else { 0..=0 };
                assert!(taken.contains(&profile.graph_steps), "{name}: {profile:?}");
                (finished, profile.kv_bytes_read)
            };
            let (expected, got) = (run(false), run(true));
            assert!(
                !expected.0.is_empty() && got == expected,
                "{name}, {max_num_seqs} sequences, {candidates} candidates"
            );
        }
    }
}

#[test]
fn prompts_prefilled_together_give_the_same_completions() {
    for name in ["llama", "qwen2", "qwen3"] {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let weights = exported(&model, folder.path());
        let run = |prefill_batch: usize, max_num_seqs: usize| -> (BTreeMap<_, _>, u64) {
            let options = EngineOptions {
                kernels: Kernels::Stock,
                prefill_batch,
                max_num_batched_tokens: 96,
                ..options(max_num_seqs, 2)
            };
            let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
            mixed_groups().into_iter().for_each(|g| engine.add_group(g).unwrap());
            let finished = finish(&mut engine).into_iter().map(|s| ((s.tag, s.sample), s)).collect();
            (finished, engine.profile().prefills)
        };
        let (expected, prompts) = run(1, 64);
        for (prefill_batch, max_num_seqs) in [(2, 64), (4, 5), (12, 64)] {
            let (got, prefills) = run(prefill_batch, max_num_seqs);
            assert_eq!((got.len(), prefills), (expected.len(), prompts));
            for (key, expected) in &expected {
                let (what, got) = (format!("{name}, {prefill_batch} prompts, {key:?}"), &got[key]);
                assert_eq!(got.token_ids, expected.token_ids, "{what}");
                for (got, expected) in got.logprobs.iter().zip(&expected.logprobs) {
                    let error = (got.logprob - expected.logprob).abs();
                    assert!(error < 1e-5, "{what}: {error}");
                }
            }
        }
    }
}

/// Prompts longer than the budget arrive while a sequence runs.
#[test]
fn a_long_prompt_is_computed_in_pieces_while_sequences_run() {
    const PIECE: usize = 7;
    let model = golden_model("qwen3");
    let folder = tempfile::tempdir().unwrap();
    let v0 = exported(&model, folder.path());
    let v1 = trained("qwen3", &v0, folder.path());
    let long: Vec<u32> = (0..60).map(|i| 1 + i * 37 % 400).collect();
    let groups = || {
        let hot = SamplingParams { ignore_eos: true, max_completion_length: 30, ..SamplingParams::default() };
        [group(0, &[1, 5, 9], 1, hot.clone()), group(1, &long, 3, hot.clone()), group(2, &long[..20], 2, hot)]
    };
    for (kernels, kv_dtype) in
        [(Kernels::Packed, KvDtype::Auto), (Kernels::Packed, KvDtype::Int8), (Kernels::Stock, KvDtype::Auto)]
    {
        let engine = |max_num_batched_tokens, weights: &WeightSource| {
            let options = EngineOptions { kernels, kv_dtype, max_num_batched_tokens, hot_swap: true, ..options(4, 2) };
            let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
            groups().into_iter().for_each(|g| engine.add_group(g).unwrap());
            engine
        };
        let all = |mut engine: Engine| finish(&mut engine).into_iter().map(outcome).collect::<BTreeMap<_, _>>();
        let (whole, renewed) = (all(engine(1000, &v0)), all(engine(1000, &v1)));

        let mut cut = engine(PIECE, &v0);
        let (mut finished, mut most, mut before) = (Vec::new(), 0, 0);
        while !cut.is_idle() {
            finished.extend(cut.step().unwrap());
            most = most.max(cut.profile().prefill_tokens - before);
            before = cut.profile().prefill_tokens;
        }
        // Of one step: the end of a prompt and, within the budget, nothing else.
        let expected = if kernels == Kernels::Packed { PIECE } else { long.len() };
        assert_eq!(most, expected as u64, "{kernels:?}: prompt tokens of one step");
        assert_eq!((cut.profile().prefills, before), (3, 83), "every token is computed once");
        let finished: BTreeMap<_, _> = finished.into_iter().map(outcome).collect();
        assert!(finished == whole, "{kernels:?}, {kv_dtype}: pieces change no bit");

        // New weights, or the end of everything, in the middle of a prompt.
        let mut cut = engine(PIECE, &v0);
        (0..3).for_each(|_| assert!(cut.step().unwrap().is_empty()));
        cut.begin_swap(v1.clone()).unwrap();
        cut.wait_swap().unwrap();
        for sequence in finish(&mut cut) {
            if sequence.versions == [(0, v1.version)] {
                let ((tag, sample), got) = outcome(sequence);
                assert!(got == renewed[&(tag, sample)], "{kernels:?}: a prompt belongs to one version");
            } else {
                assert!(sequence.tag == 0 || kernels == Kernels::Stock, "{:?}", sequence.versions);
            }
        }
        groups().into_iter().for_each(|g| cut.add_group(g).unwrap());
        (0..3).for_each(|_| assert!(cut.step().unwrap().is_empty()));
        assert_eq!(cut.abort_all().len(), 6);
        groups().into_iter().for_each(|g| cut.add_group(g).unwrap());
        assert!(all(cut) == renewed, "{kernels:?}: what was computed of a prompt is gone");
    }
}

/// Eight prompts in one call, of which seven end soon: what they took is free when the eighth has all slots at full length.
#[test]
fn prompts_computed_together_leave_room_for_the_longest_sequences() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    let options = EngineOptions { max_num_batched_tokens: 1000, max_model_len: 48, ..options(8, 1) };
    let mut engine = Engine::new(weights, &model, options).unwrap();
    for tag in 0..7 {
        engine.add_group(group(tag, &[7 + tag as u32; 36], 1, greedy(2))).unwrap();
    }
    engine.add_group(group(7, &[1, 2, 3, 4], 20, greedy(44))).unwrap();
    let finished = finish(&mut engine);
    assert_eq!(engine.profile().prefills, 8);
    assert_eq!(finished.iter().map(|s| s.token_ids.len()).sum::<usize>(), 7 * 2 + 20 * 44);
}

fn check_independence(
    what: &str,
    model: &ModelDir,
    weights: &WeightSource,
    (kernels, rollout_dtype, kv_dtype): (Kernels, RolloutDtype, KvDtype),
) {
    let run = |max_num_seqs: usize, threads: usize, groups: Vec<GroupRequest>| -> BTreeMap<_, _> {
        let options = EngineOptions { kernels, rollout_dtype, kv_dtype, ..options(max_num_seqs, threads) };
        let mut engine = Engine::new(weights.clone(), model, options).unwrap();
        assert_eq!(engine.kernels(), kernels);
        groups.into_iter().for_each(|g| engine.add_group(g).unwrap());
        finish(&mut engine).into_iter().map(outcome).collect()
    };
    let expected = run(1, 1, mixed_groups());
    assert_eq!(expected.len(), 56);
    let lengths: std::collections::BTreeSet<_> = expected.values().map(|(tokens, ..)| tokens.len()).collect();
    assert!(lengths.len() > 3, "the lengths must be ragged to test anything, got {lengths:?}");
    for (max_num_seqs, threads) in [(1, 2), (2, 1), (8, 1), (8, 2), (64, 1), (64, 2)] {
        let got = run(max_num_seqs, threads, mixed_groups());
        assert!(got == expected, "{what}: max_num_seqs {max_num_seqs}, {threads} threads");
    }
    let reversed = run(5, 2, mixed_groups().into_iter().rev().collect());
    assert!(reversed == expected, "{what}: reversed order of arrival");
}

/// Ends a completion with its n-th token.
struct Nth(u32);

impl StopWatch for Nth {
    fn push(&mut self, _: u32) -> bool {
        self.0 -= 1;
        self.0 == 0
    }
}

/// [`mixed_groups`], and groups whose completions repeat each other or themselves: greedy ones run into a cycle, which is
/// cut by its length, by a stop watch or by the room there is.
fn repetitive_groups() -> Vec<GroupRequest> {
    let law = |temperature| SamplingParams { temperature, max_completion_length: 80, ..SamplingParams::default() };
    let cycle = SamplingParams { ignore_eos: true, ..law(0.0) };
    let prompt: Vec<u32> = (0..24).map(|i| 10 + i % 5).collect();
    let stopped =
        GroupRequest { stop_watch: Some(Arc::new(|| Box::new(Nth(29)))), ..group(103, &[5, 7], 3, cycle.clone()) };
    let ragged =
        GroupRequest { lengths: Some(Arc::from([3, 70, 41, 12, 64])), ..group(104, &prompt, 5, cycle.clone()) };
    let more = [
        group(100, &[9, 8, 7], 2, cycle.clone()),
        group(101, &prompt, 6, law(0.3)),
        group(102, &prompt, 4, SamplingParams { top_p: 0.6, ..law(0.8) }),
        stopped,
        ragged,
        group(105, &prompt, 3, SamplingParams { repetition_penalty: 1.05, ..cycle }),
    ];
    mixed_groups().into_iter().chain(more).collect()
}

#[test]
fn drafts_change_no_bit_of_a_completion() {
    let (mut drafted, mut accepted) = (0, 0);
    for name in ["llama", "qwen2", "qwen3"] {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let weights = exported(&model, folder.path());
        for (rollout_dtype, kv_dtype) in [
            (RolloutDtype::Auto, KvDtype::Auto),
            (RolloutDtype::Int8, KvDtype::Auto),
            (RolloutDtype::Auto, KvDtype::Int8),
        ] {
            let mut run = |max_num_seqs, threads, speculative_tokens| -> BTreeMap<_, _> {
                let options =
                    EngineOptions { rollout_dtype, kv_dtype, speculative_tokens, ..options(max_num_seqs, threads) };
                let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
                repetitive_groups().into_iter().for_each(|g| engine.add_group(g).unwrap());
                let finished = finish(&mut engine).into_iter().map(outcome).collect();
                drafted += engine.profile().drafted_tokens;
                accepted += engine.profile().accepted_tokens;
                finished
            };
            let expected = run(8, 1, 0);
            for (max_num_seqs, threads, speculative_tokens) in
                [(1, 1, 8), (3, 2, 20), (8, 1, 1), (20, 2, 4), (64, 1, 8)]
            {
                let found = run(max_num_seqs, threads, speculative_tokens);
                assert!(
                    found == expected,
                    "{name}, {rollout_dtype}, {kv_dtype}: {speculative_tokens} drafts, {max_num_seqs} rows"
                );
            }
        }
    }
    assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted}: both kinds must occur to test anything");
}

#[test]
fn end_of_sequence_tokens_and_stop_watches_end_completions() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options(4, 1)).unwrap();
    let eos = model.generation().eos_token_ids.clone();
    assert!(!eos.is_empty());
    // Flat enough that end-of-sequence tokens come up among 512 tokens.
    let hot = SamplingParams { temperature: 4.0, max_completion_length: 60, ..SamplingParams::default() };
    engine.add_group(group(0, &[1, 5, 9], 64, hot.clone())).unwrap();
    let finished = finish(&mut engine);
    let (stopped, cut): (Vec<_>, Vec<_>) = finished.iter().partition(|s| s.finish_reason == FinishReason::Stop);
    assert!(!stopped.is_empty() && !cut.is_empty());
    for sequence in stopped {
        let (last, before) = sequence.token_ids.split_last().unwrap();
        assert!(eos.contains(last) && before.iter().all(|t| !eos.contains(t)));
    }
    assert!(cut.iter().all(|s| s.token_ids.len() == 60 && s.finish_reason == FinishReason::Length));

    let watched = GroupRequest {
        stop_watch: Some(Arc::new(|| Box::new(Nth(3)))),
        ..group(1, &[1, 5], 3, SamplingParams { ignore_eos: true, ..hot })
    };
    engine.add_group(watched).unwrap();
    let finished = finish(&mut engine);
    assert!(finished.iter().all(|s| s.token_ids.len() == 3 && s.finish_reason == FinishReason::Stop));
}

#[test]
fn new_weights_are_taken_up_between_steps() {
    let model = golden_model("qwen2");
    let folder = tempfile::tempdir().unwrap();
    let v0 = exported(&model, folder.path());
    let v1 = trained("qwen2", &v0, folder.path());
    for (kernels, rollout_dtype, kv_dtype) in MODES {
        let options = |max_num_seqs| EngineOptions {
            kernels,
            rollout_dtype,
            kv_dtype,
            hot_swap: true,
            ..options(max_num_seqs, 1)
        };
        check_swaps(&model, [&v0, &v1], options);
    }
}

fn check_swaps(model: &ModelDir, [v0, v1]: [&WeightSource; 2], options: impl Fn(usize) -> EngineOptions) {
    let request = |tag| group(tag, &[1, 300, 69, 438], 3, greedy(20));
    let alone = |weights: &WeightSource| {
        let mut engine = Engine::new(weights.clone(), model, options(4)).unwrap();
        engine.add_group(request(0)).unwrap();
        outcome(finish(&mut engine).swap_remove(0)).1
    };
    let (old, new) = (alone(v0), alone(v1));
    assert_ne!(old.1, new.1, "the versions must differ to test anything");

    // Two slots for three samples: the third starts after the swap.
    let mut engine = Engine::new(v0.clone(), model, options(2)).unwrap();
    // There and back and there again: retired memory is used anew.
    for (after, [before, expected]) in [(v1, [&old, &new]), (v0, [&new, &old]), (v1, [&old, &new])] {
        let was = engine.version();
        engine.add_group(request(0)).unwrap();
        assert!(engine.wait_swap().unwrap().is_none());
        for _ in 0..5 {
            engine.step().unwrap();
        }
        engine.begin_swap(after.clone()).unwrap();
        assert!(engine.swap_pending() && engine.begin_swap(after.clone()).is_err());
        let report = engine.wait_swap().unwrap().expect("a swap was pending");
        assert_eq!((report.version, engine.version()), (after.version, after.version));
        assert!(report.seconds >= report.stall_seconds && report.stall_seconds >= 0.0);
        for sequence in finish(&mut engine) {
            if sequence.sample < 2 {
                // The prefill's token and five more.
                assert_eq!(sequence.versions, [(0, was), (6, after.version)]);
                assert_eq!(sequence.token_ids[..6], before.0[..6]);
            } else {
                assert_eq!(sequence.versions, [(0, after.version)]);
                assert!(outcome(sequence).1 == *expected, "a sample that starts after the swap knows only its weights");
            }
        }
    }
}

#[test]
fn rounded_log_probs_are_those_of_a_model_close_to_the_stored_one() {
    let Some(data) = tests::data_dir("rounded_log_probs_are_those_of_a_model_close_to_the_stored_one") else { return };
    let model = ModelDir::open(data.join("stories260K")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    let logprobs = |rollout_dtype, kv_dtype| -> Vec<f32> {
        let options = EngineOptions { rollout_dtype, kv_dtype, max_model_len: 256, ..options(8, 2) };
        let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
        // One token each: the same prompt, so the same law but for the rounding.
        for tag in 0..64 {
            let prompt: Vec<u32> = (0..=tag as u32 % 16).map(|i| 10 + (7 * i + tag as u32) % 400).collect();
            engine.add_group(group(tag, &prompt, 1, greedy(1))).unwrap();
        }
        let mut finished = finish(&mut engine);
        finished.sort_by_key(|s| s.tag);
        finished.iter().map(|s| s.logprobs[0].logprob).collect()
    };
    let stored = logprobs(RolloutDtype::Auto, KvDtype::Auto);
    let rounded = [
        (RolloutDtype::Int8, KvDtype::Auto, 0.05),
        (RolloutDtype::Bf16, KvDtype::Auto, 0.02),
        (RolloutDtype::Auto, KvDtype::Int8, 0.02),
        (RolloutDtype::Bf16x3, KvDtype::Auto, 5e-5),
    ];
    let means = rounded.map(|(rollout_dtype, kv_dtype, most)| {
        let rounded = logprobs(rollout_dtype, kv_dtype);
        let sum: f64 = stored.iter().zip(&rounded).map(|(a, b)| f64::from((a - b).abs())).sum();
        let mean = sum / stored.len() as f64;
        assert!(
            mean > 1e-7 && mean < most,
            "weights {rollout_dtype}, keys and values {kv_dtype}: mean difference of the likeliest token's log-prob {mean}"
        );
        mean
    });
    assert!(means[1] < means[0], "bf16 is closer than int8: {means:?}");
}

#[test]
fn bad_weights_are_refused_and_the_old_ones_go_on() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let v0 = exported(&model, folder.path());
    let checkpoint = Checkpoint::open(&model).unwrap();
    let nan = write(&v0, folder.path(), 2, |name| {
        let mut values = checkpoint.read_f32(name).unwrap();
        values[0] = if name == "model.norm.weight" { f32::NAN } else { values[0] };
        values
    });
    let mut engine = Engine::new(v0.clone(), &model, options(2, 1)).unwrap();
    let expect = |error: EngineError, part: &str| assert!(error.to_string().contains(part), "{error}");

    engine.begin_swap(nan).unwrap();
    expect(engine.wait_swap().unwrap_err(), "not finite");
    let mislabelled = WeightSource { version: PolicyVersion(7), ..v0.clone() };
    expect(engine.begin_swap(mislabelled).unwrap_err(), "holds v0");
    let missing = WeightSource { dir: folder.path().join("none"), version: PolicyVersion(1) };
    expect(engine.begin_swap(missing).unwrap_err(), "manifest");
    let short = WeightSource { dir: folder.path().join("short"), version: PolicyVersion(0) };
    export(&model, &short.dir, &ExportOptions { max_positions: Some(95), ..ExportOptions::default() }).unwrap();
    expect(engine.begin_swap(short).unwrap_err(), "95 positions, and max_model_len is 96");
    assert!(!engine.swap_pending());
    engine.add_group(group(0, &[5, 6], 1, greedy(4))).unwrap();
    assert_eq!(finish(&mut engine)[0].versions, [(0, PolicyVersion(0))]);

    expect(Engine::new(v0, &golden_model("qwen3"), options(2, 1)).err().unwrap(), "config.json");
}

#[test]
fn keys_and_values_in_bytes_end_where_their_sums_would_overflow() {
    const MOST: usize = i32::MAX as usize / (255 * 127);
    let folder = tempfile::tempdir().unwrap();
    let (long, golden) = (folder.path().join("long"), golden_model("llama"));
    std::fs::create_dir(&long).unwrap();
    for file in golden.companions().into_iter().chain([golden.path().join("model.safetensors")]) {
        std::fs::copy(&file, long.join(file.file_name().unwrap())).unwrap();
    }
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.path().join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = (MOST + 1).into();
    std::fs::write(long.join("config.json"), config.to_string()).unwrap();

    let model = ModelDir::open(long).unwrap();
    let weights = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
    export(&model, &weights.dir, &ExportOptions { max_positions: Some(MOST + 1), ..ExportOptions::default() }).unwrap();
    let open = |kv_dtype, max_model_len| {
        Engine::new(weights.clone(), &model, EngineOptions { kv_dtype, max_model_len, ..options(1, 1) })
    };
    let error = open(KvDtype::Int8, MOST + 1).err().expect("an error").to_string();
    assert!(error.contains(&format!("max_model_len of at most {MOST}")), "{error}");
    open(KvDtype::Int8, MOST).unwrap();
    open(KvDtype::Auto, MOST + 1).unwrap();
}

#[test]
fn requests_and_options_out_of_range_are_refused() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    let refused = |options: EngineOptions, part: &str| {
        let error = Engine::new(weights.clone(), &model, options).err().expect("an error").to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(options(0, 1), "max_num_seqs");
    refused(options(1, 0), "threads");
    for (rollout_dtype, message) in
        [(RolloutDtype::Int8, "int8 needs the packed kernels"), (RolloutDtype::Bf16, "bf16 needs the packed kernels")]
    {
        refused(EngineOptions { kernels: Kernels::Stock, rollout_dtype, ..options(1, 1) }, message);
    }
    let stock_int8 = EngineOptions { kernels: Kernels::Stock, kv_dtype: KvDtype::Int8, ..options(1, 1) };
    refused(stock_int8, "kv_dtype int8 needs the packed kernels");
    let stock_drafts = EngineOptions { kernels: Kernels::Stock, speculative_tokens: 1, ..options(1, 1) };
    refused(stock_drafts, "speculative_tokens");
    refused(EngineOptions { max_model_len: 1 << 20, ..options(1, 1) }, "max_model_len");
    refused(EngineOptions { candidates: 64, ..options(1, 1) }, "candidates needs the stock kernels");
    refused(EngineOptions { prefill_batch: 2, ..options(1, 1) }, "prefill_batch above 1 needs the stock kernels");
    refused(EngineOptions { cuda_graphs: true, ..options(1, 1) }, "cuda_graphs needs the stock kernels");
    let tensorrt = EngineOptions { device: Device::Tensorrt, cuda_graphs: true, ..options(1, 1) };
    refused(tensorrt, "cuda_graphs needs device cuda");
    refused(EngineOptions { prefill_batch: 0, ..options(1, 1) }, "prefill_batch must be at least 1");

    let mut engine = Engine::new(weights.clone(), &model, options(2, 1)).unwrap();
    let mut refused = |request: GroupRequest, part: &str| {
        let error = engine.add_group(request).unwrap_err().to_string();
        assert!(error.starts_with("prompt 7: ") && error.contains(part), "{error}");
    };
    refused(group(7, &[], 1, greedy(1)), "no tokens");
    refused(group(7, &[1; 96], 1, greedy(1)), "max_model_len (96)");
    refused(group(7, &[1, 512], 1, greedy(1)), "token 512");
    refused(group(7, &[1], 0, greedy(1)), "num_generations");
    refused(GroupRequest { lengths: Some(Arc::from([3, 0])), ..group(7, &[1], 2, greedy(1)) }, "lengths");
    refused(group(7, &[1], 1, SamplingParams { top_p: 0.0, ..greedy(1) }), "top_p");
    assert!(engine.is_idle());
}
