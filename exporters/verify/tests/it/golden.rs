//! The plain forward pass against transformers' figures (`model_numerics.json`).

use exporters_verify::{Reader, huggingface};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// Largest difference of a logit or log-prob: both sides are fp32, and add in other orders.
const BOUND: f64 = 1e-4;

#[test]
fn golden_logits_of_every_family() {
    for case in harness::golden_numerics() {
        let folder = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
        let mut model = huggingface::open(&folder, None).unwrap();
        let mut compared = 0;
        for row in case["expected"]["forward"].as_array().unwrap() {
            let logits = model.logits(&ids(&row["ids"])).unwrap();
            // Long inputs come with the last position's logits alone.
            let last = numbers(&row["logits_last"]);
            for (found, expected) in logits.row(logits.nrows() - 1).iter().zip(&last) {
                assert!((f64::from(*found) - expected).abs() < BOUND, "{}: {found}, {expected}", folder.display());
                compared += 1;
            }
            let positions = row["logits_positions"].as_array().into_iter().flatten();
            for (position, expected) in positions.zip(row["logits"].as_array().into_iter().flatten()) {
                let position = position.as_u64().unwrap() as usize;
                for (found, expected) in logits.row(position).iter().zip(numbers(expected)) {
                    assert!((f64::from(*found) - expected).abs() < BOUND, "{}: {found}, {expected}", folder.display());
                    compared += 1;
                }
            }
        }
        assert!(compared >= 512, "{}: {compared} logits", folder.display());
    }
}

#[test]
fn golden_logprobs_of_completions() {
    for case in harness::golden_numerics() {
        let folder = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
        let mut model = huggingface::open(&folder, None).unwrap();
        let inputs = &case["inputs"];
        for (row, expected) in case["expected"]["completion_logps"].as_array().unwrap().iter().enumerate() {
            let (prompt, completion) = (ids(&inputs["prompt_ids"][row]), ids(&inputs["completion_ids"][row]));
            let logits = model.logits(&[prompt.as_slice(), &completion].concat()).unwrap();
            for (place, (token, expected)) in completion.iter().zip(numbers(expected)).enumerate() {
                let logits = logits.row(prompt.len() + place - 1).mapv(f64::from);
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
                let found = logits[*token as usize] - largest - sum.ln();
                assert!((found - expected).abs() < BOUND, "{}: {found}, {expected}", folder.display());
            }
        }
    }
}
