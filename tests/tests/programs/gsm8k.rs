//! GSM8K with the real Qwen2.5 tokenizer and chat template, on a random model with the full vocabulary:
//! `examples/gsm8k`, made short.

use std::{fs, path::Path};

use harness::{
    cli, data_dir,
    tiny_model::Qwen2,
    training::{json_lines, train},
};
use serde_json::{Value, json};

const MODEL: Qwen2 = Qwen2 {
    vocab_size: 151_936,
    hidden_size: 32,
    intermediate_size: 64,
    num_hidden_layers: 2,
    num_attention_heads: 2,
    num_key_value_heads: 1,
};

fn write_model(data: &Path, dir: &Path) {
    MODEL.write(dir, 3);
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        fs::copy(data.join("tokenizers/qwen2.5").join(name), dir.join(name)).unwrap();
    }
    fs::write(dir.join("generation_config.json"), "{\"eos_token_id\": [151645, 151643]}").unwrap();
}

/// The token ids that the sampler makes of prompts.
fn prompt_ids(dir: &Path, rows: &[Value]) -> Vec<Value> {
    let [model, prompts, output] = ["model", "prompts.jsonl", "output.jsonl"].map(|name| dir.join(name));
    fs::write(&prompts, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
    let mut args: Vec<_> = ["generate", "--max-completion-length", "1", "--num-generations", "1"].map(Path::new).into();
    args.extend([Path::new("--model"), &model, Path::new("--prompts"), &prompts, Path::new("--output"), &output]);
    let _ = cli::run("rollout", args).success();
    json_lines(&output).into_iter().map(|mut row| row["prompt_ids"].take()).collect()
}

#[test]
fn prompts_tokenise_as_in_the_reference() {
    let Some(data) = data_dir("prompts_tokenise_as_in_the_reference") else { return };
    let dir = tempfile::tempdir().unwrap();
    write_model(&data, &dir.path().join("model"));
    let text = fs::read_to_string(data.join("tokenizers/qwen2.5/reference.json")).unwrap();
    let reference: Value = serde_json::from_str(&text).unwrap();
    let list = |key: &str| reference[key].as_array().unwrap().clone();

    let texts = list("encode").into_iter().filter(|case| !case["ids"].as_array().unwrap().is_empty());
    let chats = list("chat").into_iter().filter(|case| case["add_generation_prompt"] == true);
    let (rows, expected): (Vec<_>, Vec<_>) = texts
        .map(|case| (json!({"prompt": case["text"]}), case["ids"].clone()))
        .chain(chats.map(|case| (json!({"prompt": case["messages"]}), case["ids"].clone())))
        .unzip();
    assert!(expected.len() > 10, "the reference has cases of both kinds");
    for ((row, found), expected) in rows.iter().zip(prompt_ids(dir.path(), &rows)).zip(expected) {
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn two_steps_run_with_the_full_vocabulary() {
    let Some(data) = data_dir("two_steps_run_with_the_full_vocabulary") else { return };
    let dir = tempfile::tempdir().unwrap();
    write_model(&data, &dir.path().join("model"));
    // A random model hardly ever ends a completion, let alone answers; the stop string makes the lengths differ, so
    // that there is something to learn.
    let shorter = format!(
        "model = {:?}\ndataset = {:?}\nreward_funcs = [\"gsm8k\", \"length:target=6\"]\nmax_steps = 2\nwarmup_steps = \
         0\n\
         num_generations = 4\ngeneration_batch_size = 8\nper_device_train_batch_size = 8\nmax_completion_length = 8\n\
         learning_rate = 1e-3\nstop = [\"e\"]\n",
        dir.path().join("model"),
        data.join("gsm8k/train.jsonl")
    );
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/gsm8k/run.toml");
    let mut config: toml::Table = fs::read_to_string(example).unwrap().parse().unwrap();
    config.extend(shorter.parse::<toml::Table>().unwrap());
    let training = train(dir.path(), "run", &config.to_string());
    assert_eq!(training.curve("step"), [1.0, 2.0]);
    let tokens = training.curve("num_tokens");
    assert!(tokens[1] > tokens[0] && tokens[0] > 8.0 * 30.0, "{tokens:?}");
    assert!(training.curve("mismatch_kl").iter().all(|&kl| kl < 1e-9));
    assert!(training.curve("grad_norm").iter().any(|&norm| norm > 0.0));

    let completions = json_lines(&training.run.join("completions/step-1.jsonl"));
    assert_eq!(completions.len(), 8);
    let prompt = completions[0]["prompt"].as_str().unwrap();
    assert!(
        prompt.starts_with("<|im_start|>system\nThink step by step and end with #### and the number.<|im_end|>\n"),
        "{prompt}"
    );
    assert!(prompt.ends_with("<|im_start|>assistant\n"), "{prompt}");
}
