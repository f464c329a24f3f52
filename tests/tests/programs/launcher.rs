//! `tandem train` around two scripted processes: what it starts, what it tells, how it ends.

use std::{
    fs,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary, cli,
    tiny_model::{self, Qwen2},
};
use serde_json::Value;
use shared::{
    RunDir,
    channel::{
        RunId,
        iox::{self, IoxLearner},
    },
};

/// A folder with a copy of `tandem` and two scripts that stand in for the processes of the pair.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new(learner: &str, rollout: &str) -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap() };
        // Not `fs::copy`: a process that another test starts meanwhile would hold the file open for writing for a
        // moment, and it could not be run.
        let copied = Command::new("cp").arg(binary("tandem")).arg(stage.path("tandem")).status().unwrap();
        assert!(copied.success());
        // `tandem` only looks for it; the script in place of the sampler loads nothing.
        fs::write(stage.path("libonnxruntime.so"), "").unwrap();
        stage.script("learner", learner);
        stage.script("rollout", rollout);
        let model = Qwen2 {
            vocab_size: tiny_model::CHARACTERS,
            hidden_size: 32,
            intermediate_size: 48,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            num_key_value_heads: 1,
        };
        model.write(&stage.path("model"), 0);
        fs::write(stage.path("prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n").unwrap();
        let config = "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = \"run\"\n\
                      reward_funcs = [\"format\"]\nmax_steps = 3\nmax_restarts = 1\n";
        fs::write(stage.path("run.toml"), config).unwrap();
        stage
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Each script gets the run directory as `$run` and a function `step N` that writes a metric record.
    fn script(&self, name: &str, body: &str) {
        let text = format!(
            "#!/bin/sh\nif [ $1 = check-rewards ]; then echo '[{{\"entry\": \"format\"}}]'; exit; fi\nrun=$3\n\
             step() {{ echo \"{{\\\"step\\\":$1,\\\"reward\\\":0.$1,\\\"step_time\\\":0.5,\
             \\\"completions/num_tokens\\\":100}}\" >> $run/metrics.jsonl; }}\n{body}\n"
        );
        fs::write(self.path(name), text).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(self.path("tandem"));
        command.current_dir(self.dir.path()).args(["train", "run.toml"]).args(more);
        command
    }

    fn start(&self) -> Child {
        self.command(&[]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

const THREE_STEPS: &str = "for i in 1 2 3; do sleep 0.1; step $i; done; mkdir $run/checkpoint-3; touch $run/finished";
const UNTIL_FINISHED: &str = "until [ -e $run/finished ]; do sleep 0.02; done";

fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "{} does not appear", path.display());
        thread::sleep(Duration::from_millis(10));
    }
}

fn last_line(stdout: &str) -> Value {
    serde_json::from_str(stdout.trim_end().lines().last().unwrap()).unwrap()
}

#[test]
fn a_run_shows_every_step_and_ends_with_figures_and_a_report() {
    let stage = Stage::new(THREE_STEPS, UNTIL_FINISHED);
    let finished = cli::finish(stage.command(&["--seed", "7"])).success();
    for step in 1..=3 {
        assert!(finished.stderr.contains(&format!("step {step}/3  reward 0.{step}00")), "{}", finished.stderr);
    }
    let figures = last_line(&finished.stdout);
    assert_eq!(finished.stdout.lines().count(), 1);
    assert_eq!(
        (&figures["steps"], &figures["reward_first"], &figures["reward_last"]),
        (&3.into(), &0.1.into(), &0.3.into())
    );
    assert_eq!(figures["tokens_per_s"], 200.0);
    assert!(Path::new(figures["report"].as_str().unwrap()).is_file());
    let written = fs::read_to_string(stage.path("run/config.toml")).unwrap();
    assert!(written.contains("seed = 7") && written.contains("max_steps = 3") && written.contains("rollout_threads"));
}

#[test]
fn a_dry_run_prints_the_resolved_configuration_and_touches_nothing() {
    let stage = Stage::new("exit 1", "[ $1 = check ] && grep -q 'num_generations = 8' && echo '[]'");
    let finished = cli::finish(stage.command(&["--dry-run", "--learning-rate", "3e-4"])).success();
    assert!(finished.stdout.contains("learning_rate = 0.0003\n"), "{}", finished.stdout);
    let model = stage.path("model").canonicalize().unwrap();
    assert!(finished.stdout.contains(&format!("model = {model:?}")), "{}", finished.stdout);
    assert!(!stage.path("run").exists());
}

/// The fleet is a package of its own, which the default build leaves out.
#[test]
fn where_the_program_of_the_fleet_is_missing_nothing_begins_and_the_way_to_it_is_told() {
    let stage = Stage::new("exit 1", "[ $1 = check ] && echo '[]'");
    let tandem = |words: &[&str]| {
        let mut command = Command::new(stage.path("tandem"));
        command.current_dir(stage.dir.path()).args(words);
        cli::finish(command).refusal().strip_prefix("error: ").unwrap().to_owned()
    };
    let listen = ["--listen", "tcp/127.0.0.1:7447"];
    let missing = |asked_for_by: &str| {
        format!(
            "{asked_for_by}: `rollout-fleet` is not beside `tandem` in {}: build it with `cargo build --release \
             --workspace --bin rollout-fleet`",
            stage.dir.path().display()
        )
    };
    assert_eq!(tandem(&[&["train", "run.toml", "--dry-run"], &listen[..]].concat()), missing("`listen`"));
    // Whatever is started now would be missed first.
    ["learner", "rollout"].iter().for_each(|name| fs::remove_file(stage.path(name)).unwrap());
    assert_eq!(tandem(&[&["train", "run.toml"], &listen[..]].concat()), missing("`listen`"));
    assert!(!stage.path("run").exists());
    assert_eq!(tandem(&["worker", "--join", "tcp/127.0.0.1:7447"]), missing("`tandem worker`"));
    assert_eq!(tandem(&["doctor", "--join", "tcp/127.0.0.1:7447"]), missing("--join"));
    let serve = missing("`tandem serve`").replace("rollout-fleet", "rollout-serve");
    assert_eq!(tandem(&["serve", "--model", "model"]), serve);
    let agent = missing("`agent`").replace("rollout-fleet", "rollout-serve");
    assert_eq!(tandem(&["train", "run.toml", "--agent", "python3 my_agent.py"]), agent);
    let grammar = missing("--json-schema").replace("rollout-fleet", "rollout-serve");
    assert_eq!(tandem(&["generate", "--model", "model", "--prompt", "a", "--json-schema=s.json"]), grammar);
    let doctor = |stage: &Stage| {
        let mut command = Command::new(stage.path("tandem"));
        command.arg("doctor");
        let said = cli::finish(command).stdout;
        said.split("\nok    workers ").nth(1).unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let said = doctor(&stage);
    assert!(said.trim_start().starts_with("`rollout-fleet` is not built, "), "{said}");
    assert!(said.contains("-> cargo build --release --workspace --bin rollout-fleet\n"), "{said}");
    stage.script("rollout-fleet", "exit 1");
    assert!(doctor(&stage).trim_start().starts_with("rollout-fleet is beside tandem\n"));
}

#[test]
fn the_sampler_of_a_run_with_workers_is_the_program_of_the_fleet() {
    let stage = Stage::new(THREE_STEPS, "exit 1");
    stage.script("rollout-fleet", &format!("[ $1 = run ] && touch $run/here\n{UNTIL_FINISHED}"));
    let _ = cli::finish(stage.command(&["--listen", "tcp/127.0.0.1:7447"])).success();
    assert!(stage.path("run/here").exists() && stage.path("run/logs/rollout.log").exists());
}

#[test]
fn ctrl_c_ends_the_learner_in_order_and_tells_how_to_go_on() {
    let learner = "trap 'mkdir $run/checkpoint-1; cp $run/../model/config.json $run/checkpoint-1; \
                   echo {} > $run/checkpoint-1/trainer_state.json; touch $run/finished; exit 143' TERM\n\
                   step 1; touch $run/ready; while :; do sleep 0.02; done";
    let stage = Stage::new(learner, UNTIL_FINISHED);
    let child = stage.start();
    wait_for(&stage.path("run/ready"));
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("checkpoint-1") && stderr.contains("--resume_from_checkpoint latest"), "{stderr}");
    assert_eq!(last_line(&String::from_utf8_lossy(&output.stdout))["steps"], 1);

    stage.script("learner", "echo resumed > $run/resumed; touch $run/finished");
    let refusal = cli::finish(stage.command(&[]));
    assert!(refusal.refusal().contains("--resume_from_checkpoint latest"));
    let _ = cli::finish(stage.command(&["--resume_from_checkpoint", "latest"])).success();
    assert!(stage.path("run/resumed").exists());
}

/// `tandem train run.toml 2>&1 | tee log`: Ctrl-C ends `tee` too.
#[test]
fn the_end_of_whoever_reads_along_is_not_the_end_of_the_run() {
    let learner = "trap 'mkdir $run/checkpoint-2; touch $run/finished; exit 143' TERM\n\
                   touch $run/ready; until [ -e $run/gone ]; do sleep 0.02; done\n\
                   step 1; step 2; sleep 0.5; touch $run/told; while :; do sleep 0.02; done";
    let stage = Stage::new(learner, UNTIL_FINISHED);
    let mut child = stage.start();
    wait_for(&stage.path("run/ready"));
    drop((child.stdout.take(), child.stderr.take()));
    fs::write(stage.path("run/gone"), "").unwrap();
    wait_for(&stage.path("run/told"));
    // SAFETY: sends a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(stage.path("run/checkpoint-2").exists());
    assert!(stage.path("run/report.html").exists());
}

#[test]
fn a_refusal_of_a_process_becomes_the_refusal_of_the_launcher() {
    let stage = Stage::new("exec sleep 60", "echo 'error: unknown reward function `formt`' >&2; exit 1");
    let start = Instant::now();
    let refused = cli::finish(stage.command(&[]));
    assert!(refused.refusal().contains("the sampler: unknown reward function `formt`"), "{}", refused.stderr);
    assert!(start.elapsed() < Duration::from_secs(30), "the learner was not ended");
    // Nothing was trained: the same command works once the mistake is corrected.
    stage.script("learner", THREE_STEPS);
    stage.script("rollout", UNTIL_FINISHED);
    let _ = cli::finish(stage.command(&[])).success();
}

#[test]
fn a_crash_is_named_and_survived_and_too_many_are_not() {
    let stage = Stage::new(
        "if [ ! -e $run/once ]; then touch $run/once; step 1; sleep 0.2; echo 'last words'; kill -SEGV $$; fi\n\
         step 2; step 3; touch $run/finished",
        UNTIL_FINISHED,
    );
    let finished = cli::finish(stage.command(&[])).success();
    assert!(finished.stderr.contains("the learner ended: killed by signal 11 (SIGSEGV)"), "{}", finished.stderr);
    assert!(finished.stderr.contains("| last words") && finished.stderr.contains("restarting the learner"));

    let stage = Stage::new("exec sleep 60", "kill -9 $$");
    let refused = cli::finish(stage.command(&[]));
    let error = refused.refusal();
    assert!(
        error.contains("the sampler died 2 times") && error.contains("SIGKILL") && error.contains("rollout.log"),
        "{error}"
    );
}

#[test]
fn children_do_not_outlive_a_killed_launcher() {
    let stage = Stage::new("touch $run/ready; sleep 61 & wait", "echo $$ > $run/pid; exec sleep 61");
    let mut child = stage.start();
    wait_for(&stage.path("run/ready"));
    wait_for(&stage.path("run/pid"));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    thread::sleep(Duration::from_millis(300));
    let pid = fs::read_to_string(stage.path("run/pid")).unwrap();
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // Gone, or a zombie that nobody has waited for yet.
    assert!(state.is_empty() || state.contains(" Z "), "{state}");
}

/// Between two trainings, a round runs `rollout generate` and `learner reward-model`. The signal comes in the last of
/// them, after a training has ended.
#[test]
fn a_signal_ends_the_tools_of_iterate_as_well() {
    let output = "out=$(printf '%s\\n' \"$@\" | sed -n 's/^--output=//p')";
    let figures = r#"{"pairs":1,"trained":1,"replayed":0,"accuracy_before":0.5,"accuracy_after":1.0}"#;
    let learner = format!(
        "if [ $1 = run ]; then {THREE_STEPS}; exit; fi\n{output}; mkdir $out; echo trained >&2; echo '{figures}'"
    );
    let row = |token, reward| format!(r#"{{"prompt_id":0,"prompt_ids":[1],"token_ids":[{token}],"reward":{reward}}}"#);
    let rollout = format!(
        "if [ $1 = run ]; then {UNTIL_FINISHED}; exit; fi\n{output}\n\
         if [ ${{out%round-1/*}} = $out ]; then\n\
         trap 'touch terminated; exit 1' TERM; touch sampling; while :; do sleep 0.02; done\nfi\n\
         echo '{}' > $out; echo '{}' >> $out",
        row(2, 0.0),
        row(3, 1.0)
    );
    let stage = Stage::new(&learner, &rollout);
    for (signal, code, beta) in [(libc::SIGTERM, 143, "0"), (libc::SIGINT, 130, "0.04")] {
        let mut command = Command::new(stage.path("tandem"));
        command.current_dir(stage.dir.path()).args(["iterate", "run.toml", "--rounds=1", "--judge=correctness"]);
        command.args(["--", "--beta", beta]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&stage.path("sampling"));
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id().cast_signed(), signal) };
        wait_for(&stage.path("terminated"));
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains("interrupted by SIG"), "{stderr}");
        assert_eq!(stderr.contains("there is no reference policy"), beta == "0", "{stderr}");
        assert!(stage.path("run/round-1/round.json").exists(), "{stderr}");
        for mark in ["sampling", "terminated"] {
            fs::remove_file(stage.path(mark)).unwrap();
        }
    }
}

/// Where the channel of a run has its folder; everything that it has in shared memory begins with the same name.
fn folder_of_the_channel(run: &Path) -> PathBuf {
    fs::create_dir(run).unwrap();
    let run_dir = RunDir::new(run);
    let end = IoxLearner::open(&run_dir, RunId::of(&run_dir).unwrap()).unwrap();
    let folder = iox::files(&run_dir).unwrap().into_iter().find(|path| path.is_dir()).unwrap();
    drop(end);
    assert_eq!(iox::files(&run_dir).unwrap(), Vec::<PathBuf>::new());
    folder
}

#[test]
fn what_killed_processes_leave_in_shared_memory_is_removed_at_the_end() {
    for (rollout, succeeds) in [(UNTIL_FINISHED, true), ("echo 'error: no' >&2; exit 1", false)] {
        let stage = Stage::new(THREE_STEPS, rollout);
        let folder = folder_of_the_channel(&stage.path("run"));
        let segment = format!("{}_1", folder.file_name().unwrap().to_str().unwrap());
        fs::create_dir(&folder).unwrap();
        fs::write(Path::new("/dev/shm").join(&segment), "left").unwrap();
        // No other run is touched.
        let foreign = Path::new("/dev/shm").join(format!("tandem_of_test_{}", std::process::id()));
        fs::write(&foreign, "").unwrap();
        let finished = cli::finish(stage.command(&[]));
        assert_eq!(finished.status.success(), succeeds, "{}", finished.stderr);
        assert_eq!(iox::files(&RunDir::new(stage.path("run"))).unwrap(), Vec::<PathBuf>::new());
        assert!(fs::remove_file(foreign).is_ok());
    }
}

#[test]
fn a_run_that_is_killed_before_its_first_checkpoint_says_how_to_begin_anew() {
    let learner =
        "trap : TERM INT\nif [ -e stepping ]; then step 1; fi; touch $run/ready; while :; do sleep 0.02; done";
    for stepping in [false, true] {
        let stage = Stage::new(learner, UNTIL_FINISHED);
        if stepping {
            fs::write(stage.path("stepping"), "").unwrap();
        }
        let child = stage.start();
        wait_for(&stage.path("run/ready"));
        for _ in 0..2 {
            // SAFETY: sends a signal to a child that has not been waited for.
            unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
            thread::sleep(Duration::from_millis(300));
        }
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert_eq!(stderr.contains("the next start begins anew"), !stepping, "{stderr}");
        assert_eq!(stderr.contains("choose another `output_dir`, or move"), stepping, "{stderr}");
        stage.script("learner", THREE_STEPS);
        let again = cli::finish(stage.command(&[]));
        assert_eq!(again.status.success(), !stepping, "{}", again.stderr);
    }
}

#[test]
fn a_missing_process_is_named() {
    let stage = Stage::new("", "");
    fs::remove_file(stage.path("rollout")).unwrap();
    let refused = cli::finish(stage.command(&[]));
    assert!(refused.refusal().contains("`rollout` is not beside `tandem`"), "{}", refused.stderr);
}

/// The control group of a child, in which it may take so many bytes; nothing where none can be made.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let line = |prefix: &str| own.lines().find_map(|line| Some(line.split_once(prefix)?.1.trim_start_matches('/')));
        let (folder, file) = match line(":memory:") {
            Some(path) => (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            None => (Path::new("/sys/fs/cgroup").join(line("0::")?), "memory.max"),
        };
        let group = Self(folder.join(format!("tandem-test-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        fs::write(group.0.join(file), limit.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn what_the_limit_of_a_control_group_killed_is_named_as_such() {
    let Some(group) = Group::new(768 << 20) else {
        return harness::skipped(
            "what_the_limit_of_a_control_group_killed_is_named_as_such",
            "this user cannot make a control group with a limit",
        );
    };
    // It keeps what it reads until the end, which never comes.
    let stage = Stage::new("step 1; exec tail /dev/zero", UNTIL_FINISHED);
    let train = stage.command(&[]);
    let mut inside = Command::new("sh");
    inside.args(["-c", "echo $$ > $0/cgroup.procs && exec \"$@\""]).arg(&group.0).arg(train.get_program());
    inside.args(train.get_args()).current_dir(stage.dir.path());
    let finished = cli::finish(inside);
    let error = finished.refusal();
    assert!(
        error.contains(
            "the learner was killed for memory by the limit of its control group, 768.0 MiB; lower `micro_batch_tokens`"
        ),
        "{error}"
    );
}

#[test]
fn doctor_lists_what_dead_runs_left_and_removes_it() {
    let hash = format!("{:016x}", u64::from(std::process::id()) << 32 | 0xdead);
    let segment = PathBuf::from(format!("/dev/shm/tandem_{hash}_1"));
    let young = PathBuf::from(format!("/dev/shm/tandem_{}_1", hash.replace("dead", "0123")));
    for path in [&segment, &young] {
        fs::write(path, [0; 100]).unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs::File::options().write(true).open(&segment).unwrap().set_modified(long_ago).unwrap();
    let listed = cli::run("tandem", ["doctor"]).stdout;
    assert!(listed.contains(&segment.display().to_string()) && listed.contains("--remove-leftovers"), "{listed}");
    assert!(segment.exists() && !listed.contains(&young.display().to_string()), "{listed}");
    let removed = cli::run("tandem", ["doctor", "--remove-leftovers"]).stdout;
    assert!(removed.contains("removed: ") && removed.contains(&segment.display().to_string()), "{removed}");
    assert!(!segment.exists() && young.exists());
    fs::remove_file(young).unwrap();
}

/// `nohup` means that the end of the terminal is not the end of the run.
#[test]
fn a_hangup_ends_a_run_in_order_unless_it_is_ignored() {
    let learner = "trap 'mkdir $run/checkpoint-2; touch $run/finished; exit 143' TERM\n\
                   step 1; step 2; touch $run/ready; n=0; while [ $n -lt 50 ]; do n=$((n+1)); sleep 0.02; done\n\
                   mkdir $run/checkpoint-3; touch $run/finished";
    for (ignored, code) in [(false, 129), (true, 0)] {
        let stage = Stage::new(learner, UNTIL_FINISHED);
        let mut command = stage.command(&[]);
        // Whoever runs the tests may ignore it as well.
        let handling = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: `signal` may be called between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::signal(libc::SIGHUP, handling);
                Ok(())
            })
        };
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for(&stage.path("run/ready"));
        // SAFETY: sends a signal to a child that has not been waited for.
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGHUP) };
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}
