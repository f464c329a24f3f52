//! What the losses count, from tokens to metrics.

use std::collections::BTreeMap;

use shared::metrics::{self, Metric, MetricRecord};

/// A figure that a loss has for every token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measure {
    /// The importance ratio. TRL `ratio`. Completions without a gradient have none: where all advantages of a group are
    /// 0, the mean leaves it out, as do [`Self::PpoKl`] and the clipping of verl's cispo.
    Ratio,
    /// The KL estimate, bias correction included.
    Kl,
    /// Ratio below its bound with a negative advantage.
    ClipLow,
    /// Ratio above its bound with a positive advantage.
    ClipHigh,
    /// TRL's cispo: ratio above its cap with a positive advantage.
    CispoClip,
    /// VESPO's weight of the sequence.
    Phi,
    /// The clipped loss is the larger one.
    PgClip,
    /// verl: outside the clip range (verl_cispo), or on the side of positive advantages (geo_mean).
    OutsideClip,
    /// verl: clipped by the second bound (dual clip), or on the side of negative advantages (geo_mean).
    PgClipLower,
    /// verl: `old_logprobs − logprobs`.
    PpoKl,
    /// Left out by `off_policy_mask_threshold`.
    OffPolicy,
    /// Left out by `top_entropy_quantile`.
    LowEntropy,
}

impl Measure {
    /// The measures of clipping.
    pub const CLIPPED: [Self; 6] =
        [Self::ClipLow, Self::ClipHigh, Self::CispoClip, Self::PgClip, Self::OutsideClip, Self::PgClipLower];

    /// The metric that is its mean.
    #[must_use]
    pub fn metric(self) -> &'static Metric {
        match self {
            Self::Ratio => metrics::RATIO,
            Self::Kl => metrics::KL,
            Self::ClipLow => metrics::CLIP_RATIO_LOW_MEAN,
            Self::ClipHigh => metrics::CLIP_RATIO_HIGH_MEAN,
            Self::CispoClip => metrics::CISPO_CLIP_RATIO,
            Self::Phi => metrics::VESPO_PHI_SEQ_MEAN,
            Self::PgClip => metrics::POLICY_CLIPFRAC_AVG,
            Self::OutsideClip => metrics::ACTOR_PG_CLIPFRAC,
            Self::PgClipLower => metrics::ACTOR_PG_CLIPFRAC_LOWER,
            Self::PpoKl => metrics::ACTOR_PPO_KL,
            Self::OffPolicy => metrics::OFF_POLICY_MASKED_FRAC,
            Self::LowEntropy => metrics::LOW_ENTROPY_MASKED_FRAC,
        }
    }

    /// Its value for a row without tokens, where rows are what is counted.
    fn of_nothing(self) -> f64 {
        if self == Self::Phi { 1.0 } else { 0.0 }
    }
}

/// Mean, and smallest and largest mean of a completion.
#[derive(Debug, Clone, Copy)]
struct Summary {
    sum: f64,
    count: f64,
    smallest: f64,
    largest: f64,
}

impl Default for Summary {
    fn default() -> Self {
        Self { sum: 0.0, count: 0.0, smallest: f64::INFINITY, largest: f64::NEG_INFINITY }
    }
}

impl Summary {
    fn add(&mut self, sum: f64, count: f64, row_mean: f64) {
        self.sum += sum;
        self.count += count;
        self.smallest = self.smallest.min(row_mean);
        self.largest = self.largest.max(row_mean);
    }
}

/// The measures of a step, over all passes.
#[derive(Debug, Clone, Default)]
pub struct Measures(BTreeMap<Measure, Summary>);

impl Measures {
    /// Adds one pass over one completion: a value per token, which counts once per token or, `per_sequence`, once.
    pub fn add(&mut self, measure: Measure, values: &[f64], per_sequence: bool) {
        let summary = self.0.entry(measure).or_default();
        let (sum, count) = (values.iter().sum::<f64>(), values.len() as f64);
        match (per_sequence, values.is_empty()) {
            (false, true) => {}
            (false, false) => summary.add(sum, count, sum / count),
            (true, true) => summary.add(measure.of_nothing(), 1.0, measure.of_nothing()),
            (true, false) => summary.add(sum / count, 1.0, sum / count),
        }
    }

    /// Mean of a measure; 0 when nothing was counted, absent when the method has no such measure.
    #[must_use]
    pub fn mean(&self, measure: Measure) -> Option<f64> {
        self.0.get(&measure).map(|summary| summary.sum / summary.count.max(1.0))
    }

    /// Smallest and largest mean of a completion.
    #[must_use]
    pub fn range(&self, measure: Measure) -> Option<(f64, f64)> {
        self.0.get(&measure).map(|summary| (summary.smallest, summary.largest))
    }

    /// Share of tokens that the surrogate clips on either side.
    #[must_use]
    pub fn clipped(&self) -> Option<f64> {
        Some(self.mean(Measure::ClipLow)? + self.mean(Measure::ClipHigh)?)
    }

    /// Every measure as metrics.
    pub fn record(&self, record: &mut MetricRecord) {
        for (&measure, summary) in &self.0 {
            record.set(measure.metric(), summary.sum / summary.count.max(1.0));
            match measure {
                Measure::ClipLow => record.set(metrics::CLIP_RATIO_LOW_MIN, summary.smallest),
                Measure::ClipHigh => record.set(metrics::CLIP_RATIO_HIGH_MAX, summary.largest),
                _ => record,
            };
        }
        if let Some(clipped) = self.clipped() {
            record.set(metrics::CLIP_RATIO_REGION_MEAN, clipped);
        }
    }
}
