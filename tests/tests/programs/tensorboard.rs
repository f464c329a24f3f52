//! The event files of a run, as TensorBoard itself reads them.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{bench::Bench, cli, skipped, training::json_lines};
use serde_json::Value;

/// With a checkpoint in the middle, and evaluations.
const CONFIG: &str = "dataset = [\"prompts.jsonl\"]\neval_dataset = \"prompts.jsonl\"\neval_steps = 4\nsave_steps = 3\n\
                      max_completion_length = 24\nnum_generations = 4\ngeneration_batch_size = 8\n\
                      per_device_train_batch_size = 8\nlearning_rate = 1e-3\n";

/// Everything that TensorBoard knows of a folder: `{tag: [[step, value]]}`, of histograms count and sum.
const READ: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={k: 0 for k in ("scalars", "histograms", "tensors")}).Reload()
tags, found = events.Tags(), {}
for tag in tags["scalars"]:
    found[tag] = [[e.step, e.value] for e in events.Scalars(tag)]
for tag in tags["histograms"]:
    found[tag] = [[e.step, e.histogram_value.num, e.histogram_value.sum] for e in events.Histograms(tag)]
for tag in tags["tensors"]:
    assert events.SummaryMetadata(tag).plugin_data.plugin_name == "text", tag
    found[tag] = [[e.step, *(text.decode() for text in e.tensor_proto.string_val)] for e in events.Tensors(tag)]
print(json.dumps(found))
"#;

/// A Python that has TensorBoard: `TANDEM_TENSORBOARD_PYTHON`, the `python3` of the path, or a new environment that pip
/// fills.
fn python(folder: &Path) -> Option<PathBuf> {
    let imports = |python: &Path| {
        let mut import = Command::new(python);
        import.args(["-c", "import tensorboard.backend.event_processing.event_accumulator"]);
        import.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    if let Some(named) = env::var_os("TANDEM_TENSORBOARD_PYTHON").map(PathBuf::from) {
        assert!(imports(&named), "TANDEM_TENSORBOARD_PYTHON is {}, which cannot import it", named.display());
        return Some(named);
    }
    if imports(Path::new("python3")) {
        return Some("python3".into());
    }
    let quietly = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let python = folder.join("bin/python");
    // TensorBoard still asks for a module that newer setuptools do not have.
    let packages =
        ["-m", "pip", "install", "--quiet", "--retries", "0", "--timeout", "20", "tensorboard", "setuptools<81"];
    let made = quietly(Command::new("python3").args(["-m", "venv"]).arg(folder))
        && quietly(Command::new(&python).args(packages))
        && imports(&python);
    made.then_some(python)
}

#[test]
fn tensorboard_shows_what_the_records_of_a_resumed_run_hold() {
    let environment = tempfile::tempdir().unwrap();
    let Some(python) = python(environment.path()) else {
        return skipped("TensorBoard", "no Python here has it, and pip cannot install it");
    };
    let bench = Bench::new(CONFIG);
    let _ = cli::finish(bench.command("run", &["--max_steps", "5", "--chaos", "seed=3,kill=0.5"])).success();
    // The first launcher went on to step 5, which is lost with its checkpoint.
    std::fs::remove_dir_all(bench.path("run/checkpoint-5")).unwrap();
    let more = ["--max_steps", "9", "--resume_from_checkpoint", "latest"];
    let _ = cli::finish(bench.command("run", &more)).success();

    let mut read = Command::new(python);
    read.args(["-c", READ]).arg(bench.path("run"));
    let shown = cli::finish(read).success().stdout;
    let shown: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    let compare = |file: &str, tag: &str, key: &str| {
        let records = json_lines(&bench.path(file));
        let expected: Vec<(u64, f32)> = records
            .iter()
            .filter_map(|record| Some((record["step"].as_u64()?, record[key].as_f64()? as f32)))
            .collect();
        let events = shown[tag].as_array().unwrap_or_else(|| panic!("{tag} is not shown: {shown:.300}"));
        let events: Vec<(u64, f32)> =
            events.iter().map(|event| (event[0].as_u64().unwrap(), event[1].as_f64().unwrap() as f32)).collect();
        assert_eq!(events, expected, "{tag}");
        expected.len()
    };
    for key in ["reward", "loss", "step_time", "rewards/length/mean", "completions/mean_length"] {
        assert_eq!(compare("run/metrics.jsonl", &format!("train/{key}"), key), 9);
    }
    assert!(compare("run/eval.jsonl", "eval/accuracy", "eval_accuracy") > 2);
    for (step, event) in (1..=9).zip(shown["completions/lengths"].as_array().unwrap()) {
        let completions = json_lines(&bench.path(&format!("run/completions/step-{step}.jsonl")));
        let tokens: f64 = completions.iter().map(|line| line["tokens"].as_f64().unwrap()).sum();
        assert_eq!(event.to_string(), serde_json::json!([step, completions.len() as f64, tokens]).to_string());
    }
    // This reader of TensorBoard's keeps texts of steps that were made again.
    let texts = shown["completions/samples"].as_array().unwrap();
    let steps: BTreeSet<u64> = texts.iter().filter_map(|event| event[0].as_u64()).collect();
    assert_eq!(steps, (1..=9).collect());
    assert!(texts.iter().all(|event| event[1].as_str().unwrap().starts_with("best completion of the step: reward ")));
}
