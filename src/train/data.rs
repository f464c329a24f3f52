//! The datasets of a run, read before anything starts: what is wrong with them is said at once.

use std::path::Path;

use anyhow::{Context, Result};
use shared::config::{TrainConfig, hub_name};
use shared_data::{Columns, DataError, Selection};

use super::problems::Problems;

/// The datasets of a run.
#[derive(Debug)]
pub struct Datasets {
    /// Rows to train on.
    pub rows: u64,
    /// A line for each file or folder: what it is, and whose rows it has; another for each oddity.
    pub about: Vec<String>,
}

impl Datasets {
    /// Reads everything that the configuration names; what cannot be read is a problem.
    pub fn read(config: &TrainConfig, problems: &mut Problems) -> Self {
        let columns = Columns { prompt: config.prompt_column.clone(), answer: config.answer_column.clone() };
        let mut datasets = Self { rows: 0, about: Vec::new() };
        for path in config.dataset.iter() {
            let added = datasets.add("dataset", path, config.train_part().into(), &columns);
            datasets.rows += problems.take(added).unwrap_or(0);
        }
        if let Some(path) = &config.eval_dataset {
            problems.take(datasets.add("eval_dataset", path, config.test_part().into(), &columns));
        }
        datasets
    }

    /// Reads one and returns the number of its rows; an empty path is the business of who looks at the options, and a
    /// name that is still one stands beside what is wrong with them.
    fn add(&mut self, option: &str, path: &Path, part: Selection<'_>, columns: &Columns) -> Result<u64> {
        if path.as_os_str().is_empty() || hub_name(path).is_some() {
            return Ok(0);
        }
        let read = || -> Result<_, DataError> {
            let table = shared_data::read(path, part)?;
            Ok((table.describe(columns)?, table.warnings(columns), table.rows.len()))
        };
        let (about, warnings, rows) = read().with_context(|| format!("`{option}`"))?;
        self.about.push(format!("{option} {}: {about}", path.display()));
        self.about.extend(warnings.iter().map(|warning| format!("warning: {option} {}: {warning}", path.display())));
        Ok(rows as u64)
    }
}
