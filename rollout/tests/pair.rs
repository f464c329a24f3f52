//! The sampler as a process of its own, against a learner that this test plays: same hand-over contract, no training.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    os::fd::AsRawFd,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use exporters::{Checkpoint, ExportOptions, export, write_version};
use shared::{
    Dtype, GroupId, ModelDir, PolicyVersion, RolloutGroup, RunDir, Step,
    channel::{
        LearnerEnd, LearnerStatus,
        iox::{self, IoxLearner},
    },
    config::{TrainConfig, WeightSwap, layers},
    exit::ENDED_BY_SIGNAL,
    metrics,
};
use tests::{
    timeline::Timeline,
    tiny_model::{self, Qwen2},
};

const STUCK: Duration = Duration::from_secs(60);

/// A run directory with its configuration, a tiny random model and a dataset.
struct Run {
    _folder: tempfile::TempDir,
    run_dir: RunDir,
    config: TrainConfig,
}

impl Run {
    fn new(adjust: impl FnOnce(&mut TrainConfig)) -> Self {
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
            dataset: path("train.jsonl"),
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

    fn sampler(&self) -> Sampler {
        let child = Command::new(env!("CARGO_BIN_EXE_rollout"))
            .args(["run", "--run-dir"])
            .arg(self.run_dir.root())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Sampler(Some(child))
    }

    fn learner(&self, incarnation: u64, step: u64) -> Learner<'_> {
        let mut learner = Learner {
            run: self,
            end: IoxLearner::open(&self.run_dir).unwrap(),
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

    /// What the channel has on this machine for this run.
    fn litter(&self) -> Vec<PathBuf> {
        iox::files(&self.run_dir).unwrap()
    }
}

/// The sampler's process; killed if a test fails.
struct Sampler(Option<Child>);

impl Sampler {
    fn kill(mut self) {
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

    fn end(mut self) -> (ExitStatus, String) {
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

    fn end_well(self) {
        let (status, log) = self.end();
        assert!(status.success(), "{status}\n{log}");
    }

    /// Ends it with a signal, which must be no end of the run and no error.
    fn end_by_signal(self) {
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
struct Learner<'a> {
    run: &'a Run,
    end: IoxLearner,
    status: LearnerStatus,
    groups: BTreeMap<GroupId, RolloutGroup>,
    repeats: usize,
}

impl Learner<'_> {
    /// Goes to a step: publishes its version and says so.
    fn publish(&mut self, step: u64) {
        let version = PolicyVersion(step);
        let run_dir = &self.run.run_dir;
        let model = ModelDir::open(&self.run.config.model).unwrap();
        let base = run_dir.version(PolicyVersion(0));
        if !base.exists() {
            export(&model, &base, &ExportOptions { dtype: Dtype::Fp32, max_positions: None }).unwrap();
        }
        let weights = Checkpoint::open(&model).unwrap();
        let scale = 1.0 + 0.3 * step as f32;
        let mut read = |name: &str| Ok(weights.read_f32(name)?.into_iter().map(|w| w * scale).collect());
        if !run_dir.version(version).exists() {
            write_version(&base, &run_dir.version(version), version, &mut read).unwrap();
        }
        let per_step = self.run.config.groups_per_step();
        self.status.version = version;
        self.status.step = Step(step);
        self.status.cursor = step * u64::from(per_step);
        self.status.finished = step == self.status.total_steps;
        self.speak();
    }

    fn speak(&mut self) {
        let of_step = self.groups.keys().filter(|id| id.step == self.status.step);
        self.status.received = of_step.map(|id| id.index).collect();
        self.end.publish_status(&self.status).unwrap();
    }

    /// Receives until the step has so many groups.
    fn receive(&mut self, wanted: usize) {
        let begin = Instant::now();
        loop {
            self.speak();
            if self.status.received.len() >= wanted {
                return;
            }
            assert!(begin.elapsed() < STUCK, "only {:?} of step {}", self.status.received, self.status.step);
            if let Some(group) = self.end.receive_group(Duration::from_millis(20)).unwrap() {
                self.take(group);
            }
        }
    }

    fn take(&mut self, group: RolloutGroup) {
        let config = &self.run.config;
        let position = group.id.step.0 * u64::from(config.groups_per_step()) + u64::from(group.id.index);
        assert_eq!(group.cursor, position + 1);
        assert_eq!(group.completions.len(), config.num_generations as usize);
        for (index, completion) in group.completions.iter().enumerate() {
            assert_eq!(completion.sample as usize, index);
            assert_eq!(completion.token_ids.len(), completion.logprobs.len());
            assert_eq!(completion.rewards.len(), config.reward_funcs.len());
            let oldest = completion.versions.iter().map(|(_, version)| *version).min().unwrap();
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
    fn train(&mut self, until: u64) {
        while self.status.step.0 < until {
            self.receive(self.run.config.groups_per_step() as usize);
            self.publish(self.status.step.0 + 1);
        }
    }

    /// Says that the run is over until the sampler has ended.
    fn dismiss(mut self, sampler: Sampler) -> BTreeMap<GroupId, RolloutGroup> {
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
fn without_times(group: &RolloutGroup) -> RolloutGroup {
    RolloutGroup { generation_seconds: 0.0, ..group.clone() }
}

fn assert_same(one: &BTreeMap<GroupId, RolloutGroup>, other: &BTreeMap<GroupId, RolloutGroup>) {
    let plain = |groups: &BTreeMap<GroupId, RolloutGroup>| groups.values().map(without_times).collect::<Vec<_>>();
    assert_eq!(plain(one), plain(other));
}

fn synchronous_run(adjust: impl FnOnce(&mut TrainConfig)) -> BTreeMap<GroupId, RolloutGroup> {
    let run = Run::new(adjust);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(5);
    learner.dismiss(sampler)
}

#[test]
fn a_synchronous_run_is_the_same_whatever_the_batch_size_and_whoever_is_killed() {
    let plain = synchronous_run(|_| {});
    assert_eq!(plain.len(), 15);
    for (id, group) in &plain {
        assert_eq!(group.policy_version.0, id.step.0);
        assert!(group.completions.iter().all(|c| c.versions == [(0, group.policy_version)]));
    }
    let texts: BTreeSet<&str> = plain.values().flat_map(|g| &g.completions).map(|c| c.text.as_str()).collect();
    assert!(texts.len() > 30, "completions differ between prompts, samples and versions");
    let prompts: BTreeSet<u64> = plain.values().take(10).map(|g| g.prompt_id.0).collect();
    assert_eq!(prompts.len(), 10, "an epoch takes every prompt once");

    assert_same(&plain, &synchronous_run(|config| config.max_num_seqs = Some(1)));
    let other = synchronous_run(|config| {
        config.max_num_seqs = Some(7);
        config.rollout_threads = Some(2);
    });
    assert_same(&plain, &other);

    let run = Run::new(|_| {});
    let mut sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    for step in 0..3 {
        learner.train(step);
        learner.receive(step as usize);
        sampler.kill();
        sampler = run.sampler();
    }
    learner.train(5);
    assert_same(&plain, &learner.dismiss(sampler));
    assert_eq!(run.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_restarted_learner_gets_the_kept_groups_again() {
    let run = Run::new(|_| {});
    let sampler = run.sampler();
    let mut first = run.learner(1, 0);
    first.train(3);
    first.receive(2);
    let groups = first.groups;
    drop(first.end);
    let mut second = run.learner(2, 1);
    second.train(5);
    assert_eq!(second.repeats, 0);
    let again = second.dismiss(sampler);
    assert!(again.len() == 12 && again.keys().all(|id| id.step.0 >= 1), "step 0 is durable");
    let kept: Vec<_> = groups.iter().filter(|(id, _)| id.step.0 >= 1).collect();
    assert!(kept.len() >= 8, "two steps, and two groups of the next one");
    for (id, group) in kept {
        // With the very same time: it was kept, not made again.
        assert_eq!(again.get(id), Some(group));
    }
}

#[test]
fn groups_ahead_of_the_learner_stay_within_the_staleness_bound() {
    for weight_swap in [WeightSwap::Drain, WeightSwap::Continue] {
        let run = Run::new(|config| {
            config.max_staleness = 2;
            config.weight_swap = weight_swap;
            config.max_steps = Some(8);
            config.max_completion_length = 60;
        });
        let sampler = run.sampler();
        let mut learner = run.learner(1, 0);
        learner.train(4);
        // The sampler works ahead while the learner is busy, but no further than it may.
        thread::sleep(Duration::from_millis(300));
        learner.train(6);
        drop(learner.end);
        // Back to step 4: versions go down and come again.
        let mut restarted = run.learner(2, 4);
        restarted.train(8);
        let groups = restarted.dismiss(sampler);
        let ahead = groups.values().filter(|g| g.policy_version.0 < g.id.step.0).count();
        assert!(ahead > 0, "nothing was made ahead");
        if weight_swap == WeightSwap::Drain {
            let whole = |g: &RolloutGroup| g.completions.iter().all(|c| c.versions.len() == 1);
            assert!(groups.values().all(whole), "a sequence finishes on the weights it began with");
        }
    }
}

#[test]
fn versions_are_evaluated_once_the_last_one_included() {
    let run = Run::new(|config| {
        config.eval_steps = Some(2);
        config.max_steps = Some(6);
    });
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(3);
    sampler.kill();
    let sampler = run.sampler();
    learner.train(6);
    learner.dismiss(sampler);
    let records = metrics::read(&run.run_dir.eval()).unwrap();
    let steps: Vec<f64> = records.iter().map(|r| r.get("step").unwrap()).collect();
    assert_eq!(steps, [0.0, 2.0, 4.0, 6.0]);
    for key in [
        "eval_reward",
        "eval_accuracy",
        "eval_rewards/correctness/mean",
        "eval_rewards/format/mean",
        "eval_completions/mean_length",
        "eval_completions/clipped_ratio",
    ] {
        assert!(records.iter().all(|r| r.get(key).is_some()), "{key}");
    }
}

#[test]
fn a_run_leaves_a_timeline_of_its_sampler() {
    let run = Run::new(|config| config.rollout_trace = true);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(5);
    let groups = learner.dismiss(sampler);
    let timeline = Timeline::read(&run.run_dir.trace());
    for part in ["prefill", "decode", "sampler"] {
        assert!(!timeline.track(part).is_empty() && timeline.within(part, "engine steps"), "{part}");
    }
    // Each version after the first one was loaded beside generation and taken into use between two steps.
    let versions = |track: &str| -> Vec<u64> {
        timeline.track(track).iter().map(|span| span.args["version"].as_u64().unwrap()).collect()
    };
    assert!(versions("weights: load").starts_with(&[1, 2, 3, 4]));
    assert!(versions("weights: swap").starts_with(&[1, 2, 3, 4]));
    let rewards = (0..256).map(|thread| timeline.track(&format!("rewards {thread}")));
    let scored: u64 = rewards.flatten().map(|span| span.args["completions"].as_u64().unwrap()).sum();
    let completions: usize = groups.values().map(|group| group.completions.len()).sum();
    assert_eq!(scored, 2 * completions as u64, "two functions score each completion");
    assert!(timeline.track("engine steps").iter().any(|span| span.name == "wait"), "it waits for the learner");
}

#[test]
fn a_silent_learner_is_an_error_and_a_signal_is_none() {
    let run = Run::new(|config| config.peer_timeout = 1.0);
    let (status, log) = run.sampler().end();
    assert_eq!(status.code(), Some(1), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("error: no sign of life from the learner for 1 s"), "{log}");

    run.sampler().end_by_signal();

    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.receive(1);
    sampler.end_by_signal();
    drop(learner.end);
    assert_eq!(run.litter(), Vec::<PathBuf>::new());
}

/// A reward command that hangs, in a group of its own, is no reason to wait and must not stay behind; and the run is
/// not its to hold.
#[test]
fn a_reward_command_ends_with_the_sampler_and_does_not_hold_the_run() {
    let scratch = tempfile::tempdir().unwrap();
    let (pid, asked) = (scratch.path().join("pid"), scratch.path().join("asked"));
    let run = Run::new(|config| {
        let hangs = format!("read -r line; echo $$ > {}; touch {}; exec sleep 1000", pid.display(), asked.display());
        config.reward_funcs = vec![format!("command:run={hangs}")];
        config.reward_weights = Vec::new();
        config.reward_timeout = 600.0;
    });
    // As the launcher leaves it.
    let lock = fs::File::create(run.run_dir.lock()).unwrap();
    // SAFETY: clears a flag of a descriptor that `lock` keeps open.
    assert_eq!(unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    let begin = Instant::now();
    while !asked.exists() {
        assert!(begin.elapsed() < STUCK, "the command is not asked");
        learner.speak();
        thread::sleep(Duration::from_millis(10));
    }
    let command = fs::read_to_string(&pid).unwrap().trim().to_owned();
    let holds = |process: &str| {
        let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let mut files = open.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        files.any(|file| file == run.run_dir.lock())
    };
    assert!(holds(&sampler.0.as_ref().unwrap().id().to_string()) && !holds(&command));
    sampler.end_by_signal();
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{command}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    let end = Instant::now();
    while runs() {
        assert!(end.elapsed() < Duration::from_secs(10), "the command is still there");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn weights_that_cannot_be_loaded_end_the_sampler() {
    let run = Run::new(|_| {});
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.receive(3);
    // A version that is announced and not there.
    learner.status.version = PolicyVersion(1);
    learner.status.step = Step(1);
    let ended = thread::spawn(move || sampler.end());
    while !ended.is_finished() {
        learner.speak();
        thread::sleep(Duration::from_millis(20));
    }
    let (status, log) = ended.join().unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("error: weights v1 cannot be loaded: ") && last.contains("v000001"), "{log}");
}

#[test]
fn the_last_version_is_not_loaded_when_nothing_is_made_with_it() {
    let run = Run::new(|_| {});
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    learner.train(4);
    learner.receive(3);
    // It is not even there; the learner says later that the run is over.
    learner.status.version = PolicyVersion(5);
    learner.status.step = Step(5);
    for _ in 0..20 {
        learner.speak();
        thread::sleep(Duration::from_millis(20));
    }
    learner.status.finished = true;
    let ended = thread::spawn(move || sampler.end());
    while !ended.is_finished() {
        learner.speak();
        thread::sleep(Duration::from_millis(20));
    }
    let (status, log) = ended.join().unwrap();
    assert!(status.success() && !log.contains("cannot be loaded"), "{log}");
}

#[test]
fn a_run_that_cannot_work_is_refused_in_one_line() {
    let refused = |adjust: fn(&mut TrainConfig), expected: &str| {
        let (status, log) = Run::new(adjust).sampler().end();
        assert_eq!(status.code(), Some(1), "{log}");
        let last = log.lines().last().unwrap();
        assert!(last.starts_with("error: ") && last.contains(expected), "{log}");
    };
    refused(|c| c.dataset = "/nowhere/data.jsonl".into(), "/nowhere/data.jsonl");
    refused(|c| c.model = "/nowhere".into(), "/nowhere: no such directory");
    refused(|c| c.reward_funcs[0] = "corectness".into(), "did you mean `correctness`");
}
