//! Nothing speaks to the network, and nothing is written where nobody asked for it.

mod watch;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{binary, tiny_model};
use shared::{RunDir, channel::iox};

/// Folders of a user, with a model and prompts in one of them.
struct User {
    dir: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        let user = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["home", "tmp", "work"] {
            fs::create_dir(user.path(name)).unwrap();
        }
        tiny_model::SMALL.write(&user.path("work/model"), 1);
        tiny_model::write_tokenizer(&user.path("work/model"));
        fs::write(user.path("work/prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"2+2=\"}\n").unwrap();
        user
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(binary(name));
        command
            .args(args)
            .current_dir(self.path("work"))
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"));
        command.env("TANDEM_CACHE_DIR", self.path("cache")).env_remove("XDG_CACHE_HOME");
        // Cargo sets it for tests: the programs are to do it themselves.
        command.env_remove("ORT_DISABLE_TELEMETRY");
        command
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(self.path(dir)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_only(&self, in_work: &[&str]) {
        assert_eq!(self.names("."), ["cache", "home", "tmp", "work"]);
        assert_eq!(self.names("work"), in_work);
        for dir in ["home", "tmp"] {
            assert_eq!(self.names(dir), Vec::<String>::new(), "{dir}");
        }
    }
}

/// Where the versions of runs are while these go on.
const VERSIONS: &str = "/dev/shm/tandem-weights-";

/// What of all that a program made or wrote lies in none of these folders, nor in the places of a run's channel and of
/// its versions, nor in the temporary folders of reward programs.
fn elsewhere(made: &BTreeSet<PathBuf>, folders: &[PathBuf]) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = folders.iter().map(|folder| folder.canonicalize().unwrap()).collect();
    let in_channel = |path: &Path| {
        let path = path.to_string_lossy();
        ["/dev/shm/tandem_", "/tmp/tandem_", VERSIONS].iter().any(|place| path.starts_with(place))
            || path.contains("/tmp/tandem-reward-")
    };
    let known = |path: &Path| folders.iter().any(|folder| path.starts_with(folder)) || in_channel(path);
    made.iter().filter(|path| !known(path)).cloned().collect()
}

/// Ten steps of at least a second each: telemetry is sent some seconds after the start.
#[test]
fn a_training_run_opens_no_internet_socket_and_writes_nothing_elsewhere() {
    let user = User::new();
    let config = "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = \"run\"\nnum_generations = 2\n\
                  reward_funcs = [\"command:run=while read -r line; do sleep 1; echo '[0, 1]'; done\"]\n\
                  max_completion_length = 4\nper_device_train_batch_size = 2\nmax_steps = 10\nmax_restarts = 0\n";
    fs::write(user.path("work/run.toml"), config).unwrap();
    let (finished, made) = watch::finish(user.command("tandem", &["train", "run.toml"]));
    let _ = finished.success();
    let (run, cache) = (user.path("work/run"), user.path("cache"));
    // What both halves are known to write was seen, so the rest would have been.
    for known in ["logs/rollout.log", "logs/learner.log", "metrics.jsonl", "report.html"] {
        assert!(made.contains(&run.canonicalize().unwrap().join(known)), "{known}: {made:#?}");
    }
    assert_eq!(elsewhere(&made, &[run.clone(), cache]), Vec::<PathBuf>::new());
    user.assert_only(&["model", "prompts.jsonl", "run", "run.toml"]);
    let versions = made.iter().filter(|path| path.to_string_lossy().starts_with(VERSIONS));
    assert_eq!(versions.filter(|path| path.exists()).collect::<Vec<_>>(), Vec::<&PathBuf>::new(), "none stays behind");
    assert_eq!(iox::files(&RunDir::new(run)).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn neither_do_programs_that_are_called_alone() {
    let user = User::new();
    let generate = ["generate", "--model=model", "--prompts=prompts.jsonl", "--output=out.jsonl"];
    let (finished, made) = watch::finish(user.command("rollout", &generate));
    let _ = finished.success();
    let work = user.path("work").canonicalize().unwrap();
    assert!(made.contains(&work.join("out.jsonl")), "{made:#?}");
    assert_eq!(elsewhere(&made, &[work, user.path("cache")]), Vec::<PathBuf>::new());
    let (_, made) = watch::finish(user.command("tandem", &["doctor"]));
    // Doctor tries whether there can be a channel.
    let tried = |path: &PathBuf| path.to_string_lossy().starts_with("/dev/shm/tandem-doctor-");
    let made: BTreeSet<PathBuf> = made.into_iter().filter(|path| !tried(path)).collect();
    assert_eq!(elsewhere(&made, &[]), Vec::<PathBuf>::new());
    user.assert_only(&["model", "out.jsonl", "prompts.jsonl"]);
}

/// What the two tests above rely on.
#[test]
fn an_internet_socket_is_noticed() {
    let mut command = Command::new("/bin/bash");
    command.args(["-c", "exec 3<>/dev/udp/127.0.0.1/9"]);
    let status = watch::finish(command).0.status;
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

/// The same for files, also for those that are gone when a program ends.
#[test]
fn a_file_elsewhere_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().canonicalize().unwrap();
    for name in ["inside", "old", "read"] {
        fs::write(place.join(name), "").unwrap();
    }
    let script = "mkdir -p sub && cd sub && (echo a > ../gone) && mv ../old new && ln -s new link && ln new twin && \
                  cat ../read >> ../inside && rm ../gone && : > /dev/null";
    let mut command = Command::new("/bin/bash");
    command.args(["-c", script]).current_dir(&place);
    let (finished, made) = watch::finish(command);
    let _ = finished.success();
    let expected = ["gone", "inside", "old", "sub", "sub/link", "sub/new", "sub/twin"];
    assert_eq!(elsewhere(&made, &[]), expected.map(|name| place.join(name)));
}
