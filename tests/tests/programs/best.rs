//! The best checkpoint by the evaluations, and runs that end early, also when they are killed and resumed.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use harness::{bench::Bench, binary, cli, processes, training::json_lines};
use serde_json::Value;

const CONFIG: &str = "dataset = \"prompts.jsonl\"\neval_dataset = \"prompts.jsonl\"\nmax_steps = 12\nsave_steps = 2\n\
                      num_generations = 4\ngeneration_batch_size = 16\nper_device_train_batch_size = 16\n\
                      max_completion_length = 16\nlearning_rate = 1e-3\nmax_restarts = 4\n";

/// The reward makes completions shorter. With the longest ones as the best, the first checkpoint is the best one, and
/// patience runs out at step 6.
const EARLY: [&str; 12] = [
    "--eval_steps",
    "2",
    "--metric_for_best_model",
    METRIC,
    "--greater_is_better",
    "true",
    "--early_stopping_patience",
    "2",
    "--save_total_limit",
    "1",
    "--load_best_model_at_end",
    "true",
];
const METRIC: &str = "eval_completions/mean_length";
const RESUME: [&str; 2] = ["--resume_from_checkpoint", "latest"];

fn checkpoints(run: &Path) -> Vec<u64> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let step = |name: String| name.strip_prefix("checkpoint-")?.parse().ok();
    let mut steps: Vec<u64> = fs::read_dir(run).unwrap().map(name).filter_map(step).collect();
    steps.sort_unstable();
    steps
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn evaluated(run: &Path) -> Vec<u64> {
    json_lines(&run.join("eval.jsonl")).iter().map(|record| record["step"].as_u64().unwrap()).collect()
}

/// The evaluation of a step in `eval.jsonl`, after a check that a greedy `tandem eval` of the checkpoint of that step
/// has the same figures.
fn evaluation(bench: &Bench, run: &str, step: u64) -> Value {
    let run = bench.path(run);
    let mut eval = Command::new(binary("tandem"));
    eval.current_dir(bench.path("")).env("TANDEM_CACHE_DIR", bench.path("cache"));
    eval.args(["eval", "--dataset", "prompts.jsonl", "--reward-funcs", "length:target=6"]);
    eval.args(["--max-completion-length", "16", "--model"]).arg(run.join(format!("checkpoint-{step}")));
    let printed = cli::finish(eval).success().stdout;
    let of_checkpoint: Value = serde_json::from_str(printed.trim_end().lines().last().unwrap()).unwrap();
    let recorded = json_lines(&run.join("eval.jsonl")).into_iter().find(|record| record["step"] == step).unwrap();
    for (name, value) in recorded.as_object().unwrap() {
        if !["step", "eval_seconds", "eval_tokens_per_s"].contains(&name.as_str()) {
            assert_eq!(of_checkpoint[name], *value, "{name} of {}, step {step}", run.display());
        }
    }
    recorded
}

/// Checks a run that has ended early after step 6; the value of its best checkpoint.
fn ended_early(bench: &Bench, name: &str) -> f64 {
    let run = &bench.path(name);
    assert_eq!(json_lines(&run.join("metrics.jsonl")).len(), 6);
    assert_eq!(evaluated(run), [0, 2, 4, 6], "each version that has a checkpoint");
    assert_eq!(checkpoints(run), [2, 6], "the best and the newest");
    let best = json(&run.join("best.json"));
    assert_eq!((best["step"].as_u64(), best["metric"].as_str()), (Some(2), Some(METRIC)));
    let [first, last] = [2, 6].map(|step| evaluation(bench, name, step));
    assert!(first[METRIC].as_f64() > last[METRIC].as_f64(), "{first} and {last}: the figures tell weights apart");
    assert_eq!(best["value"], first[METRIC]);
    let value = first[METRIC].as_f64().unwrap();
    assert_eq!(fs::read_link(run.join("model")).unwrap(), Path::new("checkpoint-2"));
    assert!(run.join("model/config.json").exists() && run.join("finished.json").exists());
    let told: Vec<Value> = json_lines(&run.join("notices.jsonl"));
    let told: Vec<&Value> = told.iter().filter(|notice| notice["kind"] == "stopped_early").collect();
    assert_eq!(told.iter().map(|notice| notice["step"].as_u64().unwrap()).collect::<Vec<_>>(), [6]);
    let words = format!("has not got better than {value:.4} (step 2)");
    assert!(fs::read_to_string(run.join("report.html")).unwrap().contains(&words), "{words}");
    value
}

#[test]
fn a_run_whose_evaluations_do_not_improve_ends_early_and_keeps_its_best_checkpoint() {
    let bench = Bench::new(CONFIG);
    let _ = cli::finish(bench.command("plain", &[])).success();
    assert!(!bench.path("plain/best.json").exists());
    let finished = cli::finish(bench.command("early", &EARLY)).success();
    let value = ended_early(&bench, "early");
    for words in [
        format!("`{METRIC}` has not got better than {value:.4} (step 2) in 2 evaluations, "),
        "(step 2) in 2 evaluations, so the run ends after 6 of 12 steps".into(),
        format!("ended early, after 6 of 12 steps; the best is checkpoint-2 ({METRIC} {value:.4}); report: "),
    ] {
        assert!(finished.stderr.contains(&words), "{words}: {}", finished.stderr);
    }
    let summary: Value = serde_json::from_str(finished.stdout.trim_end().lines().last().unwrap()).unwrap();
    assert_eq!((summary["steps"].as_u64(), summary["best"]["step"].as_u64()), (Some(6), Some(2)));
    assert!(Path::new(summary["model"].as_str().unwrap()).ends_with("early/model"));
    let weights =
        |run: &str, step: u64| fs::read(bench.path(run).join(format!("checkpoint-{step}/weights.data"))).unwrap();
    for step in [2, 6] {
        assert!(weights("early", step) == weights("plain", step), "the options change no weights: step {step}");
    }
    // With more patience the run goes on from there, by two evaluations.
    let mut longer = EARLY;
    longer[7] = "4";
    let _ = cli::finish(bench.command("early", &[&longer[..], &RESUME].concat())).success();
    assert_eq!(checkpoints(&bench.path("early")), [2, 10]);
    assert!(weights("early", 10) == weights("plain", 10));
    assert_eq!(fs::read_link(bench.path("early/model")).unwrap(), Path::new("checkpoint-2"));
    // Without the options it goes on to its end, and has no best checkpoint any more.
    let _ = cli::finish(bench.command("early", &RESUME)).success();
    assert!(weights("early", 12) == weights("plain", 12));
    assert!(!bench.path("early/best.json").exists() && !bench.path("early/model").is_symlink());
}

#[test]
fn a_run_that_is_killed_and_resumed_ends_at_the_same_step_with_the_same_best() {
    let bench = Bench::new(CONFIG);
    for step in [3, 5] {
        let name = format!("killed-{step}");
        let run = bench.path(&name);
        let mut launcher = bench.start(&name, &EARLY);
        let begun = Instant::now();
        while fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count()) < step {
            assert!(begun.elapsed() < Duration::from_secs(300), "{name}");
            thread::sleep(Duration::from_millis(5));
        }
        let halves = ["learner", "rollout"].map(|program| processes::children(launcher.id(), program)).concat();
        launcher.kill().unwrap();
        let _ = launcher.wait().unwrap();
        // One that has ended by itself is none to kill.
        let _ = Command::new("kill").arg("-KILL").args(halves.iter().map(u32::to_string)).status();
        let _ = cli::finish(bench.command(&name, &[&EARLY[..], &RESUME].concat())).success();
        ended_early(&bench, &name);
    }
}

/// With groups in flight the learner waits for a result as well: what was evaluated is what the checkpoint holds.
#[test]
fn an_asynchronous_run_ends_at_the_same_step() {
    let bench = Bench::new(CONFIG);
    let words = [&EARLY[..], &["--max_staleness", "2", "--weight_swap", "continue"]].concat();
    let _ = cli::finish(bench.command("async", &words)).success();
    ended_early(&bench, "async");
}

#[test]
fn the_best_checkpoint_is_that_of_the_best_evaluation_up_to_the_last() {
    let bench = Bench::new(CONFIG);
    let words = ["--eval_steps", "2", "--metric_for_best_model", "reward", "--save_total_limit", "2"];
    let finished = cli::finish(bench.command("run", &words)).success();
    let run = bench.path("run");
    assert_eq!(evaluated(&run), [0, 2, 4, 6, 8, 10, 12]);
    let records = json_lines(&run.join("eval.jsonl"));
    let mut expected = (0, f64::NEG_INFINITY);
    for record in &records[1..] {
        let (step, reward) = (record["step"].as_u64().unwrap(), record["eval_reward"].as_f64().unwrap());
        expected = if reward > expected.1 { (step, reward) } else { expected };
    }
    let best = json(&run.join("best.json"));
    assert_eq!((best["step"].as_u64().unwrap(), best["value"].as_f64().unwrap()), expected);
    assert_eq!(evaluation(&bench, "run", expected.0)["eval_reward"], best["value"]);
    assert!(checkpoints(&run).contains(&expected.0) && checkpoints(&run).contains(&12), "{:?}", checkpoints(&run));
    assert!(!run.join("model").exists(), "it was not asked for");
    assert!(finished.stderr.contains("finished 12 steps; the best is checkpoint-"), "{}", finished.stderr);
}

/// It only looks at its evaluations again.
#[test]
fn a_start_that_makes_no_step_leaves_the_options_of_the_run() {
    let bench = Bench::new(CONFIG);
    let chooses = ["--eval_steps", "2", "--metric_for_best_model", "reward"];
    let runs: [(&str, &[&str], &[&str], &str); 2] = [
        ("done", &chooses, &["--max_steps", "4"], "finished 4 steps"),
        ("early", &EARLY, &[], "ended early, after 6 of 12 steps"),
    ];
    for (name, options, steps, words) in runs {
        let _ = cli::finish(bench.command(name, &[options, steps].concat())).success();
        let kept = || {
            let files = ["config.toml", "metrics.jsonl", "notices.jsonl", "best.json"];
            files.map(|file| fs::read(bench.path(name).join(file)).unwrap_or_default())
        };
        let before = kept();
        let others = [options, &RESUME, &["--learning_rate", "7"]].concat();
        // Fewer steps than are made already, where the run has not ended early.
        let fewer: &[&str] = if steps.is_empty() { &[] } else { &["--max_steps", "2"] };
        let again = cli::finish(bench.command(name, &[&others[..], fewer].concat())).success();
        assert!(again.stderr.contains(words), "{words}: {}", again.stderr);
        assert!(kept() == before, "{name}: {}", again.stderr);
        assert!(bench.path(name).join("finished.json").exists(), "{name}");
    }
}

#[test]
fn a_checkpoint_that_was_the_best_goes_when_the_last_evaluation_names_another_one() {
    let bench = Bench::new(CONFIG);
    let shorter = ["--metric_for_best_model", METRIC, "--greater_is_better", "false", "--save_total_limit", "1"];
    let words = [&shorter[..], &["--eval_steps", "2", "--max_steps", "4"]].concat();
    let _ = cli::finish(bench.command("overtaken", &words)).success();
    let run = bench.path("overtaken");
    let lengths: Vec<_> = json_lines(&run.join("eval.jsonl")).iter().map(|record| record[METRIC].as_f64()).collect();
    assert!(lengths[2] < lengths[1], "{lengths:?}: the last checkpoint is the best one");
    assert_eq!(json(&run.join("best.json"))["step"].as_u64(), Some(4));
    assert_eq!(checkpoints(&run), [4]);
}

#[test]
fn a_metric_that_no_evaluation_records_is_refused_with_the_nearest() {
    let bench = Bench::new(CONFIG);
    let refused = |words: &[&str]| cli::finish(bench.command("refused", words)).refusal().to_owned();
    let refusal = refused(&["--eval_steps", "2", "--metric_for_best_model", "eval_acuracy"]);
    assert!(refusal.contains("records `eval_acuracy`; the nearest names are eval_accuracy, "), "{refusal}");
    let refusal = refused(&["--metric_for_best_model", "accuracy"]);
    assert!(refusal.contains("`metric_for_best_model` needs evaluations"), "{refusal}");
    let shares = ["--eval_steps", "0.25", "--save_steps", "0.4", "--load_best_model_at_end", "true"];
    let refusal = refused(&[&shares[..], &["--metric_for_best_model", "accuracy"]].concat());
    assert!(refusal.contains("`save_steps` 5 must be a multiple of `eval_steps` 3; 6 is one"), "{refusal}");
    assert!(!bench.path("refused").exists());
}
