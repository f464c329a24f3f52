//! kill -9 of any process, in the middle of a run or at its end: the run still ends, and in synchronous mode with the
//! very same weights.

use std::{
    fs,
    ops::Deref,
    path::Path,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench::{self, Running},
    cli,
    processes::{children, signal},
    training::json_lines,
};

const STEPS: u64 = 40;
/// How long a run may go on whose steps are all made, a start of the pair not counted: a process that died is started
/// again, and how long that takes is a matter of the machine. `peer_timeout`, the time after which one process gives
/// the other up, is 300 s.
const SOON: Duration = Duration::from_secs(5);
/// How often a run may be late before it is the run's fault, and not that of whatever else the machine is busy with.
const ATTEMPTS: usize = 3;

/// Where runs of one configuration are made.
struct Bench(bench::Bench);

impl Deref for Bench {
    type Target = bench::Bench;

    fn deref(&self) -> &bench::Bench {
        &self.0
    }
}

impl Bench {
    fn new() -> Self {
        Self::with_data("dataset = \"prompts.jsonl\"")
    }

    /// With other lines for the data.
    fn with_data(data: &str) -> Self {
        Self(bench::Bench::new(&format!(
            "{data}\nmax_steps = {STEPS}\nsave_steps = 4\nnum_generations = 4\ngeneration_batch_size = 16\n\
             per_device_train_batch_size = 16\nmax_completion_length = 16\nlearning_rate = 1e-3\nmax_restarts = 4\n"
        )))
    }

    /// Waits until a run has made so many steps.
    fn wait_for_step(&self, run: &str, step: usize) {
        let start = Instant::now();
        let steps = || fs::read_to_string(self.path(run).join("metrics.jsonl")).map_or(0, |text| text.lines().count());
        while steps() < step {
            assert!(start.elapsed() < Duration::from_secs(300), "{run} does not reach step {step}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the launcher has said so far.
    fn said(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap()
    }

    /// Waits until the launcher of a run has said something.
    fn wait_for_words(&self, words: &str, patience: Duration) {
        let start = Instant::now();
        while !self.said().contains(words) {
            assert!(start.elapsed() < patience, "{words}: {}", self.said());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The weights after the last step; every step must be on record exactly once, in order.
    fn result(&self, run: &str) -> Vec<u8> {
        self.result_of(run, STEPS)
    }

    fn result_of(&self, run: &str, last: u64) -> Vec<u8> {
        let records = json_lines(&self.path(run).join("metrics.jsonl"));
        let steps: Vec<u64> = records.iter().map(|r| r["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=last).collect::<Vec<_>>());
        fs::read(self.path(run).join(format!("checkpoint-{last}/weights.data"))).unwrap()
    }

    fn undisturbed(&self) -> Vec<u8> {
        let _ = cli::finish(self.command("undisturbed", &[])).success();
        self.result("undisturbed")
    }
}

#[test]
fn killed_processes_are_restarted_and_the_result_is_the_same() {
    let bench = Bench::new();
    let expected = bench.undisturbed();
    let mut run = bench.start("killed", &[]);
    for (step, program) in [(6, "learner"), (14, "rollout"), (21, "rollout"), (27, "learner")] {
        bench.wait_for_step("killed", step);
        let found = children(run.id(), program);
        assert_eq!(found.len(), 1, "{program}");
        signal(found[0], "KILL");
    }
    assert!(run.wait().unwrap().success(), "{}", fs::read_to_string(bench.path("stderr")).unwrap());
    let said = fs::read_to_string(bench.path("stderr")).unwrap();
    for process in ["the learner", "the sampler"] {
        let ends = said.matches(&format!("{process} ended: killed by signal 9 (SIGKILL)")).count();
        assert_eq!(ends, 2, "{said}");
    }
    assert!(bench.result("killed") == expected, "the weights differ from those of the undisturbed run");
}

#[test]
fn a_killed_launcher_is_resumed_to_the_same_result() {
    resumed_to_the_same_result(&Bench::new());
}

/// Parquet and CSV as pyarrow and pandas wrote them.
#[test]
fn a_mixture_of_files_is_resumed_to_the_same_result() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/tests/fixtures").join(name);
    let (parquet, csv) = (file("sums.parquet"), file("sums.csv"));
    resumed_to_the_same_result(&Bench::with_data(&format!(
        "dataset = [{parquet:?}, {csv:?}]\ndataset_weights = [0.3, 0.7]"
    )));
}

fn resumed_to_the_same_result(bench: &Bench) {
    let expected = bench.undisturbed();
    let mut run = bench.start("resumed", &[]);
    bench.wait_for_step("resumed", 11);
    let weights = bench.path("resumed/weights");
    let versions = fs::read_link(&weights).expect("versions lie in shared memory");
    run.kill().unwrap();
    let _ = run.wait().unwrap();
    assert!(versions.exists(), "nobody was left to remove them");
    let _ = cli::finish(bench.command("resumed", &["--resume_from_checkpoint", "latest"])).success();
    assert!(bench.result("resumed") == expected, "the weights differ from those of the undisturbed run");
    assert!(
        !versions.exists() && fs::symlink_metadata(weights).is_err(),
        "versions go with the processes of their run"
    );
}

const SHORT: [&str; 2] = ["--max_steps", "4"];
const EVALUATED: [&str; 4] = ["--eval_steps", "100", "--eval_dataset", "prompts.jsonl"];

impl Bench {
    /// Starts a new run; how long its pair takes to make the first step.
    fn start_measured(&self, run: &str, more: &[&str]) -> (Running, Duration) {
        let begin = Instant::now();
        let child = self.start(run, more);
        self.wait_for_step(run, 1);
        (child, begin.elapsed())
    }

    /// Whether a run whose steps are all made ends in order within [`SOON`], but for a start of the pair.
    fn ends_soon(&self, run: &mut Child, start: Duration) -> bool {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = run.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > SOON + start {
                println!("still running after {:.2?}; a start takes {start:.2?}", begin.elapsed());
                run.kill().unwrap();
                let _ = run.wait().unwrap();
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        };
        println!("ended after {:.2?}; a start takes {start:.2?}", begin.elapsed());
        assert!(status.success(), "{}", fs::read_to_string(self.path("stderr")).unwrap());
        true
    }

    fn evaluated(&self, run: &str) -> Vec<u64> {
        json_lines(&self.path(run).join("eval.jsonl")).iter().map(|r| r["step"].as_u64().unwrap()).collect()
    }
}

/// Tries again what only a busy machine may make late.
fn in_time(what: &str, attempt: impl Fn() -> bool) {
    assert!((0..ATTEMPTS).any(|_| attempt()), "{what}: late {ATTEMPTS} times in a row");
}

/// One bit of an optimiser's moments, half a file, an empty folder of a checkpoint's name: each used to be gone on
/// from, or to keep the run from going on.
#[test]
fn a_damaged_checkpoint_is_set_aside_for_the_one_before_it() {
    let bench = Bench::new();
    let _ = cli::finish(bench.command("run", &[])).success();
    let undisturbed = bench.result("run");
    let file = |checkpoint: &str, name: &str| bench.path("run").join(checkpoint).join(name);
    let optimizer = file("checkpoint-40", "optimizer.safetensors");
    let mut bytes = fs::read(&optimizer).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&optimizer, bytes).unwrap();
    let model = file("checkpoint-36", "model.safetensors");
    let half = fs::read(&model).unwrap();
    fs::write(&model, &half[..half.len() / 2]).unwrap();
    fs::create_dir(bench.path("run/checkpoint-999")).unwrap();
    let resumed = cli::finish(bench.command("run", &["--resume_from_checkpoint", "latest"])).success();
    assert!(bench.result("run") == undisturbed);
    for words in [
        "goes on from checkpoint-32, since newer ones are damaged",
        "checkpoint-999 is damaged-checkpoint-999 now, since trainer_state.json is missing",
        "checkpoint-40 is damaged-checkpoint-40 now, since optimizer.safetensors is not what was written",
        "checkpoint-36 is damaged-checkpoint-36 now, since model.safetensors is not what was written",
    ] {
        assert!(resumed.stderr.contains(words), "{words}: {}", resumed.stderr);
    }
    assert!(file("damaged-checkpoint-40", "optimizer.safetensors").exists());
    let last = format!("checkpoint-{STEPS}");
    for checkpoint in fs::read_dir(bench.path("run")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = checkpoint.file_name().unwrap().to_str().unwrap();
        if name.starts_with("checkpoint-") && name != last {
            fs::remove_dir_all(checkpoint).unwrap();
        }
    }
    fs::write(file(&last, "trainer_state.json"), "{}").unwrap();
    for words in [&["--resume_from_checkpoint", "latest", "--dry-run"][..], &["--resume_from_checkpoint", "latest"]] {
        let refused = cli::finish(bench.command("run", words));
        let refusal = refused.refusal();
        assert!(
            refusal.contains("no checkpoint of ") && refusal.contains("trainer_state.json is not what"),
            "{refusal}"
        );
    }
    assert!(file(&last, "trainer_state.json").exists(), "what is refused stays as it is");
}

#[test]
fn a_finished_run_that_is_resumed_ends_at_once() {
    for more in [&[][..], &EVALUATED[..]] {
        in_time("a finished run", || {
            let bench = Bench::new();
            let (mut run, start) = bench.start_measured("run", &[&SHORT, more].concat());
            assert!(run.wait().unwrap().success());
            let mut run = bench.start("run", &[&SHORT, more, &["--resume_from_checkpoint", "latest"]].concat());
            if !bench.ends_soon(&mut run, start) {
                return false;
            }
            let said = fs::read_to_string(bench.path("stderr")).unwrap();
            assert!(!said.contains("may be evaluating") || !more.is_empty(), "{said}");
            // More steps may be made of it later.
            let more = [more, &["--max_steps", "5", "--resume_from_checkpoint", "latest"]].concat();
            let _ = cli::finish(bench.command("run", &more)).success();
            assert!(bench.path("run/checkpoint-5").exists());
            true
        });
    }
}

/// The learner is killed when it has told the sampler of the end, and the sampler when it is about to be told.
#[test]
fn a_process_killed_when_all_steps_are_made_does_not_hold_up_the_end() {
    for program in ["learner", "rollout"] {
        for more in [&[][..], &EVALUATED[..]] {
            in_time(program, || {
                let bench = Bench::new();
                let (mut run, start) = bench.start_measured("run", &[&SHORT, more].concat());
                if program == "learner" {
                    while !bench.path("run/checkpoint-4").exists() {
                        thread::sleep(Duration::from_millis(1));
                    }
                } else {
                    bench.wait_for_step("run", 4);
                }
                let found = children(run.id(), program);
                assert_eq!(found.len(), 1, "{program}");
                signal(found[0], "KILL");
                if !bench.ends_soon(&mut run, start) {
                    return false;
                }
                if !more.is_empty() {
                    assert_eq!(bench.evaluated("run"), [0, 4], "{program}");
                }
                true
            });
        }
    }
}

/// A disk that does not answer, for the process whose number stands in a file. A debugger that holds up the call would
/// be seen as a stop.
const SLOW_DISK: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fdatasync(int fd) {
    int slow = 0;
    FILE *file = fopen(getenv("SLOW_PROCESS"), "r");
    if (file) {
        if (fscanf(file, "%d", &slow) != 1) slow = 0;
        fclose(file);
    }
    if (slow == getpid()) sleep(60);
    return syscall(SYS_fdatasync, fd);
}
"#;

/// A disk that does not answer blocks the learner's main thread, while its other threads live on.
#[test]
fn a_blocked_learner_is_named_and_ended_and_not_the_sampler() {
    let bench = Bench::new();
    let expected = bench.undisturbed();
    fs::write(bench.path("slow.c"), SLOW_DISK).unwrap();
    let mut compiler = Command::new("gcc");
    compiler.current_dir(bench.path("")).args(["-shared", "-fPIC", "-o", "slow.so", "slow.c"]);
    assert!(compiler.status().unwrap().success());
    let mut command = bench.command("blocked", &["--save_timeout", "1"]);
    command.env("LD_PRELOAD", bench.path("slow.so")).env("SLOW_PROCESS", bench.path("slow"));
    let mut run = bench.start_command(command, "stderr");
    bench.wait_for_step("blocked", 1);
    shared::files::atomic::write(&bench.path("slow"), children(run.id(), "learner")[0].to_string().as_bytes()).unwrap();
    bench.wait_for_words("and is ended", Duration::from_secs(60));
    assert!(run.wait().unwrap().success(), "{}", bench.said());
    let said = bench.said();
    assert!(said.contains("the learner has made no progress in phase save for 1 s (`save_timeout`)"), "{said}");
    assert!(said.contains("restarting the learner (1 of 4 restarts)") && !said.contains("the sampler ended"), "{said}");
    assert!(bench.result("blocked") == expected, "the weights differ from those of the undisturbed run");
}

#[test]
fn a_stopped_process_is_named_waited_for_and_ended_in_time() {
    let bench = Bench::new();
    let expected = bench.undisturbed();
    for (program, process, run, timeout, goes_on) in [
        ("learner", "the learner", "one", "60", true),
        ("learner", "the learner", "three", "3", false),
        ("rollout", "the sampler", "four", "3", false),
    ] {
        let mut child = bench.start(run, &["--peer_timeout", timeout]);
        bench.wait_for_step(run, 3);
        let found = children(child.id(), program);
        signal(found[0], "STOP");
        bench.wait_for_words(&format!("{process} is stopped (by SIGSTOP"), Duration::from_secs(10));
        if goes_on {
            signal(found[0], "CONT");
        }
        assert!(child.wait().unwrap().success(), "{}", bench.said());
        let said = bench.said();
        let went_on = said.contains(&format!("{process} goes on"));
        let ends = said.matches(" ended: ").count();
        assert_eq!((went_on, ends), (goes_on, usize::from(!goes_on)), "{said}");
        assert_eq!(said.contains(&format!("restarting {process} (1 of 4")), !goes_on, "{said}");
        assert!(bench.result(run) == expected, "{run}: the weights differ from those of the undisturbed run");
    }
}

/// A learner of two ranks: the second is a child of the first, which goes down with it and comes back with it. With
/// shards, the checkpoint that they go on from was written by both.
#[test]
fn a_rank_that_is_killed_or_stopped_is_named_and_the_result_is_the_same() {
    let bench = Bench::new();
    let cases = [("KILL", "rank 1 of the learner has ended", "true"), ("STOP", "given no sign of life", "false")];
    for (name, words, shards) in cases {
        let two = ["--learner_ranks", "2", "--shard_optimizer", shards];
        let undisturbed = format!("undisturbed-{shards}");
        let first = bench.start(&undisturbed, &two).wait().unwrap();
        assert!(first.success(), "{}", bench.said());
        let mut run = bench.start(name, &two);
        bench.wait_for_step(name, 6);
        let learner = children(run.id(), "learner")[0];
        let start = Instant::now();
        signal(children(learner, "learner")[0], name);
        let log = bench.path(name).join("logs/learner.log");
        while !fs::read_to_string(&log).is_ok_and(|log| log.contains(words)) {
            assert!(start.elapsed() < Duration::from_secs(10), "{name}: {}", fs::read_to_string(&log).unwrap());
            thread::sleep(Duration::from_millis(20));
        }
        assert!(run.wait().unwrap().success(), "{}", bench.said());
        assert!(bench.said().contains("restarting the learner (1 of 4 restarts)"), "{}", bench.said());
        let same = bench.result(name) == bench.result(&undisturbed);
        assert!(same, "{name}: the weights differ from those of the undisturbed run");
    }
}

/// The launcher kills by itself: the sampler, the learner, or both. It is killed as well.
#[test]
fn fifty_kills_of_one_run_leave_its_weights_as_they_are() {
    const LONG: u64 = 56;
    let bench = Bench::new();
    let long = ["--max_steps", "56", "--save_steps", "1"];
    let _ = cli::finish(bench.command("undisturbed", &long)).success();
    let more = [&long[..], &["--max_restarts", "0", "--chaos", "seed=7,kill=0.9,stop=0.02,disk=0.06"]].concat();
    let resumed = [&more[..], &["--resume_from_checkpoint", "latest"]].concat();
    let mut said = String::new();
    for (options, until) in [(&more, 15), (&resumed, 35)] {
        let mut run = bench.start("chaos", options);
        bench.wait_for_step("chaos", until);
        run.kill().unwrap();
        run.wait().unwrap();
        said += &bench.said();
    }
    said += &cli::finish(bench.command("chaos", &resumed)).success().stderr;
    let kills = ["learner", "rollout"].map(|name| said.matches(&format!(": {name} is killed")).count());
    assert!(kills[0] + kills[1] >= 50 && kills[0] >= 15 && kills[1] >= 15, "{kills:?}: {said}");
    assert!(said.contains("finds the disk full"), "{said}");
    let results = ["undisturbed", "chaos"].map(|run| bench.result_of(run, LONG));
    assert!(results[0] == results[1], "the weights differ from those of the undisturbed run");
}

/// A segment may be larger than the memory that is left for it, which ends whoever writes there with SIGBUS.
#[test]
fn shared_memory_that_is_full_is_an_error_with_figures() {
    const MOUNT: &str = "mount -t tmpfs -o size=$0 tmpfs /dev/shm && exec \"$@\"";
    let bench = Bench::new();
    let within = |size: &str, command: &Command| {
        let mut inside = Command::new("unshare");
        inside.args(["-m", "sh", "-c", MOUNT, size]).arg(command.get_program()).args(command.get_args());
        inside.current_dir(bench.path("")).env("TANDEM_CACHE_DIR", bench.path("cache"));
        inside
    };
    if !within("64k", &Command::new("true")).status().is_ok_and(|status| status.success()) {
        return harness::skipped(
            "shared_memory_that_is_full_is_an_error_with_figures",
            "this user cannot mount a small /dev/shm",
        );
    }
    let small = ["--max_steps", "4", "--max_restarts", "1", "--version_storage", "disk"];
    // Groups of more than the 64 KiB that there is room for at the beginning make a segment grow.
    let large = ["--num_generations", "64", "--generation_batch_size", "64", "--max_completion_length", "400"];
    for (run, size, more) in [("one", "64k", &[][..]), ("two", "350k", &[]), ("three", "2500k", &large)] {
        let finished = cli::finish(within(size, &bench.command(run, &[&small, more].concat())));
        let refusal = finished.refusal();
        assert!(refusal.contains("/dev/shm is full") && refusal.contains("MiB are needed"), "{refusal}");
        assert!(!finished.stderr.contains("SIGBUS"), "{}", finished.stderr);
    }
    let _ = cli::finish(within("8m", &bench.command("four", &small))).success();
}
