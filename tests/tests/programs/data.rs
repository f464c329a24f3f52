//! Data as users have them, through the programs.

use std::{fs, path::PathBuf};

use harness::{
    cli::{self, Finished},
    tiny_model::{self, SMALL},
    training::{json_lines, train},
};

/// A file that real libraries have written.
fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data/tests/fixtures").join(name)
}

/// A folder with a model.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        SMALL.write(&dir.path().join("model"), 5);
        tiny_model::write_tokenizer(&dir.path().join("model"));
        let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
        fs::write(dir.path().join("model/chat_template.jinja"), template).unwrap();
        Self { dir }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn config(&self, dataset: &str) -> String {
        let model = self.dir.path().join("model");
        format!(
            "model = {model:?}\n{dataset}\nreward_funcs = [\"numeric\", \"length:target=6\"]\nmax_steps = 2\n\
             num_generations = 4\ngeneration_batch_size = 16\nper_device_train_batch_size = 16\n\
             max_completion_length = 16\nlearning_rate = 1e-3\n"
        )
    }

    /// `tandem train --dry-run`.
    fn dry_run(&self, dataset: &str) -> Finished {
        let run = self.dir.path().join("run");
        let file = self.write("run.toml", format!("output_dir = {run:?}\n{}", self.config(dataset)));
        cli::run("tandem", ["train", file.to_str().unwrap(), "--dry-run"])
    }

    fn refusal(&self, dataset: &str) -> String {
        self.dry_run(dataset).refusal().to_owned()
    }
}

#[test]
fn the_same_rows_in_any_format_make_the_same_weights() {
    let bench = Bench::new();
    let rows = (1..=8).map(|n| (format!("{}=", vec![n.to_string(); n].join("+")), n * n));
    let rows: Vec<(String, usize)> = rows.collect();
    let lines = rows.iter().map(|(prompt, answer)| format!("{{\"prompt\": {prompt:?}, \"answer\": {answer}}}\n"));
    let lines = bench.write("rows.jsonl", lines.collect::<String>());
    let cells = rows.iter().map(|(prompt, answer)| format!("{answer};\"{prompt}\"\r\n"));
    let cells = bench.write("rows.csv", format!("\u{feff}answer;task\r\n{}", cells.collect::<String>()));
    let run = |name: &str, data: String| train(bench.dir.path(), name, &bench.config(&data));
    let expected = run("lines", format!("dataset = {lines:?}"));
    for (name, data) in [
        ("parquet", format!("dataset = {:?}", fixture("sums.parquet"))),
        ("csv", format!("dataset = {cells:?}\nprompt_column = \"task\"")),
    ] {
        let found = run(name, data);
        assert!(found.checkpoint("weights.data") == expected.checkpoint("weights.data"), "{name}");
        assert_eq!(found.curve("rewards/numeric/mean"), expected.curve("rewards/numeric/mean"), "{name}");
    }
}

#[test]
fn a_run_says_what_it_is_trained_on() {
    let bench = Bench::new();
    let question = bench.write("questions.csv", "question,answer\n2 + 3?,It is 5. #### 5\n");
    for (data, about) in [
        (
            format!("dataset = {:?}", fixture("saved_splits")),
            "saved by `save_to_disk`, split `train`, 2 rows; plain prompts",
        ),
        (
            format!("dataset = {:?}\ndataset_train_split = \"test\"", fixture("saved_splits")),
            "saved by `save_to_disk`, split `test`, 1 row; plain prompts",
        ),
        (format!("dataset = {question:?}"), "questions.csv: CSV, 1 row; questions in GSM8K's shape"),
        (format!("dataset = {:?}", fixture("verl.zstd.parquet")), "Parquet, 2 rows; verl's rows"),
    ] {
        let said = bench.dry_run(&data).success().stdout;
        assert!(said.contains("# dataset ") && said.contains(about), "{about}: {said}");
    }
}

#[test]
fn what_cannot_be_trained_on_is_refused_before_anything_starts() {
    let bench = Bench::new();
    let sheet = bench.write("rows.xlsx", b"PK\x03\x04 and more");
    let broken = bench.write("broken.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\"");
    let cut = fs::read(fixture("sums.parquet")).unwrap();
    let cut = bench.write("cut.parquet", &cut[..cut.len() / 2]);
    let other = bench.write("other.csv", "Frage,Antwort\n2+3,5\n");
    let saved = fixture("saved_splits");
    for (data, words) in [
        (format!("dataset = {sheet:?}"), "is a spreadsheet, which is not read; export the sheet as CSV"),
        (format!("dataset = {broken:?}"), "broken.jsonl, line 2: is not valid JSON"),
        (format!("dataset = {cut:?}"), "cut.parquet: cannot be read as Parquet"),
        (format!("dataset = {other:?}"), "but `Frage`, `Antwort`; `prompt_column` names the column"),
        (format!("dataset = {other:?}\nprompt_column = \"frage\""), "line 2: has no column `frage` (`prompt_column`)"),
        (format!("dataset = {saved:?}\ndataset_train_split = \"dev\""), "has no split `dev`, but `train`, `test`"),
        (format!("dataset = [{saved:?}]\ndataset_weights = [1.0, 2.0]"), "`dataset_weights` has 2 entries"),
        (format!("dataset = [{saved:?}, {saved:?}]\ndataset_weights = [1000.0, 0.1]"), "`dataset_weights`: "),
        (format!("dataset = {:?}", bench.dir.path().join("model")), "is the directory of a model"),
    ] {
        let message = bench.refusal(&data);
        assert!(message.contains(words), "{words}: {message}");
    }
    assert!(!bench.dir.path().join("run").exists());
}

#[test]
fn prompts_without_room_for_a_completion_are_left_out_and_told() {
    let bench = Bench::new();
    let rows = bench.write(
        "rows.jsonl",
        format!("{{\"prompt\": \"1+1=\", \"answer\": 2}}\n{{\"prompt\": {:?}}}\n", "1+".repeat(40)),
    );
    let data = format!("dataset = {rows:?}\nmax_model_len = 24");
    let file =
        bench.write("run.toml", format!("output_dir = {:?}\n{}", bench.dir.path().join("run"), bench.config(&data)));
    let run = |more: &[&str]| {
        let mut words = vec!["train", file.to_str().unwrap()];
        words.extend(more);
        cli::run("tandem", words)
    };
    let told = run(&[]).success().stderr;
    let line = "rows.jsonl: of 2 prompts 1 left out (24 tokens or more leave no room for a completion)";
    assert_eq!(told.matches(line).count(), 1, "{told}");
    let prompts = |step: u64| json_lines(&bench.dir.path().join(format!("run/completions/step-{step}.jsonl")));
    assert!(prompts(1).iter().chain(&prompts(2)).all(|row| row["prompt"] == "1+1="));
    let elsewhere = format!("--output_dir={}", bench.dir.path().join("none").display());
    let none = run(&["--max_model_len=3", "--max_completion_length=2", &elsewhere]);
    let none = none.refusal();
    assert!(none.contains("none of its 2 prompts leaves room for a completion"), "{none}");
}

#[test]
fn typed_columns_bytes_and_messages_as_texts_are_read_or_told() {
    let bench = Bench::new();
    let texts =
        bench.write("texts.jsonl", r#"{"prompt": "[{\"role\": \"user\", \"content\": \"1 + 1?\"}]", "answer": 2}"#);
    let python = bench.write("python.csv", "prompt,answer\n\"[{'role': 'user', 'content': '1 + 1?'}]\",2\n");
    let shared = bench.write("shared.jsonl", r#"{"conversations": [{"from": "human", "value": "hi"}], "answer": 2}"#);
    for (data, words) in [
        (format!("dataset = {:?}", fixture("json.parquet")), "TRL's conversational rows"),
        (format!("dataset = {:?}", fixture("saved_json")), "TRL's conversational rows"),
        (format!("dataset = {texts:?}"), "its messages are written as texts of JSON, and read as messages"),
        (
            format!("dataset = {shared:?}\nprompt_column = \"conversations\""),
            "ShareGPT's messages (`from`, `value`) are read",
        ),
        (format!("dataset = {python:?}"), "`prompt` of 1 of 1 rows looks like a list of messages as Python prints it"),
    ] {
        let said = bench.dry_run(&data).success().stdout;
        assert!(said.contains(words), "{words}: {said}");
    }
    let columns = bench.write("columns.json", r#"{"prompt": ["a", "b"], "answer": ["1", "2"]}"#);
    let null = bench.write("null.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": null, \"answer\": 3}\n");
    let nan = bench.write("nan.jsonl", r#"{"prompt": "a", "answer": NaN}"#);
    for (data, words) in [
        (format!("dataset = {columns:?}"), "is one JSON object that holds everything"),
        (format!("dataset = {nan:?}"), "nan.jsonl, line 1: holds NaN (column 27), which JSON does not have"),
        (format!("dataset = {:?}", fixture("brotli.parquet")), "is compressed with brotli, which is not read"),
        (format!("dataset = {null:?}"), "line 2: `prompt` is neither a text nor a list of messages"),
    ] {
        let message = bench.refusal(&data);
        assert!(message.contains(words), "{words}: {message}");
    }
}

#[test]
fn prompts_of_the_evaluation_that_are_trained_on_are_told_before_the_start() {
    let bench = Bench::new();
    let trained =
        bench.write("trained.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"1+2=\", \"answer\": 3}\n");
    let held_out =
        bench.write("held_out.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n{\"prompt\": \"2+2=\", \"answer\": 4}\n");
    let words =
        "held_out.jsonl: 1 of 2 prompts of the evaluation are among those of the training, for instance \"1+1=\"";
    let data = format!("dataset = {trained:?}\neval_dataset = {held_out:?}\neval_steps = 1");
    let said = bench.dry_run(&data).success();
    assert!(said.stderr.contains(words), "{}", said.stderr);
    let file =
        bench.write("run.toml", format!("output_dir = {:?}\n{}", bench.dir.path().join("run"), bench.config(&data)));
    let told = cli::run("tandem", ["train", file.to_str().unwrap()]).success().stderr;
    assert_eq!(told.matches(words).count(), 1, "{told}");
}
