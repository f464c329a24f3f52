//! Completions do not depend on the batch, on prompts that are computed beside them, or on pieces.

use std::collections::BTreeMap;

use rollout::engine::{Engine, EngineOptions, GroupRequest, Kernels, WeightSource};
use shared::{
    ModelDir, SamplingParams,
    config::{KvDtype, RolloutDtype, TrainConfig},
};

use super::support::{
    MODES, Steps, exported, finish, golden_model, greedy, group, mixed_groups, options, outcome, trained, wait_swap,
};

#[test]
fn completions_do_not_depend_on_batching_threads_or_arrival() {
    for name in &harness::golden_models() {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let weights = exported(&model, folder.path());
        for mode in MODES {
            check_independence(&format!("{name}, {mode:?}"), &model, &weights, mode);
        }
    }
}

#[test]
fn prompts_prefilled_together_give_the_same_completions() {
    for name in &harness::golden_models() {
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
        if model.config().has_states() {
            let options = EngineOptions { kernels: Kernels::Stock, prefill_batch: 2, ..options(4, 2) };
            let engine = Engine::new(weights.clone(), &model, options).map(drop).unwrap_err().to_string();
            let run = TrainConfig { rollout_prefill_batch: 2, ..TrainConfig::default() };
            for error in [engine, run.check_model(model.config()).unwrap_err().to_string()] {
                assert!(error.contains("`rollout_prefill_batch` 2 is not possible"), "{name}: {error}");
            }
            continue;
        }
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
    let long: Vec<u32> = (0..60).map(|i| 1 + i * 37 % 250).collect();
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
        wait_swap(&mut cut).unwrap();
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

/// Eight prompts in one call, of which seven end soon: what they took is free when the eighth has all slots at full
/// length.
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
