//! Where completions end, and what is refused.

use std::sync::Arc;

use exporters::{ExportOptions, export};
use rollout::engine::{Engine, EngineOptions, GroupRequest, Kernels, Output, Request, WeightSource};
use shared::{
    FinishReason, ModelDir, PolicyVersion, SamplingParams,
    config::{Device, KvDtype, RolloutDtype, TrainConfig},
};

use super::support::{Nth, Steps, exported, finish, golden_model, greedy, group, options};

#[test]
fn end_of_sequence_tokens_and_stop_criteria_end_completions() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options(4, 1)).unwrap();
    let eos = model.generation().eos_token_ids.clone();
    assert!(!eos.is_empty());
    // Flat enough that end-of-sequence tokens come up among 512 tokens.
    let hot = SamplingParams { temperature: 4.0, max_completion_length: 60, ..SamplingParams::default() };
    engine.add_group(group(0, &[1, 5, 9], 64, hot.clone())).unwrap();
    let finished = finish(&mut engine);
    let (stopped, cut): (Vec<_>, Vec<_>) = finished.iter().partition(|s| s.finish_reason == FinishReason::Stop);
    assert!(!stopped.is_empty() && !cut.is_empty());
    for sequence in stopped {
        let (last, before) = sequence.token_ids.split_last().unwrap();
        assert!(eos.contains(last) && before.iter().all(|t| !eos.contains(t)));
    }
    assert!(cut.iter().all(|s| s.token_ids.len() == 60 && s.finish_reason == FinishReason::Length));

    let watched = GroupRequest {
        stop_criterion: Some(Arc::new(|| Box::new(Nth(3)))),
        ..group(1, &[1, 5], 3, SamplingParams { ignore_eos: true, ..hot })
    };
    engine.add_group(watched).unwrap();
    let finished = finish(&mut engine);
    assert!(finished.iter().all(|s| s.token_ids.len() == 3 && s.finish_reason == FinishReason::Stop));
}

#[test]
fn keys_and_values_in_bytes_end_where_their_sums_would_overflow() {
    const MOST: usize = i32::MAX as usize / (255 * 127);
    let folder = tempfile::tempdir().unwrap();
    let (long, golden) = (folder.path().join("long"), golden_model("llama"));
    std::fs::create_dir(&long).unwrap();
    for file in golden.companions().into_iter().chain([golden.path().join("model.safetensors")]) {
        std::fs::copy(&file, long.join(file.file_name().unwrap())).unwrap();
    }
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(golden.path().join("config.json")).unwrap()).unwrap();
    config["max_position_embeddings"] = (MOST + 1).into();
    std::fs::write(long.join("config.json"), config.to_string()).unwrap();

    let model = ModelDir::open(long).unwrap();
    let weights = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
    export(&model, &weights.dir, &ExportOptions { max_positions: Some(MOST + 1), ..ExportOptions::default() }).unwrap();
    let open = |kv_dtype, max_model_len| {
        Engine::new(weights.clone(), &model, EngineOptions { kv_dtype, max_model_len, ..options(1, 1) })
    };
    let error = open(KvDtype::Int8, MOST + 1).err().expect("an error").to_string();
    assert!(error.contains(&format!("max_model_len of at most {MOST}")), "{error}");
    open(KvDtype::Int8, MOST).unwrap();
    open(KvDtype::Auto, MOST + 1).unwrap();
}

#[test]
fn requests_and_options_out_of_range_are_refused() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, folder.path());
    let refused = |options: EngineOptions, part: &str| {
        let error = Engine::new(weights.clone(), &model, options).err().expect("an error").to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(options(0, 1), "max_num_seqs");
    refused(options(1, 0), "threads");
    for (rollout_dtype, message) in
        [(RolloutDtype::Int8, "int8 needs the packed kernels"), (RolloutDtype::Bf16, "bf16 needs the packed kernels")]
    {
        refused(EngineOptions { kernels: Kernels::Stock, rollout_dtype, ..options(1, 1) }, message);
    }
    let stock_int8 = EngineOptions { kernels: Kernels::Stock, kv_dtype: KvDtype::Int8, ..options(1, 1) };
    refused(stock_int8, "kv_dtype int8 needs the packed kernels");
    let stock_drafts = EngineOptions { kernels: Kernels::Stock, speculative_tokens: 1, ..options(1, 1) };
    refused(stock_drafts, "speculative_tokens");
    refused(EngineOptions { max_model_len: 1 << 20, ..options(1, 1) }, "max_model_len");
    refused(EngineOptions { candidates: 64, ..options(1, 1) }, "candidates needs the stock kernels");
    refused(EngineOptions { prefill_batch: 2, ..options(1, 1) }, "prefill_batch above 1 needs the stock kernels");
    refused(EngineOptions { cuda_graphs: true, ..options(1, 1) }, "cuda_graphs needs the stock kernels");
    let tensorrt = EngineOptions { device: Device::Tensorrt, cuda_graphs: true, ..options(1, 1) };
    refused(tensorrt, "cuda_graphs needs device cuda");
    refused(EngineOptions { prefill_batch: 0, ..options(1, 1) }, "prefill_batch must be at least 1");

    let mut engine = Engine::new(weights.clone(), &model, options(2, 1)).unwrap();
    let mut refused = |request: GroupRequest, part: &str| {
        let error = engine.add_group(request).unwrap_err().to_string();
        assert!(error.starts_with("prompt 7: ") && error.contains(part), "{error}");
    };
    refused(group(7, &[], 1, greedy(1)), "no tokens");
    refused(group(7, &[1; 96], 1, greedy(1)), "max_model_len (96)");
    refused(group(7, &[1, 512], 1, greedy(1)), "token 512");
    refused(group(7, &[1], 0, greedy(1)), "at least one completion");
    refused(GroupRequest { lengths: Some(Arc::from([3, 0])), ..group(7, &[1], 2, greedy(1)) }, "lengths");
    refused(group(7, &[1], 1, SamplingParams { top_p: 0.0, ..greedy(1) }), "top_p");
    assert!(engine.is_idle());
}

/// A draft that does not come true has changed the state. Likewise in a run, before anything is started.
#[test]
fn drafts_are_refused_with_the_reason_where_layers_keep_a_state() {
    for name in harness::golden_models() {
        let folder = tempfile::tempdir().unwrap();
        let model = golden_model(&name);
        let weights = exported(&model, folder.path());
        let drafting = EngineOptions { speculative_tokens: 3, ..options(1, 1) };
        let run = TrainConfig { speculative_tokens: 3, ..TrainConfig::default() };
        let engine = Engine::new(weights, &model, drafting).map(|_| ()).map_err(|error| error.to_string());
        let checked = run.check_model(model.config()).map_err(|error| error.to_string());
        for result in [engine, checked] {
            match result {
                Ok(()) => assert!(!model.config().has_states(), "{name}"),
                Err(error) => {
                    assert!(model.config().has_states(), "{name}: {error}");
                    assert!(
                        error.contains("`speculative_tokens` 3 is not possible") && error.contains("state"),
                        "{error}"
                    );
                }
            }
        }
    }
}

#[test]
fn no_sequence_grows_across_the_length_at_which_longrope_turns_otherwise() {
    let Some(name) = harness::golden_models().into_iter().find(|name| name == "phi3") else { return };
    let (model, folder) = (golden_model(&name), tempfile::tempdir().unwrap());
    let original = model.config().original_length().unwrap();
    let mut engine = Engine::new(exported(&model, folder.path()), &model, options(2, 1)).unwrap();
    let room = engine.options().max_model_len;
    assert!(room > original + 8);
    let prompt = |tokens: usize| vec![5; tokens];
    // One that ends at the length or before, and one that begins behind it.
    engine.add_group(group(0, &prompt(original - 4), 1, greedy(4))).unwrap();
    engine.add_group(group(1, &prompt(original + 1), 1, greedy(4))).unwrap();
    let error = engine.add_group(group(7, &prompt(original), 1, greedy(1))).unwrap_err().to_string();
    assert!(error.contains(&format!("from {original} tokens it may grow to {}", original + 1)), "{error}");
    assert!(error.contains(&format!("let max_model_len be {original}")), "{error}");
    // What is said after a state counts from where the state ends.
    let short = Request { keep: true, ..group(2, &prompt(original - 9), 1, greedy(2)).into() };
    engine.begin(short).unwrap();
    let mut states = Vec::new();
    while !engine.is_idle() {
        states.extend(engine.advance().unwrap().into_iter().filter_map(|output| match output {
            Output::Ended { state, .. } => state,
            Output::Token { .. } => None,
        }));
    }
    let next =
        |tokens, most| Request { from: Some(states[0].clone()), ..group(3, &prompt(tokens), 1, greedy(most)).into() };
    assert!(engine.begin(next(8, 1)).unwrap_err().to_string().contains("longrope"));
    engine.begin(next(5, 2)).unwrap();
    assert_eq!(finish(&mut engine).len(), 1);
}
