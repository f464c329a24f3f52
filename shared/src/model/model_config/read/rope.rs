//! Rotary bases and their scaling.

use serde_json::{Map, Value};

use super::{
    super::{Architecture, ConfigJsonError, QueryScaling, RopeScaling},
    Reader, WHOLE_HEAD,
};

/// Gemma's section for layers with full attention, and its section for layers with a window.
const FULL: &str = "rope_parameters.full_attention";
const SLIDING: &str = "rope_parameters.sliding_attention";

/// Base and scaling of rotary frequencies.
type Rope = (f64, Option<RopeScaling>);

/// All that `config.json` says of rotary positions.
pub(super) struct Ropes {
    pub global: Rope,
    /// Base of the layers with a window, in Gemma.
    pub rope_local_theta: Option<f64>,
    pub query_scaling: Option<QueryScaling>,
}

const ORIGINAL: &str = "original_max_position_embeddings";

impl Reader<'_> {
    /// Missing values have the defaults of transformers. `entries` of a head are turned.
    pub(super) fn ropes(&self, architecture: Architecture, entries: usize) -> Result<Ropes, ConfigJsonError> {
        let of = |global| Ropes { global, rope_local_theta: None, query_scaling: None };
        match architecture {
            Architecture::Gemma3 => {
                let (global, local) = self.ropes_by_type()?;
                Ok(Ropes { rope_local_theta: Some(local), ..of(global) })
            }
            Architecture::SmolLm3 => Ok(of(self.rope(2e6)?)),
            Architecture::Ministral3 => self.ministral(),
            Architecture::Phi3 => Ok(of(self.phi(entries)?)),
            Architecture::Lfm2 => Ok(of(self.rope(1e6)?)),
            Architecture::Qwen3_5 => Ok(of(self.partial()?)),
            Architecture::Lfm3 | Architecture::Gemma4 => {
                let share = if architecture == Architecture::Gemma4 { 0.25 } else { 0.5 };
                let (global, local) = self.proportional_ropes(share)?;
                Ok(Ropes { rope_local_theta: Some(local), ..of(global) })
            }
            _ => Ok(of(self.rope(1e4)?)),
        }
    }

    /// Ministral's: YaRN, and queries that grow.
    fn ministral(&self) -> Result<Ropes, ConfigJsonError> {
        let section = self.rope_section();
        let mut fields = self.object(section)?;
        if fields.is_empty() {
            // Ministral3Config has them where the section is missing.
            let defaults = [("factor", 16.0), (ORIGINAL, 16384.0), ("rope_theta", 1e6), ("llama_4_scaling_beta", 0.1)];
            fields.extend(defaults.map(|(key, value)| (key.to_owned(), value.into())));
            fields.extend([("mscale", 1.0), ("mscale_all_dim", 1.0)].map(|(key, n)| (key.to_owned(), n.into())));
            fields.insert("rope_type".into(), "yarn".into());
        }
        let rope = Reader { section, fields: &fields };
        rope.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
        let theta = self.theta(&rope, "rope_theta", 1e4)?;
        let query_scaling = match rope.number("llama_4_scaling_beta")? {
            None => None,
            Some(beta) if beta.is_finite() => {
                Some(QueryScaling { beta, original_max_position_embeddings: self.whole_original(&rope)? })
            }
            Some(beta) => return Err(rope.bad("llama_4_scaling_beta", format!("must be finite, found {beta}"))),
        };
        Ok(Ropes { global: (theta, self.scaling(&rope)?), rope_local_theta: None, query_scaling })
    }

    /// Context length of the original training. It is looked for where transformers' `standardize_rope_params` does: at
    /// the top level, in the section, and last in `max_position_embeddings`.
    fn original(&self, rope: &Reader<'_>) -> Result<f64, ConfigJsonError> {
        match self.size(ORIGINAL)? {
            Some(n) => Ok(n as f64),
            None if rope.get(ORIGINAL).is_some() => rope.positive(ORIGINAL),
            None => Ok(self.required_size("max_position_embeddings")? as f64),
        }
    }

    /// As [`Self::original`], where some files write 16384.0.
    fn whole_original(&self, rope: &Reader<'_>) -> Result<usize, ConfigJsonError> {
        let number = self.original(rope)?;
        if number.fract() == 0.0 && number <= super::MOST as f64 {
            return Ok(number as usize);
        }
        Err(rope.bad(ORIGINAL, format!("must be a whole number of at most {}, found {number}", super::MOST)))
    }

    /// As in transformers' `_compute_yarn_parameters`.
    fn yarn(&self, rope: &Reader<'_>) -> Result<RopeScaling, ConfigJsonError> {
        let factor = rope.positive("factor")?;
        let mscale = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let attention_factor = match rope.number("attention_factor")? {
            Some(_) => rope.positive("attention_factor")?,
            None => match (rope.number("mscale")?, rope.number("mscale_all_dim")?) {
                (Some(one), Some(all)) if one != 0.0 && all != 0.0 => mscale(one) / mscale(all),
                _ => mscale(1.0),
            },
        };
        let turns = |key: &str, default: f64| match rope.number(key)? {
            Some(turns) if turns != 0.0 => rope.positive(key),
            _ => Ok(default),
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: turns("beta_fast", 32.0)?,
            beta_slow: turns("beta_slow", 1.0)?,
            truncate: rope.flag("truncate", true)?,
            original_max_position_embeddings: self.original(rope)?,
            attention_factor,
        })
    }

    /// Phi's: longrope, under one of its two names, or none.
    fn phi(&self, entries: usize) -> Result<Rope, ConfigJsonError> {
        let section = self.rope_section();
        let fields = self.object(section)?;
        let rope = Reader { section, fields: &fields };
        let theta = self.theta(&rope, "rope_theta", 1e4)?;
        let name = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
        // `yarn` in old files of the family is longrope too.
        if !matches!(rope.get(name).and_then(Value::as_str), Some("longrope" | "su" | "yarn")) {
            return Ok((theta, self.scaling(&rope)?));
        }
        for key in ["short_mscale", "long_mscale"] {
            rope.expect(key, |_| false, "cosines and sines have one factor in all sequences")?;
        }
        let longest = self.required_size("max_position_embeddings")?;
        // Phi3Config's default. Its own value wins over one of the section.
        let original = self.size(ORIGINAL)?.unwrap_or(4096);
        let hint = format!("`{ORIGINAL}` of the whole counts, which is {original}");
        rope.expect(ORIGINAL, |value| value.as_u64() == Some(original as u64), &hint)?;
        let factor = longest as f64 / original as f64;
        let hint = format!("supported: max_position_embeddings / {ORIGINAL}, which is {factor}");
        rope.expect("factor", |value| value.as_f64() == Some(factor), &hint)?;
        let attention_factor = match rope.number("attention_factor")? {
            Some(_) => rope.positive("attention_factor")?,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let factors = |key: &str| {
            let divisor = |v: &Value| v.as_f64().filter(|divisor| divisor.is_finite() && *divisor > 0.0);
            let list = rope.get(key).and_then(Value::as_array);
            let list: Option<Vec<f64>> = list.and_then(|list| list.iter().map(divisor).collect());
            let wrong = || rope.bad(key, format!("must be a list of {} positive numbers", entries / 2));
            list.filter(|list| list.len() == entries / 2).ok_or_else(wrong)
        };
        let scaling = RopeScaling::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            original_max_position_embeddings: original,
            attention_factor,
        };
        Ok((theta, Some(scaling)))
    }

    /// Qwen3.5's, whose section also says which part of a head is turned. Text has the same position in each of the
    /// three dimensions of `mrope_section`, so its rotations are plain ones.
    fn partial(&self) -> Result<Rope, ConfigJsonError> {
        let section = self.rope_section();
        let fields = self.object(section)?;
        let rope = Reader { section, fields: &fields };
        Ok((self.theta(&rope, "rope_theta", 1e4)?, self.scaling(&rope)?))
    }

    /// LFM3's and Gemma 4's: a section for each type of layer; without any, those of its class, with this share of
    /// turned pairs.
    fn proportional_ropes(&self, share: f64) -> Result<(Rope, f64), ConfigJsonError> {
        let sections = self.object("rope_parameters")?;
        let hint = "supported: `rope_parameters` with a section for each type of layer";
        self.expect("rope_scaling", |v| v.as_object().is_some_and(Map::is_empty), hint)?;
        if sections.is_empty() {
            return Ok(((1e6, Some(RopeScaling::Proportional { share, factor: 1.0 })), 1e4));
        }
        if sections.len() != 2 || ["full_attention", "sliding_attention"].iter().any(|key| !sections.contains_key(*key))
        {
            let hint = "expected the sections full_attention and sliding_attention";
            return Err(self.unsupported("rope_parameters", &Value::Object(sections), hint));
        }
        let sections = Reader { section: "rope_parameters", fields: &sections };
        let (full, sliding) = (sections.object("full_attention")?, sections.object("sliding_attention")?);
        let (full, sliding) = (Reader { section: FULL, fields: &full }, Reader { section: SLIDING, fields: &sliding });
        sliding.expect("rope_type", |v| v.as_str() == Some("default"), "supported for windows: default")?;
        sliding.expect("type", |v| v.as_str() == Some("default"), "supported for windows: default")?;
        sliding.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
        let scaling = if full.get("rope_type").and_then(Value::as_str) == Some("proportional") {
            let number = |key: &str| if full.get(key).is_some() { full.positive(key) } else { Ok(1.0) };
            let share = number("partial_rotary_factor")?;
            if share > 1.0 {
                return Err(full.bad("partial_rotary_factor", format!("must be at most 1, found {share}")));
            }
            Some(RopeScaling::Proportional { share, factor: number("factor")? })
        } else {
            full.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
            full.refuse_yarn()?;
            self.scaling(&full)?
        };
        Ok(((self.theta(&full, "rope_theta", 1e6)?, scaling), self.theta(&sliding, "rope_theta", 1e6)?))
    }

    /// Gemma's: a section for each type of layer, or `rope_theta` and `rope_scaling` for full attention and
    /// `rope_local_base_freq` for windows.
    fn ropes_by_type(&self) -> Result<(Rope, f64), ConfigJsonError> {
        let sections = self.object("rope_parameters")?;
        if let Some(key) = sections.keys().find(|key| !["full_attention", "sliding_attention"].contains(&key.as_str()))
        {
            let hint =
                format!("`{key}` is no type of layer: sections full_attention and sliding_attention are expected");
            return Err(self.unsupported("rope_parameters", &Value::Object(sections), &hint));
        }
        let sections = Reader { section: "rope_parameters", fields: &sections };
        let (mut full, sliding) = (sections.object("full_attention")?, sections.object("sliding_attention")?);
        let scaling = self.object("rope_scaling")?;
        let section = if scaling.is_empty() { FULL } else { "rope_scaling" };
        full.extend(scaling);
        let sliding = Reader { section: SLIDING, fields: &sliding };
        sliding.expect("rope_type", |v| v.as_str() == Some("default"), "supported for windows: default")?;
        let full = Reader { section, fields: &full };
        full.refuse_yarn()?;
        let rope = self.rope_of(&full, "rope_theta", 1e6)?;
        let (local, _) = self.rope_of(&sliding, "rope_local_base_freq", 1e4)?;
        Ok((rope, local))
    }

    /// A section; a missing one counts as empty.
    pub(super) fn object(&self, key: &str) -> Result<Map<String, Value>, ConfigJsonError> {
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
        Ok((self.theta(section, key, default_theta)?, self.scaling(section)?))
    }

    fn theta(&self, section: &Reader<'_>, key: &str, default: f64) -> Result<f64, ConfigJsonError> {
        let theta = match section.number("rope_theta")? {
            Some(theta) => theta,
            None => self.number(key)?.unwrap_or(default),
        };
        if theta.is_finite() && theta > 0.0 {
            return Ok(theta);
        }
        Err(self.bad(key, format!("must be positive, found {theta}")))
    }

    /// As in transformers' `convert_rope_params_to_dict`, a non-empty `rope_scaling` takes precedence.
    pub(super) fn rope_section(&self) -> &'static str {
        let empty = |v: &Value| v.as_object().is_some_and(Map::is_empty);
        let scaling = self.get("rope_scaling").is_some_and(|v| !empty(v));
        if scaling || self.get("rope_parameters").is_none() { "rope_scaling" } else { "rope_parameters" }
    }

    fn scaling(&self, rope: &Reader<'_>) -> Result<Option<RopeScaling>, ConfigJsonError> {
        let name = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
        let neutral = |key: &String| {
            ["rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"].contains(&key.as_str())
        };
        match rope.get(name) {
            None if rope.fields.keys().all(neutral) => Ok(None),
            None => {
                let section = Value::Object(rope.fields.clone());
                Err(self.unsupported(rope.section, &section, "the key `rope_type` is missing"))
            }
            Some(v) => match v.as_str() {
                Some("default") => Ok(None),
                Some("linear") => Ok(Some(RopeScaling::Linear { factor: rope.positive("factor")? })),
                Some("dynamic") => Ok(Some(RopeScaling::Dynamic { factor: rope.positive("factor")? })),
                Some("llama3") => self.llama3(rope).map(Some),
                Some("yarn") => self.yarn(rope).map(Some),
                _ => Err(rope.unsupported(name, v, &self.way_out_of_scaling(v, rope))),
            },
        }
    }

    /// In families with a section for each type of layer: the factor on cosines and sines would be that of the layers
    /// with full attention alone, and here it is that of all layers.
    fn refuse_yarn(&self) -> Result<(), ConfigJsonError> {
        let hint = "in this family, whose layers with a window have positions of their own, there is no YaRN";
        let key = if self.get("rope_type").is_some() { "rope_type" } else { "type" };
        self.expect(key, |v| v.as_str() != Some("yarn"), hint)
    }

    /// What to do about a scaling that is not supported.
    fn way_out_of_scaling(&self, name: &Value, rope: &Reader<'_>) -> String {
        const SUPPORTED: &str = "supported rope types: default, linear, dynamic, llama3, and yarn where all layers \
                                 turn alike";
        if !matches!(name.as_str(), Some("longrope" | "su")) {
            return SUPPORTED.into();
        }
        let stated = |reader: &Reader<'_>| reader.get(ORIGINAL).and_then(Value::as_u64);
        let original = stated(rope).or_else(|| stated(self));
        let length = original.map_or_else(|| format!("`{ORIGINAL}` tokens"), |n| format!("{n} tokens"));
        let limit = original.map_or_else(|| "that number".to_owned(), |n| n.to_string());
        // The other section also has the base.
        let without = if rope.section == "rope_scaling" {
            "remove `rope_scaling`".to_owned()
        } else {
            let key = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
            format!("let `{}.{key}` be \"default\"", rope.section)
        };
        format!(
            "{SUPPORTED}, and longrope in Phi; only where every `short_factor` is 1, sequences within the original \
             {length} do almost without it: {without} in config.json and set `max_position_embeddings` to {limit}; \
             otherwise take a model without it"
        )
    }

    fn llama3(&self, rope: &Reader<'_>) -> Result<RopeScaling, ConfigJsonError> {
        let (low, high) = (rope.positive("low_freq_factor")?, rope.positive("high_freq_factor")?);
        if high <= low {
            let problem = format!("({high}) must be greater than low_freq_factor ({low})");
            return Err(rope.bad("high_freq_factor", problem));
        }
        Ok(RopeScaling::Llama3 {
            factor: rope.positive("factor")?,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: self.original(rope)?,
        })
    }
}
