//! Advantages and the KL penalty against TRL, verl and DeepSeekMath's formula, through the functions that training
//! uses.

use harness::golden::cases;
use learner::{
    advantage::{
        CreditOptions, KlController, RewardSummary, Sample, credit,
        gae::{gae, whiten},
        process::process,
    },
    kl,
    ragged::Ragged,
};
use serde_json::{Value, json};
use shared::{
    RewardOutcome,
    config::{
        self, AdvantageEstimator, KlEstimator, LoneAdvantage, MultiObjectiveAggregation, ScaleRewards, TrainConfig,
    },
};

use crate::support::figures::{matrix, number, numbers};

/// Figures that the peers averaged in float32.
const METRIC_TOLERANCE: f64 = 1e-6;
const TOLERANCE: f64 = 1e-9;

fn sizes(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

#[track_caller]
fn assert_close(name: &Value, what: &str, found: f64, expected: f64, tolerance: f64) {
    let same = (found.is_nan() && expected.is_nan()) || (found - expected).abs() <= tolerance * (1.0 + expected.abs());
    assert!(same, "{name}: {what} is {found}, expected {expected}");
}

#[track_caller]
fn assert_list(name: &Value, what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}: {what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_close(name, &format!("{what}[{i}]"), *found, *expected, TOLERANCE);
    }
}

/// Compares ragged rows with a padded matrix that is 0 beyond them.
#[track_caller]
fn assert_padded(name: &Value, what: &str, found: &Ragged<f64>, expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{name}: {what}");
    for (found, expected) in found.rows().zip(expected) {
        let mut padded = found.to_vec();
        padded.resize(expected.len(), 0.0);
        assert_list(name, what, &padded, expected);
    }
}

/// The tokens of a padded row that its mask keeps.
fn kept(values: &[f64], mask: &[f64]) -> Vec<f64> {
    values.iter().zip(mask).filter(|(_, mask)| **mask > 0.0).map(|(value, _)| *value).collect()
}

/// The inverse of [`kept`]: 0 where nothing is kept.
fn spread(values: &[f64], mask: &[f64]) -> Vec<f64> {
    let mut values = values.iter();
    mask.iter().map(|&mask| if mask > 0.0 { *values.next().unwrap() } else { 0.0 }).collect()
}

#[test]
fn golden_advantages_outcome() {
    let params = ["num_generations", "scale_rewards", "aggregation", "reward_weights", "eps"];
    let expected = ["advantages", "std_per_sample", "is_std_zero", "reward_mean", "reward_std", "frac_reward_zero_std"];
    for case in cases("advantages_outcome.json", "advantages_outcome", &params, &["rewards_per_func"], &expected) {
        let (name, params, expected) = (&case["name"], &case["params"], &case["expected"]);
        let aggregation: MultiObjectiveAggregation = serde_json::from_value(params["aggregation"].clone()).unwrap();
        let scale: ScaleRewards = serde_json::from_value(params["scale_rewards"].clone()).unwrap();
        let options = CreditOptions::from_config(&TrainConfig {
            scale_rewards: scale,
            multi_objective_aggregation: aggregation,
            advantage_epsilon: Some(number(&params["eps"])),
            ..TrainConfig::default()
        });
        assert_eq!(CreditOptions::from_config(&TrainConfig::default()).eps, 1e-4, "TRL's is the default");
        let outcomes: Vec<Vec<RewardOutcome>> = matrix(&case["inputs"]["rewards_per_func"])
            .into_iter()
            .map(|row| {
                let outcome = |r: f64| if r.is_nan() { RewardOutcome::NotApplicable } else { RewardOutcome::Score(r) };
                row.into_iter().map(outcome).collect()
            })
            .collect();
        let size = params["num_generations"].as_u64().unwrap() as usize;
        let samples: Vec<Sample<'_>> = outcomes
            .iter()
            .enumerate()
            .map(|(i, outcomes)| Sample {
                group: i / size,
                tokens: 1 + i % 3,
                paths: Vec::new(),
                valid: true,
                trained: true,
                outcomes: outcomes.into(),
                weights: numbers(&params["reward_weights"]),
                turns: Vec::new(),
            })
            .collect();
        let found = credit(&options, &samples, None, None);
        for (i, expected) in numbers(&expected["advantages"]).into_iter().enumerate() {
            assert_eq!(found.advantages[i].len(), samples[i].tokens);
            for &token in &found.advantages[i] {
                assert_close(name, "advantage", token, expected, TOLERANCE);
            }
        }
        let summary = RewardSummary::new(&options, &samples);
        assert_list(name, "std", &summary.stds, &numbers(&expected["std_per_sample"]));
        assert_eq!(json!(summary.zero_std), expected["is_std_zero"], "{name}");
        let share = number(&expected["frac_reward_zero_std"]);
        assert_close(name, "share of zero std", summary.frac_zero_std(), share, METRIC_TOLERANCE);
        assert_close(name, "reward_mean", summary.reward_mean, number(&expected["reward_mean"]), TOLERANCE);
        assert_close(name, "reward_std", summary.reward_std, number(&expected["reward_std"]), TOLERANCE);
    }
}

#[test]
fn golden_advantages_process() {
    let expected = ["normalised", "advantages", "mean", "std"];
    for case in
        cases("advantages_process.json", "advantages_process", &["std", "eps"], &["steps", "lengths"], &expected)
    {
        let (name, expected) = (&case["name"], &case["expected"]);
        let CreditOptions { deviation, eps, .. } = CreditOptions::from_config(&TrainConfig {
            advantage_estimator: AdvantageEstimator::Process,
            step_deviation: serde_json::from_value(case["params"]["std"].clone()).unwrap(),
            advantage_epsilon: Some(number(&case["params"]["eps"])),
            ..TrainConfig::default()
        });
        let steps: Vec<Vec<(usize, f64)>> = case["inputs"]["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| matrix(row).iter().map(|step| (step[0] as usize, step[1])).collect())
            .collect();
        let lengths = sizes(&case["inputs"]["lengths"]);
        let found = process(&steps, &lengths, deviation, eps);
        for (found, expected) in found.normalised.rows().zip(matrix(&expected["normalised"])) {
            assert_list(name, "normalised", found, &expected);
        }
        assert_padded(name, "advantages", &found.advantages, &matrix(&expected["advantages"]));
        assert_close(name, "mean", found.mean, number(&expected["mean"]), TOLERANCE);
        assert_close(name, "std", found.std, number(&expected["std"]), TOLERANCE);
    }
}

#[test]
fn golden_advantages_verl() {
    let inputs = ["scores", "group", "mask", "lengths"];
    let params = ["estimator", "eps", "gamma"];
    for case in cases("advantages_verl.json", "advantages_verl", &params, &inputs, &["advantages", "returns"]) {
        let (name, params, inputs) = (&case["name"], &case["params"], &case["inputs"]);
        // verl calls the form without division an estimator of its own.
        let (estimator, scale) = match params["estimator"].as_str().unwrap() {
            "grpo_nostd" => (AdvantageEstimator::Grpo, ScaleRewards::None),
            known => (serde_json::from_value(known.into()).unwrap(), ScaleRewards::Group),
        };
        let eps = number(&params["eps"]);
        let config = TrainConfig {
            advantage_estimator: estimator,
            scale_rewards: scale,
            lone_advantage: LoneAdvantage::Reward,
            advantage_epsilon: Some(eps),
            gamma: number(&params["gamma"]),
            ..TrainConfig::default()
        };
        let options = CreditOptions::from_config(&config);
        let (mask, lengths) = (matrix(&inputs["mask"]), sizes(&inputs["lengths"]));
        for (mask, &length) in mask.iter().zip(&lengths) {
            let ones = mask.iter().take_while(|&&m| m == 1.0).count();
            assert_eq!((ones, mask.iter().sum::<f64>()), (length, length as f64), "{name}: a mask is a prefix");
        }
        let outcomes: Vec<[RewardOutcome; 1]> =
            numbers(&inputs["scores"]).into_iter().map(|score| [RewardOutcome::Score(score)]).collect();
        let groups = sizes(&inputs["group"]);
        let samples: Vec<Sample<'_>> = (0..outcomes.len())
            .map(|i| Sample {
                group: groups[i],
                tokens: lengths[i],
                paths: Vec::new(),
                valid: true,
                trained: true,
                outcomes: (&outcomes[i]).into(),
                weights: vec![1.0],
                turns: Vec::new(),
            })
            .collect();
        let found = credit(&options, &samples, None, None);
        assert_padded(name, "advantages", &found.advantages, &matrix(&case["expected"]["advantages"]));
        assert_padded(name, "returns", &found.returns, &matrix(&case["expected"]["returns"]));
    }
}

/// The estimators of verl and prime-rl that are here. verl's `rloo_vectorized` differs from `rloo` in the advantage of
/// a lone completion alone, which is 0.
#[test]
fn golden_advantages_verl_2026() {
    let params = [
        "estimator",
        "eps?",
        "norm_adv_by_std_in_grpo?",
        "handle_zero_tail?",
        "reward_weights?",
        "decay?",
        "num_output_tokens_weight?",
        "num_input_tokens_weight?",
        "num_turns_weight?",
    ];
    let inputs = [
        "token_rewards?",
        "mask",
        "lengths",
        "group?",
        "agents?",
        "reward_baselines?",
        "rollout_is_weights?",
        "input_tokens?",
        "old_logps?",
        "rewards_per_func?",
        "turns?",
        "sum_pi_squared?",
    ];
    let (file, expected) = ("advantages_verl_2026.json", ["advantages", "returns?", "baselines_after?"]);
    let mut compared = 0;
    for case in cases(file, "advantages_verl_2026", &params, &inputs, &expected) {
        let (name, params, inputs) = (&case["name"], &case["params"], &case["inputs"]);
        let scale = match params.get("norm_adv_by_std_in_grpo") {
            Some(divides) if divides == false => ScaleRewards::None,
            _ => ScaleRewards::Group,
        };
        let estimator = match params["estimator"].as_str().unwrap() {
            "max_rl" => AdvantageEstimator::MaxRl,
            "grpo_vectorized" => AdvantageEstimator::Grpo,
            "rloo_vectorized" => AdvantageEstimator::Rloo,
            _ => continue,
        };
        let config = TrainConfig {
            advantage_estimator: estimator,
            scale_rewards: scale,
            lone_advantage: LoneAdvantage::Reward,
            advantage_epsilon: params.get("eps").map(number).filter(|_| estimator == AdvantageEstimator::Grpo),
            ..TrainConfig::default()
        };
        let (mask, groups) = (matrix(&inputs["mask"]), sizes(&inputs["group"]));
        let rewards = matrix(&inputs["token_rewards"]);
        let total = |(rewards, mask): (&Vec<f64>, &Vec<f64>)| rewards.iter().zip(mask).map(|(r, m)| r * m).sum();
        let totals: Vec<f64> = rewards.iter().zip(&mask).map(total).collect();
        let outcomes: Vec<[RewardOutcome; 1]> = totals.iter().map(|&total| [RewardOutcome::Score(total)]).collect();
        let samples: Vec<Sample<'_>> = (outcomes.iter().zip(&groups).zip(sizes(&inputs["lengths"])))
            .map(|((outcomes, &group), tokens)| Sample {
                group,
                tokens,
                paths: Vec::new(),
                valid: true,
                trained: true,
                outcomes: outcomes.into(),
                weights: vec![1.0],
                turns: Vec::new(),
            })
            .collect();
        let mut expected = matrix(&case["expected"]["advantages"]);
        for (row, expected) in expected.iter_mut().enumerate().filter(|_| estimator == AdvantageEstimator::Rloo) {
            if groups.iter().filter(|group| **group == groups[row]).count() == 1 {
                *expected = mask[row].iter().map(|mask| mask * totals[row]).collect();
            }
        }
        let found = credit(&CreditOptions::from_config(&config), &samples, None, None);
        assert_padded(name, "advantages", &found.advantages, &expected);
        compared += 1;
    }
    assert_eq!(compared, 10);
}

#[test]
fn golden_gae() {
    let inputs = ["token_rewards", "values", "mask", "lengths"];
    let expected = ["returns", "raw_advantages", "whitened_advantages"];
    for case in cases("gae.json", "gae", &["gamma", "lam"], &inputs, &expected) {
        let (name, inputs, expected) = (&case["name"], &case["inputs"], &case["expected"]);
        let (gamma, lam) = (number(&case["params"]["gamma"]), number(&case["params"]["lam"]));
        let (mask, values) = (matrix(&inputs["mask"]), matrix(&inputs["values"]));
        // The recursion skips tokens that the mask leaves out: it runs over the kept ones.
        let raw: Ragged<f64> = matrix(&inputs["token_rewards"])
            .iter()
            .zip(values.iter().zip(&mask))
            .map(|(rewards, (values, mask))| gae(&kept(rewards, mask), &kept(values, mask), gamma, lam))
            .collect();
        let mut whitened = raw.clone();
        whiten(&mut whitened, &vec![true; raw.len()]);
        for (row, mask) in mask.iter().enumerate() {
            let returns: Vec<f64> = raw[row].iter().zip(kept(&values[row], mask)).map(|(a, v)| a + v).collect();
            for (what, found) in
                [("raw_advantages", &raw[row]), ("whitened_advantages", &whitened[row]), ("returns", &returns)]
            {
                assert_list(name, what, &spread(found, mask), &matrix(&expected[what])[row]);
            }
        }
    }
}

#[test]
fn golden_adaptive_kl() {
    let params = ["horizon", "init", "n_steps", "target"];
    for case in cases("adaptive_kl.json", "adaptive_kl", &params, &["kl"], &["coef_after"]) {
        let params = &case["params"];
        let config = TrainConfig {
            use_kl_in_reward: true,
            kl_controller: config::KlController::Adaptive,
            beta: number(&params["init"]),
            kl_target: number(&params["target"]),
            kl_horizon: number(&params["horizon"]),
            ..TrainConfig::default()
        };
        let mut controller = KlController::from_config(&config).unwrap();
        let after = numbers(&case["inputs"]["kl"]).into_iter().map(|kl| {
            controller.update(kl, params["n_steps"].as_u64().unwrap() as usize);
            controller.coef
        });
        let after: Vec<f64> = after.collect();
        assert_list(&case["name"], "coef_after", &after, &numbers(&case["expected"]["coef_after"]));
    }
}

/// Without an estimator, the penalty in the reward is PPO's and verl's β (logprob − ref_logprob), of either sign.
#[test]
fn golden_penalty_in_the_reward_is_k1_where_nothing_else_is_asked_for() {
    let config = TrainConfig { use_kl_in_reward: true, beta: 0.5, ..TrainConfig::default() };
    let controller = KlController::from_config(&config).unwrap();
    let inputs = ["logps", "ref_logps", "weights"];
    let all = cases("kl_estimators.json", "kl_estimator", &["estimator"], &inputs, &["kl", "grad_of_weighted_sum"]);
    let of_k1: Vec<&Value> = all.iter().filter(|case| case["params"]["estimator"] == "k1").collect();
    assert!(!of_k1.is_empty());
    for case in of_k1 {
        let ragged = |key: &str| matrix(&case["inputs"][key]).into_iter().collect::<Ragged<f64>>();
        let found = controller.penalise(&ragged("logps"), &ragged("ref_logps"));
        for (row, expected) in matrix(&case["expected"]["kl"]).iter().enumerate() {
            let expected: Vec<f64> = expected.iter().map(|kl| 0.5 * kl).collect();
            assert_list(&case["name"], "penalty", &found.penalties[row], &expected);
        }
    }
}

#[test]
fn golden_kl_estimators_in_the_reward() {
    let inputs = ["logps", "ref_logps", "weights"];
    for case in cases("kl_estimators.json", "kl_estimator", &["estimator"], &inputs, &["kl", "grad_of_weighted_sum"]) {
        let estimator: KlEstimator = serde_json::from_value(case["params"]["estimator"].clone()).unwrap();
        let (own, reference) = (matrix(&case["inputs"]["logps"]), matrix(&case["inputs"]["ref_logps"]));
        for (row, expected) in matrix(&case["expected"]["kl"]).iter().enumerate() {
            let found: Vec<f64> =
                own[row].iter().zip(&reference[row]).map(|(own, other)| kl::value(estimator, *own, *other)).collect();
            assert_list(&case["name"], "kl", &found, expected);
        }
    }
}
