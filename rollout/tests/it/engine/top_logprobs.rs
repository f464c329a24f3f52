//! The likeliest tokens beside the drawn ones.

use std::collections::BTreeMap;

use rollout::engine::{Engine, EngineOptions, FinishedSequence, Kernels, Output, Request, TopLogprob};
use shared::SamplingParams;

use super::support::{exported, golden_model, group, mixed_groups, options, outcome};

/// Runs requests, and compares what streams with what has ended.
fn run(engine: &mut Engine, requests: impl Iterator<Item = Request>) -> Vec<FinishedSequence> {
    requests.for_each(|request| engine.begin(request).unwrap());
    let (mut streamed, mut ended) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    while !engine.is_idle() {
        for output in engine.advance().unwrap() {
            match output {
                Output::Token { tag, sample, top, .. } => streamed.entry((tag, sample)).or_default().push(top),
                Output::Ended { sequence, .. } => {
                    let came = streamed.remove(&(sequence.tag, sequence.sample));
                    assert_eq!(
                        came.is_some_and(|came| came == sequence.top_logprobs),
                        !sequence.top_logprobs.is_empty()
                    );
                    ended.push(sequence);
                }
            }
        }
    }
    ended
}

#[test]
fn asking_for_the_likeliest_changes_no_bit_of_a_completion_however_it_is_computed() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    for (kernels, candidates, speculative_tokens) in
        [(Kernels::Packed, 0, 0), (Kernels::Packed, 0, 3), (Kernels::Stock, 0, 0), (Kernels::Stock, 64, 0)]
    {
        let what = format!("{kernels:?}, {candidates} candidates, {speculative_tokens} drafts");
        let options = EngineOptions { kernels, candidates, speculative_tokens, ..options(8, 2) };
        let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
        let plain: BTreeMap<_, _> =
            run(&mut engine, mixed_groups().into_iter().map(Request::from)).into_iter().map(outcome).collect();
        // Every other group asks; the others are to get nothing.
        let asked = |tag: u64| if tag.is_multiple_of(2) { 5 } else { 0 };
        let request = |group: rollout::engine::GroupRequest| {
            let top_logprobs = asked(group.tag);
            Request { stream: top_logprobs > 0, top_logprobs, ..group.into() }
        };
        for sequence in run(&mut engine, mixed_groups().into_iter().map(request)) {
            let (tag, sampling) = (sequence.tag, mixed_groups()[sequence.tag as usize].sampling.clone());
            let places = if asked(tag) > 0 { sequence.token_ids.len() } else { 0 };
            assert_eq!(sequence.top_logprobs.len(), places, "{what}: {tag}");
            for ((top, &id), figures) in sequence.top_logprobs.iter().zip(&sequence.token_ids).zip(&sequence.logprobs) {
                let most = if sampling.truncated() { (figures.kept_count as usize).min(5) } else { 5 };
                assert!(
                    top.len() == most && top.is_sorted_by(|one, other| one.logprob >= other.logprob),
                    "{what}: {top:?}"
                );
                let own = if sampling.greedy() { figures.logprob } else { figures.sampling_logprob() };
                let listed = top.iter().find(|other| other.token == id);
                // Logits that stay elsewhere are summed elsewhere, but not where the likeliest are wanted.
                assert!(listed.is_none_or(|listed| listed.logprob == f64::from(own)), "{what}: {listed:?} and {own}");
                assert!(listed.is_some() || top[most - 1].logprob >= f64::from(own), "{what}: {top:?} and {own}");
                assert!(!sampling.greedy() || top[0].token == id, "{what}: {top:?}");
            }
            let (key, (ids, figures, finish)) = outcome(sequence);
            let (plain_ids, plain_figures, plain_finish) = &plain[&key];
            assert!(ids == *plain_ids && finish == *plain_finish, "{what}: {key:?}");
            // A draw from candidates has sums of the device, and one from the whole row those of the host.
            assert!(figures == *plain_figures || candidates > 0, "{what}: {key:?}");
        }
    }
}

/// What they are by definition: log-probs of all tokens in a place, from passes of their own.
#[test]
fn the_likeliest_are_those_of_all_tokens() {
    let model = golden_model("llama");
    let vocab = model.config().vocab_size as u32;
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options(4, 1)).unwrap();
    let prompt = [3, 8, 5];
    for temperature in [1.0, 0.0, 0.5] {
        let sampling =
            SamplingParams { temperature, max_completion_length: 3, ignore_eos: true, ..SamplingParams::default() };
        let request = Request { top_logprobs: 4, stream: true, ..group(0, &prompt, 1, sampling).into() };
        let sequence = run(&mut engine, [request].into_iter()).remove(0);
        for (at, top) in sequence.top_logprobs.iter().enumerate() {
            let context = [&prompt, &sequence.token_ids[..at]].concat();
            let scale = if temperature == 0.0 { 1.0 } else { f64::from(temperature) };
            let scaled = |token: u32| engine.score(&context, &[token]).unwrap()[0] / scale;
            let mut all: Vec<(u32, f64)> = (0..vocab).zip((0..vocab).map(scaled)).collect();
            let total = all.iter().map(|(_, logprob)| logprob.exp()).sum::<f64>().ln();
            all.sort_by(|(_, one), (_, other)| other.total_cmp(one));
            let given = engine.given_logprobs(&context, &[0], 4, None).unwrap().remove(0).top;
            for ((&TopLogprob { token, logprob }, (meant, exact)), given) in top.iter().zip(&all).zip(&given) {
                assert!(token == *meant && (logprob - (exact - total)).abs() < 1e-4, "{top:?}: {meant} {exact}");
                assert!(given.token == *meant && (given.logprob - exact * scale).abs() < 1e-6, "{given:?}: {exact}");
            }
            assert_eq!((top.len(), given.len()), (4, 4));
        }
    }
}
