//! From the values of tokens to the metrics of a step.

use std::collections::BTreeMap;

use shared::{methods::LossMetric, metrics::MetricRecord};

/// Mean, and smallest and largest mean of a completion.
#[derive(Debug, Clone, Copy)]
struct Summary {
    metric: LossMetric,
    sum: f64,
    count: f64,
    smallest: f64,
    largest: f64,
}

impl Summary {
    fn new(metric: LossMetric) -> Self {
        Self { metric, sum: 0.0, count: 0.0, smallest: f64::INFINITY, largest: f64::NEG_INFINITY }
    }

    fn add(&mut self, sum: f64, count: f64, row_mean: f64) {
        self.sum += sum;
        self.count += count;
        self.smallest = self.smallest.min(row_mean);
        self.largest = self.largest.max(row_mean);
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }
}

/// Metrics that the losses of a step count, over all passes, by the key of the mean.
#[derive(Debug, Clone, Default)]
pub struct LossMetrics(BTreeMap<&'static str, Summary>);

impl LossMetrics {
    /// Adds one pass over one completion, with a value per token. With `per_sequence`, the completion counts once
    /// instead of once per token.
    pub fn add(&mut self, metric: LossMetric, values: &[f64], per_sequence: bool) {
        let summary = self.0.entry(metric.mean.key).or_insert_with(|| Summary::new(metric));
        let (sum, count) = (values.iter().sum::<f64>(), values.len() as f64);
        match (per_sequence, values.is_empty()) {
            (false, true) => {}
            (false, false) => summary.add(sum, count, sum / count),
            (true, true) => summary.add(metric.of_empty, 1.0, metric.of_empty),
            (true, false) => summary.add(sum / count, 1.0, sum / count),
        }
    }

    /// Mean of a metric; 0 when nothing was counted, absent when the method has no such metric.
    #[must_use]
    pub fn mean(&self, metric: LossMetric) -> Option<f64> {
        self.0.get(metric.mean.key).map(Summary::mean)
    }

    /// Smallest and largest mean of a completion.
    #[must_use]
    pub fn range(&self, metric: LossMetric) -> Option<(f64, f64)> {
        self.0.get(metric.mean.key).map(|summary| (summary.smallest, summary.largest))
    }

    /// Writes every metric.
    pub fn record(&self, record: &mut MetricRecord) {
        for summary in self.0.values() {
            let LossMetric { mean, smallest, largest, .. } = summary.metric;
            record.set(mean, summary.mean());
            for (metric, value) in [(smallest, summary.smallest), (largest, summary.largest)] {
                if let Some(metric) = metric {
                    record.set(metric, value);
                }
            }
        }
    }
}
