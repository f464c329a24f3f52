//! A learner that ends at any of its writing system calls, or is told at any of them that the disk is full, leaves a
//! run that goes on to the same weights, and nothing half-written under its name.

use std::{
    collections::BTreeMap,
    fs,
    ops::Deref,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Stdio},
};

use harness::{
    bench, binary,
    cli::{self, Finished},
    skipped,
};
use shared::{RunDir, WeightManifest, run::checkpoints};

const STEPS: u64 = 2;
const BIN: &str = "target/release";
/// What changes files and folders. Of `pwrite64`, the processes make nothing but heartbeats.
const CALLS: [&str; 13] = [
    "write",
    "writev",
    "fsync",
    "fdatasync",
    "ftruncate",
    "fallocate",
    "copy_file_range",
    "mkdir",
    "rename",
    "link",
    "unlink",
    "rmdir",
    "unlinkat",
];
/// So many calls of each kind are tried; `TANDEM_ALL_CALLS` has all of them tried, which takes three quarters of an
/// hour.
const TRIED: usize = 2;

/// Runs of which the learner is traced.
struct Bench(bench::Bench);

impl Deref for Bench {
    type Target = bench::Bench;

    fn deref(&self) -> &bench::Bench {
        &self.0
    }
}

impl Bench {
    /// With programs of its own, of which the learner is begun by a script: once as `fault` says, then as it is.
    fn new() -> Self {
        let bench = Self(bench::Bench::new(&format!(
            "dataset = \"prompts.jsonl\"\nmax_steps = {STEPS}\nsave_steps = 1\nnum_generations = 4\n\
             generation_batch_size = 16\nper_device_train_batch_size = 16\nmax_completion_length = 16\n\
             learning_rate = 1e-3\nmax_restarts = 0\npeer_timeout = 3\nlearner_threads = 1\nrollout_threads = 1\n"
        )));
        let bin = bench.path(BIN);
        fs::create_dir_all(&bin).unwrap();
        for (name, copy) in [("tandem", "tandem"), ("rollout", "rollout"), ("learner", "traced")] {
            fs::copy(binary(name), bin.join(copy)).unwrap();
        }
        // Native libraries are looked for two folders up.
        let native = binary("tandem").ancestors().nth(3).unwrap().join(".native");
        symlink(native, bench.path(".native")).unwrap();
        let script = "#!/bin/sh\nhere=$(dirname \"$0\")\nif [ -e \"$here/fault\" ]; then\n\
                      fault=$(cat \"$here/fault\")\nrm \"$here/fault\"\n\
                      exec strace -f -qqq -o \"$here/trace\" $fault \"$here/traced\" \"$@\"\nfi\n\
                      exec \"$here/traced\" \"$@\"\n";
        fs::write(bin.join("learner"), script).unwrap();
        fs::set_permissions(bin.join("learner"), fs::Permissions::from_mode(0o755)).unwrap();
        bench
    }

    fn train(&self, run: &str, fault: &str, more: &[&str]) -> Finished {
        if !fault.is_empty() {
            fs::write(self.path(BIN).join("fault"), fault).unwrap();
        }
        let like = self.command(run, more);
        let mut command = Command::new(self.path(BIN).join("tandem"));
        command.args(like.get_args()).current_dir(self.path(""));
        command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
        cli::finish(command)
    }

    /// Begins the run again, or goes on from its checkpoint, as its own words advise.
    fn go_on(&self) -> Finished {
        let run = self.path("run");
        if RunDir::new(&run).checkpoints().unwrap().is_empty() {
            fs::remove_dir_all(run).unwrap();
            return self.train("run", "", &[]);
        }
        self.train("run", "", &["--resume_from_checkpoint", "latest"])
    }

    fn result(&self, run: &str) -> Vec<u8> {
        fs::read(self.path(run).join(format!("checkpoint-{STEPS}/model.safetensors"))).unwrap()
    }

    /// How often a run makes each of the calls.
    fn counts(&self) -> BTreeMap<&'static str, usize> {
        let _ = self.train("counted", &format!("-e signal=none -e trace={}", CALLS.join(",")), &[]).success();
        let trace = fs::read_to_string(self.path(BIN).join("trace")).unwrap();
        let of = |call: &&'static str| trace.lines().filter(|line| line.contains(&format!(" {call}("))).count();
        CALLS.iter().map(|call| (*call, of(call))).filter(|(_, count)| *count > 0).collect()
    }

    /// Has every chosen call go wrong in a run of its own, each of which then goes on to the `expected` weights.
    fn disturb(&self, expected: &[u8], what: &str) {
        let all = std::env::var_os("TANDEM_ALL_CALLS").is_some();
        let mut disturbed = 0;
        for (call, count) in self.counts() {
            let stride = if all { 1 } else { count.div_ceil(TRIED) };
            for n in (1..=count).step_by(stride) {
                let place = format!("{call} {n} of {count}: {what}");
                let fault = format!("-e signal=none -e trace={call} -e inject={call}:{what}:when={n}");
                let first = self.train("run", &fault, &[]);
                whole(&self.path("run"), &place);
                for line in first.stderr.lines().filter(|line| line.contains("No space left on device")) {
                    assert!(line.contains('/') || line.contains(".json"), "{place}: the file is not named: {line}");
                }
                if !first.status.success() {
                    disturbed += 1;
                    let again = self.go_on();
                    assert!(again.status.success(), "{place}: {}", again.stderr);
                    whole(&self.path("run"), &place);
                }
                assert!(self.result("run") == expected, "{place}: the weights differ\n{}", first.stderr);
                fs::remove_dir_all(self.path("run")).unwrap();
            }
        }
        assert!(disturbed > 0, "nothing was disturbed");
    }
}

/// Whatever has its name is complete.
fn whole(run: &Path, place: &str) {
    let dir = RunDir::new(run);
    for step in dir.checkpoints().unwrap() {
        let checked = checkpoints::check(&dir.checkpoint(step), checkpoints::Depth::Contents);
        assert!(checked.is_ok(), "{place}: checkpoint {step}: {}", checked.unwrap_err());
    }
    for version in dir.versions().unwrap() {
        let manifest = WeightManifest::read(&dir.version(version));
        assert!(manifest.is_ok(), "{place}: version {version}: {}", manifest.unwrap_err());
    }
    for entry in fs::read_dir(run.join("completions")).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let lines = text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count();
        assert_eq!(lines, 16, "{place}: {}", entry.path().display());
    }
}

fn goes_on_through(what: &str) {
    let strace = Command::new("strace").args(["-qqq", "-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    if !strace.is_ok_and(|status| status.success()) {
        skipped("faults at writing calls", "there is no strace, or it may not trace");
        return;
    }
    let bench = Bench::new();
    let _ = bench.train("undisturbed", "", &[]).success();
    bench.disturb(&bench.result("undisturbed"), what);
}

#[test]
fn a_kill_at_any_writing_call_leaves_a_run_that_goes_on_to_the_same_weights() {
    goes_on_through("signal=KILL");
}

#[test]
fn a_disk_that_is_full_at_any_writing_call_leaves_a_run_that_goes_on_to_the_same_weights() {
    goes_on_through("error=ENOSPC");
}
