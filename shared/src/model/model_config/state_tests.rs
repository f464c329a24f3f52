//! LFM2, LFM3, Qwen3.5 and Granite 4 with Mamba-2: published configurations, parameters, states, and refusals.

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

fn lfm2_350m() -> Value {
    json!({"architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": true, "block_dim": 1024,
        "block_ff_dim": 6656, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-5,
        "block_use_swiglu": true, "conv_L_cache": 3, "conv_bias": false, "conv_dim": 1024,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 1024, "max_position_embeddings": 128000,
        "model_type": "lfm2", "norm_eps": 1e-5, "num_attention_heads": 16, "num_heads": 16, "num_hidden_layers": 16,
        "num_key_value_heads": 8, "rope_theta": 1000000.0, "use_pos_enc": true, "vocab_size": 65536})
}

fn qwen3_5_text() -> Value {
    json!({"attention_bias": false, "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3584, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_value_head_dim": 128, "max_position_embeddings": 262144, "model_type": "qwen3_5_text",
        "num_attention_heads": 8, "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
            "rope_theta": 10000000, "rope_type": "default"},
        "tie_word_embeddings": true, "vocab_size": 248320})
}

#[test]
fn lfm2_350m_is_read_as_published() {
    let config = with(lfm2_350m(), &json!({})).unwrap();
    assert_eq!((config.parameter_count(), config.intermediate_size, config.head_dim), (354_483_968, 4608, 64));
    assert!(config.tie_word_embeddings && config.has_states() && config.head_norms());
    let attention: Vec<usize> = config.attention_layers().map(|(layer, _)| layer).collect();
    assert_eq!(attention, [2, 5, 8, 10, 12, 14]);
    assert_eq!(config.layers[0], LayerKind::ShortConv(ShortConv { kernel: 3, bias: false }));
    assert_eq!(config.state_parts(0), StateParts { window: [1024, 2], matrix: [0; 3] });
    assert_eq!((config.state_parts(0).numbers(), config.state_parts(2).numbers()), (2048, 0));
    assert_eq!((config.rope_theta, config.rms_norm_eps, config.norm_offset()), (1e6, 1e-5, 0.0));
    let types: Vec<&str> = (0..16).map(|i| if attention.contains(&i) { "full_attention" } else { "conv" }).collect();
    let newer = json!({"layer_types": types, "full_attn_idxs": null, "block_ff_dim": null, "intermediate_size": 6656});
    assert_eq!(with(lfm2_350m(), &newer).unwrap(), config, "both layouts say the same");
}

#[test]
fn lfm2_has_names_of_its_own_and_biases_on_request() {
    let config = with(lfm2_350m(), &json!({"conv_bias": true})).unwrap();
    let names: Vec<String> = config.parameters().into_iter().map(|(name, _)| name).collect();
    let of_layer = |layer: usize| -> Vec<&str> {
        let prefix = format!("model.layers.{layer}.");
        names.iter().filter_map(|name| name.strip_prefix(&prefix)).collect()
    };
    let mlp = ["ffn_norm.weight", "feed_forward.w1.weight", "feed_forward.w3.weight", "feed_forward.w2.weight"];
    let conv = [
        "operator_norm.weight",
        "conv.in_proj.weight",
        "conv.in_proj.bias",
        "conv.conv.weight",
        "conv.conv.bias",
        "conv.out_proj.weight",
        "conv.out_proj.bias",
    ];
    assert_eq!(of_layer(0), [&conv[..], &mlp].concat());
    let attention = [
        "operator_norm.weight",
        "self_attn.q_proj.weight",
        "self_attn.k_proj.weight",
        "self_attn.v_proj.weight",
        "self_attn.q_layernorm.weight",
        "self_attn.k_layernorm.weight",
        "self_attn.out_proj.weight",
    ];
    assert_eq!(of_layer(2), [&attention[..], &mlp].concat());
    assert_eq!(names.last().unwrap(), "model.embedding_norm.weight");
}

#[test]
fn the_width_of_lfm2s_mlp_is_adjusted_as_the_keys_say() {
    let width = |changes: Value| with(lfm2_350m(), &changes).unwrap().intermediate_size;
    assert_eq!(width(json!({"block_auto_adjust_ff_dim": false})), 6656);
    assert_eq!(width(json!({"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 16})), 5776);
    let mut without_factor = lfm2_350m();
    without_factor["block_ffn_dim_multiplier"] = Value::Null;
    let config = ModelConfig::from_json(&without_factor.to_string()).unwrap();
    assert_eq!(config.intermediate_size, 4437, "null is no factor, and nothing is rounded");
}

#[test]
fn qwen_3_5_is_read_alone_and_within_its_wrapper() {
    let config = with(qwen3_5_text(), &json!({})).unwrap();
    assert_eq!(config.parameter_count(), 752_393_024);
    assert_eq!((config.head_dim, config.rotary_dim, config.rope_theta), (256, 64, 1e7));
    let rule = DeltaRule { key_heads: 16, value_heads: 16, key_dim: 128, value_dim: 128, kernel: 4 };
    let attention = AttentionKind { rotary: Some(Rotary::Global), window: None, gate: Some(AttentionGate::Entries) };
    for (layer, kind) in config.layers.iter().enumerate() {
        let expected = if layer % 4 == 3 { LayerKind::Attention(attention) } else { LayerKind::DeltaRule(rule) };
        assert_eq!(*kind, expected, "layer {layer}");
    }
    assert_eq!(config.state_parts(0), StateParts { window: [6144, 3], matrix: [16, 128, 128] });
    assert_eq!((config.norm_offset(), config.rope_scaling.clone(), config.wrapped), (1.0, None, false));
    let shapes: std::collections::HashMap<String, Vec<usize>> = config.parameters().into_iter().collect();
    for (name, shape) in [
        ("linear_attn.in_proj_qkv.weight", vec![6144, 1024]),
        ("linear_attn.in_proj_z.weight", vec![2048, 1024]),
        ("linear_attn.in_proj_b.weight", vec![16, 1024]),
        ("linear_attn.conv1d.weight", vec![6144, 1, 4]),
        ("linear_attn.dt_bias", vec![16]),
        ("linear_attn.A_log", vec![16]),
        ("linear_attn.norm.weight", vec![128]),
        ("linear_attn.out_proj.weight", vec![1024, 2048]),
    ] {
        assert_eq!(shapes[&format!("model.layers.0.{name}")], shape, "{name}");
    }
    assert_eq!(shapes["model.layers.3.self_attn.q_proj.weight"], [4096, 1024], "queries and their gates");
    assert_eq!(shapes["model.layers.3.self_attn.o_proj.weight"], [1024, 2048]);
    let wrapper = json!({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": qwen3_5_text(), "vision_config": {"model_type": "qwen3_5", "depth": 12}});
    assert_eq!(with(wrapper, &json!({})).unwrap(), ModelConfig { wrapped: true, ..config });
}

fn lfm3() -> Value {
    json!({"architectures": ["Lfm3ForCausalLM"], "conv_L_cache": 7, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 7680, "max_position_embeddings": 128000, "model_type": "lfm3", "norm_eps": 1e-5,
        "num_attention_heads": 16, "num_hidden_layers": 24, "num_key_value_heads": 4,
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
        "sliding_window": 256, "tie_word_embeddings": true, "vocab_size": 128000})
}

#[test]
fn lfm3_has_windows_gates_of_heads_and_pairs_that_are_not_turned() {
    let config = with(lfm3(), &json!({})).unwrap();
    assert_eq!(config.parameter_count(), 1_728_801_536);
    let gate = Some(AttentionGate::Heads);
    let attention = |rotary, window| LayerKind::Attention(AttentionKind { rotary: Some(rotary), window, gate });
    for (layer, kind) in config.layers.iter().enumerate() {
        let expected = match layer % 4 {
            2 => attention(Rotary::Global, None),
            0 if layer > 0 => attention(Rotary::Local, Some(256)),
            _ => LayerKind::ShortConv(ShortConv { kernel: 7, bias: false }),
        };
        assert_eq!(*kind, expected, "layer {layer}");
    }
    let [global, local] = [Rotary::Global, Rotary::Local].map(|rotary| config.inverse_frequencies(rotary));
    let of = |theta: f64, pair: usize| theta.powf(-2.0 * pair as f64 / 128.0);
    assert_eq!((global[31], global[32], global[63]), (of(1e6, 31), 0.0, 0.0));
    assert_eq!((local[31], local[63]), (of(1e4, 31), of(1e4, 63)));
    let names: Vec<String> = config.parameters().into_iter().map(|(name, _)| name).collect();
    let has = |name: &str| names.iter().any(|known| known == name);
    assert!(has("model.layers.0.post_operator_norm.weight") && has("model.layers.0.post_ffn_norm.weight"));
    assert!(has("model.layers.2.self_attn.gate_proj.weight") && has("model.layers.2.self_attn.o_proj.weight"));
    let class = with(lfm3(), &json!({"rope_parameters": null, "sliding_window": null, "conv_L_cache": null})).unwrap();
    assert_eq!(class, config, "the defaults of the class");
    let both = with(lfm3(), &json!({"norm_eps": 0.01, "rms_norm_eps": 0.3})).unwrap();
    assert_eq!(both.rms_norm_eps, 0.3, "transformers sets the other name last");
    assert_eq!(config.unknown_to_packed(), None);
    let biased = with(lfm3(), &json!({"attention_bias": true})).unwrap();
    assert_eq!(biased.unknown_to_packed().unwrap(), "`attention_bias` beside `use_attention_gate`");
    let wide = with(lfm3(), &json!({"head_dim": 520})).unwrap();
    assert_eq!(wide.unknown_to_packed().unwrap(), "`head_dim` 520 is above 512");
    let plain = with(lfm3(), &json!({"use_attention_gate": false, "attention_bias": true})).unwrap();
    assert_eq!(plain.unknown_to_packed(), None);
    let names: Vec<String> = plain.parameters().into_iter().map(|(name, _)| name).collect();
    assert!(
        names.iter().any(|name| name.ends_with("q_proj.bias")) && !names.iter().any(|n| n.contains("self_attn.gate"))
    );
}

fn granite_h_1b() -> Value {
    let types: Vec<&str> = (0..40).map(|layer| if layer % 10 == 5 { "attention" } else { "mamba" }).collect();
    json!({"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false, "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12, "hidden_act": "silu", "hidden_size": 1536, "intermediate_size": 4096,
        "layer_types": types, "logits_scaling": 6, "mamba_chunk_size": 256, "mamba_conv_bias": true, "mamba_d_conv": 4,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 48,
        "mamba_proj_bias": false, "max_position_embeddings": 131072, "model_type": "granitemoehybrid",
        "num_attention_heads": 12, "num_experts_per_tok": 0, "num_hidden_layers": 40, "num_key_value_heads": 4,
        "num_local_experts": 0, "position_embedding_type": "nope", "residual_multiplier": 0.22, "rms_norm_eps": 1e-5,
        "rope_theta": 10000, "shared_intermediate_size": 4096, "tie_word_embeddings": true, "vocab_size": 100352})
}

#[test]
fn granite_4_has_mamba_and_attention_without_positions() {
    let config = with(granite_h_1b(), &json!({})).unwrap();
    assert_eq!(config.parameter_count(), 1_461_538_368);
    let mamba =
        Mamba { heads: 48, head_dim: 64, groups: 1, state_dim: 128, kernel: 4, conv_bias: true, proj_bias: false };
    let attention = AttentionKind { rotary: None, window: None, gate: None };
    for (layer, kind) in config.layers.iter().enumerate() {
        let expected = if layer % 10 == 5 { LayerKind::Attention(attention) } else { LayerKind::Mamba(mamba) };
        assert_eq!(*kind, expected, "layer {layer}");
    }
    assert_eq!(config.state_parts(0), StateParts { window: [3328, 3], matrix: [48, 128, 64] });
    let shapes: std::collections::HashMap<String, Vec<usize>> = config.parameters().into_iter().collect();
    for (name, shape) in [
        ("mamba.in_proj.weight", vec![3072 + 3328 + 48, 1536]),
        ("mamba.conv1d.weight", vec![3328, 1, 4]),
        ("mamba.conv1d.bias", vec![3328]),
        ("mamba.dt_bias", vec![48]),
        ("mamba.A_log", vec![48]),
        ("mamba.D", vec![48]),
        ("mamba.norm.weight", vec![3072]),
        ("mamba.out_proj.weight", vec![1536, 3072]),
        ("shared_mlp.input_linear.weight", vec![8192, 1536]),
    ] {
        assert_eq!(shapes[&format!("model.layers.0.{name}")], shape, "{name}");
    }
    assert!(!shapes.contains_key("model.layers.0.mamba.in_proj.bias"));
    let biased = with(granite_h_1b(), &json!({"mamba_proj_bias": true, "mamba_conv_bias": false})).unwrap();
    let names: Vec<String> = biased.parameters().into_iter().map(|(name, _)| name).collect();
    let has = |name: &str| names.iter().any(|known| known == &format!("model.layers.0.mamba.{name}.bias"));
    assert_eq!(["in_proj", "out_proj", "conv1d"].map(has), [true, true, false]);
    let newer = |layer: usize| if layer % 10 == 5 { "full_attention" } else { "linear_attention" };
    let types: Vec<&str> = (0..40).map(newer).collect();
    let limits = json!([0.0, {"__float__": "Infinity"}]);
    let newer = json!({"layer_types": types, "time_step_limit": limits, "mamba_d_head": "auto"});
    assert_eq!(with(granite_h_1b(), &newer).unwrap(), config, "both layouts say the same");
    let other_name = json!({"layer_types": vec!["attention"; 40], "layers_block_type": types});
    assert_eq!(with(granite_h_1b(), &other_name).unwrap(), config, "transformers sets the other name last");
    let words =
        granite_h_1b().to_string().replace("\"model_type\"", "\"time_step_limit\":[0.0,Infinity],\"model_type\"");
    assert_eq!(ModelConfig::from_json(&words).unwrap(), config, "as Python writes it");
    // Sizes of layers that a model does not have need not fit.
    let dense = json!({"layer_types": vec!["attention"; 40], "mamba_n_heads": 7});
    assert!(!with(granite_h_1b(), &dense).unwrap().has_states());
}

#[test]
fn missing_keys_have_the_defaults_of_the_classes() {
    let missing = json!({"layer_types": null, "full_attention_interval": null, "linear_num_value_heads": null,
        "rope_parameters": {"rope_type": "default"}, "linear_conv_kernel_dim": null, "num_key_value_heads": null});
    let config = with(qwen3_5_text(), &missing).unwrap();
    assert_eq!((config.rotary_dim, config.rope_theta, config.num_key_value_heads), (64, 1e4, 4));
    assert_eq!(config.state_parts(0), StateParts { window: [2 * 2048 + 4096, 3], matrix: [32, 128, 128] });
    let missing = json!({"norm_eps": null, "conv_L_cache": null, "num_key_value_heads": null, "rope_theta": null,
        "full_attn_idxs": null});
    let config = with(lfm2_350m(), &missing).unwrap();
    assert_eq!((config.rms_norm_eps, config.rope_theta, config.num_key_value_heads), (1e-5, 1e6, 8));
    assert!(!config.has_states(), "without a list, every layer has attention");
    let missing = json!({"layer_types": null, "mamba_d_head": null, "mamba_d_state": null, "mamba_d_conv": null,
        "mamba_expand": null, "mamba_n_groups": null, "mamba_conv_bias": null, "mamba_proj_bias": null});
    let config = with(granite_h_1b(), &missing).unwrap();
    assert_eq!(config.state_parts(5), StateParts { window: [3072 + 512, 3], matrix: [48, 256, 64] });
    assert_eq!(config.attention_layers().count(), 0, "without a list, every layer is Mamba-2");
}

#[test]
fn what_is_not_supported_of_families_with_states_is_refused_with_key_and_value() {
    let mut types = vec!["linear_attention"; 24];
    types[7] = "mamba";
    let mut of_granite = vec!["mamba"; 40];
    of_granite[3] = "moe";
    for (config, changes, words) in [
        (lfm2_350m(), json!({"full_attn_idxs": [2, 16]}), ["`full_attn_idxs`", "below 16"]),
        (lfm2_350m(), json!({"layer_types": ["conv"]}), ["`layer_types`", "expected 16 layers"]),
        (lfm2_350m(), json!({"conv_L_cache": 1}), ["`conv_L_cache`", "between 2 and 64, found 1"]),
        (lfm2_350m(), json!({"block_ff_dim": null}), ["`intermediate_size`", "missing"]),
        (lfm2_350m(), json!({"block_ff_dim": 1, "block_multiple_of": 1}), ["`block_ff_dim`", "MLP of 0"]),
        (lfm2_350m(), json!({"num_experts": 32}), ["`num_experts` = 32", "dense"]),
        (lfm3(), json!({"use_sandwich_norm": false}), ["`use_sandwich_norm` = false", "both sides"]),
        (
            lfm3(),
            json!({"rope_parameters": {"full_attention": {"rope_type": "yarn"},
                "sliding_attention": {"rope_type": "default"}}}),
            ["`rope_parameters.full_attention.rope_type`", "yarn"],
        ),
        (qwen3_5_text(), json!({"layer_types": types}), ["`layer_types`", "layer 7 is \"mamba\""]),
        (qwen3_5_text(), json!({"linear_num_key_heads": 3}), ["`linear_num_key_heads`", "must divide"]),
        (qwen3_5_text(), json!({"attn_output_gate": false}), ["`attn_output_gate` = false", "gate"]),
        (qwen3_5_text(), json!({"linear_value_head_dim": 2_000_000_000}), ["`hidden_size`", "parameters"]),
        (granite_h_1b(), json!({"layer_types": of_granite}), ["`layer_types`", "layer 3 is \"moe\""]),
        (granite_h_1b(), json!({"layer_types": ["mamba"]}), ["`layer_types`", "expected 40 layers"]),
        (granite_h_1b(), json!({"mamba_d_head": 32}), ["`mamba_d_head` (32)", "which is 3072"]),
        (granite_h_1b(), json!({"mamba_n_groups": 5}), ["`mamba_n_groups` (5)", "must divide"]),
        (granite_h_1b(), json!({"mamba_d_conv": 1}), ["`mamba_d_conv`", "between 2 and 64, found 1"]),
        (granite_h_1b(), json!({"mamba_d_state": 2_000_000_000}), ["`mamba_d_state`", "numbers in a layer"]),
        (granite_h_1b(), json!({"time_step_limit": [0.0, 0.5]}), ["`time_step_limit`", "no limits"]),
        (granite_h_1b(), json!({"num_local_experts": 32}), ["`num_local_experts` = 32", "dense"]),
        (granite_h_1b(), json!({"position_embedding_type": "alibi"}), ["`position_embedding_type`", "nope"]),
        (
            qwen3_5_text(),
            json!({"rope_parameters": {"partial_rotary_factor": 2.0}}),
            ["`partial_rotary_factor`", "(2)"],
        ),
    ] {
        let error = with(config, &changes).expect_err(&format!("{changes} was accepted"));
        assert!(words.iter().all(|words| error.contains(words)), "{changes}: {error}");
    }
}

#[test]
fn kinds_of_layers_keep_the_form_that_files_have() {
    let form = |kind: LayerKind| serde_json::to_value(kind).unwrap();
    let plain = LayerKind::Attention(AttentionKind { rotary: Some(Rotary::Local), window: Some(8), gate: None });
    assert_eq!(form(plain), json!({"rotary": "local", "window": 8}));
    let gated = LayerKind::Attention(AttentionKind { rotary: None, window: None, gate: Some(AttentionGate::Entries) });
    let conv = LayerKind::ShortConv(ShortConv { kernel: 3, bias: true });
    let rule = LayerKind::DeltaRule(DeltaRule { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 16, kernel: 4 });
    let mamba = LayerKind::Mamba(Mamba {
        heads: 4,
        head_dim: 16,
        groups: 2,
        state_dim: 8,
        kernel: 4,
        conv_bias: true,
        proj_bias: false,
    });
    for kind in [plain, gated, conv, rule, mamba] {
        assert_eq!(serde_json::from_value::<LayerKind>(form(kind)).unwrap(), kind);
    }
}
