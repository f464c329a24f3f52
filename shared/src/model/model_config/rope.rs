//! Rotary positions: frequencies and the tables of cosines and sines.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use super::{ModelConfig, Rotary};

/// Scaling of the rotary frequencies for long contexts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// `rope_type: linear`: every frequency is divided.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// `rope_type: dynamic` (transformers `_compute_dynamic_ntk_parameters`): frequencies change beyond the model's
    /// `max_position_embeddings`, which no sequence exceeds here.
    Dynamic {
        /// How much further than the model's own length its sequences would reach.
        factor: f64,
    },
    /// `rope_type: llama3` (transformers `_compute_llama3_parameters`).
    Llama3 {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are scaled in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are unchanged.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_max_position_embeddings: f64,
    },
    /// `rope_type: yarn` (Peng et al. 2023; transformers `_compute_yarn_parameters`).
    Yarn {
        /// Divisor of the lowest frequencies.
        factor: f64,
        /// Turns within the original length from which on a frequency is unchanged.
        beta_fast: f64,
        /// Turns within the original length up to which a frequency is divided in full.
        beta_slow: f64,
        /// Whether the bounds of the ramp between the two are rounded to whole pairs.
        truncate: bool,
        /// Context length of the original training.
        original_max_position_embeddings: f64,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// `rope_type: proportional` (transformers `_compute_proportional_rope_parameters`): the first pairs of a head are
    /// turned as if all were, and the others not at all.
    Proportional {
        /// Share of the pairs that are turned.
        share: f64,
        /// The divisor of their frequencies.
        factor: f64,
    },
    /// `rope_type: longrope` (Ding et al. 2024; transformers `_compute_longrope_parameters`). The length of a sequence
    /// decides on the frequencies of all its positions.
    LongRope {
        /// Divisor of each frequency in sequences of at most the original length.
        short_factor: Vec<f64>,
        /// Divisor of each frequency in longer sequences.
        long_factor: Vec<f64>,
        /// Context length of the original training.
        original_max_position_embeddings: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
}

/// Growth of queries with their position: `1 + beta · ln(1 + ⌊position / original⌋)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueryScaling {
    /// `rope_parameters.llama_4_scaling_beta`.
    pub beta: f64,
    /// `rope_parameters.original_max_position_embeddings`.
    pub original_max_position_embeddings: usize,
}

impl RopeScaling {
    /// The scaled frequency of a pair for an unscaled one (radians per position). `long` counts for longrope alone.
    pub(super) fn apply(&self, pair: usize, frequency: f64, rope: Rope, long: bool) -> f64 {
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Dynamic { .. } => frequency,
            Self::Proportional { share, factor } => {
                // Rounded down, as in transformers.
                if pair < (share * rope.dim as f64 / 2.0) as usize { frequency / factor } else { 0.0 }
            }
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                let turns = original_max_position_embeddings * frequency / TAU;
                if turns < *low_freq_factor {
                    frequency / factor
                } else if turns > *high_freq_factor {
                    frequency
                } else {
                    let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            Self::Yarn { factor, beta_fast, beta_slow, truncate, original_max_position_embeddings, .. } => {
                let Rope { dim, theta } = rope;
                // The pair that turns so many times within the original length.
                let bound = |turns: f64| {
                    dim as f64 * (original_max_position_embeddings / (turns * TAU)).ln() / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (bound(*beta_fast), bound(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let divided = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * divided + frequency * (1.0 - divided)
            }
            Self::LongRope { short_factor, long_factor, .. } => {
                frequency / if long { long_factor[pair] } else { short_factor[pair] }
            }
        }
    }

    fn attention_factor(&self) -> f64 {
        match self {
            Self::Linear { .. } | Self::Dynamic { .. } | Self::Llama3 { .. } | Self::Proportional { .. } => 1.0,
            Self::Yarn { attention_factor, .. } | Self::LongRope { attention_factor, .. } => *attention_factor,
        }
    }
}

/// Width and base of rotary positions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rope {
    pub dim: usize,
    pub theta: f64,
}

impl ModelConfig {
    /// Inverse rotary frequencies, half as many as [`Self::rotary_entries`], after scaling. With longrope, those of
    /// sequences within the original length.
    ///
    /// Source: transformers `compute_default_rope_parameters`, `_compute_linear_scaling_rope_parameters`,
    /// `_compute_llama3_parameters`, `_compute_yarn_parameters`, `_compute_proportional_rope_parameters` and
    /// `_compute_longrope_parameters`, evaluated in float64.
    #[must_use]
    pub fn inverse_frequencies(&self, rotary: Rotary) -> Vec<f64> {
        self.frequencies(rotary, false)
    }

    /// As [`Self::inverse_frequencies`], with longrope for sequences beyond the original length if `long` is set.
    #[must_use]
    pub fn frequencies(&self, rotary: Rotary, long: bool) -> Vec<f64> {
        let (theta, scaling) = match (rotary, self.rope_local_theta) {
            (Rotary::Local, Some(theta)) => (theta, None),
            _ => (self.rope_theta, self.rope_scaling.as_ref()),
        };
        let rope = Rope { dim: self.rotary_entries(rotary), theta };
        let frequency = |i: usize| theta.powf(-2.0 * i as f64 / rope.dim as f64);
        let scaled = |i| scaling.map_or(frequency(i), |scaling| scaling.apply(i, frequency(i), rope, long));
        (0..rope.dim / 2).map(scaled).collect()
    }

    /// Factor on cosines and sines.
    #[must_use]
    pub fn rotary_factor(&self, rotary: Rotary) -> f64 {
        let scaling = self.rope_scaling.as_ref().filter(|_| rotary == Rotary::Global);
        scaling.map_or(1.0, RopeScaling::attention_factor)
    }

    /// The original length of a model with longrope. Longer sequences have other frequencies at all of their
    /// positions, so no sequence may grow across this length.
    #[must_use]
    pub fn original_length(&self) -> Option<usize> {
        match self.rope_scaling {
            Some(RopeScaling::LongRope { original_max_position_embeddings, .. }) => {
                Some(original_max_position_embeddings)
            }
            _ => None,
        }
    }

    /// Row of [`Self::rotary_tables`] with the first position of a sequence of so many tokens.
    #[must_use]
    pub fn rotary_begin(&self, length: usize) -> usize {
        self.original_length().filter(|&original| length > original).unwrap_or(0)
    }

    /// Rows of [`Self::rotary_tables`] for so many positions.
    #[must_use]
    pub fn rotary_rows(&self, positions: usize) -> usize {
        self.rotary_begin(positions) + positions
    }

    /// Positions of tables with so many rows: the inverse of [`Self::rotary_rows`].
    #[must_use]
    pub fn rotary_positions(&self, rows: usize) -> usize {
        rows - self.rotary_begin(rows)
    }

    /// Cosines and sines of the rotary angles, each `[rows, rotary_entries / 2]` row-major, rounded from float64: in
    /// fp32 the angles themselves would be off by 1e-3 at some ten thousand positions. There is a row for each
    /// position. With longrope, rows of positions in sequences within the original length come first, then rows of all
    /// positions in longer ones ([`Self::rotary_begin`]).
    #[must_use]
    pub fn rotary_tables(&self, rotary: Rotary, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let factor = self.rotary_factor(rotary);
        let begin = self.rotary_begin(positions);
        let mut tables = (Vec::new(), Vec::new());
        for (long, rows) in [(false, begin), (begin > 0, positions)] {
            let frequencies = self.frequencies(rotary, long);
            let angles = (0..rows).flat_map(|position| frequencies.iter().map(move |f| position as f64 * f));
            tables.extend(angles.map(|angle| ((angle.cos() * factor) as f32, (angle.sin() * factor) as f32)));
        }
        tables
    }

    /// Factors on the queries of so many positions, in the families whose queries grow.
    #[must_use]
    pub fn query_factors(&self, positions: usize) -> Option<Vec<f32>> {
        let scaling = self.query_scaling?;
        Some((0..positions).map(|position| scaling.factor(position) as f32).collect())
    }
}

impl QueryScaling {
    /// The factor at a position.
    #[must_use]
    pub fn factor(self, position: usize) -> f64 {
        1.0 + self.beta * (1.0 + (position / self.original_max_position_embeddings) as f64).ln()
    }
}
