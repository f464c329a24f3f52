//! Greedy evaluation of weight versions on a dataset of its own, between two steps.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Context;
use shared::{
    Completion, FinishReason, GroupId, PolicyVersion, RewardOutcome, RolloutGroup, RunDir, Step,
    config::RewardFailure,
    metrics::{self, Metric, MetricRecord, MetricsFile},
};

use super::assembly::{Assembly, Order};
use crate::{
    data::Dataset,
    engine::{Engine, FinishedSequence},
};

/// How the scores of an evaluation are read.
#[derive(Debug, Clone, Copy)]
pub struct Judging {
    /// The first reward function's score from which a completion counts as correct.
    pub correct_at: f64,
    /// What a reward function that failed does to a completion.
    pub failure: RewardFailure,
}

/// Evaluates every so many versions and appends the figures to `eval.jsonl`.
pub struct Evaluation {
    dataset: Dataset,
    assembly: Assembly,
    judging: Judging,
    every: u64,
    total_steps: u64,
    path: PathBuf,
    file: MetricsFile,
    last: Option<u64>,
    round: Option<Round>,
}

struct Round {
    version: PolicyVersion,
    next_row: usize,
    done: Vec<RolloutGroup>,
    begun: Instant,
    /// The learner has lost the version meanwhile.
    lost: bool,
}

impl Evaluation {
    /// An evaluation every `every` of `total_steps` steps; what `eval.jsonl` already holds of versions up to `newest` is not done again,
    /// later versions are forgotten.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn new(
        run_dir: &RunDir,
        dataset: Dataset,
        assembly: Assembly,
        judging: Judging,
        every: u64,
        total_steps: u64,
        newest: PolicyVersion,
    ) -> anyhow::Result<Self> {
        let path = run_dir.eval();
        let (file, last) = open(&path, newest)?;
        Ok(Self { dataset, assembly, judging, every: every.max(1), total_steps, path, file, last, round: None })
    }

    /// The learner was restarted and makes the versions after `newest` anew: they are evaluated again.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn forget(&mut self, newest: PolicyVersion) -> anyhow::Result<()> {
        (self.file, self.last) = open(&self.path, newest)?;
        if let Some(round) = &mut self.round {
            round.lost |= round.version > newest;
        }
        Ok(())
    }

    /// Whether a version is to be evaluated; see [`due`].
    #[must_use]
    pub fn due(&self, version: PolicyVersion) -> bool {
        due(self.last, version.0, self.every, self.total_steps)
    }

    /// Whether an evaluation is going on.
    #[must_use]
    pub fn active(&self) -> bool {
        self.round.is_some()
    }

    /// Begins the evaluation of the version that the (idle) engine holds.
    pub fn begin(&mut self, version: PolicyVersion) {
        let done = Vec::with_capacity(self.dataset.len());
        self.round = Some(Round { version, next_row: 0, done, begun: Instant::now(), lost: false });
    }

    /// Gives the engine prompts as long as it has room for them.
    ///
    /// # Errors
    /// When the engine refuses one.
    pub fn feed(&mut self, engine: &mut Engine) -> anyhow::Result<()> {
        let Some(round) = &mut self.round else {
            return Ok(());
        };
        while engine.running() + engine.waiting() < engine.options().max_num_seqs {
            let Some(row) = self.dataset.rows().get(round.next_row) else {
                break;
            };
            let id = GroupId { step: Step(round.version.0), index: round.next_row as u32 };
            engine.add_group(self.assembly.begin(Order { id, row, epoch: 0, cursor: 0, num_generations: 1 }))?;
            round.next_row += 1;
        }
        Ok(())
    }

    /// Takes a sequence that has ended.
    ///
    /// # Errors
    /// When it cannot be decoded.
    pub fn add(&mut self, sequence: FinishedSequence) -> anyhow::Result<()> {
        self.assembly.add(sequence)
    }

    /// Takes scored completions; the last one ends the evaluation and appends its record.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn collect(&mut self) -> anyhow::Result<()> {
        let Some(round) = &mut self.round else {
            return Ok(());
        };
        round.done.extend(std::iter::from_fn(|| self.assembly.finished()));
        if round.done.len() < self.dataset.len() {
            return Ok(());
        }
        let mut round = self.round.take().expect("it was just looked at");
        let mut record = figures(round.version, &mut round.done, self.judging);
        record.set(metrics::EVAL_SECONDS, round.begun.elapsed().as_secs_f64());
        if round.lost {
            tracing::info!("the evaluation of v{} is dropped: the learner has lost that version", round.version);
            return Ok(());
        }
        self.file.append(&record).and_then(|()| self.file.sync()).context("eval.jsonl")?;
        self.last = Some(round.version.0);
        let figure = |metric: &'static Metric| record.get(metric).unwrap_or(f64::NAN);
        tracing::info!(
            "evaluation of v{}: reward {:.4}, accuracy {:.4}",
            round.version,
            figure(metrics::EVAL_REWARD),
            figure(metrics::EVAL_ACCURACY)
        );
        Ok(())
    }
}

/// The record of one evaluation, to the last digit the same in whatever order scoring ended; keys are TRL's with its
/// prefix `eval_`.
fn figures(version: PolicyVersion, groups: &mut [RolloutGroup], judging: Judging) -> MetricRecord {
    groups.sort_by_key(|group| group.id);
    let names = groups.first().map(|g| g.reward_names.as_slice()).unwrap_or_default();
    let weights: Vec<f64> = names.iter().map(|(_, weight)| *weight).collect();
    let completions = || groups.iter().flat_map(|g| &g.completions);
    let mut record = MetricRecord::default();
    record.count(metrics::STEP, version.0);
    record.count(metrics::EVAL_PROMPTS, groups.len() as u64);
    let reward = |c: &Completion| judging.failure.reward(&c.rewards, weights.iter().copied());
    record.set(metrics::EVAL_REWARD, mean(completions().filter_map(reward)));
    // Scores are sums of decimal fractions: 4 x 0.2 may fall short of 0.8 by a rounding.
    let correct = |score: f64| f64::from(u8::from(score >= judging.correct_at - 1e-9));
    let first = || completions().filter_map(|c| c.rewards.first()?.score());
    record.set(metrics::EVAL_ACCURACY, mean(first().map(correct)));
    for (index, (name, _)) in names.iter().enumerate() {
        let scores = completions().filter_map(|c| c.rewards.get(index)?.score());
        record.set(metrics::EVAL_REWARDS_MEAN.of(name), mean(scores));
        let failed = completions().filter(|c| c.rewards.get(index).is_some_and(RewardOutcome::has_failed));
        record.count(metrics::EVAL_REWARDS_FAILED.of(name), failed.count() as u64);
    }
    record.set(metrics::EVAL_COMPLETIONS_MEAN_LENGTH, mean(completions().map(|c| c.token_ids.len() as f64)));
    let clipped = |reason| f64::from(u8::from(reason == FinishReason::Length));
    record.set(metrics::EVAL_COMPLETIONS_CLIPPED_RATIO, mean(completions().map(|c| clipped(c.finish_reason))));
    record
}

/// NaN (null in the file) when there is nothing to average.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    sum / count as f64
}

/// The file without versions after `newest`, and the last version in it.
fn open(path: &Path, newest: PolicyVersion) -> anyhow::Result<(MetricsFile, Option<u64>)> {
    let failed = || format!("{}", path.display());
    let file = MetricsFile::open(path, newest.0).with_context(failed)?;
    let records = metrics::read(path).with_context(failed)?;
    Ok((file, records.iter().filter_map(|r| r.get(metrics::STEP)).map(|step| step as u64).max()))
}

/// Whether a version is to be evaluated after the `last` one that was: it is the first, a multiple of the interval was
/// reached since, or the run ends with it.
fn due(last: Option<u64>, version: u64, every: u64, total_steps: u64) -> bool {
    last.is_none_or(|last| version > last && (version / every > last / every || version == total_steps))
}

#[cfg(test)]
mod tests {
    use shared::testing;

    use super::*;

    fn judging(correct_at: f64) -> Judging {
        Judging { correct_at, failure: RewardFailure::Exclude }
    }

    fn group(index: u32, tokens: usize, finish_reason: FinishReason, rewards: Vec<RewardOutcome>) -> RolloutGroup {
        let completion = Completion { finish_reason, rewards, ..testing::completion(0, vec![0; tokens]) };
        RolloutGroup {
            reward_names: vec![("correctness".into(), 1.0), ("format".into(), 0.5)],
            ..testing::group(GroupId { step: Step(3), index }, vec![completion])
        }
    }

    #[test]
    fn the_first_version_every_so_many_and_the_last_are_evaluated() {
        let mut last = None;
        let evaluated: Vec<u64> = (0..=7).filter(|&v| due(last, v, 3, 7) && last.replace(v) != Some(v)).collect();
        assert_eq!(evaluated, [0, 3, 6, 7]);
        assert!(!due(Some(7), 7, 3, 7), "once");
        assert!(due(Some(2), 4, 3, 7) && !due(Some(7), 8, 3, 20) && due(Some(7), 9, 3, 20));
    }

    #[test]
    fn completions_without_a_score_are_left_out_of_the_means() {
        use RewardOutcome::{NotApplicable, Score};
        let mut groups = [
            group(0, 2, FinishReason::Stop, vec![Score(2.0), Score(1.0)]),
            group(1, 4, FinishReason::Length, vec![Score(0.0), NotApplicable]),
            group(2, 6, FinishReason::Stop, vec![RewardOutcome::Failed("late".into()), Score(1.0)]),
        ];
        let record = figures(PolicyVersion(3), &mut groups, judging(1.5));
        for (key, value) in [
            ("step", 3.0),
            ("eval_prompts", 3.0),
            ("eval_reward", 1.25),
            ("eval_accuracy", 0.5),
            ("eval_rewards/correctness/mean", 1.0),
            ("eval_rewards/correctness/failed", 1.0),
            ("eval_rewards/format/mean", 1.0),
            ("eval_completions/mean_length", 4.0),
            ("eval_completions/clipped_ratio", 1.0 / 3.0),
        ] {
            assert_eq!(record.values()[key].as_f64(), Some(value), "{key}");
        }
    }

    #[test]
    fn the_order_in_which_scores_arrive_does_not_show() {
        let of = |index, score| group(index, 2, FinishReason::Stop, vec![RewardOutcome::Score(score)]);
        let reward = |mut groups: [RolloutGroup; 3]| {
            figures(PolicyVersion(3), &mut groups, judging(1.0)).get(metrics::EVAL_REWARD)
        };
        let [a, b, c] = [of(0, 0.1), of(1, 0.2), of(2, 0.3)];
        // A sum of these from the other end has another last digit.
        assert_eq!(reward([c.clone(), b.clone(), a.clone()]), reward([a, b, c]));
    }
}
