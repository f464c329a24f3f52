//! The objective against TRL's and verl's own losses, in float64.

use learner::{
    loss::{
        Importance, LossGradient, LossMetrics, Objective, Rows, Tokens,
        reduction::{Normaliser, RowWeights, update_weights},
    },
    step::Mean,
};
use serde_json::{Value, json};
use shared::{
    config::{LossType, TrainConfig},
    metrics::{self, MetricRecord},
};
use tch::{Device, Kind, Tensor};

use crate::support::figures::{assert_close, lengths, matrix, number, optional, rows};

const TOLERANCE: f64 = 1e-9;
/// Metrics were averaged in float32.
const METRIC_TOLERANCE: f64 = 1e-6;

/// The parameters of TRL's cases.
pub const TRL_PARAMS: [&str; 19] = [
    "loss_type",
    "importance_sampling_level",
    "epsilon_low",
    "epsilon_high",
    "delta",
    "beta",
    "use_bias_correction_kl",
    "sapo_temperature_pos",
    "sapo_temperature_neg",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
    "steps_per_generation",
    "gradient_accumulation_steps",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "use_importance_ratio",
    "entropy_coef",
];

/// The tokens of a case, flat and without padding.
struct Case<'a> {
    name: &'a str,
    mask: &'a Value,
    lengths: Vec<usize>,
    logprobs_N: Tensor,
    entropies_N: Tensor,
    tokens: Tokens,
}

impl<'a> Case<'a> {
    fn new(case: &'a Value, importance: Option<Importance>, weights: &RowWeights) -> Self {
        let inputs = &case["inputs"];
        let mask = &inputs["mask"];
        let lengths = lengths(mask);
        let flat = |value: &Value| Tensor::from_slice(&rows(value, mask).concat());
        let given = |key: &str| inputs.get(key).filter(|value| !value.is_null()).map(flat);
        let logprobs_N = flat(&inputs["logps"]);
        Self {
            name: case["name"].as_str().unwrap(),
            mask,
            entropies_N: given("entropies").unwrap_or_else(|| logprobs_N.zeros_like()),
            tokens: Tokens {
                rows: Rows::new(&lengths, Device::Cpu),
                old_logprobs_N: given("old_logps"),
                sampling_logprobs_N: None,
                ref_logprobs_N: given("ref_logps"),
                advantages_N: flat(&inputs["advantages"]),
                importance,
                // Those that were drawn have the largest ones.
                lots_N: given("dropped").map(|dropped_N| dropped_N * 0.5 + 0.25),
                weights_N: flat(&json!(weights.losses)),
                entropy_weights_N: flat(&json!(weights.entropies)),
            },
            logprobs_N,
            lengths,
        }
    }

    fn differentiate(&self, objective: &Objective) -> LossGradient {
        objective.differentiate(&self.logprobs_N, &self.entropies_N, &self.tokens).unwrap()
    }

    fn compare(&self, what: &str, found: &Tensor, expected: &Value) {
        let found = Vec::<f64>::try_from(found.to_kind(Kind::Double)).unwrap();
        assert_close(&format!("{}: {what}", self.name), &found, &rows(expected, self.mask).concat(), TOLERANCE);
    }

    /// The metrics that training would write about this one batch.
    fn metrics(&self, objective: &Objective, found: &LossGradient) -> MetricRecord {
        let (mut metrics, mut record) = (LossMetrics::default(), MetricRecord::default());
        for (metric, values_N) in &found.metrics {
            let values = Vec::<f64>::try_from(values_N.to_kind(Kind::Double)).unwrap();
            let mut values = values.as_slice();
            for &length in &self.lengths {
                let (own, rest) = values.split_at(length);
                metrics.add(*metric, own, objective.per_sequence(*metric));
                values = rest;
            }
        }
        metrics.record(&mut record);
        record
    }
}

fn importance(inputs: &Value, key: &str, mask: &Value) -> Option<Importance> {
    let value = inputs.get(key).filter(|value| !value.is_null())?;
    let width = |value: &Value| value[0].as_array().map(Vec::len);
    Some(Importance {
        weights_N: Tensor::from_slice(&rows(value, mask).concat()),
        per_sequence: width(value) == Some(1) && width(mask) != Some(1),
    })
}

/// VESPO's sum of logs in TRL includes the padding, whose ratios are 1 in training but not in the cases. The result is
/// the product of the padding's ratios at each row's first token, and 1 at the others.
fn padding(ratios: &Value, mask: &Value) -> Tensor {
    let of_row = |(ratios, mask): (Vec<f64>, Vec<f64>)| {
        let product: f64 = ratios.iter().zip(&mask).skip(1).filter(|(_, m)| **m == 0.0).map(|(r, _)| r).product();
        let tokens = mask.iter().filter(|&&m| m != 0.0).count();
        std::iter::once(product).chain(std::iter::repeat(1.0)).take(tokens).collect::<Vec<f64>>()
    };
    let rows: Vec<Vec<f64>> = matrix(ratios).into_iter().zip(matrix(mask)).map(of_row).collect();
    Tensor::from_slice(&rows.concat())
}

fn trl_config(params: &Value, inputs: &Value) -> TrainConfig {
    let float = |key: &str| number(&params[key]);
    TrainConfig {
        loss_type: serde_json::from_value(params["loss_type"].clone()).unwrap(),
        importance_sampling_level: serde_json::from_value(params["importance_sampling_level"].clone()).unwrap(),
        epsilon: float("epsilon_low"),
        epsilon_high: Some(float("epsilon_high")),
        delta: optional(&params["delta"]),
        beta: float("beta"),
        use_bias_correction_kl: params["use_bias_correction_kl"].as_bool(),
        sapo_temperature_pos: float("sapo_temperature_pos"),
        sapo_temperature_neg: float("sapo_temperature_neg"),
        vespo_k_pos: float("vespo_k_pos"),
        vespo_lambda_pos: float("vespo_lambda_pos"),
        vespo_k_neg: float("vespo_k_neg"),
        vespo_lambda_neg: float("vespo_lambda_neg"),
        top_entropy_quantile: float("top_entropy_quantile"),
        off_policy_mask_threshold: optional(&params["off_policy_mask_threshold"]),
        entropy_coef: float("entropy_coef"),
        max_completion_length: inputs["max_completion_length"].as_u64().unwrap() as u32,
        ..TrainConfig::default()
    }
}

/// A case of TRL's loss, whose mask may have holes.
pub fn trl_case(case: &Value) {
    let (params, inputs, expected) = (&case["params"], &case["inputs"], &case["expected"]);
    let config = trl_config(params, inputs);
    let accumulation = number(&params["gradient_accumulation_steps"]);
    let normaliser = Normaliser {
        accumulation,
        share: accumulation / number(&params["steps_per_generation"]),
        generation_tokens: number(&inputs["num_items_in_batch"]),
        max_completion_length: number(&inputs["max_completion_length"]),
    };
    let lengths = lengths(&inputs["mask"]);
    let weights = update_weights(&config, &std::iter::once(lengths).collect(), &normaliser);
    let mut importance = importance(inputs, "importance_ratio", &inputs["mask"]);
    if let Some(importance) = importance.as_mut().filter(|_| config.loss_type == LossType::Vespo) {
        importance.weights_N *= padding(&inputs["importance_ratio"], &inputs["mask"]);
    }
    assert_eq!(Some(importance.is_some()), params["use_importance_ratio"].as_bool());
    let case = Case::new(case, importance, &weights);
    let objective = Objective::from_config(&config);
    let found = case.differentiate(&objective);
    let name = case.name;
    assert_close(&format!("{name}: loss"), &[found.value], &[number(&expected["loss"])], TOLERANCE);
    case.compare("grad_logps", &found.gradients.logprobs_N, &expected["grad_logps"]);

    let parts = objective.per_token(&case.logprobs_N, &case.entropies_N, &case.tokens);
    case.compare("per_token_loss", &parts.loss_N, &expected["per_token_loss"]);
    for (key, metric, masked) in [
        ("ratio", metrics::RATIO, false),
        ("per_token_kl", metrics::KL, false),
        ("phi_seq", metrics::VESPO_PHI_SEQ_MEAN, false),
        ("off_policy_mask", metrics::OFF_POLICY_MASKED_FRAC, true),
        ("entropy_mask", metrics::LOW_ENTROPY_MASKED_FRAC, true),
    ] {
        if let Some(expected) = expected.get(key) {
            let (_, values_N) = found.metrics.iter().find(|(m, _)| m.mean.key == metric.key).unwrap();
            let values_N = values_N.to_kind(Kind::Double);
            case.compare(key, &if masked { 1.0 - values_N } else { values_N }, expected);
        }
    }

    let mut metrics = case.metrics(&objective, &found);
    metrics
        .set(metrics::POLICY_LOSS, found.policy_value * accumulation)
        .set(metrics::ENTROPY_COEF, objective.entropy_coef);
    if inputs.get("entropies").is_some() {
        let mut entropy = Mean::default();
        entropy.extend(&Vec::<f64>::try_from(&case.entropies_N).unwrap());
        metrics.set(metrics::ENTROPY, entropy.get());
    }
    for (key, expected) in expected["metrics"].as_object().unwrap() {
        // Without entropies in its inputs, a case does not say which entropies were averaged.
        if key == "entropy" && inputs.get("entropies").is_none() {
            continue;
        }
        let found = metrics.values().get(key).unwrap_or_else(|| panic!("{name}: there is no metric {key}"));
        assert_close(&format!("{name}: {key}"), &[number(found)], &[number(expected)], METRIC_TOLERANCE);
    }
}

#[test]
fn golden_trl_policy_loss() {
    let inputs = [
        "logps",
        "old_logps",
        "advantages",
        "mask",
        "lengths",
        "num_items_in_batch",
        "max_completion_length",
        "ref_logps?",
        "importance_ratio?",
        "entropies?",
    ];
    let expected = [
        "loss",
        "grad_logps",
        "per_token_loss",
        "metrics",
        "ratio",
        "per_token_kl?",
        "phi_seq?",
        "off_policy_mask?",
        "entropy_mask?",
    ];
    for case in harness::golden::cases("trl_policy_loss.json", "policy_loss", &TRL_PARAMS, &inputs, &expected) {
        trl_case(&case);
    }
}

/// verl's name of a loss is ours, but for two that TRL has as well. verl's sapo is TRL's function with verl's
/// reduction, and with a bound on the log-ratio (±20) that no case comes near.
fn verl_config(params: &Value, width: usize) -> TrainConfig {
    let float = |key: &str| params.get(key).and_then(optional);
    let loss = params["loss"].as_str().unwrap();
    let symmetric = number(&params["clip_ratio"]);
    let fixed = match loss {
        "sapo" => Some("seq-mean-token-mean"),
        "geo_mean" => None,
        _ => params["mode"].as_str(),
    };
    let own = if loss == "cispo" { "verl_cispo" } else { loss };
    let defaults = TrainConfig::default();
    TrainConfig {
        loss_type: serde_json::from_value(json!(own)).unwrap(),
        loss_aggregation: fixed.map(|mode| serde_json::from_value(json!(mode)).unwrap()),
        max_completion_length: width as u32,
        epsilon: float("clip_ratio_low").unwrap_or(symmetric),
        epsilon_high: Some(float("clip_ratio_high").unwrap_or(symmetric)),
        clip_ratio_c: float("clip_ratio_c").unwrap_or(defaults.clip_ratio_c),
        clip_cov_ratio: float("clip_cov_ratio").unwrap_or(defaults.clip_cov_ratio),
        clip_cov_lb: float("clip_cov_lb").unwrap_or(defaults.clip_cov_lb),
        clip_cov_ub: float("clip_cov_ub").unwrap_or(defaults.clip_cov_ub),
        kl_cov_ratio: float("kl_cov_ratio").unwrap_or(defaults.kl_cov_ratio),
        ppo_kl_coef: float("ppo_kl_coef").unwrap_or(defaults.ppo_kl_coef),
        dro_beta: float("dro_beta"),
        sapo_temperature_pos: float("tau_pos").unwrap_or(defaults.sapo_temperature_pos),
        sapo_temperature_neg: float("tau_neg").unwrap_or(defaults.sapo_temperature_neg),
        ..defaults
    }
}

#[test]
fn golden_verl_policy_loss() {
    let params =
        ["loss", "mode", "tau_pos?", "tau_neg?", "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c?"];
    let inputs = ["logps", "old_logps", "advantages", "mask", "lengths", "rollout_is_weights"];
    let expected = ["loss", "grad_logps", "metrics"];
    let kind = "verl_policy_loss";
    for case in harness::golden::cases("verl_policy_loss.json", kind, &params, &inputs, &expected) {
        verl_case(&case);
    }
}

/// Without the losses of verl's bypass mode, and without those whose batch lies on several processes.
#[test]
fn golden_verl_policy_loss_2026() {
    let params = [
        "loss",
        "mode",
        "clip_ratio",
        "clip_ratio_low?",
        "clip_ratio_high?",
        "clip_ratio_c?",
        "clip_cov_ratio?",
        "clip_cov_lb?",
        "clip_cov_ub?",
        "kl_cov_ratio?",
        "ppo_kl_coef?",
        "dro_beta?",
        "rollout_correction?",
        "batch_num_tokens?",
        "dp_size?",
    ];
    let inputs = ["logps", "old_logps", "advantages", "mask", "lengths", "rollout_is_weights", "dropped?"];
    let expected =
        ["loss", "grad_logps", "metrics", "eligible?", "drop_count?", "selected?", "effective_mask?", "is_weights?"];
    let (file, kind) = ("verl_policy_loss_2026.json", "verl_policy_loss_2026");
    let cases = harness::golden::cases(file, kind, &params, &inputs, &expected);
    let is_here = |case: &&Value| {
        case["params"].get("rollout_correction").is_none() && case["params"].get("batch_num_tokens").is_none()
    };
    let here: Vec<&Value> = cases.iter().filter(is_here).collect();
    assert_eq!(here.len(), 36);
    here.into_iter().for_each(verl_case);
}

fn verl_case(case: &Value) {
    let (params, inputs, expected) = (&case["params"], &case["inputs"], &case["expected"]);
    let mask = &inputs["mask"];
    let width = mask[0].as_array().unwrap().len();
    let config = verl_config(params, width);
    let lengths = lengths(mask);
    let normaliser = Normaliser {
        accumulation: 1.0,
        share: 1.0,
        generation_tokens: lengths.iter().sum::<usize>() as f64,
        max_completion_length: width as f64,
    };
    let weights = update_weights(&config, &std::iter::once(lengths).collect(), &normaliser);
    let case = Case::new(case, importance(inputs, "rollout_is_weights", mask), &weights);
    let objective = Objective::from_config(&config);
    let found = case.differentiate(&objective);
    let name = case.name;
    assert_close(&format!("{name}: loss"), &[found.value], &[number(&expected["loss"])], TOLERANCE);
    case.compare("grad_logps", &found.gradients.logprobs_N, &expected["grad_logps"]);
    let metrics = case.metrics(&objective, &found);
    for (key, expected) in expected["metrics"].as_object().unwrap() {
        // TRL's name, where its definition is the same, goes before verl's.
        let trl = metrics.values().get("policy/clipfrac_avg").filter(|_| key == "actor/pg_clipfrac");
        if key == "actor/ppo_kl" && params["loss"] == "kl_cov" {
            // verl's mean of absolute log-ratios under the name of another mean.
            continue;
        }
        // verl reports 0 for a kind of clipping that a method does not have.
        let found = trl.or(metrics.values().get(key)).map_or(0.0, number);
        assert!(key.starts_with("actor/"), "{name}: there is no metric {key}");
        assert_close(&format!("{name}: {key}"), &[found], &[number(expected)], METRIC_TOLERANCE);
    }
}
