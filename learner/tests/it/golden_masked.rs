//! TRL's losses and importance weights under its tool mask, with the owner mask of episodes in its place.

use learner::{mismatch::Correction, ragged::Ragged, step::Mismatch};
use serde_json::{Value, json};
use shared::{Episode, FinishReason, Segment, TokenLogprob, Why, config::TrainConfig, metrics::MetricRecord};

use crate::{
    golden_loss::{TRL_PARAMS, trl_case},
    support::figures::{assert_close, matrix, number, numbers, optional},
};

const TOLERANCE: f64 = 1e-9;
/// Metrics were averaged in float32.
const METRIC_TOLERANCE: f64 = 1e-6;

/// Completions of the given lengths. The mask says who wrote each of their tokens.
fn episodes(inputs: &Value) -> Vec<Episode> {
    let of_row = |(owner, length): (Vec<f64>, f64)| {
        let mut episode = Episode::default();
        for segment in owner[..length as usize].chunk_by(|a, b| a == b) {
            let (ids, logprobs) = (vec![7; segment.len()], vec![TokenLogprob::default(); segment.len()]);
            episode.push(if segment[0] == 1.0 {
                Segment::Sampled { ids: &ids, logprobs: &logprobs, versions: &[], finish: FinishReason::Stop }
            } else {
                Segment::Given { ids: &ids, why: Why::Reply }
            });
        }
        episode
    };
    matrix(&inputs["owner"]).into_iter().zip(numbers(&inputs["completion_lengths"])).map(of_row).collect()
}

/// 1 for each token that the losses have a value for.
fn mask(episodes: &[Episode], width: usize) -> Value {
    let of_row = |episode: &Episode| {
        let mut row: Vec<u8> = episode.owner_mask().map(u8::from).collect();
        row.resize(width, 0);
        row
    };
    json!(episodes.iter().map(of_row).collect::<Vec<_>>())
}

#[test]
fn golden_masked_loss() {
    let of_weights = ["mode", "clip_max", "clip_min"];
    let params: Vec<String> = TRL_PARAMS.iter().chain(&of_weights).map(|name| format!("{name}?")).collect();
    let inputs = [
        "logps?",
        "old_logps",
        "advantages?",
        "owner",
        "completion_lengths",
        "segments?",
        "num_items_in_batch?",
        "max_completion_length?",
        "ref_logps?",
        "importance_ratio?",
        "entropies?",
        "sampling_logps?",
    ];
    let expected = [
        "loss?",
        "grad_logps?",
        "per_token_loss?",
        "metrics",
        "ratio",
        "loss_positions?",
        "sampled_tokens?",
        "num_items_in_batch?",
        "per_token_kl?",
        "phi_seq?",
        "off_policy_mask?",
        "entropy_mask?",
    ];
    let params: Vec<&str> = params.iter().map(String::as_str).collect();
    let cases = harness::golden::cases("masked_loss.json", "masked_loss", &params, &inputs, &expected);
    for mut case in cases {
        let episodes = episodes(&case["inputs"]);
        if case["kind"] == "importance_weights" {
            weights(&case, &episodes);
            continue;
        }
        let sampled: Vec<f64> = episodes.iter().map(|episode| episode.sampled() as f64).collect();
        assert_eq!(sampled, numbers(&case["expected"]["sampled_tokens"]), "{}", case["name"]);
        let positions = |episode: &Episode| json!(episode.sampled_spans().flatten().collect::<Vec<_>>());
        assert_eq!(json!(episodes.iter().map(positions).collect::<Vec<_>>()), case["expected"]["loss_positions"]);
        let width = case["inputs"]["logps"][0].as_array().unwrap().len();
        case["inputs"]["mask"] = mask(&episodes, width);
        // TRL has a gradient for given tokens and padding too: it is 0.
        for (gradients, episode) in matrix(&case["expected"]["grad_logps"]).iter().zip(&episodes) {
            let owner = episode.owner_mask().chain(std::iter::repeat(false));
            assert!(gradients.iter().zip(owner).all(|(gradient, sampled)| sampled || *gradient == 0.0));
        }
        trl_case(&case);
    }
}

/// A sequence's weight is the product over its sampled tokens.
fn weights(case: &Value, episodes: &[Episode]) {
    let (params, inputs, expected) = (&case["params"], &case["inputs"], &case["expected"]);
    let config = TrainConfig {
        importance_sampling_mode: serde_json::from_value(params["mode"].clone()).unwrap(),
        importance_sampling_clip_max: number(&params["clip_max"]),
        importance_sampling_clip_min: optional(&params["clip_min"]),
        ..TrainConfig::default()
    };
    let log_ratios = matrix(&inputs["old_logps"]).into_iter().zip(matrix(&inputs["sampling_logps"])).zip(episodes);
    let log_ratios = log_ratios.map(|((old, sampling), episode)| {
        episode.sampled_spans().flatten().map(|at| old[at] - sampling[at]).collect::<Vec<f64>>()
    });
    let log_ratios: Ragged<f64> = log_ratios.collect();
    let found = Correction::from_config(&config).unwrap().weights(&log_ratios);
    let (mut mismatch, mut metrics) = (Mismatch::default(), MetricRecord::default());
    log_ratios.rows().for_each(|row| mismatch.add(row));
    mismatch.record(&mut metrics);
    found.record(&mut metrics);
    for (key, expected) in expected["metrics"].as_object().unwrap() {
        let found = number(&metrics.values()[key]);
        assert_close(&format!("{}: {key}", case["name"]), &[found], &[number(expected)], METRIC_TOLERANCE);
    }
    assert_eq!(number(&expected["num_items_in_batch"]), episodes.iter().map(Episode::sampled).sum::<usize>() as f64);
    for ((found, expected), episode) in found.rows.rows().zip(matrix(&expected["ratio"])).zip(episodes) {
        let wanted: Vec<f64> = match expected[..] {
            [of_sequence] if config.importance_sampling_mode.to_string().starts_with("sequence") => vec![of_sequence],
            _ => episode.sampled_spans().flatten().map(|at| expected[at]).collect(),
        };
        assert_close(case["name"].as_str().unwrap(), found, &wanted, TOLERANCE);
    }
}
