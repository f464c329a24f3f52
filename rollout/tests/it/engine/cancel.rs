//! Completions that nobody wants any more, and tokens as they come.

use std::collections::BTreeMap;

use rollout::engine::{Engine, EngineOptions, Kernels, Output, Request};
use shared::{FinishReason, ModelDir, SamplingParams};

use super::support::{Outcome, Steps, exported, finish, golden_model, group, options, outcome};

fn hot(max_completion_length: u32) -> SamplingParams {
    SamplingParams { ignore_eos: true, max_completion_length, ..SamplingParams::default() }
}

/// Four of the six slots are for completions that go on. Two of the three others run while the third waits.
fn open(model: &ModelDir, kernels: Kernels) -> (tempfile::TempDir, impl Fn() -> Engine) {
    let folder = tempfile::tempdir().unwrap();
    let (weights, model) = (exported(model, folder.path()), model.clone());
    let open = move || {
        let options = EngineOptions { kernels, max_num_batched_tokens: 16, ..options(6, 1) };
        Engine::new(weights.clone(), &model, options).unwrap()
    };
    (folder, open)
}

/// Advances, and adds the completions that have ended to `ended`.
fn advance(engine: &mut Engine, ended: &mut BTreeMap<(u64, u32), Outcome>) {
    ended.extend(engine.step().unwrap().into_iter().map(outcome));
}

#[test]
fn what_is_cancelled_frees_all_and_its_neighbours_never_know() {
    let model = golden_model("llama");
    for kernels in [Kernels::Packed, Kernels::Stock] {
        let (_folder, open) = open(&model, kernels);
        let neighbours = || group(0, &[7; 20], 4, hot(40));
        let unwanted = || group(1, &[8; 50], 3, hot(30));
        let alone = {
            let mut engine = open();
            engine.add_group(unwanted()).unwrap();
            finish(&mut engine).into_iter().map(outcome).collect::<BTreeMap<_, _>>()
        };
        // While its prompt is computed in pieces, and then while it decodes.
        for (steps, sample) in
            [0, 1, 2, 4, 5, 9].into_iter().flat_map(|steps| [(steps, None), (steps, Some(1)), (steps, Some(2))])
        {
            let what = format!("{kernels:?}, after {steps} steps, {sample:?}");
            let (mut engine, mut twin) = (open(), open());
            let (mut ended, mut expected) = (BTreeMap::new(), BTreeMap::new());
            engine.add_group(neighbours()).unwrap();
            twin.add_group(neighbours()).unwrap();
            for step in 0..3 + steps {
                advance(&mut engine, &mut ended);
                advance(&mut twin, &mut expected);
                if step == 2 {
                    engine.add_group(unwanted()).unwrap();
                }
            }
            let cancelled = engine.cancel(1, sample);
            assert_eq!(cancelled.len(), if sample.is_some() { 1 } else { 3 }, "{what}");
            assert!(engine.cancel(1, sample).is_empty() && engine.cancel(7, None).is_empty(), "{what}: once");
            for sequence in cancelled {
                let ((tag, sample), (tokens, logprobs, reason)) = outcome(sequence);
                let (whole, whole_logprobs, _) = &alone[&(tag, sample)];
                assert_eq!(reason, FinishReason::Aborted);
                assert!(whole.starts_with(&tokens) && whole_logprobs.starts_with(&logprobs), "{what}");
            }
            if sample.is_none() {
                assert_eq!((engine.running(), engine.waiting()), (4, 0), "{what}");
                if kernels == Kernels::Packed {
                    assert_eq!(engine.kv_bytes_in_use(), twin.kv_bytes_in_use(), "{what}");
                }
            }
            ended.extend(finish(&mut engine).into_iter().map(outcome));
            expected.extend(finish(&mut twin).into_iter().map(outcome));
            let others = alone.iter().filter(|((_, index), _)| sample.is_some_and(|sample| sample != *index));
            expected.extend(others.map(|(id, outcome)| (*id, outcome.clone())));
            assert!(ended == expected, "{what}");
            // A place in the cache that was lost would be missed here, and a page would still be in use.
            for engine in [&mut engine, &mut twin] {
                engine.add_group(group(2, &[9; 50], 12, hot(40))).unwrap();
                finish(engine);
            }
            if kernels == Kernels::Packed {
                assert_eq!(engine.kv_bytes_in_use(), twin.kv_bytes_in_use(), "{what}: in the end");
            }
        }
    }
}

#[test]
fn tokens_come_one_by_one_where_they_are_wanted() {
    let model = golden_model("llama");
    let (_folder, open) = open(&model, Kernels::Packed);
    let mut engine = open();
    engine.begin(Request { stream: true, ..group(0, &[7; 20], 3, hot(12)).into() }).unwrap();
    engine.begin(group(1, &[8; 9], 2, hot(9)).into()).unwrap();
    let mut streamed: BTreeMap<(u64, u32), (Vec<u32>, Vec<u32>)> = BTreeMap::new();
    let mut ended = 0;
    while !engine.is_idle() {
        let sequences = engine.running() + engine.waiting();
        let outputs = engine.advance().unwrap();
        // One that starts draws twice: behind its prompt, and in its first step.
        assert!(outputs.iter().filter(|output| matches!(output, Output::Token { .. })).count() <= 2 * sequences);
        for output in outputs {
            match output {
                Output::Token { tag, sample, id, logprob, .. } => {
                    let (ids, logprobs) = streamed.entry((tag, sample)).or_default();
                    ids.push(id);
                    logprobs.push(logprob.logprob.to_bits());
                }
                Output::Ended { sequence, state } => {
                    ended += 1;
                    assert!(state.is_none());
                    let came = streamed.remove(&(sequence.tag, sequence.sample));
                    let (ids, logprobs) = came.unwrap_or_default();
                    assert_eq!(ids.is_empty(), sequence.tag == 1, "only where they are wanted");
                    if sequence.tag == 0 {
                        assert_eq!(ids, sequence.token_ids);
                        assert!(
                            logprobs.iter().eq(sequence
                                .logprobs
                                .iter()
                                .map(|l| l.logprob.to_bits())
                                .collect::<Vec<_>>()
                                .iter())
                        );
                    }
                }
            }
        }
    }
    assert_eq!((ended, streamed.len()), (5, 0));
}
