//! Rotary positions: frequencies and the tables of cosines and sines.

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use super::{ModelConfig, Rotary};

/// Scaling of the rotary frequencies for long contexts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RopeScaling {
    /// `rope_type: linear`: every frequency is divided.
    Linear {
        /// The divisor.
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
}

impl RopeScaling {
    /// The scaled frequency for an unscaled one (radians per position).
    pub(super) fn apply(self, frequency: f64) -> f64 {
        let (factor, low_freq_factor, high_freq_factor, original_max_position_embeddings) = match self {
            Self::Linear { factor } => return frequency / factor,
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
                (factor, low_freq_factor, high_freq_factor, original_max_position_embeddings)
            }
        };
        let turns = original_max_position_embeddings * frequency / TAU;
        if turns < low_freq_factor {
            frequency / factor
        } else if turns > high_freq_factor {
            frequency
        } else {
            let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    }
}

impl ModelConfig {
    /// Inverse rotary frequencies, `head_dim / 2` of them, after scaling.
    ///
    /// Source: transformers `compute_default_rope_parameters`, `_compute_linear_scaling_rope_parameters` and
    /// `_compute_llama3_parameters`, evaluated in float64.
    #[must_use]
    pub fn inverse_frequencies(&self, rotary: Rotary) -> Vec<f64> {
        let (theta, scaling) = match (rotary, self.rope_local_theta) {
            (Rotary::Local, Some(theta)) => (theta, None),
            _ => (self.rope_theta, self.rope_scaling),
        };
        let frequency = |i: usize| theta.powf(-2.0 * i as f64 / self.head_dim as f64);
        (0..self.head_dim / 2).map(|i| scaling.map_or(frequency(i), |scaling| scaling.apply(frequency(i)))).collect()
    }

    /// Cosines and sines of the rotary angles, each `[positions, head_dim / 2]` row-major, rounded from float64: in
    /// fp32 the angles themselves would be off by 1e-3 at some ten thousand positions.
    #[must_use]
    pub fn rotary_tables(&self, rotary: Rotary, positions: usize) -> (Vec<f32>, Vec<f32>) {
        let frequencies = self.inverse_frequencies(rotary);
        (0..positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f64 * f))
            .map(|angle| (angle.cos() as f32, angle.sin() as f32))
            .unzip()
    }
}
