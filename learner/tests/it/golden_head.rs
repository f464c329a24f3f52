//! The head's log-probs, entropies and closed-form gradient against `logprob_entropy.json`.

use std::{ops::Range, sync::Arc};

use learner::{
    model::{Head, Span, Targets, TokenGradients},
    support::{Support, Truncation, supports},
};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::support::figures::numbers;

fn close(found: &Tensor, expected: &[f64], tolerance: f64) {
    let found = Vec::<f64>::try_from(found.to_kind(Kind::Double).reshape([-1])).unwrap();
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "{f} is not {e}");
    }
}

#[test]
fn golden_logprob_entropy() {
    let cases = harness::golden::cases(
        "logprob_entropy.json",
        "logprob_entropy",
        &["temperature"],
        &["logits", "ids", "weights"],
        &["logprobs", "entropies", "grad_logits_of_weighted_sum"],
    );
    for case in &cases {
        for (kind, tolerance) in [(Kind::Double, 1e-9), (Kind::Float, 1e-5)] {
            for chunk in [1, 3, 100] {
                for span in
                    [Span::Token, Span::Completion(&completions(case["inputs"]["ids"].as_array().unwrap().len()))]
                {
                    run(case, kind, tolerance, chunk, span);
                }
            }
        }
    }
}

/// Splits this many tokens into a completion of one token and one of the rest.
fn completions(tokens: usize) -> [Range<usize>; 2] {
    [0..1, 1..tokens]
}

fn run(case: &Value, kind: Kind, tolerance: f64, chunk: i64, span: Span<'_>) {
    let (inputs, expected) = (&case["inputs"], &case["expected"]);
    let temperature = case["params"]["temperature"].as_f64().unwrap();
    let rows: Vec<f64> = inputs["logits"].as_array().unwrap().iter().flat_map(numbers).collect();
    let ids: Vec<i64> = numbers(&inputs["ids"]).iter().map(|&id| id as i64).collect();
    let tokens = ids.len() as i64;
    let logits_NV = Tensor::from_slice(&rows).view([tokens, -1]).to_kind(kind);
    let vocabulary = logits_NV.size()[1];
    // With the identity as the projection the hidden states are the logits.
    let head = Head::with_chunks(&Tensor::eye(vocabulary, (kind, Device::Cpu)), [chunk; 2]);
    let ids_N = Tensor::from_slice(&ids);
    let targets = Targets { ids_N: &ids_N, temperature, supports: None };

    let stats = head.evaluate(&logits_NV, &targets);
    close(&stats.logprobs_N, &numbers(&expected["logprobs"]), tolerance);
    close(&stats.entropies_N, &numbers(&expected["entropies"]), tolerance);

    let weights_N = Tensor::from_slice(&numbers(&inputs["weights"]));
    let mut weight_gradient = Tensor::zeros([vocabulary, vocabulary], (kind, Device::Cpu));
    let gradient = head.differentiate(&logits_NV, &targets, span, Some(&mut weight_gradient), &mut |run, _| {
        TokenGradients::from(weights_N.shallow_clone()).slice(&run)
    });
    let gradients: Vec<f64> =
        expected["grad_logits_of_weighted_sum"].as_array().unwrap().iter().flat_map(numbers).collect();
    close(&gradient, &gradients, tolerance);
    // The weight's gradient is the logits' gradient, transposed, times the hidden states.
    let product = Tensor::from_slice(&gradients).view([tokens, -1]).tr().matmul(&logits_NV.to_kind(Kind::Double));
    close(&weight_gradient, &Vec::<f64>::try_from(product.reshape([-1])).unwrap(), 10.0 * tolerance);
}

/// The sampler's distribution without a repetition penalty: its support, and the log-probs of the truncated
/// distribution through the head.
#[test]
fn golden_sampling_kept_sets() {
    let cases = harness::golden::cases(
        "sampling.json",
        "sampling",
        &["temperature", "top_k", "top_p", "min_p", "repetition_penalty"],
        &["logits", "context_ids"],
        &["kept", "probs", "logprobs_kept"],
    );
    let mut truncated = 0;
    for case in cases.iter().filter(|case| case["params"]["repetition_penalty"] == 1.0) {
        let (name, params, expected) = (&case["name"], &case["params"], &case["expected"]);
        let truncation = Truncation {
            top_k: params["top_k"].as_u64().unwrap() as u32,
            top_p: params["top_p"].as_f64().unwrap(),
            min_p: params["min_p"].as_f64(),
        };
        let temperature = params["temperature"].as_f64().unwrap();
        let kept: Vec<u32> = numbers(&expected["kept"]).iter().map(|&id| id as u32).collect();
        let logits = numbers(&case["inputs"]["logits"]);
        let vocabulary = logits.len();
        let logits_1V = Tensor::from_slice(&logits).view([1, -1]);
        let likeliest_1 = logits_1V.argmax(1, false);
        let found = supports(&logits_1V, &likeliest_1, temperature, &truncation).remove(0);
        assert_eq!(found.ids(), kept, "{name}");
        assert_eq!(found.count() as usize, kept.len());
        truncated += usize::from(kept.len() < vocabulary);

        let head = Head::new(&Tensor::eye(vocabulary as i64, (Kind::Double, Device::Cpu)));
        let ids_N = Tensor::from_slice(&kept.iter().map(|&id| i64::from(id)).collect::<Vec<i64>>());
        let set = Arc::new(found);
        let sets: Vec<Arc<Support>> = kept.iter().map(|_| Arc::clone(&set)).collect();
        let targets = Targets { ids_N: &ids_N, temperature, supports: Some(&sets) };
        let stats = head.evaluate(&logits_1V.repeat([kept.len() as i64, 1]), &targets);
        let probs: Vec<f64> = kept.iter().map(|&id| expected["probs"][id as usize].as_f64().unwrap()).collect();
        close(&stats.logprobs_N.exp(), &probs, 1e-9);
        let found = Vec::<f64>::try_from(&stats.logprobs_N).unwrap();
        for (found, expected) in found.iter().zip(expected["logprobs_kept"].as_array().unwrap()) {
            match expected.as_f64().filter(|&expected| expected > f64::MIN_POSITIVE.ln()) {
                Some(expected) => {
                    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{name}: {found}")
                }
                // The log of a probability that is too small for a float64.
                None => assert!(*found < f64::MIN_POSITIVE.ln(), "{name}: {found} is not {expected}"),
            }
        }
        let entropy: f64 = probs.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        close(&stats.entropies_N, &vec![entropy; kept.len()], 1e-9);
    }
    assert!(truncated > 0);
}

/// The closed form of the gradients of log-prob and entropy, over the whole vocabulary and over supports, against
/// autograd of the definition.
#[test]
fn gradients_of_logprob_and_entropy_are_those_of_the_definition() {
    let (tokens, vocabulary, temperature) = (5, 90, 0.7);
    tch::manual_seed(3);
    let hidden_NH = Tensor::randn([tokens, 8], (Kind::Double, Device::Cpu));
    let weight_VH = Tensor::randn([vocabulary, 8], (Kind::Double, Device::Cpu));
    let ids_N = Tensor::from_slice(&[3i64, 89, 17, 0, 42]);
    let gradients = || TokenGradients {
        logprobs_N: Tensor::from_slice(&[0.3, -1.2, 0.0, 2.0, 0.7]),
        entropies_N: Some(Tensor::from_slice(&[-0.5, 0.25, 1.5, 0.0, -0.1])),
    };
    let truncation = Truncation { top_k: 40, top_p: 0.8, min_p: Some(0.01) };
    let sets: Vec<Arc<Support>> = {
        let logits_NV = hidden_NH.linear(&weight_VH, None::<Tensor>);
        supports(&logits_NV, &ids_N, temperature, &truncation).into_iter().map(Arc::new).collect()
    };
    assert!(sets.iter().any(|set| set.count() < 30) && sets.iter().all(|set| set.count() < vocabulary as u32));
    let cases = [(None, None), (Some(sets.as_slice()), None), (None, Some(3.0)), (Some(sets.as_slice()), Some(3.0))];
    for (supports, cap) in cases {
        let hidden = hidden_NH.copy().set_requires_grad(true);
        let weight = weight_VH.copy().set_requires_grad(true);
        let mut logits_NV = hidden.linear(&weight, None::<Tensor>);
        if let Some(cap) = cap {
            logits_NV = (logits_NV / cap).tanh() * cap;
        }
        logits_NV /= temperature;
        if let Some(sets) = supports {
            let outside_NV = learner::support::outside(sets, &logits_NV);
            logits_NV = logits_NV.masked_fill(&outside_NV, -1e300);
        }
        let logs_NV = logits_NV.log_softmax(-1, None::<Kind>);
        let logprobs_N = logs_NV.gather(1, &ids_N.unsqueeze(1), false).squeeze_dim(1);
        let entropies_N = (logs_NV.exp() * &logs_NV).sum_dim_intlist([1i64].as_slice(), false, None::<Kind>).neg();
        let loss =
            (logprobs_N * gradients().logprobs_N + entropies_N * gradients().entropies_N.unwrap()).sum(None::<Kind>);
        let expected = Tensor::run_backward(&[loss], &[&hidden, &weight], false, false);

        for chunks in [[2, 2], [2, 5], [100, 100]] {
            for span in [Span::Token, Span::Completion(&completions(ids_N.numel()))] {
                let head = Head::with_chunks(&weight_VH, chunks).with_cap(cap);
                let targets = Targets { ids_N: &ids_N, temperature, supports };
                let mut found_VH = weight_VH.zeros_like();
                let found_NH = head.differentiate(&hidden_NH, &targets, span, Some(&mut found_VH), &mut |run, _| {
                    gradients().slice(&run)
                });
                for (found, expected) in [(found_NH, &expected[0]), (found_VH, &expected[1])] {
                    assert!((found - expected).abs().max().double_value(&[]) < 1e-12);
                }
            }
        }
    }
}

#[test]
fn a_completion_is_seen_at_once_and_what_fits_is_projected_once() {
    let head = |chunks| Head::with_chunks(&Tensor::eye(4, (Kind::Double, Device::Cpu)), chunks);
    let (hidden_NH, ids_N) =
        (Tensor::zeros([9, 4], (Kind::Double, Device::Cpu)), Tensor::zeros([9], (Kind::Int64, Device::Cpu)));
    let targets = Targets { ids_N: &ids_N, temperature: 1.0, supports: None };
    let seen = |chunks, span| {
        let mut runs = Vec::new();
        let _ = head(chunks).differentiate(&hidden_NH, &targets, span, None, &mut |run, stats| {
            runs.push(run);
            stats.logprobs_N.zeros_like().into()
        });
        runs
    };
    let completions = Span::Completion(&[0..2, 2..3, 3..7, 7..9]);
    for most in [3, 4] {
        assert_eq!(seen([3, most], Span::Token), [0..3, 3..6, 6..9]);
        assert_eq!(seen([3, most], completions), [0..3, 3..7, 7..9]);
    }
}
