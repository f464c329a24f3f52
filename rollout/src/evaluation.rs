//! The metrics of an evaluation: one set, for `rollout eval` and for `eval.jsonl`.

pub mod paired;

use std::collections::HashMap;

use rollout_rewards::{Reward, rules::tags};
use shared::{
    Completion, EpisodeEnd, Exchange, RewardOutcome, Scored,
    config::{Choice, RewardFailure},
    metrics::{self, Family, Figure, MetricRecord},
};
use shared_statistics::{interval, mean, mean_and_error};

use crate::{assembly::as_seen, data::PromptRow};

/// The answer that each completion of each prompt names, as the first reward function reads it.
pub type Answers = Vec<Vec<Option<String>>>;

/// How the scores of an evaluation are read.
#[derive(Debug, Clone, Copy)]
pub struct Judging {
    /// The score from which a completion counts as correct, of the first reward function or of an environment.
    pub correct_at: f64,
    /// How a failed reward function affects the reward of a completion.
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

/// The answers of completions; `rows` has the prompt of each group. `None` where the function extracts none.
#[must_use]
pub fn answers(function: &dyn Reward, rows: &[PromptRow], groups: &[Scored]) -> Option<Answers> {
    let extract = function.extract()?;
    let of_group = |(row, group): (&PromptRow, &Scored)| {
        // As the function saw the completions when it scored them.
        let input = row.reward_input(group.completions.iter().map(|completion| as_seen(completion, &row.tokenizer)));
        input.completions.iter().map(|c| extract(&tags::with_opened(&input.prompt, &c.text))).collect()
    };
    Some(rows.iter().zip(groups).map(of_group).collect())
}

/// The completion that represents a prompt's majority: the first one with the most frequent answer. Of equally frequent
/// answers, the one that is named first counts.
fn majority(answers: &[Option<String>]) -> Option<usize> {
    let mut votes: HashMap<&str, (usize, usize)> = HashMap::new();
    for (index, answer) in answers.iter().enumerate() {
        if let Some(answer) = answer {
            votes.entry(answer).or_insert((0, index)).0 += 1;
        }
    }
    votes.into_values().max_by_key(|&(count, first)| (count, std::cmp::Reverse(first))).map(|(_, first)| first)
}

/// A share with its error and the ends of its interval.
struct Share {
    share: &'static Family,
    error: &'static Family,
    low: &'static Family,
    high: &'static Family,
}

impl Share {
    /// `values` has one for each prompt.
    fn set(&self, record: &mut MetricRecord, k: usize, values: &[f64]) {
        let (share, error) = mean_and_error(values.iter().copied());
        let [low, high] = interval::of_share(values);
        for (family, value) in [(self.share, share), (self.error, error), (self.low, low), (self.high, high)] {
            record.set(family.of(k), value);
        }
    }
}

const AVG: Share =
    Share { share: metrics::AVG, error: metrics::AVG_STDERR, low: metrics::AVG_CI95_LOW, high: metrics::AVG_CI95_HIGH };
const PASS: Share = Share {
    share: metrics::PASS,
    error: metrics::PASS_STDERR,
    low: metrics::PASS_CI95_LOW,
    high: metrics::PASS_CI95_HIGH,
};
const MAJ: Share =
    Share { share: metrics::MAJ, error: metrics::MAJ_STDERR, low: metrics::MAJ_CI95_LOW, high: metrics::MAJ_CI95_HIGH };

/// The metrics of a model on a dataset, evaluated in `seconds`. `groups` and `answers` are in the order of the prompts,
/// so that the last digit does not depend on who was finished first. Without `answers` there is no maj@k.
///
/// A prompt of which the first function, or the environment of its row, has failed on a completion or abstained from
/// all is left out of accuracy, avg@k, pass@k and maj@k; `eval_scored_prompts` counts the others.
#[must_use]
pub fn record(groups: &[Scored], answers: Option<&Answers>, judging: Judging, seconds: f64) -> MetricRecord {
    let Judging { correct_at, failure } = judging;
    let mut record = MetricRecord::default();
    let k = groups.first().map_or(0, |group| group.completions.len());
    let names = groups.first().map(|group| group.reward_names.as_slice()).unwrap_or_default();
    let correct: Vec<usize> = groups.iter().filter_map(|group| count_correct(&group.completions, correct_at)).collect();
    let shares: Vec<f64> = correct.iter().map(|&c| c as f64 / k as f64).collect();
    record.count(metrics::EVAL_PROMPTS, groups.len() as u64);
    record.count(metrics::EVAL_SCORED_PROMPTS, correct.len() as u64);
    let failed = failed_prompts(groups, judging);
    if failed > 0 {
        record.count(metrics::EVAL_FAILED_PROMPTS, failed as u64);
    }
    record.set(metrics::EVAL_CORRECT_AT, correct_at);
    record.set(metrics::EVAL_ACCURACY, mean(shares.iter().copied()));
    AVG.set(&mut record, k, &shares);
    for j in powers_of_two_and(k) {
        PASS.set(&mut record, j, &correct.iter().map(|&c| pass_at_k(k, c, j)).collect::<Vec<f64>>());
    }
    if let Some(answers) = answers {
        let voted = |(group, answers): (&Scored, &Vec<Option<String>>)| {
            count_correct(&group.completions, correct_at)?;
            let first = majority(answers).map(|first| &group.completions[first]);
            Some(f64::from(u8::from(first.is_some_and(|c| is_correct(c, correct_at) == Some(true)))))
        };
        MAJ.set(&mut record, k, &groups.iter().zip(answers).filter_map(voted).collect::<Vec<f64>>());
    }
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let weights = || names.iter().map(|(_, weight)| *weight);
    let reward = |c: &Completion| if c.environment_failed() { None } else { failure.reward(&c.rewards, weights()) };
    record.set(metrics::EVAL_REWARD, mean(completions().filter_map(reward)));
    for (index, (name, _)) in names.iter().enumerate() {
        let scores = completions().filter_map(|c| c.rewards.get(index)?.score());
        record.set(metrics::EVAL_REWARDS_MEAN.of(name), mean(scores));
        let failed = completions().filter(|c| c.rewards.get(index).is_some_and(RewardOutcome::has_failed));
        record.count(metrics::EVAL_REWARDS_FAILED.of(name), failed.count() as u64);
    }
    let tokens: u64 = completions().map(|c| c.episode.sampled() as u64).sum();
    let cut = |c: &Completion| f64::from(u8::from(c.episode.is_truncated()));
    record.set(metrics::EVAL_COMPLETIONS_MEAN_LENGTH, mean(completions().map(|c| c.episode.sampled() as f64)));
    record.set(metrics::EVAL_COMPLETIONS_CLIPPED_RATIO, mean(completions().map(cut)));
    record.count(metrics::EVAL_NUM_TOKENS, tokens);
    exchanges(groups, &mut record);
    record.set(metrics::EVAL_SECONDS, seconds);
    record.set(metrics::EVAL_TOKENS_PER_S, tokens as f64 / seconds);
    record
}

/// What conversations with tools have beside their tokens, as the steps of a run count it.
fn exchanges(groups: &[Scored], record: &mut MetricRecord) {
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let all: Vec<&Exchange> = completions().filter_map(|completion| completion.exchange.as_deref()).collect();
    if all.is_empty() {
        return;
    }
    let sum = |of: fn(&Exchange) -> u32| all.iter().map(|exchange| u64::from(of(exchange))).sum::<u64>();
    let calls = sum(|exchange| exchange.calls);
    record.set(metrics::EVAL_TOOLS_CALL_FREQUENCY, calls as f64 / all.len() as f64);
    record.set(metrics::EVAL_TOOLS_FAILURE_FREQUENCY, sum(|exchange| exchange.failed_calls) as f64 / calls as f64);
    let turns = || completions().map(|completion| completion.episode.turns());
    record.set(metrics::EVAL_TURNS_MEAN, mean(turns().map(|turns| turns as f64)));
    record.count(metrics::EVAL_TURNS_MAX, turns().max().unwrap_or(0) as u64);
    let ended = |end: EpisodeEnd| all.iter().filter(|exchange| exchange.end == end).count() as u64;
    record.count(metrics::EVAL_ENVIRONMENT_FAILED, ended(EpisodeEnd::EnvironmentFailed));
    record.count(metrics::EVAL_ENVIRONMENT_LATE, ended(EpisodeEnd::Deadline));
    for &end in EpisodeEnd::ALL.iter().filter(|&&end| ended(end) > 0) {
        record.count(metrics::EVAL_EPISODE_ENDED.of(end), ended(end));
    }
}

/// The share of a prompt's completions that are correct; `None` where [`count_correct`] is.
#[must_use]
pub fn accuracy(group: &Scored, correct_at: f64) -> Option<f64> {
    Some(count_correct(&group.completions, correct_at)? as f64 / group.completions.len() as f64)
}

/// How many completions of a prompt are correct. Where the function has scored some and abstained from others, these
/// are not: it could read the row, and found no answer there that it could call right. `None` if it has abstained from
/// all, or failed on one.
fn count_correct(completions: &[Completion], correct_at: f64) -> Option<usize> {
    let failed = |c: &Completion| c.environment_failed() || judged(c).is_some_and(RewardOutcome::has_failed);
    let is_scored = |c: &Completion| is_correct(c, correct_at).is_some();
    if completions.iter().any(failed) || !completions.iter().any(is_scored) {
        return None;
    }
    Some(completions.iter().filter(|c| is_correct(c, correct_at) == Some(true)).count())
}

/// Remarks on what accuracy says: scores beyond that from which on a completion is correct, where that is a guess, and
/// completions and prompts from which the first function, or the environment of a row, has abstained.
#[must_use]
pub fn remarks(groups: &[Scored], judging: Judging, is_guess: bool) -> Vec<String> {
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let judge = match groups.first().and_then(|group| group.reward_names.first()) {
        Some((name, _)) if completions().any(has_functions) => format!("`{name}`"),
        _ => "the environment".to_owned(),
    };
    let highest = completions().filter_map(|c| judged(c)?.score()).fold(f64::NEG_INFINITY, f64::max);
    let beyond = (is_guess && highest > judging.correct_at + 1e-9).then(|| {
        format!(
            "{judge} gives scores of up to {}, and accuracy counts all from {} on as correct: set another score \
             with --correct-at",
            Figure(highest),
            Figure(judging.correct_at)
        )
    });
    let short = (is_guess && 0.0 < highest && highest < judging.correct_at - 1e-9).then(|| {
        format!(
            "{judge} gives scores of at most {}, and accuracy counts those from {} on as correct: set another score \
             with --correct-at",
            Figure(highest),
            Figure(judging.correct_at)
        )
    });
    let is_counted = |group: &&Scored| count_correct(&group.completions, judging.correct_at).is_some();
    let abstained = |c: &&Completion| judged(c).is_none_or(|outcome| *outcome == RewardOutcome::NotApplicable);
    let counted = groups.iter().filter(is_counted).flat_map(|group| &group.completions).filter(abstained).count();
    let all = |group: &&Scored| group.completions.iter().all(|c| !c.environment_failed() && abstained(&c));
    let left_out = groups.iter().filter(all).count();
    let of_completions = (counted > 0).then(|| {
        format!(
            "of {} completions, the {counted} from which {judge} abstained count as not correct",
            completions().count()
        )
    });
    let of_prompts = (left_out > 0).then(|| {
        format!(
            "of {} prompts, accuracy leaves out the {left_out} from whose completions {judge} abstained altogether",
            groups.len()
        )
    });
    beyond.or(short).into_iter().chain(of_completions).chain(of_prompts).collect()
}

/// Whether a completion is correct; `None` if it has no score.
fn is_correct(completion: &Completion, correct_at: f64) -> Option<bool> {
    // Scores are sums of decimal fractions: 4 x 0.2 may fall short of 0.8 by a rounding.
    Some(judged(completion)?.score()? >= correct_at - 1e-9)
}

/// What says whether a completion is correct: the first reward function, whether or not it has failed; without reward
/// functions the environment of its row. The environments of other rows abstain, so theirs is the one that does not.
fn judged(completion: &Completion) -> Option<&RewardOutcome> {
    if has_functions(completion) {
        return completion.rewards.first();
    }
    completion.rewards.iter().find(|outcome| !matches!(outcome, RewardOutcome::NotApplicable))
}

/// Whether a completion has rewards of functions, before those of environments.
fn has_functions(completion: &Completion) -> bool {
    let of_environments = completion.exchange.as_ref().map_or(0, |exchange| exchange.rewards.len());
    completion.rewards.len() > of_environments
}

/// How many prompts have no completion with score and reward because environments or reward functions failed. A reward
/// that abstains is no failure: it may be meant for other rows.
#[must_use]
pub fn failed_prompts(groups: &[Scored], judging: Judging) -> usize {
    let has_failed = |completion: &Completion| {
        completion.environment_failed()
            || judged(completion).is_some_and(RewardOutcome::has_failed)
            || judging.failure.excludes(&completion.rewards)
    };
    groups.iter().filter(|group| group.completions.iter().all(has_failed)).count()
}

/// Refuses the figures of an evaluation of which failures have left less than half: they are those of the prompts that
/// happened to need nothing of what is broken.
///
/// # Errors
/// More failed prompts than others, with both numbers.
pub fn check_failed(failed: usize, prompts: usize) -> anyhow::Result<()> {
    anyhow::ensure!(2 * failed <= prompts, "{}; the figures are those of the others alone", in_words(failed, prompts));
    Ok(())
}

/// How many prompts have failed, in words.
#[must_use]
pub fn in_words(failed: usize, prompts: usize) -> String {
    format!("{failed} of {prompts} prompts have no score, because an environment or a reward function failed")
}

fn powers_of_two_and(k: usize) -> Vec<usize> {
    let mut list: Vec<usize> = std::iter::successors(Some(1), |j| Some(j * 2)).take_while(|&j| j < k).collect();
    list.push(k);
    list
}

#[cfg(test)]
mod tests {
    use shared::{FinishReason, Group, config::TrainConfig, generation::testing, metrics::Key};

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

    fn group(position: u64, completions: Vec<(Vec<RewardOutcome>, usize, FinishReason)>) -> Scored {
        let completions = completions.into_iter().zip(0..).map(|((rewards, tokens, finish_reason), sample)| {
            let episode = testing::episode(vec![0; tokens], &[(0, 0)], finish_reason);
            Completion { episode, rewards, ..testing::completion(sample, Vec::new()) }
        });
        let reward_names = vec![("correctness".into(), 0.5), ("format".into(), 1.0)];
        Group { reward_names, ..testing::group(position, completions.collect()) }.into()
    }

    #[test]
    fn the_majority_is_the_answer_named_most_and_of_equals_the_first() {
        let found = |answers: &[&str]| {
            let answers: Vec<_> = answers.iter().map(|a| (!a.is_empty()).then(|| (*a).to_owned())).collect();
            majority(&answers)
        };
        assert_eq!(found(&["1", "2", "2"]), Some(1));
        assert_eq!(found(&["", "2", "1", "1", "2"]), Some(1));
        assert_eq!(found(&["", "", "", "3"]), Some(3), "who names nothing has no vote");
        assert_eq!(found(&["", ""]), None);
    }

    /// What `metric_for_best_model` may name.
    #[test]
    fn an_evaluation_of_a_run_records_the_metrics_that_are_expected_of_it() {
        let config =
            TrainConfig { reward_funcs: vec!["correctness".into(), "format".into()], ..TrainConfig::default() };
        let groups = [group(0, vec![(vec![Score(2.0), Score(1.0)], 3, FinishReason::Stop)])];
        let record = record(&groups, None, Judging { correct_at: 1.5, failure: RewardFailure::Exclude }, 2.0);
        let mut expected = config.evaluation_metrics();
        let mut found: Vec<String> = record.values().keys().cloned().collect();
        [&mut expected, &mut found].into_iter().for_each(|names| names.sort());
        assert_eq!(found, expected);
    }

    #[test]
    fn conversations_are_counted_as_in_training_and_the_names_are_those_that_are_expected() {
        let conversation = |calls: u32, failed_calls: u32, end: EpisodeEnd| {
            let exchange = Exchange { calls, failed_calls, ..Exchange::new(&[], end) };
            Completion { exchange: Some(Box::new(exchange)), ..testing::completion(0, vec![1, 2]) }
        };
        let all = [(3, 1, EpisodeEnd::Stop), (0, 0, EpisodeEnd::Deadline), (1, 1, EpisodeEnd::EnvironmentFailed)];
        let completions = all.map(|(calls, failed, end)| conversation(calls, failed, end)).to_vec();
        let groups = [Scored::from(testing::group(0, completions))];
        let mut found = MetricRecord::default();
        exchanges(&groups, &mut found);
        for (metric, value) in [
            (metrics::EVAL_TOOLS_CALL_FREQUENCY, 4.0 / 3.0),
            (metrics::EVAL_TOOLS_FAILURE_FREQUENCY, 0.5),
            (metrics::EVAL_TURNS_MEAN, 1.0),
            (metrics::EVAL_TURNS_MAX, 1.0),
            (metrics::EVAL_ENVIRONMENT_FAILED, 1.0),
            (metrics::EVAL_ENVIRONMENT_LATE, 1.0),
        ] {
            assert_eq!(found.get(metric), Some(value), "{}", metric.key);
        }
        assert_eq!(found.get(metrics::EVAL_EPISODE_ENDED.of(EpisodeEnd::Stop)), Some(1.0));
        let config = TrainConfig { tools: vec!["my_tools.py:add".into()], ..TrainConfig::default() };
        let expected = config.evaluation_metrics();
        let ends = |key: &&String| key.starts_with("eval_episode/ended/");
        let missing: Vec<&String> = found.values().keys().filter(|key| !ends(key) && !expected.contains(key)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// A conversation of a run whose rewards are all of environments, in `columns`.
    fn conversed(sample: u32, end: EpisodeEnd, columns: [RewardOutcome; 2]) -> Completion {
        let exchange = Exchange { rewards: columns.to_vec(), ..Exchange::new(&[], end) };
        let failed = || vec![Failed("gone".into()); 2];
        let rewards = if end.is_failure() { failed() } else { columns.to_vec() };
        Completion { rewards, exchange: Some(Box::new(exchange)), ..testing::completion(sample, vec![1]) }
    }

    fn of_environments(completions: Vec<Completion>) -> Scored {
        let reward_names = vec![("Game".into(), 1.0), ("Maze".into(), 1.0)];
        Group { reward_names, ..testing::group(0, completions) }.into()
    }

    #[test]
    fn each_row_is_judged_by_its_own_environment() {
        let played = |columns| of_environments(vec![conversed(0, EpisodeEnd::Stop, columns)]);
        let groups = [
            played([Score(1.0), NotApplicable]),
            played([NotApplicable, Score(1.0)]),
            played([NotApplicable, Score(0.0)]),
            played([NotApplicable, NotApplicable]),
        ];
        let record = record(&groups, None, Judging { correct_at: 1.0, failure: RewardFailure::Exclude }, 1.0);
        assert_eq!(record.get(metrics::EVAL_SCORED_PROMPTS), Some(3.0), "the last one's environment gave no reward");
        assert_eq!(record.get(metrics::AVG.of(1)), Some(2.0 / 3.0));
        assert_eq!(record.get(metrics::EVAL_FAILED_PROMPTS), None);
    }

    #[test]
    fn a_first_function_that_fails_or_abstains_is_not_replaced_by_the_next_one_or_by_an_environment() {
        let mut completion = conversed(0, EpisodeEnd::Stop, [NotApplicable, Score(1.0)]);
        for first in [Failed("late".into()), NotApplicable] {
            completion.rewards = vec![first, Score(1.0), NotApplicable, Score(1.0)];
            assert_eq!(is_correct(&completion, 1.0), None);
        }
        completion.exchange = None;
        assert_eq!(is_correct(&completion, 1.0), None);
    }

    #[test]
    fn prompts_that_failed_are_told_from_those_of_which_a_reward_abstains() {
        let plain = |outcomes: [RewardOutcome; 2]| group(0, vec![(outcomes.to_vec(), 1, FinishReason::Stop)]);
        let lost = |end| of_environments(vec![conversed(0, end, [NotApplicable, NotApplicable])]);
        let failed = || Failed("late".into());
        for (group, of_exclude, of_zero) in [
            (plain([Score(0.0), NotApplicable]), 0, 0),
            (plain([NotApplicable, Score(1.0)]), 0, 0),
            (plain([failed(), Score(1.0)]), 1, 1),
            // The reward then counts the function as 0.
            (plain([Score(1.0), failed()]), 1, 0),
            (lost(EpisodeEnd::EnvironmentFailed), 1, 1),
            (lost(EpisodeEnd::Deadline), 1, 1),
            (lost(EpisodeEnd::Stop), 0, 0),
        ] {
            let found = |failure| failed_prompts(std::slice::from_ref(&group), Judging { correct_at: 1.0, failure });
            assert_eq!((found(RewardFailure::Exclude), found(RewardFailure::Zero)), (of_exclude, of_zero), "{group:?}");
        }
        let groups = [plain([failed(), failed()]), plain([Score(2.0), Score(1.0)])];
        let record = record(&groups, None, Judging { correct_at: 1.5, failure: RewardFailure::Exclude }, 1.0);
        assert_eq!(record.get(metrics::EVAL_FAILED_PROMPTS), Some(1.0));
    }

    #[test]
    fn figures_of_less_than_half_of_the_prompts_are_refused_with_both_numbers() {
        for (failed, prompts) in [(0, 0), (0, 200), (100, 200)] {
            check_failed(failed, prompts).unwrap();
        }
        let error = check_failed(101, 200).unwrap_err().to_string();
        assert!(error.starts_with("101 of 200 prompts have no score, because an environment or a"), "{error}");
    }

    #[test]
    fn an_abstention_is_no_right_answer_where_another_completion_has_a_score() {
        let scored = |outcome| (vec![outcome, Score(1.0)], 1, FinishReason::Stop);
        let groups = [
            group(0, vec![scored(NotApplicable), scored(Score(2.0))]),
            group(1, vec![scored(NotApplicable), scored(NotApplicable)]),
        ];
        let judging = Judging { correct_at: 1.0, failure: RewardFailure::Exclude };
        let record = record(&groups, None, judging, 1.0);
        assert_eq!(record.get(metrics::EVAL_SCORED_PROMPTS), Some(1.0));
        assert_eq!(record.get(metrics::AVG.of(2)), Some(0.5));
        let told = remarks(&groups, judging, true);
        assert_eq!(
            told,
            [
                "`correctness` gives scores of up to 2, and accuracy counts all from 1 on as correct: set another \
                 score with --correct-at",
                "of 4 completions, the 1 from which `correctness` abstained count as not correct",
                "of 2 prompts, accuracy leaves out the 1 from whose completions `correctness` abstained altogether",
            ]
        );
        assert_eq!(remarks(&groups, judging, false), told[1..]);
        assert_eq!(remarks(&groups, Judging { correct_at: 2.0, ..judging }, true), told[1..]);
        let short = remarks(&groups, Judging { correct_at: 3.0, ..judging }, true);
        assert!(
            short[0].starts_with("`correctness` gives scores of at most 2, and accuracy counts those"),
            "{short:?}"
        );
        let played = of_environments(vec![conversed(0, EpisodeEnd::Stop, [NotApplicable, NotApplicable])]);
        let told = remarks(&[played], judging, true);
        assert!(told.len() == 1 && told[0].contains("completions the environment abstained"), "{told:?}");
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
        // The second prompt's majority is not right, and the third prompt has no figure.
        let answer = |text: &str| Some(text.to_owned());
        let answers = vec![vec![answer("7"), None], vec![answer("8"), answer("8")], vec![None, answer("7")]];
        let record = record(&groups, Some(&answers), Judging { correct_at: 1.5, failure: RewardFailure::Exclude }, 2.0);
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
            (metrics::MAJ.of(2), 0.5),
            (metrics::MAJ_STDERR.of(2), 0.5),
            // Student's t of one degree of freedom reaches beyond both ends.
            (metrics::AVG_CI95_LOW.of(2), 0.0),
            (metrics::AVG_CI95_HIGH.of(2), 1.0),
            // Wilson's interval of one in two.
            (metrics::MAJ_CI95_LOW.of(2), 0.094_531_205_734_230_68),
            (metrics::PASS_CI95_HIGH.of(2), 0.905_468_794_265_769_3),
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
