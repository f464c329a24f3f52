//! Gemma 4: published configurations, parameters, widths by layer, and everything that is refused.

use serde_json::{Value, json};

use super::*;

/// A configuration with some keys replaced; null removes a key.
fn with(mut config: Value, changes: &Value) -> Result<ModelConfig, String> {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    ModelConfig::from_json(&config.to_string()).map_err(|e| e.to_string())
}

fn refused(changes: &Value, words: &[&str]) {
    let error = with(e2b_text(), changes).expect_err(&format!("{changes} was accepted"));
    assert!(words.iter().all(|words| error.contains(words)), "{changes}: {error}");
}

fn types() -> Vec<&'static str> {
    (1..=35).map(|layer| if layer % 5 == 0 { "full_attention" } else { "sliding_attention" }).collect()
}

/// The text model of E2B.
fn e2b_text() -> Value {
    json!({"attention_bias": false, "attention_k_eq_v": false, "enable_moe_block": false,
        "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536, "hidden_size_per_layer_input": 256,
        "intermediate_size": 6144, "layer_types": types(), "max_position_embeddings": 131072,
        "model_type": "gemma4_text", "num_attention_heads": 8, "num_hidden_layers": 35, "num_key_value_heads": 1,
        "num_kv_shared_layers": 20, "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 512, "tie_word_embeddings": true, "use_double_wide_mlp": true, "vocab_size": 262144,
        "vocab_size_per_layer_input": 262144})
}

#[test]
fn e2b_has_heads_and_mlps_of_two_widths_and_layers_that_read_the_keys_of_others() {
    let config = with(e2b_text(), &json!({})).unwrap();
    assert_eq!((config.head_dim_of(0), config.head_dim_of(4), config.widest_head()), (256, 512, 512));
    assert_eq!((config.mlp_width(14), config.mlp_width(15), config.inner_width()), (6144, 12288, 12288));
    assert_eq!(
        [0, 13, 14, 15, 19, 34].map(|layer| config.shares_keys_of(layer)),
        [None, None, None, Some(13), Some(14), Some(14)]
    );
    assert_eq!(config.caching_layers().count(), 15);
    assert_eq!((config.attention_scale, config.logit_cap, config.norm_offset()), (1.0, Some(30.0), 0.0));
    assert_eq!(config.embedding_scale(), Some(1536_f64.sqrt()));
    assert_eq!([Rotary::Global, Rotary::Local].map(|rotary| config.rotary_entries(rotary)), [512, 256]);
    let [global, local] = [Rotary::Global, Rotary::Local].map(|rotary| config.inverse_frequencies(rotary));
    assert_eq!((global.len(), global[63], global[64]), (256, 1e6_f64.powf(-126.0 / 512.0), 0.0));
    assert_eq!((local.len(), local[127]), (128, 1e4_f64.powf(-254.0 / 256.0)));
    let shapes: std::collections::HashMap<String, Vec<usize>> = config.parameters().into_iter().collect();
    for (name, shape) in [
        ("model.embed_tokens_per_layer.weight", vec![262_144, 35 * 256]),
        ("model.per_layer_model_projection.weight", vec![35 * 256, 1536]),
        ("model.per_layer_projection_norm.weight", vec![256]),
        ("model.layers.4.self_attn.k_proj.weight", vec![512, 1536]),
        ("model.layers.4.self_attn.q_norm.weight", vec![512]),
        ("model.layers.15.self_attn.q_proj.weight", vec![2048, 1536]),
        ("model.layers.19.self_attn.o_proj.weight", vec![1536, 4096]),
        ("model.layers.15.mlp.up_proj.weight", vec![12288, 1536]),
        ("model.layers.0.per_layer_input_gate.weight", vec![256, 1536]),
        ("model.layers.0.per_layer_projection.weight", vec![1536, 256]),
        ("model.layers.0.layer_scalar", vec![1]),
    ] {
        assert_eq!(shapes.get(name), Some(&shape), "{name}");
    }
    let unused = "model.layers.15.self_attn.k_norm.weight";
    assert!(!shapes.contains_key(unused) && config.passes_over(unused));
    assert!(!config.passes_over("model.layers.14.self_attn.k_norm.weight"));
    let all: usize = shapes.values().map(|shape| shape.iter().product::<usize>()).sum();
    assert_eq!(config.parameter_count(), all as u64 - 35, "factors on results of layers are not trained");
}

#[test]
fn the_text_model_is_read_in_its_wrapper_and_in_both_layouts() {
    let config = with(e2b_text(), &json!({})).unwrap();
    let wrapper = json!({"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "text_config": e2b_text(), "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": {"model_type": "gemma4_audio"}});
    assert_eq!(with(wrapper, &json!({})).unwrap(), ModelConfig { wrapped: true, ..config.clone() });
    let by_layer: serde_json::Map<String, Value> =
        (1..=7).map(|fifth| ((5 * fifth - 1).to_string(), json!({"head_dim": 512}))).collect();
    let newer = json!({"global_head_dim": null, "per_layer_config": by_layer});
    assert_eq!(with(e2b_text(), &newer).unwrap(), config);
    let defaults = json!({"global_head_dim": null, "head_dim": null, "hidden_size_per_layer_input": null,
        "rope_parameters": null, "sliding_window": null, "vocab_size_per_layer_input": null,
        "tie_word_embeddings": null, "rms_norm_eps": null, "attention_bias": null});
    assert_eq!(with(e2b_text(), &defaults).unwrap(), config, "defaults of the class");
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<ModelConfig>(&text).unwrap(), config);
}

#[test]
fn a_model_may_do_without_inputs_of_layers_shared_keys_and_a_bound() {
    let changes = json!({"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "final_logit_softcapping": null,
        "use_double_wide_mlp": false, "global_head_dim": 256, "layer_types": null});
    let config = with(e2b_text(), &changes).unwrap();
    assert_eq!((config.per_layer_input, config.logit_cap, config.global_head_dim), (None, None, None));
    assert_eq!((config.caching_layers().count(), config.inner_width()), (35, 6144));
    let full: Vec<usize> =
        config.attention_layers().filter(|(_, kind)| kind.window.is_none()).map(|(layer, _)| layer).collect();
    assert_eq!(full, [5, 11, 17, 23, 29, 34], "every sixth layer, and the last one");
    assert!(config.parameters().iter().all(|(name, _)| !name.contains("per_layer")));
}

#[test]
fn what_only_larger_models_have_and_what_does_not_fit_is_refused_by_name() {
    refused(&json!({"enable_moe_block": true}), &["enable_moe_block", "E2B"]);
    refused(&json!({"num_experts": 128}), &["num_experts"]);
    refused(&json!({"attention_k_eq_v": true}), &["attention_k_eq_v", "E2B"]);
    refused(&json!({"use_bidirectional_attention": "all"}), &["use_bidirectional_attention", "causal"]);
    assert!(with(e2b_text(), &json!({"use_bidirectional_attention": "vision"})).is_ok());
    refused(&json!({"num_kv_shared_layers": 33}), &["num_kv_shared_layers", "full_attention"]);
    refused(&json!({"num_kv_shared_layers": 35}), &["num_kv_shared_layers"]);
    refused(&json!({"vocab_size_per_layer_input": 1000}), &["vocab_size_per_layer_input", "262144"]);
    refused(&json!({"final_logit_softcapping": -1.0}), &["final_logit_softcapping", "positive"]);
    refused(&json!({"attn_logit_softcapping": 50.0}), &["attn_logit_softcapping"]);
    refused(&json!({"global_head_dim": 511}), &["global_head_dim", "even"]);
    let mut types = types();
    types[34] = "sliding_attention";
    refused(&json!({"layer_types": types}), &["layer_types", "the last layer must be full_attention"]);
    types[34] = "linear_attention";
    refused(&json!({"layer_types": types}), &["layer_types", "layer 34 is \"linear_attention\""]);
    for by_layer in [
        json!({"4": {"head_dim": 512}}),
        json!({"0": {"head_dim": 512}}),
        json!({"4": {"head_dim": 512, "num_attention_heads": 4}}),
        json!({"35": {"head_dim": 512}}),
    ] {
        refused(&json!({"per_layer_config": by_layer}), &["per_layer_config", "head_dim"]);
    }
}
