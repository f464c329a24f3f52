//! A learner whose further ranks others have started, by torchrun's variables, as on other hosts.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    ops::Deref,
    process::{Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench::{self, Running},
    binary, cli,
    line::Host,
    processes::{children, signal},
    skipped,
    tiny_model::{self, SMALL},
};

const STEPS: u64 = 40;
/// A rank that dies or stalls is named within this.
const NAMED: Duration = Duration::from_secs(10);
/// Within which everything else happens, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(300);
/// The runs here have two ranks, which share their optimiser's moments out.
const TWO: [&str; 4] = ["--learner_ranks", "2", "--shard_optimizer", "true"];

struct Bench {
    bench: bench::Bench,
    /// Where the first rank is found.
    address: Ipv4Addr,
    port: String,
}

impl Deref for Bench {
    type Target = bench::Bench;

    fn deref(&self) -> &bench::Bench {
        &self.bench
    }
}

impl Bench {
    fn new() -> Self {
        Self::at(Ipv4Addr::LOCALHOST)
    }

    fn at(address: Ipv4Addr) -> Self {
        let bench = bench::Bench::new(&format!(
            "dataset = \"prompts.jsonl\"\nmax_steps = {STEPS}\nsave_steps = 4\nnum_generations = 4\n\
             generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n\
             learning_rate = 1e-3\nmax_restarts = 4\n"
        ));
        let free = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port();
        Self { bench, address, port: free.to_string() }
    }

    /// Tells a process of the learner what torchrun would.
    fn told(&self, mut command: Command, rank: &str) -> Command {
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("LOCAL_RANK", rank)]);
        command.envs([("MASTER_ADDR", &*self.address.to_string()), ("MASTER_PORT", &*self.port)]);
        command
    }

    fn start_first(&self, run: &str) -> Running {
        self.start_command(self.told(self.command(run, &TWO), "0"), "stderr")
    }

    /// A further rank, with a model of its own.
    fn rank(&self, flags: &[&str]) -> Command {
        self.rank_by(Command::new(binary("tandem")), flags)
    }

    /// The same on another host.
    fn rank_on(&self, host: &Host, flags: &[&str]) -> Command {
        let mut command = host.command();
        command.arg(binary("tandem"));
        self.rank_by(command, flags)
    }

    fn rank_by(&self, mut command: Command, flags: &[&str]) -> Command {
        command.current_dir(self.path("")).arg("learner-rank").args(flags).args(["--model", "there"]);
        self.told(command, "1")
    }

    fn copy_model(&self) {
        fs::create_dir(self.path("there")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(self.path("model").join(file), self.path("there").join(file)).unwrap();
        }
    }

    fn wait_for_step(&self, run: &str, step: usize) {
        let records = self.path(run).join("metrics.jsonl");
        wait(PATIENCE, &format!("step {step}"), || {
            fs::read_to_string(&records).is_ok_and(|text| text.lines().count() >= step)
        });
    }

    fn weights(&self, run: &str) -> [Vec<u8>; 2] {
        let checkpoint = self.path(run).join(format!("checkpoint-{STEPS}"));
        ["weights.data", "optimizer.safetensors"].map(|file| fs::read(checkpoint.join(file)).unwrap())
    }

    /// The weights of a run whose ranks are all on this host.
    fn weights_of_one_host(&self) -> [Vec<u8>; 2] {
        let alone = cli::finish(self.command("one-host", &TWO));
        assert!(alone.status.success(), "{}", alone.stderr);
        self.weights("one-host")
    }

    /// Waits until the further rank was gone so often, and is there again.
    fn is_back(&self, times: usize) {
        let counts = |words: &str, least: usize| self.read("rank").matches(words).count() >= least;
        wait(PATIENCE, "the rank", || counts("comes again", times) && counts("rank 1 of the learner's 2", times + 1));
    }

    fn read(&self, log: &str) -> String {
        fs::read_to_string(self.path(log)).unwrap_or_default()
    }
}

fn wait(patience: Duration, what: &str, holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < patience, "not within {patience:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn end(running: &mut Running) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = running.try_wait().unwrap() {
            return status;
        }
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The only child of a process that is a learner.
fn learner_of(parent: u32) -> u32 {
    wait(PATIENCE, "a learner", || children(parent, "learner").len() == 1);
    children(parent, "learner")[0]
}

#[test]
fn ranks_that_others_start_come_back_and_make_the_run_of_one_host() {
    let bench = Bench::new();
    bench.copy_model();
    let expected = bench.weights_of_one_host();
    // The rank is there before the run is.
    let mut rank = bench.start_command(bench.rank(&["--max-restarts", "4"]), "rank");
    let mut run = bench.start_first("told");
    let log = "told/logs/learner.log";
    let named = |log: &str, words: &str, deed: &dyn Fn()| {
        let before = bench.read(log).matches(words).count();
        deed();
        wait(NAMED, &format!("{words} in {log}"), || bench.read(log).matches(words).count() > before);
    };
    bench.wait_for_step("told", 5);
    named(log, "rank 1 of the learner has given no sign of life", &|| signal(learner_of(rank.id()), "KILL"));
    bench.is_back(1);
    bench.wait_for_step("told", 11);
    let stopped = learner_of(rank.id());
    named(log, "rank 1 of the learner has given no sign of life", &|| signal(stopped, "STOP"));
    // It finds itself left behind.
    signal(stopped, "CONT");
    bench.is_back(2);
    named("rank", "rank 0 of the learner", &|| signal(learner_of(run.id()), "KILL"));
    assert!(end(&mut run).success(), "{}{}", bench.read("stderr"), bench.read("rank"));
    assert!(end(&mut rank).success(), "{}", bench.read("rank"));
    assert!(bench.read("rank").matches("comes again").count() >= 3, "{}", bench.read("rank"));
    assert!(bench.weights("told") == expected, "the weights differ");
}

#[test]
fn a_rank_on_another_host_comes_back_when_its_line_is_in_again() {
    const TEST: &str = "a_rank_on_another_host_comes_back_when_its_line_is_in_again";
    let Some(host) = Host::new(9) else {
        return skipped(TEST, "this user cannot make network namespaces with lines");
    };
    let bench = Bench::at(host.here);
    bench.copy_model();
    let expected = bench.weights_of_one_host();
    let mut run = bench.start_first("told");
    let mut rank = bench.start_command(bench.rank_on(&host, &[]), "rank");
    bench.wait_for_step("told", 5);
    host.pull_out_for(NAMED);
    for (log, words) in [
        ("told/logs/learner.log", "rank 1 of the learner has given no sign of life"),
        ("rank", "rank 0 of the learner has given no sign of life"),
    ] {
        assert!(bench.read(log).contains(words), "not within {NAMED:?}: {words} in {log}: {}", bench.read(log));
    }
    bench.is_back(1);
    assert!(end(&mut run).success(), "{}{}", bench.read("stderr"), bench.read("rank"));
    assert!(end(&mut rank).success(), "{}", bench.read("rank"));
    assert!(bench.weights("told") == expected, "the weights differ");
}

#[test]
fn another_model_is_named_on_both_sides() {
    let bench = Bench::new();
    SMALL.write(&bench.path("there"), 6);
    tiny_model::write_tokenizer(&bench.path("there"));
    let mut run = bench.start_first("run");
    let rank = cli::finish(bench.rank(&[]));
    assert!(!rank.status.success(), "{}", rank.stderr);
    assert!(rank.stderr.contains("is not the model that the first rank has"), "{}", rank.stderr);
    assert!(!rank.stderr.contains("comes again"), "{}", rank.stderr);
    assert!(!end(&mut run).success());
    let said = bench.read("stderr");
    assert!(said.contains("error: the learner: rank 1 of the learner has not the model of this one"), "{said}");
}

#[test]
fn who_does_not_come_is_named_with_the_way_out() {
    let bench = Bench::new();
    bench.copy_model();
    let command = bench.told(bench.command("run", &[&TWO[..], &["--peer_timeout", "2"]].concat()), "0");
    let run = cli::finish(command);
    assert!(!run.status.success(), "{}", run.stderr);
    assert!(run.stderr.contains("rank 1 of the learner has not come within 2 s"), "{}", run.stderr);
    let rank = cli::finish(bench.rank(&["--patience", "1"]));
    assert!(!rank.status.success(), "{}", rank.stderr);
    assert!(rank.stderr.contains("has not come within 1 s (--patience)"), "{}", rank.stderr);
}

#[test]
fn variables_that_do_not_fit_the_run_are_refused_before_it_starts() {
    let bench = Bench::new();
    let refusal = |command: Command| {
        let run = cli::finish(command);
        assert!(!run.status.success() && !bench.path("run").exists(), "{}", run.stderr);
        run.stderr
    };
    let said = refusal(bench.told(bench.command("run", &["--learner_ranks", "4"]), "0"));
    assert!(said.contains("WORLD_SIZE is 2 and `learner_ranks` 4"), "{said}");
    let said = refusal(bench.told(bench.command("run", &TWO), "1"));
    assert!(said.contains("RANK is 1") && said.contains("`tandem learner-rank`"), "{said}");
    let mut no_rank = bench.rank(&[]);
    no_rank.env("RANK", "0");
    let said = refusal(no_rank);
    assert!(said.contains("RANK is 0") && said.contains("`tandem train`"), "{said}");
}
