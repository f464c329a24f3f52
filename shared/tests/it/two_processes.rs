//! The channel between real processes that are killed: nothing is lost, nothing comes twice after de-duplication, and
//! an orderly end leaves nothing in shared memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use shared::{
    Completion, Episode, FinishReason, GroupId, Placed, PolicyVersion, RunDir, Step, TokenLogprob,
    channel::{
        ChannelError, LearnerEnd, LearnerStatus, RunId, STATUS_INTERVAL, SamplerEnd, SamplerStatus, incarnation,
        iox::{self, IoxLearner, IoxSampler},
    },
    files::atomic,
    generation::{
        rng::Stream,
        testing::{completion, group, placed},
    },
};

const STEPS: u64 = 200;
const GROUPS_PER_STEP: u32 = 16;
/// A process that waits longer than this has lost a message.
const STUCK: Duration = Duration::from_secs(30);

const ROLE: &str = "TANDEM_TEST_ROLE";
const RUN_DIR: &str = "TANDEM_TEST_RUN_DIR";

/// Groups differ in content and, by a factor of 100, in size, all derived from the id.
fn make_group(id: GroupId) -> Placed {
    let mut stream = Stream::new(&[id.step.0, u64::from(id.index)]);
    let tokens = 20 + stream.below(2000) as usize;
    let token_ids: Vec<u32> = (0..tokens).map(|_| stream.next_u64() as u32).collect();
    let logprobs = token_ids
        .iter()
        .map(|&t| TokenLogprob { logprob: t as f32, kept_count: t, ..TokenLogprob::default() })
        .collect();
    let versions = vec![(0, PolicyVersion(id.step.0))];
    let completion = Completion {
        episode: Episode::of_one_turn(token_ids, logprobs, versions, FinishReason::Length),
        text: "x".repeat(tokens),
        ..completion(0, Vec::new())
    };
    placed(id, group(0, vec![completion]))
}

/// What the learner has put on disk: one file per step, whole or absent.
fn durable_steps(run_dir: &RunDir) -> u64 {
    (0..).find(|&step| !run_dir.step_completions(step).exists()).unwrap_or(0)
}

fn sampler(run_dir: &RunDir) {
    let mut channel = IoxSampler::open(run_dir, RunId::NONE).unwrap();
    let own = SamplerStatus { incarnation: incarnation(), ..SamplerStatus::default() };
    let mut learner = LearnerStatus::default();
    let mut todo = BTreeSet::new();
    let mut last_sign = Instant::now();
    loop {
        channel.publish_status(&own).unwrap();
        if let Some(status) = channel.learner_status().unwrap() {
            last_sign = Instant::now();
            if status.incarnation != learner.incarnation {
                // Whatever was not on disk may be gone with the old process.
                todo = (status.durable_step.0..STEPS)
                    .flat_map(|step| (0..GROUPS_PER_STEP).map(move |index| GroupId { step: Step(step), index }))
                    .collect();
            }
            learner = status;
        }
        if learner.finished {
            return;
        }
        assert!(last_sign.elapsed() < STUCK, "the learner is silent");
        let Some(&id) = todo.first() else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        match channel.send_group(&make_group(id), Instant::now() + STATUS_INTERVAL) {
            Ok(()) => drop(todo.remove(&id)),
            Err(ChannelError::Timeout { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

fn learner(run_dir: &RunDir) {
    let mut channel = IoxLearner::open(run_dir, RunId::NONE).unwrap();
    let mut arrived: BTreeMap<GroupId, Placed> = BTreeMap::new();
    let mut status = LearnerStatus { incarnation: incarnation(), ..LearnerStatus::default() };
    let (mut last_sign, mut last_group) = (Instant::now(), Instant::now());
    loop {
        let durable = durable_steps(run_dir);
        status.step = Step(durable);
        status.durable_step = Step(durable);
        status.finished = durable == STEPS;
        channel.publish_status(&status).unwrap();
        if channel.sampler_status().unwrap().is_some() {
            last_sign = Instant::now();
        } else if status.finished {
            if last_sign.elapsed() > STATUS_INTERVAL * 10 {
                return;
            }
        } else {
            assert!(last_sign.elapsed() < STUCK, "the sampler is silent");
            assert!(last_group.elapsed() < STUCK, "a group of step {durable} was lost");
        }
        if let Some(group) = channel.receive_group(Duration::from_millis(5)).unwrap() {
            last_group = Instant::now();
            if group.id.step.0 >= durable {
                arrived.insert(group.id, group);
            }
        }
        let complete = arrived.keys().filter(|id| id.step.0 == durable).count() == GROUPS_PER_STEP as usize;
        if complete && !status.finished {
            let rest = arrived.split_off(&GroupId { step: Step(durable + 1), index: 0 });
            let line = |g: &Placed| {
                assert_eq!(g, &make_group(g.id), "a group was altered on its way");
                format!("{}\n", g.id)
            };
            let lines: String = arrived.values().map(line).collect();
            atomic::write(&run_dir.step_completions(durable), lines.as_bytes()).unwrap();
            arrived = rest;
        }
    }
}

/// The other processes of the tests below, which start this executable with the name of this test and a role.
#[test]
fn peer() {
    let Ok(role) = env::var(ROLE) else {
        return;
    };
    let run_dir = RunDir::new(env::var(RUN_DIR).unwrap());
    match role.as_str() {
        "sampler" => sampler(&run_dir),
        "learner" => learner(&run_dir),
        other => panic!("no role {other}"),
    }
}

/// A process that does not outlive its test, however that ends.
struct Peer(Child);

impl Peer {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(role: &str, run_dir: &Path) -> Peer {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "two_processes::peer", "--nocapture"])
        .env(ROLE, role)
        .env(RUN_DIR, run_dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Peer(child)
}

fn end(mut peer: Peer, what: &str) {
    let deadline = Instant::now() + STUCK;
    while Instant::now() < deadline {
        if let Some(status) = peer.0.try_wait().unwrap() {
            assert!(status.success(), "{what} ended with {status}");
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} does not end");
}

fn new_run() -> (tempfile::TempDir, RunDir) {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = RunDir::new(folder.path());
    run_dir.create().unwrap();
    (folder, run_dir)
}

#[test]
fn killed_processes_lose_and_repeat_nothing() {
    let (folder, run_dir) = new_run();
    let mut children = BTreeMap::new();
    for role in ["sampler", "learner"] {
        children.insert(role, start(role, folder.path()));
    }
    let mut stream = Stream::new(&[1]);
    let mut kills = 0;
    let begin = Instant::now();
    // Kills come while the pair is at work: each round waits for a little progress first.
    while durable_steps(&run_dir) < STEPS - 20 && kills < 12 {
        let goal = (durable_steps(&run_dir) + 5 + stream.below(10)).min(STEPS);
        while durable_steps(&run_dir) < goal {
            assert!(begin.elapsed() < 4 * STUCK, "no progress");
            thread::sleep(Duration::from_millis(1));
        }
        let victims: &[&'static str] = [&["sampler"][..], &["learner"], &["sampler", "learner"]][kills % 3];
        for role in victims {
            let mut child = children.remove(role).unwrap();
            child.kill();
        }
        for role in victims {
            children.insert(role, start(role, folder.path()));
        }
        kills += 1;
    }
    for (role, child) in children {
        end(child, role);
    }
    assert!(kills >= 9, "only {kills} kills in the run");
    for step in 0..STEPS {
        let expected: String = (0..GROUPS_PER_STEP).map(|i| format!("{step}.{i}\n")).collect();
        assert_eq!(fs::read_to_string(run_dir.step_completions(step)).unwrap(), expected);
    }
    assert_eq!(iox::files(&run_dir).unwrap(), Vec::<PathBuf>::new());
    eprintln!("{} groups, {kills} kills, {:.1} s", STEPS * u64::from(GROUPS_PER_STEP), begin.elapsed().as_secs_f64());
}

#[test]
fn a_process_may_die_while_it_joins() {
    let (folder, run_dir) = new_run();
    let survivor = start("learner", folder.path());
    let mut stream = Stream::new(&[2]);
    for round in 0..30 {
        let mut child = start("sampler", folder.path());
        // A process needs some milliseconds to load and some more to join: the kills fall all over that time.
        thread::sleep(Duration::from_micros(500 * round + stream.below(500)));
        child.kill();
    }
    let sampler = start("sampler", folder.path());
    end(sampler, "the last sampler");
    end(survivor, "the learner");
    assert_eq!(durable_steps(&run_dir), STEPS);
    assert_eq!(iox::files(&run_dir).unwrap(), Vec::<PathBuf>::new());
}

/// Where the files of a process may not be large: a connection takes more than 8 KiB of shared memory. The other end
/// would wait for a segment that never gets its size.
#[test]
fn a_process_that_cannot_make_its_connections_ends_and_keeps_nobody_waiting() {
    const LIMIT: &str = "trap '' XFSZ && ulimit -f 8 && exec \"$0\" \"$@\"";
    let (folder, run_dir) = new_run();
    let mut sampler = IoxSampler::open(&run_dir, RunId::NONE).unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", LIMIT]).arg(env::current_exe().unwrap()).args([
        "--exact",
        "two_processes::peer",
        "--nocapture",
    ]);
    let ended = limited.env(ROLE, "learner").env(RUN_DIR, folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("/dev/shm got no size"), "{said}");
    assert_eq!(sampler.learner_status().unwrap(), None);
    let mut learner = IoxLearner::open(&run_dir, RunId::NONE).unwrap();
    let status = LearnerStatus { cursor: 7, ..LearnerStatus::default() };
    learner.publish_status(&status).unwrap();
    assert_eq!(sampler.learner_status().unwrap(), Some(status));
}

#[test]
fn what_killed_processes_leave_is_cleared_away() {
    let (folder, run_dir) = new_run();
    let children = [start("sampler", folder.path()), start("learner", folder.path())];
    while durable_steps(&run_dir) < 3 {
        thread::sleep(Duration::from_millis(1));
    }
    iox::remove_leftovers(&run_dir).unwrap();
    let progress = durable_steps(&run_dir);
    let begin = Instant::now();
    while durable_steps(&run_dir) < progress + 3 {
        assert!(begin.elapsed() < STUCK, "clearing away disturbed living processes");
        thread::sleep(Duration::from_millis(1));
    }
    for mut child in children {
        child.kill();
    }
    assert_ne!(iox::files(&run_dir).unwrap(), Vec::<PathBuf>::new());
    iox::remove_leftovers(&run_dir).unwrap();
    assert_eq!(iox::files(&run_dir).unwrap(), Vec::<PathBuf>::new());
}
