//! Rotary bases and their scaling.

use serde_json::{Map, Value};

use super::{
    super::{Architecture, ConfigJsonError, RopeScaling},
    Reader, WHOLE_HEAD,
};

/// Gemma's section for layers with full attention, and its section for layers with a window.
const FULL: &str = "rope_parameters.full_attention";
const SLIDING: &str = "rope_parameters.sliding_attention";

/// Base and scaling of rotary frequencies.
type Rope = (f64, Option<RopeScaling>);

impl Reader<'_> {
    /// Base and scaling, and with Gemma the base of the layers with a window. Missing values have the defaults of
    /// transformers.
    pub(super) fn ropes(&self, architecture: Architecture) -> Result<(Rope, Option<f64>), ConfigJsonError> {
        match architecture {
            Architecture::Gemma3 => self.ropes_by_type(),
            Architecture::SmolLm3 => Ok((self.rope(2e6)?, None)),
            _ => Ok((self.rope(1e4)?, None)),
        }
    }

    /// Gemma's: a section for each type of layer, or `rope_theta` and `rope_scaling` for full attention and
    /// `rope_local_base_freq` for windows.
    fn ropes_by_type(&self) -> Result<(Rope, Option<f64>), ConfigJsonError> {
        let sections = self.object("rope_parameters")?;
        if let Some(key) = sections.keys().find(|key| !["full_attention", "sliding_attention"].contains(&key.as_str()))
        {
            let hint = format!("`{key}` is no type of layer");
            return Err(self.unsupported("rope_parameters", &Value::Object(sections), &hint));
        }
        let sections = Reader { section: "rope_parameters", fields: &sections };
        let (mut full, sliding) = (sections.object("full_attention")?, sections.object("sliding_attention")?);
        let scaling = self.object("rope_scaling")?;
        let section = if scaling.is_empty() { FULL } else { "rope_scaling" };
        full.extend(scaling);
        let sliding = Reader { section: SLIDING, fields: &sliding };
        sliding.expect("rope_type", |v| v.as_str() == Some("default"), "supported for windows: default")?;
        let rope = self.rope_of(&Reader { section, fields: &full }, "rope_theta", 1e6)?;
        let (local, _) = self.rope_of(&sliding, "rope_local_base_freq", 1e4)?;
        Ok((rope, Some(local)))
    }

    /// A section; a missing one counts as empty.
    fn object(&self, key: &str) -> Result<Map<String, Value>, ConfigJsonError> {
        match self.get(key) {
            None => Ok(Map::new()),
            Some(Value::Object(fields)) => Ok(fields.clone()),
            Some(other) => Err(self.unsupported(key, other, "expected an object")),
        }
    }

    fn rope(&self, default_theta: f64) -> Result<Rope, ConfigJsonError> {
        let section = self.rope_section();
        let fields = self.object(section)?;
        self.rope_of(&Reader { section, fields: &fields }, "rope_theta", default_theta)
    }

    /// Base and scaling of a section; if it has no base, the base is that of `key` at the top level, or the default.
    fn rope_of(&self, section: &Reader<'_>, key: &str, default_theta: f64) -> Result<Rope, ConfigJsonError> {
        section.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
        let theta = match section.number("rope_theta")? {
            Some(theta) => theta,
            None => self.number(key)?.unwrap_or(default_theta),
        };
        if !(theta.is_finite() && theta > 0.0) {
            return Err(self.bad(key, format!("must be positive, found {theta}")));
        }
        Ok((theta, self.scaling(section)?))
    }

    /// As in transformers' `convert_rope_params_to_dict`, a non-empty `rope_scaling` takes precedence.
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
            Some(v) if v.as_str() == Some("linear") => {
                Ok(Some(RopeScaling::Linear { factor: rope.positive("factor")? }))
            }
            Some(v) if v.as_str() == Some("llama3") => self.llama3(rope).map(Some),
            Some(v) => Err(rope.unsupported(name, v, &self.way_out_of_scaling(v, rope))),
        }
    }

    /// What to do about a scaling that is not supported. If the scaling was added for longer sequences, sequences
    /// within the original context length need none.
    fn way_out_of_scaling(&self, name: &Value, rope: &Reader<'_>) -> String {
        const SUPPORTED: &str = "supported rope types: default, linear, llama3";
        const ORIGINAL: &str = "original_max_position_embeddings";
        let stated = |reader: &Reader<'_>| reader.get(ORIGINAL).and_then(Value::as_u64);
        let original = stated(rope).or_else(|| stated(self));
        // As in transformers, `dynamic` starts at the end of the model's own length.
        let original = match name.as_str() {
            Some("dynamic") => original.or_else(|| self.get("max_position_embeddings").and_then(Value::as_u64)),
            _ => original,
        };
        let length = original.map_or_else(|| format!("`{ORIGINAL}` tokens"), |n| format!("{n} tokens"));
        let limit = original.map_or_else(|| "that number".to_owned(), |n| n.to_string());
        // The other section also has the base.
        let without = if rope.section == "rope_scaling" {
            "remove `rope_scaling`".to_owned()
        } else {
            let key = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
            format!("let `{}.{key}` be \"default\"", rope.section)
        };
        let how = format!("{without} in config.json and set `max_position_embeddings` to {limit}");
        match name.as_str() {
            Some("dynamic") => format!("{SUPPORTED}; within the original {length} it changes nothing: {how}"),
            Some("yarn") => format!(
                "{SUPPORTED}; sequences within the original {length} do without it, as where it was added to reach \
                 further: {how}"
            ),
            Some("longrope" | "su") => format!(
                "{SUPPORTED}; only where every `short_factor` is 1, sequences within the original {length} do almost \
                 without it: {how}; otherwise take a model without it"
            ),
            _ => SUPPORTED.into(),
        }
    }

    /// The original context length is looked for where transformers' `standardize_rope_params` does: at the top level,
    /// in the section, and last in `max_position_embeddings`.
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
