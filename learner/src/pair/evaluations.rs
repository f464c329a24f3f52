//! What the evaluations of a run mean for the learner: of which too much has failed, and, with
//! `metric_for_best_model`, which checkpoint is the best one and whether the run ends early.
//!
//! The sampler evaluates a version and appends the result to `eval.jsonl`. With `metric_for_best_model`, the learner
//! waits for that line after a step that is evaluated, before it collects the groups of the next step. So the version,
//! the checkpoint of the step and the result belong together whatever `max_staleness` is, and a decision falls at the
//! same step in every repetition. A synchronous sampler makes no group of the next step before it has evaluated, so the
//! wait takes nothing there. Without that option nothing depends on a result, and the learner looks at each when it is
//! there. The last one comes after its end, and the launcher looks at it.
//!
//! A learner that goes on from a checkpoint judges results up to its own step. There may be results of later versions,
//! which were lost with an earlier process. With `max_staleness`, such a version has other weights when it is made
//! again, and the sampler removes its result once it has heard of the restart. Groups that were on their way may bring
//! the learner to that version before. So a result that was there before its version was made does not count. Without
//! `max_staleness`, the version is made again as it was, and its result counts. If the run was resumed with other
//! options, the sampler is a new one: it removes such results before it hands over its first group.

use std::{fs, time::SystemTime};

use shared::{
    RunDir,
    config::TrainConfig,
    files::atomic,
    metrics::{self, MetricRecord},
    run::{
        best::{self, Best, Selection},
        notices::Notice,
    },
};

use crate::error::LearnerError;

/// The evaluations of a run, as far as the learner needs them.
pub struct Evaluations<'a> {
    run_dir: &'a RunDir,
    /// None without `metric_for_best_model`.
    selection: Option<Selection>,
    /// Steps between evaluations; none in a run that makes none.
    every: Option<u64>,
    /// Whether a version that is made again after a restart has other weights.
    remakes_differ: bool,
    /// What `eval.jsonl` held when it was read last, without `lost`.
    records: Vec<MetricRecord>,
    /// Length and time of the file then.
    read_at: Option<(u64, SystemTime)>,
    /// Results of versions that an earlier process has made and lost.
    lost: Vec<MetricRecord>,
    /// The best of the checkpoints that are there.
    best: Option<Best>,
    /// Whether `best.json` says so, or is not there if there is none.
    is_recorded: bool,
}

impl<'a> Evaluations<'a> {
    /// Those of a run that begins, or goes on after so many steps.
    ///
    /// # Errors
    /// A metric that evaluations do not record; a file that cannot be read.
    pub fn open(run_dir: &'a RunDir, config: &TrainConfig, step: u64) -> Result<Self, LearnerError> {
        let selection = Selection::of(config).map_err(LearnerError::Config)?;
        let mut opened = Self {
            run_dir,
            selection,
            every: config.eval_steps,
            remakes_differ: config.max_staleness > 0,
            records: Vec::new(),
            read_at: None,
            lost: Vec::new(),
            best: None,
            // What an earlier start has recorded may be of other options.
            is_recorded: false,
        };
        if opened.every.is_some() {
            opened.read(step)?;
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
        let Some(every) = self.every else { return Ok(true) };
        // Also after a step that is not evaluated: what is there before the next version is made is not of that one.
        self.read(step)?;
        let is_evaluated = step > 0 && (is_last || step.is_multiple_of(every));
        Ok(self.selection.is_none() || !is_evaluated || self.has(step))
    }

    fn has(&self, step: u64) -> bool {
        self.records.iter().any(|record| record.get(metrics::STEP) == Some(step as f64))
    }

    /// Reads `eval.jsonl`, if it has changed, with the version of this step as the newest that this process has made.
    fn read(&mut self, step: u64) -> Result<(), LearnerError> {
        let path = self.run_dir.eval();
        // What is written between this look and the reading is read again.
        let now = fs::metadata(&path).ok().and_then(|file| Some((file.len(), file.modified().ok()?)));
        if now == self.read_at {
            return Ok(());
        }
        self.records = metrics::read(&path)?;
        self.read_at = now;
        if self.remakes_differ {
            let is_later = |record: &&MetricRecord| record.get(metrics::STEP) > Some(step as f64);
            self.lost.extend(self.records.iter().filter(is_later).cloned());
            // Two evaluations are never equal: each has its duration.
            self.records.retain(|record| !self.lost.contains(record));
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

    /// Has `best.json` name the best checkpoint, if it names another one; without a best checkpoint it is removed.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn record(&mut self) -> Result<(), LearnerError> {
        if self.is_recorded {
            return Ok(());
        }
        match &self.best {
            Some(best) => {
                best.write(self.run_dir)?;
                tracing::info!("the best checkpoint is {best}");
            }
            None => atomic::remove_file(&self.run_dir.best())?,
        }
        self.is_recorded = true;
        Ok(())
    }

    /// The notice that the run ends after a step that is not its last, if it does.
    pub fn stops(&self, step: u64, total_steps: u64) -> Option<Notice> {
        self.selection.as_ref()?.stops(&self.records, step, total_steps)
    }

    /// The notices of evaluations up to a step of which too much has failed. All are named each time: a result may come
    /// while a start has not yet made a step, and may tell nothing.
    pub fn failed(&self, step: u64) -> Vec<Notice> {
        best::lost_evaluations(self.selection.as_ref(), &self.records, step)
    }

    /// Makes the best checkpoint the run's model at its end, or the last one where no evaluation had a value.
    pub fn link_model(&self, step: u64) {
        let chosen = self.best().unwrap_or_else(|| {
            tracing::warn!("no evaluation had a value that counts: the last checkpoint is the run's model");
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

    /// Removes results of versions after `newest`, as the sampler does when it hears of a restart.
    fn forget(run: &RunDir, newest: u64) {
        drop(metrics::MetricsFile::open(&run.eval(), newest).unwrap());
    }

    #[test]
    fn a_result_of_a_version_that_was_lost_does_not_count() {
        let (_dir, run) = run(4);
        for (step, reward) in [(2, 0.5), (4, 0.75)] {
            evaluate(&run, step, reward);
        }
        let config = TrainConfig { max_staleness: 1, ..config() };
        let mut evaluations = Evaluations::open(&run, &config, 2).unwrap();
        // The last evaluation of the lost versions ends after the restart.
        evaluate(&run, 6, 1.0);
        assert!(evaluations.is_known(3, false).unwrap());
        assert!(!evaluations.is_known(4, false).unwrap(), "the sampler has not heard of the restart");
        forget(&run, 2);
        assert!(!evaluations.is_known(4, false).unwrap());
        evaluate(&run, 4, 0.25);
        assert!(evaluations.is_known(4, false).unwrap());
        evaluations.judge(4).unwrap();
        assert_eq!((evaluations.best(), evaluations.stops(4, 9).is_some()), (Some(2), true));
        assert!(!evaluations.is_known(6, false).unwrap());
    }

    #[test]
    fn a_synchronous_learner_takes_a_result_of_a_lost_version_as_long_as_it_is_there() {
        let (_dir, run) = run(4);
        for (step, reward) in [(2, 0.5), (4, 0.75)] {
            evaluate(&run, step, reward);
        }
        let mut evaluations = Evaluations::open(&run, &config(), 2).unwrap();
        assert!(evaluations.is_known(4, false).unwrap(), "the version is made again as it was");
        // A sampler that is new evaluates again: the options may be others.
        forget(&run, 2);
        assert!(!evaluations.is_known(4, false).unwrap());
        evaluate(&run, 4, 0.25);
        assert!(evaluations.is_known(4, false).unwrap());
        evaluations.judge(4).unwrap();
        assert_eq!(evaluations.best(), Some(2));
    }

    #[test]
    fn a_record_that_the_options_no_longer_make_is_removed() {
        let (_dir, run) = run(2);
        evaluate(&run, 2, 0.5);
        let without = TrainConfig { metric_for_best_model: None, early_stopping_patience: None, ..config() };
        let no_value = TrainConfig { metric_for_best_model: Some("accuracy".into()), ..config() };
        for other in [without, no_value] {
            Evaluations::open(&run, &config(), 2).unwrap().record().unwrap();
            let mut evaluations = Evaluations::open(&run, &other, 2).unwrap();
            assert!(run.best().exists(), "a start that has made no step leaves the run as it was");
            evaluations.record().unwrap();
            assert!(!run.best().exists());
        }
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
    fn an_evaluation_of_which_too_much_failed_is_told_of_and_changes_nothing() {
        let (_dir, run) = run(4);
        evaluate(&run, 2, 0.5);
        let line = r#"{"step":4,"eval_reward":1.0,"eval_prompts":200,"eval_failed_prompts":182}"#;
        let mut file = fs::OpenOptions::new().append(true).open(run.eval()).unwrap();
        writeln!(file, "{line}").unwrap();
        let evaluations = Evaluations::open(&run, &config(), 4).unwrap();
        assert_eq!((evaluations.best(), evaluations.stops(4, 9)), (Some(2), None));
        let steps = |step| evaluations.failed(step).iter().map(|notice| notice.step).collect::<Vec<_>>();
        assert_eq!((steps(2), steps(4), steps(5)), (vec![], vec![4], vec![4]));
    }

    #[test]
    fn without_a_metric_to_choose_by_an_evaluation_that_failed_is_told_of_and_none_is_waited_for() {
        let (_dir, run) = run(4);
        let without = TrainConfig { metric_for_best_model: None, early_stopping_patience: None, ..config() };
        let mut evaluations = Evaluations::open(&run, &without, 0).unwrap();
        assert!(evaluations.is_known(2, false).unwrap());
        assert_eq!(evaluations.failed(2), []);
        let line = r#"{"step":2,"eval_reward":1.0,"eval_prompts":200,"eval_failed_prompts":182}"#;
        fs::write(run.eval(), format!("{line}\n")).unwrap();
        assert!(evaluations.is_known(3, false).unwrap());
        let again = Evaluations::open(&run, &without, 3).unwrap();
        for evaluations in [evaluations, again] {
            assert_eq!(evaluations.failed(3).iter().map(|notice| notice.step).collect::<Vec<_>>(), [2]);
            assert_eq!((evaluations.best(), evaluations.stops(3, 9)), (None, None));
        }
        let no_evaluations = TrainConfig { eval_steps: None, ..without };
        let mut evaluations = Evaluations::open(&run, &no_evaluations, 3).unwrap();
        assert!(evaluations.is_known(4, true).unwrap());
        assert_eq!(evaluations.failed(4), [], "the file is of an earlier start");
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
