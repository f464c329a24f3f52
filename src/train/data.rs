//! The datasets of a run, read before anything starts: the user hears of their faults at once.

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
    /// A line for each file or folder: its format, and the system whose rows it has; another for each oddity.
    pub about: Vec<String>,
}

impl Datasets {
    /// Reads everything that the configuration names; files that cannot be read become problems.
    pub fn read(config: &TrainConfig, problems: &mut Problems) -> Self {
        let columns = Columns {
            prompt: config.prompt_column.clone(),
            answer: config.answer_column.clone(),
            may_lack_prompt: config.environment_factory.is_some(),
        };
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

    /// Reads one and returns the number of its rows; the check of the options deals with an empty path, and a name that
    /// is still unresolved has its own problem already.
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
