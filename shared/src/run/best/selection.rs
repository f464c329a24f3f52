//! How the options of a run judge its evaluations.

use crate::{
    config::{BestMetric, TrainConfig},
    metrics::{Figure, Key, MetricRecord},
    run::{
        best::{
            Best,
            lost::{is_lost, step_of},
        },
        notices::{Notice, NoticeKind},
    },
};

/// `metric_for_best_model` and the options that go with it.
#[derive(Debug, Clone)]
pub struct Selection {
    metric: Key,
    greater_is_better: bool,
    patience: Option<u64>,
    threshold: f64,
}

/// What the evaluations up to a version say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Standing {
    /// Version and value of the best evaluation, the earliest of equals.
    best: Option<(u64, f64)>,
    /// The best evaluation before the last one, with which the last one was compared.
    to_beat: Option<(u64, f64)>,
    /// Evaluations in a row that were no improvement.
    without_improvement: u64,
}

impl Selection {
    /// That of a run; none without `metric_for_best_model`.
    ///
    /// # Errors
    /// As [`TrainConfig::best_metric`].
    pub fn of(config: &TrainConfig) -> Result<Option<Self>, String> {
        let Some(BestMetric { metric, greater_is_better }) = config.best_metric()? else { return Ok(None) };
        let (patience, threshold) = (config.early_stopping_patience, config.early_stopping_threshold);
        Ok(Some(Self { metric, greater_is_better, patience, threshold }))
    }

    fn is_better(&self, value: f64, than: f64) -> bool {
        if self.greater_is_better { value > than } else { value < than }
    }

    /// Steps and values of the evaluations up to a version, in their order. The starting model is not counted: it has
    /// no checkpoint. Nor is an evaluation of which [too much](is_lost) has failed.
    fn values<'r>(
        &self,
        evaluations: &'r [MetricRecord],
        through: u64,
    ) -> impl Iterator<Item = (u64, Option<f64>)> + 'r {
        let metric = self.metric.clone();
        let is_counted = move |record: &&MetricRecord| (1..=through).contains(&step_of(record)) && !is_lost(record);
        evaluations.iter().filter(is_counted).map(move |record| (step_of(record), record.get(metric.clone())))
    }

    /// What becomes of an evaluation of which too much has failed.
    pub(super) fn of_lost(&self) -> &'static str {
        match self.patience {
            Some(_) => "it makes no best checkpoint, nor counts for `early_stopping_patience`",
            None => "it makes no best checkpoint",
        }
    }

    /// What the evaluations up to a version say, as transformers' `EarlyStoppingCallback` counts: an evaluation is an
    /// improvement if it is better than the best before it by more than `early_stopping_threshold`. An evaluation
    /// without a value is none.
    fn standing(&self, evaluations: &[MetricRecord], through: u64) -> Standing {
        let mut standing = Standing::default();
        for (step, value) in self.values(evaluations, through) {
            let better = value.filter(|value| standing.best.is_none_or(|(_, best)| self.is_better(*value, best)));
            let improved =
                better.is_some_and(|value| standing.best.is_none_or(|(_, best)| (value - best).abs() > self.threshold));
            standing.without_improvement = if improved { 0 } else { standing.without_improvement + 1 };
            standing.to_beat = standing.best;
            standing.best = better.map(|value| (step, value)).or(standing.best);
        }
        standing
    }

    /// The best of the checkpoints that are there (`steps`) by the evaluations of their weights, up to a version.
    #[must_use]
    pub fn best(&self, evaluations: &[MetricRecord], through: u64, steps: &[u64]) -> Option<Best> {
        let mut best: Option<(u64, f64)> = None;
        for (step, value) in self.values(evaluations, through).filter(|(step, _)| steps.contains(step)) {
            let better = value.filter(|value| best.is_none_or(|(_, best)| self.is_better(*value, best)));
            best = better.map(|value| (step, value)).or(best);
        }
        let (metric, greater_is_better) = (self.metric.as_str().to_owned(), self.greater_is_better);
        best.map(|(step, value)| Best { step, metric, value, greater_is_better })
    }

    /// The notice that the run ends after this many of its steps, if `early_stopping_patience` is used up.
    #[must_use]
    pub fn stops(&self, evaluations: &[MetricRecord], step: u64, total_steps: u64) -> Option<Notice> {
        let Standing { to_beat, without_improvement, .. } = self.standing(evaluations, step);
        self.patience.filter(|patience| without_improvement >= *patience)?;
        let metric = self.metric.as_str();
        let margin = if self.threshold > 0.0 { format!(" by more than {}", self.threshold) } else { String::new() };
        let times = match without_improvement {
            1 => "one evaluation".to_owned(),
            several => format!("{several} evaluations"),
        };
        // Within the margin, the last evaluation may be the best one itself. None of those that are counted has beaten
        // the best one before it.
        let than = match to_beat {
            Some((at, value)) => {
                format!("`{metric}` has not got better than {:.4} (step {at}){margin}", Figure(value))
            }
            None => format!("`{metric}` has had no value"),
        };
        Some(Notice::new(
            NoticeKind::StoppedEarly,
            step,
            format!("{than} in {times}, so the run ends after {step} of {total_steps} steps"),
            "a larger `early_stopping_patience` waits longer, and the run can be resumed with it",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics, run::best::lost_evaluations};

    fn selection(change: impl FnOnce(&mut TrainConfig)) -> Selection {
        let mut config = TrainConfig { metric_for_best_model: Some("eval_reward".into()), ..TrainConfig::default() };
        change(&mut config);
        Selection::of(&config).unwrap().unwrap()
    }

    /// Evaluations after every second step, the first one of the starting model.
    fn evaluations(values: &[f64]) -> Vec<MetricRecord> {
        let record = |(step, value): (u64, &f64)| {
            let mut record = MetricRecord::default();
            record.count(metrics::STEP, 2 * step).set(metrics::EVAL_REWARD, *value);
            record
        };
        (0..).zip(values).map(record).collect()
    }

    #[test]
    fn the_best_is_the_earliest_of_equals_among_the_checkpoints_that_are_there() {
        let list = evaluations(&[9.0, 1.0, 3.0, 3.0, 2.0]);
        let larger = selection(|_| ());
        let step = |selection: &Selection, through, steps: &[u64]| {
            selection.best(&list, through, steps).map(|best| (best.step, best.value))
        };
        assert_eq!(step(&larger, 8, &[2, 4, 6, 8]), Some((4, 3.0)));
        assert_eq!(step(&larger, 8, &[2, 6, 8, 9]), Some((6, 3.0)));
        assert_eq!(step(&larger, 2, &[2, 4, 6, 8]), Some((2, 1.0)), "what is to come does not count");
        assert_eq!(step(&larger, 8, &[0]), None, "the starting model is no checkpoint");
        let smaller = selection(|c| c.greater_is_better = Some(false));
        assert_eq!(step(&smaller, 8, &[2, 4, 6, 8]), Some((2, 1.0)));
    }

    #[test]
    fn evaluations_without_improvement_are_counted_as_in_transformers() {
        let counts = |threshold: f64, values: &[f64]| -> Vec<u64> {
            let selection = selection(|c| c.early_stopping_threshold = threshold);
            let list = evaluations(&[&[0.0], values].concat());
            (1..=values.len() as u64).map(|n| selection.standing(&list, 2 * n).without_improvement).collect()
        };
        assert_eq!(counts(0.0, &[1.0, 2.0, 2.0, 1.5, 2.5]), [0, 0, 1, 2, 0]);
        // The best follows small improvements, so that many of them are none.
        assert_eq!(counts(0.5, &[1.0, 1.4, 1.8, 2.2, 2.9]), [0, 1, 2, 3, 0]);
        assert_eq!(counts(0.0, &[f64::NAN, 1.0, f64::NAN]), [1, 0, 1]);
    }

    /// As [`evaluations`], of 200 prompts each, of which so many failed.
    fn with_failures(values: &[(f64, u64)]) -> Vec<MetricRecord> {
        let mut list = evaluations(&values.iter().map(|(value, _)| *value).collect::<Vec<_>>());
        for (record, (_, failed)) in list.iter_mut().zip(values) {
            record.count(metrics::EVAL_PROMPTS, 200).count(metrics::EVAL_FAILED_PROMPTS, *failed);
        }
        list
    }

    #[test]
    fn an_evaluation_of_which_more_than_a_tenth_failed_is_neither_best_nor_counted() {
        let selection = selection(|c| c.early_stopping_patience = Some(1));
        let list = with_failures(&[(0.0, 0), (9.0, 182), (0.5, 0), (9.0, 21), (0.6, 20), (0.6, 0)]);
        let best = |through| selection.best(&list, through, &[2, 4, 6, 8, 10]).map(|best| best.step);
        assert_eq!([2, 4, 6, 8].map(best), [None, Some(4), Some(4), Some(8)]);
        let stops = |step| selection.stops(&list, step, 90).is_some();
        assert_eq!([2, 4, 6, 8, 10].map(stops), [false, false, false, false, true]);
        let told = |through| lost_evaluations(Some(&selection), &list, through);
        assert_eq!(told(10).iter().map(|notice| notice.step).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(told(1), []);
    }

    #[test]
    fn a_run_stops_when_its_patience_is_used_up_and_says_why() {
        let selection = selection(|c| c.early_stopping_patience = Some(2));
        let list = evaluations(&[0.0, 1.0, 0.5, 0.25, 2.0]);
        let stops = |step| selection.stops(&list, step, 90);
        assert!(stops(2).is_none() && stops(4).is_none() && stops(8).is_none());
        let text = stops(6).unwrap().to_string();
        assert_eq!(
            text,
            "step 6: `eval_reward` has not got better than 1.0000 (step 2) in 2 evaluations, so the run ends after 6 \
             of 90 steps; a larger `early_stopping_patience` waits longer, and the run can be resumed with it"
        );
    }

    #[test]
    fn a_run_that_gets_better_by_less_than_the_threshold_is_told_the_value_that_was_not_beaten() {
        let told = |patience, values: &[f64]| {
            let selection = selection(|c| {
                (c.early_stopping_patience, c.early_stopping_threshold) = (Some(patience), 0.2);
            });
            let last = 2 * (values.len() as u64 - 1);
            selection.stops(&evaluations(values), last, 90).unwrap().to_string()
        };
        let text = told(1, &[0.0, 0.4114, 0.5]);
        let words =
            "step 4: `eval_reward` has not got better than 0.4114 (step 2) by more than 0.2 in one evaluation, ";
        assert!(text.starts_with(words), "{text}");
        // The best follows small improvements, and so does what is to be beaten.
        let text = told(2, &[0.0, 0.4, 0.5, 0.65]);
        let words = "has not got better than 0.5000 (step 4) by more than 0.2 in 2 evaluations, ";
        assert!(text.contains(words), "{text}");
        let text = told(1, &[0.0, 0.4, f64::NAN]);
        assert!(text.contains("has not got better than 0.4000 (step 2) by more than 0.2"), "{text}");
    }
}
