//! The metric record of a step, with TRL's keys.

use std::collections::BTreeMap;

use shared::{FinishReason, RewardOutcome, metrics::MetricRecord};

use super::{Mismatch, Row, StepBatch, TrainedStep};
use crate::{advantage::Moments, ragged::Ragged};

/// Everything that batch and passes say about a step. Keys without a value (no terminated completion, no reward) are
/// null.
#[must_use]
pub fn record(batch: &StepBatch<'_>, step: &TrainedStep) -> MetricRecord {
    let stats = &step.metrics;
    let mut record = MetricRecord::default();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    record.set("loss", mean(&stats.losses));
    record.set("grad_norm", mean(&stats.grad_norms));
    record.set("learning_rate", stats.learning_rate);
    record.count("skipped_updates", stats.skipped_updates);
    rewards(batch, &mut record);
    lengths(batch, &mut record);
    record.set("entropy", stats.entropy.get());
    if let Some(coef) = stats.entropy_coef {
        record.set("policy_loss", mean(&stats.policy_losses)).set("entropy_coef", coef);
    }
    stats.measures.record(&mut record);
    record.count("early_stopped_batches", stats.early_stopped);
    record.extend(stats.credit.clone());
    mismatch(batch, step, &mut record);
    record.set("sample/staleness_mean", batch.staleness.iter().sum::<u64>() as f64 / batch.staleness.len() as f64);
    record.count("sample/staleness_max", batch.staleness.iter().copied().max().unwrap_or(0));
    record.count("sample/dropped_stale", batch.stale as u64);
    let aborted = batch.rows.iter().filter(|r| r.completion.finish_reason == FinishReason::Aborted).count();
    record.count("sample/aborted", aborted as u64);
    let times = &stats.times;
    record.set("perf/fwd_bwd_s", times.forward_backward.as_secs_f64());
    record.set("perf/old_logps_s", times.old_logprobs.as_secs_f64());
    record.set("perf/ref_logps_s", times.ref_logprobs.as_secs_f64());
    record.set("perf/optimizer_s", times.optimizer.as_secs_f64());
    record
}

fn rewards(batch: &StepBatch<'_>, record: &mut MetricRecord) {
    let rewards = &batch.rewards;
    record.set("reward", rewards.reward_mean).set("reward_std", rewards.reward_std);
    record.set("frac_reward_zero_std", rewards.frac_zero_std());
    let mut by_function: BTreeMap<&str, (Vec<Option<f64>>, u64, u64)> = BTreeMap::new();
    for row in batch.valid() {
        for ((name, _), outcome) in row.group.reward_names.iter().zip(&row.completion.rewards) {
            let (scores, failed, abstained) = by_function.entry(name).or_default();
            scores.push(outcome.score());
            let has_failed = matches!(outcome, RewardOutcome::Failed(_));
            *failed += u64::from(has_failed);
            *abstained += u64::from(!has_failed && outcome.score().is_none());
        }
    }
    for (name, (scores, failed, abstained)) in by_function {
        let moments = Moments::of(&scores);
        record.set(format!("rewards/{name}/mean"), moments.mean).set(format!("rewards/{name}/std"), moments.std);
        record.count(format!("rewards/{name}/failed"), failed);
        record.count(format!("rewards/{name}/abstained"), abstained);
    }
}

fn lengths(batch: &StepBatch<'_>, record: &mut MetricRecord) {
    let of = |keep: &dyn Fn(FinishReason) -> bool| -> Vec<f64> {
        let rows = batch.valid().filter(|row| keep(row.completion.finish_reason));
        rows.map(|row| row.completion.token_ids.len() as f64).collect()
    };
    let (all, terminated) = (of(&|_| true), of(&|reason| reason == FinishReason::Stop));
    for (kind, values) in [("length", &all), ("terminated_length", &terminated)] {
        let fold = |start: f64, better: fn(f64, f64) -> f64| values.iter().copied().fold(start, better);
        record.set(format!("completions/mean_{kind}"), values.iter().sum::<f64>() / values.len() as f64);
        record.set(format!("completions/min_{kind}"), fold(f64::INFINITY, f64::min));
        record.set(format!("completions/max_{kind}"), fold(f64::NEG_INFINITY, f64::max));
    }
    record.count("completions/num_tokens", all.iter().sum::<f64>() as u64);
    record.set("completions/clipped_ratio", 1.0 - terminated.len() as f64 / all.len() as f64);
}

fn mismatch(batch: &StepBatch<'_>, step: &TrainedStep, record: &mut MetricRecord) {
    let mut mismatch = Mismatch::default();
    step.inputs.log_ratios().for_each(|log_ratios| mismatch.add(&log_ratios));
    mismatch.record(record);
    if let Some(weights) = &step.inputs.importance {
        weights.record(record);
    }
    if let Some(sizes) = &step.metrics.support_sizes {
        record.count("sampling/kept_set_mismatch", support_mismatch(batch, sizes));
    }
}

/// Tokens of whose distribution sampler and learner have supports of different sizes.
fn support_mismatch(batch: &StepBatch<'_>, support_sizes: &Ragged<u32>) -> u64 {
    let differing = |(row, sizes): (&Row<'_>, &[u32])| {
        row.completion.logprobs.iter().zip(sizes).filter(|(token, size)| token.kept_count != **size).count()
    };
    batch.rows.iter().zip(support_sizes.rows()).map(differing).sum::<usize>() as u64
}
