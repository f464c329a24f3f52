//! DAPO's dynamic sampling in the pair: full batches, a ledger that balances, hopeless prompts, and kill -9.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    tiny_model::{self, SMALL},
    training::{Training, json_lines, train, train_in_vain},
};
use serde_json::Value;

const PROMPTS: usize = 12;
const GROUPS: f64 = 4.0;

/// A folder with a model and prompts; a random model ends a completion of 4 tokens by itself in about one of eight
/// cases, so that with `finished` about 60 % of all groups of 4 earn the same throughout.
fn bench() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    SMALL.write(&dir.path().join("model"), 5);
    tiny_model::write_tokenizer(&dir.path().join("model"));
    let rows = (1..=PROMPTS).map(|n| format!("{{\"prompt\": \"{}=\", \"answer\": \"x\"}}\n", vec!["1"; n].join("+")));
    fs::write(dir.path().join("prompts.jsonl"), rows.collect::<String>()).unwrap();
    dir
}

fn config(dir: &Path, more: &str) -> String {
    format!(
        "model = {:?}\ndataset = {:?}\nnum_generations = 4\ngeneration_batch_size = 16\n\
         per_device_train_batch_size = 16\nmax_completion_length = 4\nlearning_rate = 1e-3\nsave_steps = 3\n\
         dynamic_sampling = true\n{more}\n",
        dir.join("model"),
        dir.join("prompts.jsonl")
    )
}

/// Every group that was made is accounted for, by the cursor as well as by the groups themselves.
fn assert_balanced(run: &Training) {
    let curve = |key: &str| run.curve(&format!("dynamic_sampling/{key}"));
    let (generated, used, dropped, stale) =
        (curve("generated"), curve("used"), curve("dropped"), curve("dropped_stale"));
    let epochs = run.curve("epoch");
    let mut total = 0.0;
    for step in 0..generated.len() {
        assert_eq!(used[step], GROUPS, "every batch is full");
        assert_eq!(generated[step], used[step] + dropped[step] + stale[step]);
        total += generated[step];
        assert!((epochs[step] * PROMPTS as f64 - total).abs() < 1e-6, "the epoch counts every prompt used up");
    }
    let lines = json_lines(&run.run.join("ledger.jsonl"));
    let groups: Vec<&Value> = lines
        .iter()
        .filter(|line| line["states"].as_array().is_some_and(|states| states.iter().all(|state| state != "in_flight")))
        .collect();
    let mut positions: Vec<u64> = groups.iter().map(|group| group["position"].as_u64().unwrap()).collect();
    positions.sort_unstable();
    assert_eq!(positions, (0..total as u64).collect::<Vec<u64>>(), "every prompt is in the ledger once");
    assert!(groups.iter().all(|group| group["states"].as_array().unwrap().len() == 4));
    let of = |word: &str| groups.iter().filter(|group| group["states"][0] == word).count() as f64;
    assert_eq!(of("no_contrast"), dropped.iter().sum::<f64>());
}

#[test]
fn batches_are_full_of_groups_that_teach_something() {
    let dir = bench();
    let more = "reward_funcs = [\"finished\"]\nmax_steps = 12";
    let run = train(dir.path(), "run", &config(dir.path(), more));
    assert_balanced(&run);
    let dropped: f64 = run.curve("dynamic_sampling/dropped").iter().sum();
    let generated: f64 = run.curve("dynamic_sampling/generated").iter().sum();
    let share = dropped / generated;
    assert!((0.4..0.8).contains(&share), "{share} of the groups have no contrast");
    assert!(run.curve("frac_reward_zero_std").iter().all(|share| *share == 0.0), "and none of them is trained on");
    assert!(run.curve("dynamic_sampling/filler").iter().all(|filler| *filler == 0.0));
    let tokens = run.curve("dynamic_sampling/dropped_tokens");
    for (tokens, dropped) in tokens.iter().zip(run.curve("dynamic_sampling/dropped")) {
        assert!(*tokens <= dropped * 4.0 * 4.0 && (*tokens > 0.0) == (dropped > 0.0));
    }
    let explain = |id: &str| {
        let words = ["explain".as_ref(), run.run.as_os_str(), id.as_ref()];
        harness::cli::run("tandem", words).success().stdout
    };
    let lines = json_lines(&run.run.join("ledger.jsonl"));
    let dropped = lines.iter().find(|line| line["states"][0] == "no_contrast").unwrap();
    let said = explain(&format!("@{}.2", dropped["position"]));
    for words in ["no_contrast, dynamic sampling replaced its group", "rewards: finished ", "\ncompletion:\n"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let said = explain("12.0.1");
    for words in ["12.0.1: trained, it was in the loss", "sampled from v11 from token 0", "pushed "] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let refusal = harness::cli::run("tandem", ["explain".as_ref(), run.run.as_os_str(), "13.0".as_ref()]);
    assert!(refusal.refusal().contains("has nothing under 13.0; its last step is 12"), "{}", refusal.refusal());
}

#[test]
fn hopeless_prompts_are_trained_on_with_a_warning_and_the_run_goes_on() {
    let dir = bench();
    let more = "reward_funcs = [\"correctness\"]\nmax_steps = 4\ndynamic_sampling_max_attempts = 3";
    let run = train_in_vain(dir.path(), "run", &config(dir.path(), more));
    assert_balanced(&run);
    assert_eq!(run.curve("dynamic_sampling/generated"), [3.0 * GROUPS; 4]);
    assert_eq!(run.curve("dynamic_sampling/filler"), [GROUPS; 4]);
    assert_eq!(run.curve("dynamic_sampling/dropped_reward_mean"), [0.0; 4]);
    let log = fs::read_to_string(run.run.join("logs/learner.log")).unwrap();
    assert_eq!(log.matches("are still without contrast").count(), 4, "one warning a step: {log}");
}

/// No answer is right, so a group teaches nothing, whatever else its completions are rewarded for.
#[test]
fn groups_whose_answers_are_all_wrong_are_dropped_although_their_rewards_differ() {
    let dir = bench();
    let of = |name: &str, more: &str| {
        let all = "reward_funcs = [\"correctness\", \"finished\"]\nmax_steps = 3";
        let run = train(dir.path(), name, &config(dir.path(), &format!("{all}\n{more}")));
        assert_balanced(&run);
        let log = fs::read_to_string(run.run.join("logs/rollout.log")).unwrap();
        (run.curve("dynamic_sampling/filler").iter().sum::<f64>(), log)
    };
    let (filler, log) = of("answers", "");
    assert_eq!(filler, 3.0 * GROUPS, "none is worth training on");
    let said = "dynamic sampling keeps groups with some but not all completions right by `correctness`";
    assert!(log.contains(said), "{log}");
    for (name, more) in [("sum", "filter_groups_metric = \"reward\""), ("form", "filter_groups_metric = \"finished\"")]
    {
        let (filler, log) = of(name, more);
        assert_eq!(filler, 0.0, "{more}: {log}");
    }
}

#[test]
fn usable_groups_made_ahead_are_carried_to_later_steps() {
    let dir = bench();
    let more = "reward_funcs = [\"length:target=6\"]\nmax_steps = 10\nmax_staleness = 1";
    let run = train(dir.path(), "run", &config(dir.path(), more));
    assert_balanced(&run);
    let carried: f64 = run.curve("dynamic_sampling/carried").iter().sum();
    assert!(carried > 0.0, "nothing was made ahead");
    assert!(run.curve("sample/staleness_max").iter().all(|age| *age <= 1.0));
}

/// Weights and ledger of a run of which both processes are killed again and again.
fn killed(dir: &Path, config: &str) -> PathBuf {
    let run = dir.join("killed");
    let file = dir.join("killed.toml");
    fs::write(&file, format!("output_dir = {run:?}\nmax_restarts = 6\n{config}")).unwrap();
    let mut command = Command::new(binary("tandem"));
    command.arg("train").arg(&file).env("TANDEM_CACHE_DIR", dir.join("cache"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut launcher = command.spawn().unwrap();
    for (step, program) in [(4, "rollout"), (8, "learner"), (13, "rollout"), (17, "learner")] {
        wait_for_step(&run, step, &mut launcher);
        kill_child(launcher.id(), program);
    }
    assert!(launcher.wait().unwrap().success());
    run
}

fn wait_for_step(run: &Path, step: usize, launcher: &mut Child) {
    let start = Instant::now();
    let steps = || fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    while steps() < step {
        assert!(start.elapsed() < Duration::from_secs(300), "step {step} is not reached");
        assert!(launcher.try_wait().unwrap().is_none(), "the run has ended before step {step}");
        thread::sleep(Duration::from_millis(3));
    }
}

fn kill_child(parent: u32, program: &str) {
    let pid = fs::read_dir("/proc").unwrap().find_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let (head, tail) = stat.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        (name == program && tail.split(' ').nth(1)? == parent.to_string()).then(|| pid.parse::<i32>().ok())?
    });
    // SAFETY: sends a signal to a child of the run that was seen a moment ago.
    assert_eq!(unsafe { libc::kill(pid.expect("the process runs"), libc::SIGKILL) }, 0);
}

#[test]
fn killed_processes_come_back_to_the_same_groups_and_weights() {
    let dir = bench();
    let config = config(dir.path(), "reward_funcs = [\"finished\"]\nmax_steps = 24");
    let expected = train(dir.path(), "undisturbed", &config);
    let run = killed(dir.path(), &config);
    let weights = fs::read(run.join("checkpoint-24/weights.data")).unwrap();
    assert!(weights == expected.checkpoint("weights.data"), "the weights differ from those of the undisturbed run");
    let metrics = harness::training::json_lines(&run.join("metrics.jsonl"));
    let found = Training { run, metrics };
    assert_balanced(&found);
    for key in ["generated", "dropped", "dropped_tokens"] {
        let key = format!("dynamic_sampling/{key}");
        assert_eq!(found.curve(&key), expected.curve(&key), "{key}");
    }
}
