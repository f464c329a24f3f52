//! `rollout generate` and `rollout eval` as a user runs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use harness::{
    cli::{self, Finished},
    data_dir,
    tiny_model::{self, Qwen2},
};
use serde_json::{Value, json};

const TINY: Qwen2 = Qwen2 { num_hidden_layers: 2, ..tiny_model::TINY };

/// A folder with a random model of characters and a file of prompts.
struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new(rows: &[Value]) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        TINY.write(&place.path("model"), 7);
        tiny_model::write_tokenizer(&place.path("model"));
        fs::write(place.path("prompts.jsonl"), rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, words: &str) -> Finished {
        let mut command = Command::new(harness::binary("rollout"));
        command.args(words.split(' ')).current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        cli::finish(command)
    }

    fn generate(&self, words: &str) -> Finished {
        self.run(&format!("generate --model model --prompts prompts.jsonl --output out.jsonl {words}"))
    }

    fn eval(&self, words: &str) -> Finished {
        self.run(&format!("eval --model model --dataset prompts.jsonl {words}"))
    }
}

fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn three_prompts() -> Folder {
    Folder::new(&[
        json!({"prompt": "1 + 1 ="}),
        json!({"prompt_ids": [20, 30, 40, 50], "answer": "x"}),
        json!({"question": "How many dogs?", "answer": "one dog\n#### 1"}),
    ])
}

#[test]
fn rows_are_complete_and_ordered_and_repeat_whatever_the_batch() {
    let place = three_prompts();
    let mut outputs = Vec::new();
    for (seqs, threads) in [(1, 1), (2, 2), (8, 1), (64, 2)] {
        let finished = place.generate(&format!(
            "--num-generations 3 --max-completion-length 12 --seed 5 --max-num-seqs {seqs} --threads {threads}"
        ));
        assert!(finished.success().stderr.contains("9 completions of 3 prompts"));
        outputs.push(fs::read(place.path("out.jsonl")).unwrap());
    }
    assert!(outputs.iter().all(|output| *output == outputs[0]));

    let rows = rows(&place.path("out.jsonl"));
    let keys: Vec<(u64, u64)> =
        rows.iter().map(|r| (r["prompt_id"].as_u64().unwrap(), r["sample"].as_u64().unwrap())).collect();
    assert_eq!(keys, (0..3).flat_map(|p| (0..3).map(move |s| (p, s))).collect::<Vec<_>>());
    for row in &rows {
        let tokens = row["token_ids"].as_array().unwrap().len();
        assert!((1..=12).contains(&tokens));
        assert_eq!(row["logprobs"].as_array().unwrap().len(), tokens);
        assert!(row["logprobs"].as_array().unwrap().iter().all(|l| l.as_f64().unwrap() < 0.0));
        match row["finish_reason"].as_str().unwrap() {
            "stop" => assert_eq!(row["token_ids"][tokens - 1], 0, "only the end-of-sequence token stops this model"),
            reason => assert_eq!((reason, tokens), ("length", 12)),
        }
        assert!(row.get("rewards").is_none());
    }
    assert_eq!(rows[3]["prompt_ids"], json!([20, 30, 40, 50]));
    assert_ne!(rows[0]["token_ids"], rows[1]["token_ids"]);

    let _ = place.generate("--num-generations 3 --max-completion-length 12 --seed 6").success();
    assert_ne!(fs::read(place.path("out.jsonl")).unwrap(), outputs[0]);
}

#[test]
fn completions_end_at_stop_strings() {
    let place = three_prompts();
    let _ = place.generate("--temperature 0 --max-completion-length 30").success();
    let whole = rows(&place.path("out.jsonl"));
    // Two characters of the first completion, as a string of two tokens.
    let text = whole[0]["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(2).collect();
    assert_eq!(stop.len(), 2, "the first completion is long enough: {text}");
    let mut command = Command::new(harness::binary("rollout"));
    command
        .args("generate --model model --prompts prompts.jsonl --output out.jsonl --temperature 0".split(' '))
        .args(["--max-completion-length", "30", "--stop", &stop])
        .current_dir(place.path(""))
        .env("TANDEM_CACHE_DIR", place.path("cache"));
    let _ = cli::finish(command).success();
    for (row, whole) in rows(&place.path("out.jsonl")).iter().zip(&whole) {
        let (text, whole_text) = (row["text"].as_str().unwrap(), whole["text"].as_str().unwrap());
        match whole_text.find(&stop) {
            Some(at) => {
                assert_eq!(text, &whole_text[..at + stop.len()]);
                assert_eq!(row["finish_reason"], "stop");
            }
            None => assert_eq!(text, whole_text),
        }
    }
}

#[test]
fn completions_end_at_the_tokenizers_end_too() {
    let place = three_prompts();
    let greedy = "--temperature 0 --max-completion-length 30";
    let _ = place.generate(greedy).success();
    let whole = rows(&place.path("out.jsonl"));
    let end: String = whole[0]["text"].as_str().unwrap().chars().skip(3).take(1).collect();
    let config = json!({"eos_token": end});
    fs::write(place.path("model/tokenizer_config.json"), config.to_string()).unwrap();
    let _ = place.generate(greedy).success();
    for (row, whole) in rows(&place.path("out.jsonl")).iter().zip(&whole) {
        let (text, whole) = (row["text"].as_str().unwrap(), whole["text"].as_str().unwrap());
        assert_eq!(text, whole.split_once(&end).map_or(whole, |(before, _)| before), "it is special, and no text");
        if whole.contains(&end) {
            assert_eq!(row["finish_reason"], "stop");
        }
    }
    // No file names an end.
    for name in ["config.json", "generation_config.json"] {
        let path = place.path("model").join(name);
        let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        json.as_object_mut().unwrap().remove("eos_token_id");
        fs::write(&path, json.to_string()).unwrap();
    }
    fs::write(place.path("model/tokenizer_config.json"), "{}").unwrap();
    let told = place.generate(greedy).success().stderr;
    assert!(told.contains("warning: ") && told.contains("no file names a token that ends a sequence"), "{told}");
}

#[test]
fn templates_have_switches_and_may_be_others() {
    let place = Folder::new(&[json!({"prompt": [{"role": "user", "content": "1 + 1 ="}]})]);
    let source = "{{ messages[0].content }}{% if think %} hm{% endif %}";
    fs::write(place.path("short.jinja"), source).unwrap();
    let prompt = |words: &str| {
        let told = place
            .generate(format!("--max-completion-length 1 --chat-template short.jinja {words}").trim_end())
            .success()
            .stderr;
        (rows(&place.path("out.jsonl"))[0]["prompt"].as_str().unwrap().to_owned(), told)
    };
    assert_eq!(prompt("").0, "1 + 1 =");
    let (text, told) = prompt(r#"--chat-template-kwargs {"think":true}"#);
    assert!(text == "1 + 1 = hm" && !told.contains("chat-template-kwargs"), "{text}: {told}");
    let (text, told) = prompt(r#"--chat-template-kwargs {"enable_thinking":false}"#);
    let reads = "--chat-template-kwargs: enable_thinking changes nothing: the chat template reads think";
    assert!(text == "1 + 1 =" && told.contains(reads), "{text}: {told}");
    let refused = place.generate("--chat-template no.jinja");
    let refused = refused.refusal();
    assert!(refused.contains("--chat-template: no.jinja: no such file"), "{refused}");
}

#[test]
fn rewards_come_with_the_rows() {
    let place = three_prompts();
    let rewards = "--reward-funcs gsm8k,length:target=4,repetition_penalty:ngram_size=2 --reward-weights 1,0.5,-2";
    let _ = place.generate(&format!("--num-generations 2 --max-completion-length 8 {rewards}")).success();
    let rows = rows(&place.path("out.jsonl"));
    for row in &rows {
        let scores = &row["rewards"];
        let tokens = row["token_ids"].as_array().unwrap().len() as f64;
        let length = scores["length"].as_f64().unwrap();
        assert_eq!(length, -((tokens - 4.0).abs() / 4.0).min(1.0));
        let repetition = scores["repetition_penalty"].as_f64().unwrap();
        // The first prompt has no answer, so gsm8k abstains.
        let gsm8k = scores["gsm8k"].as_f64();
        assert_eq!(gsm8k.is_none(), row["prompt_id"] == 0);
        assert_eq!(row["reward"].as_f64().unwrap(), gsm8k.unwrap_or(0.0) + 0.5 * length - 2.0 * repetition);
    }
    assert_eq!(rows.len(), 6);
}

#[test]
fn eval_prints_one_flat_object_that_agrees_with_its_rows() {
    let place = three_prompts();
    let finished = place
        .eval(
            "--reward-funcs length:target=6,finished --correct-at -0.5 --num-generations 4 --max-completion-length 8 \
             --output out.jsonl",
        )
        .success();
    let record: Value = serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap();
    let record = record.as_object().unwrap();
    assert!(record.values().all(|value| value.is_number()), "{record:?}");
    for metric in shared::metrics::EVALUATION.metrics.iter().filter(|metric| metric.when.is_none()) {
        assert!(record.keys().any(|key| metric.name_in(key).is_some()), "{} is missing", metric.key);
    }
    let rows = rows(&place.path("out.jsonl"));
    assert_eq!(rows.len(), 12);
    let correct: Vec<bool> = rows.iter().map(|row| row["rewards"]["length"].as_f64().unwrap() >= -0.5).collect();
    let average = correct.iter().filter(|&&c| c).count() as f64 / 12.0;
    let solved = correct.chunks(4).filter(|samples| samples.contains(&true)).count() as f64 / 3.0;
    let mean = rows.iter().map(|row| row["reward"].as_f64().unwrap()).sum::<f64>() / 12.0;
    let tokens: usize = rows.iter().map(|row| row["token_ids"].as_array().unwrap().len()).sum();
    for (key, value) in [
        ("avg@4", average),
        ("pass@1", average),
        ("pass@4", solved),
        ("eval_reward", mean),
        ("eval_num_tokens", tokens as f64),
    ] {
        assert!((record[key].as_f64().unwrap() - value).abs() < 1e-9, "{key}: {record:?}");
    }
    assert!(finished.stderr.contains("pass@4"));
    assert!(finished.stderr.contains("no maj@4: `length:target=6` does not extract an answer"), "{}", finished.stderr);

    // One completion per prompt is greedy, so it repeats whatever the seed.
    let greedy = |seed: u32| {
        let words =
            format!("--reward-funcs finished --max-completion-length 8 --limit 2 --seed {seed} --output out.jsonl");
        let _ = place.eval(&words).success();
        self::rows(&place.path("out.jsonl"))
    };
    assert_eq!(greedy(1).len(), 2);
    assert_eq!(greedy(1), greedy(2));
}

/// An evaluation that was killed in the middle, twice, and has a torn end gives the same result as one that was not.
#[test]
fn an_evaluation_that_was_killed_goes_on() {
    let prompts: Vec<Value> = (1..=400).map(|n| json!({"prompt": format!("{n} + {n} =")})).collect();
    let place = Folder::new(&prompts);
    let flags = "--reward-funcs length:target=9 --num-generations 3 --max-completion-length 24 --max-num-seqs 2";
    let words = |output: &str, more: &str| format!("{flags} --output {output} {more}").trim_end().to_owned();
    let figures = |finished: &Finished| -> Value {
        let mut record: Value = serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap();
        for key in ["eval_seconds", "eval_tokens_per_s"] {
            record.as_object_mut().unwrap().remove(key).unwrap();
        }
        record
    };
    let whole = place.eval(&words("whole.jsonl", "")).success();
    let partial = place.path("out.jsonl.partial");
    let size = || fs::metadata(&partial).map_or(0, |file| file.len());
    for more in ["", "--resume"] {
        let words = words("out.jsonl", more);
        let before = size();
        let mut child = Command::new(harness::binary("rollout"))
            .args(format!("eval --model model --dataset prompts.jsonl {words}").split(' '))
            .current_dir(place.path(""))
            .env("TANDEM_CACHE_DIR", place.path("cache"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The first line alone has less.
        while size() < before + 8_000 && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success(), "it was done before it was killed");
        assert!(size() > before && !place.path("out.jsonl").exists());
    }
    let kept = size();
    fs::File::options().write(true).open(&partial).unwrap().set_len(kept - 3).unwrap();
    for (more, refusal) in [
        ("", "--resume goes on with it"),
        ("--resume --seed 9", "another seed"),
        ("--resume --limit 20", "another dataset"),
    ] {
        let refused = place.eval(&words("out.jsonl", more));
        assert!(refused.refusal().contains(refusal), "{more}: {}", refused.stderr);
    }
    let resumed = place.eval(&words("out.jsonl", "--resume")).success();
    assert_eq!(figures(&resumed), figures(&whole));
    assert!(fs::read(place.path("out.jsonl")).unwrap() == fs::read(place.path("whole.jsonl")).unwrap());
    assert!(!partial.exists());
    assert!(place.eval(&words("out.jsonl", "--resume")).refusal().contains("out.jsonl is whole"));
}

/// One model under pairs of seeds, whose completions differ by chance alone.
#[test]
fn compare_takes_chance_for_what_it_is() {
    let prompts: Vec<Value> = (1..=40).map(|n| json!({"prompt": format!("{n} + {n} =")})).collect();
    let place = Folder::new(&prompts);
    let compare = |words: &str| -> (Value, String) {
        let finished = place
            .run(&format!("compare {words} --dataset prompts.jsonl --num-generations 2 --max-completion-length 12"))
            .success();
        (serde_json::from_str(finished.stdout.lines().last().unwrap()).unwrap(), finished.stderr)
    };
    let rewards = "--reward-funcs length:target=12 --correct-at 0";
    let verdicts: Vec<Value> = (1..=20)
        .map(|seed| compare(&format!("model model {rewards} --seed {seed} --seed-b {}", seed + 100)).0)
        .collect();
    for figure in ["accuracy", "reward"] {
        let same = verdicts.iter().filter(|verdict| verdict[figure]["verdict"] == "no_difference").count();
        assert!(same >= 17, "{figure}: {same} of 20");
    }
    let (same, said) = compare(&format!("model model {rewards} --seed 1"));
    assert_eq!((&same["reward"]["difference"], &same["reward"]["prompts"]), (&json!(0.0), &json!(40)));
    assert!(
        said.contains("reward: no difference: ") && said.contains(" over 40 prompts; no more than chance"),
        "{said}"
    );
    let refused = place.run("compare model nowhere --dataset prompts.jsonl --reward-funcs finished");
    assert!(refused.refusal().contains("nowhere"), "{}", refused.stderr);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let place = three_prompts();
    for (words, parts) in [
        ("--temperature=-1", vec!["--temperature must be 0 (greedy) or a positive number, got -1"]),
        ("--top-p 0", vec!["--top-p must be in (0, 1]"]),
        ("--max-completion-length 0", vec!["--max-completion-length must be at least 1"]),
        ("--reward-funcs formt", vec!["unknown reward function `formt` (did you mean `format`?)", "gsm8k"]),
        ("--reward-funcs countdown", vec!["`countdown` needs the column nums, but no row of prompts.jsonl has it"]),
        ("--reward-funcs format --reward-weights 1,2", vec!["--reward-weights has 2 entries for 1 reward functions"]),
        ("--reward-funcs format --reward-timeout 0", vec!["--reward-timeout must be a number of seconds above 0"]),
        ("--max-model-len 100000", vec!["--max-model-len 100000 is beyond the model's limit"]),
        ("--max-model-len 2", vec!["prompts.jsonl: none of its 3 prompts leaves room", "max_model_len"]),
        ("--max-num-seqs 0", vec!["--max-num-seqs must be at least 1"]),
        ("--threads 0", vec!["--threads must be at least 1"]),
        ("--system-prompt hi", vec!["prompts.jsonl, line 1: the model has no chat template"]),
        ("--output .", vec!["--output .: is a folder"]),
    ] {
        let words = if words.starts_with("--output") {
            format!("generate --model model --prompts prompts.jsonl {words}")
        } else {
            format!("generate --model model --prompts prompts.jsonl --output out.jsonl {words}")
        };
        let finished = place.run(&words);
        let refusal = finished.refusal();
        assert!(parts.iter().all(|part| refusal.contains(part)), "{words}: {refusal}");
    }
    assert!(!place.path("out.jsonl").exists());
    assert!(place.eval("--limit 1").refusal().contains("--reward-funcs is missing"));
    let same = place.eval("--reward-funcs finished --num-generations 2 --temperature 0");
    assert!(same.refusal().contains("makes all 2 completions of a prompt the same"));
    let over = place.run("generate --model model --prompts prompts.jsonl --output prompts.jsonl");
    let line = over.refusal().to_owned();
    assert!(line.contains("--output prompts.jsonl") && line.contains("--prompts"), "{line}");
}

#[test]
fn every_reward_function_is_listed() {
    let finished = three_prompts().run("rewards").success();
    for entry in rollout::reward::registry().entries() {
        assert!(finished.stdout.contains(&format!("\n{}\n    {}\n", entry.name, entry.about)), "{}", finished.stdout);
    }
}

/// The pretrained model's greedy completions are those of transformers, token for token.
#[test]
fn stories_are_reproduced_from_their_prompts() {
    let Some(data) = data_dir("stories_are_reproduced_from_their_prompts") else { return };
    let model = data.join("stories260K");
    let reference: Value = serde_json::from_str(&fs::read_to_string(model.join("reference.json")).unwrap()).unwrap();
    let cases = reference["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    let rows_of = |key: &str| -> Vec<Value> { cases.iter().map(|case| json!({key: case[key]})).collect() };
    for key in ["prompt", "prompt_ids"] {
        let place = Folder::new(&rows_of(key));
        let command = format!("generate --model {} --prompts prompts.jsonl --output out.jsonl", model.display());
        let _ = place.run(&format!("{command} --temperature 0 --max-completion-length 200")).success();
        let rows = rows(&place.path("out.jsonl"));
        assert_eq!(rows.len(), cases.len());
        for (row, case) in rows.iter().zip(cases) {
            let tokens = case["continuation_ids"].as_array().unwrap();
            assert_eq!(row["prompt_ids"], case["prompt_ids"]);
            assert_eq!(row["token_ids"].as_array().unwrap()[..tokens.len()], tokens[..], "{}", case["prompt"]);
            for (found, expected) in
                row["logprobs"].as_array().unwrap().iter().zip(case["logprobs"].as_array().unwrap())
            {
                assert!((found.as_f64().unwrap() - expected.as_f64().unwrap()).abs() < 1e-4);
            }
        }
    }
}
