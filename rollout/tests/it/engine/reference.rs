//! Agreement with transformers, and how far rounding takes a model from it.

use rollout::engine::{Engine, EngineOptions, FinishedSequence, Kernels};
use serde_json::Value;
use shared::{
    ModelDir,
    config::{KvDtype, RolloutDtype},
};

use super::support::{Steps, exported, finish, greedy, group, options};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("an array").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

fn check_reference(what: &str, finished: &FinishedSequence, continuation: &Value, logprobs: &Value) {
    assert_eq!(finished.token_ids, ids(continuation), "{what}");
    let expected = logprobs.as_array().expect("log-probs");
    assert_eq!(finished.logprobs.len(), expected.len(), "{what}");
    for (t, (got, expected)) in finished.logprobs.iter().zip(expected).enumerate() {
        let error = (f64::from(got.logprob) - expected.as_f64().expect("a number")).abs();
        assert!(error <= 1e-4, "{what}: log-prob of token {t} is off by {error}");
    }
}

#[test]
fn golden_greedy_through_the_engine() {
    for case in harness::golden_numerics() {
        let name = case["name"].as_str().expect("a name");
        let model = ModelDir::open(harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut engine = Engine::new(exported(&model, folder.path()), &model, options(2, 1)).unwrap();
        let expected = &case["expected"]["greedy"];
        let mut keys: Vec<&String> = expected.as_object().expect("an object").keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, ["continuation_ids", "logprobs", "min_argmax_margin", "prompt_ids"], "{name}");
        let length = expected["continuation_ids"].as_array().unwrap().len() as u32;
        engine.add_group(group(0, &ids(&expected["prompt_ids"]), 2, greedy(length))).unwrap();
        for finished in finish(&mut engine) {
            check_reference(name, &finished, &expected["continuation_ids"], &expected["logprobs"]);
        }
    }
}

/// Completions that others have made are scored beside running sequences, which go on as if nothing had happened.
#[test]
fn golden_scores_of_completions_that_others_have_made() {
    let golden = harness::golden_numerics();
    for (case, kernels) in golden.iter().flat_map(|case| [(case, Kernels::Packed), (case, Kernels::Stock)]) {
        let name = case["name"].as_str().expect("a name");
        let model = ModelDir::open(harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = EngineOptions { kernels, ..options(2, 1) };
        let mut engine = Engine::new(exported(&model, folder.path()), &model, options).unwrap();
        let expected = &case["expected"]["greedy"];
        let (prompt, made) = (ids(&expected["prompt_ids"]), ids(&expected["continuation_ids"]));
        engine.add_group(group(0, &prompt, 2, greedy(made.len() as u32))).unwrap();
        assert!(engine.step().unwrap().is_empty() || made.len() == 1);
        let scores = engine.score(&prompt, &made).unwrap();
        let meant: Vec<f64> = expected["logprobs"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap()).collect();
        assert_eq!(scores.len(), meant.len(), "{name}");
        let apart = scores.iter().zip(&meant).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= 1e-4, "{name} on {kernels} kernels: off by {apart}");
        let given = engine.given_logprobs(&prompt, &made, 3, None).unwrap();
        assert_eq!(given.iter().map(|given| given.logprob).collect::<Vec<_>>(), scores, "{name}");
        for (given, id) in given.iter().zip(&made) {
            let likeliest = given.top[0];
            assert!(likeliest.token == *id && likeliest.logprob == given.logprob, "{name}: greedy is the likeliest");
            assert!(given.top.len() == 3 && given.top.is_sorted_by(|one, other| one.logprob >= other.logprob));
        }
        let unlikely = engine.given_logprobs(&prompt, &[u32::from(made[0] == 0)], 1, None).unwrap().remove(0);
        assert!(unlikely.top[0].token == made[0] && unlikely.logprob < unlikely.top[0].logprob, "{name}");
        for finished in finish(&mut engine) {
            check_reference(name, &finished, &expected["continuation_ids"], &expected["logprobs"]);
        }
        assert!(engine.score(&prompt, &[u32::MAX]).is_err() && engine.score(&[], &made).is_err());
    }
}

#[test]
fn pretrained_model_reproduces_its_reference() {
    let Some(data) = harness::data_dir("pretrained_model_reproduces_its_reference") else { return };
    let dir = data.join("stories260K");
    let reference: Value = serde_json::from_slice(&std::fs::read(dir.join("reference.json")).unwrap()).unwrap();
    let model = ModelDir::open(dir).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions { max_model_len: 512, ..options(3, 2) };
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options).unwrap();
    let cases = reference["cases"].as_array().expect("cases");
    for (tag, case) in cases.iter().enumerate() {
        let length = case["max_new_tokens"].as_u64().expect("a length") as u32;
        engine.add_group(group(tag as u64, &ids(&case["prompt_ids"]), 1, greedy(length))).unwrap();
    }
    let finished = finish(&mut engine);
    assert_eq!(finished.len(), cases.len());
    for sequence in finished {
        let case = &cases[sequence.tag as usize];
        check_reference(&format!("{}", case["prompt"]), &sequence, &case["continuation_ids"], &case["logprobs"]);
    }
}

#[test]
fn rounded_log_probs_are_those_of_a_model_close_to_the_stored_one() {
    let Some(data) = harness::data_dir("rounded_log_probs_are_those_of_a_model_close_to_the_stored_one") else {
        return;
    };
    let model = ModelDir::open(data.join("stories260K")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    let logprobs = |rollout_dtype, kv_dtype| -> Vec<f32> {
        let options = EngineOptions { rollout_dtype, kv_dtype, max_model_len: 256, ..options(8, 2) };
        let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
        // One token each: the same prompt, so the same distribution but for the rounding.
        for tag in 0..64 {
            let prompt: Vec<u32> = (0..=tag as u32 % 16).map(|i| 10 + (7 * i + tag as u32) % 400).collect();
            engine.add_group(group(tag, &prompt, 1, greedy(1))).unwrap();
        }
        let mut finished = finish(&mut engine);
        finished.sort_by_key(|s| s.tag);
        finished.iter().map(|s| s.logprobs[0].logprob).collect()
    };
    let stored = logprobs(RolloutDtype::Auto, KvDtype::Auto);
    let rounded = [
        (RolloutDtype::Int8, KvDtype::Auto, 0.05),
        (RolloutDtype::Bf16, KvDtype::Auto, 0.02),
        (RolloutDtype::Bf16Dot, KvDtype::Auto, 0.02),
        (RolloutDtype::Auto, KvDtype::Int8, 0.02),
        (RolloutDtype::Auto, KvDtype::Bf16, 0.02),
        (RolloutDtype::Bf16x3, KvDtype::Auto, 5e-5),
        (RolloutDtype::Int4, KvDtype::Auto, 0.5),
    ];
    let means = rounded.map(|(rollout_dtype, kv_dtype, most)| {
        let rounded = logprobs(rollout_dtype, kv_dtype);
        let sum: f64 = stored.iter().zip(&rounded).map(|(a, b)| f64::from((a - b).abs())).sum();
        let mean = sum / stored.len() as f64;
        assert!(
            mean > 1e-7 && mean < most,
            "weights {rollout_dtype}, keys and values {kv_dtype}: mean difference of the likeliest token's log-prob \
             {mean}"
        );
        mean
    });
    assert!(means[1] < means[0], "bf16 is closer than int8: {means:?}");
}
