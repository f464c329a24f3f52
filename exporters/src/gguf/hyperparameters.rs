//! The architecture as llama.cpp's keys, and the refusal of what they cannot say.

use shared::{Architecture, LayerKind, ModelConfig, RopeScaling, Rotary, ShortConv};

use super::{
    GgufType,
    metadata::{Metadata, Value},
    refused,
};
use crate::ExportError;

/// Every sixth layer of Gemma 3 attends to all positions, and every fourth layer of SmolLM3 has no rotary positions:
/// llama.cpp has no key for that in every version.
const GEMMA_PATTERN: usize = 6;
const SMOLLM_PATTERN: usize = 4;
/// Base of the rotary frequencies in layers of Gemma 3 with a window, likewise.
const GEMMA_LOCAL_THETA: f64 = 1e4;
/// Gemma 3 with so many layers has another factor on attention scores: llama.cpp knows it by that number.
const GEMMA_LARGEST: usize = 62;

/// Key of the number of heads of keys and values.
const KV_HEADS: &str = "attention.head_count_kv";

/// The version of the types in blocks.
const QUANTIZATION_VERSION: usize = 2;

/// llama.cpp's name of a family.
///
/// # Errors
/// A family that is not written here.
fn name_of(architecture: Architecture) -> Result<&'static str, ExportError> {
    let unknown = |family: &str| {
        Err(ExportError::Unsupported {
            key: "model_type".into(),
            value: format!("\"{family}\""),
            hint:
                "GGUF is written of llama, qwen2, qwen3, qwen3_moe, smollm3, gemma3_text and lfm2; convert the Hugging \
                Face directory with llama.cpp's convert_hf_to_gguf.py"
                    .into(),
        })
    };
    match architecture {
        Architecture::Llama => Ok("llama"),
        Architecture::Qwen2 => Ok("qwen2"),
        Architecture::Qwen3 => Ok("qwen3"),
        Architecture::SmolLm3 => Ok("smollm3"),
        Architecture::Gemma3 => Ok("gemma3"),
        Architecture::Gemma4 => unknown("gemma4_text"),
        Architecture::Olmo2 => unknown("olmo2"),
        Architecture::Ministral3 => unknown("ministral3"),
        Architecture::Phi3 => unknown("phi3"),
        Architecture::GraniteMoeHybrid => unknown("granitemoehybrid"),
        Architecture::Qwen3Moe => Ok("qwen3moe"),
        Architecture::Lfm2 => Ok("lfm2"),
        Architecture::Lfm3 => unknown("lfm3"),
        Architecture::Qwen3_5 => unknown("qwen3_5_text"),
    }
}

/// Keys and values of a model, without its tokenizer.
pub(super) fn of(config: &ModelConfig, kind: GgufType) -> Result<Metadata, ExportError> {
    let family = name_of(config.architecture)?;
    refuse_unsupported(config)?;
    let mut metadata = Metadata::default();
    metadata.text("general.architecture", family);
    metadata.text("general.type", "model");
    metadata.size("general.file_type", kind.file_type() as usize);
    if matches!(kind, GgufType::Q8_0 | GgufType::Q4_0) {
        metadata.size("general.quantization_version", QUANTIZATION_VERSION);
    }
    let sizes = [
        ("vocab_size", config.vocab_size),
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_hidden_layers),
        ("feed_forward_length", config.intermediate_size),
        ("attention.head_count", config.num_attention_heads),
        (KV_HEADS, config.num_key_value_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
    ];
    let of_experts = config.experts.iter().flat_map(|experts| {
        [
            ("expert_count", experts.count),
            ("expert_used_count", experts.per_token),
            ("expert_feed_forward_length", experts.width),
        ]
    });
    for (key, size) in sizes.into_iter().chain(of_experts) {
        let name = format!("{family}.{key}");
        if key == KV_HEADS && config.has_states() {
            // llama.cpp knows a short convolution by having no such heads.
            let heads = |layer| if config.attention(layer).is_some() { size as i32 } else { 0 };
            metadata.add(name, Value::Integers((0..config.num_hidden_layers).map(heads).collect()));
        } else {
            metadata.size(name, size);
        }
    }
    if let Some(kernel) = config.layers.iter().find_map(short_kernel) {
        metadata.size(format!("{family}.shortconv.l_cache"), kernel);
    }
    metadata.number(format!("{family}.attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    metadata.number(format!("{family}.rope.freq_base"), config.rope_theta);
    if let Some(RopeScaling::Linear { factor }) = config.rope_scaling {
        metadata.text(format!("{family}.rope.scaling.type"), "linear");
        metadata.number(format!("{family}.rope.scaling.factor"), factor);
    }
    if let Some(window) = config.attention_layers().find_map(|(_, kind)| kind.window) {
        metadata.size(format!("{family}.attention.sliding_window"), window);
    }
    Ok(metadata)
}

/// Inputs of a short convolution.
fn short_kernel(layer: &LayerKind) -> Option<usize> {
    match layer {
        LayerKind::ShortConv(conv) => Some(conv.kernel),
        LayerKind::Attention(_) | LayerKind::DeltaRule(_) | LayerKind::Mamba(_) => None,
    }
}

/// The divisors of the rotary frequencies, where a scaling has more than one: llama.cpp reads them as a tensor.
pub(super) fn divisors(config: &ModelConfig) -> Option<Vec<f32>> {
    let Some(RopeScaling::Llama3 { .. }) = config.rope_scaling else { return None };
    let plain = ModelConfig { rope_scaling: None, ..config.clone() }.inverse_frequencies(Rotary::Global);
    let scaled = config.inverse_frequencies(Rotary::Global);
    Some(plain.iter().zip(&scaled).map(|(plain, scaled)| (plain / scaled) as f32).collect())
}

fn refuse_unsupported(config: &ModelConfig) -> Result<(), ExportError> {
    let architecture = config.architecture;
    let biases = [
        ("attention_bias", config.qkv_bias && architecture != Architecture::Qwen2),
        ("attention_bias", config.attention_output_bias),
        ("mlp_bias", config.mlp_bias),
    ];
    if architecture == Architecture::Lfm2 && !config.has_states() {
        return Err(refused("full_attn_idxs", "null", "a convolution in some layer"));
    }
    if let Some((key, _)) = biases.iter().find(|(_, set)| *set && architecture != Architecture::Llama) {
        return Err(refused(key, true, "false for this family"));
    }
    if matches!(config.rope_scaling, Some(RopeScaling::Llama3 { .. })) && architecture != Architecture::Llama {
        return Err(refused("rope_scaling.rope_type", "\"llama3\"", "for this family, none and linear"));
    }
    let expected = |layer: usize| match architecture {
        Architecture::SmolLm3 => (!layer.is_multiple_of(SMOLLM_PATTERN)).then_some(Rotary::Global),
        Architecture::Gemma3 if !layer.is_multiple_of(GEMMA_PATTERN) => Some(Rotary::Local),
        _ => Some(Rotary::Global),
    };
    if config.layers.iter().any(|layer| matches!(layer, LayerKind::ShortConv(ShortConv { bias: true, .. }))) {
        return Err(refused("conv_bias", true, "false"));
    }
    for (layer, kind) in config.attention_layers().map(|(layer, kind)| (layer + 1, kind)) {
        let has_window = architecture == Architecture::Gemma3 && !layer.is_multiple_of(GEMMA_PATTERN);
        if kind.window.is_some() != has_window {
            let stated = kind.window.map_or("none".to_owned(), |window| window.to_string());
            let supported = match architecture {
                Architecture::Gemma3 => "a window in all layers but every sixth",
                _ => "no windows in this family",
            };
            return Err(refused(&format!("sliding_window of layer {layer}"), stated, supported));
        }
        if kind.rotary != expected(layer) {
            let supported = "rotary positions in all layers but every fourth";
            return Err(refused(&format!("no_rope_layers at layer {layer}"), kind.rotary.is_some(), supported));
        }
    }
    if architecture == Architecture::Gemma3 {
        refuse_gemma(config)?;
    }
    if architecture == Architecture::Qwen3Moe {
        refuse_experts(config)?;
    }
    Ok(())
}

/// llama.cpp has experts in every layer of the family, and divides their weights by the sum.
fn refuse_experts(config: &ModelConfig) -> Result<(), ExportError> {
    let supported = "experts in all layers";
    match &config.experts {
        None => Err(refused("mlp_only_layers", "all layers", supported)),
        Some(experts) if !experts.normalised => Err(refused("norm_topk_prob", false, "true")),
        Some(experts) => match experts.dense_layers.first() {
            Some(layer) => Err(refused("mlp_only_layers", format!("layer {layer}"), supported)),
            None => Ok(()),
        },
    }
}

fn refuse_gemma(config: &ModelConfig) -> Result<(), ExportError> {
    let local = config.rope_local_theta.unwrap_or(GEMMA_LOCAL_THETA);
    if local != GEMMA_LOCAL_THETA {
        return Err(refused("rope_local_base_freq", local, &GEMMA_LOCAL_THETA.to_string()));
    }
    let largest = config.num_hidden_layers == GEMMA_LARGEST;
    let width = if largest { config.hidden_size / config.num_attention_heads } else { config.head_dim };
    let scalar = config.attention_scale.powi(-2);
    if (scalar - width as f64).abs() > 1e-6 * width as f64 {
        return Err(refused("query_pre_attn_scalar", scalar.round(), &width.to_string()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str, change: impl Fn(&mut serde_json::Value)) -> ModelConfig {
        let path = harness::golden_model_dir(name).join("config.json");
        let mut json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        change(&mut json);
        ModelConfig::from_json(&json.to_string()).unwrap()
    }

    fn error(name: &str, change: impl Fn(&mut serde_json::Value)) -> String {
        of(&config(name, change), GgufType::F32).unwrap_err().to_string()
    }

    #[test]
    fn sizes_and_numbers_are_under_llama_cpps_keys() {
        let metadata = of(&config("llama", |_| ()), GgufType::Q8_0).unwrap();
        let expected = [
            ("general.architecture", Value::Text("llama".into())),
            ("general.file_type", Value::U32(7)),
            ("general.quantization_version", Value::U32(2)),
            ("llama.attention.head_count_kv", Value::U32(2)),
            ("llama.rope.dimension_count", Value::U32(16)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ];
        for (key, value) in expected {
            assert_eq!(metadata.get(key), Some(&value), "{key}");
        }
        assert_eq!(metadata.get("llama.rope.scaling.type"), None);
        let scaled = config("llama", |json| {
            json["rope_scaling"] = serde_json::json!({"rope_type": "linear", "factor": 4.0});
        });
        assert_eq!(of(&scaled, GgufType::F32).unwrap().get("llama.rope.scaling.factor"), Some(&Value::F32(4.0)));
    }

    #[test]
    fn the_divisors_of_llama_3_are_one_for_fast_pairs_and_the_factor_for_slow_ones() {
        let llama = config("llama", |json| {
            json["rope_scaling"] = serde_json::json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
        });
        let divisors = divisors(&llama).unwrap();
        assert_eq!((divisors.len(), divisors[0], divisors[7]), (8, 1.0, 8.0));
        assert!(divisors.is_sorted(), "{divisors:?}");
        assert_eq!(super::divisors(&config("llama", |_| ())), None);
    }

    #[test]
    fn what_llama_cpp_has_no_key_for_is_refused_by_key() {
        let json = |value: &str| serde_json::from_str::<serde_json::Value>(value).unwrap();
        let found = error("gemma4", |_| ());
        assert!(found.contains("gemma4_text") && found.contains("convert_hf_to_gguf.py"), "{found}");
        let found = error("gemma3", |_| ());
        assert!(found.contains("`sliding_window of layer 3` = none") && found.contains("every sixth"), "{found}");
        let found = error("gemma3", |config| config["sliding_window_pattern"] = json("6"));
        assert!(found.contains("`query_pre_attn_scalar` = 24") && found.contains("GGUF: 16"), "{found}");
        let found = error("gemma3", |config| {
            config["sliding_window_pattern"] = json("6");
            config["rope_local_base_freq"] = json("5000.0");
        });
        assert!(found.contains("`rope_local_base_freq` = 5000"), "{found}");
        let found = error("smollm3", |_| ());
        assert!(found.contains("`sliding_window of layer 2` = 6"), "{found}");
        let found = error("smollm3", |config| {
            config["use_sliding_window"] = json("false");
            config["layer_types"] = json("null");
        });
        assert!(found.contains("`no_rope_layers at layer 2` = false"), "{found}");
        let found = error("qwen3", |config| config["attention_bias"] = json("true"));
        assert!(found.contains("`attention_bias` = true"), "{found}");
        let scaling = r#"{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}"#;
        let found = error("qwen3_moe", |config| config["norm_topk_prob"] = json("false"));
        assert!(found.contains("`norm_topk_prob` = false"), "{found}");
        let found = error("qwen3_moe", |config| config["mlp_only_layers"] = json("[1]"));
        assert!(found.contains("`mlp_only_layers` = layer 1"), "{found}");
        let found = error("qwen2", |config| config["rope_scaling"] = json(scaling));
        assert!(found.contains("`rope_scaling.rope_type` = \"llama3\""), "{found}");
    }
}
