//! What an evaluation measures: one set of metrics, for `rollout eval` and for `eval.jsonl`.

pub mod paired;

use shared::{
    Completion, FinishReason, RewardOutcome, RolloutGroup,
    config::RewardFailure,
    metrics::{self, MetricRecord},
};

/// How the scores of an evaluation are read.
#[derive(Debug, Clone, Copy)]
pub struct Judging {
    /// The first reward function's score from which a completion counts as correct.
    pub correct_at: f64,
    /// What a reward function that failed does to a completion.
    pub failure: RewardFailure,
}

/// The chance that at least one of `k` completions is correct, estimated without bias from `n` completions of which
/// `correct` are: `1 - C(n - correct, k) / C(n, k)` (Chen et al. 2021, "Evaluating Large Language Models Trained on
/// Code", eq. 1), as the product that does not overflow. `k` is at most `n`.
fn pass_at_k(n: usize, correct: usize, k: usize) -> f64 {
    if n - correct < k {
        return 1.0;
    }
    1.0 - (n - correct + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// What a model made of a dataset in `seconds`. `groups` are in the order of the prompts, so that the last digit does not
/// depend on who was finished first.
///
/// A prompt whose completions could not all be scored by the first function is left out of accuracy, avg@k and pass@k;
/// `eval_scored_prompts` counts the others.
#[must_use]
pub fn record(groups: &[RolloutGroup], judging: Judging, seconds: f64) -> MetricRecord {
    let Judging { correct_at, failure } = judging;
    let mut record = MetricRecord::default();
    let k = groups.first().map_or(0, |group| group.completions.len());
    let names = groups.first().map(|group| group.reward_names.as_slice()).unwrap_or_default();
    let correct: Vec<usize> = groups.iter().filter_map(|group| count_correct(&group.completions, correct_at)).collect();
    let (accuracy, accuracy_error) = mean_and_error(correct.iter().map(|&c| c as f64 / k as f64));
    record.count(metrics::EVAL_PROMPTS, groups.len() as u64);
    record.count(metrics::EVAL_SCORED_PROMPTS, correct.len() as u64);
    record.set(metrics::EVAL_CORRECT_AT, correct_at);
    record.set(metrics::EVAL_ACCURACY, accuracy);
    record.set(metrics::AVG.of(k), accuracy);
    record.set(metrics::AVG_STDERR.of(k), accuracy_error);
    for j in powers_of_two_and(k) {
        let (pass, error) = mean_and_error(correct.iter().map(|&c| pass_at_k(k, c, j)));
        record.set(metrics::PASS.of(j), pass);
        record.set(metrics::PASS_STDERR.of(j), error);
    }
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let weights = || names.iter().map(|(_, weight)| *weight);
    let reward = |c: &Completion| failure.reward(&c.rewards, weights());
    record.set(metrics::EVAL_REWARD, mean(completions().filter_map(reward)));
    for (index, (name, _)) in names.iter().enumerate() {
        let scores = completions().filter_map(|c| c.rewards.get(index)?.score());
        record.set(metrics::EVAL_REWARDS_MEAN.of(name), mean(scores));
        let failed = completions().filter(|c| c.rewards.get(index).is_some_and(RewardOutcome::has_failed));
        record.count(metrics::EVAL_REWARDS_FAILED.of(name), failed.count() as u64);
    }
    let tokens: u64 = completions().map(|c| c.token_ids.len() as u64).sum();
    let cut = |c: &Completion| f64::from(u8::from(c.finish_reason == FinishReason::Length));
    record.set(metrics::EVAL_COMPLETIONS_MEAN_LENGTH, mean(completions().map(|c| c.token_ids.len() as f64)));
    record.set(metrics::EVAL_COMPLETIONS_CLIPPED_RATIO, mean(completions().map(cut)));
    record.count(metrics::EVAL_NUM_TOKENS, tokens);
    record.set(metrics::EVAL_SECONDS, seconds);
    record.set(metrics::EVAL_TOKENS_PER_S, tokens as f64 / seconds);
    record
}

/// How many completions of a prompt are correct; `None` if one of them has no score.
fn count_correct(completions: &[Completion], correct_at: f64) -> Option<usize> {
    // Scores are sums of decimal fractions: 4 x 0.2 may fall short of 0.8 by a rounding.
    let correct = |score: f64| score >= correct_at - 1e-9;
    completions
        .iter()
        .map(|c| c.rewards.first()?.score())
        .try_fold(0, |sum, score| Some(sum + usize::from(correct(score?))))
}

fn powers_of_two_and(k: usize) -> Vec<usize> {
    let mut list: Vec<usize> = std::iter::successors(Some(1), |j| Some(j * 2)).take_while(|&j| j < k).collect();
    list.push(k);
    list
}

/// The mean, NaN (null in JSON) of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

/// The mean and its standard error, one value for each prompt: the completions of a prompt are alike, and count as one
/// observation. NaN where there are too few values.
fn mean_and_error(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let mean = mean(values.clone());
    let (squares, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + (value - mean).powi(2), count + 1.0));
    (mean, (squares / (count - 1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use shared::{GroupId, Step, metrics::Key, testing};

    use super::*;

    #[test]
    fn pass_at_k_is_the_share_of_subsets_with_a_correct_one() {
        for n in 1..=8usize {
            for correct in 0..=n {
                for k in 1..=n {
                    // The first `correct` of n completions are the correct ones.
                    let subsets: Vec<u32> = (0..1u32 << n).filter(|s| s.count_ones() as usize == k).collect();
                    let lucky = subsets.iter().filter(|&&s| s & ((1 << correct) - 1) != 0).count();
                    let expected = lucky as f64 / subsets.len() as f64;
                    assert!((pass_at_k(n, correct, k) - expected).abs() < 1e-12, "{n} {correct} {k}");
                }
            }
        }
        assert!(pass_at_k(10_000, 1, 5_000).is_finite());
    }

    use RewardOutcome::{Failed, NotApplicable, Score};

    fn group(index: u32, completions: Vec<(Vec<RewardOutcome>, usize, FinishReason)>) -> RolloutGroup {
        let completions = completions.into_iter().zip(0..).map(|((rewards, tokens, finish_reason), sample)| {
            Completion { finish_reason, rewards, ..testing::completion(sample, vec![0; tokens]) }
        });
        RolloutGroup {
            reward_names: vec![("correctness".into(), 0.5), ("format".into(), 1.0)],
            ..testing::group(GroupId { step: Step(3), index }, completions.collect())
        }
    }

    #[test]
    fn metrics_of_a_small_evaluation() {
        let right = |tokens| (vec![Score(2.0), NotApplicable], tokens, FinishReason::Stop);
        let wrong = |tokens| (vec![Score(0.0), Score(0.6)], tokens, FinishReason::Length);
        let groups = [
            group(0, vec![right(1), wrong(3)]),
            group(1, vec![wrong(4), wrong(4)]),
            group(2, vec![(vec![Failed("late".into()), NotApplicable], 2, FinishReason::Stop), right(4)]),
        ];
        let record = record(&groups, Judging { correct_at: 1.5, failure: RewardFailure::Exclude }, 2.0);
        let metric = |metric: &'static metrics::Metric| Key::from(metric);
        for (key, value) in [
            (metric(metrics::EVAL_PROMPTS), 3.0),
            (metric(metrics::EVAL_SCORED_PROMPTS), 2.0),
            (metric(metrics::EVAL_ACCURACY), 0.25),
            (metrics::AVG.of(2), 0.25),
            (metrics::PASS.of(1), 0.25),
            (metrics::PASS.of(2), 0.5),
            // Shares of 0.5 and 0 in two prompts, and of 1 and 0.
            (metrics::AVG_STDERR.of(2), 0.25),
            (metrics::PASS_STDERR.of(1), 0.25),
            (metrics::PASS_STDERR.of(2), 0.5),
            (metric(metrics::EVAL_REWARD), 0.76),
            (metrics::EVAL_REWARDS_MEAN.of("correctness"), 0.8),
            (metrics::EVAL_REWARDS_FAILED.of("correctness"), 1.0),
            (metrics::EVAL_REWARDS_MEAN.of("format"), 0.6),
            (metric(metrics::EVAL_COMPLETIONS_MEAN_LENGTH), 3.0),
            (metric(metrics::EVAL_COMPLETIONS_CLIPPED_RATIO), 0.5),
            (metric(metrics::EVAL_NUM_TOKENS), 18.0),
            (metric(metrics::EVAL_TOKENS_PER_S), 9.0),
        ] {
            let found = record.get(key.clone()).unwrap();
            assert!((found - value).abs() < 1e-12, "{}: {found}", key.as_str());
        }
    }
}
