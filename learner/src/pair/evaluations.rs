//! What the evaluations of a run mean for the learner, with `metric_for_best_model`: which checkpoint is the best one,
//! and whether the run ends early.
//!
//! The sampler evaluates a version and appends the result to `eval.jsonl`. After a step that is evaluated, the learner
//! waits for that line before it collects the groups of the next step. So the version, the checkpoint of the step and
//! the result belong together whatever `max_staleness` is, and a decision falls at the same step in every repetition.
//! A synchronous sampler makes no group of the next step before it has evaluated, so the wait takes nothing there.
//!
//! A learner that goes on from a checkpoint looks at results up to its own step. The sampler removes results of
//! versions with other weights before it hands over the groups from which these versions are made again.

use std::{fs, time::SystemTime};

use shared::{
    RunDir,
    config::TrainConfig,
    metrics::{self, MetricRecord},
    run::{
        best::{Best, Selection},
        notices::Notice,
    },
};

use crate::error::LearnerError;

/// The evaluations of a run, as far as the learner needs them.
pub struct Evaluations<'a> {
    run_dir: &'a RunDir,
    /// None without `metric_for_best_model`.
    selection: Option<Selection>,
    /// Steps between evaluations.
    every: u64,
    /// What `eval.jsonl` held when it was read last.
    records: Vec<MetricRecord>,
    /// Length and time of the file then.
    read_at: Option<(u64, SystemTime)>,
    /// The best of the checkpoints that are there.
    best: Option<Best>,
    /// Whether `best.json` says so.
    is_recorded: bool,
}

impl<'a> Evaluations<'a> {
    /// Those of a run that begins, or goes on after so many steps.
    ///
    /// # Errors
    /// A metric that evaluations do not record; a file that cannot be read.
    pub fn open(run_dir: &'a RunDir, config: &TrainConfig, step: u64) -> Result<Self, LearnerError> {
        let selection = Selection::of(config).map_err(LearnerError::Config)?;
        let every = config.eval_steps.unwrap_or(u64::MAX);
        let mut opened =
            Self { run_dir, selection, every, records: Vec::new(), read_at: None, best: None, is_recorded: true };
        if opened.selection.is_some() {
            opened.read()?;
            opened.judge(step)?;
        }
        Ok(opened)
    }

    /// Step of the best checkpoint, which stays.
    pub fn best(&self) -> Option<u64> {
        self.best.as_ref().map(|best| best.step)
    }

    /// Whether the run may go on after a step: nothing is to be waited for, or the result is there.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn is_known(&mut self, step: u64, is_last: bool) -> Result<bool, LearnerError> {
        let is_evaluated = step > 0 && (is_last || step.is_multiple_of(self.every));
        if self.selection.is_none() || !is_evaluated {
            return Ok(true);
        }
        if !self.has(step) {
            self.read()?;
        }
        Ok(self.has(step))
    }

    fn has(&self, step: u64) -> bool {
        self.records.iter().any(|record| record.get(metrics::STEP) == Some(step as f64))
    }

    /// Reads `eval.jsonl`, if it has changed.
    fn read(&mut self) -> Result<(), LearnerError> {
        let path = self.run_dir.eval();
        // What is written between this look and the reading is read again.
        let now = fs::metadata(&path).ok().and_then(|file| Some((file.len(), file.modified().ok()?)));
        if now != self.read_at {
            self.records = metrics::read(&path)?;
            self.read_at = now;
        }
        Ok(())
    }

    /// Finds the best of the checkpoints that are there, by the evaluations up to a step.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    pub fn judge(&mut self, step: u64) -> Result<(), LearnerError> {
        let Some(selection) = &self.selection else { return Ok(()) };
        let best = selection.best(&self.records, step, &self.run_dir.checkpoints()?);
        self.is_recorded &= best == self.best;
        self.best = best;
        Ok(())
    }

    /// Has `best.json` name the best checkpoint, if it names another one.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn record(&mut self) -> Result<(), LearnerError> {
        if !self.is_recorded
            && let Some(best) = &self.best
        {
            best.write(self.run_dir)?;
            tracing::info!("the best checkpoint is {best}");
        }
        self.is_recorded = true;
        Ok(())
    }

    /// The notice that the run ends after a step that is not its last, if it does.
    pub fn stops(&self, step: u64, total_steps: u64) -> Option<Notice> {
        self.selection.as_ref()?.stops(&self.records, step, total_steps)
    }

    /// Makes the best checkpoint the run's model at its end, or the last one where no evaluation had a value.
    pub fn link_model(&self, step: u64) {
        let chosen = self.best().unwrap_or_else(|| {
            tracing::warn!("no evaluation had a value: the last checkpoint is the run's model");
            step
        });
        if let Err(error) = self.run_dir.link_model(chosen) {
            tracing::warn!("checkpoint-{chosen} is the run's model, and there is no link to it: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn config() -> TrainConfig {
        TrainConfig {
            reward_funcs: vec!["accuracy".into()],
            eval_steps: Some(2),
            metric_for_best_model: Some("reward".into()),
            early_stopping_patience: Some(1),
            ..TrainConfig::default()
        }
    }

    /// A run with checkpoints after every second step up to the last, and the line of an evaluation.
    fn run(last: u64) -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        (2..=last).step_by(2).for_each(|step| fs::create_dir(run.checkpoint(step)).unwrap());
        (dir, run)
    }

    fn evaluate(run: &RunDir, step: u64, reward: f64) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(run.eval()).unwrap();
        writeln!(file, "{{\"step\":{step},\"eval_reward\":{reward}}}").unwrap();
    }

    #[test]
    fn the_result_of_a_step_that_is_evaluated_is_waited_for() {
        let (_dir, run) = run(4);
        let mut evaluations = Evaluations::open(&run, &config(), 0).unwrap();
        let mut known = |step, is_last| evaluations.is_known(step, is_last).unwrap();
        assert!(known(0, false) && known(1, false) && known(3, false));
        assert!(!known(2, false) && !known(3, true));
        evaluate(&run, 2, 0.5);
        assert!(known(2, false) && !known(4, false));
        evaluate(&run, 3, 0.5);
        assert!(known(3, true));
        let without = TrainConfig { metric_for_best_model: None, early_stopping_patience: None, ..config() };
        assert!(Evaluations::open(&run, &without, 0).unwrap().is_known(4, true).unwrap());
    }

    #[test]
    fn the_best_checkpoint_is_recorded_and_a_learner_that_goes_on_knows_what_it_knew() {
        let (_dir, run) = run(6);
        let mut evaluations = Evaluations::open(&run, &config(), 0).unwrap();
        evaluations.record().unwrap();
        assert!(!run.best().exists());
        for (step, reward, best, stops) in [(2, 0.5, 2, false), (4, 0.75, 4, false), (6, 0.25, 4, true)] {
            evaluate(&run, step, reward);
            assert!(evaluations.is_known(step, false).unwrap());
            evaluations.judge(step).unwrap();
            evaluations.record().unwrap();
            let again = Evaluations::open(&run, &config(), step).unwrap();
            for evaluations in [&evaluations, &again] {
                assert_eq!((evaluations.best(), evaluations.stops(step, 9).is_some()), (Some(best), stops), "{step}");
            }
            assert_eq!(Best::of(&run).unwrap().unwrap().step, best);
        }
        let earlier = Evaluations::open(&run, &config(), 2).unwrap();
        assert_eq!((earlier.best(), earlier.stops(2, 9)), (Some(2), None), "later results do not count");
    }

    #[test]
    fn the_model_of_a_run_is_the_best_checkpoint_else_the_last() {
        let (_dir, run) = run(4);
        Evaluations::open(&run, &config(), 4).unwrap().link_model(4);
        assert!(run.model().canonicalize().unwrap().ends_with("checkpoint-4"));
        evaluate(&run, 2, 0.5);
        evaluate(&run, 4, 0.25);
        Evaluations::open(&run, &config(), 4).unwrap().link_model(4);
        assert!(run.model().canonicalize().unwrap().ends_with("checkpoint-2"));
    }
}
