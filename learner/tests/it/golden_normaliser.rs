//! From a generation batch to the weight of each of its rows and to the gradient, against TRL's own pass over the same
//! batch. The only inputs are completions, as a sampler would send them; no part of a divisor is handed in.

use learner::{
    advantage::{CreditOptions, credit},
    loss::{LossGradient, Objective, Rows, Tokens},
    step::StepBatch,
};
use serde_json::Value;
use shared::{
    FinishReason, Group, GroupId, Placed, PolicyVersion, RewardOutcome, Step,
    config::{ScaleRewards, TrainConfig},
    generation::testing,
};
use tch::{Device, Tensor};

use crate::support::figures::{assert_close, matrix, number, numbers};

const TOLERANCE: f64 = 1e-9;

/// A case, with the completions of all of TRL's processes in one batch. A process of TRL's is not a rank of ours,
/// because each of our ranks sees the whole batch. Here the minibatches of the other processes are further minibatches
/// of the same update.
struct Case {
    name: String,
    config: TrainConfig,
    processes: usize,
    /// Number of completions of the process that the figures are about. Those of the other processes follow.
    rows: usize,
    /// Places of each row's trained tokens within its width.
    places: Vec<Vec<usize>>,
    groups: Vec<Placed>,
}

fn whole(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

impl Case {
    fn new(case: &Value) -> Self {
        let (params, inputs) = (&case["params"], &case["inputs"]);
        let processes = whole(&params["num_processes"]);
        let lengths: Vec<usize> = numbers(&inputs["lengths"]).iter().map(|&length| length as usize).collect();
        let rows = lengths.len();
        let config = TrainConfig {
            loss_type: serde_json::from_value(params["loss_type"].clone()).unwrap(),
            importance_sampling_level: serde_json::from_value(params["importance_sampling_level"].clone()).unwrap(),
            epsilon: number(&params["epsilon_low"]),
            epsilon_high: Some(number(&params["epsilon_high"])),
            scale_rewards: ScaleRewards::None,
            num_generations: whole(&params["num_generations"]) as u32,
            generation_batch_size: Some((rows * processes) as u32),
            num_iterations: whole(&params["num_iterations"]) as u32,
            per_device_train_batch_size: whole(&params["per_device_train_batch_size"]) as u32,
            gradient_accumulation_steps: (whole(&params["gradient_accumulation_steps"]) * processes) as u32,
            mask_truncated_completions: params["mask_truncated_completions"].as_bool().unwrap(),
            max_completion_length: whole(&params["max_completion_length"]) as u32,
            ..TrainConfig::default()
        };
        // Tokens of the environment do not belong to a completion here: only the model's own tokens are left.
        let environment = inputs.get("env_mask").map(matrix);
        let is_own = |row: usize, at: usize| environment.as_ref().is_none_or(|mask| mask[row][at] != 0.0);
        let places: Vec<Vec<usize>> = lengths
            .iter()
            .enumerate()
            .map(|(row, &length)| (0..length).filter(|&at| is_own(row, at)).collect())
            .collect();
        let truncated: Vec<bool> =
            inputs["truncated"].as_array().unwrap().iter().map(|t| t.as_bool().unwrap()).collect();
        let rewards = numbers(&inputs["rewards"]);
        let own = (0..rows).map(|row| (places[row].len(), truncated[row], rewards[row]));
        let elsewhere = inputs.get("tokens_of_other_processes").map_or(0, whole);
        let others = (processes - 1) * rows;
        assert!(
            elsewhere >= others || config.mask_truncated_completions || others == 0,
            "rows without a trained token"
        );
        // Where there are fewer tokens than rows, the rest was cut off and is masked.
        let other = |row: usize| {
            let tokens = elsewhere / others + usize::from(row < elsewhere % others);
            (tokens.max(1), tokens == 0, 0.0)
        };
        let groups = groups(&own.chain((0..others).map(other)).collect::<Vec<_>>(), config.num_generations as usize);
        Self { name: case["name"].as_str().unwrap().to_owned(), config, processes, rows, places, groups }
    }

    /// The rows of an accumulation window, given the minibatches of the one process.
    fn update(&self, window: &Value) -> Vec<usize> {
        let minibatches = window.as_array().unwrap().iter().map(|minibatch| {
            let rows: Vec<usize> = minibatch.as_array().unwrap().iter().map(whole).collect();
            assert_eq!(rows.len(), self.config.per_device_train_batch_size as usize, "{}", self.name);
            rows
        });
        let of_processes = |own: Vec<usize>| {
            (0..self.processes)
                .flat_map(move |process| own.clone().into_iter().map(move |row| process * self.rows + row))
        };
        minibatches.flat_map(of_processes).collect()
    }
}

/// Groups of completions, each given by its tokens, whether it was cut off, and its reward.
fn groups(rows: &[(usize, bool, f64)], num_generations: usize) -> Vec<Placed> {
    let completion = |(sample, &(tokens, truncated, reward)): (usize, &(usize, bool, f64))| shared::Completion {
        episode: testing::episode(
            vec![1; tokens],
            &[(0, 0)],
            if truncated { FinishReason::Length } else { FinishReason::Stop },
        ),
        rewards: vec![RewardOutcome::Score(reward)],
        ..testing::completion(sample as u32, Vec::new())
    };
    let group = |(index, rows): (usize, &[(usize, bool, f64)])| {
        let group = testing::group(0, rows.iter().enumerate().map(completion).collect());
        let group = Group { reward_names: vec![("reward".into(), 1.0)], ..group };
        testing::placed(GroupId { step: Step(0), index: index as u32 }, group)
    };
    rows.chunks(num_generations).enumerate().map(group).collect()
}

/// Loss and derivatives of an update's rows of the one process. `rows` are row numbers with the weight of each row's
/// tokens.
fn differentiate(
    config: &TrainConfig,
    rows: &[(usize, f64)],
    inputs: &Value,
    advantages: &[f64],
    places: &[Vec<usize>],
) -> LossGradient {
    let (logprobs, old) = (matrix(&inputs["logps"]), matrix(&inputs["old_logps"]));
    let flat = |of: &dyn Fn(usize, f64, usize) -> f64| {
        let tokens = rows.iter().flat_map(|&(row, weight)| places[row].iter().map(move |&at| (row, weight, at)));
        Tensor::from_slice(&tokens.map(|(row, weight, at)| of(row, weight, at)).collect::<Vec<f64>>())
    };
    let lengths: Vec<usize> = rows.iter().map(|&(row, _)| places[row].len()).collect();
    let logprobs_N = flat(&|row, _, at| logprobs[row][at]);
    let tokens = Tokens {
        rows: Rows::new(&lengths, Device::Cpu),
        old_logprobs_N: Some(flat(&|row, _, at| old[row][at])),
        sampling_logprobs_N: None,
        ref_logprobs_N: None,
        advantages_N: flat(&|row, _, _| advantages[row]),
        importance: None,
        lots_N: None,
        weights_N: flat(&|_, weight, _| weight),
        entropy_weights_N: logprobs_N.zeros_like(),
    };
    Objective::from_config(config).differentiate(&logprobs_N, &logprobs_N.zeros_like(), &tokens).unwrap()
}

#[test]
fn golden_trl_normaliser() {
    let params = [
        "loss_type",
        "importance_sampling_level",
        "epsilon_low",
        "epsilon_high",
        "num_generations",
        "num_iterations",
        "num_processes",
        "per_device_train_batch_size",
        "steps_per_generation",
        "gradient_accumulation_steps",
        "mask_truncated_completions",
        "max_completion_length",
    ];
    let inputs = [
        "lengths",
        "truncated",
        "rewards",
        "advantages",
        "logps",
        "old_logps",
        "windows",
        "env_mask?",
        "tokens_of_other_processes?",
    ];
    let expected = ["num_items_in_batch", "windows"];
    for case in harness::golden::cases("trl_normaliser.json", "trl_normaliser", &params, &inputs, &expected) {
        golden_case(&case);
    }
}

fn golden_case(golden: &Value) {
    let case = Case::new(golden);
    let (name, inputs, expected) = (&case.name, &golden["inputs"], &golden["expected"]);
    let batch = StepBatch::new(&case.groups, &case.config, PolicyVersion(0));
    assert_eq!(batch.rows.len(), case.rows * case.processes);
    assert!(batch.rows.iter().all(|row| row.valid), "{name}: a completion without a token of the model");
    assert_eq!(batch.trained_tokens() as f64, number(&expected["num_items_in_batch"]), "{name}");
    let advantages = credit(&CreditOptions::from_config(&case.config), &batch.samples(), None, None).advantages;
    let advantages: Vec<f64> = advantages.rows().take(case.rows).map(|row| row[0]).collect();
    assert_close(&format!("{name}: advantages"), &advantages, &numbers(&inputs["advantages"]), TOLERANCE);
    let windows = inputs["windows"].as_array().unwrap();
    let minibatches: usize = windows.iter().map(|window| window.as_array().unwrap().len()).sum();
    assert_eq!(minibatches, whole(&golden["params"]["steps_per_generation"]) * case.config.num_iterations as usize);
    for (window, expected) in windows.iter().zip(expected["windows"].as_array().unwrap()) {
        let update = case.update(window);
        let weights = batch.weights(&case.config, &update).losses;
        // TRL's processes take the mean of their gradients, where our updates are sums of all rows.
        let trained: Vec<(usize, f64)> = update
            .into_iter()
            .zip(weights)
            .filter(|&(row, _)| row < case.rows && batch.rows[row].trained)
            .map(|(row, weight)| (row, weight * case.processes as f64))
            .collect();
        let mut row_weights = vec![0.0; case.rows];
        trained.iter().for_each(|&(row, weight)| row_weights[row] += weight);
        assert_close(&format!("{name}: row_weight"), &row_weights, &numbers(&expected["row_weight"]), TOLERANCE);

        let found = differentiate(&case.config, &trained, inputs, &advantages, &case.places);
        assert_close(&format!("{name}: loss"), &[found.value], &[number(&expected["loss"])], TOLERANCE);
        let gradients = Vec::<f64>::try_from(&found.gradients.logprobs_N).unwrap();
        let mut of_tokens = gradients.into_iter();
        let mut found = vec![vec![0.0; matrix(&inputs["logps"])[0].len()]; case.rows];
        for &(row, _) in &trained {
            case.places[row].iter().for_each(|&at| found[row][at] += of_tokens.next().unwrap());
        }
        let expected = matrix(&expected["grad_logps"]).concat();
        assert_close(&format!("{name}: grad_logps"), &found.concat(), &expected, TOLERANCE);
    }
}
