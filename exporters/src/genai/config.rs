//! `genai_config.json`: what ONNX Runtime GenAI must know of a model beside its graph.

use serde_json::{Map, Value, json};
use shared::{
    Architecture, ModelDir,
    model::{manifest::MODEL_FILE, model_dir::MOST_BYTES},
};
use shared_bounds::read_text;

use crate::{ExportError, onnx::decoder::reads_positions};

/// The content of the file. Sampling parameters are those of `generation_config.json`, or else the defaults of
/// transformers; GenAI's callers can replace them. Without a token that ends a sequence, a sequence ends at its longest
/// length.
///
/// # Errors
/// A `generation_config.json` that cannot be read.
pub(super) fn genai_config(model: &ModelDir, context_length: usize) -> Result<Value, ExportError> {
    let (config, tokens) = (model.config(), model.generation());
    let mut inputs = json!({
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    });
    if reads_positions(config) {
        inputs["position_ids"] = "position_ids".into();
    }
    let mut outputs = json!({
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    });
    if config.architecture == Architecture::Lfm2 {
        inputs["past_conv_names"] = "past_key_values.%d.conv_state".into();
        outputs["present_conv_names"] = "present.%d.conv_state".into();
    }
    let mut described = json!({
        "type": model_type(config.architecture)?,
        "vocab_size": config.vocab_size,
        "context_length": context_length,
        "eos_token_id": tokens.eos_token_ids,
        "decoder": {
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
            "filename": MODEL_FILE,
            "head_size": config.head_dim,
            "hidden_size": config.hidden_size,
            "num_attention_heads": config.num_attention_heads,
            "num_hidden_layers": config.num_hidden_layers,
            "num_key_value_heads": config.num_key_value_heads,
            "inputs": inputs,
            "outputs": outputs,
        },
    });
    if config.architecture == Architecture::Lfm2 {
        let kind = |layer| if config.attention(layer).is_some() { "full_attention" } else { "conv" };
        described["decoder"]["layer_types"] = (0..config.num_hidden_layers).map(kind).collect();
    }
    let padding = tokens.pad_token_id.or(tokens.eos_token_ids.first().copied());
    for (key, token) in [("bos_token_id", tokens.bos_token_id), ("pad_token_id", padding)] {
        if let Some(token) = token {
            described[key] = token.into();
        }
    }
    let mut search = json!({
        "do_sample": false,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "repetition_penalty": 1.0,
        "min_length": 0,
        "max_length": context_length,
        // Keys and values are written in place, into buffers for `max_length` tokens.
        "past_present_share_buffer": true,
    });
    let generation = generation_config(model)?;
    for key in ["do_sample", "temperature", "top_k", "top_p", "repetition_penalty"] {
        if let Some(value) = generation.get(key).filter(|value| value.is_number() || value.is_boolean()) {
            search[key] = value.clone();
        }
    }
    Ok(json!({"model": described, "search": search}))
}

/// GenAI's name of the family.
///
/// # Errors
/// A family that is not exported for GenAI.
pub(super) fn model_type(architecture: Architecture) -> Result<&'static str, ExportError> {
    let unknown = |family: &str| {
        Err(ExportError::Unsupported {
            key: "model_type".into(),
            value: format!("\"{family}\""),
            hint: "folders for onnxruntime-genai are written of llama, qwen2, qwen3, smollm3, gemma3_text, lfm2 and \
                qwen3_5"
                .into(),
        })
    };
    match architecture {
        Architecture::Llama => Ok("llama"),
        Architecture::Qwen2 => Ok("qwen2"),
        Architecture::Qwen3 => Ok("qwen3"),
        Architecture::SmolLm3 => Ok("smollm3"),
        Architecture::Gemma3 => Ok("gemma3_text"),
        Architecture::Gemma4 => unknown("gemma4_text"),
        Architecture::Olmo2 => unknown("olmo2"),
        Architecture::Ministral3 => unknown("ministral3"),
        Architecture::Phi3 => unknown("phi3"),
        Architecture::GraniteMoeHybrid => unknown("granitemoehybrid"),
        Architecture::Qwen3Moe => unknown("qwen3_moe"),
        Architecture::Lfm2 => Ok("lfm2"),
        Architecture::Lfm3 => unknown("lfm3"),
        Architecture::Qwen3_5 => Ok("qwen3_5_text"),
    }
}

/// `generation_config.json`, empty without one.
fn generation_config(model: &ModelDir) -> Result<Map<String, Value>, ExportError> {
    let companions = model.companions();
    let Some(path) = companions.iter().find(|path| path.ends_with("generation_config.json")) else {
        return Ok(Map::new());
    };
    let text = read_text(path, MOST_BYTES).map_err(|e| ExportError::io(path, e))?;
    serde_json::from_str(&text).map_err(|e| ExportError::content(path, format!("is not a JSON object: {e}")))
}
