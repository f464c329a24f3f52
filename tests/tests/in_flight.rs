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
use shared::channel::in_flight::{IN_FLIGHT_FILE, read_groups};

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

/// Lines of the ledger that are groups, but for those that were in flight when the run ended.
fn groups(lines: &[Value]) -> impl Iterator<Item = &Value> {
    lines
        .iter()
        .filter(|line| line["states"].as_array().is_some_and(|states| states.iter().all(|state| state != "in_flight")))
}

/// Checks that every prompt was used up once, every group and every step made once, in `last` steps.
fn assert_balanced(bench: &Bench, run: &str, last: u64) {
    let lines = json_lines(&bench.path(run).join("ledger.jsonl"));
    let mut positions: Vec<u64> = groups(&lines).map(|group| group["position"].as_u64().unwrap()).collect();
    positions.sort_unstable();
    assert_eq!(positions, (0..last * 4).collect::<Vec<_>>(), "every prompt is used up once");
    let mut ids: Vec<(u64, u64)> =
        groups(&lines).map(|group| (group["step"].as_u64().unwrap(), group["group"].as_u64().unwrap())).collect();
    ids.sort_unstable();
    let expected: Vec<(u64, u64)> = (1..=last).flat_map(|step| (0..4).map(move |group| (step, group))).collect();
    assert_eq!(ids, expected, "every group is made once");
    assert!(groups(&lines).all(|group| group["states"].as_array().unwrap().len() == GENERATIONS));
    let records = json_lines(&bench.path(run).join("metrics.jsonl"));
    let steps: Vec<u64> = records.iter().map(|record| record["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=last).collect::<Vec<_>>());
    for step in 1..=last {
        let rows = json_lines(&bench.path(run).join(format!("completions/step-{step}.jsonl")));
        assert_eq!(rows.len(), 4 * GENERATIONS);
    }
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

#[test]
fn what_was_in_flight_when_everything_died_is_not_sampled_again() {
    let bench = bench("max_completion_length = 400\nmax_steps = 8\nsave_steps = 1\nlearning_rate = 1e-4\n");
    let mut run = bench.start("run", &[]);
    let folder = bench.path("run");
    let file = |step: u64| folder.join(format!("checkpoint-{step}/{IN_FLIGHT_FILE}"));
    let finished = |step: u64| -> usize {
        read_groups(&file(step)).map_or(0, |groups| groups.iter().map(|group| group.completions.len()).sum())
    };
    let newest = || (1..=8).rev().find(|step| folder.join(format!("checkpoint-{step}")).is_dir()).unwrap_or(0);
    wait_for("a checkpoint with finished completions", || newest() >= 2 && finished(newest()) > 0);
    kill_all(&mut run);
    let step = newest();
    let kept: BTreeMap<(u64, u64), String> = read_groups(&file(step))
        .unwrap()
        .into_iter()
        .flat_map(|group| {
            let position = group.cursor - 1;
            group.completions.into_iter().map(move |c| ((position, u64::from(c.sample)), c.text))
        })
        .collect();
    let _ = cli::finish(bench.command("run", &RESUMED)).success();
    assert_balanced(&bench, "run", 8);
    let lines = json_lines(&folder.join("ledger.jsonl"));
    let carried = events(&lines, "carried_over");
    assert_eq!(carried.len(), kept.len(), "all that was finished at step {step} is used");
    for (step, position, sample) in carried {
        let rows = json_lines(&folder.join(format!("completions/step-{step}.jsonl")));
        let is = |row: &&Value| row["position"] == position && row["sample"] == sample;
        let row = rows.iter().find(is).unwrap();
        assert_eq!(row["completion"].as_str().unwrap(), kept[&(position, sample)], "{position}.{sample}");
    }
    let again = events(&lines, "made_again");
    assert!(!again.is_empty() && again.iter().all(|(_, position, sample)| !kept.contains_key(&(*position, *sample))));
    let log = fs::read_to_string(folder.join("logs/rollout.log")).unwrap();
    let words = format!("{} completions of", kept.len());
    assert!(log.lines().any(|line| line.contains(&words) && line.contains("are kept from checkpoint-")), "{log}");
}

/// Mean reward of the last steps of a run.
fn final_reward(bench: &Bench, run: &str) -> f64 {
    const LAST: usize = 10;
    let records = json_lines(&bench.path(run).join("metrics.jsonl"));
    let rewards: Vec<f64> = records.iter().map(|record| record["reward"].as_f64().unwrap()).collect();
    rewards[rewards.len() - LAST..].iter().sum::<f64>() / LAST as f64
}

/// The launcher kills the sampler, the learner or both after every step, and is killed with them itself.
#[test]
fn fifty_kills_leave_everything_accounted_for_and_the_run_learns() {
    const STEPS: u64 = 44;
    let bench = bench("max_completion_length = 16\nmax_steps = 44\nsave_steps = 1\nlearning_rate = 1e-3\n");
    let _ = cli::finish(bench.command("undisturbed", &[])).success();
    let chaos = ["--max_restarts", "0", "--chaos", "seed=3,kill=1"];
    let mut kills = 0;
    for until in [15, 30, STEPS] {
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
        assert_balanced(&bench, run, STEPS);
    }
    let lines = json_lines(&bench.path("chaos/ledger.jsonl"));
    let carried = events(&lines, "carried_over").len();
    assert!(carried >= 100, "{carried} completions were carried over");
    let [expected, found] = ["undisturbed", "chaos"].map(|run| final_reward(&bench, run));
    println!("{kills} kills, {carried} completions carried over, final reward {found} instead of {expected}");
    assert!((found - expected).abs() < 1.0, "{found} instead of {expected}");
}
