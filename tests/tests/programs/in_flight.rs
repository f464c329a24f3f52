//! An asynchronous run whose processes die: what was in flight is not sampled again, and everything is accounted for.

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use harness::{
    bench::{Bench, Running},
    cli,
    processes::{children, signal},
    training::json_lines,
};
use serde_json::Value;
use shared::{Group, channel::in_flight::read_groups, files::run_dir::IN_FLIGHT_FILE};

const RESUMED: [&str; 2] = ["--resume_from_checkpoint", "latest"];
const GENERATIONS: usize = 4;

/// Groups of four, four to a step.
fn bench(more: &str) -> Bench {
    Bench::new(&format!(
        "dataset = \"prompts.jsonl\"\nnum_generations = {GENERATIONS}\ngeneration_batch_size = 16\n\
         per_device_train_batch_size = 16\nmax_staleness = 2\n{more}"
    ))
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_there() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the pair and its launcher, which would have started another one after a while.
fn kill_all(run: &mut Running) {
    ["learner", "rollout"].iter().flat_map(|program| children(run.id(), program)).for_each(|pid| signal(pid, "KILL"));
    run.kill().unwrap();
    let _ = run.wait().unwrap();
}

/// (step, position, sample) of the completions of an event.
fn events(lines: &[Value], name: &str) -> Vec<(u64, u64, u64)> {
    let found = lines.iter().filter_map(|line| Some((line["step"].as_u64()?, line["event"].get(name)?)));
    found
        .flat_map(|(step, completions)| {
            let position = completions["position"].as_u64().unwrap();
            let samples = completions["samples"].as_array().unwrap();
            samples.iter().map(move |sample| (step, position, sample.as_u64().unwrap()))
        })
        .collect()
}

/// One long completion at a time, on the slower kernels, so that the learner waits for the sampler whatever else the
/// machine does, and there are groups of which a part is finished.
fn slow_bench() -> Bench {
    bench(
        "max_completion_length = 150\nmax_num_seqs = 1\nmax_steps = 8\nsave_steps = 1\nlearning_rate = 1e-4\n\
         rollout_kernels = \"stock\"\n",
    )
}

/// What a checkpoint has.
fn in_flight(bench: &Bench, step: u64) -> Vec<Group> {
    read_groups(&bench.path(&format!("run/checkpoint-{step}/{IN_FLIGHT_FILE}"))).unwrap_or_default()
}

fn newest_checkpoint(bench: &Bench) -> u64 {
    let is_there = |step: &u64| bench.path(&format!("run/checkpoint-{step}")).is_dir();
    (1..=8).rev().find(is_there).unwrap_or(0)
}

/// Begins a run, and returns once its newest checkpoint has groups of which a part is finished. In a short run on a
/// machine that does something else meanwhile, none may have; then another one begins.
fn start_until_parts(bench: &Bench) -> Running {
    const ATTEMPTS: usize = 3;
    for _ in 0..ATTEMPTS {
        let mut run = bench.start("run", &[]);
        while run.try_wait().unwrap().is_none() {
            let groups = in_flight(bench, newest_checkpoint(bench));
            if groups.iter().any(|group| (1..GENERATIONS).contains(&group.completions.len())) {
                return run;
            }
            thread::sleep(Duration::from_millis(2));
        }
        fs::remove_dir_all(bench.path("run")).unwrap();
    }
    panic!("{ATTEMPTS} runs have no checkpoint with a part of a group");
}

#[test]
fn what_was_in_flight_when_everything_died_is_not_sampled_again() {
    let bench = slow_bench();
    let mut run = start_until_parts(&bench);
    kill_all(&mut run);
    let step = newest_checkpoint(&bench);
    let mut kept = BTreeMap::new();
    for group in in_flight(&bench, step) {
        kept.extend(group.completions.into_iter().map(|c| ((group.position, u64::from(c.sample)), c.text)));
    }
    let _ = cli::finish(bench.command("run", &RESUMED)).success();
    bench.assert_balanced("run", 8, GENERATIONS);
    let lines = json_lines(&bench.path("run/ledger.jsonl"));
    let carried = events(&lines, "carried_over");
    assert_eq!(carried.len(), kept.len(), "all that was finished at step {step} is used");
    for (step, position, sample) in carried {
        let rows = json_lines(&bench.path(&format!("run/completions/step-{step}.jsonl")));
        let is = |row: &&Value| row["position"] == position && row["sample"] == sample;
        let row = rows.iter().find(is).unwrap();
        assert_eq!(row["completion"].as_str().unwrap(), kept[&(position, sample)], "{position}.{sample}");
    }
    let again = events(&lines, "made_again");
    assert!(!again.is_empty() && again.iter().all(|(_, position, sample)| !kept.contains_key(&(*position, *sample))));
    let log = fs::read_to_string(bench.path("run/logs/rollout.log")).unwrap();
    let words = format!("{} completions of", kept.len());
    assert!(log.lines().any(|line| line.contains(&words) && line.contains("are kept from checkpoint-")), "{log}");
}

#[test]
fn what_is_in_flight_when_a_run_is_ended_is_in_its_ledger_and_other_options_leave_it_aside() {
    let bench = slow_bench();
    let mut run = start_until_parts(&bench);
    signal(run.id(), "TERM");
    let _ = run.wait().unwrap();
    let lines = json_lines(&bench.path("run/ledger.jsonl"));
    let known: Vec<u64> = lines.iter().filter_map(|line| line["position"].as_u64()).collect();
    let left = in_flight(&bench, newest_checkpoint(&bench));
    assert!(!left.is_empty());
    for group in left {
        let found = known.iter().filter(|position| **position == group.position).count();
        assert_eq!(found, 1, "{} in {known:?}", group.position);
    }
    let hotter = [&RESUMED[..], &["--temperature", "1.5"]].concat();
    let _ = cli::finish(bench.command("run", &hotter)).success();
    bench.assert_balanced("run", 8, GENERATIONS);
    assert_eq!(events(&json_lines(&bench.path("run/ledger.jsonl")), "carried_over"), []);
    let log = fs::read_to_string(bench.path("run/logs/learner.log")).unwrap();
    assert!(log.contains("is left aside, since it was made otherwise: `temperature` 1.0 -> 1.5"), "{log}");
}

/// Mean rewards of the first and the last steps of a run.
fn rewards(bench: &Bench, run: &str) -> [f64; 2] {
    const SOME: usize = 6;
    let records = json_lines(&bench.path(run).join("metrics.jsonl"));
    let rewards: Vec<f64> = records.iter().map(|record| record["reward"].as_f64().unwrap()).collect();
    let mean = |rewards: &[f64]| rewards.iter().sum::<f64>() / rewards.len() as f64;
    [mean(&rewards[..SOME]), mean(&rewards[rewards.len() - SOME..])]
}

/// The launcher kills the sampler, the learner or both after every step, and is killed with them itself.
#[test]
fn fifty_kills_leave_everything_accounted_for_and_the_run_learns() {
    const STEPS: u64 = 36;
    let bench = bench("max_completion_length = 16\nmax_steps = 36\nsave_steps = 1\nlearning_rate = 1e-3\n");
    let _ = cli::finish(bench.command("undisturbed", &[])).success();
    let chaos = ["--max_restarts", "0", "--chaos", "seed=3,kill=1"];
    let mut kills = 0;
    for until in [12, 24, STEPS] {
        let more = if kills > 0 { [&chaos[..], &RESUMED].concat() } else { chaos.to_vec() };
        let mut run = bench.start("chaos", &more);
        let checkpoint = bench.path(&format!("chaos/checkpoint-{until}"));
        wait_for("the next checkpoint", || checkpoint.exists());
        if until < STEPS {
            kill_all(&mut run);
            kills += 3;
        } else {
            assert!(run.wait().unwrap().success());
        }
        kills += fs::read_to_string(bench.path("stderr")).unwrap().matches(" is killed").count();
    }
    assert!(kills >= 50, "{kills}");
    for run in ["undisturbed", "chaos"] {
        bench.assert_balanced(run, STEPS, GENERATIONS);
    }
    let lines = json_lines(&bench.path("chaos/ledger.jsonl"));
    let carried = events(&lines, "carried_over").len();
    assert!(carried >= 100, "{carried} completions were carried over");
    let [expected, found] = ["undisturbed", "chaos"].map(|run| rewards(&bench, run));
    println!("{kills} kills, {carried} completions carried over, rewards {found:?} instead of {expected:?}");
    let gain = expected[1] - expected[0];
    assert!(gain > 0.0 && (found[1] - expected[1]).abs() < gain / 2.0, "{found:?} instead of {expected:?}");
}
