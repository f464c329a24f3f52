//! A run with a sampler in a process of its own, and the learner that a test plays.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use exporters::{Checkpoint, ExportOptions, export, write_version};
use harness::tiny_model::{self, Qwen2};
use shared::{
    Dtype, GroupId, ModelDir, Placed, PolicyVersion, RunDir, Step,
    channel::{
        LearnerEnd, LearnerStatus, RunId,
        iox::{self, IoxLearner},
    },
    config::{TrainConfig, layers},
    process::exit::ENDED_BY_SIGNAL,
};

pub const STUCK: Duration = Duration::from_secs(60);

/// A run directory with its configuration, a tiny random model and a dataset.
pub struct Run {
    _folder: tempfile::TempDir,
    pub run_dir: RunDir,
    config: TrainConfig,
}

impl Run {
    pub fn new(adjust: impl FnOnce(&mut TrainConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let model = Qwen2 {
            vocab_size: tiny_model::CHARACTERS,
            hidden_size: 64,
            intermediate_size: 96,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            num_key_value_heads: 2,
        };
        model.write(&path("model"), 1);
        tiny_model::write_tokenizer(&path("model"));
        let rows: Vec<String> =
            (0..10).map(|i| format!("{{\"prompt\": \"{i} + {} =\", \"answer\": \"{}\"}}\n", i * 3, i * 4)).collect();
        fs::write(path("train.jsonl"), rows.concat()).unwrap();
        fs::write(path("eval.jsonl"), rows[..3].concat()).unwrap();
        let mut config = TrainConfig {
            model: path("model"),
            dataset: path("train.jsonl").into(),
            eval_dataset: Some(path("eval.jsonl")),
            output_dir: path("run"),
            reward_funcs: vec!["correctness".into(), "format".into()],
            reward_weights: vec![1.0, 0.5],
            num_generations: 4,
            max_completion_length: 12,
            generation_batch_size: Some(12),
            max_steps: Some(5),
            rollout_threads: Some(1),
            ..TrainConfig::default()
        };
        adjust(&mut config);
        let run_dir = RunDir::new(path("run"));
        run_dir.create().unwrap();
        fs::write(run_dir.config(), layers::to_toml(&config)).unwrap();
        Self { _folder: folder, run_dir, config }
    }

    pub fn sampler(&self) -> Sampler {
        let child = Command::new(harness::binary("rollout"))
            .args(["run", "--run-dir"])
            .arg(self.run_dir.root())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Sampler(Some(child))
    }

    pub fn learner(&self, incarnation: u64, step: u64) -> Learner<'_> {
        // A learner says where it stands as soon as it can be reached.
        self.write_version(step);
        let mut learner = Learner {
            run: self,
            end: IoxLearner::open(&self.run_dir, RunId::NONE).unwrap(),
            status: LearnerStatus {
                incarnation,
                total_steps: self.config.max_steps.unwrap(),
                durable_step: Step(step),
                ..LearnerStatus::default()
            },
            groups: BTreeMap::new(),
            repeats: 0,
        };
        learner.publish(step);
        learner
    }

    /// Writes a version's weights, if they are not there yet.
    pub fn write_version(&self, step: u64) {
        let version = PolicyVersion(step);
        let model = ModelDir::open(&self.config.model).unwrap();
        let base = self.run_dir.version(PolicyVersion(0));
        if !base.exists() {
            export(&model, &base, &ExportOptions { dtype: Dtype::Fp32, ..ExportOptions::default() }).unwrap();
        }
        let weights = Checkpoint::open(&model).unwrap();
        let scale = 1.0 + 0.3 * step as f32;
        let mut read = |name: &str| Ok(weights.read_f32(name)?.into_iter().map(|w| w * scale).collect());
        if !self.run_dir.version(version).exists() {
            write_version(&base, &self.run_dir.version(version), version, &mut read).unwrap();
        }
    }

    /// The channel's files of this run on this machine.
    pub fn litter(&self) -> Vec<PathBuf> {
        iox::files(&self.run_dir).unwrap()
    }
}

/// The sampler's process; killed if a test fails.
pub struct Sampler(pub Option<Child>);

impl Sampler {
    pub fn kill(mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends it SIGTERM as soon as it listens for that.
    fn terminate(&self) {
        let pid = self.0.as_ref().unwrap().id() as libc::pid_t;
        let listens = || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            u64::from_str_radix(caught.trim(), 16).unwrap() >> (libc::SIGTERM - 1) & 1 == 1
        };
        let begin = Instant::now();
        while !listens() {
            assert!(begin.elapsed() < STUCK, "the sampler does not listen for signals");
            thread::sleep(Duration::from_millis(5));
        }
        // SAFETY: a signal to a child that has not been waited for, so the number is its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    }

    pub fn end(mut self) -> (ExitStatus, String) {
        let mut child = self.0.take().unwrap();
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > STUCK {
                child.kill().unwrap();
                panic!("the sampler does not end");
            }
            thread::sleep(Duration::from_millis(5));
        };
        let mut log = String::new();
        child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status, log)
    }

    pub fn end_well(self) {
        let (status, log) = self.end();
        assert!(status.success(), "{status}\n{log}");
    }

    /// Ends it with a signal, which must be no end of the run and no error.
    pub fn end_by_signal(self) {
        self.terminate();
        let (status, log) = self.end();
        assert_eq!(status.code(), Some(ENDED_BY_SIGNAL.into()), "{log}");
        assert!(!log.contains("error: "), "{log}");
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let mut log = String::new();
            let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut log));
            let _ = child.wait();
            eprintln!("{log}");
        }
    }
}

/// A learner whose training is to scale the weights.
pub struct Learner<'a> {
    run: &'a Run,
    pub end: IoxLearner,
    pub status: LearnerStatus,
    pub groups: BTreeMap<GroupId, Placed>,
    pub repeats: usize,
}

impl Learner<'_> {
    /// Goes to a step: publishes its version and says so.
    pub fn publish(&mut self, step: u64) {
        self.run.write_version(step);
        let per_step = self.run.config.groups_per_step();
        self.status.version = PolicyVersion(step);
        self.status.step = Step(step);
        self.status.cursor = step * u64::from(per_step);
        self.status.finished = step == self.status.total_steps;
        self.speak();
    }

    pub fn speak(&mut self) {
        let of_step = self.groups.keys().filter(|id| id.step == self.status.step);
        let in_a_row = of_step.zip(0..).take_while(|(id, expected)| id.index == *expected);
        self.status.received = in_a_row.map(|(id, _)| id.index).collect();
        self.status.next_cursor = self.status.cursor + self.status.received.len() as u64;
        self.end.publish_status(&self.status).unwrap();
    }

    /// Receives until the step has so many groups.
    pub fn receive(&mut self, wanted: usize) {
        let begin = Instant::now();
        loop {
            self.speak();
            if self.status.received.len() >= wanted {
                return;
            }
            assert!(begin.elapsed() < STUCK, "only {:?} of step {}", self.status.received, self.status.step);
            self.take_next(Duration::from_millis(20));
        }
    }

    /// Takes a group if one comes in time.
    pub fn take_next(&mut self, within: Duration) {
        if let Some(group) = self.end.receive_group(within).unwrap() {
            self.take(group);
        }
    }

    fn take(&mut self, group: Placed) {
        let config = &self.run.config;
        let position = group.id.step.0 * u64::from(config.groups_per_step()) + u64::from(group.id.index);
        assert_eq!(group.position, position);
        assert_eq!(group.completions.len(), config.num_generations as usize);
        for (index, completion) in group.completions.iter().enumerate() {
            assert_eq!(completion.sample as usize, index);
            assert!(completion.episode.is_sound());
            assert_eq!(completion.rewards.len(), config.reward_funcs.len());
            let oldest = completion.episode.oldest().unwrap();
            assert!(group.policy_version <= oldest);
        }
        let stale = group.id.step.0.checked_sub(group.policy_version.0).expect("no version is newer than its step");
        assert!(stale <= config.max_staleness, "group {} is of v{}", group.id, group.policy_version);
        match self.groups.get(&group.id) {
            Some(first) => {
                self.repeats += 1;
                if config.max_staleness == 0 {
                    assert_eq!(without_times(first), without_times(&group), "a group came again with other content");
                }
            }
            None => drop(self.groups.insert(group.id, group)),
        }
    }

    /// Trains until the given step.
    pub fn train(&mut self, until: u64) {
        while self.status.step.0 < until {
            self.receive(self.run.config.groups_per_step() as usize);
            self.publish(self.status.step.0 + 1);
        }
    }

    /// Says that the run is over until the sampler has ended.
    pub fn dismiss(mut self, sampler: Sampler) -> BTreeMap<GroupId, Placed> {
        assert!(self.status.finished);
        let ended = thread::spawn(move || sampler.end_well());
        while !ended.is_finished() {
            self.speak();
            thread::sleep(Duration::from_millis(20));
        }
        ended.join().unwrap();
        self.groups
    }
}

/// A group as it must come out of every run: without the time it took.
fn without_times(group: &Placed) -> Placed {
    let mut group = group.clone();
    group.scored.group.generation_seconds = 0.0;
    group
}

pub fn assert_same(one: &BTreeMap<GroupId, Placed>, other: &BTreeMap<GroupId, Placed>) {
    let plain = |groups: &BTreeMap<GroupId, Placed>| groups.values().map(without_times).collect::<Vec<_>>();
    assert_eq!(plain(one), plain(other));
}

pub fn synchronous_run(adjust: impl FnOnce(&mut TrainConfig)) -> BTreeMap<GroupId, Placed> {
    let run = Run::new(adjust);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(5);
    learner.dismiss(sampler)
}
