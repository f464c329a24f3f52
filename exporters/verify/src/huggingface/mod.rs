//! A Hugging Face directory: `config.json` and safetensors, with a LoRA adapter on them perhaps.
//!
//! Both layouts of `config.json` are read: `rope_theta` and `rope_scaling`, and the `rope_parameters` of transformers
//! 5. What this crate does not know is an error; programs that write such models check more.

mod layers;
mod rope;

use std::path::Path;

use serde_json::{Map, Value};

use crate::{
    Activation, Architecture, Mixture, Model, VerifyError, Weights, file::json, lora::Adapted, safetensor::Safetensors,
};

/// Opens a directory, with the adapter in a folder.
///
/// # Errors
/// A file that cannot be read or a model that this crate does not know, by name.
pub fn open(dir: &Path, adapter: Option<&Path>) -> Result<Model, VerifyError> {
    let architecture = architecture(&dir.join("config.json"))?;
    let mut stored = Safetensors::of_folder(dir)?;
    stored.remove_tables();
    if fields(&dir.join("config.json"))?.1 {
        stored.rename(own_name);
    }
    if architecture.tied {
        // A copy of the embedding, which transformers passes over too.
        stored.remove("lm_head.weight");
    }
    let weights: Box<dyn Weights> = match adapter {
        None => Box::new(stored),
        Some(folder) => Box::new(Adapted::open(Box::new(stored), folder)?),
    };
    Ok(Model::new(architecture, weights))
}

/// The architecture in a `config.json`.
///
/// # Errors
/// A file that cannot be read, a missing size, or a family that this crate does not know.
pub fn architecture(path: &Path) -> Result<Architecture, VerifyError> {
    Config { fields: fields(path)?.0, path }.read()
}

/// The fields of a text model, and whether they are those of a text model within a model of images and text.
fn fields(path: &Path) -> Result<(Map<String, Value>, bool), VerifyError> {
    let Value::Object(mut fields) = json(path)? else {
        return Err(VerifyError::file(path, "is no JSON object"));
    };
    if !matches!(fields.get("model_type").and_then(Value::as_str), Some("mistral3" | "qwen3_5" | "gemma4")) {
        return Ok((fields, false));
    }
    let Some(Value::Object(mut text)) = fields.remove("text_config") else {
        return Err(VerifyError::file(path, "has no object `text_config`"));
    };
    match fields.remove("tie_word_embeddings") {
        // transformers goes by the whole's key, and writes `true` there beside a text model with its own head.
        Some(Value::Bool(false)) => _ = text.insert("tie_word_embeddings".into(), false.into()),
        Some(tied) => _ = text.entry("tie_word_embeddings").or_insert(tied),
        None => {}
    }
    Ok((text, true))
}

/// A parameter of a text model by the name that it has within the whole; `None` for what is no part of it.
fn own_name(name: &str) -> Option<String> {
    let inner = name.strip_prefix("language_model.lm_head.").map(|rest| format!("lm_head.{rest}"));
    let part = name.strip_prefix("model.language_model.").or_else(|| name.strip_prefix("language_model.model."));
    let own = inner.or_else(|| part.map(|rest| format!("model.{rest}")));
    own.or_else(|| name.starts_with("lm_head.").then(|| name.to_owned()))
}

struct Config<'a> {
    fields: Map<String, Value>,
    path: &'a Path,
}

/// A number that can be the size of something.
fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=1 << 31).contains(n))
}

impl Config<'_> {
    fn wrong(&self, message: impl std::fmt::Display) -> VerifyError {
        VerifyError::file(self.path, message)
    }

    fn size(&self, key: &str) -> Option<usize> {
        self.fields.get(key).and_then(as_size)
    }

    fn need(&self, key: &str) -> Result<usize, VerifyError> {
        self.size(key).ok_or_else(|| self.wrong(format!("`{key}` is no size")))
    }

    fn number(&self, key: &str, default: f64) -> f64 {
        self.fields.get(key).and_then(Value::as_f64).unwrap_or(default)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.fields.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn section(&self, key: &str) -> Map<String, Value> {
        self.fields.get(key).and_then(Value::as_object).cloned().unwrap_or_default()
    }

    fn read(&self) -> Result<Architecture, VerifyError> {
        let family = self.fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
        const FAMILIES: [&str; 14] = [
            "llama",
            "qwen2",
            "qwen3",
            "qwen3_moe",
            "smollm3",
            "gemma3_text",
            "gemma4_text",
            "olmo2",
            "ministral3",
            "phi3",
            "granitemoehybrid",
            "lfm2",
            "lfm3",
            "qwen3_5_text",
        ];
        let (gemma3, gemma4, smol) = (family == "gemma3_text", family == "gemma4_text", family == "smollm3");
        let gemma = gemma3 || gemma4;
        if !FAMILIES.contains(&family) {
            return Err(self.wrong(format!("`model_type` is {family:?}, which is not read here")));
        }
        let (olmo, granite) = (family == "olmo2", family == "granitemoehybrid");
        let (lfm2, lfm3, qwen3_5) = (family == "lfm2", family == "lfm3", family == "qwen3_5_text");
        if granite && self.fields.get("num_local_experts").and_then(Value::as_u64) != Some(0) {
            return Err(self.wrong("mixtures of experts are not read here"));
        }
        let (hidden_size, heads, count) =
            (self.need("hidden_size")?, self.need("num_attention_heads")?, self.need("num_hidden_layers")?);
        let absent = !self.fields.contains_key("num_key_value_heads");
        let default_kv = match family {
            "gemma3_text" | "gemma4_text" | "smollm3" | "lfm3" | "qwen3_moe" | "qwen3_5_text" if absent => 4,
            "ministral3" | "lfm2" if absent => 8,
            _ => heads,
        };
        let kv_heads = self.size("num_key_value_heads").unwrap_or(default_kv);
        let head_dim = self.size("head_dim").unwrap_or(match family {
            "qwen3" | "ministral3" | "lfm3" => 128,
            "gemma3_text" | "gemma4_text" | "qwen3_5_text" => 256,
            _ => hidden_size / heads,
        });
        if !heads.is_multiple_of(kv_heads) || head_dim < 2 || head_dim % 2 == 1 || count > 1024 {
            return Err(self.wrong("its heads, their width or its layers are no sizes of a model"));
        }
        let scalar = match family {
            "gemma3_text" => self.number("query_pre_attn_scalar", 256.0),
            "gemma4_text" => 1.0,
            _ => head_dim as f64,
        };
        let multiplier = |key: &str| if granite { self.number(key, 1.0) } else { 1.0 };
        let rope = self.rope();
        Ok(Architecture {
            hidden_size,
            intermediate_size: match family {
                "granitemoehybrid" => self.need("shared_intermediate_size")?,
                "lfm2" => self.cut_width()?,
                _ => self.need("intermediate_size")?,
            },
            mixture: self.mixture(family),
            vocab_size: self.need("vocab_size")?,
            positions: self.need("max_position_embeddings")?,
            heads,
            kv_heads,
            head_dim,
            layers: self.layers(family, count, head_dim)?,
            attention_scale: if granite { multiplier("attention_multiplier") } else { scalar.sqrt().recip() },
            epsilon: match family {
                "lfm2" | "lfm3" => self.number("norm_eps", 1e-5),
                "olmo2" | "ministral3" | "phi3" => self.number("rms_norm_eps", 1e-5),
                _ => self.number("rms_norm_eps", 1e-6),
            },
            embedding_scale: if gemma { (hidden_size as f64).sqrt() } else { multiplier("embedding_multiplier") },
            residual_scale: multiplier("residual_multiplier"),
            logit_divisor: multiplier("logits_scaling"),
            turn_scale: self.turn_scale(family, &rope),
            beyond: self.beyond(family, &rope, head_dim)?,
            growth: self.growth(family, &rope),
            head_norms: gemma || lfm2 || lfm3 || qwen3_5 || family == "qwen3" || family == "qwen3_moe",
            value_norms: gemma4,
            logit_cap: self.fields.get("final_logit_softcapping").and_then(Value::as_f64).filter(|_| gemma4),
            width_norms: olmo,
            gated: qwen3_5,
            input_norms: !olmo,
            output_norms: gemma || olmo || lfm3,
            activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
            tied: match family {
                "lfm2" => self.flag("tie_embedding", self.flag("tie_word_embeddings", true)),
                _ => self.flag("tie_word_embeddings", gemma || smol || lfm3),
            },
            norm_offset: if gemma3 || qwen3_5 { 1.0 } else { 0.0 },
            interleaved: false,
            tiled: false,
        })
    }

    /// Experts, with the defaults of transformers. Which layers have them is seen by their routers.
    fn mixture(&self, family: &str) -> Option<Mixture> {
        let count = self.size("num_experts").or_else(|| self.size("num_local_experts"));
        (family == "qwen3_moe").then(|| Mixture {
            count: count.unwrap_or(128),
            per_token: self.size("num_experts_per_tok").unwrap_or(8),
            width: self.size("moe_intermediate_size").unwrap_or(768),
            normalised: self.flag("norm_topk_prob", false),
        })
    }

    /// The width of LFM2's MLP: two thirds of the stated one, rounded up.
    fn cut_width(&self) -> Result<usize, VerifyError> {
        let stated = self.size("block_ff_dim").map_or_else(|| self.need("intermediate_size"), Ok)?;
        if !self.flag("block_auto_adjust_ff_dim", true) {
            return Ok(stated);
        }
        let cut = 2 * stated / 3;
        if self.fields.get("block_ffn_dim_multiplier").is_some_and(Value::is_null) {
            return Ok(cut);
        }
        let multiple = self.size("block_multiple_of").unwrap_or(256);
        let scaled = (self.number("block_ffn_dim_multiplier", 1.0) * cut as f64) as usize;
        Ok(scaled.div_ceil(multiple).saturating_mul(multiple))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn both_layouts_of_the_golden_models_are_one_architecture() {
        for name in harness::golden_models() {
            let folder = harness::golden_model_dir(&name);
            let hub = architecture(&folder.join("config.json")).unwrap();
            let five = architecture(&folder.join("config.transformers5.json")).unwrap();
            assert_eq!(hub.difference(&five), None, "{}", folder.display());
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let whole = fs::read_to_string(harness::golden_dir().join("models/llama/config.json")).unwrap();
        for (text, words) in [
            (whole.replace("\"llama\"", "\"gpt2\""), "`model_type` is \"gpt2\""),
            (whole.replace("\"hidden_size\": 64", "\"hidden_size\": 0"), "`hidden_size` is no size"),
            (whole.replace("\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"ntk\"}"), "type \"ntk\""),
            (whole.replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"), "no sizes of a model"),
            ("[]".into(), "is no JSON object"),
        ] {
            fs::write(&path, text).unwrap();
            let error = architecture(&path).unwrap_err().to_string();
            assert!(error.contains("config.json: ") && error.contains(words), "{error}");
        }
    }
}
