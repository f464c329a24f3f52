//! The metric of `metric_for_best_model`: one that evaluations of the run record.

use super::{TrainConfig, rewards::PythonFunction};
use crate::metrics::{self, Key, Metric};

/// Completions of a prompt in an evaluation of a run.
const COMPLETIONS: usize = 1;
/// Prefix that `metric_for_best_model` may leave out, as in transformers.
const PREFIX: &str = "eval_";
/// Most names that a refusal suggests.
const SUGGESTED: usize = 3;

/// The metric by which checkpoints of a run are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BestMetric {
    /// The metric.
    pub metric: Key,
    /// Whether larger values are better.
    pub greater_is_better: bool,
}

impl TrainConfig {
    /// The metric of `metric_for_best_model`, if that is set.
    ///
    /// # Errors
    /// A metric that no evaluation of the run records, with the nearest names; a metric that may be better large or
    /// small, without `greater_is_better`.
    pub fn best_metric(&self) -> Result<Option<BestMetric>, String> {
        let Some(given) = &self.metric_for_best_model else { return Ok(None) };
        let recorded = recorded(self);
        let with_prefix = format!("{PREFIX}{given}");
        let named = |name: &str| recorded.iter().find(|(key, _)| key.as_str() == name);
        let Some((metric, is_score)) = named(given).or_else(|| named(&with_prefix)).cloned() else {
            let names: Vec<&str> = recorded.iter().map(|(key, _)| key.as_str()).collect();
            return Err(format!(
                "`metric_for_best_model`: no evaluation of this run records `{given}`; the nearest names are {}",
                nearest(given, names).join(", ")
            ));
        };
        let Some(greater_is_better) = self.greater_is_better.or(is_score.then_some(true)) else {
            return Err(format!(
                "`metric_for_best_model` {} may be better large or small: set `greater_is_better`",
                metric.as_str()
            ));
        };
        Ok(Some(BestMetric { metric, greater_is_better }))
    }

    /// The names of the metrics that evaluations of the run record.
    #[must_use]
    pub fn evaluation_metrics(&self) -> Vec<String> {
        recorded(self).iter().map(|(key, _)| key.as_str().to_owned()).collect()
    }
}

/// The metrics that evaluations of a run record, and whether each is a score, which is better when it is larger.
fn recorded(config: &TrainConfig) -> Vec<(Key, bool)> {
    let fixed = |metric: &'static Metric| Key::from(metric);
    let mut list = vec![(fixed(metrics::EVAL_REWARD), true), (fixed(metrics::EVAL_ACCURACY), true)];
    for (name, _) in config.weighted_rewards() {
        list.push((metrics::EVAL_REWARDS_MEAN.of(&name), true));
        list.push((metrics::EVAL_REWARDS_FAILED.of(&name), false));
    }
    // A Python file without the name of its function gets that name when the functions are tried.
    let unnamed = |entry: &String| PythonFunction::parse(entry).is_some_and(|python| python.function.is_none());
    if let Some(given) = config.metric_for_best_model.as_deref().filter(|_| config.reward_funcs.iter().any(unnamed)) {
        for (family, is_score) in [(metrics::EVAL_REWARDS_MEAN, true), (metrics::EVAL_REWARDS_FAILED, false)] {
            let of = |key: &str| family.metric().name_in(key).map(|name| (family.of(name), is_score));
            list.extend(of(given).or_else(|| of(&format!("{PREFIX}{given}"))));
        }
    }
    for (family, is_score) in [
        (metrics::AVG, true),
        (metrics::PASS, true),
        (metrics::AVG_CI95_LOW, true),
        (metrics::AVG_CI95_HIGH, true),
        (metrics::PASS_CI95_LOW, true),
        (metrics::PASS_CI95_HIGH, true),
        (metrics::AVG_STDERR, false),
        (metrics::PASS_STDERR, false),
    ] {
        list.push((family.of(COMPLETIONS), is_score));
    }
    let others = [
        metrics::EVAL_PROMPTS,
        metrics::EVAL_SCORED_PROMPTS,
        metrics::EVAL_CORRECT_AT,
        metrics::EVAL_COMPLETIONS_MEAN_LENGTH,
        metrics::EVAL_COMPLETIONS_CLIPPED_RATIO,
        metrics::EVAL_NUM_TOKENS,
        metrics::EVAL_SECONDS,
        metrics::EVAL_TOKENS_PER_S,
    ];
    list.extend(others.map(|metric| (fixed(metric), false)));
    let of_conversations = [
        metrics::EVAL_TOOLS_CALL_FREQUENCY,
        metrics::EVAL_TOOLS_FAILURE_FREQUENCY,
        metrics::EVAL_TURNS_MEAN,
        metrics::EVAL_TURNS_MAX,
        metrics::EVAL_ENVIRONMENT_FAILED,
        metrics::EVAL_ENVIRONMENT_LATE,
    ];
    if config.has_tools() || config.agent.is_some() {
        list.extend(of_conversations.map(|metric| (fixed(metric), false)));
    }
    list
}

/// The names that are most like a given one, with the prefix or without it.
fn nearest<'n>(given: &str, mut names: Vec<&'n str>) -> Vec<&'n str> {
    let likeness = |name: &str| {
        let short = name.strip_prefix(PREFIX).unwrap_or(name);
        let of = |name| strsim::normalized_damerau_levenshtein(name, given);
        of(name).max(of(short))
    };
    names.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    names.truncate(SUGGESTED);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metric that a word names in a run with `accuracy` and another reward function.
    fn of(given: &str, function: &str) -> Result<(String, bool), String> {
        let config = TrainConfig {
            reward_funcs: vec!["accuracy".into(), function.into()],
            metric_for_best_model: Some(given.into()),
            ..TrainConfig::default()
        };
        let found = config.best_metric()?.expect("it is set");
        Ok((found.metric.as_str().to_owned(), found.greater_is_better))
    }

    #[test]
    fn a_metric_is_found_with_its_prefix_or_without_and_others_are_refused_with_the_nearest() {
        for (given, found) in [
            ("eval_reward", "eval_reward"),
            ("accuracy", "eval_accuracy"),
            ("rewards/format/mean", "eval_rewards/format/mean"),
            ("avg@1", "avg@1"),
        ] {
            assert_eq!(of(given, "format").unwrap(), (found.to_owned(), true));
        }
        for (given, words) in [
            ("eval_loss", "records `eval_loss`"),
            ("acuracy", "the nearest names are eval_accuracy, "),
            ("rewards/other/mean", "eval_rewards/format/mean"),
            ("avg@8", "avg@1"),
            ("completions/mean_length", "set `greater_is_better`"),
        ] {
            let refusal = of(given, "format").unwrap_err();
            assert!(refusal.starts_with("`metric_for_best_model`") && refusal.contains(words), "{given}: {refusal}");
        }
        let named_later = of("rewards/other/mean", "mine.py");
        assert_eq!(named_later.unwrap().0, "eval_rewards/other/mean", "the file is not read yet");
        assert_eq!(TrainConfig::default().best_metric().unwrap(), None);
    }
}
