//! The architecture as llama.cpp's keys.

use shared::{Architecture, ModelConfig};

use super::{
    GgufType, gemma4,
    metadata::{Metadata, Value},
    positions, refusals, states,
};
use crate::ExportError;

/// Key of the number of heads of keys and values.
const KV_HEADS: &str = "attention.head_count_kv";
/// Key of the width of the MLP.
const MLP_WIDTH: &str = "feed_forward_length";

/// The version of the types in blocks.
const QUANTIZATION_VERSION: usize = 2;

/// llama.cpp's name of a family.
///
/// # Errors
/// A family that llama.cpp does not know.
fn name_of(config: &ModelConfig) -> Result<&'static str, ExportError> {
    Ok(match config.architecture {
        Architecture::Llama => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
        Architecture::Qwen3Moe => "qwen3moe",
        Architecture::Qwen3_5 => "qwen35",
        Architecture::SmolLm3 => "smollm3",
        Architecture::Gemma3 => "gemma3",
        Architecture::Gemma4 => "gemma4",
        Architecture::Olmo2 => "olmo2",
        Architecture::Ministral3 => "mistral3",
        Architecture::Phi3 => "phi3",
        Architecture::GraniteMoeHybrid if config.has_states() => "granitehybrid",
        Architecture::GraniteMoeHybrid => "granite",
        Architecture::Lfm2 => "lfm2",
        Architecture::Lfm3 => {
            return Err(ExportError::Unsupported {
                key: "model_type".into(),
                value: "\"lfm3\"".into(),
                hint: "llama.cpp does not know the family; export with --format safetensors".into(),
            });
        }
    })
}

/// Keys and values of a model, without its tokenizer.
pub(super) fn of(config: &ModelConfig, kind: GgufType) -> Result<Metadata, ExportError> {
    let family = name_of(config)?;
    refusals::check(config)?;
    let mut metadata = Metadata::default();
    metadata.text("general.architecture", family);
    metadata.text("general.type", "model");
    metadata.size("general.file_type", kind.file_type() as usize);
    if matches!(kind, GgufType::Q8_0 | GgufType::Q4_0) {
        metadata.size("general.quantization_version", QUANTIZATION_VERSION);
    }
    let head_dim = config.global_head_dim.unwrap_or(config.head_dim);
    let sizes = [
        ("vocab_size", config.vocab_size),
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("block_count", config.num_hidden_layers),
        (MLP_WIDTH, config.intermediate_size),
        ("attention.head_count", config.num_attention_heads),
        (KV_HEADS, config.num_key_value_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
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
        match of_layers(config, key, size) {
            Some(list) => metadata.add(name, Value::Integers(list)),
            None => metadata.size(name, size),
        }
    }
    metadata.number(format!("{family}.attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    let window = config.attention_layers().find_map(|(_, kind)| kind.window);
    // By 0, llama.cpp knows a Phi without windows.
    if let Some(window) = window.or((config.architecture == Architecture::Phi3).then_some(0)) {
        metadata.size(format!("{family}.attention.sliding_window"), window);
    }
    positions::add(config, family, &mut metadata);
    states::add(config, family, &mut metadata);
    match config.architecture {
        Architecture::Gemma4 => gemma4::add(config, family, &mut metadata),
        Architecture::GraniteMoeHybrid => add_factors(config, family, &mut metadata),
        _ => {}
    }
    Ok(metadata)
}

/// A size for each layer, where layers differ.
fn of_layers(config: &ModelConfig, key: &str, size: usize) -> Option<Vec<i32>> {
    let list =
        |of: &dyn Fn(usize) -> usize| Some((0..config.num_hidden_layers).map(|layer| of(layer) as i32).collect());
    match config.architecture {
        // llama.cpp knows a layer with a state by having no such heads.
        Architecture::Lfm2 | Architecture::GraniteMoeHybrid if key == KV_HEADS && config.has_states() => {
            list(&|layer| config.attention(layer).map_or(0, |_| size))
        }
        Architecture::Gemma4 if key == MLP_WIDTH && config.double_wide_mlp => list(&|layer| config.mlp_width(layer)),
        _ => None,
    }
}

/// Granite's factors on embeddings, results of blocks and scores, and its divisor of logits.
fn add_factors(config: &ModelConfig, family: &str, metadata: &mut Metadata) {
    for (key, factor) in [
        ("embedding_scale", config.embedding_multiplier),
        ("residual_scale", config.residual_multiplier),
        ("attention.scale", config.attention_scale),
        ("logit_scale", config.logits_scaling),
    ] {
        metadata.number(format!("{family}.{key}"), factor);
    }
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
    fn what_only_some_families_have_is_under_their_keys() {
        let flags = |flags: &[u8]| Value::Flags(flags.iter().map(|flag| *flag == 1).collect());
        let cases = [
            ("granite4", "general.architecture", Value::Text("granite".into())),
            ("granite4", "granite.attention.scale", Value::F32(0.2)),
            ("granite4", "granite.logit_scale", Value::F32(0.5)),
            ("granite4", "granite.rope.scaling.finetuned", Value::Bool(true)),
            ("granite4_h", "granitehybrid.rope.scaling.finetuned", Value::Bool(false)),
            ("granite4_h", "granitehybrid.attention.head_count_kv", Value::Integers(vec![0, 0, 2])),
            ("granite4_h", "granitehybrid.ssm.inner_size", Value::U32(64)),
            ("granite4_h", "granitehybrid.ssm.time_step_rank", Value::U32(4)),
            ("phi3", "phi3.attention.sliding_window", Value::U32(0)),
            ("phi3", "phi3.rope.dimension_count", Value::U32(12)),
            ("qwen3_5", "qwen35.attention.recurrent_layers", flags(&[1, 1, 1, 0])),
            ("qwen3_5", "qwen35.full_attention_interval", Value::U32(4)),
            ("qwen3_5", "qwen35.ssm.group_count", Value::U32(2)),
            ("qwen3_5", "qwen35.rope.dimension_sections", Value::Integers(vec![2, 1, 1, 0])),
            ("gemma4", "gemma4.attention.sliding_window_pattern", flags(&[1, 1, 0, 1, 1, 0])),
            ("gemma4", "gemma4.feed_forward_length", Value::Integers(vec![32, 32, 32, 64, 64, 64])),
            ("gemma4", "gemma4.attention.key_length", Value::U32(32)),
            ("gemma4", "gemma4.rope.dimension_count_swa", Value::U32(16)),
            ("gemma4", "gemma4.attention.shared_kv_layers", Value::U32(3)),
        ];
        for (model, key, value) in cases {
            assert_eq!(of(&config(model, |_| ()), GgufType::F32).unwrap().get(key), Some(&value), "{key}");
        }
    }
}
