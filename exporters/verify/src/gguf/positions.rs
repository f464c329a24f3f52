//! Rotary positions, as llama.cpp computes them of its keys.

use std::f64::consts::TAU;

use super::{
    blocks,
    model::Reading,
    names::{DIVISORS, OF_LENGTHS},
};
use crate::{VerifyError, architecture::frequencies};

/// A divisor from which on a pair is not turned.
const NOT_TURNED: f32 = 1e30;
/// Turns within the original length between which YaRN mixes, where no key says it.
const BETAS: [f64; 2] = [32.0, 1.0];

/// Frequencies, factors and lengths.
pub(super) struct Positions {
    /// Radians per position of each pair that is turned.
    pub frequencies: Vec<f64>,
    /// Factor on cosines and sines.
    pub factor: f64,
    /// A length, and the frequencies in longer sequences. llama.cpp chooses by the length of its context, so it must be
    /// started with one of at most this length to compute sequences of at most this length.
    pub beyond: Option<(usize, Vec<f64>)>,
    /// A length and a factor with which queries grow.
    pub growth: Option<(usize, f64)>,
}

impl Reading<'_> {
    pub(super) fn positions(&self) -> Result<Positions, VerifyError> {
        let number = |name: &str| self.number(&format!("rope.{name}"));
        let theta = number("freq_base").unwrap_or(1e4);
        let plain = frequencies(theta, self.size("rope.dimension_count")?);
        let original = self.optional_size("rope.scaling.original_context_length")?;
        let original = original.map_or_else(|| self.size("context_length"), Ok)?;
        let positive = || {
            let factor = number("scaling.factor").filter(|factor| *factor > 0.0);
            factor.ok_or_else(|| self.wrong("its positions are scaled by no factor"))
        };
        let (mut found, mut factor, mut beyond) = (plain.clone(), number("scaling.attn_factor").unwrap_or(1.0), None);
        match self.text("rope.scaling.type") {
            None | Some("none") => {}
            Some("linear") => {
                let divisor = positive()?;
                found.iter_mut().for_each(|frequency| *frequency /= divisor);
            }
            Some("yarn") => {
                let divisor = positive()?;
                found = self.yarn(&plain, theta, original as f64, divisor);
                let scale = |share: f64| if divisor <= 1.0 { 1.0 } else { 0.1 * share * divisor.ln() + 1.0 };
                let share = self.of_mistral(number("scaling.yarn_log_multiplier")).filter(|share| *share != 0.0);
                factor *= share.map_or_else(|| scale(1.0), |share| scale(1.0) / scale(share));
            }
            Some("longrope") if self.family.name == "phi3" => {
                let [short, long] = OF_LENGTHS;
                found = self.divided(&plain, short)?;
                beyond = Some((original, self.divided(&plain, long)?));
            }
            Some(other) => return Err(self.wrong(format!("its positions are scaled as {other:?}"))),
        }
        if self.family.divisors && self.gguf.places().contains_key(DIVISORS) {
            found = self.divided(&found, DIVISORS)?;
        }
        let beta = self.number("attention.temperature_scale").filter(|beta| *beta != 0.0);
        let growth = self.of_mistral(beta).map(|beta| (original, beta));
        Ok(Positions { frequencies: found, factor, beyond, growth })
    }

    /// A number of a key that llama.cpp reads in this family alone.
    fn of_mistral(&self, number: Option<f64>) -> Option<f64> {
        number.filter(|_| self.family.name == "mistral3")
    }

    /// Frequencies over the values of a tensor.
    fn divided(&self, plain: &[f64], name: &str) -> Result<Vec<f64>, VerifyError> {
        let place = self.gguf.places().get(name).ok_or_else(|| self.wrong(format!("has no tensor {name}")))?;
        let divisors = blocks::read(self.gguf, name, place)?.values;
        if divisors.len() != plain.len() {
            return Err(self.wrong(format!("{name} has {} values", divisors.len())));
        }
        let divided = |(frequency, divisor): (&f64, f32)| {
            if divisor >= NOT_TURNED { 0.0 } else { frequency / f64::from(divisor) }
        };
        Ok(plain.iter().zip(divisors).map(divided).collect())
    }

    /// Frequencies that are divided where a pair turns slowly, and not where it turns fast.
    fn yarn(&self, plain: &[f64], theta: f64, original: f64, divisor: f64) -> Vec<f64> {
        let entries = 2.0 * plain.len() as f64;
        let [fast, slow] = [("yarn_beta_fast", BETAS[0]), ("yarn_beta_slow", BETAS[1])]
            .map(|(key, default)| self.of_mistral(self.number(&format!("rope.scaling.{key}"))).unwrap_or(default));
        let pair = |turns: f64| entries * (original / (turns * TAU)).ln() / (2.0 * theta.ln());
        let (low, high) = (pair(fast).floor().max(0.0), pair(slow).ceil().min(entries - 1.0));
        let divided = |(index, frequency): (usize, &f64)| {
            let share = ((index as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            frequency / divisor * share + frequency * (1.0 - share)
        };
        plain.iter().enumerate().map(divided).collect()
    }
}
