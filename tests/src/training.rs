//! A short run of the pair through `tandem train`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    binary,
    cli::{self, Finished},
};

/// A finished run.
#[derive(Debug)]
pub struct Training {
    /// Its run directory.
    pub run: PathBuf,
    /// The records of `metrics.jsonl`, one per step.
    pub metrics: Vec<Value>,
}

/// Runs `tandem train` on a configuration that names no `output_dir`; the run is written to `dir`/`name`.
///
/// # Panics
/// When the run fails.
#[must_use]
pub fn train(dir: &Path, name: &str, config: &str) -> Training {
    let (run, finished) = start(dir, name, config);
    let _ = finished.success();
    Training { metrics: json_lines(&run.join("metrics.jsonl")), run }
}

/// As [`train`], for a run from which nothing can be learned.
///
/// # Panics
/// When the run ends in any other way than with that error.
#[must_use]
pub fn train_in_vain(dir: &Path, name: &str, config: &str) -> Training {
    let (run, finished) = start(dir, name, config);
    assert_eq!(finished.status.code(), Some(4), "{}", finished.stderr);
    assert!(finished.stderr.contains("\nerror: nothing was learned"), "{}", finished.stderr);
    Training { metrics: json_lines(&run.join("metrics.jsonl")), run }
}

fn start(dir: &Path, name: &str, config: &str) -> (PathBuf, Finished) {
    let run = dir.join(name);
    let file = dir.join(format!("{name}.toml"));
    fs::write(&file, format!("output_dir = {run:?}\n{config}")).expect("a configuration can be written");
    let mut command = Command::new(binary("tandem"));
    command.arg("train").arg(&file).env("TANDEM_CACHE_DIR", dir.join("cache"));
    (run, cli::finish(command))
}

impl Training {
    /// One metric over the steps.
    ///
    /// # Panics
    /// When a step lacks it.
    #[must_use]
    pub fn curve(&self, key: &str) -> Vec<f64> {
        let value = |record: &Value| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"));
        self.metrics.iter().map(value).collect()
    }

    /// A file of the checkpoint after the last step.
    ///
    /// # Panics
    /// When it is missing.
    #[must_use]
    pub fn checkpoint(&self, file: &str) -> Vec<u8> {
        let path = self.run.join(format!("checkpoint-{}", self.metrics.len())).join(file);
        fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }
}

/// Every line of a file, parsed.
///
/// # Panics
/// When the file is missing or a line is no JSON.
#[must_use]
pub fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}
