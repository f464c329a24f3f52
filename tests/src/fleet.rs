//! Runs that sample with workers, which are processes of this machine.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    ops::Deref,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    bench::{self, Running},
    binary,
    line::Host,
    training::json_lines,
};

/// How long a run, or a step of one, may take.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long a worker may take to end after its run.
const HOME: Duration = Duration::from_secs(20);

/// A folder for runs of one configuration, and an address for their workers.
pub struct FleetBench {
    bench: bench::Bench,
    /// The value of `--listen` and `--join`.
    pub listen: String,
    /// Variables for the store, for run and workers.
    pub variables: Vec<(String, String)>,
}

impl Deref for FleetBench {
    type Target = bench::Bench;

    fn deref(&self) -> &bench::Bench {
        &self.bench
    }
}

/// A worker that ends with its value, also when a test fails.
pub struct Worker(Child);

impl Worker {
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it has ended, if it has.
    ///
    /// # Panics
    /// When the system does not tell.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child can be asked")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that an output contains all of these texts.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn assert_says(said: &str, all: &[&str]) {
    for words in all {
        assert!(said.contains(words), "without `{words}`: {said}");
    }
}

/// Waits for a process to end, but not longer than `patience`.
fn end_of(
    mut ended: impl FnMut() -> Option<ExitStatus>,
    patience: Duration,
    who: &str,
    said: impl Fn() -> String,
) -> ExitStatus {
    let begun = Instant::now();
    loop {
        match ended() {
            Some(status) => return status,
            None => assert!(begun.elapsed() < patience, "{who} stays: {}", said()),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

impl FleetBench {
    /// Runs of `steps` steps of four groups of four, with further lines of the configuration.
    ///
    /// # Panics
    /// When files cannot be written.
    #[must_use]
    pub fn new(steps: u64, more: &str) -> Self {
        let bench = bench::Bench::new(&format!(
            "dataset = \"prompts.jsonl\"\nmax_steps = {steps}\nsave_steps = 4\nnum_generations = 4\n\
             generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n\
             learning_rate = 1e-3\nmax_restarts = 9\n{more}"
        ));
        let free = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let listen = format!("tcp/{}", free.local_addr().expect("it has an address"));
        Self { bench, listen, variables: Vec::new() }
    }

    /// The address behind `tcp/` or `tls/`.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listen[4..].parse().expect("an address")
    }

    /// Begins a run that samples with workers.
    #[must_use]
    pub fn start_fleet(&self, run: &str, more: &[&str]) -> Running {
        let mut command = self.command(run, &["--listen", &self.listen, "--lease_timeout", "5"]);
        command.args(more).envs(self.variables.iter().cloned());
        self.start_command(command, "stderr")
    }

    /// Starts a worker.
    #[must_use]
    pub fn worker(&self, name: &str) -> Worker {
        self.worker_at(&self.listen, name, &[])
    }

    /// Starts a worker that joins at another address, for instance a proxy. Its output is appended to `NAME.log`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn worker_at(&self, join: &str, name: &str, more: &[&str]) -> Worker {
        self.start_worker(Command::new(binary("tandem")), join, name, more)
    }

    /// Starts a worker on another host.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn worker_on(&self, host: &Host, name: &str, more: &[&str]) -> Worker {
        let mut command = host.command();
        command.arg(binary("tandem"));
        self.start_worker(command, &self.listen, name, more)
    }

    fn start_worker(&self, mut command: Command, join: &str, name: &str, more: &[&str]) -> Worker {
        command.args(["worker", "--join", join, "--name", name, "--threads", "1"]);
        command.env("TANDEM_RETRY_FOR", "120");
        command.envs(self.variables.iter().cloned());
        if !more.contains(&"--cache") {
            command.arg("--cache").arg(self.path("workers"));
        }
        command.args(more);
        let log = fs::File::options().create(true).append(true).open(self.log_of(name)).expect("files can be written");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Worker(command.spawn().expect("a worker can be started"))
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    /// Output of a worker.
    #[must_use]
    pub fn worker_said(&self, name: &str) -> String {
        fs::read_to_string(self.log_of(name)).unwrap_or_default()
    }

    /// Output of the last run's launcher.
    #[must_use]
    pub fn run_said(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    /// The last line of a worker with these additional flags that is refused or cannot go on.
    ///
    /// # Panics
    /// When it keeps running, ends well, or ends without a message.
    #[must_use]
    pub fn refused(&self, name: &str, more: &[&str]) -> String {
        let mut worker = self.worker_at(&self.listen, name, more);
        self.fails(name, &mut worker)
    }

    /// The last line of a worker that cannot go on.
    ///
    /// # Panics
    /// As [`FleetBench::refused`].
    #[must_use]
    pub fn fails(&self, name: &str, worker: &mut Worker) -> String {
        let status = end_of(|| worker.ended(), PATIENCE, name, || self.worker_said(name));
        let said = self.worker_said(name);
        let last = said.trim_end().lines().last().unwrap_or_default();
        assert!(status.code() == Some(1) && !said.contains("panicked at"), "{name} ends with {status}: {said}");
        last.strip_prefix("error: ").unwrap_or_else(|| panic!("{name} ends without an error: {said}")).to_owned()
    }

    /// Waits until the run's sampler has written this.
    ///
    /// # Panics
    /// When it does not.
    pub fn coordinator_says(&self, run: &str, words: &str) {
        self.says(words, || fs::read_to_string(self.path(run).join("logs/rollout.log")).unwrap_or_default());
    }

    /// Waits until the launcher of the last run has written this.
    ///
    /// # Panics
    /// When it does not.
    pub fn run_says(&self, words: &str) {
        self.says(words, || self.run_said());
    }

    /// Waits until a worker has written this.
    ///
    /// # Panics
    /// When it does not.
    pub fn worker_says(&self, name: &str, words: &str) {
        self.says(words, || self.worker_said(name));
    }

    fn says(&self, words: &str, said: impl Fn() -> String) {
        let begun = Instant::now();
        while !said().contains(words) {
            assert!(begun.elapsed() < PATIENCE, "nobody says `{words}`: {}", said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the run and every worker to end well.
    ///
    /// # Panics
    /// When they do not.
    pub fn ends(&self, run: &mut Running, workers: Vec<(&str, Worker)>) {
        let ended = || run.try_wait().expect("a child can be asked");
        let status = end_of(ended, PATIENCE, "the run", || self.run_said());
        assert!(status.success(), "{}", self.run_said());
        for (name, mut worker) in workers {
            let status = end_of(|| worker.ended(), HOME, name, || self.worker_said(name));
            assert!(status.success(), "{name}: {}", self.worker_said(name));
        }
    }

    /// The weights after the last step, or the adapter of a run with one; every step must be on record exactly once, in
    /// order.
    ///
    /// # Panics
    /// If that is not so.
    #[must_use]
    pub fn result(&self, run: &str, steps: u64) -> Vec<u8> {
        let records = json_lines(&self.path(run).join("metrics.jsonl"));
        let found: Vec<u64> = records.iter().filter_map(|record| record["step"].as_u64()).collect();
        assert_eq!(found, (1..=steps).collect::<Vec<_>>(), "{run}");
        let checkpoint = self.path(run).join(format!("checkpoint-{steps}"));
        let file = ["model.safetensors", "adapter_model.safetensors"].map(|name| checkpoint.join(name));
        let file = file.iter().find(|file| file.exists()).expect("the run has weights");
        fs::read(file).expect("they can be read")
    }

    /// Waits until the metrics have so many steps.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_for_step(&self, run: &str, step: usize) {
        let begun = Instant::now();
        let steps = || fs::read_to_string(self.path(run).join("metrics.jsonl")).map_or(0, |text| text.lines().count());
        while steps() < step {
            assert!(begun.elapsed() < PATIENCE, "{run} does not reach step {step}: {}", self.run_said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The weights that a run without workers makes.
    ///
    /// # Panics
    /// When it makes none.
    #[must_use]
    pub fn pair(&self, steps: u64) -> Vec<u8> {
        let mut run = self.start("pair", &[]);
        assert!(run.wait().expect("a child can be waited for").success(), "{}", self.run_said());
        self.result("pair", steps)
    }

    /// The table of workers of a run.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    pub fn table(&self, run: &str) -> Value {
        let text = fs::read(self.path(run).join("workers.json")).expect("the run has a table of workers");
        serde_json::from_slice(&text).expect("the table is JSON")
    }

    /// Output of the run's sampler.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn coordinator_said(&self, run: &str) -> String {
        fs::read_to_string(self.path(run).join("logs/rollout.log")).expect("the run has a log")
    }
}
