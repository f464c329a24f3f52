//! `tandem sweep`: all combinations, runs that fail, an interruption, and the comparison over seeds.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary, cli, processes,
    tiny_model::{self, SMALL},
    training::json_lines,
};
use serde_json::Value;
use tempfile::TempDir;

const CONFIG: &str = "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = \"sweep\"\n\
                      reward_funcs = [\"length:target=6\"]\nmax_steps = 4\nsave_steps = 1\nnum_generations = 4\n\
                      generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n\
                      learning_rate = 1e-3\nmax_restarts = 0\n";

/// A folder with a tiny model, prompts and a `run.toml` that ends with `more`.
fn folder(more: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    SMALL.write(&dir.path().join("model"), 5);
    tiny_model::write_tokenizer(&dir.path().join("model"));
    let rows: String = (1..=6).map(|n| format!("{{\"prompt\": \"{n}=\"}}\n")).collect();
    fs::write(dir.path().join("prompts.jsonl"), rows).unwrap();
    fs::write(dir.path().join("run.toml"), format!("{CONFIG}{more}")).unwrap();
    dir
}

fn sweep(dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(binary("tandem"));
    command.args(["sweep", "run.toml"]).args(more).current_dir(dir);
    command.env("TANDEM_CACHE_DIR", dir.join("cache"));
    command
}

/// The object at the end of stdout.
fn answer(stdout: &str) -> Value {
    serde_json::from_str(stdout.trim_end().lines().last().unwrap()).unwrap()
}

#[test]
fn every_combination_is_a_run_of_its_own_and_settings_are_compared_over_their_seeds() {
    let dir = folder("[sweep]\nlearning_rate = [1e-3, 0.0]\n");
    let words = ["--seed", "1,2,3"];
    let listed = cli::finish(sweep(dir.path(), &[&words[..], &["--dry-run"]].concat())).success().stdout;
    assert_eq!(listed.lines().count(), 6, "{listed}");
    assert!(!dir.path().join("sweep").exists(), "a dry run writes nothing");

    let finished = cli::finish(sweep(dir.path(), &words)).success();
    let found = answer(&finished.stdout);
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    for run in runs {
        let folder = dir.path().join("sweep").join(run["name"].as_str().unwrap());
        let steps = json_lines(&folder.join("metrics.jsonl"));
        assert_eq!((steps.len(), run["steps"].as_u64()), (4, Some(4)), "{run}");
        let config: toml::Table = fs::read_to_string(folder.join("config.toml")).unwrap().parse().unwrap();
        for (key, value) in run["setting"].as_object().unwrap() {
            let number = |text: String| text.parse::<f64>().unwrap();
            assert_eq!(number(config[key].to_string()), number(value.as_str().unwrap().to_owned()), "{key}");
        }
        // The same run by itself has the same weights.
        let trained = steps.last().unwrap()["reward"].as_f64().unwrap();
        assert!((run["reward_last"].as_f64().unwrap() - trained).abs() < 1e-12);
    }
    let weights =
        |name: &str| fs::read(dir.path().join("sweep").join(name).join("checkpoint-4/model.safetensors")).unwrap();
    assert!(weights(runs[0]["name"].as_str().unwrap()) != weights(runs[1]["name"].as_str().unwrap()), "seeds differ");
    let settings = found["settings"].as_array().unwrap();
    assert_eq!(settings.len(), 2);
    assert_eq!(settings[1]["difference"]["seeds"], 3);
    let mean = |at: usize| settings[at]["mean"].as_f64().unwrap();
    let difference = settings[1]["difference"]["difference"].as_f64().unwrap();
    assert!((difference - (mean(1) - mean(0))).abs() < 1e-12);
    for words in ["p (Holm)", "the first", "seconds", "run 6 of 6"] {
        assert!(finished.stderr.contains(words), "{words}: {}", finished.stderr);
    }

    // Once more: nothing is made again, and the figures are the same.
    let again = cli::finish(sweep(dir.path(), &words)).success();
    assert!(again.stderr.contains("6 of them done before"), "{}", again.stderr);
    assert_eq!(answer(&again.stdout), found);
    // Another option would make the runs others, and none of them is touched.
    let other = cli::finish(sweep(dir.path(), &[&words[..], &["--beta", "0.1"]].concat()));
    assert!(
        other.refusal().contains("`beta`") && other.refusal().contains("choose another `output_dir`"),
        "{}",
        other.stderr
    );
}

#[test]
fn code_that_is_not_there_is_found_before_the_first_run_starts() {
    let dir = folder("[sweep]\nreward_funcs = [[\"length:target=6\"], [\"my_rewards.py:missing\"]]\n");
    fs::write(dir.path().join("my_rewards.py"), "def there(completions, **kwargs):\n    return []\n").unwrap();
    let refused = cli::finish(sweep(dir.path(), &["--seed", "1,2"]));
    let refusal = refused.refusal();
    for words in ["my_rewards.py:missing", "seed 1: `reward_funcs`: "] {
        assert!(refusal.contains(words), "{words}: {}", refused.stderr);
    }
    let left: Vec<_> = fs::read_dir(dir.path().join("sweep")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["sweep.lock"], "{}", refused.stderr);
}

#[test]
fn a_run_that_fails_is_a_row_and_the_others_go_on() {
    let dir = folder("");
    fs::write(dir.path().join("reward.sh"), "while read line; do echo no; done").unwrap();
    let table = "[sweep]\nreward_funcs = [[\"command:run=sh reward.sh\"], [\"length:target=6\"]]\n";
    fs::write(dir.path().join("run.toml"), format!("{CONFIG}rehearse_rewards = false\n{table}")).unwrap();
    let finished = cli::finish(sweep(dir.path(), &[]));
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let found = answer(&finished.stdout);
    let state = |at: usize| found["runs"][at]["state"].as_str().unwrap().to_owned();
    assert_eq!((state(0), state(1)), ("failed".into(), "finished".into()), "{found}");
    assert!(found["runs"][0]["error"].as_str().unwrap().contains("reward function `command` failed"), "{found}");
    assert!(
        finished.refusal().contains("1 of 2 runs failed; the same command tries them again"),
        "{}",
        finished.stderr
    );
    let record: Value = serde_json::from_slice(&fs::read(dir.path().join("sweep/sweep.json")).unwrap()).unwrap();
    assert_eq!(record["runs"], found["runs"]);

    // The program is mended, and only its run is made.
    fs::write(dir.path().join("reward.sh"), "while read line; do echo '[0, 1, 0, 1]'; done").unwrap();
    let again = cli::finish(sweep(dir.path(), &[])).success();
    assert!(again.stderr.contains("1 of them done before") && !again.stderr.contains("run 2 of 2"), "{}", again.stderr);
    assert_eq!(answer(&again.stdout)["runs"][0]["state"], "finished");
}

#[test]
fn an_interrupted_sweep_goes_on_to_the_weights_of_an_undisturbed_one() {
    let dir = folder("");
    // Sums are rounded otherwise with another number of threads, which `--jobs` would change.
    let words = ["--seed", "1,2", "--max_steps", "12", "--learner_threads", "1", "--rollout_threads", "1"];
    let whole = [&words[..], &["--output_dir", "whole", "--jobs", "2"]].concat();
    let _ = cli::finish(sweep(dir.path(), &whole)).success();

    let mut command = sweep(dir.path(), &words);
    command.stderr(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    let mut running = command.spawn().unwrap();
    let metrics = dir.path().join("sweep/seed-2/metrics.jsonl");
    let deadline = Instant::now() + Duration::from_secs(120);
    while fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 2 {
        assert!(Instant::now() < deadline, "the second run does not begin");
        thread::sleep(Duration::from_millis(20));
    }
    processes::signal(running.id(), "TERM");
    assert_eq!(running.wait().unwrap().code(), Some(143));
    let steps = json_lines(&metrics).len();
    assert!(steps < 12, "it had no time to be interrupted");
    let finished = cli::finish(sweep(dir.path(), &words)).success();
    assert!(finished.stderr.contains("run 2 of 2 (seed 2): goes on"), "{}", finished.stderr);
    for run in ["seed-1", "seed-2"] {
        let weights =
            |sweep: &str| fs::read(dir.path().join(sweep).join(run).join("checkpoint-12/model.safetensors")).unwrap();
        assert!(weights("whole") == weights("sweep"), "{run}");
    }
}

#[test]
fn what_cannot_be_swept_is_refused_before_anything_starts() {
    let dir = folder("[sweep]\nbeta = [0.0, 0.1]\n");
    for (words, said) in [
        (&["--seed", "1,2,2"][..], "`seed` has the value 2 twice"),
        (&["--num_generations", "4,1"], "num_generations 1"),
        (&["--jobs", "0"], "--jobs must be a number of runs"),
        (&["--jobs", "100000"], "memory holds"),
        (&["--dataset", "missing.jsonl"], "missing.jsonl"),
    ] {
        let finished = cli::finish(sweep(dir.path(), words));
        assert!(finished.refusal().contains(said), "{words:?}: {}", finished.stderr);
    }
    assert!(!dir.path().join("sweep/beta-0.0").exists());
    fs::create_dir_all(dir.path().join("run")).unwrap();
    fs::write(dir.path().join("run/config.toml"), "").unwrap();
    let within = cli::finish(sweep(dir.path(), &["--output_dir", "run"]));
    assert!(within.refusal().contains("is the folder of a run"), "{}", within.stderr);
    let mut train = Command::new(binary("tandem"));
    train.args(["train", "run.toml"]).current_dir(dir.path());
    let refused = cli::finish(train);
    assert!(refused.refusal().contains("unknown option `sweep`") && refused.refusal().contains("`tandem sweep`"));
    fs::write(dir.path().join("run.toml"), CONFIG).unwrap();
    let nothing = cli::finish(sweep(dir.path(), &[]));
    assert!(nothing.refusal().contains("nothing varies"), "{}", nothing.stderr);
}
