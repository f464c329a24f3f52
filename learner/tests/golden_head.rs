//! The head's log-probs, entropies and closed-form gradient against `logprob_entropy.json`.

#![allow(non_snake_case)]

use learner::model::{Head, Slopes, Span, Targets};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn close(found: &Tensor, expected: &[f64], tolerance: f64) {
    let found = Vec::<f64>::try_from(found.to_kind(Kind::Double).reshape([-1])).unwrap();
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance * e.abs().max(1.0), "{f} is not {e}");
    }
}

#[test]
fn golden_logprob_entropy() {
    let cases = tests::golden::cases(
        "logprob_entropy.json",
        "logprob_entropy",
        &["temperature"],
        &["logits", "ids", "weights"],
        &["logprobs", "entropies", "grad_logits_of_weighted_sum"],
    );
    for case in &cases {
        for (kind, tolerance) in [(Kind::Double, 1e-9), (Kind::Float, 1e-5)] {
            for chunk in [1, 3, 100] {
                for span in [Span::Run, Span::Whole] {
                    run(case, kind, tolerance, chunk, span);
                }
            }
        }
    }
}

fn run(case: &Value, kind: Kind, tolerance: f64, chunk: i64, span: Span) {
    let (inputs, expected) = (&case["inputs"], &case["expected"]);
    let temperature = case["params"]["temperature"].as_f64().unwrap();
    let rows: Vec<f64> = inputs["logits"].as_array().unwrap().iter().flat_map(numbers).collect();
    let ids: Vec<i64> = numbers(&inputs["ids"]).iter().map(|&id| id as i64).collect();
    let tokens = ids.len() as i64;
    let logits_NV = Tensor::from_slice(&rows).view([tokens, -1]).to_kind(kind);
    let vocabulary = logits_NV.size()[1];
    // With the identity as the projection the hidden states are the logits.
    let head = Head::new(&Tensor::eye(vocabulary, (kind, Device::Cpu))).with_chunk(chunk);
    let ids_N = Tensor::from_slice(&ids);
    let targets = Targets { ids_N: &ids_N, temperature, kept: None };

    let stats = head.evaluate(&logits_NV, &targets);
    close(&stats.logprobs_N, &numbers(&expected["logprobs"]), tolerance);
    close(&stats.entropies_N, &numbers(&expected["entropies"]), tolerance);

    let weights_N = Tensor::from_slice(&numbers(&inputs["weights"]));
    let mut weight_gradient = Tensor::zeros([vocabulary, vocabulary], (kind, Device::Cpu));
    let gradient = head.differentiate(&logits_NV, &targets, span, &mut weight_gradient, &mut |run, _| {
        Slopes::from(weights_N.shallow_clone()).slice(&run)
    });
    let slopes: Vec<f64> =
        expected["grad_logits_of_weighted_sum"].as_array().unwrap().iter().flat_map(numbers).collect();
    close(&gradient, &slopes, tolerance);
    // The weight's gradient is the logits' gradient, transposed, times the hidden states.
    let product = Tensor::from_slice(&slopes).view([tokens, -1]).tr().matmul(&logits_NV.to_kind(Kind::Double));
    close(&weight_gradient, &Vec::<f64>::try_from(product.reshape([-1])).unwrap(), 10.0 * tolerance);
}
