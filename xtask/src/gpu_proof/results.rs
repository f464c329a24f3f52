//! `results.jsonl`: a line for each finished measurement.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::Path,
};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

/// How a measurement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With figures.
    Done,
    /// Its time was up; the figures cover its work until then.
    Cut,
    /// Without figures.
    Failed,
    /// The machine does not have the rival.
    Missing,
    /// Not tried.
    LeftOut,
}

impl Outcome {
    /// As a result names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Cut => "cut",
            Self::Failed => "failed",
            Self::Missing => "missing",
            Self::LeftOut => "left out",
        }
    }
}

/// All results so far, by the name of the measurement.
#[derive(Debug, Default)]
pub struct Results(Map<String, Value>);

impl Results {
    /// Reads a file, which may be missing. A half-written last line is removed.
    ///
    /// # Errors
    /// When it cannot be read, or a line is no result.
    pub fn open(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            read => read.with_context(|| path.display().to_string())?,
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            let file = File::options().write(true).open(path);
            file.and_then(|file| file.set_len(whole as u64)).with_context(|| path.display().to_string())?;
        }
        let mut results = Self::default();
        for line in text[..whole].lines() {
            let result: Value = serde_json::from_str(line).with_context(|| path.display().to_string())?;
            let name = result["name"].as_str().with_context(|| format!("{}: {line} has no `name`", path.display()))?;
            results.0.insert(name.to_owned(), result.clone());
        }
        Ok(results)
    }

    /// Adds a result, to the file first.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, path: &Path, result: Value) -> Result<()> {
        let mut file =
            File::options().create(true).append(true).open(path).with_context(|| path.display().to_string())?;
        file.write_all(format!("{result}\n").as_bytes()).with_context(|| path.display().to_string())?;
        file.sync_data().with_context(|| path.display().to_string())?;
        let name = result["name"].as_str().context("a result has a name")?.to_owned();
        self.0.insert(name, result);
        Ok(())
    }

    /// A result by its name.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A figure of a measurement, if it has figures.
    pub fn figure(&self, name: &str, key: &str) -> Option<f64> {
        self.get(name)?["figures"][key].as_f64()
    }

    /// Whether a measurement has this outcome.
    pub fn is(&self, name: &str, outcome: Outcome) -> bool {
        self.get(name).is_some_and(|result| result["outcome"] == outcome.name())
    }

    /// All results, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// Seconds that a part has taken.
    pub fn seconds(&self, part: &str) -> f64 {
        self.iter().filter(|result| result["part"] == part).filter_map(|result| result["seconds"].as_f64()).sum()
    }
}

/// A result without figures.
pub fn without_figures(part: &str, name: &str, outcome: Outcome, reason: &str) -> Value {
    json!({"part": part, "name": name, "outcome": outcome.name(), "reason": reason})
}
