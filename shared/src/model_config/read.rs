//! Reading and checking the keys of a `config.json`.

use serde_json::{Map, Value};

use super::{Architecture, ConfigJsonError, Head, ModelConfig, RopeScaling};

const SLIDING_WINDOW: &str = "sliding-window attention is not supported";
const WHOLE_HEAD: &str = "rotary positions must cover the whole head";

/// Keys of relatives of the three families that mean another computation.
const REFUSED: [&str; 5] =
    ["num_experts", "num_local_experts", "quantization_config", "attn_logit_softcapping", "final_logit_softcapping"];

/// Reads the text of a `config.json`.
pub(super) fn config(text: &str) -> Result<ModelConfig, ConfigJsonError> {
    let value: Value = serde_json::from_str(text).map_err(|e| ConfigJsonError::Json(e.to_string()))?;
    let Value::Object(map) = value else {
        return Err(ConfigJsonError::Json("the top level is not an object".into()));
    };
    Reader { section: "", fields: &map }.read()
}

/// Typed access to the keys of a `config.json`, or of a section in it.
struct Reader<'a> {
    section: &'static str,
    fields: &'a Map<String, Value>,
}

impl Reader<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|v| !v.is_null())
    }

    /// The key with its section, for messages.
    fn path(&self, key: &str) -> String {
        if self.section.is_empty() { key.to_owned() } else { format!("{}.{key}", self.section) }
    }

    fn bad(&self, key: &str, problem: impl Into<String>) -> ConfigJsonError {
        ConfigJsonError::Key { key: self.path(key), problem: problem.into() }
    }

    fn size(&self, key: &str) -> Result<Option<usize>, ConfigJsonError> {
        self.get(key)
            .map(|v| match v.as_u64() {
                Some(n) if n > 0 => Ok(n as usize),
                _ => Err(self.bad(key, format!("must be a positive whole number, found {v}"))),
            })
            .transpose()
    }

    fn required_size(&self, key: &str) -> Result<usize, ConfigJsonError> {
        self.size(key)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ConfigJsonError> {
        let number = |v: &Value| v.as_f64().ok_or_else(|| self.bad(key, format!("must be a number, found {v}")));
        self.get(key).map(number).transpose()
    }

    fn positive(&self, key: &str) -> Result<f64, ConfigJsonError> {
        match self.number(key)? {
            Some(n) if n.is_finite() && n > 0.0 => Ok(n),
            Some(n) => Err(self.bad(key, format!("must be positive, found {n}"))),
            None => Err(self.bad(key, "is missing")),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigJsonError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(v) => Err(self.bad(key, format!("must be true or false, found {v}"))),
        }
    }

    fn unsupported(&self, key: &str, value: &Value, hint: &str) -> ConfigJsonError {
        ConfigJsonError::Unsupported { key: self.path(key), value: value.to_string(), hint: hint.into() }
    }

    fn architecture(&self) -> Result<Architecture, ConfigJsonError> {
        let value = self.get("model_type").ok_or_else(|| self.bad("model_type", "is missing"))?;
        match value.as_str() {
            Some("llama") => Ok(Architecture::Llama),
            Some("qwen2") => Ok(Architecture::Qwen2),
            Some("qwen3") => Ok(Architecture::Qwen3),
            _ => Err(self.unsupported("model_type", value, "supported: llama, qwen2, qwen3")),
        }
    }

    /// By the class name in `architectures`; without one, a language model.
    fn head(&self) -> Result<Head, ConfigJsonError> {
        let Some(value) = self.get("architectures") else {
            return Ok(Head::LanguageModel);
        };
        let name = value.get(0).and_then(Value::as_str).unwrap_or_default();
        if name.ends_with("ForCausalLM") {
            return Ok(Head::LanguageModel);
        }
        if !name.ends_with("ForSequenceClassification") {
            return Err(self.unsupported(
                "architectures",
                value,
                "supported: ...ForCausalLM and ...ForSequenceClassification",
            ));
        }
        // transformers writes the labels' names; two labels are its default.
        let named = self.get("id2label").and_then(Value::as_object).map(Map::len).filter(|&n| n > 0);
        let labels = named.or(self.size("num_labels")?).unwrap_or(2);
        Ok(Head::Score { labels })
    }

    fn rope(&self) -> Result<(f64, Option<RopeScaling>), ConfigJsonError> {
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
            None => self.number("rope_theta")?.unwrap_or(10_000.0),
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

    fn head_dim(
        &self,
        architecture: Architecture,
        hidden_size: usize,
        num_attention_heads: usize,
    ) -> Result<usize, ConfigJsonError> {
        match self.size("head_dim")? {
            Some(n) if n % 2 == 0 => Ok(n),
            Some(n) => Err(self.bad("head_dim", format!("must be even for rotary positions, found {n}"))),
            // transformers' Qwen3Config falls back to 128, not to a quotient.
            None if architecture == Architecture::Qwen3 => Ok(128),
            None if hidden_size.is_multiple_of(2 * num_attention_heads) => Ok(hidden_size / num_attention_heads),
            None => Err(self.bad(
                "head_dim",
                format!(
                    "is missing and hidden_size / num_attention_heads ({hidden_size} / {num_attention_heads}) is no even number"
                ),
            )),
        }
    }

    fn rms_norm_eps(&self) -> Result<f64, ConfigJsonError> {
        match self.number("rms_norm_eps")? {
            None => Ok(1e-6),
            Some(eps) if eps.is_finite() && eps >= 0.0 => Ok(eps),
            Some(eps) => Err(self.bad("rms_norm_eps", format!("must not be negative, found {eps}"))),
        }
    }

    fn read(&self) -> Result<ModelConfig, ConfigJsonError> {
        let architecture = self.architecture()?;
        let hidden_size = self.required_size("hidden_size")?;
        let num_attention_heads = self.required_size("num_attention_heads")?;
        let num_hidden_layers = self.required_size("num_hidden_layers")?;
        let num_key_value_heads = self.size("num_key_value_heads")?.unwrap_or(num_attention_heads);
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            return Err(self.bad(
                "num_key_value_heads",
                format!("({num_key_value_heads}) must divide num_attention_heads ({num_attention_heads})"),
            ));
        }
        let head_dim = self.head_dim(architecture, hidden_size, num_attention_heads)?;
        let (rope_theta, rope_scaling) = self.rope()?;
        self.refuse_unsupported(architecture, num_hidden_layers)?;
        let attention_bias = self.flag("attention_bias", false)?;
        Ok(ModelConfig {
            architecture,
            hidden_size,
            intermediate_size: self.required_size("intermediate_size")?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            vocab_size: self.required_size("vocab_size")?,
            max_position_embeddings: self.required_size("max_position_embeddings")?,
            rms_norm_eps: self.rms_norm_eps()?,
            rope_theta,
            rope_scaling,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            attention_output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: architecture == Architecture::Llama && self.flag("mlp_bias", false)?,
            // Not PreTrainedConfig's default, which is true: all three families override it.
            tie_word_embeddings: self.flag("tie_word_embeddings", false)?,
            head: self.head()?,
        })
    }

    /// Refuses every key that would change the mathematics.
    fn refuse_unsupported(&self, architecture: Architecture, layers: usize) -> Result<(), ConfigJsonError> {
        let full_attention = |v: &Value| {
            v.as_array().is_some_and(|a| a.len() == layers && a.iter().all(|t| t.as_str() == Some("full_attention")))
        };
        let off = |v: &Value| v == &Value::Bool(false);
        self.expect("hidden_act", |v| v.as_str() == Some("silu"), "supported: silu")?;
        self.expect("use_sliding_window", off, SLIDING_WINDOW)?;
        // Qwen configs carry a window that `use_sliding_window` (false by default) leaves unused.
        if architecture == Architecture::Llama {
            self.expect("sliding_window", |_| false, SLIDING_WINDOW)?;
        }
        self.expect("layer_types", full_attention, "every layer must be full_attention")?;
        self.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
        self.expect("rope_interleaved", off, "rotary positions pair the two halves of a head")?;
        self.expect("use_mrope", off, "rotary positions of text only")?;
        for key in REFUSED {
            self.expect(key, |_| false, "the models here do without")?;
        }
        Ok(())
    }

    fn expect(&self, key: &str, fine: impl Fn(&Value) -> bool, hint: &str) -> Result<(), ConfigJsonError> {
        match self.get(key) {
            Some(v) if !fine(v) => Err(self.unsupported(key, v, hint)),
            _ => Ok(()),
        }
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
