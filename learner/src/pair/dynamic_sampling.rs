//! The account of dynamic sampling: what was made for a step, and what became of it.

use shared::{
    Dropped, Placed,
    config::TrainConfig,
    metrics::{self, MetricRecord},
};

use crate::step::StepBatch;

/// What dynamic sampling did for the batch of a step, in groups; empty without it. `step` is the number of steps
/// completed with it.
///
/// `generated` are all prompts that were used up for the step: each is `used`, `dropped` or `dropped_stale`. Of those
/// used, `carried` were made under an earlier version of the weights, and `filler` have no contrast.
#[must_use]
pub fn record(batch: &StepBatch<'_>, config: &TrainConfig, step: u64) -> MetricRecord {
    let mut record = MetricRecord::default();
    if !config.dynamic_sampling {
        return record;
    }
    let groups: Vec<&Placed> = batch.groups().collect();
    let dropped = || groups.iter().flat_map(|group| &group.dropped);
    let count = |flag: fn(&&Dropped) -> bool| dropped().filter(flag).count() as u64;
    let begin = groups.first().map_or(0, |group| group.begin());
    let generated = batch.cursor() - begin;
    let filler = groups.iter().filter(|group| group.filler).count() as u64;
    let tokens: u64 = dropped().map(|group| group.sampled_tokens()).sum();
    let unused = dropped().filter(|group| !group.stale);
    let rewards: Vec<f64> = unused.filter_map(|group| group.mean_reward(config.reward_failure)).collect();
    record.count(metrics::DYNAMIC_SAMPLING_GENERATED, generated);
    record.count(metrics::DYNAMIC_SAMPLING_USED, groups.len() as u64);
    record.count(metrics::DYNAMIC_SAMPLING_CARRIED, batch.staleness.iter().filter(|age| **age > 0).count() as u64);
    record.count(metrics::DYNAMIC_SAMPLING_DROPPED, count(|group| !group.stale));
    record.count(metrics::DYNAMIC_SAMPLING_DROPPED_STALE, count(|group| group.stale));
    record.count(metrics::DYNAMIC_SAMPLING_FILLER, filler);
    record.count(metrics::DYNAMIC_SAMPLING_DROPPED_TOKENS, tokens);
    record.set(metrics::DYNAMIC_SAMPLING_DROPPED_REWARD_MEAN, rewards.iter().sum::<f64>() / rewards.len() as f64);
    if filler > 0 {
        tracing::warn!(
            "step {step}: dynamic sampling has tried {generated} prompts (`dynamic_sampling_max_attempts` {}), and \
             {filler} of the {} groups trained on are still without contrast: their completions are all right or all \
             wrong, or all earn the same; are the prompts far too hard or too easy, or is a reward function constant?",
            config.dynamic_sampling_max_attempts,
            groups.len()
        );
    }
    record
}

#[cfg(test)]
mod tests {
    use shared::{
        Completion, FinishReason, Group, GroupId, PolicyVersion, RewardOutcome, Step, generation::testing,
        metrics::MetricRecord,
    };

    use super::*;

    fn group(index: u32, cursor: u64, version: u64, filler: bool, dropped: Vec<Dropped>) -> Placed {
        let completion = |sample| Completion {
            episode: testing::episode(vec![1], &[(0, version)], FinishReason::Stop),
            rewards: vec![RewardOutcome::Score(f64::from(sample))],
            ..testing::completion(sample, Vec::new())
        };
        let scored = named(testing::group(cursor - 1, (0..2).map(completion).collect())).into();
        Placed { id: GroupId { step: Step(4), index }, scored, dropped, filler }
    }

    fn named(group: Group) -> Group {
        Group { reward_names: vec![("a".into(), 1.0)], ..group }
    }

    /// One of ten tokens.
    fn dropped(reward: Option<f64>, stale: bool) -> Dropped {
        let rewards = vec![reward.map_or(RewardOutcome::NotApplicable, RewardOutcome::Score)];
        let completion = Completion { rewards, ..testing::completion(0, vec![1; 10]) };
        Dropped { scored: named(testing::group(0, vec![completion])).into(), stale }
    }

    fn config(dynamic_sampling: bool) -> TrainConfig {
        TrainConfig { dynamic_sampling, num_generations: 2, max_staleness: 1, ..TrainConfig::default() }
    }

    fn account(config: &TrainConfig) -> MetricRecord {
        let groups = [
            group(0, 22, 3, false, vec![dropped(Some(1.0), false)]),
            group(1, 23, 4, false, Vec::new()),
            group(2, 27, 4, true, vec![dropped(Some(0.0), false), dropped(None, false), dropped(Some(9.0), true)]),
        ];
        record(&StepBatch::new(&groups, config, PolicyVersion(4)), config, 5)
    }

    #[test]
    fn everything_made_is_used_or_dropped() {
        let found = account(&config(true));
        for (key, value) in [
            ("generated", 7.0),
            ("used", 3.0),
            ("carried", 1.0),
            ("dropped", 3.0),
            ("dropped_stale", 1.0),
            ("filler", 1.0),
            ("dropped_tokens", 40.0),
            ("dropped_reward_mean", 0.5),
        ] {
            assert_eq!(found.values()[&format!("dynamic_sampling/{key}")].as_f64(), Some(value), "{key}");
        }
        assert_eq!(account(&config(false)), MetricRecord::default());
    }
}
