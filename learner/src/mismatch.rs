//! The mismatch between sampler and learner, and its correction.
//!
//! Two runtimes (and with staleness two versions) give one token different probabilities. Sampled tokens are therefore
//! weighed by the ratio of the learner's probability to the sampler's, within bounds (truncated or masked importance
//! sampling; TRL `vllm_importance_sampling_*`, verl `rollout_is`).

#![deny(clippy::wildcard_enum_match_arm)]

use shared::{
    config::{ImportanceSamplingMode, TrainConfig},
    metrics::{self, MetricRecord},
};

use crate::{
    ragged::Ragged,
    verl::{EPSILON, LOG_RATIO_BOUND},
};

/// How ratios become weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Correction {
    /// What a ratio is taken over, and what happens outside the bounds.
    pub mode: ImportanceSamplingMode,
    /// Upper bound; infinite = none.
    pub clip_max: f64,
    /// Lower bound.
    pub clip_min: Option<f64>,
    /// Bound of the log of a ratio on both sides.
    pub log_ratio_bound: Option<f64>,
    /// Divide by the mean over the batch.
    pub batch_normalize: bool,
}

impl Correction {
    /// The correction that a configuration asks for. None without a decoupled objective: the loss then takes its ratio
    /// to the sampler already.
    #[must_use]
    pub fn from_config(config: &TrainConfig) -> Option<Self> {
        let batch_normalize = config.importance_sampling_batch_normalize;
        (config.importance_sampling_correction && config.decoupled_objective).then(|| Self {
            mode: config.importance_sampling_mode,
            clip_max: config.importance_sampling_clip_max,
            clip_min: config.importance_sampling_clip_min,
            log_ratio_bound: batch_normalize.then_some(LOG_RATIO_BOUND),
            batch_normalize,
        })
    }

    /// Whether a sequence has one weight.
    #[must_use]
    pub fn per_sequence(&self) -> bool {
        matches!(self.mode, ImportanceSamplingMode::SequenceTruncate | ImportanceSamplingMode::SequenceMask)
    }

    /// Weights of the rows whose log-ratios (old − sampling log-prob) are given. With `batch_normalize` they must be
    /// all rows of the batch.
    #[must_use]
    pub fn weights(&self, log_ratios: &Ragged<f64>) -> Weights {
        let per_sequence = self.per_sequence();
        let of_row = |row: &[f64]| -> Vec<f64> {
            let known = row.iter().map(|&d| if d.is_nan() { 0.0 } else { d });
            if per_sequence { vec![self.weight(known.sum())] } else { known.map(|d| self.weight(d)).collect() }
        };
        let mut weights = Weights { per_sequence, rows: log_ratios.rows().map(of_row).collect() };
        if self.batch_normalize {
            // If every weight is masked, the weights stay as they are, as in verl.
            let mean = Some(weights.mean(log_ratios)).filter(|&mean| mean > EPSILON).unwrap_or(1.0);
            weights.rows.values_mut().iter_mut().for_each(|weight| *weight /= mean);
        }
        weights
    }

    fn weight(&self, log_ratio: f64) -> f64 {
        let bound = self.log_ratio_bound.unwrap_or(f64::INFINITY);
        let ratio = log_ratio.clamp(-bound, bound).exp();
        let least = self.clip_min.unwrap_or(f64::NEG_INFINITY);
        match self.mode {
            ImportanceSamplingMode::TokenTruncate | ImportanceSamplingMode::SequenceTruncate => {
                ratio.max(least).min(self.clip_max)
            }
            ImportanceSamplingMode::TokenMask | ImportanceSamplingMode::SequenceMask => {
                if ratio < least || ratio > self.clip_max { 0.0 } else { ratio }
            }
        }
    }
}

/// Importance weights of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Whether each row has exactly one weight.
    pub per_sequence: bool,
    /// One per token, or one per row.
    pub rows: Ragged<f64>,
}

impl Weights {
    /// Weights of 1 for rows of the given lengths; empty rows have none.
    #[must_use]
    pub fn ones(per_sequence: bool, lengths: impl Iterator<Item = usize>) -> Self {
        let weights = lengths.map(|length| if per_sequence { length.min(1) } else { length });
        Self { per_sequence, rows: Ragged::filled(1.0, weights) }
    }

    /// The weight of each token of the given rows, whose numbers of tokens are `lengths`.
    #[must_use]
    pub fn gather(&self, rows: &[usize], lengths: &[usize]) -> Vec<f64> {
        if !self.per_sequence {
            return self.rows.gather(rows);
        }
        rows.iter().zip(lengths).flat_map(|(&row, &tokens)| vec![self.rows[row][0]; tokens]).collect()
    }

    /// Mean over tokens, or over rows; verl's definition.
    fn mean(&self, rows: &Ragged<f64>) -> f64 {
        if !self.per_sequence {
            let tokens = rows.values().len() as f64;
            return self.rows.values().iter().sum::<f64>() / (tokens + EPSILON);
        }
        let of_row = |(weights, row): (&[f64], &[f64])| {
            let tokens = row.len() as f64;
            weights[0] * tokens / (tokens + EPSILON)
        };
        self.rows.rows().zip(rows.rows()).map(of_row).sum::<f64>() / rows.len() as f64
    }

    /// Records the metrics of the weights.
    pub fn record(&self, record: &mut MetricRecord) {
        let all = self.rows.values();
        let count = all.len() as f64;
        let sum: f64 = all.iter().sum();
        let squares: f64 = all.iter().map(|w| w * w).sum();
        record.set(metrics::SAMPLING_IMPORTANCE_SAMPLING_RATIO_MIN, all.iter().copied().fold(f64::INFINITY, f64::min));
        record.set(metrics::SAMPLING_IMPORTANCE_SAMPLING_RATIO_MEAN, sum / count);
        record.set(
            metrics::SAMPLING_IMPORTANCE_SAMPLING_RATIO_MAX,
            all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        );
        // 1 / mean((w / mean w)²): the number of unweighted samples that the batch is worth, as a share of the batch.
        record.set(metrics::ROLLOUT_CORR_ROLLOUT_IS_EFF_SAMPLE_SIZE, sum * sum / (count * squares));
        let masked = all.iter().filter(|&&weight| weight == 0.0).count() as f64 / count;
        let metric = if self.per_sequence {
            metrics::ROLLOUT_CORR_ROLLOUT_RS_SEQ_MASKED_FRACTION
        } else {
            metrics::ROLLOUT_CORR_ROLLOUT_RS_MASKED_FRACTION
        };
        record.set(metric, masked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn correction(mode: ImportanceSamplingMode) -> Correction {
        Correction { mode, clip_max: 3.0, clip_min: Some(0.5), log_ratio_bound: None, batch_normalize: false }
    }

    #[test]
    fn sequences_outside_the_bounds_are_masked_or_bounded() {
        let ratios = [vec![0.5, 0.5], vec![1.0, 1.0], vec![-2.0], Vec::new()].into_iter().collect();
        let weights = |mode| correction(mode).weights(&ratios).rows.values().to_vec();
        assert_eq!(weights(ImportanceSamplingMode::SequenceMask), [1f64.exp(), 0.0, 0.0, 1.0]);
        assert_eq!(weights(ImportanceSamplingMode::SequenceTruncate), [1f64.exp(), 3.0, 0.5, 1.0]);
        let tokens = correction(ImportanceSamplingMode::TokenMask).weights(&ratios);
        assert_eq!(tokens.rows[2], [0.0]);
        assert_eq!(tokens.rows[0], [0.5f64.exp(); 2]);
    }

    #[test]
    fn a_batch_that_is_masked_altogether_stays_masked() {
        for mode in [ImportanceSamplingMode::TokenMask, ImportanceSamplingMode::SequenceMask] {
            let normalised = Correction { batch_normalize: true, ..correction(mode) };
            let of = |rows: [Vec<f64>; 2]| normalised.weights(&rows.into_iter().collect()).rows;
            assert_eq!(of([vec![-2.0; 3], vec![4.0]]).values().iter().sum::<f64>(), 0.0);
            let rows = of([vec![0.5], vec![4.0]]).values().to_vec();
            assert!((rows[0] - 2.0).abs() < 1e-7 && rows[1] == 0.0, "{rows:?}");
        }
    }

    #[test]
    fn the_effective_sample_size_of_equal_weights_is_everything() {
        let size = |weights: Vec<f64>| {
            let mut record = MetricRecord::default();
            Weights { per_sequence: true, rows: weights.into_iter().map(|w| vec![w]).collect() }.record(&mut record);
            record.get(metrics::ROLLOUT_CORR_ROLLOUT_IS_EFF_SAMPLE_SIZE).unwrap()
        };
        assert_eq!(size(vec![2.0; 5]), 1.0);
        assert_eq!(size(vec![1.0, 0.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn an_objective_against_the_sampler_needs_no_correction() {
        let config = TrainConfig { decoupled_objective: false, ..TrainConfig::default() };
        assert!(Correction::from_config(&config).is_none());
        assert!(Correction::from_config(&TrainConfig::default()).is_some());
    }
}
