//! Reward models: scores against transformers' own, and the paths by which they are asked for.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use exporters::{ExportOptions, export};
use harness::{
    cli,
    tiny_model::{self, Qwen2},
};
use rollout::{data::Tokenizer, reward};
use rollout_rewards::{RewardCompletion, RewardInput};
use serde_json::{Value, json};
use shared::{FinishReason, ModelDir, RewardOutcome, StepScore};

/// The figures that `figures/reward_model.py` wrote.
fn figures() -> Value {
    serde_json::from_str(include_str!("figures/reward_model.json")).unwrap()
}

/// The weights of `figures/reward_model.py`.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let seed: usize = name.bytes().map(usize::from).sum();
    let base = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
    let value = |i: usize| base + (((seed * 31 + i * i * 7 + i * 13) % 509) as f32 - 254.0) / 1024.0;
    (0..shape.iter().product()).map(value).collect()
}

/// Writes a reward model with a tokenizer of characters and, in place, its export, so that no cache is needed.
fn write_model(dir: &Path, config: &Value) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    tiny_model::write_tokenizer(dir);
    let model = ModelDir::open(dir).unwrap();
    let named = |(name, shape): (String, Vec<usize>)| {
        let values = values(&name, &shape);
        (name, shape, values)
    };
    tiny_model::write_safetensors(dir, model.config().parameters().into_iter().map(named));
    let folder = tempfile::tempdir().unwrap();
    export(&model, &folder.path().join("onnx"), &ExportOptions::default()).unwrap();
    for file in fs::read_dir(folder.path().join("onnx")).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), dir.join(file.file_name())).unwrap();
    }
}

/// A reward model of the figures and its folder.
fn model_of(family: usize) -> (tempfile::TempDir, PathBuf, Value) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("reward-model");
    let case = figures()["models"][family].clone();
    write_model(&path, &case["config"]);
    (folder, path, case["scores"].clone())
}

fn spec(path: &Path, rest: &str) -> String {
    format!("model:path={}{rest}", path.display())
}

fn tokenizer(path: &Path) -> Tokenizer {
    Tokenizer::open(&ModelDir::open(path).unwrap()).unwrap()
}

/// The outcomes of a group, by way of the pool.
fn outcomes(spec: &str, input: RewardInput) -> Vec<RewardOutcome> {
    let functions = vec![reward::registry().function(spec).unwrap()];
    let mut pool = reward::pool(functions, 2, Duration::from_secs(60)).unwrap();
    pool.submit(0, input);
    pool.recv().unwrap().outcomes.into_iter().map(|mut of_completion| of_completion.remove(0)).collect()
}

fn completion(text: &str, token_ids: &[u32]) -> RewardCompletion {
    RewardCompletion::of_one_turn(text, token_ids.to_vec(), FinishReason::Stop)
}

fn score(outcome: &RewardOutcome) -> f64 {
    match outcome {
        RewardOutcome::Score(score) => *score,
        other => panic!("{other:?}"),
    }
}

#[test]
fn scores_are_those_of_transformers_at_every_token() {
    let figures = figures();
    for family in 0..figures["models"].as_array().unwrap().len() {
        let (_folder, path, expected) = model_of(family);
        // Every prefix of a sequence as a completion of its own: rows of all lengths, padded in one batch.
        for (ids, expected) in figures["sequences"].as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            let input = RewardInput {
                prompt_ids: ids[..1].into(),
                tokenizer: Some(Arc::new(tokenizer(&path))),
                completions: (1..=ids.len()).map(|n| completion("", &ids[1..n])).collect(),
                ..RewardInput::default()
            };
            for batch in [1, 5, 32] {
                let found = outcomes(&spec(&path, &format!(":batch={batch}:threads=1")), input.clone());
                for (found, expected) in found.iter().zip(expected.as_array().unwrap()) {
                    let (found, expected) = (score(found), expected.as_f64().unwrap());
                    assert!((found - expected).abs() < 1e-5, "family {family}: {found} for {expected}");
                }
                assert_eq!(found.len(), ids.len());
            }
        }
    }
}

/// States begin anew in every row, and padding stands behind every place that is scored.
#[test]
fn a_row_of_a_model_with_states_sees_neither_its_neighbours_nor_its_padding() {
    let sizes = json!({"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "num_hidden_layers": 4, "vocab_size": 128, "max_position_embeddings": 64, "num_labels": 1,
        "architectures": ["ForSequenceClassification"]});
    for family in [
        json!({"model_type": "lfm2", "full_attn_idxs": [2], "block_auto_adjust_ff_dim": false}),
        json!({"model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 16}),
        json!({"model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": 48,
            "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 8, "attention_multiplier": 0.3,
            "layer_types": ["mamba", "mamba", "attention", "mamba"]}),
    ] {
        let mut config = sizes.clone();
        config.as_object_mut().unwrap().extend(family.as_object().unwrap().clone());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reward-model");
        write_model(&path, &config);
        let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 97).collect();
        let input = RewardInput {
            prompt_ids: ids[..1].into(),
            tokenizer: Some(Arc::new(tokenizer(&path))),
            completions: (1..=ids.len()).map(|n| completion("", &ids[1..n])).collect(),
            ..RewardInput::default()
        };
        let scores = |batch: usize| -> Vec<f64> {
            let found = outcomes(&spec(&path, &format!(":batch={batch}:threads=1")), input.clone());
            found.iter().map(score).collect()
        };
        let alone = scores(1);
        assert!(alone.windows(2).all(|pair| (pair[0] - pair[1]).abs() > 1e-4), "every token counts: {alone:?}");
        for batch in [5, 32] {
            for (together, alone) in scores(batch).iter().zip(&alone) {
                assert!((together - alone).abs() < 1e-5, "{family}, {batch} rows: {together}, alone {alone}");
            }
        }
    }
}

/// A group of texts over the model's own tokenizer.
fn group(tokenizer: &Tokenizer, prompt: &str, texts: &[&str]) -> RewardInput {
    RewardInput {
        prompt: prompt.into(),
        prompt_ids: tokenizer.encode(prompt, false).unwrap().into(),
        tokenizer: Some(Arc::new(tokenizer.clone())),
        completions: texts.iter().map(|text| completion(text, &tokenizer.encode(text, false).unwrap())).collect(),
        ..RewardInput::default()
    }
}

#[test]
fn a_steps_score_is_that_of_the_text_up_to_its_end() {
    let (_folder, path, _) = model_of(2);
    let tokenizer = tokenizer(&path);
    let whole = outcomes(
        &spec(&path, r":scope=steps:separator=\n"),
        group(&tokenizer, "Sum?", &["1 + 1 = 2\nso 3\n\nend", "one", ""]),
    );
    let parts = outcomes(
        &spec(&path, ""),
        group(&tokenizer, "Sum?", &["1 + 1 = 2\n", "1 + 1 = 2\nso 3\n\n", "1 + 1 = 2\nso 3\n\nend", "one"]),
    );
    let ends = |outcome: &RewardOutcome| match outcome {
        RewardOutcome::Steps(steps) => steps.clone(),
        other => panic!("{other:?}"),
    };
    let steps: Vec<StepScore> = whole[..2].iter().flat_map(ends).collect();
    assert_eq!(steps.iter().map(|s| s.end).collect::<Vec<_>>(), [9, 15, 18, 2]);
    for (step, part) in steps.iter().zip(&parts) {
        assert!((step.score - score(part)).abs() < 1e-5, "{step:?} for {part:?}");
    }
    assert_eq!(whole[2], RewardOutcome::NotApplicable, "an empty completion has no steps");
}

#[test]
fn another_tokenizer_reads_the_text() {
    let (folder, path, _) = model_of(0);
    // The same tokens by a file with other bytes: the ids of the policy must not matter.
    let other = folder.path().join("policy");
    fs::create_dir(&other).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        fs::write(other.join(file), fs::read_to_string(path.join(file)).unwrap() + "\n").unwrap();
    }
    let texts = ["2 + 2\n= 4", "four"];
    let mut foreign = group(&tokenizer(&other), "2 + 2?", &texts);
    assert_ne!(tokenizer(&other), tokenizer(&path));
    foreign.prompt_ids = vec![1, 2, 3].into();
    for scope in [":scope=outcome", ":scope=steps"] {
        let expected = outcomes(&spec(&path, scope), group(&tokenizer(&path), "2 + 2?", &texts));
        assert_eq!(outcomes(&spec(&path, scope), foreign.clone()), expected);
        assert!(!matches!(expected[0], RewardOutcome::Failed(_)), "{expected:?}");
    }
}

#[test]
fn what_does_not_fit_the_model_is_a_failure_of_that_completion_alone() {
    let (_folder, path, _) = model_of(1);
    let tokenizer = tokenizer(&path);
    let mut input = group(&tokenizer, "abc", &["fine", "much too long a text"]);
    input.completions.push(completion("x", &[5000]));
    let found = outcomes(&spec(&path, ":max_length=12"), input);
    assert!(matches!(found[0], RewardOutcome::Score(_)));
    let failed = |reason: &str| RewardOutcome::Failed(reason.into());
    assert_eq!(found[1], failed("23 tokens of prompt and completion are more than 12"));
    assert_eq!(found[2], failed("the reward model has no token 5000"));
}

#[test]
fn a_directory_without_a_reward_model_is_refused_at_the_start() {
    let (folder, path, _) = model_of(0);
    let error = |spec: &str| reward::registry().function(spec).unwrap_err().to_string();
    assert!(error(&spec(&path, ":max_length=257")).contains("the model is for 256 tokens"));
    assert!(error(&spec(&path, ":scope=words")).contains("must be outcome or steps"));
    assert!(error(&spec(&path, ":batch=0")).contains("`batch` must be at least 1"));
    let policy = folder.path().join("policy");
    tiny_policy().write(&policy, 1);
    tiny_model::write_tokenizer(&policy);
    assert!(error(&spec(&policy, "")).contains("is a language model"), "{}", error(&spec(&policy, "")));
    fs::remove_file(path.join("tokenizer.json")).unwrap();
    assert!(error(&spec(&path, "")).contains("tokenizer.json: no such file"));
}

fn tiny_policy() -> Qwen2 {
    Qwen2 { num_hidden_layers: 2, ..tiny_model::TINY }
}

#[test]
fn generate_scores_with_a_reward_model_that_it_exports_itself() {
    let (folder, path, _) = model_of(2);
    for file in ["model.onnx", "weights.data", "manifest.json"] {
        fs::remove_file(path.join(file)).unwrap();
    }
    let policy = folder.path().join("policy");
    tiny_policy().write(&policy, 1);
    tiny_model::write_tokenizer(&policy);
    fs::write(folder.path().join("prompts.jsonl"), format!("{}\n", json!({"prompt": "1 + 1 ="}))).unwrap();
    let run = |words: &str| {
        let mut command = Command::new(harness::binary("rollout"));
        command.args(words.split(' ')).current_dir(folder.path()).env("TANDEM_CACHE_DIR", folder.path().join("cache"));
        cli::finish(command)
    };
    let finished = run("generate --model policy --prompts prompts.jsonl --output out.jsonl --num-generations 3 \
         --max-completion-length 12 --reward-funcs model:path=reward-model,model:path=reward-model:scope=steps");
    let _ = finished.success();
    for line in fs::read_to_string(folder.path().join("out.jsonl")).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        assert!(row["rewards"]["model:path=reward-model"].is_f64(), "{row}");
        let steps = row["reward_steps"]["model:path=reward-model:scope=steps"].as_array().unwrap();
        let last = row["token_ids"].as_array().unwrap().len() as u64 - 1;
        assert_eq!(steps.last().unwrap()[0], last, "the last step ends with the completion: {row}");
        let at_end = steps.last().unwrap()[1].as_f64().unwrap();
        assert!((at_end - row["rewards"]["model:path=reward-model"].as_f64().unwrap()).abs() < 1e-5);
        assert!(row.get("reward_errors").is_none(), "{row}");
    }
    let refused = run("generate --model reward-model --prompts prompts.jsonl --output out.jsonl");
    assert!(refused.stderr.contains("is a reward model, which generates nothing"), "{}", refused.stderr);
}
