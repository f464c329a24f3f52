//! Rotary bases and their scaling.

use serde_json::{Map, Value};

use super::{
    super::{ConfigJsonError, RopeScaling},
    Reader, WHOLE_HEAD,
};

impl Reader<'_> {
    pub(super) fn rope(&self, default_theta: f64) -> Result<(f64, Option<RopeScaling>), ConfigJsonError> {
        let none = Map::new();
        let key = self.rope_section();
        let fields = match self.get(key) {
            None => &none,
            Some(Value::Object(fields)) => fields,
            Some(other) => return Err(self.unsupported(key, other, "expected an object")),
        };
        let section = Reader { section: key, fields };
        section.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
        let theta = match section.number("rope_theta")? {
            Some(theta) => theta,
            None => self.number("rope_theta")?.unwrap_or(default_theta),
        };
        if !(theta.is_finite() && theta > 0.0) {
            return Err(self.bad("rope_theta", format!("must be positive, found {theta}")));
        }
        Ok((theta, self.scaling(&section)?))
    }

    /// As in transformers' `convert_rope_params_to_dict`, a `rope_scaling` that says something goes first.
    fn rope_section(&self) -> &'static str {
        let empty = |v: &Value| v.as_object().is_some_and(Map::is_empty);
        let scaling = self.get("rope_scaling").is_some_and(|v| !empty(v));
        if scaling || self.get("rope_parameters").is_none() { "rope_scaling" } else { "rope_parameters" }
    }

    fn scaling(&self, rope: &Reader<'_>) -> Result<Option<RopeScaling>, ConfigJsonError> {
        let name = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
        let neutral = |key: &String| ["rope_theta", "partial_rotary_factor"].contains(&key.as_str());
        match rope.get(name) {
            None if rope.fields.keys().all(neutral) => Ok(None),
            None => {
                let section = Value::Object(rope.fields.clone());
                Err(self.unsupported(rope.section, &section, "the key `rope_type` is missing"))
            }
            Some(v) if v.as_str() == Some("default") => Ok(None),
            Some(v) if v.as_str() == Some("llama3") => self.llama3(rope).map(Some),
            Some(v) => Err(rope.unsupported(name, v, "supported rope types: default, llama3")),
        }
    }

    /// The original context length is looked for where transformers' `standardize_rope_params` does: at the top
    /// level, in the section, and last in `max_position_embeddings`.
    fn llama3(&self, rope: &Reader<'_>) -> Result<RopeScaling, ConfigJsonError> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        let original = match self.size(ORIGINAL)? {
            Some(n) => n as f64,
            None if rope.get(ORIGINAL).is_some() => rope.positive(ORIGINAL)?,
            None => self.required_size("max_position_embeddings")? as f64,
        };
        let (low, high) = (rope.positive("low_freq_factor")?, rope.positive("high_freq_factor")?);
        if high <= low {
            let problem = format!("({high}) must be greater than low_freq_factor ({low})");
            return Err(rope.bad("high_freq_factor", problem));
        }
        Ok(RopeScaling::Llama3 {
            factor: rope.positive("factor")?,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        })
    }
}
