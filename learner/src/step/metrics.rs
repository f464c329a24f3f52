//! The metric record of a step.

use std::collections::BTreeMap;

use shared::{
    Episode, EpisodeEnd, Exchange, FinishReason, Logged, Placed, Provenance,
    config::Choice,
    metrics::{self, Metric, MetricRecord},
};

use super::{BatchRow, Mismatch, StepBatch, StepInputs, StepMetrics};
use crate::{advantage::Moments, ragged::Ragged};

/// All metrics of a step, from its batch and its passes. Keys without a value (no terminated completion, no reward) are
/// null.
#[must_use]
pub fn record(batch: &StepBatch<'_>, inputs: &StepInputs, stats: &StepMetrics) -> MetricRecord {
    let mut record = MetricRecord::default();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    record.set(metrics::LOSS, mean(&stats.losses));
    record.set(metrics::GRAD_NORM, mean(&stats.grad_norms));
    record.set(metrics::LEARNING_RATE, stats.learning_rate);
    record.count(metrics::SKIPPED_UPDATES, stats.skipped_updates);
    rewards(batch, &mut record);
    lengths(batch, &mut record);
    exchanges(batch, &mut record);
    record.set(metrics::ENTROPY, stats.entropy.get());
    if let Some(coef) = stats.entropy_coef {
        record.set(metrics::POLICY_LOSS, mean(&stats.policy_losses)).set(metrics::ENTROPY_COEF, coef);
    }
    stats.measures.record(&mut record);
    record.count(metrics::EARLY_STOPPED_BATCHES, stats.early_stopped);
    record.extend(stats.credit.clone());
    if let Some((kl, coef)) = stats.old_policy {
        record.set(metrics::ACTOR_OLD_POLICY_KL, kl).set(metrics::ACTOR_OLD_POLICY_KL_COEFF, coef);
    }
    for (metric, value) in [
        (metrics::LOAD_BALANCING_LOSS, stats.experts.balance()),
        (metrics::MAX_VIO, stats.experts.violation()),
        (metrics::ROUTER_AGREEMENT, stats.experts.agreement()),
    ] {
        if let Some(value) = value {
            record.set(metric, value);
        }
    }
    mismatch(batch, inputs, stats, &mut record);
    record
        .set(metrics::SAMPLE_STALENESS_MEAN, batch.staleness.iter().sum::<u64>() as f64 / batch.staleness.len() as f64);
    record.count(metrics::SAMPLE_STALENESS_MAX, batch.staleness.iter().copied().max().unwrap_or(0));
    record.count(metrics::SAMPLE_DROPPED_STALE, batch.stale as u64);
    let aborted = batch.rows.iter().filter(|r| r.completion.finish_reason() == FinishReason::Aborted).count();
    record.count(metrics::SAMPLE_ABORTED, aborted as u64);
    record.count(metrics::SAMPLE_REWARD_FAILED, batch.valid().filter(|row| row.excluded).count() as u64);
    let times = &stats.times;
    record.set(metrics::PERF_FWD_BWD_S, times.forward_backward.as_secs_f64());
    record.set(metrics::PERF_OLD_LOGPS_S, times.old_logprobs.as_secs_f64());
    record.set(metrics::PERF_REF_LOGPS_S, times.ref_logprobs.as_secs_f64());
    record.set(metrics::PERF_OPTIMIZER_S, times.optimizer.as_secs_f64());
    record.set(metrics::PERF_GUARD_S, times.guard.as_secs_f64());
    record
}

fn rewards(batch: &StepBatch<'_>, record: &mut MetricRecord) {
    let rewards = &batch.rewards;
    record.set(metrics::REWARD, rewards.reward_mean).set(metrics::REWARD_STD, rewards.reward_std);
    record.set(metrics::FRAC_REWARD_ZERO_STD, rewards.frac_zero_std());
    let mut by_function: BTreeMap<&str, (Vec<Option<f64>>, u64, u64)> = BTreeMap::new();
    for row in batch.valid() {
        for ((name, _), outcome) in row.group.reward_names.iter().zip(&row.completion.rewards) {
            let (scores, failed, abstained) = by_function.entry(name).or_default();
            scores.push(outcome.score());
            *failed += u64::from(outcome.has_failed());
            *abstained += u64::from(!outcome.has_failed() && outcome.score().is_none());
        }
    }
    for (name, (scores, failed, abstained)) in by_function {
        let moments = Moments::of(&scores);
        record.set(metrics::REWARDS_MEAN.of(name), moments.mean).set(metrics::REWARDS_STD.of(name), moments.std);
        record.count(metrics::REWARDS_FAILED.of(name), failed);
        record.count(metrics::REWARDS_ABSTAINED.of(name), abstained);
    }
    for (name, mean) in Logged::means(batch.groups().map(|group| &group.notes.logged)) {
        record.set(metrics::LOGGED.of(name), mean);
    }
}

/// Mean, smallest and largest length of completions.
const LENGTH: [&Metric; 3] =
    [metrics::COMPLETIONS_MEAN_LENGTH, metrics::COMPLETIONS_MIN_LENGTH, metrics::COMPLETIONS_MAX_LENGTH];

/// The same for completions that ended by themselves.
const TERMINATED_LENGTH: [&Metric; 3] = [
    metrics::COMPLETIONS_MEAN_TERMINATED_LENGTH,
    metrics::COMPLETIONS_MIN_TERMINATED_LENGTH,
    metrics::COMPLETIONS_MAX_TERMINATED_LENGTH,
];

fn lengths(batch: &StepBatch<'_>, record: &mut MetricRecord) {
    let of = |keep: &dyn Fn(FinishReason) -> bool| -> Vec<f64> {
        let rows = batch.valid().filter(|row| keep(row.completion.finish_reason()));
        rows.map(|row| row.tokens() as f64).collect()
    };
    let (all, terminated) = (of(&|_| true), of(&|reason| reason == FinishReason::Stop));
    for (values, [mean, min, max]) in [(&all, LENGTH), (&terminated, TERMINATED_LENGTH)] {
        record.set(mean, values.iter().sum::<f64>() / values.len() as f64);
        record.set(min, values.iter().copied().fold(f64::INFINITY, f64::min));
        record.set(max, values.iter().copied().fold(f64::NEG_INFINITY, f64::max));
    }
    record.count(metrics::COMPLETIONS_NUM_TOKENS, all.iter().sum::<f64>() as u64);
    record.set(metrics::COMPLETIONS_CLIPPED_RATIO, 1.0 - terminated.len() as f64 / all.len() as f64);
}

/// What the completions of a run with tools have beside their tokens.
fn exchanges(batch: &StepBatch<'_>, record: &mut MetricRecord) {
    let completions = || batch.rows.iter().map(|row| row.completion);
    let all: Vec<&Exchange> = completions().filter_map(|completion| completion.exchange.as_deref()).collect();
    if all.is_empty() {
        return;
    }
    let episodes = || completions().map(|completion| &completion.episode);
    let turns: Vec<usize> = episodes().map(Episode::turns).collect();
    let (sampled, given) =
        (episodes().map(Episode::sampled).sum::<usize>(), episodes().map(Episode::given).sum::<usize>());
    let sum = |of: fn(&Exchange) -> u32| all.iter().map(|exchange| u64::from(of(exchange))).sum::<u64>();
    let seconds = |of: fn(&Exchange) -> f64| all.iter().map(|exchange| of(exchange)).sum::<f64>();
    let calls = sum(|exchange| exchange.calls);
    record.set(metrics::TOOLS_CALL_FREQUENCY, calls as f64 / all.len() as f64);
    record.set(metrics::TOOLS_FAILURE_FREQUENCY, sum(|exchange| exchange.failed_calls) as f64 / calls as f64);
    record.set(metrics::TURNS_MEAN, turns.iter().sum::<usize>() as f64 / turns.len() as f64);
    record.count(metrics::TURNS_MAX, turns.iter().copied().max().unwrap_or(0) as u64);
    record.set(metrics::TURNS_GIVEN_SHARE, given as f64 / (sampled + given) as f64);
    record.count(metrics::TURNS_RECOMPUTED, sum(|exchange| exchange.recomputed));
    let ended = |end: EpisodeEnd| all.iter().filter(|exchange| exchange.end == end).count() as u64;
    record.count(metrics::ENVIRONMENT_FAILED, ended(EpisodeEnd::EnvironmentFailed));
    record.count(metrics::ENVIRONMENT_LATE, ended(EpisodeEnd::Deadline));
    record.count(metrics::ENVIRONMENT_STRAGGLERS, ended(EpisodeEnd::Straggler));
    let is_drawn_again = |group: &&Placed| group.completions.iter().any(|c| c.provenance == Provenance::DrawnAgain);
    record.count(metrics::ENVIRONMENT_DRAWN_AGAIN, batch.groups().filter(is_drawn_again).count() as u64);
    let waited = seconds(|exchange| exchange.waited_seconds) / seconds(|exchange| exchange.seconds);
    record.set(metrics::ENVIRONMENT_WAIT_SHARE, waited);
    for &end in EpisodeEnd::ALL.iter().filter(|&&end| ended(end) > 0) {
        record.count(metrics::EPISODE_ENDED.of(end), ended(end));
    }
    if all.iter().any(|exchange| exchange.overridden.is_some()) {
        record.count(metrics::ENDPOINT_OVERRIDDEN, sum(|exchange| exchange.overridden.unwrap_or(0)));
        record.count(metrics::ENDPOINT_BRANCHES, episodes().map(|episode| episode.paths().count() as u64 - 1).sum());
    }
}

fn mismatch(batch: &StepBatch<'_>, inputs: &StepInputs, stats: &StepMetrics, record: &mut MetricRecord) {
    let mut mismatch = Mismatch::default();
    inputs.log_ratios().for_each(|log_ratios| mismatch.add(&log_ratios));
    mismatch.record(record);
    if let Some(weights) = &inputs.importance {
        weights.record(record);
    }
    if let Some(sizes) = &stats.support_sizes {
        record.count(metrics::SAMPLING_SUPPORT_MISMATCH, support_mismatch(batch, sizes));
    }
}

/// Number of tokens whose supports differ in size between sampler and learner.
fn support_mismatch(batch: &StepBatch<'_>, support_sizes: &Ragged<u32>) -> u64 {
    let differing = |(row, sizes): (&BatchRow<'_>, &[u32])| {
        row.completion.episode.logprobs().zip(sizes).filter(|(token, size)| token.kept_count != **size).count()
    };
    batch.rows.iter().zip(support_sizes.rows()).map(differing).sum::<usize>() as u64
}
