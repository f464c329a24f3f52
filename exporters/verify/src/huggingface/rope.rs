//! Rotary positions in a `config.json`: which entries of a head turn, and how fast.

use std::f64::consts::TAU;

use serde_json::{Map, Value};

use super::Config;
use crate::{VerifyError, architecture::frequencies};

impl Config<'_> {
    /// The section of rotary positions that counts, of the families that have one.
    pub(super) fn rope(&self) -> Map<String, Value> {
        let scaling = self.section("rope_scaling");
        if scaling.is_empty() { self.section("rope_parameters") } else { scaling }
    }

    /// Entries of a head that are turned.
    pub(super) fn turned(&self, rope: &Map<String, Value>, head_dim: usize) -> usize {
        let key = "partial_rotary_factor";
        let is_qwen3_5 = self.fields.get("model_type").and_then(Value::as_str) == Some("qwen3_5_text");
        // A null is no factor, and not the family's.
        let default = if is_qwen3_5 && !self.fields.contains_key(key) { 0.25 } else { 1.0 };
        let share = rope.get(key).and_then(Value::as_f64).unwrap_or_else(|| self.number(key, default));
        (head_dim as f64 * share) as usize
    }

    /// Context length of the original training: Phi-3 has a default of its own, and others take the longest sequence.
    fn original(&self, family: &str, rope: &Map<String, Value>) -> f64 {
        let key = "original_max_position_embeddings";
        let stated = [self.fields.get(key), rope.get(key)].into_iter().flatten().find_map(Value::as_f64);
        let default = || if family == "phi3" { 4096.0 } else { self.number("max_position_embeddings", 0.0) };
        stated.unwrap_or_else(default)
    }

    /// Factor on cosines and sines of YaRN and of longrope.
    pub(super) fn turn_scale(&self, family: &str, rope: &Map<String, Value>) -> f64 {
        let number = |key: &str| rope.get(key).and_then(Value::as_f64);
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str);
        match (family, kind) {
            (_, Some("yarn" | "longrope" | "su")) if number("attention_factor").is_some() => {
                number("attention_factor").unwrap_or(1.0)
            }
            ("phi3", Some("longrope" | "su" | "yarn")) => {
                let original = self.original(family, rope);
                let factor = self.number("max_position_embeddings", original) / original;
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
            }
            (_, Some("yarn")) => {
                let factor = number("factor").unwrap_or(1.0);
                let of = |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
                match (number("mscale"), number("mscale_all_dim")) {
                    (Some(one), Some(all)) if one != 0.0 && all != 0.0 => of(one) / of(all),
                    _ => of(1.0),
                }
            }
            _ => 1.0,
        }
    }

    /// The length beyond which longrope turns otherwise, and how.
    pub(super) fn beyond(
        &self,
        family: &str,
        rope: &Map<String, Value>,
        head_dim: usize,
    ) -> Result<Option<(usize, Vec<f64>)>, VerifyError> {
        if family != "phi3" || !rope.contains_key("long_factor") {
            return Ok(None);
        }
        let theta = rope.get("rope_theta").and_then(Value::as_f64).unwrap_or_else(|| self.number("rope_theta", 1e4));
        let plain = frequencies(theta, self.turned(rope, head_dim));
        Ok(Some((self.original(family, rope) as usize, self.divided(rope, "long_factor", &plain)?)))
    }

    /// Frequencies over the numbers of a list.
    fn divided(&self, rope: &Map<String, Value>, key: &str, plain: &[f64]) -> Result<Vec<f64>, VerifyError> {
        let list = rope.get(key).and_then(Value::as_array).filter(|list| list.len() == plain.len());
        let list =
            list.ok_or_else(|| self.wrong(format!("rotary positions lack {} numbers in `{key}`", plain.len())))?;
        let divisor = |value: &Value| value.as_f64().ok_or_else(|| self.wrong(format!("`{key}` has {value}")));
        list.iter().zip(plain).map(|(value, frequency)| Ok(frequency / divisor(value)?)).collect()
    }

    /// How queries of Ministral 3 grow.
    pub(super) fn growth(&self, family: &str, rope: &Map<String, Value>) -> Option<(usize, f64)> {
        let factor = rope.get("llama_4_scaling_beta").and_then(Value::as_f64)?;
        (family == "ministral3").then(|| (self.original(family, rope) as usize, factor))
    }

    /// The frequencies of a section: its base, or else `theta`, and its scaling.
    pub(super) fn scaled(
        &self,
        rope: &Map<String, Value>,
        theta: f64,
        head_dim: usize,
    ) -> Result<Vec<f64>, VerifyError> {
        let family = self.fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| rope.get(key).and_then(Value::as_f64);
        let need = |key: &str| number(key).ok_or_else(|| self.wrong(format!("rotary positions lack `{key}`")));
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
        let plain = frequencies(number("rope_theta").unwrap_or(theta), head_dim);
        match kind {
            // Within the longest sequence of the model, `dynamic` changes nothing.
            "default" | "dynamic" => Ok(plain),
            "linear" => {
                let factor = need("factor")?;
                Ok(plain.iter().map(|frequency| frequency / factor).collect())
            }
            "llama3" => {
                let length = self.original(family, rope);
                let (factor, low, high) = (need("factor")?, need("low_freq_factor")?, need("high_freq_factor")?);
                let scaled = |frequency: &f64| frequency / divisor(TAU / frequency, length, factor, low, high);
                Ok(plain.iter().map(scaled).collect())
            }
            "proportional" if ["lfm3", "gemma4_text"].contains(&family) => {
                let turned = (number("partial_rotary_factor").unwrap_or(1.0) * head_dim as f64 / 2.0) as usize;
                let factor = number("factor").unwrap_or(1.0);
                let pair = |(pair, frequency): (usize, &f64)| if pair < turned { frequency / factor } else { 0.0 };
                Ok(plain.iter().enumerate().map(pair).collect())
            }
            "longrope" | "su" if family == "phi3" => self.divided(rope, "short_factor", &plain),
            "yarn" if family == "phi3" => self.divided(rope, "short_factor", &plain),
            "yarn" => {
                let theta = number("rope_theta").unwrap_or(theta);
                let (factor, length) = (need("factor")?, self.original(family, rope));
                let turns = |key: &str, default: f64| number(key).filter(|turns| *turns != 0.0).unwrap_or(default);
                let pair = |turns: f64| head_dim as f64 * (length / (turns * TAU)).ln() / (2.0 * theta.ln());
                let (mut low, mut high) = (pair(turns("beta_fast", 32.0)), pair(turns("beta_slow", 1.0)));
                if rope.get("truncate") != Some(&false.into()) {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
                let width = if low == high { 0.001 } else { high - low };
                let scaled = |(index, frequency): (usize, &f64)| {
                    let slow = ((index as f64 - low) / width).clamp(0.0, 1.0);
                    frequency * (1.0 - slow) + frequency / factor * slow
                };
                Ok(plain.iter().enumerate().map(scaled).collect())
            }
            other => Err(self.wrong(format!("rotary positions of type {other:?} are not read here"))),
        }
    }
}

/// What Llama 3.1 divides the frequency of a wavelength by: nothing below `length / high`, `factor` above
/// `length / low`, and a mixture between them.
fn divisor(wavelength: f64, length: f64, factor: f64, low: f64, high: f64) -> f64 {
    if wavelength < length / high {
        1.0
    } else if wavelength > length / low {
        factor
    } else {
        let share = (length / wavelength - low) / (high - low);
        ((1.0 - share) / factor + share).recip()
    }
}

#[cfg(test)]
mod tests {
    use super::divisor;

    #[test]
    fn llama_3_turns_fast_pairs_as_before_and_slow_ones_slower() {
        let of = |wavelength| divisor(wavelength, 8192.0, 8.0, 1.0, 4.0);
        assert_eq!((of(100.0), of(10_000.0)), (1.0, 8.0));
        let half = of(8192.0 / 2.5);
        assert!((half - 1.0 / (0.5 / 8.0 + 0.5)).abs() < 1e-12, "{half}");
    }
}
