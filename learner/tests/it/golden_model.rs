//! The decoder and the optimiser against transformers and torch (`model_numerics.json`).

use std::path::Path;

use learner::{
    batch::{MicroBatch, Packed, Packer, Sequence, split},
    kl,
    loss::{
        Objective, Rows, Tokens,
        reduction::{Normaliser, update_weights},
    },
    model::{Decoder, LoadOptions, Span, initialise, load},
    optimizer::{AdamW, AdamWOptions},
};
use serde_json::Value;
use shared::{
    ModelDir, PerLayerInput,
    config::{LossType, TrainConfig},
};
use tch::{Device, Kind, Tensor};

use crate::support::figures::numbers;

/// Bound of logits, log-probs and entropies in the older families.
const LOGIT_TOLERANCE: f64 = 1e-4;
/// Least bound in the newer ones, whose figures state how certain they are.
const LEAST_TOLERANCE: f64 = 1e-5;
const LOSS_TOLERANCE: f64 = 1e-5;
const NORM_TOLERANCE: f64 = 2e-5;
/// Tolerance that at most one weight of a model may exceed.
const USUAL_WEIGHT_TOLERANCE: f64 = 5e-6;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn all_ids(value: &Value) -> Vec<Vec<u32>> {
    value.as_array().unwrap().iter().map(ids).collect()
}

fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= tolerance, "{what}[{i}] is {f}, expected {e}");
    }
}

fn bound(case: &Value) -> f64 {
    harness::golden_bound(case, LEAST_TOLERANCE, LOGIT_TOLERANCE)
}

fn row(ids: &[u32]) -> Packed {
    let mut packer = Packer::default();
    packer.stem(ids);
    packer.finish(Device::Cpu)
}

fn open(case: &Value, kind: Kind) -> (ModelDir, Decoder) {
    let path = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
    let model = ModelDir::open(path).unwrap();
    let decoder = load(&model, LoadOptions { kind, ..LoadOptions::default() }).unwrap();
    (model, decoder)
}

fn cases() -> Vec<Value> {
    harness::golden_numerics()
}

#[test]
fn golden_model_forward() {
    for case in cases() {
        let (tolerance, (_, decoder)) = (bound(&case), open(&case, Kind::Float));
        for forward in case["expected"]["forward"].as_array().unwrap() {
            let logits = decoder.logits(&row(&ids(&forward["ids"]))).to_kind(Kind::Double);
            // Long inputs come with the last position's logits alone.
            for (position, expected) in forward["logits"].as_array().into_iter().flatten().enumerate() {
                assert_eq!(forward["logits_positions"][position].as_u64(), Some(position as u64));
                let found = Vec::<f64>::try_from(logits.get(position as i64)).unwrap();
                assert_close("logits", &found, &numbers(expected), tolerance);
            }
            let last = Vec::<f64>::try_from(logits.get(-1)).unwrap();
            assert_close("logits_last", &last, &numbers(&forward["logits_last"]), tolerance);
            let sums = Vec::<f64>::try_from(logits.logsumexp([-1i64].as_slice(), false)).unwrap();
            assert_close("logsumexp", &sums, &numbers(&forward["logsumexp"]), tolerance);
            let best = Vec::<i64>::try_from(logits.argmax(-1, false)).unwrap();
            let expected: Vec<i64> = numbers(&forward["argmax"]).iter().map(|&i| i as i64).collect();
            assert_eq!(best, expected);
        }
    }
}

#[test]
fn random_norms_multiply_with_1() {
    for name in harness::golden_models() {
        let model = ModelDir::open(harness::golden_model_dir(&name)).unwrap();
        let decoder = initialise(&model, 1, LoadOptions::default()).unwrap();
        for (parameter, _) in decoder.weights().trained().named().filter(|(name, _)| name.ends_with("norm.weight")) {
            let weights = decoder.weights().trained().read_f32(parameter).unwrap();
            // The norm within a delta rule is stored as it is.
            let offset = if parameter.contains("linear_attn") { 0.0 } else { model.config().norm_offset() };
            let factors = weights.iter().map(|weight| weight + offset);
            assert!(factors.into_iter().all(|factor| factor == 1.0), "{name}: {parameter}");
        }
    }
}

#[test]
fn golden_model_greedy() {
    for case in cases() {
        let (tolerance, (_, decoder)) = (bound(&case), open(&case, Kind::Float));
        let greedy = &case["expected"]["greedy"];
        let (prompt, continuation) = (ids(&greedy["prompt_ids"]), ids(&greedy["continuation_ids"]));
        let whole = [prompt.clone(), continuation.clone()].concat();
        let logits = decoder.logits(&row(&whole));
        let predicted = Vec::<i64>::try_from(logits.argmax(-1, false)).unwrap();
        let predicted: Vec<u32> = predicted[prompt.len() - 1..whole.len() - 1].iter().map(|&i| i as u32).collect();
        assert_eq!(predicted, continuation);
        let found = logprobs(&decoder, &[prompt], &[continuation], 1.0, 1 << 20);
        assert_close("greedy logprobs", &found.0[0], &numbers(&greedy["logprobs"]), tolerance);
    }
}

/// Log-probs and entropies of completions through the micro-batches that a budget makes.
fn logprobs(
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    completions: &[Vec<u32>],
    temperature: f64,
    budget: usize,
) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let sequences: Vec<Sequence<'_>> = prompts
        .iter()
        .zip(completions)
        .map(|(prompt, completion)| Sequence::new(prompt, completion).of_model(decoder.config()))
        .collect();
    let rows: Vec<usize> = (0..sequences.len()).collect();
    let (mut logps, mut entropies) = (vec![Vec::new(); rows.len()], vec![Vec::new(); rows.len()]);
    for rows in split(&sequences, &rows, budget) {
        let batch = MicroBatch::new(&sequences, &rows, Device::Cpu);
        let stats = decoder.evaluate(&batch, temperature);
        let list = |x: &Tensor| Vec::<f64>::try_from(x.to_kind(Kind::Double)).unwrap();
        let (own_logps, own_entropies) = (list(&stats.logprobs_N), list(&stats.entropies_N));
        for (&row, span) in batch.rows.iter().zip(&batch.tokens) {
            logps[row] = own_logps[span.clone()].to_vec();
            entropies[row] = own_entropies[span.clone()].to_vec();
        }
    }
    (logps, entropies)
}

#[test]
fn golden_model_completion_logprobs() {
    for case in cases() {
        let (tolerance, (_, decoder)) = (bound(&case), open(&case, Kind::Float));
        let (prompts, completions) =
            (all_ids(&case["inputs"]["prompt_ids"]), all_ids(&case["inputs"]["completion_ids"]));
        for budget in [1, 24, 1 << 20] {
            let (logps, entropies) = logprobs(&decoder, &prompts, &completions, 1.0, budget);
            let (cool, _) = logprobs(&decoder, &prompts, &completions, 0.7, budget);
            for (i, row) in logps.iter().enumerate() {
                let expected = |key: &str| numbers(&case["expected"][key][i]);
                assert_close("completion_logps", row, &expected("completion_logps"), tolerance);
                assert_close("entropies", &entropies[i], &expected("completion_entropies"), tolerance);
                assert_close("at 0.7", &cool[i], &expected("completion_logps_temperature_0_7"), tolerance);
            }
        }
    }
}

/// Three AdamW steps; every memory split must lead to the same figures. AdamW divides a gradient by its own size, so
/// the rounding of the smallest gradients shows in the weights. The tolerance is smaller in float64 than in float32, in
/// which the golden figures were computed.
#[test]
fn golden_model_training() {
    for case in cases() {
        for budget in [1, 24, 1 << 20] {
            train(&case, budget, Kind::Float, 8e-6);
            train(&case, budget, Kind::Double, 3e-6);
        }
    }
}

fn train(case: &Value, budget: usize, kind: Kind, of_weights: f64) {
    let tolerance = bound(case);
    let (inputs, expected) = (&case["inputs"], &case["expected"]);
    let hyper = &inputs["hyper"];
    let number = |key: &str| hyper[key].as_f64().unwrap();
    let (_, decoder) = open(case, kind);
    let (prompts, completions) = (all_ids(&inputs["prompt_ids"]), all_ids(&inputs["completion_ids"]));
    let sequences: Vec<Sequence<'_>> = prompts
        .iter()
        .zip(&completions)
        .map(|(prompt, completion)| Sequence::new(prompt, completion).of_model(decoder.config()))
        .collect();
    let rows: Vec<usize> = (0..sequences.len()).collect();
    let old: Vec<Vec<f64>> = inputs["old_logps_values"].as_array().unwrap().iter().map(numbers).collect();
    let advantages = numbers(&inputs["advantages"]);
    let lengths: Vec<usize> = completions.iter().map(Vec::len).collect();
    let loss_type: LossType = serde_json::from_value(hyper["loss_type"].clone()).unwrap();
    let normaliser = Normaliser {
        accumulation: 1.0,
        share: 1.0,
        generation_tokens: lengths.iter().sum::<usize>() as f64,
        max_completion_length: 1.0,
    };
    let config = TrainConfig {
        loss_type,
        epsilon: number("epsilon_low"),
        epsilon_high: Some(number("epsilon_high")),
        beta: number("beta_kl"),
        use_bias_correction_kl: Some(false),
        ..TrainConfig::default()
    };
    let weights = update_weights(&config, &std::iter::once(lengths.clone()).collect(), &normaliser);
    let objective = Objective::from_config(&config);
    let betas = numbers(&hyper["betas"]);
    let mut optimizer = AdamW::new(
        decoder.weights().trained(),
        AdamWOptions {
            betas: (betas[0], betas[1]),
            eps: number("eps"),
            weight_decay: number("weight_decay"),
            max_grad_norm: number("max_grad_norm"),
        },
    );
    let mut gradients = decoder.weights().trained().gradients();
    for step in expected["training"].as_array().unwrap() {
        gradients.zero();
        let (mut loss, mut kl_sum, mut clipped, mut logps) = (0.0, 0.0, 0, vec![Vec::new(); rows.len()]);
        for rows in split(&sequences, &rows, budget) {
            let batch = MicroBatch::new(&sequences, &rows, Device::Cpu);
            let old_N: Vec<f64> = batch.rows.iter().flat_map(|&r| old[r].clone()).collect();
            let lengths: Vec<usize> = batch.rows.iter().map(|&r| lengths[r]).collect();
            let tokens = Tokens {
                rows: Rows::new(&lengths, Device::Cpu),
                old_logprobs_N: Some(Tensor::from_slice(&old_N)),
                sampling_logprobs_N: None,
                ref_logprobs_N: Some(Tensor::from_slice(&old_N)),
                advantages_N: Tensor::from_slice(&batch.per_token(|r| advantages[r])),
                importance: None,
                lots_N: None,
                weights_N: Tensor::from_slice(&batch.per_token(|r| weights.losses[r])),
                entropy_weights_N: Tensor::from_slice(&batch.per_token(|r| weights.entropies[r])),
            };
            let mut found = Vec::new();
            decoder.differentiate(&batch, number("temperature"), Span::Token, &mut gradients, &mut |run, stats| {
                found.extend(Vec::<f64>::try_from(stats.logprobs_N.to_kind(Kind::Double)).unwrap());
                let result =
                    objective.differentiate(&stats.logprobs_N, &stats.entropies_N, &tokens.slice(&run)).unwrap();
                loss += result.value;
                result.gradients
            });
            for (&row, span) in batch.rows.iter().zip(&batch.tokens) {
                logps[row] = found[span.clone()].to_vec();
            }
        }
        for (row, own) in logps.iter().enumerate() {
            assert_close("training logps", own, &numbers(&step["logps"][row]), tolerance);
            for (now, before) in own.iter().zip(&old[row]) {
                kl_sum += kl::k3_value(before - now);
                let ratio = (now - before).exp();
                let (low, high) = (1.0 - number("epsilon_low"), 1.0 + number("epsilon_high"));
                clipped +=
                    usize::from((ratio < low && advantages[row] < 0.0) || (ratio > high && advantages[row] > 0.0));
            }
        }
        let tokens = lengths.iter().sum::<usize>() as f64;
        assert_close("loss", &[loss], &[step["loss"].as_f64().unwrap()], LOSS_TOLERANCE);
        assert_close("kl", &[kl_sum / tokens], &[step["kl_token_mean"].as_f64().unwrap()], LOSS_TOLERANCE);
        assert_eq!(Some(clipped as u64), step["clipped_tokens"].as_u64());
        for (name, norm) in step["grad_l2_per_tensor"].as_object().unwrap() {
            let slice = decoder.weights().trained().slice_of(gradients.flat(), &own_name(name)).unwrap();
            let (found, norm) = (slice.norm().double_value(&[]), norm.as_f64().unwrap());
            assert!((found - norm).abs() <= 1e-4 * norm.max(1e-3), "gradient norm of {name}: {found}, expected {norm}");
        }
        let norm = step["grad_norm_before_clip"].as_f64().unwrap();
        let grad_norm = gradients.norm();
        assert!(optimizer.update(decoder.weights().trained(), &gradients, grad_norm, number("lr")));
        assert!((grad_norm - norm).abs() <= NORM_TOLERANCE * norm, "{grad_norm} is not {norm}");
        for (name, after) in step["weights_after"].as_object().unwrap() {
            // A tied head is listed under both of its names.
            let tied = decoder.config().tie_word_embeddings && name == "lm_head.weight";
            let name = if tied { "model.embed_tokens.weight".to_owned() } else { own_name(name) };
            let values = decoder.weights().trained().read_f32(&name).unwrap();
            let found: Vec<f64> = numbers(&after["index"]).iter().map(|&i| f64::from(values[i as usize])).collect();
            assert_close(&name, &found, &numbers(&after["value"]), of_weights);
        }
    }
    let (after, _) = logprobs(&decoder, &prompts, &completions, number("temperature"), budget);
    for (row, own) in after.iter().enumerate() {
        assert_close("logps after", own, &numbers(&expected["completion_logps_after"][row]), tolerance);
    }
    compare_weights(
        &decoder,
        &harness::golden_dir().join(expected["weights_after_file"].as_str().unwrap()),
        of_weights,
    );
    let [before, after] = [open(case, kind).1, decoder].map(|decoder| {
        let buffers = decoder.weights().trained().named().filter(|(name, _)| PerLayerInput::is_buffer(name));
        buffers.map(|(name, _)| decoder.weights().trained().read_f32(name).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(before, after, "what is stored and not trained has changed");
}

/// The text model's own name of a parameter, where the figures name it as it is called within a model of images and
/// text.
fn own_name(name: &str) -> String {
    name.replacen("model.language_model.", "model.", 1).replacen("language_model.", "", 1)
}

fn compare_weights(decoder: &Decoder, file: &Path, tolerance: f64) {
    let saved = Tensor::read_safetensors(file).unwrap();
    let trained = decoder.weights().trained().named().filter(|(name, _)| !PerLayerInput::is_buffer(name));
    assert_eq!(saved.len(), trained.count());
    let mut outliers = 0;
    for (name, tensor) in saved {
        let own = decoder.weights().trained().slice_of(decoder.weights().trained().flat(), &own_name(&name)).unwrap();
        let differences = (own - tensor).abs();
        let largest = differences.max().double_value(&[]);
        assert!(largest <= tolerance, "{name} differs by {largest}");
        outliers += differences.gt(USUAL_WEIGHT_TOLERANCE).sum(Kind::Int64).int64_value(&[]);
    }
    assert!(outliers <= 1, "{outliers} weights differ by more than {USUAL_WEIGHT_TOLERANCE}");
}
