//! A folder in which runs of one configuration are made, disturbed, and compared.

use std::{
    fs,
    ops::{Deref, DerefMut},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::{
    binary, processes,
    tiny_model::{self, SMALL},
    training::json_lines,
};

/// A model, prompts and a configuration, in a temporary folder.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A folder with these lines as `run.toml` beside `model`; its rows are in `prompts.jsonl`.
    ///
    /// # Panics
    /// When files cannot be written.
    #[must_use]
    pub fn new(config: &str) -> Self {
        let bench = Self { dir: tempfile::tempdir().expect("there is room for a folder") };
        SMALL.write(&bench.path("model"), 5);
        tiny_model::write_tokenizer(&bench.path("model"));
        let rows = (1..=12).map(|n| format!("{{\"prompt\": \"{}=\"}}\n", vec![n.to_string(); n].join("+")));
        let files = [
            ("prompts.jsonl", rows.collect::<String>()),
            ("run.toml", format!("model = \"model\"\nreward_funcs = [\"length:target=6\"]\n{config}")),
        ];
        for (name, text) in files {
            fs::write(bench.path(name), text).expect("files can be written");
        }
        bench
    }

    /// A file or folder in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command for a run, with options in addition to those of the configuration.
    #[must_use]
    pub fn command(&self, run: &str, more: &[&str]) -> Command {
        let mut command = Command::new(binary("tandem"));
        command.current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        command.args(["train", "run.toml", "--output_dir", run]).args(more);
        command
    }

    /// Begins a run, with the launcher's messages in `stderr`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(&self, run: &str, more: &[&str]) -> Running {
        self.start_command(self.command(run, more), "stderr")
    }

    /// Begins a command, with its output in a file.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_command(&self, mut command: Command, log: &str) -> Running {
        let stderr = fs::File::create(self.path(log)).expect("files can be written");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        Running(command.spawn().expect("tandem can be started"))
    }

    /// Checks that in `last` steps every prompt was used up once, and every group and every step of four groups was
    /// made once.
    ///
    /// # Panics
    /// If that is not so.
    pub fn assert_balanced(&self, run: &str, last: u64, generations: usize) {
        let lines = json_lines(&self.path(run).join("ledger.jsonl"));
        let number = |group: &Value, key: &str| group[key].as_u64().expect("the ledger has numbers");
        let mut positions: Vec<u64> = groups(&lines).map(|group| number(group, "position")).collect();
        positions.sort_unstable();
        assert_eq!(positions, (0..last * 4).collect::<Vec<_>>(), "every prompt is used up once");
        let mut ids: Vec<(u64, u64)> =
            groups(&lines).map(|group| (number(group, "step"), number(group, "group"))).collect();
        ids.sort_unstable();
        let expected: Vec<(u64, u64)> = (1..=last).flat_map(|step| (0..4).map(move |group| (step, group))).collect();
        assert_eq!(ids, expected, "every group is made once");
        assert!(groups(&lines).all(|group| group["states"].as_array().is_some_and(|all| all.len() == generations)));
        let records = json_lines(&self.path(run).join("metrics.jsonl"));
        let steps: Vec<u64> = records.iter().map(|record| number(record, "step")).collect();
        assert_eq!(steps, (1..=last).collect::<Vec<_>>());
        for step in 1..=last {
            let rows = json_lines(&self.path(run).join(format!("completions/step-{step}.jsonl")));
            assert_eq!(rows.len(), 4 * generations);
        }
    }
}

/// Lines of the ledger about groups, without groups that were in flight when the run ended.
pub fn groups(lines: &[Value]) -> impl Iterator<Item = &Value> {
    lines
        .iter()
        .filter(|line| line["states"].as_array().is_some_and(|states| states.iter().all(|state| state != "in_flight")))
}

/// A run that ends with its value, also when a test fails.
pub struct Running(Child);

impl Running {
    /// A run whose launcher was started in another way.
    #[must_use]
    pub fn of(launcher: Child) -> Self {
        Self(launcher)
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let halves =
            ["learner", "rollout", "rollout-fleet"].map(|program| processes::children(self.0.id(), program)).concat();
        // If it has ended meanwhile, there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ =
            Command::new("kill").arg("-KILL").args(halves.iter().map(u32::to_string)).stderr(Stdio::null()).status();
    }
}
