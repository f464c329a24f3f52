//! Other ways to the same completions: candidates, fixed sizes, drafts.

use std::{collections::BTreeMap, sync::Arc};

use rollout::engine::{Engine, EngineOptions, GroupRequest, Kernels};
use shared::{
    SamplingParams,
    config::{KvDtype, RolloutDtype},
};

use super::support::{
    Nth, Steps, exported, finish, golden_model, golden_model_to_grow, group, mixed_groups, options, outcome, trained,
    wait_swap,
};

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
        // Some of them have a repetition penalty, which takes the whole row.
        assert!(share(0) == 1.0 && share(4) == 1.0, "{whole_rows:?}");
        assert!(share(1) < share(2) && share(2) <= share(3) && share(3) < 1.0, "{whole_rows:?}");
    }
}

/// On the CPU nothing is recorded: batches are padded, inputs and logits lie in fixed memory, and a replay is a run.
#[test]
fn steps_of_fixed_sizes_give_the_same_completions() {
    for name in &harness::golden_models() {
        let model = golden_model(name);
        // Refused with a recurrent state.
        if model.config().has_states() {
            continue;
        }
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
                        9 => drop(wait_swap(&mut engine).unwrap()),
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

/// [`mixed_groups`], and groups whose completions repeat each other or themselves: greedy ones run into a cycle, which
/// is cut by its length, by a stop criterion or by the room there is.
fn repetitive_groups() -> Vec<GroupRequest> {
    let sampling_at =
        |temperature| SamplingParams { temperature, max_completion_length: 80, ..SamplingParams::default() };
    let cycle = SamplingParams { ignore_eos: true, ..sampling_at(0.0) };
    let prompt: Vec<u32> = (0..24).map(|i| 10 + i % 5).collect();
    let stopped =
        GroupRequest { stop_criterion: Some(Arc::new(|| Box::new(Nth(29)))), ..group(103, &[5, 7], 3, cycle.clone()) };
    let ragged =
        GroupRequest { lengths: Some(Arc::from([3, 70, 41, 12, 64])), ..group(104, &prompt, 5, cycle.clone()) };
    let more = [
        group(100, &[9, 8, 7], 2, cycle.clone()),
        group(101, &prompt, 6, sampling_at(0.3)),
        group(102, &prompt, 4, SamplingParams { top_p: 0.6, ..sampling_at(0.8) }),
        stopped,
        ragged,
        group(105, &prompt, 3, SamplingParams { repetition_penalty: 1.05, ..cycle }),
    ];
    mixed_groups().into_iter().chain(more).collect()
}

#[test]
fn drafts_change_no_bit_of_a_completion() {
    let (mut drafted, mut accepted) = (0, 0);
    for name in &harness::golden_models() {
        let folder = tempfile::tempdir().unwrap();
        let model = golden_model_to_grow(name, folder.path());
        if model.config().has_states() {
            continue;
        }
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
