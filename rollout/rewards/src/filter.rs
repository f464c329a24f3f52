//! The test by which dynamic sampling keeps a group.

use shared::{Contrast, config::rewards::short_name};

use super::{Registry, RewardFunction, registry::seems_to_judge};

/// The value of `filter_groups_metric` that means the weighted sum of all functions.
const SUM: &str = "reward";

/// The test of whether a group teaches something. DAPO (arXiv:2503.14476, eq. 11) keeps a group when some of its
/// completions are right, but not all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterMetric {
    /// A function that judges answers, by its index: some completions are right, and some are not.
    Judge(usize),
    /// Another function, by its index: its scores differ.
    Scores(usize),
    /// A function in Python whose name says that it judges answers, by its index. Which score means right is not known,
    /// so its scores must differ. For a function with only two scores, that is the same test.
    SeemingJudge(usize),
    /// The rewards from which advantages are computed differ.
    Sum,
}

impl FilterMetric {
    /// The metric that `filter_groups_metric` names among the reward functions. Without a name, it is the first
    /// function that judges answers, else the first in Python whose name says so, else the sum. Where rewards are given
    /// to steps (as `of_sum`, the test of the rewards, says), it is the sum: equal answers with different steps teach
    /// something then.
    ///
    /// # Errors
    /// When no function has that name.
    pub fn choose(name: Option<&str>, functions: &[String], of_sum: Contrast) -> Result<Self, String> {
        let judges = |spec: &String| Registry::default().judges(spec);
        match name {
            Some(SUM) => Ok(Self::Sum),
            None if of_sum == Contrast::Steps => Ok(Self::Sum),
            Some(name) => {
                let index =
                    functions.iter().position(|spec| spec == name || short_name(spec) == name).ok_or_else(|| {
                        let known: Vec<&str> = functions.iter().map(String::as_str).chain([SUM]).collect();
                        format!("`{name}` is none of the reward functions; there are {}", known.join(", "))
                    })?;
                Ok(if judges(&functions[index]) { Self::Judge(index) } else { Self::Scores(index) })
            }
            None => {
                let seems = |spec: &String| seems_to_judge(spec);
                let judge = functions.iter().position(judges).map(Self::Judge);
                let seeming = || functions.iter().position(seems).map(Self::SeemingJudge);
                Ok(judge.or_else(seeming).unwrap_or(Self::Sum))
            }
        }
    }

    /// The test of a group by this metric; `of_sum` is the test of the rewards.
    #[must_use]
    pub fn contrast(self, functions: &[RewardFunction], of_sum: Contrast) -> Contrast {
        match self {
            Self::Judge(function) => Contrast::Correct { function, at: functions[function].reward().correct_at() },
            Self::Scores(function) | Self::SeemingJudge(function) => Contrast::Function(function),
            Self::Sum => of_sum,
        }
    }

    /// Which groups are kept, in words.
    #[must_use]
    pub fn describe(self, functions: &[String]) -> String {
        match self {
            Self::Judge(index) => format!("groups with some but not all completions right by `{}`", functions[index]),
            Self::Scores(index) => format!("groups whose scores by `{}` differ", functions[index]),
            Self::SeemingJudge(index) => format!(
                "groups whose scores by `{}` differ, since its name says that it judges answers; \
                 `filter_groups_metric` names another function, or `{SUM}`",
                functions[index]
            ),
            Self::Sum => "groups whose rewards differ".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(metric: Option<&str>, functions: &[&str]) -> Result<FilterMetric, String> {
        let functions: Vec<String> = functions.iter().map(|name| (*name).to_owned()).collect();
        FilterMetric::choose(metric, &functions, Contrast::Total)
    }

    #[test]
    fn the_first_function_that_judges_answers_decides_unless_another_one_is_named() {
        let functions = ["format", "correctness", "gsm8k"];
        let of = |metric| choose(metric, &functions).unwrap();
        assert_eq!(of(None), FilterMetric::Judge(1));
        assert_eq!(of(Some("gsm8k")), FilterMetric::Judge(2));
        assert_eq!(of(Some("format")), FilterMetric::Scores(0));
        assert_eq!(of(Some("reward")), FilterMetric::Sum);
        assert_eq!(choose(None, &["format", "finished", "command:run=x"]), Ok(FilterMetric::Sum));
    }

    #[test]
    fn a_function_in_python_decides_by_its_name_where_no_rule_judges() {
        let functions = ["r.py:format_reward", "trl.rewards.accuracy_reward"];
        let found = choose(None, &functions).unwrap();
        assert_eq!(found, FilterMetric::SeemingJudge(1));
        let words = found.describe(&functions.map(str::to_owned));
        assert!(words.contains("`trl.rewards.accuracy_reward`") && words.contains("filter_groups_metric"), "{words}");
        assert_eq!(choose(Some("reward"), &functions), Ok(FilterMetric::Sum));
        assert_eq!(choose(Some("accuracy_reward"), &functions), Ok(FilterMetric::Scores(1)));
        assert_eq!(choose(None, &["r.py:is_correct", "gsm8k"]), Ok(FilterMetric::Judge(1)));
        assert_eq!(choose(None, &["r.py:close", "r.py:correct_format"]), Ok(FilterMetric::Sum));
    }

    #[test]
    fn where_steps_are_rewarded_equal_answers_are_no_reason_to_drop_a_group() {
        let functions = ["correctness", "format", "step_arithmetic"].map(str::to_owned);
        let of = |name| FilterMetric::choose(name, &functions, Contrast::Steps);
        assert_eq!(of(None), Ok(FilterMetric::Sum));
        assert_eq!(of(Some("correctness")), Ok(FilterMetric::Judge(0)));
    }

    #[test]
    fn a_function_is_named_with_or_without_its_parameters() {
        let functions = ["finished", "sentence_share:word=dog", "accuracy_reward"];
        for name in ["sentence_share", "sentence_share:word=dog"] {
            assert_eq!(choose(Some(name), &functions), Ok(FilterMetric::Scores(1)));
        }
        assert_eq!(choose(None, &functions), Ok(FilterMetric::Judge(2)));
        let error = choose(Some("acuracy"), &functions).unwrap_err();
        assert!(error.contains("`acuracy`") && error.contains("finished, sentence_share:word=dog"), "{error}");
    }

    #[test]
    fn right_is_what_the_function_calls_right() {
        let specs = ["correctness".to_owned(), "format".to_owned()];
        let functions = Registry::default().functions(&specs).unwrap();
        let of = |metric: FilterMetric| metric.contrast(&functions, Contrast::Steps);
        assert_eq!(of(FilterMetric::Judge(0)), Contrast::Correct { function: 0, at: 1.5 });
        assert_eq!(of(FilterMetric::Scores(1)), Contrast::Function(1));
        assert_eq!(of(FilterMetric::Sum), Contrast::Steps);
    }
}
