//! A run of a sweep, as `sweep.json` and the table have it.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use shared::{
    RunDir,
    config::TrainConfig,
    metrics::{self, STEP, STEP_TIME},
    run::{
        best::Best,
        notices::{self, nothing_learned},
    },
};
use toml::Table;

use super::grid::Setting;
use crate::records::summary;

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has not begun.
    Waiting,
    /// It made all of its steps, or ended early because its evaluations no longer improved.
    Finished,
    /// It made all of its steps, and no update had a gradient.
    NothingLearned,
    /// It ended with an error; the same sweep tries it again.
    Failed,
    /// It was asked to end; the same sweep goes on with it.
    Stopped,
}

impl State {
    /// In words, for the table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Finished => "finished",
            Self::NothingLearned => "learned nothing",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    /// Whether the run has its result.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Finished | Self::NothingLearned)
    }
}

/// A run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of its folder in the sweep's folder.
    pub name: String,
    /// The values that it has of the options that vary.
    pub setting: Table,
    /// How it stands.
    pub state: State,
    /// The reason, for a failed run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Completed steps.
    pub steps: u64,
    /// Mean reward of the first steps, and of the last ones.
    pub reward_first: Option<f64>,
    /// See `reward_first`.
    pub reward_last: Option<f64>,
    /// The best checkpoint, with `metric_for_best_model`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Whether settings are compared by `metric_for_best_model`.
    #[serde(skip)]
    pub has_metric: bool,
    /// Seconds of all steps.
    pub seconds: f64,
}

impl Row {
    /// The run in a folder as its records show it, or one that has not begun.
    ///
    /// # Errors
    /// Records that cannot be read.
    pub fn of(name: &str, setting: &Setting, folder: &Path, config: &TrainConfig) -> Result<Self> {
        let dir = RunDir::new(folder);
        let read = |path: &Path| metrics::read(path).with_context(|| path.display().to_string());
        let records = if dir.metrics().exists() { read(&dir.metrics())? } else { Vec::new() };
        let notices = notices::read(&dir.notices()).unwrap_or_default();
        let state = match (dir.finished().exists(), records.is_empty()) {
            (true, _) if nothing_learned(&records, &notices, config).is_some() => State::NothingLearned,
            (true, _) => State::Finished,
            (false, true) => State::Waiting,
            (false, false) => State::Stopped,
        };
        let rewards = summary::first_and_last(&records, metrics::REWARD);
        Ok(Self {
            name: name.to_owned(),
            setting: setting.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect(),
            state,
            error: None,
            steps: records.last().and_then(|record| record.get(STEP)).unwrap_or(0.0) as u64,
            reward_first: rewards.map(|(first, _)| first),
            reward_last: rewards.map(|(_, last)| last),
            best: config.metric_for_best_model.as_ref().map(|_| Best::of(&dir)).transpose()?.flatten(),
            has_metric: config.metric_for_best_model.is_some(),
            // `sum` of no floats is -0.
            seconds: records.iter().filter_map(|record| record.get(STEP_TIME)).fold(0.0, |all, one| all + one),
        })
    }

    /// The figure by which settings are compared, of a run that has its result: the value of the best checkpoint with
    /// `metric_for_best_model`, else the mean reward of the last steps.
    pub fn figure(&self) -> Option<f64> {
        let value = if self.has_metric { self.best.as_ref().map(|best| best.value) } else { self.reward_last };
        value.filter(|value| self.state.is_final() && value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_records_took_no_seconds() {
        let dir = tempfile::tempdir().unwrap();
        let row = Row::of("run-1", &Vec::new(), dir.path(), &TrainConfig::default()).unwrap();
        assert_eq!(format!("{:.0}", row.seconds), "0");
    }
}
