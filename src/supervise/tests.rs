//! The supervisor against shell scripts that behave like the two processes at their worst.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::*;
use crate::programs::Process;

/// A scripted outside: progress is a file, interrupts come when a file appears.
struct Scripted {
    dir: PathBuf,
    said: Vec<String>,
    sent: usize,
}

impl Scripted {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), said: Vec::new(), sent: 0 }
    }

    fn all(&self) -> String {
        self.said.join("\n")
    }
}

impl Watch for Scripted {
    fn tick(&mut self) -> u64 {
        fs::read_to_string(self.dir.join("steps")).ok().and_then(|t| t.trim().parse().ok()).unwrap_or(0)
    }

    fn at_work(&mut self, _: Beat, _: Beat) {}

    fn interrupts(&mut self) -> usize {
        let wanted = (1..=2).filter(|n| self.dir.join(format!("interrupt{n}")).exists()).count();
        let new = wanted - self.sent;
        self.sent = wanted;
        new
    }

    fn say(&mut self, line: &str) {
        self.said.push(line.to_owned());
    }

    fn is_over(&self) -> bool {
        self.dir.join("done").exists()
    }

    fn memory_ran_out(&mut self) -> Option<Shortage> {
        self.dir.join("no-memory").exists().then_some(Shortage::Machine)
    }
}

fn script(dir: &Path, name: &'static str, body: &str) -> Spec {
    Spec {
        name,
        program: "/bin/sh".into(),
        args: vec!["-c".into(), format!("cd {}\n{body}", dir.display()).into()],
        env: Vec::new(),
        log: dir.join(format!("{name}.log")),
        smaller: "feed it less",
    }
}

fn limits() -> Limits {
    Limits {
        max_restarts: 2,
        early: Duration::from_secs(30),
        pause: Duration::from_millis(10),
        farewell: Duration::from_secs(20),
        evaluates: true,
        after_term: Duration::from_millis(500),
        deadlines: Deadlines { load: LONG, step: LONG, save: SHORT, peer: LONG },
        chaos: None,
    }
}

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);

fn pair(dir: &Path, learner: &str, sampler: &str) -> (Result<Outcome>, Scripted) {
    let mut watch = Scripted::new(dir);
    let outcome = supervise(script(dir, "learner", learner), script(dir, "rollout", sampler), limits(), &mut watch);
    (outcome, watch)
}

const UNTIL_DONE: &str = "until [ -e done ]; do sleep 0.02; done";

#[test]
fn a_killed_sampler_is_named_and_restarted_beside_the_same_learner() {
    let dir = tempfile::tempdir().unwrap();
    let learner = format!("echo life >> lives; {UNTIL_DONE}");
    let sampler = "if [ -e once ]; then touch done; exit 0; fi; touch once; echo 'about to go'; kill -9 $$";
    let (outcome, watch) = pair(dir.path(), &learner, sampler);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap(), "life\n");
    let said = watch.all();
    assert!(said.contains("the sampler ended: killed by signal 9 (SIGKILL)"), "{said}");
    assert!(said.contains("| about to go") && said.contains("restarting the sampler (1 of 2 restarts)"), "{said}");
}

/// Somebody else's SIGTERM is no end of the run: the sampler ends in order, and the learner would wait for it.
#[test]
fn a_sampler_that_a_signal_ended_is_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let sampler = "if [ -e once ]; then touch done; exit 0; fi; touch once; trap 'exit 143' TERM; kill $$; sleep 30";
    let (outcome, watch) = pair(dir.path(), UNTIL_DONE, sampler);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let said = watch.all();
    assert!(said.contains("the sampler ended: exit status 143") && said.contains("restarting the sampler"), "{said}");
}

/// It would otherwise be waited for until the learner's patience is at its end, hours later.
#[test]
fn a_sampler_that_takes_the_run_for_over_is_started_again_within_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let sampler = "if [ -e once ]; then touch done; exit 0; fi; touch once; exit 0";
    let before = Instant::now();
    let (outcome, watch) = pair(dir.path(), UNTIL_DONE, sampler);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    let said = watch.all();
    assert!(
        said.contains("the sampler ended as if the run were over") && said.contains("restarting the sampler"),
        "{said}"
    );
}

/// Again and again, it ends the run in words.
#[test]
fn a_sampler_that_always_takes_the_run_for_over_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let before = Instant::now();
    let (outcome, _) = pair(dir.path(), "sleep 30", "exit 0");
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.starts_with("the sampler died 3 times, last by the sampler ended as if the run were over"),
        "{error}"
    );
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
}

#[test]
fn a_learner_that_a_signal_ended_ends_the_run_as_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo life >> lives; trap 'touch done; exit 143' TERM; kill $$; sleep 30";
    let (outcome, _) = pair(dir.path(), learner, UNTIL_DONE);
    assert_eq!(outcome.unwrap(), Outcome::Interrupted);
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap(), "life\n");
}

#[test]
fn a_killed_learner_is_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo life >> lives; if [ -e once ]; then touch done; exit 0; fi; touch once; kill -9 $$";
    let (outcome, _) = pair(dir.path(), learner, UNTIL_DONE);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap(), "life\nlife\n");
}

/// With the same figures it would be killed again.
#[test]
fn what_the_kernel_killed_for_lack_of_memory_is_not_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo life >> lives; echo 5 > steps; sleep 0.3; touch no-memory; kill -9 $$";
    let (outcome, _) = pair(dir.path(), learner, "sleep 30");
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.starts_with("the learner was killed by the kernel, most likely for lack of memory; feed it less"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap(), "life\n");
}

#[test]
fn dying_too_often_ends_the_run_with_name_and_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (outcome, watch) = pair(dir.path(), "sleep 30", "echo life >> lives; echo oh no; kill -9 $$");
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("the sampler died 3 times") && error.contains("SIGKILL"), "{error}");
    assert!(error.contains("rollout.log") && !error.contains('\n'), "{error}");
    assert!(watch.all().contains("| oh no"));
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap().lines().count(), 3);
}

#[test]
fn an_error_at_the_start_is_passed_on_and_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let sampler = "echo life >> lives; echo loading; echo 'error: no reward function `x`' >&2; exit 1";
    let before = Instant::now();
    let (outcome, _) = pair(dir.path(), "sleep 30", sampler);
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the sampler: no reward function `x` (log: "), "{error}");
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap().lines().count(), 1);
    assert!(before.elapsed() < Duration::from_secs(20), "the learner was waited for");
}

#[test]
fn an_error_after_steps_is_a_crash_until_it_repeats_itself() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo life >> lives; echo 5 > steps; sleep 0.3; echo 'error: disk full' >&2; exit 1";
    let (outcome, watch) = pair(dir.path(), learner, "sleep 30");
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the learner: disk full"), "{error}");
    // First death: a step was made. Second: none, an unknown error. Third: the same error again.
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap().lines().count(), 3, "{}", watch.all());
}

/// On a full disk, some step is made in every life.
#[test]
fn a_process_that_fails_again_and_again_between_steps_is_given_up_with_its_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo life >> lives; wc -l < lives > steps; sleep 0.3; echo 'error: disk full' >&2; exit 1";
    let (outcome, _) = pair(dir.path(), learner, "sleep 30");
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.starts_with("the learner died 3 times, last by exit status 1: disk full; `max_restarts` is 2 (log: "),
        "{error}"
    );
}

#[test]
fn an_error_that_would_come_again_is_not_repeated_however_many_steps_were_made() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo life >> lives; echo 5 > steps; sleep 0.3; echo 'error: the reward is dead' >&2; exit 3";
    let (outcome, _) = pair(dir.path(), learner, "sleep 30");
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the learner: the reward is dead"), "{error}");
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap().lines().count(), 1);
}

/// The log of the run goes with its folder, and the folder's place has another run's.
#[test]
fn a_log_that_was_moved_away_is_named_where_it_is_and_read_there() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "echo 'error: own' >&2; mv learner.log moved.log; echo 'error: of another run' > learner.log; exit 3";
    let (outcome, _) = pair(dir.path(), learner, "sleep 30");
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the learner: own (log: ") && error.contains("/moved.log; "), "{error}");
    assert!(error.contains("was moved, removed or replaced while the run was at work"), "{error}");
}

#[test]
fn an_interrupt_ends_the_learner_first_and_the_sampler_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "trap 'sleep 0.2; echo learner >> order; touch done; exit 143' TERM; touch interrupt1; while :; do \
        sleep 0.02; done";
    let sampler = format!("trap 'echo terminated >> order' TERM; {UNTIL_DONE}; sleep 0.1; echo sampler >> order");
    let (outcome, watch) = pair(dir.path(), learner, &sampler);
    assert_eq!(outcome.unwrap(), Outcome::Interrupted);
    assert_eq!(fs::read_to_string(dir.path().join("order")).unwrap(), "learner\nsampler\n");
    assert!(watch.all().contains("Ctrl-C again"), "{}", watch.all());
}

#[test]
fn a_second_interrupt_kills_both() {
    let dir = tempfile::tempdir().unwrap();
    let stubborn = "trap 'touch interrupt2' TERM; touch interrupt1; while :; do sleep 0.02; done; touch survived";
    let before = Instant::now();
    let (outcome, _) = pair(dir.path(), stubborn, "while :; do sleep 0.02; done");
    assert_eq!(outcome.unwrap(), Outcome::Killed);
    assert!(before.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_sampler_that_stays_after_the_end_is_terminated() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = Scripted::new(dir.path());
    let short = Limits { farewell: Duration::from_millis(100), ..limits() };
    let learner = script(dir.path(), "learner", "until [ -e up ]; do sleep 0.02; done");
    let sampler =
        script(dir.path(), "rollout", "trap 'echo told > told; exit 0' TERM; touch up; while :; do sleep 0.02; done");
    assert_eq!(supervise(learner, sampler, short, &mut watch).unwrap(), Outcome::Finished);
    assert!(dir.path().join("told").exists());
    assert!(watch.all().contains("is still at work and is ended"), "{}", watch.all());
}

/// Ends in its own time after SIGTERM, as a learner does that is in the middle of a step or of a checkpoint.
const SLOW_TO_END: &str = "trap 'sleep 1.5; touch saved; exit 143' TERM; echo 3 > steps; while :; do sleep 0.02; done";
const DIES_AFTER_A_STEP: &str = "until [ -e steps ]; do sleep 0.02; done; sleep 0.2; kill -9 $$";

#[test]
fn a_learner_whose_sampler_is_given_up_has_the_time_to_write_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (outcome, watch) = pair(dir.path(), SLOW_TO_END, DIES_AFTER_A_STEP);
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the sampler died 3 times"), "{error}");
    assert!(dir.path().join("saved").exists(), "the learner was killed");
    assert!(watch.all().contains("waiting for the learner"), "{}", watch.all());
}

#[test]
fn a_learner_that_is_waited_for_is_killed_when_the_user_asks_twice() {
    let dir = tempfile::tempdir().unwrap();
    let learner = "trap 'touch interrupt1 interrupt2' TERM; echo 3 > steps; while :; do sleep 0.02; done";
    let before = Instant::now();
    let (outcome, _) = pair(dir.path(), learner, DIES_AFTER_A_STEP);
    assert!(outcome.unwrap_err().to_string().starts_with("the sampler died 3 times"));
    assert!(before.elapsed() < Duration::from_secs(15));
}

#[test]
fn a_sampler_that_is_busy_after_the_end_is_announced_and_need_not_be_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let sampler =
        "trap 'touch told; exit 143' TERM; touch done; sleep 2.5; touch interrupt1; while :; do sleep 0.02; done";
    let before = Instant::now();
    let (outcome, watch) = pair(dir.path(), UNTIL_DONE, sampler);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(dir.path().join("told").exists() && before.elapsed() < limits().farewell, "{:?}", before.elapsed());
    let said = watch.all();
    assert!(
        said.contains("waiting up to 20 s for the sampler") && said.contains("is still at work and is ended"),
        "{said}"
    );
}

#[test]
fn an_evaluation_is_mentioned_only_where_there_is_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = Scripted::new(dir.path());
    let idle = Limits { farewell: Duration::from_millis(2500), evaluates: false, ..limits() };
    let learner = script(dir.path(), "learner", "until [ -e up ]; do sleep 0.02; done");
    let sampler = script(dir.path(), "rollout", "trap 'exit 143' TERM; touch up; while :; do sleep 0.02; done");
    assert_eq!(supervise(learner, sampler, idle, &mut watch).unwrap(), Outcome::Finished);
    let said = watch.all();
    assert!(said.contains("waiting up to 2 s for the sampler (") && said.contains("is still at work"), "{said}");
    assert!(!said.contains("evaluat"), "{said}");
}

#[test]
fn a_sampler_killed_in_the_last_evaluation_is_started_again() {
    for (evaluates, lives) in [(true, 2), (false, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let mut watch = Scripted::new(dir.path());
        let learner = script(dir.path(), "learner", "until [ -e up ]; do sleep 0.02; done");
        let body = "echo life >> lives; if [ -e up ]; then exit 0; fi; touch up; sleep 0.5; kill -9 $$";
        let sampler = script(dir.path(), "rollout", body);
        let outcome = supervise(learner, sampler, Limits { evaluates, ..limits() }, &mut watch).unwrap();
        assert_eq!(outcome, Outcome::Finished);
        assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap().lines().count(), lives, "{}", watch.all());
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut learner = script(dir.path(), "learner", "");
    learner.program = dir.path().join("no-such-program");
    let error = Process::start(&learner).unwrap_err();
    assert!(format!("{error:#}").contains("no-such-program"), "{error:#}");
}

/// Lives, and does nothing: as a learner whose main thread waits for a file that nobody reads.
const BLOCKED: &str = "echo life >> lives; echo save 1 > $TANDEM_HEARTBEAT; while :; do sleep 0.02; done";

#[test]
fn the_process_that_is_silent_is_ended_and_not_the_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let learner = format!("if [ -e lives ]; then touch done; exit 0; fi; {BLOCKED}");
    let sampler = format!("echo other >> others; echo wait 1 > $TANDEM_HEARTBEAT; {UNTIL_DONE}");
    let (outcome, watch) = pair(dir.path(), &learner, &sampler);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert_eq!(fs::read_to_string(dir.path().join("others")).unwrap(), "other\n");
    let said = watch.all();
    assert!(
        said.contains("the learner has made no progress in phase save for 0 s (`save_timeout`), and is ended"),
        "{said}"
    );
    assert!(said.contains("restarting the learner (1 of 2 restarts)"), "{said}");
}

#[test]
fn a_process_that_is_silent_again_and_again_ends_the_run_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (outcome, _) = pair(dir.path(), BLOCKED, UNTIL_DONE);
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.starts_with("the learner died 3 times, last by the learner has made no progress in phase save"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(dir.path().join("lives")).unwrap().lines().count(), 3);
}

/// Neither a learner that is to write a last checkpoint nor one that is to stop is waited for without end.
#[test]
fn a_silent_process_is_not_waited_for_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let learner = format!("trap : TERM; touch interrupt1; {BLOCKED}");
    let (outcome, _) = pair(dir.path(), &learner, UNTIL_DONE);
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("the learner did not stop in order: the learner has made no progress"), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let learner = format!("trap : TERM; echo 3 > steps; {BLOCKED}");
    let sampler = "until [ -e steps ]; do sleep 0.02; done; sleep 0.1; echo 'error: no' >&2; exit 3";
    let (outcome, _) = pair(dir.path(), &learner, sampler);
    assert!(outcome.unwrap_err().to_string().starts_with("the sampler: no"));
}

#[test]
fn of_two_that_wait_for_each_other_the_sampler_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let waits = "n=0; until [ -e done ]; do n=$((n+1)); echo wait $n > $TANDEM_HEARTBEAT; sleep 0.02; done";
    let sampler = format!("if [ -e once ]; then touch done; exit 0; fi; touch once; {waits}");
    let mut watch = Scripted::new(dir.path());
    let deadlines = Deadlines { peer: SHORT, ..limits().deadlines };
    let (learner, sampler) = (script(dir.path(), "learner", waits), script(dir.path(), "rollout", &sampler));
    let outcome = supervise(learner, sampler, Limits { deadlines, ..limits() }, &mut watch);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    assert!(watch.all().contains("the sampler and the learner have been waiting for each other"), "{}", watch.all());
}

/// A signal that comes before a process listens to signals ends it as the system does.
#[test]
fn a_learner_that_is_asked_to_end_before_it_can_listen_has_stopped_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (outcome, _) = pair(dir.path(), "touch interrupt1; sleep 30", UNTIL_DONE);
    assert_eq!(outcome.unwrap(), Outcome::Interrupted);
}

/// Restarts that are chaos' own doing are not counted, and no step is drawn for twice.
#[test]
fn chaos_kills_each_process_without_counting() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = Scripted::new(dir.path());
    let learner = "echo life >> lives; n=$(cat steps 2>/dev/null || echo 0)\n\
                   while [ $n -lt 12 ]; do n=$((n+1)); echo $n > tmp; mv tmp steps; sleep 0.15; done; touch done";
    let chaos = Some("seed=1,kill=1".parse().unwrap());
    let (learner, sampler) = (script(dir.path(), "learner", learner), script(dir.path(), "rollout", UNTIL_DONE));
    let outcome = supervise(learner, sampler, Limits { chaos, max_restarts: 0, ..limits() }, &mut watch);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let said = watch.all();
    for name in ["learner", "rollout"] {
        assert!(said.matches(&format!(": {name} is killed")).count() >= 3, "{said}");
    }
    assert!(!said.contains("restarting"), "{said}");
}

/// A process that cannot write while chaos has filled the disk is started again, as often as that takes.
#[test]
fn chaos_fills_the_disk_of_each_process_without_counting() {
    let dir = tempfile::tempdir().unwrap();
    let mut watch = Scripted::new(dir.path());
    let learner = "n=$(cat steps 2>/dev/null || echo 0)\n\
                   while [ $n -lt 12 ]; do n=$((n+1)); echo $n > tmp; mv tmp steps; sleep 0.15\n\
                   head -c 8192 /dev/zero > large || exit 1; done; touch done";
    let chaos = Some("seed=1,disk=1".parse().unwrap());
    let (learner, sampler) = (script(dir.path(), "learner", learner), script(dir.path(), "rollout", UNTIL_DONE));
    let outcome = supervise(learner, sampler, Limits { chaos, max_restarts: 0, ..limits() }, &mut watch);
    assert_eq!(outcome.unwrap(), Outcome::Finished);
    let (said, log) = (watch.all(), fs::read_to_string(dir.path().join("learner.log")).unwrap_or_default());
    assert!(said.matches("learner finds the disk full").count() >= 3, "{said}");
    assert!(!said.contains("restarting") && !log.is_empty(), "{said} {log}");
}
