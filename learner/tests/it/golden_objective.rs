//! The parts of the objective against golden figures: KL estimators, reductions, importance weights, defaults.

use learner::{
    kl,
    loss::reduction::{Normaliser, update_weights},
    mismatch::Correction,
    ragged::Ragged,
    step::Mismatch,
};
use serde_json::{Value, json};
use shared::{
    config::{ImportanceSamplingMode, TrainConfig},
    metrics::MetricRecord,
};
use tch::{Kind, Tensor};

use crate::support::figures::{assert_close, lengths, matrix, number, numbers, optional, rows};

const TOLERANCE: f64 = 1e-9;

#[test]
fn golden_kl_estimators() {
    let cases = harness::golden::cases(
        "kl_estimators.json",
        "kl_estimator",
        &["estimator"],
        &["logps", "ref_logps", "weights"],
        &["kl", "grad_of_weighted_sum"],
    );
    for case in cases {
        let (inputs, expected) = (&case["inputs"], &case["expected"]);
        let estimator = serde_json::from_value(case["params"]["estimator"].clone()).unwrap();
        let flat = |value: &Value| Tensor::from_slice(&matrix(value).concat());
        let own_N = flat(&inputs["logps"]).set_requires_grad(true);
        // The figures are verl's, whose k3 is bounded.
        let kl_N = kl::estimate(estimator, &own_N, &flat(&inputs["ref_logps"]), true);
        let sum = (&kl_N * flat(&inputs["weights"])).sum(None::<Kind>);
        let gradient_N = Tensor::run_backward(&[sum], &[&own_N], false, false).remove(0);
        for (what, found_N) in [("kl", &kl_N.detach()), ("grad_of_weighted_sum", &gradient_N)] {
            let found = Vec::<f64>::try_from(found_N).unwrap();
            let name = format!("{}: {what}", case["name"]);
            assert_close(&name, &found, &matrix(&expected[what]).concat(), TOLERANCE);
        }
    }
}

#[test]
fn golden_loss_aggregation() {
    let cases = harness::golden::cases(
        "loss_aggregation.json",
        "aggregation",
        &["mode", "batch_num_tokens?", "dp_size?", "global_batch_size?", "loss_scale_factor?"],
        &["loss", "mask", "lengths"],
        &["value", "grad"],
    );
    for case in cases {
        let (params, inputs, expected) = (&case["params"], &case["inputs"], &case["expected"]);
        let given = |key: &str| params.get(key).and_then(optional);
        let width = inputs["mask"][0].as_array().unwrap().len() as f64;
        let config = TrainConfig {
            loss_aggregation: Some(serde_json::from_value(params["mode"].clone()).unwrap()),
            loss_scale_factor: given("loss_scale_factor"),
            ..TrainConfig::default()
        };
        let lengths = lengths(&inputs["mask"]);
        // Tokens and sequences that verl counts beside those of the case belong to other workers. Here they are further
        // rows of the update.
        let mut all = lengths.clone();
        let (tokens, sequences) = (lengths.iter().sum::<usize>(), lengths.iter().filter(|&&length| length > 0).count());
        let more = |all: f64, own: usize| (all as usize).checked_sub(own).expect("a worker is one of all");
        all.extend(given("batch_num_tokens").map(|all| more(all, tokens)));
        all.extend(given("global_batch_size").map_or(Vec::new(), |all| vec![1; more(all, sequences)]));
        let tokens = all.iter().sum::<usize>() as f64;
        let normaliser =
            Normaliser { accumulation: 1.0, share: 1.0, generation_tokens: tokens, max_completion_length: width };
        // verl multiplies the loss of each worker by the number of workers, and takes the mean of their gradients. The
        // gradients of our ranks are added up.
        let workers = given("dp_size").unwrap_or(1.0);
        let weights: Vec<f64> = update_weights(&config, &std::iter::once(all).collect(), &normaliser)
            .losses
            .into_iter()
            .zip(&lengths)
            .flat_map(|(weight, &length)| vec![weight * workers; length])
            .collect();
        let losses = rows(&inputs["loss"], &inputs["mask"]).concat();
        let value: f64 = losses.iter().zip(&weights).map(|(loss, weight)| loss * weight).sum();
        let name = case["name"].as_str().unwrap();
        assert_close(name, &[value], &[number(&expected["value"])], TOLERANCE);
        assert_close(name, &weights, &rows(&expected["grad"], &inputs["mask"]).concat(), TOLERANCE);
    }
}

/// The first `length` entries of each row of two matrices, subtracted.
fn log_ratios(old: &Value, sampling: &Value, lengths: &[f64]) -> Ragged<f64> {
    let pairs = matrix(old).into_iter().zip(matrix(sampling)).zip(lengths);
    let of_row = |((old, sampled), &n): ((Vec<f64>, Vec<f64>), &f64)| -> Vec<f64> {
        old.iter().zip(sampled).map(|(o, s)| o - s).take(n as usize).collect()
    };
    pairs.map(of_row).collect()
}

#[test]
fn golden_trl_importance_ratio() {
    let cases = harness::golden::cases(
        "trl_importance_ratio.json",
        "rollout_importance_ratio",
        &["mode", "clip_max", "clip_min"],
        &["old_logps", "sampling_logps", "lengths"],
        &["ratio", "metrics"],
    );
    for case in cases {
        let (params, inputs, expected) = (&case["params"], &case["inputs"], &case["expected"]);
        let config = TrainConfig {
            importance_sampling_mode: serde_json::from_value(params["mode"].clone()).unwrap(),
            importance_sampling_clip_max: optional(&params["clip_max"]).unwrap_or(f64::INFINITY),
            importance_sampling_clip_min: optional(&params["clip_min"]),
            ..TrainConfig::default()
        };
        let log_ratios = log_ratios(&inputs["old_logps"], &inputs["sampling_logps"], &numbers(&inputs["lengths"]));
        let weights = Correction::from_config(&config).unwrap().weights(&log_ratios);
        let name = case["name"].as_str().unwrap();
        for (row, found) in weights.rows.rows().enumerate() {
            let expected = numbers(&expected["ratio"][row]);
            assert_close(name, found, &expected[..found.len()], TOLERANCE);
        }
        let (mut mismatch, mut metrics) = (Mismatch::default(), MetricRecord::default());
        log_ratios.rows().for_each(|row| mismatch.add(row));
        mismatch.record(&mut metrics);
        weights.record(&mut metrics);
        for (key, expected) in expected["metrics"].as_object().unwrap() {
            let found = metrics.values().get(key).unwrap_or_else(|| panic!("{name}: there is no metric {key}"));
            assert_close(&format!("{name}: {key}"), &[number(found)], &[number(expected)], 1e-6);
        }
    }
}

#[test]
fn golden_verl_rollout_is() {
    let cases = harness::golden::cases(
        "verl_rollout_is.json",
        "verl_rollout_is",
        &["level", "threshold", "batch_normalize"],
        &["log_ratio", "mask", "lengths"],
        &["weights"],
    );
    for case in cases {
        let (params, inputs) = (&case["params"], &case["inputs"]);
        let mode = match params["level"].as_str().unwrap() {
            "token" => ImportanceSamplingMode::TokenTruncate,
            "sequence" => ImportanceSamplingMode::SequenceTruncate,
            other => panic!("there is no level {other}"),
        };
        let correction = Correction::from_config(&TrainConfig {
            importance_sampling_mode: mode,
            importance_sampling_clip_max: number(&params["threshold"]),
            importance_sampling_batch_normalize: params["batch_normalize"].as_bool().unwrap(),
            ..TrainConfig::default()
        })
        .unwrap();
        let log_ratios: Ragged<f64> = rows(&inputs["log_ratio"], &inputs["mask"]).into_iter().collect();
        let weights = correction.weights(&log_ratios);
        let lengths: Vec<usize> = log_ratios.lengths().collect();
        let found = weights.gather(&(0..lengths.len()).collect::<Vec<_>>(), &lengths);
        let expected = rows(&case["expected"]["weights"], &inputs["mask"]).concat();
        assert_close(case["name"].as_str().unwrap(), &found, &expected, TOLERANCE);
    }
}

/// Our defaults where they are not TRL's, as docs/from-trl.md says.
fn differing_defaults() -> Value {
    json!({
        // Progress lines; the metrics of every step are on disk.
        "logging_steps": 1,
        // On disk, not on the terminal.
        "log_completions": true,
        // -1 there and absent here: as many as the epochs have.
        "max_steps": null,
        // Absent there and empty here: all weights are 1.
        "reward_weights": [],
        // true there, where k3 is the only estimator. Absent here: what the estimator needs, which for k3 is the same
        // except at sequence level.
        "use_bias_correction_kl": null,
        // Slower, and no result depends on them; the table of docs/from-trl.md has both.
        "bf16": false,
        "gradient_checkpointing": false,
        // -1 is all there: none is printed here.
        "num_completions_to_print": 0,
        // "none" there, an empty list here: no tracker is told.
        "report_to": [],
        // Here a checkpoint knows nothing of dropout.
        "lora_dropout": 0.0,
    })
}

/// TRL's defaults (1.16, with transformers 5 and its `ModelConfig`) of options that a run has too and that the golden
/// file does not list.
fn further_defaults() -> Value {
    json!({
        "bf16": true,
        "gradient_checkpointing": true,
        "num_completions_to_print": null,
        "report_to": "none",
        "logging_steps": 10,
        "log_completions": false,
        "lora_dropout": 0.05,
        "lora_r": 16,
        "lora_alpha": 32,
        "use_peft": false,
        "use_rslora": false,
        "seed": 42,
        "save_steps": 500,
        "save_total_limit": null,
        "eval_steps": null,
        "run_name": null,
        "resume_from_checkpoint": null,
        "num_train_epochs": 3.0,
        "generation_batch_size": null,
        "shuffle_dataset": true,
        "chat_template_kwargs": null,
        "lr_scheduler_kwargs": null,
        "use_adaptive_entropy": false,
        "entropy_coef_min": 0.0,
        "entropy_coef_max": 1.0,
        "entropy_coef_delta": 0.005,
        "entropy_target": 0.2,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "model_revision": "main",
    })
}

/// The golden file has TRL's own defaults, and the Trainer's defaults that TRL does not change.
#[test]
fn golden_trl_defaults() {
    let golden = harness::golden("trl_1.16_defaults.json");
    let own = serde_json::to_value(TrainConfig::default()).unwrap();
    let mut golden = golden.as_object().unwrap().clone();
    assert!(!golden.is_empty());
    for (key, value) in further_defaults().as_object().unwrap() {
        golden.entry(key).or_insert_with(|| value.clone());
    }
    let differing = differing_defaults();
    for (key, theirs) in &golden {
        let name = key.replace("vllm_importance_sampling", "importance_sampling");
        let found = own.get(&name).unwrap_or_else(|| panic!("there is no option {name}"));
        let expected = differing.get(&name).unwrap_or(theirs);
        assert!(expected != theirs || !differing.as_object().unwrap().contains_key(&name), "{name} does not differ");
        // Numbers compare as such: a single-precision 0.9 is written in full.
        let equal = match (found.as_f64(), expected.as_f64()) {
            (Some(f), Some(e)) => (f - e).abs() <= 1e-7 * e.abs(),
            _ => found == expected || (found.is_null() && *expected == json!(null)),
        };
        assert!(equal, "{name} is {found}, TRL has {expected}");
    }
}
