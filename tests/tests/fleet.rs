//! Samplers in other processes: whichever worker makes what, and whatever becomes of workers and learner, the weights are those
//! of one pair.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    ops::Deref,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench::{self, Running},
    binary, cli,
    processes::{children, signal},
    proxy::{Proxy, Way},
    s3::Server,
    training::json_lines,
};
use serde_json::Value;
use shared::{
    FinishReason, TokenLogprob,
    channel::fleet::{KernelClass, Made, Report, WorkerEnd},
    config::{Device, Kernels, KvDtype, RolloutDtype},
};
use shared_fleet::{JoinOptions, ZenohWorker};

const STEPS: u64 = 12;
const PATIENCE: Duration = Duration::from_secs(240);

/// Where runs of one configuration are made, and a place where workers join.
struct Bench {
    bench: bench::Bench,
    listen: String,
    /// Of the store.
    variables: Vec<(String, String)>,
}

impl Deref for Bench {
    type Target = bench::Bench;

    fn deref(&self) -> &bench::Bench {
        &self.bench
    }
}

/// A worker that a failing test does not leave behind.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    fn new(steps: u64, more: &str) -> Self {
        let bench = bench::Bench::new(&format!(
            "dataset = \"prompts.jsonl\"\nmax_steps = {steps}\nsave_steps = 4\nnum_generations = 4\n\
             generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n\
             learning_rate = 1e-3\nmax_restarts = 9\n{more}"
        ));
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = format!("tcp/{}", free.local_addr().unwrap());
        Self { bench, listen, variables: Vec::new() }
    }

    /// A run that samples with workers.
    fn start_fleet(&self, run: &str) -> Running {
        self.start(run, &["--listen", &self.listen, "--lease_timeout", "5", "--verify_share", "0.3"])
    }

    /// As [`Bench::start_fleet`], with the weights in the bucket of a server.
    fn start_fleet_with_bucket(&self, run: &str) -> Running {
        let mut command = self.command(run, &["--listen", &self.listen, "--lease_timeout", "5"]);
        command
            .args(["--weights_store", "s3://bucket/run", "--store_versions", "1"])
            .envs(self.variables.iter().cloned());
        let stderr = fs::File::create(self.path("stderr")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Running::of(command.spawn().unwrap())
    }

    fn worker(&self, name: &str) -> Worker {
        self.worker_with(name, &[])
    }

    /// The address behind `tcp/`.
    fn address(&self) -> SocketAddr {
        self.listen.trim_start_matches("tcp/").parse().unwrap()
    }

    fn worker_with(&self, name: &str, more: &[&str]) -> Worker {
        self.worker_at(&self.listen, name, more)
    }

    fn worker_at(&self, join: &str, name: &str, more: &[&str]) -> Worker {
        let mut command = Command::new(binary("tandem"));
        command.args(["worker", "--join", join, "--name", name, "--threads", "1", "--retry-for", "120"]);
        command.envs(self.variables.iter().cloned());
        command.arg("--cache").arg(self.path("workers")).args(more);
        let log = fs::File::options().create(true).append(true).open(self.path(&format!("{name}.log"))).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Worker(command.spawn().unwrap())
    }

    fn worker_said(&self, name: &str) -> String {
        fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default()
    }

    /// Ends well, and so does every worker.
    fn ends(&self, run: &mut Running, workers: Vec<(&str, Worker)>) {
        let begun = Instant::now();
        let status = loop {
            match run.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(begun.elapsed() < PATIENCE, "{}", fs::read_to_string(self.path("stderr")).unwrap()),
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{}", fs::read_to_string(self.path("stderr")).unwrap());
        for (name, mut worker) in workers {
            let begun = Instant::now();
            while worker.0.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(20), "{name} stays: {}", self.worker_said(name));
                thread::sleep(Duration::from_millis(20));
            }
            assert!(worker.0.wait().unwrap().success(), "{name}: {}", self.worker_said(name));
        }
    }

    /// The weights after the last step; every step must be on record exactly once, in order.
    fn result(&self, run: &str, steps: u64) -> Vec<u8> {
        let records = json_lines(&self.path(run).join("metrics.jsonl"));
        let found: Vec<u64> = records.iter().filter_map(|record| record["step"].as_u64()).collect();
        assert_eq!(found, (1..=steps).collect::<Vec<_>>(), "{run}");
        fs::read(self.path(run).join(format!("checkpoint-{steps}/model.safetensors"))).unwrap()
    }

    fn wait_for_step(&self, run: &str, step: usize) {
        let begun = Instant::now();
        let steps = || fs::read_to_string(self.path(run).join("metrics.jsonl")).map_or(0, |text| text.lines().count());
        while steps() < step {
            let said = fs::read_to_string(self.path("stderr")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "{run} does not reach step {step}: {said}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn pair(&self, steps: u64) -> Vec<u8> {
        let mut run = self.start("pair", &[]);
        assert!(run.wait().unwrap().success(), "{}", fs::read_to_string(self.path("stderr")).unwrap());
        self.result("pair", steps)
    }

    fn table(&self, run: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(run).join("workers.json")).unwrap()).unwrap()
    }
}

#[test]
fn workers_that_come_and_go_make_the_weights_of_one_pair() {
    let bench = Bench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet");
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
}

#[test]
fn a_run_whose_learner_and_hub_are_killed_goes_on_with_the_workers_that_it_had() {
    let bench = Bench::new(STEPS, "");
    let expected = bench.pair(STEPS);
    let mut run = bench.start_fleet("fleet");
    let workers = vec![("one", bench.worker("one")), ("two", bench.worker("two"))];
    for (step, half) in [(3, "learner"), (6, "rollout"), (9, "learner")] {
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
    let bench = Bench::new(20, "max_staleness = 2\nweight_swap = \"continue\"\n");
    let mut run = bench.start_fleet("fleet");
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
    let mut bench = Bench::new(STEPS, "");
    let server = Server::start();
    bench.variables = server.variables(server.address);
    let expected = bench.pair(STEPS);
    let proxy = Proxy::to(bench.address());
    proxy.set(Way { delay: Duration::from_millis(20), ..Way::default() });
    let mut run = bench.start_fleet_with_bucket("fleet");
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
        report.hub = orders.hub;
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
                });
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_worker_that_makes_things_up_is_named_and_dropped_and_the_run_goes_on() {
    let bench = Bench::new(STEPS, "");
    let options = ["--listen", &bench.listen, "--lease_timeout", "5", "--verify_share", "1"];
    let mut run = bench.start("fleet", &options);
    let honest = bench.worker("honest");
    let reason = lie(&bench.listen);
    assert!(reason.contains("made again beside the learner"), "{reason}");
    bench.ends(&mut run, vec![("honest", honest)]);
    let table = bench.table("fleet");
    assert!(table["disputed"].as_u64().unwrap() > 0, "{table}");
    let log = fs::read_to_string(bench.path("fleet/logs/rollout.log")).unwrap();
    assert!(log.contains("worker liar is dropped"), "{log}");
    assert!(!log.contains("worker honest is dropped"), "{log}");
}

#[test]
fn doctor_says_whether_a_host_could_work_for_a_run() {
    let bench = Bench::new(40, "");
    let refused = cli::run("tandem", ["doctor", "--join", &bench.listen]);
    assert!(!refused.status.success() && refused.stderr.contains("nothing listens there"), "{}", refused.stderr);
    let run = bench.start_fleet("fleet");
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
