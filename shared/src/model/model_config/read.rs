//! Reading and checking the keys of a `config.json`.

use serde_json::{Map, Value};

mod experts;
mod gemma4;
mod layers;
mod rope;
mod states;

use self::rope::Ropes;
use super::{super::python_json, Architecture, ConfigJsonError, Head, LayerKind, ModelConfig};

const SUPPORTED: &str = "supported: llama, qwen2, qwen3, qwen3_moe, smollm3, gemma3_text, gemma4, gemma4_text, olmo2, \
    ministral3, phi3, granitemoehybrid, lfm2, lfm3, qwen3_5";
const WHOLE_HEAD: &str = "rotary positions must cover the whole head";

/// Keys of related models that mean another computation.
const REFUSED: [(&str, &str); 2] =
    [("quantization_config", QUANTISED), ("attn_logit_softcapping", "the models here do without")];
const DENSE: &str = "mixtures of experts are not supported in this family, but in qwen3_moe; take a dense model of the \
    family";
/// Keys that count experts.
const EXPERTS: [&str; 2] = ["num_experts", "num_local_experts"];
const QUANTISED: &str = "quantised weights are not trained here; take the repository of the whole weights, which such \
    a model is made from, or load it in transformers, `model.dequantize()`, save it and remove the key";

/// Reads the text of a `config.json`.
pub(super) fn config(text: &str) -> Result<ModelConfig, ConfigJsonError> {
    let foreign = shared_bounds::foreign_content(text.as_bytes());
    let wrong = |e: serde_json::Error| ConfigJsonError::Json(foreign.map_or_else(|| e.to_string(), Into::into));
    let value = python_json::from_str(text).map_err(wrong)?;
    let Value::Object(map) = value else {
        return Err(ConfigJsonError::Json("the top level is not an object".into()));
    };
    let whole = Reader { section: "", fields: &map };
    match whole.text_config()? {
        None => whole.read(),
        Some(text) => {
            let config = Reader { section: "text_config", fields: &text }.read()?;
            Ok(ModelConfig { wrapped: true, ..config })
        }
    }
}

/// Models of images and text, each with the text models that are read in it.
const WRAPPERS: [(&str, &str); 3] =
    [("mistral3", "ministral3"), ("qwen3_5", "qwen3_5_text"), ("gemma4", "gemma4_text")];

/// Most layers of a model; the deepest published ones have some hundred.
const MOST_LAYERS: usize = 1024;
/// Largest value of all other sizes, so that no product of two overflows.
const MOST: u64 = 1 << 31;
/// Most parameters: a thousand times those of the largest models.
const MOST_PARAMETERS: u128 = 1 << 50;

/// Families whose configuration classes have newer defaults for missing keys.
fn newer(architecture: Architecture) -> bool {
    use Architecture::{Gemma3, Gemma4, Lfm2, Lfm3, SmolLm3};
    matches!(architecture, SmolLm3 | Gemma3 | Gemma4 | Lfm2 | Lfm3)
}

/// Families that may turn a part of each head, with the part where no key states it.
fn rotary_share(architecture: Architecture) -> Option<f64> {
    match architecture {
        Architecture::Phi3 => Some(1.0),
        Architecture::Qwen3_5 => Some(0.25),
        _ => None,
    }
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
                Some(n) if (1..=MOST).contains(&n) => Ok(n as usize),
                Some(n) if n > MOST => Err(self.bad(key, format!("must be at most {MOST}, found {n}"))),
                _ => Err(self.bad(key, format!("must be a positive whole number, found {v}"))),
            })
            .transpose()
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ConfigJsonError> {
        if self.get(key).and_then(Value::as_u64) == Some(0) { Ok(Some(0)) } else { self.size(key) }
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

    /// The text model's configuration in a model of images and text, whose other parts are not read.
    fn text_config(&self) -> Result<Option<Map<String, Value>>, ConfigJsonError> {
        let kind = self.get("model_type").and_then(Value::as_str);
        let Some((wrapper, family)) = WRAPPERS.iter().find(|(wrapper, _)| Some(*wrapper) == kind) else {
            return Ok(None);
        };
        self.expect("quantization_config", |_| false, QUANTISED)?;
        let mut text = self.object("text_config")?;
        if text.is_empty() {
            return Err(self.bad("text_config", "is missing"));
        }
        let reader = Reader { section: "text_config", fields: &text };
        reader.expect("model_type", |v| v.as_str() == Some(family), &format!("supported in {wrapper}: {family}"))?;
        // The key of the whole counts, as in transformers; but that writes `true` there beside a text model with its
        // own head, which then has `false`.
        let [whole, own] = [self, &reader].map(|reader| reader.get("tie_word_embeddings"));
        let tied = if whole == Some(&Value::Bool(true)) { own.or(whole) } else { whole.or(own) }.cloned();
        text.insert("tie_word_embeddings".into(), tied.unwrap_or_default());
        // The class of the whole is no class of a text model.
        text.remove("architectures");
        Ok(Some(text))
    }

    fn architecture(&self) -> Result<Architecture, ConfigJsonError> {
        let value = self.get("model_type").ok_or_else(|| self.bad("model_type", "is missing"))?;
        match value.as_str() {
            Some("llama") => Ok(Architecture::Llama),
            Some("qwen2") => Ok(Architecture::Qwen2),
            Some("qwen3") => Ok(Architecture::Qwen3),
            Some("smollm3") => Ok(Architecture::SmolLm3),
            Some("gemma3_text") => Ok(Architecture::Gemma3),
            Some("gemma4_text") => Ok(Architecture::Gemma4),
            Some("olmo2") => Ok(Architecture::Olmo2),
            Some("ministral3") => Ok(Architecture::Ministral3),
            Some("phi3") => Ok(Architecture::Phi3),
            Some("granitemoehybrid") => Ok(Architecture::GraniteMoeHybrid),
            Some("qwen3_moe") => Ok(Architecture::Qwen3Moe),
            Some("lfm2") => Ok(Architecture::Lfm2),
            Some("lfm3") => Ok(Architecture::Lfm3),
            Some("qwen3_5_text") => Ok(Architecture::Qwen3_5),
            Some("gemma3") => {
                let hint = "a model of images and text; the text model alone, gemma3_text, is supported";
                Err(self.unsupported("model_type", value, hint))
            }
            _ => Err(self.unsupported("model_type", value, SUPPORTED)),
        }
    }

    /// The head, by the class name in `architectures`; without one, a language model.
    fn head(&self, architecture: Architecture) -> Result<Head, ConfigJsonError> {
        let Some(value) = self.get("architectures") else {
            return Ok(Head::LanguageModel);
        };
        let name = value.get(0).and_then(Value::as_str).unwrap_or_default();
        if name.ends_with("ForCausalLM") {
            return Ok(Head::LanguageModel);
        }
        if architecture == Architecture::Gemma4 {
            return Err(self.unsupported("architectures", value, "supported in this family: ...ForCausalLM"));
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

    fn head_dim(
        &self,
        architecture: Architecture,
        hidden_size: usize,
        num_attention_heads: usize,
    ) -> Result<usize, ConfigJsonError> {
        match self.size("head_dim")? {
            Some(n) if n % 2 == 0 => Ok(n),
            Some(n) => Err(self.bad("head_dim", format!("must be even for rotary positions, found {n}"))),
            // transformers' classes fall back to 128, not to a quotient.
            None if matches!(architecture, Architecture::Qwen3 | Architecture::Ministral3 | Architecture::Lfm3) => {
                Ok(128)
            }
            None if matches!(architecture, Architecture::Gemma3 | Architecture::Gemma4 | Architecture::Qwen3_5) => {
                Ok(256)
            }
            None if hidden_size.is_multiple_of(2 * num_attention_heads) => Ok(hidden_size / num_attention_heads),
            None => Err(self.bad(
                "head_dim",
                format!(
                    "is missing and hidden_size / num_attention_heads ({hidden_size} / {num_attention_heads}) is no \
                     even number"
                ),
            )),
        }
    }

    /// transformers' defaults: SmolLM3Config, Gemma3TextConfig, Gemma4TextConfig, Qwen3_5TextConfig, Qwen3MoeConfig,
    /// Ministral3Config, Lfm2Config and Lfm3Config have a number where the key is missing; null means the query heads.
    fn default_key_value_heads(&self, architecture: Architecture, num_attention_heads: usize) -> usize {
        match architecture {
            _ if self.fields.contains_key("num_key_value_heads") => num_attention_heads,
            Architecture::SmolLm3
            | Architecture::Gemma3
            | Architecture::Gemma4
            | Architecture::Qwen3_5
            | Architecture::Lfm3
            | Architecture::Qwen3Moe => 4,
            Architecture::Ministral3 | Architecture::Lfm2 => 8,
            _ => num_attention_heads,
        }
    }

    /// Factor on attention scores.
    fn attention_scale(&self, architecture: Architecture, head_dim: usize) -> Result<f64, ConfigJsonError> {
        if architecture == Architecture::GraniteMoeHybrid {
            return self.multiplier("attention_multiplier");
        }
        let scalar = match architecture {
            Architecture::Gemma4 => 1.0,
            Architecture::Gemma3 if self.get("query_pre_attn_scalar").is_some() => {
                self.positive("query_pre_attn_scalar")?
            }
            Architecture::Gemma3 => 256.0,
            _ => head_dim as f64,
        };
        Ok(scalar.powf(-0.5))
    }

    /// A factor of Granite; 1 if it is missing.
    fn multiplier(&self, key: &str) -> Result<f64, ConfigJsonError> {
        if self.get(key).is_none() { Ok(1.0) } else { self.positive(key) }
    }

    /// Entries of a head that rotary positions turn.
    fn rotary_dim(&self, architecture: Architecture, head_dim: usize) -> Result<usize, ConfigJsonError> {
        const KEY: &str = "partial_rotary_factor";
        let Some(default) = rotary_share(architecture) else { return Ok(head_dim) };
        let section = self.rope_section();
        let fields = self.object(section)?;
        let share = match (Reader { section, fields: &fields }).number(KEY)? {
            Some(share) => share,
            // transformers takes a null for no factor, and not for its default.
            None => self.number(KEY)?.unwrap_or(if self.fields.contains_key(KEY) { 1.0 } else { default }),
        };
        // Rounded down, as in transformers.
        let entries = (head_dim as f64 * share) as usize;
        if !(share > 0.0 && share <= 1.0) || entries == 0 || !entries.is_multiple_of(2) {
            let problem = format!("({share}) must make an even number of the {head_dim} entries of a head");
            return Err(self.bad(KEY, problem));
        }
        Ok(entries)
    }

    fn rms_norm_eps(&self, architecture: Architecture) -> Result<f64, ConfigJsonError> {
        use Architecture::{Lfm2, Lfm3, Ministral3, Olmo2, Phi3};
        let key = match architecture {
            // LFM3's class takes the usual name for the other one, also where both are given.
            Lfm3 if self.get("rms_norm_eps").is_some() => "rms_norm_eps",
            Lfm2 | Lfm3 => "norm_eps",
            _ => "rms_norm_eps",
        };
        match self.number(key)? {
            None if [Olmo2, Ministral3, Phi3, Lfm2, Lfm3].contains(&architecture) => Ok(1e-5),
            None => Ok(1e-6),
            Some(eps) if eps.is_finite() && eps >= 0.0 => Ok(eps),
            Some(eps) => Err(self.bad(key, format!("must not be negative, found {eps}"))),
        }
    }

    fn read(&self) -> Result<ModelConfig, ConfigJsonError> {
        let architecture = self.architecture()?;
        let hidden_size = self.required_size("hidden_size")?;
        let num_attention_heads = self.required_size("num_attention_heads")?;
        let num_hidden_layers = self.required_size("num_hidden_layers")?;
        // Checked before anything is allocated for each layer.
        if num_hidden_layers > MOST_LAYERS {
            let problem = format!("must be at most {MOST_LAYERS}, found {num_hidden_layers}");
            return Err(self.bad("num_hidden_layers", problem));
        }
        let num_key_value_heads = self
            .size("num_key_value_heads")?
            .unwrap_or(self.default_key_value_heads(architecture, num_attention_heads));
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            return Err(self.bad(
                "num_key_value_heads",
                format!("({num_key_value_heads}) must divide num_attention_heads ({num_attention_heads})"),
            ));
        }
        let head_dim = self.head_dim(architecture, hidden_size, num_attention_heads)?;
        self.refuse_unsupported(architecture)?;
        let global_head_dim = self.global_head_dim(architecture, num_hidden_layers, head_dim)?;
        let rotary_dim = self.rotary_dim(architecture, global_head_dim.unwrap_or(head_dim))?;
        let layers = self.layers(architecture, num_hidden_layers)?;
        let num_kv_shared_layers = self.shared_layers(architecture, &layers)?;
        let vocab_size = self.required_size("vocab_size")?;
        let Ropes { global: (rope_theta, rope_scaling), rope_local_theta, query_scaling } =
            self.ropes(architecture, rotary_dim)?;
        // Phi-3, Ministral 3 and LFM2 have no biases in attention, whatever the key says.
        let has_biases = ![Architecture::Phi3, Architecture::Ministral3, Architecture::Lfm2].contains(&architecture);
        let attention_bias = has_biases && self.flag("attention_bias", false)?;
        let granite = architecture == Architecture::GraniteMoeHybrid;
        let multiplier = |key| if granite { self.multiplier(key) } else { Ok(1.0) };
        let config = ModelConfig {
            architecture,
            hidden_size,
            intermediate_size: match architecture {
                // Granite has the width of experts, which this one does not have, under the usual key.
                Architecture::GraniteMoeHybrid => self.required_size("shared_intermediate_size")?,
                Architecture::Lfm2 => self.lfm2_inner_width()?,
                _ => self.required_size("intermediate_size")?,
            },
            double_wide_mlp: architecture == Architecture::Gemma4 && self.flag("use_double_wide_mlp", false)?,
            per_layer_input: self.per_layer_input(architecture, vocab_size)?,
            experts: self.experts(architecture, num_hidden_layers)?,
            num_hidden_layers,
            layers,
            num_attention_heads,
            num_key_value_heads,
            attention_scale: self.attention_scale(architecture, head_dim)?,
            head_dim,
            global_head_dim,
            num_kv_shared_layers,
            vocab_size,
            max_position_embeddings: self.required_size("max_position_embeddings")?,
            rms_norm_eps: self.rms_norm_eps(architecture)?,
            rotary_dim,
            rotary_local_dim: global_head_dim.map(|_| head_dim),
            rope_theta,
            rope_scaling,
            rope_local_theta,
            query_scaling,
            embedding_multiplier: multiplier("embedding_multiplier")?,
            residual_multiplier: multiplier("residual_multiplier")?,
            logits_scaling: multiplier("logits_scaling")?,
            logit_cap: self.logit_cap(architecture)?,
            qkv_bias: architecture == Architecture::Qwen2 || attention_bias,
            attention_output_bias: architecture != Architecture::Qwen2 && attention_bias,
            mlp_bias: [Architecture::Llama, Architecture::SmolLm3].contains(&architecture)
                && self.flag("mlp_bias", false)?,
            // The default of PreTrainedConfig is true; Llama and Qwen override it.
            tie_word_embeddings: match architecture {
                Architecture::Lfm2 if self.get("tie_embedding").is_some() => self.flag("tie_embedding", true)?,
                _ => self.flag("tie_word_embeddings", newer(architecture))?,
            },
            wrapped: false,
            head: self.head(architecture)?,
        };
        // Computed so that no product overflows: the matrices of a layer, and those outside the layers.
        let inner = config.intermediate_size.saturating_mul(if config.double_wide_mlp { 2 } else { 1 });
        let [hidden, inner, heads, width, vocabulary] =
            [config.hidden_size, inner, num_attention_heads, config.widest_head(), config.vocab_size]
                .map(|size| size as u128);
        let labels = if let Head::Score { labels } = config.head { labels as u128 } else { 0 };
        let of_experts = config.experts.as_ref().map_or(0, |experts| experts.count as u128 * experts.width as u128);
        let of_inputs = config.per_layer_input.map_or(0, |input| {
            let all = num_hidden_layers as u128 * input.width as u128;
            all.saturating_mul(input.vocab_size as u128 + 3 * hidden)
        });
        let mixer = |kind: &LayerKind| match *kind {
            LayerKind::Attention(_) => 4 * heads * width,
            LayerKind::ShortConv(conv) => 4 * hidden + conv.kernel as u128,
            LayerKind::DeltaRule(rule) => {
                let [keys, values] = [(rule.key_heads, rule.key_dim), (rule.value_heads, rule.value_dim)]
                    .map(|(heads, width)| heads as u128 * width as u128);
                (2 * keys + 3 * values).saturating_mul(rule.kernel as u128)
            }
            LayerKind::Mamba(mamba) => {
                let [inner, of_groups] = [(mamba.heads, mamba.head_dim), (mamba.groups, mamba.state_dim)]
                    .map(|(heads, width)| heads as u128 * width as u128);
                (3 * inner + 2 * of_groups).saturating_mul(mamba.kernel as u128)
            }
        };
        let mixer = config.layers.iter().map(mixer).max().unwrap_or(0);
        let layer = hidden.saturating_mul(mixer.saturating_add(3 * inner.max(of_experts)));
        let outside = of_inputs.saturating_add(hidden * (2 * vocabulary + labels));
        let parameters = layer.saturating_mul(num_hidden_layers as u128).saturating_add(outside);
        if parameters > MOST_PARAMETERS {
            let problem = format!("and the other sizes make a model of about {parameters} parameters");
            return Err(self.bad("hidden_size", problem));
        }
        Ok(config)
    }

    /// Refuses every key that would change the mathematics.
    fn refuse_unsupported(&self, architecture: Architecture) -> Result<(), ConfigJsonError> {
        let off = |v: &Value| v == &Value::Bool(false);
        let (key, name) = match architecture {
            Architecture::Gemma3 | Architecture::Gemma4 => ("hidden_activation", "gelu_pytorch_tanh"),
            _ => ("hidden_act", "silu"),
        };
        self.expect(key, |v| v.as_str() == Some(name), &format!("supported: {name}"))?;
        // In Gemma 4 the word concerns tokens of images alone.
        let of_images = |v: &Value| architecture == Architecture::Gemma4 && v.as_str() == Some("vision");
        self.expect("use_bidirectional_attention", |v| off(v) || of_images(v), "attention is causal")?;
        // transformers makes the attention of any family bidirectional where the key is false.
        self.expect("is_causal", |v| v == &Value::Bool(true), "attention is causal")?;
        if architecture == Architecture::Gemma4 {
            self.refuse_larger_gemma4()?;
        } else {
            self.expect("final_logit_softcapping", |_| false, "the models of this family here do without")?;
        }
        if rotary_share(architecture).is_none() {
            self.expect("partial_rotary_factor", |v| v.as_f64() == Some(1.0), WHOLE_HEAD)?;
        }
        self.expect("rope_interleaved", off, "rotary positions pair the two halves of a head")?;
        self.expect("use_mrope", off, "rotary positions of text only")?;
        let dense = |v: &Value| v.as_u64() == Some(0);
        if architecture != Architecture::Qwen3Moe {
            EXPERTS.iter().try_for_each(|key| self.expect(key, dense, DENSE))?;
        }
        if architecture == Architecture::GraniteMoeHybrid && self.get("num_local_experts").is_none() {
            return Err(self.bad("num_local_experts", format!("is missing, which means 8; 0 is needed ({DENSE})")));
        }
        for (key, hint) in REFUSED {
            self.expect(key, |_| false, hint)?;
        }
        Ok(())
    }

    fn expect(&self, key: &str, fine: impl Fn(&Value) -> bool, hint: &str) -> Result<(), ConfigJsonError> {
        match self.get(key) {
            Some(v) if !fine(v) => Err(self.unsupported(key, v, hint)),
            _ => Ok(()),
        }
    }
}
