//! The figures of an evaluation.

use serde_json::{Map, Value};
use shared::{
    FinishReason,
    metrics::{self, MetricRecord},
};

use crate::commands::{
    complete::{Completions, Sample},
    progress::rate,
    rows::Scoring,
};

/// The chance that at least one of `k` completions is correct, estimated without bias from `n` completions of which
/// `correct` are: `1 - C(n - correct, k) / C(n, k)` (Chen et al. 2021, "Evaluating Large Language Models Trained on
/// Code", eq. 1), as the product that does not overflow. `k` is at most `n`.
fn pass_at_k(n: usize, correct: usize, k: usize) -> f64 {
    if n - correct < k {
        return 1.0;
    }
    1.0 - (n - correct + 1..=n).map(|i| 1.0 - k as f64 / i as f64).product::<f64>()
}

/// What an evaluation measures.
///
/// A prompt whose completions could not all be scored by the first function is left out of avg@k and pass@k;
/// `eval_scored_prompts` counts the others.
pub fn figures(completions: &Completions, scoring: &Scoring, correct_at: f64) -> MetricRecord {
    let mut record = MetricRecord::default();
    let k = completions.rows.first().map_or(0, Vec::len);
    let correct: Vec<usize> =
        completions.rows.iter().filter_map(|samples| count_correct(samples, correct_at)).collect();
    record.count(metrics::EVAL_PROMPTS, completions.rows.len() as u64);
    record.count(metrics::EVAL_SCORED_PROMPTS, correct.len() as u64);
    record.set(metrics::EVAL_CORRECT_AT, correct_at);
    record.set(metrics::AVG.of(k), mean(correct.iter().map(|&c| c as f64 / k as f64)));
    for j in powers_of_two_and(k) {
        record.set(metrics::PASS.of(j), mean(correct.iter().map(|&c| pass_at_k(k, c, j))));
    }
    let samples = || completions.rows.iter().flatten();
    record.set(metrics::EVAL_REWARD, mean(samples().filter_map(|s| scoring.reward(&s.rewards))));
    for (index, name) in scoring.names.iter().enumerate() {
        record.set(metrics::EVAL_REWARDS_MEAN.of(name), mean(samples().filter_map(|s| s.rewards[index].score())));
    }
    let cut = |s: &Sample| f64::from(u8::from(s.finish_reason == FinishReason::Length));
    record.set(metrics::EVAL_COMPLETIONS_MEAN_LENGTH, mean(samples().map(|s| s.token_ids.len() as f64)));
    record.set(metrics::EVAL_COMPLETIONS_CLIPPED_RATIO, mean(samples().map(cut)));
    record.count(metrics::EVAL_NUM_TOKENS, completions.tokens);
    record.set(metrics::EVAL_SECONDS, completions.seconds);
    record.set(metrics::EVAL_TOKENS_PER_S, rate(completions.tokens, completions.seconds));
    record
}

/// The figures as an aligned table, a line each.
pub fn table(values: &Map<String, Value>) -> String {
    let width = values.keys().map(String::len).max().unwrap_or(0);
    let line = |(key, value): (&String, &Value)| match value.as_f64() {
        Some(number) if value.is_f64() => format!("{key:width$}  {number:.4}\n"),
        Some(_) => format!("{key:width$}  {value}\n"),
        None => format!("{key:width$}  -\n"),
    };
    values.iter().map(line).collect()
}

/// How many completions of a prompt are correct; `None` if one of them has no score.
fn count_correct(samples: &[Sample], correct_at: f64) -> Option<usize> {
    // Scores are sums of decimal fractions: 4 x 0.2 may fall short of 0.8 by a rounding.
    let correct = |score: f64| score >= correct_at - 1e-9;
    samples
        .iter()
        .map(|s| s.rewards.first()?.score())
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

#[cfg(test)]
mod tests {
    use shared::RewardOutcome;

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

    fn sample(score: RewardOutcome, tokens: usize, finish_reason: FinishReason) -> Sample {
        Sample {
            token_ids: vec![0; tokens],
            logprobs: Vec::new(),
            text: String::new(),
            finish_reason,
            rewards: vec![score],
        }
    }

    #[test]
    fn figures_of_a_small_evaluation() {
        let right = |tokens| sample(RewardOutcome::Score(2.0), tokens, FinishReason::Stop);
        let wrong = |tokens| sample(RewardOutcome::Score(0.0), tokens, FinishReason::Length);
        let completions = Completions {
            rows: vec![
                vec![right(1), wrong(3)],
                vec![wrong(4), wrong(4)],
                vec![sample(RewardOutcome::Failed("late".into()), 2, FinishReason::Stop), right(4)],
            ],
            tokens: 18,
            seconds: 2.0,
        };
        let scoring = Scoring { names: vec!["correctness".into()], weights: vec![0.5] };
        let record = figures(&completions, &scoring, 1.5);
        for (key, value) in [
            ("eval_prompts", 3.0),
            ("eval_scored_prompts", 2.0),
            ("avg@2", 0.25),
            ("pass@1", 0.25),
            ("pass@2", 0.5),
            ("eval_reward", 0.4),
            ("eval_rewards/correctness/mean", 0.8),
            ("eval_completions/mean_length", 3.0),
            ("eval_completions/clipped_ratio", 0.5),
            ("eval_tokens_per_s", 9.0),
        ] {
            let found = record.values()[key].as_f64().unwrap();
            assert!((found - value).abs() < 1e-12, "{key}: {found}");
        }
        let table = table(record.values());
        assert!(table.contains("pass@2                          0.5000\n"), "{table}");
    }
}
