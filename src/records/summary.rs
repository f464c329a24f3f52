//! Figures drawn from a run's metric records, for the progress display, the last line and the report.

use shared::metrics::{COMPLETIONS_NUM_TOKENS, Metric, MetricRecord, STEP, STEP_TIME};

/// Mean of a metric over up to `count` records from the start (positive) or the end (negative).
fn mean(records: &[MetricRecord], metric: &'static Metric, count: isize) -> Option<f64> {
    let size = count.unsigned_abs().min(records.len());
    let part = if count >= 0 { &records[..size] } else { &records[records.len() - size..] };
    let values: Vec<f64> = part.iter().filter_map(|r| r.get(metric)).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// A metric at the start and at the end of a run: means over a tenth of the records, five at most, because single steps
/// are noisy.
pub fn first_and_last(records: &[MetricRecord], metric: &'static Metric) -> Option<(f64, f64)> {
    let size = (records.len() / 10).clamp(1, 5).cast_signed();
    Some((mean(records, metric, size)?, mean(records, metric, -size)?))
}

/// Mean of a metric over the newest `count` records.
pub fn recent(records: &[MetricRecord], metric: &'static Metric, count: usize) -> Option<f64> {
    mean(records, metric, -count.cast_signed())
}

/// Completion tokens per second of step time over the records after a step.
pub fn tokens_per_second(records: &[MetricRecord], after_step: u64) -> Option<f64> {
    let counted = || records.iter().filter(|r| r.get(STEP).is_some_and(|s| s > after_step as f64));
    let sum = |metric: &'static Metric| counted().filter_map(|r| r.get(metric)).sum::<f64>();
    let (tokens, seconds) = (sum(COMPLETIONS_NUM_TOKENS), sum(STEP_TIME));
    (tokens > 0.0 && seconds > 0.0).then(|| tokens / seconds)
}

#[cfg(test)]
mod tests {
    use shared::metrics::{KL, REWARD};

    use super::*;

    fn records(values: &[f64]) -> Vec<MetricRecord> {
        let record = |v: &f64| {
            let mut record = MetricRecord::default();
            record.set(REWARD, *v);
            record
        };
        values.iter().map(record).collect()
    }

    #[test]
    fn start_and_end_are_means_of_a_tenth() {
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        assert_eq!(first_and_last(&records(&values), REWARD), Some((0.5, 18.5)));
        assert_eq!(first_and_last(&records(&[3.0]), REWARD), Some((3.0, 3.0)));
        assert_eq!(first_and_last(&records(&[]), REWARD), None);
        assert_eq!(first_and_last(&records(&[1.0]), KL), None);
    }

    #[test]
    fn gaps_are_left_out_of_means() {
        let list = records(&[1.0, f64::NAN, 4.0]);
        assert_eq!(recent(&list, REWARD, 2), Some(4.0));
    }

    #[test]
    fn the_rate_counts_only_steps_of_this_session() {
        let record = |step: u64, tokens: f64| {
            let mut record = MetricRecord::default();
            record.count(STEP, step).set(COMPLETIONS_NUM_TOKENS, tokens).set(STEP_TIME, 2.0);
            record
        };
        let list = [record(1, 1000.0), record(2, 10.0), record(3, 30.0)];
        assert_eq!(tokens_per_second(&list, 1), Some(10.0));
        assert_eq!(tokens_per_second(&list, 3), None);
    }
}
