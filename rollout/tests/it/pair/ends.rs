//! How the sampler ends.

use std::{
    fs,
    os::fd::AsRawFd,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use harness::processes;
use shared::{PolicyVersion, Step, config::TrainConfig};

use super::support::{Run, STUCK};

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

/// A reward command that hangs, in a group of its own, is no reason to wait and must not stay behind. It must not hold
/// the lock of the run either.
#[test]
fn a_reward_command_ends_with_the_sampler_and_does_not_hold_the_run() {
    let scratch = tempfile::tempdir().unwrap();
    let mark = scratch.path().join("mark");
    fs::write(&mark, "").unwrap();
    let run = Run::new(|config| {
        config.reward_funcs = vec![format!("command:run=read -r line; exec tail -f {}", mark.display())];
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
    while processes::with("tail", &mark).is_empty() {
        assert!(begin.elapsed() < STUCK, "the command is not asked");
        learner.speak();
        thread::sleep(Duration::from_millis(10));
    }
    let holds = |process: u32| {
        let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let mut files = open.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        files.any(|file| file == run.run_dir.lock())
    };
    assert!(holds(sampler.0.as_ref().unwrap().id()));
    // The command, and what contains it.
    let all = processes::with("", &mark);
    assert!(all.len() > 1 && !all.into_iter().any(holds));
    sampler.end_by_signal();
    processes::wait_for(0, "", &mark);
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
    // The version does not even exist; the learner says later that the run is over.
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
