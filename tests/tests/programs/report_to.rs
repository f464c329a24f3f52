//! `report_to`, with the trackers' own packages, which speak to no network here.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use harness::{bench::Bench, cli, skipped, training::json_lines};
use serde_json::Value;

const CONFIG: &str = "dataset = [\"prompts.jsonl\"]\neval_dataset = \"prompts.jsonl\"\neval_steps = 2\nsave_steps = 2\n\
                      max_completion_length = 16\nnum_generations = 4\ngeneration_batch_size = 8\n\
                      per_device_train_batch_size = 8\nlearning_rate = 1e-3\n";

/// Everything that wandb's offline runs hold of a folder: `{key: [value, ...]}` in the order in which it was told.
const READ_WANDB: &str = r#"
import glob, json, struct, sys
from wandb.proto import wandb_internal_pb2

def records(data):
    # LevelDB's log format behind a header of 7 bytes.
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""

found = {}
for path in sorted(glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")):
    with open(path, "rb") as file:
        for data in records(file.read()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                found.setdefault(item.key or "/".join(item.nested_key), []).append(json.loads(item.value_json))
print(json.dumps(found))
"#;

const READ_TRACKIO: &str = r#"
import glob, json, sqlite3, sys
found = {}
for path in glob.glob(sys.argv[1] + "/**/*.db", recursive=True):
    with sqlite3.connect(path) as db:
        for (metrics,) in db.execute("select metrics from metrics order by id"):
            for key, value in json.loads(metrics).items():
                found.setdefault(key, []).append(value)
print(json.dumps(found))
"#;

/// A Python that has a package: `TANDEM_TRACKERS_PYTHON`, or the `python3` of the path.
fn python(package: &str) -> Option<PathBuf> {
    let named = env::var_os("TANDEM_TRACKERS_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let mut import = Command::new(&named);
    import.args(["-c", &format!("import {package}")]).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success()).then_some(named)
}

/// What keeps the packages in the folder, and off the network.
fn offline<'c>(command: &'c mut Command, bench: &Bench) -> &'c mut Command {
    let folder = bench.path("");
    command.env("WANDB_MODE", "offline").env("WANDB_DIR", &folder).env("WANDB_SILENT", "true");
    command.env("TRACKIO_DIR", bench.path("trackio")).env("HF_HUB_OFFLINE", "1").env("HOME", &folder)
}

/// Trains 3 steps, and 2 more after a resume; a tracker is told of each step and evaluation once.
fn told(tracker: &str, read: &str) {
    let Some(python) = python(tracker) else {
        return skipped(&format!("report_to {tracker}"), "no Python here has it");
    };
    let bench = Bench::new(CONFIG);
    let word = python.display().to_string();
    let common = ["--report_to", tracker, "--reward_python", &word, "--run_name", "a run"];
    for more in [&["--max_steps", "3"][..], &["--max_steps", "5", "--resume_from_checkpoint", "latest"]] {
        let mut command = bench.command("run", &[&common, more].concat());
        let finished = cli::finish(std::mem::replace(offline(&mut command, &bench), Command::new("true"))).success();
        assert!(!finished.stderr.contains("warning: `report_to`"), "{}", finished.stderr);
    }
    let mut reader = Command::new(&python);
    reader.args(["-c", read]).arg(bench.path(""));
    let text = cli::finish(std::mem::replace(offline(&mut reader, &bench), Command::new("true"))).success().stdout;
    let shown: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    for (file, told, key) in [
        ("metrics.jsonl", "train/reward", "reward"),
        ("metrics.jsonl", "train/grad_norm", "grad_norm"),
        ("eval.jsonl", "eval/reward", "eval_reward"),
    ] {
        let expected: Vec<Option<f64>> =
            json_lines(&bench.path("run").join(file)).iter().map(|record| record[key].as_f64()).collect();
        assert!(expected.len() >= 3);
        let shown: Vec<Option<f64>> = shown[told].as_array().expect("a list").iter().map(Value::as_f64).collect();
        assert_eq!(shown, expected, "{told}");
    }
}

#[test]
fn wandb_is_told_of_every_step_once() {
    told("wandb", READ_WANDB);
}

#[test]
fn trackio_is_told_of_every_step_once() {
    told("trackio", READ_TRACKIO);
}

#[test]
fn a_tracker_that_cannot_begin_ends_the_run_before_its_first_step() {
    let bench = Bench::new(CONFIG);
    let unknown = cli::finish(bench.command("run", &["--report_to", "mlflow", "--max_steps", "1"]));
    assert!(unknown.refusal().contains("`report_to` knows wandb and trackio, got `mlflow`"), "{}", unknown.stderr);
    // A package of this name that does not work.
    let package = bench.path("package");
    fs::create_dir(&package).unwrap();
    fs::write(package.join("wandb.py"), "raise ImportError('it is broken')\n").unwrap();
    for more in [&[][..], &["--dry-run"]] {
        let options = [&["--report_to", "wandb", "--max_steps", "1"], more].concat();
        let mut command = bench.command("run", &options);
        command.env("PYTHONPATH", &package);
        let refused = cli::finish(command);
        let words = "`report_to`: wandb: it is broken; `pip install wandb`";
        assert!(refused.refusal().contains(words), "{}", refused.stderr);
    }
    assert!(!Path::new(&bench.path("run/metrics.jsonl")).exists());
}

/// A tracker that fails later does not end the run, which says so.
#[test]
fn a_tracker_that_fails_later_is_named_and_the_run_goes_on() {
    let bench = Bench::new(CONFIG);
    let package = bench.path("package");
    fs::create_dir(&package).unwrap();
    let text = "def init(**_): pass\ndef log(*_, **__): raise OSError('no room')\ndef finish(): pass\n";
    fs::write(package.join("trackio.py"), text).unwrap();
    let mut command = bench.command("run", &["--report_to", "trackio", "--max_steps", "2"]);
    command.env("PYTHONPATH", &package);
    let finished = cli::finish(command).success();
    assert!(finished.stderr.contains("warning: `report_to` failed"), "{}", finished.stderr);
    assert!(fs::read_to_string(bench.path("run/logs/report_to.log")).unwrap().contains("no room"));
}
