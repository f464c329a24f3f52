//! A Hugging Face directory: `config.json` and safetensors, with a LoRA adapter on them perhaps.
//!
//! Both layouts of `config.json` are read: `rope_theta` and `rope_scaling`, and the `rope_parameters` of transformers
//! 5. What this crate does not know is an error; programs that write such models check more.

use std::{f64::consts::TAU, path::Path};

use serde_json::{Map, Value};

use crate::{
    Activation, Architecture, Layer, Mixer, Mixture, Model, VerifyError, Weights, architecture::frequencies,
    file::json, lora::Adapted, safetensor::Safetensors,
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
    if let Some(tied) = fields.remove("tie_word_embeddings") {
        let _ = text.entry("tie_word_embeddings").or_insert(tied);
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

    fn layers(&self, family: &str, count: usize, head_dim: usize) -> Result<Vec<Layer>, VerifyError> {
        // Families with a section of rotary positions for each type of attention.
        let (lfm3, gemma4) = (family == "lfm3", family == "gemma4_text");
        let by_type = lfm3 || gemma4 || family == "gemma3_text";
        let wide = if gemma4 { self.width_of_full(head_dim) } else { head_dim };
        let sections = self.section("rope_parameters");
        let part = |name: &str| sections.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        // A `rope_scaling` that says something goes before transformers 5's section.
        let mut global = if by_type { part("full_attention") } else { sections.clone() };
        if (lfm3 || gemma4) && sections.is_empty() {
            let share = if lfm3 { 0.5 } else { 0.25 };
            global
                .extend([("rope_type".into(), "proportional".into()), ("partial_rotary_factor".into(), share.into())]);
        }
        let scaling = self.section("rope_scaling");
        if by_type {
            global.extend(scaling);
        } else if !scaling.is_empty() {
            global = scaling;
        }
        let theta = match family {
            "smollm3" => 2e6,
            "gemma3_text" | "gemma4_text" | "lfm2" | "lfm3" => 1e6,
            _ => 1e4,
        };
        let turned = if ["phi3", "qwen3_5_text"].contains(&family) { self.turned(&global, head_dim) } else { wide };
        let global = self.scaled(&global, self.number("rope_theta", theta), turned)?;
        let local = part("sliding_attention").get("rope_theta").and_then(Value::as_f64);
        let local = frequencies(local.unwrap_or_else(|| self.number("rope_local_base_freq", 1e4)), head_dim);
        let everywhere = ["phi3", "ministral3"].contains(&family);
        let slides = (by_type || everywhere || self.flag("use_sliding_window", false)) && family != "llama";
        let absent = !everywhere && !self.fields.contains_key("sliding_window");
        let usual = match family {
            "lfm3" => 256,
            "gemma4_text" => 512,
            _ => 4096,
        };
        let window = self.size("sliding_window").or(absent.then_some(usual));
        let window = window.filter(|&window| !everywhere || Some(window) < self.size("max_position_embeddings"));
        let layer = |index: usize| {
            if let Some(mixer) = self.state(family, index) {
                return Layer::of(mixer);
            }
            let turns = match family {
                "smollm3" => self.turns(index),
                "granitemoehybrid" => self.fields.get("position_embedding_type") == Some(&"rope".into()),
                _ => true,
            };
            let slides = slides && self.slides(index, family, turns);
            let chosen = if by_type && slides { &local } else { &global };
            Layer::attention(turns.then(|| chosen.clone()), window.filter(|_| slides))
        };
        let mut layers: Vec<Layer> = (0..count).map(layer).collect();
        if gemma4 {
            let own = count.saturating_sub(self.size("num_kv_shared_layers").unwrap_or(0));
            for index in 0..count {
                layers[index].head_dim = (wide != head_dim && layers[index].window.is_none()).then_some(wide);
                let same = |earlier: &usize| layers[*earlier].window == layers[index].window;
                let source = (0..own).rev().find(same).filter(|_| index >= own);
                layers[index].reads = source;
            }
        }
        Ok(layers)
    }

    /// Width of the heads of Gemma 4's layers with full attention: for single layers, as transformers 5 writes it, or
    /// for all of them.
    fn width_of_full(&self, head_dim: usize) -> usize {
        match self.fields.get("per_layer_config").and_then(Value::as_object) {
            Some(layers) => {
                let widths = layers.values().filter_map(|layer| layer.get("head_dim").and_then(as_size));
                widths.max().unwrap_or(head_dim)
            }
            None => self.size("global_head_dim").unwrap_or(512),
        }
    }

    /// What a layer has in place of attention.
    fn state(&self, family: &str, index: usize) -> Option<Mixer> {
        let stated = self.fields.get("layer_types").and_then(|types| types.get(index)).and_then(Value::as_str);
        let size = |key: &str, default: usize| self.size(key).unwrap_or(default);
        match family {
            "lfm2" => {
                let full = self.fields.get("full_attn_idxs").and_then(Value::as_array);
                let attends = full.is_none_or(|full| full.contains(&index.into()));
                let conv = stated.map_or(!attends, |stated| stated == "conv");
                conv.then(|| Mixer::ShortConv(size("conv_L_cache", 3)))
            }
            "lfm3" => {
                let attends = index % 4 == 2 || index > 0 && index.is_multiple_of(4);
                let conv = stated.map_or(!attends, |stated| stated == "conv");
                conv.then(|| Mixer::ShortConv(size("conv_L_cache", 7)))
            }
            "qwen3_5_text" => {
                let attends = (index + 1).is_multiple_of(size("full_attention_interval", 4));
                let rule = stated.map_or(!attends, |stated| stated == "linear_attention");
                rule.then(|| Mixer::DeltaRule {
                    key_heads: size("linear_num_key_heads", 16),
                    value_heads: size("linear_num_value_heads", 32),
                    key_dim: size("linear_key_head_dim", 128),
                    value_dim: size("linear_value_head_dim", 128),
                    kernel: size("linear_conv_kernel_dim", 4),
                })
            }
            "granitemoehybrid" => {
                let mamba = stated.is_none_or(|stated| ["mamba", "linear_attention"].contains(&stated));
                let heads = size("mamba_n_heads", 128);
                let inner = size("mamba_expand", 2) * size("hidden_size", 0);
                mamba.then(|| Mixer::Mamba {
                    heads,
                    head_dim: size("mamba_d_head", inner / heads),
                    groups: size("mamba_n_groups", 1),
                    state_dim: size("mamba_d_state", 256),
                    kernel: size("mamba_d_conv", 4),
                })
            }
            _ => None,
        }
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

    /// Whether a layer of SmolLM3 has rotary positions: its list says 1 for layers that have them.
    fn turns(&self, index: usize) -> bool {
        let listed = self.fields.get("no_rope_layers").and_then(|list| list.get(index)).and_then(Value::as_u64);
        let interval = self.size("no_rope_layer_interval").unwrap_or(4);
        listed.map_or(!(index + 1).is_multiple_of(interval), |turns| turns == 1)
    }

    /// Whether a layer attends to a window alone.
    fn slides(&self, index: usize, family: &str, turns: bool) -> bool {
        if let Some(types) = self.fields.get("layer_types").and_then(Value::as_array) {
            return types.get(index).and_then(Value::as_str) == Some("sliding_attention");
        }
        match family {
            "gemma4_text" => !(index + 1).is_multiple_of(6) && Some(index + 1) != self.size("num_hidden_layers"),
            "gemma3_text" => !(index + 1).is_multiple_of(self.size("sliding_window_pattern").unwrap_or(6)),
            "smollm3" => !turns,
            "lfm3" => index.is_multiple_of(4),
            "phi3" | "ministral3" => true,
            _ => index >= self.fields.get("max_window_layers").and_then(Value::as_u64).unwrap_or(28) as usize,
        }
    }

    /// The section of rotary positions that counts, of the families that have one.
    fn rope(&self) -> Map<String, Value> {
        let scaling = self.section("rope_scaling");
        if scaling.is_empty() { self.section("rope_parameters") } else { scaling }
    }

    /// Entries of a head that are turned.
    fn turned(&self, rope: &Map<String, Value>, head_dim: usize) -> usize {
        let key = "partial_rotary_factor";
        let is_qwen3_5 = self.fields.get("model_type").and_then(Value::as_str) == Some("qwen3_5_text");
        // A null is no factor, and not the family's.
        let default = if is_qwen3_5 && !self.fields.contains_key(key) { 0.25 } else { 1.0 };
        let share = rope.get(key).and_then(Value::as_f64).unwrap_or_else(|| self.number(key, default));
        (head_dim as f64 * share) as usize
    }

    fn original(&self, rope: &Map<String, Value>) -> f64 {
        let key = "original_max_position_embeddings";
        self.fields.get(key).or(rope.get(key)).and_then(Value::as_f64).unwrap_or(4096.0)
    }

    /// Factor on cosines and sines of YaRN and of longrope.
    fn turn_scale(&self, family: &str, rope: &Map<String, Value>) -> f64 {
        let number = |key: &str| rope.get(key).and_then(Value::as_f64);
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str);
        match (family, kind) {
            _ if number("attention_factor").is_some() => number("attention_factor").unwrap_or(1.0),
            ("phi3", Some("longrope" | "su" | "yarn")) => {
                let original = self.original(rope);
                let factor = self.number("max_position_embeddings", original) / original;
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
            }
            ("ministral3", Some("yarn")) => {
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
    fn beyond(
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
        Ok(Some((self.original(rope) as usize, self.divided(rope, "long_factor", &plain)?)))
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
    fn growth(&self, family: &str, rope: &Map<String, Value>) -> Option<(usize, f64)> {
        let factor = rope.get("llama_4_scaling_beta").and_then(Value::as_f64)?;
        (family == "ministral3").then(|| (self.original(rope) as usize, factor))
    }

    /// The frequencies of a section: its base, or else `theta`, and its scaling.
    fn scaled(&self, rope: &Map<String, Value>, theta: f64, head_dim: usize) -> Result<Vec<f64>, VerifyError> {
        let family = self.fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let number = |key: &str| rope.get(key).and_then(Value::as_f64);
        let need = |key: &str| number(key).ok_or_else(|| self.wrong(format!("rotary positions lack `{key}`")));
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
        let plain = frequencies(number("rope_theta").unwrap_or(theta), head_dim);
        match kind {
            "default" => Ok(plain),
            "linear" => {
                let factor = need("factor")?;
                Ok(plain.iter().map(|frequency| frequency / factor).collect())
            }
            "llama3" => {
                let key = "original_max_position_embeddings";
                let stated = self.fields.get(key).and_then(Value::as_f64).or_else(|| number(key));
                let length = stated.unwrap_or_else(|| self.number("max_position_embeddings", 0.0));
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
            "yarn" if family == "ministral3" => {
                let theta = number("rope_theta").unwrap_or(theta);
                let (factor, length) = (need("factor")?, need("original_max_position_embeddings")?);
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
            (whole.replace("\"rope_scaling\": null", "\"rope_scaling\": {\"type\": \"yarn\"}"), "type \"yarn\""),
            (whole.replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3"), "no sizes of a model"),
            ("[]".into(), "is no JSON object"),
        ] {
            fs::write(&path, text).unwrap();
            let error = architecture(&path).unwrap_err().to_string();
            assert!(error.contains("config.json: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn llama_3_turns_fast_pairs_as_before_and_slow_ones_slower() {
        let of = |wavelength| divisor(wavelength, 8192.0, 8.0, 1.0, 4.0);
        assert_eq!((of(100.0), of(10_000.0)), (1.0, 8.0));
        let half = of(8192.0 / 2.5);
        assert!((half - 1.0 / (0.5 / 8.0 + 0.5)).abs() < 1e-12, "{half}");
    }
}
