//! The plain forward pass against transformers' figures (`model_numerics.json`).

use exporters_verify::{Model, Reader, gguf, huggingface};
use serde_json::Value;

use crate::support::{GgufType, TestModel, same};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|id| id as u32).collect()
}

/// Largest difference of a logit or log-prob: both sides are fp32, and add in other orders.
const BOUND: f64 = 1e-4;

/// Compares logits of a model with those of a case, and says how many there were.
fn compare_logits(model: &mut Model, case: &Value, what: &str) -> usize {
    let mut compared = 0;
    for row in case["expected"]["forward"].as_array().unwrap() {
        let logits = model.logits(&ids(&row["ids"])).unwrap();
        // Long inputs come with the last position's logits alone.
        let last = numbers(&row["logits_last"]);
        for (found, expected) in logits.row(logits.nrows() - 1).iter().zip(&last) {
            assert!((f64::from(*found) - expected).abs() < BOUND, "{what}: {found}, {expected}");
            compared += 1;
        }
        let positions = row["logits_positions"].as_array().into_iter().flatten();
        for (position, expected) in positions.zip(row["logits"].as_array().into_iter().flatten()) {
            let position = position.as_u64().unwrap() as usize;
            for (found, expected) in logits.row(position).iter().zip(numbers(expected)) {
                assert!((f64::from(*found) - expected).abs() < BOUND, "{what}: {found}, {expected}");
                compared += 1;
            }
        }
    }
    compared
}

#[test]
fn golden_logits_of_every_family() {
    for case in harness::golden_numerics() {
        let folder = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
        let what = folder.display().to_string();
        let compared = compare_logits(&mut huggingface::open(&folder, None).unwrap(), &case, &what);
        assert!(compared >= 512, "{what}: {compared} logits");
    }
}

/// Older tiny models have windows or layers that llama.cpp has no key for, and llama.cpp does not know LFM3.
#[test]
fn golden_logits_of_the_newer_families_as_gguf() {
    let mut families = 0;
    for case in harness::golden_numerics() {
        let name = case["params"]["model_dir"].as_str().unwrap();
        if !name.contains("models-2026") || name.ends_with("lfm3") {
            continue;
        }
        let model = TestModel::golden(&harness::golden_dir().join(name));
        let mut export = gguf::open(&model.write_gguf(GgufType::F32, same)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let compared = compare_logits(&mut export, &case, name);
        assert!(compared >= 512, "{name}: {compared} logits");
        model.verify(export, Some(1e-4)).unwrap_or_else(|e| panic!("{name}: {e}"));
        families += 1;
    }
    assert!(families > 8 || std::env::var_os("TANDEM_GOLDEN_DIR").is_some(), "{families} families");
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
