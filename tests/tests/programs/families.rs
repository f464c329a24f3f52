//! Every family of models through the whole pair: random weights, steps in which both sides agree, a checkpoint that
//! opens, and a run that goes on from one as if it had not ended.

use std::{fs, path::Path};

use harness::{
    cli, copy_folder, golden_model_dir, golden_models, has_golden_model,
    tiny_model::{CHARACTERS, write_tokenizer},
    training::{Training, json_lines, train},
};
use serde_json::{Value, json};

const ORIGINAL: &str = "original_max_position_embeddings";
const PROMPT: &str = "a prompt that is longer than any of the windows = ";

/// The family's tiny model with the tokenizer's vocabulary and no weights yet; initialised such that logits differ.
fn prepare(family: &str, dir: &Path) {
    let text = fs::read_to_string(golden_model_dir(family).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    // A model of images and text has its text model within.
    let of_text = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
    for (key, value) in
        [("vocab_size", json!(CHARACTERS)), ("eos_token_id", json!(0)), ("initializer_range", json!(0.2))]
    {
        of_text[key] = value;
    }
    // With longrope, the prompts begin behind the length at which positions turn otherwise.
    if of_text.get(ORIGINAL).is_some() {
        of_text[ORIGINAL] = (PROMPT.len() - 8).into();
    }
    let model = dir.join("model");
    fs::create_dir(&model).unwrap();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    write_tokenizer(&model);
    let _ = cli::run("learner", ["init", "--model", model.to_str().unwrap()]).success();
    let rows = (1..=4).map(|n| format!("{{\"prompt\": \"{PROMPT}{n}\"}}\n"));
    fs::write(dir.join("prompts.jsonl"), rows.collect::<String>()).unwrap();
}

/// A run beside a quantised base: both sides compute with the same rounded numbers, and a run goes on as if it had not
/// ended.
#[test]
fn an_adapter_beside_a_quantised_base_trains_with_both_sides_in_agreement_and_resumes() {
    let dir = tempfile::tempdir().unwrap();
    prepare("qwen3", dir.path());
    let config = |option: &str, steps: usize| {
        format!(
            "model = {:?}\ndataset = {:?}\nreward_funcs = [\"repetition_penalty:ngram_size=1\"]\nmax_steps = {steps}\n\
             save_steps = 2\nnum_generations = 4\ngeneration_batch_size = 8\nmax_completion_length = 24\n\
             learning_rate = 1e-2\nlr_scheduler_type = \"constant\"\nbeta = 0.01\nuse_peft = true\nlora_r = 4\n\
             {option}",
            dir.path().join("model"),
            dir.path().join("prompts.jsonl")
        )
    };
    let plain = train(dir.path(), "plain", &config("", 4));
    for option in ["load_in_8bit", "load_in_4bit"] {
        let whole = train(dir.path(), &format!("{option}-whole"), &config(&format!("{option} = true\n"), 4));
        let agreement = whole.curve("mismatch_kl");
        assert!(agreement.iter().all(|kl| kl.abs() < 1e-9), "{option}: mismatch_kl {agreement:?}");
        assert_ne!(whole.curve("entropy"), plain.curve("entropy"), "{option} changes nothing");
        let cut = train(dir.path(), &format!("{option}-cut"), &config(&format!("{option} = true\n"), 2));
        let file = dir.path().join(format!("{option}-cut.toml"));
        let again = ["train", file.to_str().unwrap(), "--max_steps", "4", "--resume_from_checkpoint", "latest"];
        let _ = cli::run("tandem", again).success();
        let resumed = Training { metrics: json_lines(&cut.run.join("metrics.jsonl")), run: cut.run };
        for file in ["adapter_model.safetensors", "optimizer.safetensors"] {
            assert!(resumed.checkpoint(file) == whole.checkpoint(file), "{option}: {file} differs");
        }
    }
    let file = dir.path().join("both.toml");
    fs::write(&file, config("load_in_8bit = true\nload_in_4bit = true\n", 1)).unwrap();
    let refused = cli::run("tandem", ["train", file.to_str().unwrap()]);
    let error = refused.refusal();
    assert!(error.contains("`load_in_8bit` and `load_in_4bit` cannot both be true"), "{error}");
}

#[test]
fn every_family_trains_with_both_sides_in_agreement_and_resumes() {
    for family in golden_models() {
        let dir = tempfile::tempdir().unwrap();
        prepare(&family, dir.path());
        let config = format!(
            "model = {:?}\ndataset = {:?}\nreward_funcs = [\"repetition_penalty:ngram_size=1\"]\nmax_steps = 4\n\
             save_steps = 2\nnum_generations = 4\ngeneration_batch_size = 8\nmax_completion_length = 24\n\
             learning_rate = 1e-3\nlr_scheduler_type = \"constant\"\nbeta = 0.01\n",
            dir.path().join("model"),
            dir.path().join("prompts.jsonl")
        );
        let whole = train(dir.path(), "whole", &config);
        let agreement = whole.curve("mismatch_kl");
        assert!(agreement.iter().all(|kl| kl.abs() < 1e-9), "{family}: mismatch_kl {agreement:?}");
        let differences = whole.curve("sampling/sampling_logp_difference/max");
        assert!(differences.iter().all(|&most| most < 1e-4), "{family}: log-probs differ by {differences:?}");

        if family == "qwen3_moe" {
            let even = |key: &str, least: f64, most: f64| {
                let curve = whole.curve(key);
                assert!(curve.iter().all(|value| (least..most).contains(value)), "{key}: {curve:?}");
            };
            even("load_balancing_loss", 0.9, 4.0);
            even("max_vio", 0.0, 3.0);
        }

        let copy = dir.path().join("copy");
        copy_folder(&whole.run, &copy);
        // As a run that was killed before its last checkpoint.
        fs::remove_dir_all(copy.join("checkpoint-4")).unwrap();
        let resumed = train(dir.path(), "copy", &format!("{config}resume_from_checkpoint = \"checkpoint-2\"\n"));
        assert_eq!(resumed.curve("reward"), whole.curve("reward"), "{family}");
        for file in ["weights.data", "model.safetensors", "optimizer.safetensors"] {
            assert!(resumed.checkpoint(file) == whole.checkpoint(file), "{family}: {file} differs");
        }

        // What was saved is a model like the one that it began with, and no longer the same.
        let (checkpoint, output) = (whole.run.join("checkpoint-4"), dir.path().join("out.jsonl"));
        let prompts = dir.path().join("prompts.jsonl");
        let args = ["generate", "--model", checkpoint.to_str().unwrap(), "--prompts", prompts.to_str().unwrap()];
        let more = ["--output", output.to_str().unwrap(), "--max-completion-length", "8"];
        let _ = cli::run("rollout", args.into_iter().chain(more)).success();
        assert_eq!(json_lines(&output).len(), 4, "{family}");
        let weights = |dir: &Path| fs::read(dir.join("model.safetensors")).unwrap();
        assert!(weights(&checkpoint) != weights(&dir.path().join("model")), "{family}: nothing was learned");
    }
}

#[test]
fn choices_of_experts_are_compared_and_replayed() {
    let family = "qwen3_moe";
    if !has_golden_model(family) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    prepare(family, dir.path());
    let run = |name: &str, options: &str| {
        let config = format!(
            "model = {:?}\ndataset = {:?}\nreward_funcs = [\"repetition_penalty:ngram_size=1\"]\nmax_steps = 3\n\
             num_generations = 4\ngeneration_batch_size = 8\nmax_completion_length = 24\n\
             lr_scheduler_type = \"constant\"\nbeta = 0.01\n{options}",
            dir.path().join("model"),
            dir.path().join("prompts.jsonl")
        );
        train(dir.path(), name, &config)
    };
    let rate = "learning_rate = 1e-3\n";
    let plain = run("plain", rate);
    for (name, option) in [("compared", "compare"), ("replayed", "R3")] {
        let routed = run(name, &format!("{rate}router_replay = \"{option}\"\n"));
        assert_eq!(routed.curve("router_agreement"), [1.0; 3], "both sides choose the same in fp32");
        assert!(routed.curve("mismatch_kl").iter().all(|kl| kl.abs() < 1e-9), "{option}");
        assert_eq!(routed.curve("reward"), plain.curve("reward"), "{option}");
    }
    // Rounded weights choose otherwise here and there; a learner that replays the choices is nearer to the sampler.
    let rounded = |name: &str, option: &str| {
        run(name, &format!("rollout_dtype = \"int8\"\nlearning_rate = 1e-6\nrouter_replay = \"{option}\"\n"))
    };
    let (compared, replayed) = (rounded("rounded", "compare"), rounded("rounded-replayed", "R3"));
    for run in [&compared, &replayed] {
        let agreement = run.curve("router_agreement");
        assert!(agreement.iter().all(|share| (0.8..1.0).contains(share)), "the learner's own count: {agreement:?}");
    }
    let first = [&compared, &replayed].map(|run| run.curve("mismatch_kl")[0]);
    assert!(first[1] < first[0], "{first:?}");
}
