//! The refusal of what llama.cpp's keys cannot say: it would run another model.

use shared::{Architecture, ModelConfig, Rotary};

use super::{gemma4, positions, refused, states};
use crate::ExportError;

/// Every sixth layer of Gemma 3 attends to all positions, and every fourth layer of SmolLM3 has no rotary positions:
/// llama.cpp has no key for that in every version.
const GEMMA_PATTERN: usize = 6;
const SMOLLM_PATTERN: usize = 4;
/// Base of the rotary frequencies in layers of Gemma 3 with a window, likewise.
const GEMMA_LOCAL_THETA: f64 = 1e4;
/// Gemma 3 with so many layers has another factor on attention scores: llama.cpp knows it by that number.
const GEMMA_LARGEST: usize = 62;

/// Refuses a model with the key that says what llama.cpp has no place for.
pub(super) fn check(config: &ModelConfig) -> Result<(), ExportError> {
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
    positions::refuse(config)?;
    states::refuse(config)?;
    refuse_layers(config)?;
    match architecture {
        Architecture::Gemma3 => refuse_gemma3(config),
        Architecture::Gemma4 => gemma4::refuse(config),
        Architecture::Qwen3Moe => refuse_experts(config),
        Architecture::Olmo2 if config.tie_word_embeddings => Err(refused("tie_word_embeddings", true, "false")),
        Architecture::Olmo2 | Architecture::Phi3 => refuse_widths(config),
        _ => Ok(()),
    }
}

/// Windows and rotary positions, for which most families have no key.
fn refuse_layers(config: &ModelConfig) -> Result<(), ExportError> {
    let architecture = config.architecture;
    let expected = |layer: usize| match architecture {
        Architecture::SmolLm3 => (!layer.is_multiple_of(SMOLLM_PATTERN)).then_some(Rotary::Global),
        Architecture::Gemma3 if !layer.is_multiple_of(GEMMA_PATTERN) => Some(Rotary::Local),
        _ => Some(Rotary::Global),
    };
    if matches!(architecture, Architecture::Gemma4 | Architecture::GraniteMoeHybrid) {
        return Ok(());
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

fn refuse_gemma3(config: &ModelConfig) -> Result<(), ExportError> {
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

/// llama.cpp takes it that the heads of a token are as wide as the token.
fn refuse_widths(config: &ModelConfig) -> Result<(), ExportError> {
    let ModelConfig { hidden_size, num_attention_heads: heads, head_dim, .. } = *config;
    if heads * head_dim == hidden_size {
        return Ok(());
    }
    Err(refused("head_dim", head_dim, &format!("hidden_size ({hidden_size}) over num_attention_heads ({heads})")))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{
        super::{GgufType, hyperparameters},
        *,
    };

    fn error(name: &str, change: impl Fn(&mut Value)) -> String {
        let path = harness::golden_model_dir(name).join("config.json");
        let mut json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        change(&mut json);
        let config = ModelConfig::from_json(&json.to_string()).unwrap();
        hyperparameters::of(&config, GgufType::F32).unwrap_err().to_string()
    }

    fn json(value: &str) -> Value {
        serde_json::from_str(value).unwrap()
    }

    #[test]
    fn what_llama_cpp_has_no_key_for_is_refused_by_key() {
        let found = error("lfm3", |_| ());
        assert!(found.contains("`model_type` = \"lfm3\"") && found.contains("--format safetensors"), "{found}");
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
        assert!(found.contains("`rope_type` = \"llama3\""), "{found}");
    }

    #[test]
    fn sizes_that_llama_cpp_takes_for_granted_are_refused_by_key() {
        let cases: [(&str, &str, &str, &str); 10] = [
            ("olmo2", "tie_word_embeddings", "true", "`tie_word_embeddings` = true"),
            ("olmo2", "attention_bias", "true", "`attention_bias` = true"),
            ("phi3", "sliding_window", "100", "`sliding_window of layer 1` = 100"),
            ("granite4_h", "mamba_conv_bias", "false", "`mamba_conv_bias` = false"),
            ("granite4_h", "mamba_proj_bias", "true", "`mamba_proj_bias` = true"),
            ("gemma4", "vocab_size_per_layer_input", "300", "`vocab_size_per_layer_input` = 300"),
            ("gemma4", "num_kv_shared_layers", "2", "whose keys layer 4 reads"),
            ("lfm2", "conv_bias", "true", "`conv_bias` = true"),
            ("ministral3", "sliding_window", "64", "`sliding_window of layer 1` = 64"),
            ("qwen3", "attention_bias", "true", "`attention_bias` = true"),
        ];
        for (model, key, value, words) in cases {
            let found = error(model, |config| config[key] = json(value));
            assert!(found.contains(words), "{model}: {found}");
        }
        let found = error("phi3", |config| {
            config["head_dim"] = json("24");
            config["rope_scaling"] = json("null");
        });
        assert!(found.contains("`head_dim` = 24"), "{found}");
        let found = error("granite4_h", |config| {
            config["hidden_size"] = json("64");
            config["mamba_expand"] = json("1");
        });
        assert!(found.contains("`mamba_expand` = 1"), "{found}");
        let found = error("qwen3_5", |config| config["text_config"]["rms_norm_eps"] = json("1e-5"));
        assert!(found.contains("`rms_norm_eps` = 0.00001"), "{found}");
        let found = error("qwen3_5", |config| config["text_config"]["linear_value_head_dim"] = json("8"));
        assert!(found.contains("`linear_value_head_dim` = 8"), "{found}");
        let every_layer = r#"["full_attention", "full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention"]"#;
        let found = error("gemma4", |config| config["layer_types"] = json(every_layer));
        assert!(found.contains("`layer_types` = full_attention alone"), "{found}");
    }
}
