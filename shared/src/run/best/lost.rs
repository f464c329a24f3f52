//! Evaluations of which too much has failed.

use super::Selection;
use crate::{
    metrics::{self, MetricRecord},
    run::notices::{Notice, NoticeKind},
};

/// Share of its prompts from which on failures make an evaluation worthless: what is left are the prompts that needed
/// nothing of what is broken, and their figures say nothing about the others.
const FAILED_SHARE: f64 = 0.1;

/// The version of which an evaluation is.
pub(super) fn step_of(record: &MetricRecord) -> u64 {
    record.get(metrics::STEP).map_or(0, |step| step as u64)
}

/// The prompts of an evaluation that failed, and all of them, where these are too many.
fn failed(record: &MetricRecord) -> Option<(f64, f64)> {
    let prompts = record.get(metrics::EVAL_FAILED_PROMPTS).zip(record.get(metrics::EVAL_PROMPTS));
    prompts.filter(|(failed, all)| *failed > FAILED_SHARE * all)
}

/// Whether too much of an evaluation has failed.
pub(super) fn is_lost(record: &MetricRecord) -> bool {
    failed(record).is_some()
}

/// The notices of evaluations up to a version of which too much has failed. A run with `metric_for_best_model` has a
/// selection, in which they do not count.
#[must_use]
pub fn lost_evaluations(selection: Option<&Selection>, evaluations: &[MetricRecord], through: u64) -> Vec<Notice> {
    let made = evaluations.iter().filter(|record| step_of(record) <= through);
    made.filter_map(|record| notice(selection, record)).collect()
}

fn notice(selection: Option<&Selection>, record: &MetricRecord) -> Option<Notice> {
    let step = step_of(record);
    let (prompts_failed, prompts) = failed(record)?;
    let count = |metric| record.get(metric).unwrap_or(0.0);
    let lost = count(metrics::EVAL_ENVIRONMENT_FAILED) + count(metrics::EVAL_ENVIRONMENT_LATE);
    // A conversation without its environment has failed by every function, none of which was asked.
    let of_function = |(name, failures): (&str, Option<f64>)| {
        let own = failures.filter(|failures| *failures > lost)? - lost;
        Some(format!("reward function `{name}` failed on {own} completions"))
    };
    let of_environments = (lost > 0.0).then(|| format!("{lost} conversations lost their environment"));
    let reasons: Vec<String> = of_environments
        .into_iter()
        .chain(record.family(metrics::EVAL_REWARDS_FAILED).filter_map(of_function))
        .collect();
    let which = if step == 0 { "the starting model".to_owned() } else { format!("step {step}") };
    // The starting model is none to choose in any case.
    let so = selection.filter(|_| step > 0).map_or("its figures say nothing about these", Selection::of_lost);
    Some(Notice::new(
        NoticeKind::EvaluationLost,
        step,
        format!(
            "in the evaluation of {which}, {prompts_failed} of {prompts} prompts have no score because something \
             failed ({}), so {so}",
            reasons.join(", ")
        ),
        "logs/rollout.log has the reasons; correct what failed, or give it more time",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    fn selection(change: impl FnOnce(&mut TrainConfig)) -> Selection {
        let mut config = TrainConfig { metric_for_best_model: Some("eval_reward".into()), ..TrainConfig::default() };
        change(&mut config);
        Selection::of(&config).unwrap().unwrap()
    }

    /// The evaluation of a version with 200 prompts.
    fn evaluation(step: u64, failed: u64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.count(metrics::STEP, step).count(metrics::EVAL_PROMPTS, 200);
        record.count(metrics::EVAL_FAILED_PROMPTS, failed);
        record
    }

    #[test]
    fn each_evaluation_of_which_more_than_a_tenth_failed_is_told_once_in_every_run() {
        let list = [evaluation(0, 200), evaluation(2, 20), evaluation(4, 21), evaluation(6, 182), evaluation(8, 200)];
        let chosen = selection(|_| ());
        for selection in [None, Some(&chosen)] {
            let told = lost_evaluations(selection, &list, 6);
            assert_eq!(told.iter().map(|notice| notice.step).collect::<Vec<_>>(), [0, 4, 6]);
            assert!(told.iter().all(|notice| notice.kind == NoticeKind::EvaluationLost && notice.subject.is_none()));
            assert!(!told[1].repeats(&told[2]), "each is told");
            let again = Notice { text: "the same evaluation, made again".into(), ..told[1].clone() };
            assert!(again.repeats(&told[1]), "none is told twice");
        }
        let told = lost_evaluations(None, &list, 4);
        let words = ["in the evaluation of the starting model, 200 of 200 ", "in the evaluation of step 4, 21 of 200 "];
        for (notice, words) in told.iter().zip(words) {
            assert!(notice.text.starts_with(words), "{}", notice.text);
            assert!(notice.text.ends_with(", so its figures say nothing about these"), "{}", notice.text);
        }
    }

    #[test]
    fn what_failed_in_an_evaluation_is_told_with_its_figures() {
        let mut record = evaluation(2, 182);
        record.count(metrics::EVAL_ENVIRONMENT_FAILED, 180).count(metrics::EVAL_ENVIRONMENT_LATE, 1);
        for (name, failed) in [("judge", 182), ("format", 181)] {
            record.count(metrics::EVAL_REWARDS_FAILED.of(name), failed);
        }
        let told = |selection: &Selection| notice(Some(selection), &record).unwrap();
        let text = "in the evaluation of step 2, 182 of 200 prompts have no score because something failed (181 \
                    conversations lost their environment, reward function `judge` failed on 1 completions), so it \
                    makes no best checkpoint";
        assert_eq!(told(&selection(|_| ())).text, text);
        let patient = told(&selection(|c| c.early_stopping_patience = Some(1))).text;
        assert_eq!(patient, format!("{text}, nor counts for `early_stopping_patience`"));
    }
}
