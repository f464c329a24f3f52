//! Published configurations, both layouts, and everything that is refused.

use serde_json::{Value, json};

use super::*;

/// A small valid configuration with some keys replaced; null removes a key's meaning, as in transformers.
pub(super) fn config_with(changes: &Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    ModelConfig::from_json(&config.to_string()).map_err(|e| e.to_string())
}

fn read(config: &Value) -> ModelConfig {
    ModelConfig::from_json(&config.to_string()).unwrap()
}

#[test]
fn llama_3_2_1b_is_read_as_published() {
    let config = read(&json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256,
    }));
    assert_eq!(config.parameter_count(), 1_235_814_400);
    assert_eq!(config.parameters().len(), 146);
    assert_eq!((config.rope_theta, config.group_size()), (500_000.0, 4));
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    assert_eq!(config.rope_scaling, Some(scaling));
}

#[test]
fn qwen2_5_0_5b_is_read_as_published() {
    let config = read(&json!({
        "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false,
        "vocab_size": 151936,
    }));
    assert_eq!(config.parameter_count(), 494_032_768);
    assert_eq!((config.head_dim, config.parameters().len()), (64, 290));
    assert!(config.qkv_bias && !config.attention_output_bias && config.tie_word_embeddings);
}

#[test]
fn qwen3_0_6b_is_read_as_published() {
    let config = read(&json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
        "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
        "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936,
    }));
    assert_eq!(config.parameter_count(), 596_049_920);
    assert_eq!((config.head_dim, config.parameters().len()), (128, 310));
    assert!(!config.qkv_bias && config.rope_scaling.is_none());
}

#[test]
fn smollm2_135m_is_read_as_published() {
    let config = read(&json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192,
        "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
        "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
        "rope_theta": 100000, "tie_word_embeddings": true, "vocab_size": 49152,
    }));
    assert_eq!(config.parameter_count(), 134_515_008);
    assert_eq!((config.group_size(), config.parameters().len()), (3, 272));
}

/// Windows and rotary positions, layer by layer.
fn kinds(config: &ModelConfig) -> (Vec<Option<usize>>, Vec<bool>) {
    config.attention_layers().map(|(_, layer)| (layer.window, layer.rotary.is_some())).unzip()
}

#[test]
fn smollm3_3b_is_read_as_published() {
    let every_fourth: Vec<u8> = (1..=36).map(|layer| u8::from(layer % 4 != 0)).collect();
    let published = json!({
        "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": null, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": vec!["full_attention"; 36],
        "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": false, "model_type": "smollm3",
        "no_rope_layer_interval": 4, "no_rope_layers": every_fourth, "num_attention_heads": 16,
        "num_hidden_layers": 36, "num_key_value_heads": 4, "pretraining_tp": 2, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null, "use_sliding_window": false,
        "vocab_size": 128256,
    });
    let config = read(&published);
    assert_eq!((config.head_dim, config.parameters().len()), (128, 326));
    assert_eq!(config.parameter_count(), 3_075_098_624);
    assert!(config.tie_word_embeddings && config.rope_theta == 5e6);
    let (windows, rotary) = kinds(&config);
    assert_eq!(windows, [None; 36]);
    assert_eq!(rotary, every_fourth.iter().map(|&has| has == 1).collect::<Vec<_>>());
    let mut by_interval = published;
    by_interval.as_object_mut().unwrap().remove("no_rope_layers");
    assert_eq!(read(&by_interval), config, "the interval says the same");
}

#[test]
fn gemma_3_1b_is_read_as_published() {
    let config = read(&json!({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": [1, 106],
        "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152, "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
        "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "torch_dtype": "bfloat16", "vocab_size": 262144,
    }));
    assert_eq!((config.parameter_count(), config.parameters().len()), (999_885_952, 340));
    assert!(config.tie_word_embeddings && config.head_norms() && config.output_norms());
    assert_eq!((config.attention_scale, config.norm_offset()), (1.0 / 16.0, 1.0));
    assert_eq!(config.embedding_scale(), Some(1152.0_f64.sqrt()));
    assert_eq!((config.rope_theta, config.rope_local_theta), (1e6, Some(1e4)));
    for (i, layer) in config.layers.iter().enumerate() {
        let full = AttentionKind { rotary: Some(Rotary::Global), window: None, gate: None };
        let sliding = AttentionKind { rotary: Some(Rotary::Local), window: Some(512), gate: None };
        assert_eq!(*layer, LayerKind::Attention(if i % 6 == 5 { full } else { sliding }), "layer {i}");
    }
}

#[test]
fn both_layouts_state_gemmas_two_kinds_of_positions() {
    let with = |changes: Value| {
        let mut config = json!({"model_type": "gemma3_text", "num_hidden_layers": 6});
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        config_with(&config).unwrap()
    };
    let defaults = with(json!({}));
    assert_eq!((defaults.rope_theta, defaults.rope_local_theta, defaults.head_dim), (1e6, Some(1e4), 256));
    assert_eq!([0, 5].map(|layer| defaults.attention(layer).unwrap().window), [Some(4096), None]);
    let hub = with(json!({"rope_theta": 5e5, "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}));
    let full = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5});
    let sliding = json!({"rope_type": "default", "rope_theta": 2e4});
    let v5 = with(json!({"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}));
    assert_eq!(hub, v5);
    assert_eq!(hub.rope_scaling, Some(RopeScaling::Linear { factor: 8.0 }));
    let [global, local] = [Rotary::Global, Rotary::Local].map(|rotary| hub.inverse_frequencies(rotary));
    assert_eq!((global[0], local[0]), (1.0 / 8.0, 1.0));
    assert!((local[1] / 2e4_f64.powf(-2.0 / 256.0) - 1.0).abs() < 1e-12, "windows are not stretched");
}

#[test]
fn windows_are_where_the_family_has_them() {
    let windows = |changes: &Value| kinds(&config_with(changes).unwrap()).0;
    for family in ["qwen2", "qwen3"] {
        let slides = |changes: Value| {
            let mut config = json!({"model_type": family, "use_sliding_window": true, "num_hidden_layers": 4});
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            windows(&config)
        };
        let (full, window) = (None, Some(32));
        assert_eq!(slides(json!({"sliding_window": 32, "max_window_layers": 3})), [full, full, full, window]);
        assert_eq!(slides(json!({"sliding_window": 32, "max_window_layers": 0})), [window; 4]);
        assert_eq!(slides(json!({"max_window_layers": 0})), [Some(4096); 4]);
        assert_eq!(slides(json!({"sliding_window": 32})), [full; 4], "the first 28 layers see everything");
        assert_eq!(slides(json!({"sliding_window": null, "max_window_layers": 0})), [full; 4]);
        let types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"];
        let said = json!({"sliding_window": 32, "layer_types": types});
        assert_eq!(slides(said), [window, full, full, window]);
    }
    // SmolLM3's layers without rotary positions have a window.
    let smollm3 = json!({"model_type": "smollm3", "num_hidden_layers": 4, "use_sliding_window": true,
        "sliding_window": 32, "no_rope_layers": [1, 0, 1, 0, 1]});
    assert_eq!(windows(&smollm3), [None, Some(32), None, Some(32)]);
}

#[test]
fn the_data_folders_configurations_have_the_published_shapes() {
    let Some(data) = harness::data_dir("the_data_folders_configurations_have_the_published_shapes") else { return };
    let folder = data.join("configs");
    let text = std::fs::read_to_string(folder.join("shapes.json")).unwrap();
    let shapes: Value = serde_json::from_str(&text).unwrap();
    for (model, expected) in shapes["tensor_shapes"].as_object().unwrap() {
        let text = std::fs::read_to_string(folder.join(format!("{model}.config.json"))).unwrap();
        let config = ModelConfig::from_json(&text).unwrap();
        let parameters: serde_json::Map<_, _> =
            config.parameters().into_iter().map(|(name, shape)| (name, json!(shape))).collect();
        assert_eq!(parameters.len(), expected.as_object().unwrap().len(), "{model}");
        for (name, shape) in expected.as_object().unwrap() {
            assert_eq!(parameters.get(name), Some(shape), "{model}: {name}");
        }
    }
}

#[test]
fn both_layouts_of_the_golden_models_mean_the_same() {
    for case in harness::golden_numerics() {
        let folder = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
        let [hub, v5] = ["config.json", "config.transformers5.json"]
            .map(|name| ModelConfig::from_json(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap());
        assert_eq!(hub, v5, "{}", folder.display());
    }
}

#[test]
fn both_layouts_state_llama3_scaling() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let hub = config_with(&json!({"rope_theta": 5e5, "rope_scaling": scaling})).unwrap();
    let mut section = scaling.clone();
    section["rope_theta"] = json!(5e5);
    assert_eq!(config_with(&json!({"rope_parameters": section})).unwrap(), hub);
    let mut old_name = scaling.clone();
    old_name["type"] = old_name["rope_type"].take();
    assert_eq!(config_with(&json!({"rope_theta": 5e5, "rope_scaling": old_name})).unwrap(), hub);

    let original = |changes: &Value| match config_with(changes).unwrap().rope_scaling {
        Some(RopeScaling::Llama3 { original_max_position_embeddings, .. }) => original_max_position_embeddings,
        other => panic!("the scaling became {other:?}"),
    };
    let mut without = scaling.clone();
    without["original_max_position_embeddings"].take();
    assert_eq!(original(&json!({"rope_scaling": without})), 256.0, "falls back to max_position_embeddings");
    let top = json!({"rope_scaling": scaling, "original_max_position_embeddings": 32});
    assert_eq!(original(&top), 32.0, "the top level goes before the section");
}

#[test]
fn rope_scaling_goes_before_rope_parameters_unless_it_is_empty() {
    let parameters = json!({"rope_type": "default", "rope_theta": 2e4});
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let both = config_with(&json!({"rope_parameters": parameters, "rope_scaling": llama3})).unwrap();
    assert!(both.rope_scaling.is_some());
    assert_eq!(both.rope_theta, 1e4);
    for nothing in [Value::Null, json!({})] {
        let config = config_with(&json!({"rope_parameters": parameters, "rope_scaling": nothing})).unwrap();
        assert_eq!((config.rope_theta, config.rope_scaling), (2e4, None));
    }
}

#[test]
fn absent_keys_have_the_families_defaults() {
    let llama = config_with(&json!({})).unwrap();
    assert_eq!((llama.head_dim, llama.rope_theta), (16, 10_000.0));
    assert!(!llama.tie_word_embeddings && !llama.qkv_bias && !llama.mlp_bias);
    assert_eq!(config_with(&json!({"num_key_value_heads": null})).unwrap().num_key_value_heads, 4);
    assert_eq!(config_with(&json!({"rms_norm_eps": null})).unwrap().rms_norm_eps, 1e-6);
    assert_eq!(config_with(&json!({"head_dim": 24})).unwrap().head_dim, 24);

    let qwen2 = config_with(&json!({"model_type": "qwen2"})).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.attention_output_bias && !qwen2.tie_word_embeddings);
    // Without `use_sliding_window`, which is false by default, the window is unused.
    assert_eq!(config_with(&json!({"model_type": "qwen2", "sliding_window": 4096})).unwrap(), qwen2);

    let smollm3 = config_with(&json!({"model_type": "smollm3", "num_hidden_layers": 5})).unwrap();
    assert_eq!((smollm3.head_dim, smollm3.rope_theta, smollm3.tie_word_embeddings), (16, 2e6, true));
    assert_eq!(kinds(&smollm3), (vec![None; 5], vec![true, true, true, false, true]));

    let qwen3 = config_with(&json!({"model_type": "qwen3"})).unwrap();
    assert_eq!(qwen3.head_dim, 128);
    assert!(!qwen3.qkv_bias && !qwen3.tie_word_embeddings);
}

#[test]
fn biases_are_parameters_where_the_family_has_them() {
    let biases = json!({"attention_bias": true, "mlp_bias": true});
    let has = |config: &ModelConfig, name: &str| {
        config.parameters().iter().any(|(n, _)| *n == format!("model.layers.1.{name}.bias"))
    };
    let count = |config: &ModelConfig| config.parameters().iter().filter(|(n, _)| n.ends_with(".bias")).count();
    let llama = config_with(&biases).unwrap();
    assert!(has(&llama, "self_attn.o_proj") && has(&llama, "mlp.down_proj"));
    assert_eq!(count(&llama), 2 * 7);
    let qwen2 = config_with(&json!({"model_type": "qwen2"})).unwrap();
    assert!(has(&qwen2, "self_attn.v_proj"));
    assert_eq!(count(&qwen2), 2 * 3);
    let mut qwen3 = biases;
    qwen3["model_type"] = json!("qwen3");
    assert_eq!(count(&config_with(&qwen3).unwrap()), 2 * 4);
}

#[test]
fn whatever_changes_the_mathematics_is_refused_with_key_and_value() {
    let llama3 = |change: &Value| {
        let mut section = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0});
        section.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"rope_scaling": section})
    };
    let cases = [
        (json!({"model_type": "mixtral"}), "model_type", "\"mixtral\""),
        (json!({"model_type": "qwen2_moe"}), "model_type", "\"qwen2_moe\""),
        (json!({"hidden_act": "gelu"}), "hidden_act", "\"gelu\""),
        (json!({"sliding_window": 4096}), "sliding_window", "4096"),
        (json!({"use_sliding_window": true}), "use_sliding_window", "true"),
        (json!({"model_type": "qwen3", "use_sliding_window": true, "sliding_window": 0}), "sliding_window", "0"),
        (
            json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": null,
                "layer_types": ["sliding_attention", "sliding_attention"]}),
            "layer_types",
            "sliding_attention without a window",
        ),
        (
            json!({"model_type": "smollm3", "layer_types": ["full_attention", "chunked_attention"]}),
            "layer_types",
            "chunked_attention",
        ),
        (json!({"model_type": "smollm3", "no_rope_layers": [1]}), "no_rope_layers", "[1]"),
        (json!({"model_type": "smollm3", "no_rope_layers": [1, 2]}), "no_rope_layers", "[1,2]"),
        (json!({"model_type": "smollm3", "no_rope_layer_interval": 0}), "no_rope_layer_interval", "0"),
        (
            json!({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}),
            "layer_types",
            "[\"full_attention\",\"sliding_attention\"]",
        ),
        (json!({"layer_types": ["full_attention"]}), "layer_types", "[\"full_attention\"]"),
        (json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), "rope_scaling.factor", "0"),
        (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention", "true"),
        (json!({"is_causal": false}), "is_causal", "false"),
        (json!({"rope_scaling": {"rope_type": "yarn"}}), "rope_scaling.factor", "missing"),
        (json!({"rope_parameters": {"rope_type": "dynamic"}}), "rope_parameters.factor", "missing"),
        (json!({"rope_scaling": {"rope_type": "longrope"}}), "rope_scaling.rope_type", "\"longrope\""),
        (json!({"rope_scaling": {"type": "mrope", "mrope_section": [16]}}), "rope_scaling.type", "\"mrope\""),
        (json!({"rope_scaling": {"factor": 2.0}}), "rope_scaling", "{\"factor\":2.0}"),
        (
            json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}),
            "rope_parameters",
            "{\"full_attention\":{\"rope_type\":\"default\"}}",
        ),
        (json!({"rope_scaling": "linear"}), "rope_scaling", "\"linear\""),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor", "0.5"),
        (
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
            "rope_parameters.partial_rotary_factor",
            "0.25",
        ),
        (json!({"rope_interleaved": true}), "rope_interleaved", "true"),
        (json!({"use_mrope": true}), "use_mrope", "true"),
        (json!({"num_experts": 8}), "num_experts", "8"),
        (json!({"num_local_experts": 4}), "num_local_experts", "4"),
        (json!({"quantization_config": {"bits": 4}}), "quantization_config", "{\"bits\":4}"),
        (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping", "50.0"),
        (json!({"final_logit_softcapping": 30.0}), "final_logit_softcapping", "30.0"),
        (json!({"head_dim": 7}), "head_dim", "7"),
        (json!({"hidden_size": 60}), "head_dim", "60 / 4"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads", "3"),
        (json!({"hidden_size": -1}), "hidden_size", "-1"),
        (json!({"vocab_size": "many"}), "vocab_size", "\"many\""),
        (json!({"rms_norm_eps": "small"}), "rms_norm_eps", "\"small\""),
        (json!({"rms_norm_eps": -1e-5}), "rms_norm_eps", "-0.00001"),
        (json!({"tie_word_embeddings": 1}), "tie_word_embeddings", "1"),
        (json!({"rope_theta": 0}), "rope_theta", "0"),
        (llama3(&json!({"factor": -2})), "rope_scaling.factor", "-2"),
        (llama3(&json!({"factor": "x"})), "rope_scaling.factor", "\"x\""),
        (llama3(&json!({"high_freq_factor": 1.0})), "rope_scaling.high_freq_factor", "1"),
    ];
    for (change, key, value) in cases {
        refused(&change, key, value);
    }
}

fn refused(change: &Value, key: &str, value: &str) {
    let error = config_with(change).expect_err(&format!("{change} was accepted"));
    assert!(error.contains(&format!("`{key}`")) && error.contains(value), "{change}: {error}");
}

#[test]
fn what_is_not_supported_of_gemma_3_is_refused_with_key_and_value() {
    let linear = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6});
    let cases = [
        (json!({"model_type": "gemma3", "text_config": {}}), "model_type", "gemma3_text, is supported"),
        (json!({"hidden_activation": "gelu"}), "hidden_activation", "\"gelu\""),
        (json!({"attn_logit_softcapping": 50.0}), "attn_logit_softcapping", "50.0"),
        (json!({"final_logit_softcapping": 30.0}), "final_logit_softcapping", "30.0"),
        (json!({"use_bidirectional_attention": true}), "use_bidirectional_attention", "true"),
        (json!({"query_pre_attn_scalar": 0}), "query_pre_attn_scalar", "0"),
        (json!({"sliding_window": null}), "sliding_window", "is missing"),
        (json!({"sliding_window_pattern": 0}), "sliding_window_pattern", "0"),
        (json!({"layer_types": ["full_attention", "global"]}), "layer_types", "\"global\""),
        (json!({"rope_local_base_freq": -1.0}), "rope_local_base_freq", "-1"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "rope_scaling.rope_type", "\"yarn\""),
        (
            json!({"rope_parameters": {"sliding_attention": linear}}),
            "rope_parameters.sliding_attention.rope_type",
            "\"linear\"",
        ),
        (json!({"rope_parameters": {"rope_type": "default"}}), "rope_parameters", "`rope_type` is no type of layer"),
    ];
    for (mut change, key, value) in cases {
        if change.get("model_type").is_none() {
            change["model_type"] = json!("gemma3_text");
        }
        refused(&change, key, value);
    }
}

#[test]
fn missing_keys_are_named() {
    for key in [
        "model_type",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ] {
        let error = config_with(&json!({key: null})).unwrap_err();
        assert_eq!(error, format!("config.json: `{key}` is missing"));
    }
    let scaling = json!({"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    let error = config_with(&json!({"rope_scaling": scaling})).unwrap_err();
    assert_eq!(error, "config.json: `rope_scaling.factor` is missing");
    assert!(ModelConfig::from_json("[]").unwrap_err().to_string().contains("not an object"));
    assert!(ModelConfig::from_json("{").unwrap_err().to_string().contains("not a valid config.json"));
}

#[test]
fn quantised_and_mixed_models_say_what_to_take_instead() {
    let told = |changes: Value| config_with(&changes).unwrap_err();
    for config in
        [json!({"quant_method": "fp8"}), json!({"quant_method": "awq", "bits": 4}), json!({"load_in_4bit": true})]
    {
        let text = told(json!({"quantization_config": config}));
        assert!(text.contains("`quantization_config` = ") && text.contains("`model.dequantize()`"), "{text}");
    }
    assert!(told(json!({"num_experts": 8})).contains("take a dense model"));
}
