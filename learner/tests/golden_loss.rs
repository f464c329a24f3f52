//! The objective against TRL's own loss (`trl_policy_loss.json`), in float64.

#![allow(non_snake_case)]

use learner::loss::{
    Objective, Tokens,
    reduction::{Normaliser, row_weights},
};
use serde_json::Value;
use shared::config::LossType;
use tch::{Kind, Tensor};

/// The cases of the project's own set that the learner has the method for: token-level ratios with the four reductions,
/// asymmetric clip, KL with and without bias correction, importance weights, accumulation, per-token advantages, and the
/// edge cases.
const CASES: [&str; 33] = [
    "grpo_basic",
    "grpo_asym_clip_kl",
    "grpo_on_policy_old_none",
    "grpo_grad_accum",
    "grpo_importance_ratio",
    "bnpo_basic",
    "bnpo_asym_clip_kl",
    "bnpo_on_policy_old_none",
    "bnpo_grad_accum",
    "bnpo_importance_ratio",
    "dr_grpo_basic",
    "dr_grpo_asym_clip_kl",
    "dr_grpo_on_policy_old_none",
    "dr_grpo_grad_accum",
    "dr_grpo_importance_ratio",
    "dapo_basic",
    "dapo_asym_clip_kl",
    "dapo_on_policy_old_none",
    "dapo_grad_accum",
    "dapo_importance_ratio",
    "bias_corrected_kl",
    "sequence_importance_ratio",
    "grpo_per_token_advantages",
    "dapo_per_token_advantages",
    "grpo_edge_empty_row",
    "bnpo_edge_empty_row",
    "dr_grpo_edge_empty_row",
    "dapo_edge_empty_row",
    "edge_all_masked",
    "edge_all_masked_dapo",
    "edge_single_token",
    "edge_zero_advantages_kl_only",
    "edge_extreme_ratios",
];

/// A `[B][T]` matrix, or a `[B]` or `[B][1]` column spread over the row, at the places where the mask is 1.
fn masked(value: &Value, mask: &Value) -> Vec<f64> {
    let mut list = Vec::new();
    for (b, row) in mask.as_array().unwrap().iter().enumerate() {
        for (t, m) in row.as_array().unwrap().iter().enumerate() {
            if m.as_f64() != Some(0.0) {
                let own = &value[b];
                let entry = match own.as_array() {
                    Some(columns) => &columns[t.min(columns.len() - 1)],
                    None => own,
                };
                list.push(entry.as_f64().unwrap());
            }
        }
    }
    list
}

fn assert_close(name: &str, what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}: {what}");
    // Ratios of e^±30 occur: errors are measured against the largest entry.
    let scale = expected.iter().fold(1.0f64, |m, e| m.max(e.abs()));
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= 1e-9 * scale, "{name}: {what}[{i}] is {f}, expected {e}");
    }
}

fn run(case: &Value) {
    let (name, params, inputs, expected) =
        (case["name"].as_str().unwrap(), &case["params"], &case["inputs"], &case["expected"]);
    let number = |key: &str| params[key].as_f64().unwrap();
    let mask = &inputs["mask"];
    let tensor = |value: &Value| (!value.is_null()).then(|| Tensor::from_slice(&masked(value, mask)));
    let loss_type: LossType = serde_json::from_value(params["loss_type"].clone()).unwrap();
    let normaliser = Normaliser {
        accumulation: number("gradient_accumulation_steps"),
        share: number("gradient_accumulation_steps") / number("steps_per_generation"),
        generation_tokens: inputs["num_items_in_batch"].as_f64().unwrap(),
        max_completion_length: inputs["max_completion_length"].as_f64().unwrap(),
    };
    let lengths: Vec<usize> = mask
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row.as_array().unwrap().iter().map(|m| m.as_u64().unwrap() as usize).sum())
        .collect();
    let weights = row_weights(loss_type, &lengths, &normaliser);
    let objective = Objective {
        epsilon_low: number("epsilon_low"),
        epsilon_high: number("epsilon_high"),
        beta: number("beta"),
        bias_corrected_kl: params["use_bias_correction_kl"].as_bool().unwrap(),
    };
    let tokens = Tokens {
        old_logprobs_N: tensor(&inputs["old_logps"]),
        ref_logprobs_N: tensor(inputs.get("ref_logps").unwrap_or(&Value::Null)),
        advantages_N: tensor(&inputs["advantages"]).unwrap(),
        importance_N: params["use_importance_ratio"]
            .as_bool()
            .unwrap()
            .then(|| tensor(&inputs["importance_ratio"]).unwrap()),
        weights_N: tensor(&serde_json::json!(weights)).unwrap(),
    };
    let logprobs = tensor(&inputs["logps"]).unwrap();
    let found = objective.differentiate(&logprobs, &tokens).unwrap();
    assert_close(name, "loss", &[found.value], &[expected["loss"].as_f64().unwrap()]);
    let slopes = Vec::<f64>::try_from(&found.slope_N).unwrap();
    assert_close(name, "grad_logps", &slopes, &masked(&expected["grad_logps"], mask));

    let parts = objective.per_token(&logprobs, &tokens);
    let list = |x: &Tensor| Vec::<f64>::try_from(x.to_kind(Kind::Double)).unwrap();
    assert_close(name, "per_token_loss", &list(&parts.loss_N), &masked(&expected["per_token_loss"], mask));
    assert_close(name, "ratio", &list(&parts.ratio_N), &masked(&expected["ratio"], mask));
    if let Some(kl) = expected.get("per_token_kl") {
        assert_close(name, "per_token_kl", &list(&parts.kl_N.unwrap()), &masked(kl, mask));
    }
}

/// Whether the learner has the method that a case asks for.
fn supported(params: &Value) -> bool {
    ["grpo", "bnpo", "dr_grpo", "dapo"].contains(&params["loss_type"].as_str().unwrap())
        && params["importance_sampling_level"] == "token"
        && params["delta"].is_null()
        && params["off_policy_mask_threshold"].is_null()
        && params["top_entropy_quantile"].as_f64() == Some(1.0)
        && params["entropy_coef"].as_f64() == Some(0.0)
}

#[test]
fn golden_trl_policy_loss() {
    let golden = tests::golden("trl_policy_loss.json");
    let cases: Vec<&Value> =
        golden["cases"].as_array().unwrap().iter().filter(|case| supported(&case["params"])).collect();
    assert!(!cases.is_empty());
    if std::env::var_os("TANDEM_GOLDEN_DIR").is_none() {
        let names: Vec<&str> = cases.iter().map(|case| case["name"].as_str().unwrap()).collect();
        assert!(CASES.iter().all(|name| names.contains(name)) && names.len() == CASES.len(), "{names:?}");
    }
    for case in cases {
        run(case);
    }
}
