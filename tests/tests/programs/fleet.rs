//! Samplers in other processes: whichever worker makes what, and whatever becomes of workers and learner, the weights
//! are those of one pair.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use harness::{
    cli,
    fleet::{FleetBench, assert_says},
    processes::{children, signal},
    proxy::{Proxy, Way},
    s3::Server,
    training::json_lines,
};
use shared::{
    FinishReason, TokenLogprob,
    channel::fleet::{KernelClass, Made, Report, WorkerEnd},
    config::{Device, Kernels, KvDtype, RolloutDtype},
};
use shared_fleet::{JoinOptions, ZenohWorker};

const STEPS: u64 = 12;
const PATIENCE: Duration = Duration::from_secs(240);

#[test]
fn workers_that_come_and_go_make_the_weights_of_one_pair() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--verify_share", "0.3"]);
    let first = bench.worker("first");
    bench.wait_for_step("fleet", 2);
    let second = bench.worker("second");
    bench.wait_for_step("fleet", 5);
    // Killed in the middle of whatever it makes.
    drop(first);
    let third = bench.worker("third");
    bench.ends(&mut run, vec![("second", second), ("third", third)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    let table = bench.table("fleet");
    assert!(table["verified"].as_u64().unwrap() > 0 && table["disputed"] == 0, "{table}");
    let records = json_lines(&bench.path("fleet").join("metrics.jsonl"));
    assert!(records.iter().all(|record| record["fleet/workers"].as_u64().is_some()), "{:?}", records.last());
    // Of versions, workers of the same host read what the learner leaves.
    let workers = table["workers"].as_array().unwrap();
    assert!(workers.len() == 3 && workers.iter().all(|row| row["fetched_bytes"] == 0), "{table}");
    let stored: Vec<_> =
        fs::read_dir(bench.path("fleet/store")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(stored.iter().all(|name| name.to_string_lossy().starts_with("model-")), "{stored:?}");
}

#[test]
fn a_run_whose_learner_and_coordinator_are_killed_goes_on_with_the_workers_that_it_had() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--verify_share", "0.3"]);
    let workers = vec![("one", bench.worker("one")), ("two", bench.worker("two"))];
    for (step, half) in [(3, "learner"), (6, "rollout-fleet"), (9, "learner")] {
        bench.wait_for_step("fleet", step);
        for process in children(run.id(), half) {
            signal(process, "KILL");
        }
    }
    bench.ends(&mut run, workers);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
}

#[test]
fn an_asynchronous_run_with_workers_makes_every_step_and_its_ledger_balances() {
    let bench = FleetBench::new(20, "max_staleness = 2\nweight_swap = \"continue\"\n");
    let mut run = bench.start_fleet("fleet", &["--verify_share", "0.3"]);
    let workers = vec![("one", bench.worker("one")), ("two", bench.worker("two"))];
    bench.wait_for_step("fleet", 4);
    for process in children(run.id(), "learner") {
        signal(process, "KILL");
    }
    bench.ends(&mut run, workers);
    bench.assert_balanced("fleet", 20, 4);
}

#[test]
fn weights_go_through_a_server_of_objects_and_calls_over_a_slow_line_that_is_cut() {
    let mut bench = FleetBench::new(STEPS, "");
    let server = Server::start();
    bench.variables = server.variables(server.address);
    let expected = bench.pair(STEPS);
    let proxy = Proxy::to(bench.address());
    proxy.set(Way { delay: Duration::from_millis(20), ..Way::default() });
    let mut run = bench.start_fleet("fleet", &["--weights_store", "s3://bucket/run", "--store_versions", "1"]);
    let near = bench.worker("near");
    // Should it be cut off when the run ends, it calls on for a while.
    let far = bench.worker_at(&format!("tcp/{}", proxy.address()), "far", &[]);
    for step in [3, 6, 9] {
        bench.wait_for_step("fleet", step);
        proxy.cut_for(Duration::from_millis(300));
    }
    bench.ends(&mut run, vec![("near", near)]);
    drop(far);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    let versions = fs::read_dir(server.bucket().join("run")).unwrap().flatten();
    // The server keeps folders without objects.
    let whole = versions.filter(|entry| entry.path().join("index.json").is_file());
    let kept: Vec<String> = whole.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let (differences, versions): (Vec<&String>, Vec<&String>) =
        kept.iter().filter(|name| name.starts_with('v')).partition(|name| name.contains("-from-v"));
    assert!((1..=3).contains(&versions.len()), "{kept:?}");
    assert!(!differences.is_empty(), "workers are led from the version that they have: {kept:?}");
    let fetched = |name| {
        let said = bench.worker_said(name);
        assert!(!said.contains("are fetched whole"), "{said}");
        let table = bench.table("fleet");
        let workers = table["workers"].as_array().unwrap();
        let row = workers.iter().find(|row| row["name"] == name).unwrap();
        row["fetched_bytes"].as_u64().unwrap()
    };
    let plain: u64 = STEPS * fs::metadata(bench.path("fleet/checkpoint-12/model.safetensors")).unwrap().len();
    let share = fetched("near") as f64 / plain as f64;
    assert!(share < 0.8, "{share} of the versions as they are");
}

/// Joins as a worker does, and makes things up.
fn lie(join: &str) -> String {
    let options =
        JoinOptions { endpoint: join.parse().unwrap(), token_file: None, ca: None, certificate: None, key: None };
    let mut end = ZenohWorker::join(&options, 7, PATIENCE).unwrap();
    let class = KernelClass {
        device: Device::Cpu,
        kernels: Kernels::Packed,
        rollout_dtype: RolloutDtype::Auto,
        kv_dtype: KvDtype::Auto,
    };
    let (name, build) = ("liar".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    let mut report = Report { worker: 7, name, build, class: Some(class), ..Report::default() };
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "it is believed");
        let Ok(orders) = end.exchange(&report, Duration::from_secs(5)) else { continue };
        if let Some(reason) = orders.refused {
            return reason;
        }
        assert!(!orders.finished, "it was believed to the end");
        report.made.clear();
        report.coordinator = orders.coordinator;
        report.max_num_seqs = 4;
        report.edition = orders.edition;
        for lease in orders.granted {
            for &sample in &lease.samples {
                report.made.push(Made {
                    lease: lease.id,
                    sample,
                    token_ids: vec![3; 4],
                    logprobs: vec![
                        TokenLogprob {
                            logprob: -1.0,
                            logprob_at_temperature: -1.0,
                            ..TokenLogprob::default()
                        };
                        4
                    ],
                    versions: vec![(0, report.edition.as_ref().unwrap().version)],
                    finish_reason: FinishReason::Length,
                    seconds: 0.01,
                    rewards: Vec::new(),
                });
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_worker_that_makes_things_up_is_named_and_dropped_and_the_run_goes_on() {
    let bench = FleetBench::new(STEPS, "");
    let mut run = bench.start_fleet("fleet", &["--verify_share", "1"]);
    let honest = bench.worker("honest");
    let reason = lie(&bench.listen);
    assert!(reason.contains("made again beside the learner"), "{reason}");
    bench.ends(&mut run, vec![("honest", honest)]);
    let table = bench.table("fleet");
    assert!(table["disputed"].as_u64().unwrap() > 0, "{table}");
    let log = bench.coordinator_said("fleet");
    assert!(log.contains("worker liar is dropped"), "{log}");
    assert!(!log.contains("worker honest is dropped"), "{log}");
}

#[test]
fn a_worker_with_other_kernels_is_refused_or_by_option_held_to_its_log_probs() {
    let bench = FleetBench::new(6, "");
    let mut run = bench.start_fleet("strict", &[]);
    let refused = bench.refused("stock", &["--kernels", "stock"]);
    assert_says(&refused, &["stock kernels on cpu", "`accept_other_kernels`"]);
    bench.ends(&mut run, vec![("packed", bench.worker("packed"))]);
    let mut run = bench.start_fleet("open", &["--accept_other_kernels", "true", "--verify_share", "1"]);
    let stock = bench.worker_at(&bench.listen, "other", &["--kernels", "stock"]);
    bench.ends(&mut run, vec![("other", stock)]);
    let table = bench.table("open");
    assert!(table["verified"].as_u64().unwrap() > 0 && table["disputed"] == 0, "{table}");
}

#[test]
fn workers_that_score_what_they_make_make_the_weights_of_one_pair() {
    let bench = FleetBench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet", &["--rewards_on", "workers"]);
    let one = bench.worker("one");
    bench.wait_for_step("fleet", 4);
    let two = bench.worker("two");
    bench.wait_for_step("fleet", 8);
    drop(one);
    bench.ends(&mut run, vec![("two", two)]);
    assert!(bench.result("fleet", STEPS) == expected, "other weights");
    let table = bench.table("fleet");
    let scored = |row: &serde_json::Value| row["scored"].as_u64().unwrap();
    let all: u64 = table["workers"].as_array().unwrap().iter().map(scored).sum();
    assert!(all >= STEPS * 16 - 32, "{table}");
}

#[test]
fn a_worker_scores_with_its_own_reward_functions_or_is_told_which_it_does_not_have() {
    let bench = FleetBench::new(4, "");
    let (here, elsewhere) = (bench.path("r.py"), bench.path("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    // So it is seen whose rewards the learner is given.
    for (path, divisor) in [(here, 3), (elsewhere.join("r.py"), 2)] {
        let text = format!("def f(completions, **_):\n    return [len(c) % {divisor} for c in completions]\n");
        fs::write(path, text).unwrap();
    }
    let elsewhere = elsewhere.display().to_string();
    let options = ["--reward_funcs", "r.py:f"];
    let pair = |run: &str, more: &[&str]| {
        let mut running = bench.start(run, &[&options, more].concat());
        assert!(running.wait().unwrap().success(), "{}", bench.run_said());
        bench.result(run, 4)
    };
    let expected = pair("pair", &["--reward_dir", &elsewhere]);
    assert!(pair("other", &[]) != expected, "nothing could be seen");
    let mut run = bench.start_fleet("fleet", &[&options[..], &["--rewards_on", "workers"]].concat());
    let lost = bench.refused("lost", &["--reward-dir", "/nowhere"]);
    assert_says(&lost, &["--reward-dir", "r.py"]);
    assert_says(&bench.coordinator_said("fleet"), &["worker lost leaves"]);
    let found = bench.worker_at(&bench.listen, "found", &["--reward-dir", &elsewhere]);
    bench.ends(&mut run, vec![("found", found)]);
    assert!(bench.result("fleet", 4) == expected, "other weights");
}

#[test]
fn reward_functions_that_fail_on_the_workers_end_the_run() {
    let bench = FleetBench::new(4, "");
    let elsewhere = bench.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for (path, body) in [(bench.path("r.py"), "return [1.0 for c in completions]"), (elsewhere.join("r.py"), "1 / 0")] {
        fs::write(path, format!("def f(completions, **_):\n    {body}\n")).unwrap();
    }
    let mut run = bench.start_fleet("fleet", &["--reward_funcs", "r.py:f", "--rewards_on", "workers"]);
    let worker = bench.worker_at(&bench.listen, "worker", &["--reward-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(run.wait().unwrap().code(), Some(1), "{}", bench.run_said());
    let told =
        ["`f` failed on all 16 completions of step 1", "ZeroDivisionError", "in the log of the worker that called it"];
    assert_says(&bench.run_said(), &told);
    assert_says(&bench.worker_said("worker"), &["ZeroDivisionError"]);
    drop(worker);
}

#[test]
fn doctor_says_whether_a_host_could_work_for_a_run() {
    let bench = FleetBench::new(40, "");
    let refused = cli::run("tandem", ["doctor", "--join", &bench.listen]);
    assert!(!refused.status.success() && refused.stderr.contains("nothing listens there"), "{}", refused.stderr);
    let run = bench.start_fleet("fleet", &["--verify_share", "0.3"]);
    let begun = Instant::now();
    let found = loop {
        let found = cli::run("tandem", ["doctor", "--join", &bench.listen]);
        if found.status.success() {
            break found;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", found.stderr);
    };
    for words in ["takes connections", "lets this host in", "ahead of this host's", "can be read"] {
        assert!(found.stderr.contains(words), "{words}: {}", found.stderr);
    }
    drop(run);
}
