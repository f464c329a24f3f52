//! Runs and checkpoints of an earlier build still open: what is on users' disks outlives a change of format.

use std::{
    fs,
    path::{Path, PathBuf},
};

use harness::{cli, copy_folder, training::json_lines};
use serde_json::Value;
use shared::{Group, Placed, channel::in_flight::read_groups, files::run_dir::IN_FLIGHT_FILE};

/// The runs as the earlier build left them.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/runs")
}

/// A copy of all fixtures, which a test may go on with.
fn copied() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&fixtures(), dir.path());
    dir
}

/// Goes on with a run from its checkpoint after four steps; the run.
fn resume(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let run = dir.join(name);
    let mut command = std::process::Command::new(harness::binary("tandem"));
    command.arg("train").arg(dir.join("run.toml")).arg("--output_dir").arg(&run);
    command.args(flags).args(["--resume_from_checkpoint", "latest"]).env("TANDEM_CACHE_DIR", dir.join("cache"));
    let finished = cli::finish(command).success();
    assert!(finished.stderr.contains("goes on from checkpoint-4"), "{}", finished.stderr);
    run
}

/// Texts and rewards of a step's completions.
fn told(run: &Path, step: u32) -> Vec<(Value, Value)> {
    let rows = json_lines(&run.join(format!("completions/step-{step}.jsonl")));
    rows.into_iter().map(|mut row| (row["completion"].take(), row["reward"].take())).collect()
}

#[test]
fn synchronous_runs_of_an_earlier_build_go_on_as_they_would_have_there() {
    let dir = copied();
    for (name, flags) in [("sync", &[][..]), ("lora", &["--use_peft", "true", "--lora_r", "4"])] {
        let run = resume(dir.path(), name, flags);
        for step in [5, 6] {
            assert_eq!(told(&run, step), told(&fixtures().join(name), step), "{name}, step {step}");
        }
        let [now, then] = [&run, &fixtures().join(name)].map(|run| json_lines(&run.join("metrics.jsonl")));
        assert_eq!((now.len(), then.len()), (6, 6));
        for (now, then) in now.iter().zip(&then) {
            for key in ["reward", "loss", "grad_norm", "learning_rate"] {
                let [now, then] = [now, then].map(|record| record[key].as_f64().unwrap());
                // libtorch rounds as the processor's instructions do.
                assert!((now - then).abs() <= 1e-4 * then.abs().max(1e-2), "{name}, {key}: {now} and {then}");
            }
        }
    }
}

#[test]
fn asynchronous_runs_of_an_earlier_build_go_on() {
    let dir = copied();
    let asynchronous = ["--max_staleness", "2"];
    for (name, flags) in
        [("async", &[&asynchronous[..], &["--weight_swap", "continue"]].concat()[..]), ("fleet", &asynchronous)]
    {
        let run = resume(dir.path(), name, flags);
        assert_eq!(json_lines(&run.join("metrics.jsonl")).len(), 6, "{name}");
        assert_eq!(told(&run, 6).len(), 8, "{name}");
    }
}

#[test]
fn groups_that_an_earlier_build_kept_are_read() {
    for name in ["sync", "lora", "async", "fleet"] {
        let kept = read_groups::<Placed>(&fixtures().join(name).join("batches/step-4/groups.frames")).unwrap();
        assert_eq!(kept.iter().map(|group| group.completions.len()).collect::<Vec<_>>(), [4, 4], "{name}");
        assert!(kept.iter().flat_map(|group| &group.completions).all(|one| !one.token_ids().is_empty()), "{name}");
    }
    for name in ["async", "fleet"] {
        let kept = read_groups::<Group>(&fixtures().join(name).join("checkpoint-4").join(IN_FLIGHT_FILE)).unwrap();
        assert!(!kept.is_empty(), "{name}");
    }
}

#[test]
fn a_step_that_an_earlier_build_kept_is_trained_again() {
    let dir = copied();
    for name in ["sync", "lora"] {
        let run = dir.path().join(name);
        // The run names its model where it was; the copy has one of its own.
        let config = fs::read_to_string(run.join("config.toml")).unwrap();
        let here = config.replace("/fixture", dir.path().to_str().unwrap());
        assert_ne!(here, config);
        fs::write(run.join("config.toml"), here).unwrap();
        let adapter = run.join("batches/step-4/adapter_config.json");
        if let Ok(text) = fs::read_to_string(&adapter) {
            fs::write(adapter, text.replace("/fixture", dir.path().to_str().unwrap())).unwrap();
        }
        let words = ["replay", "--run-dir", run.to_str().unwrap(), "--step", "4"];
        let text = cli::run("learner", words).success().stdout;
        let answer: Value = serde_json::from_str(text.trim_end().lines().last().unwrap()).unwrap();
        let then = json_lines(&run.join("metrics.jsonl"))[3]["grad_norm"].as_f64().unwrap();
        let now = answer["original"]["grad_norm"].as_f64().unwrap();
        assert!((now - then).abs() <= 1e-4 * then, "{name}: {now} and {then}");
    }
}
