//! OLMo 2, Ministral 3, Phi-3, Granite 4 and Qwen3 MoE: published configurations, positions, and everything that is
//! refused.

use serde_json::{Value, json};

use super::*;

fn read(config: &Value) -> ModelConfig {
    ModelConfig::from_json(&config.to_string()).unwrap()
}

/// A configuration with some keys replaced; null removes a key.
fn with(mut config: Value, changes: &Value) -> Result<ModelConfig, String> {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    ModelConfig::from_json(&config.to_string()).map_err(|e| e.to_string())
}

fn refused(config: &Value, changes: &Value, words: &[&str]) {
    let error = with(config.clone(), changes).expect_err(&format!("{changes} was accepted"));
    assert!(words.iter().all(|words| error.contains(words)), "{changes}: {error}");
}

fn olmo2() -> Value {
    json!({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 16,
        "num_hidden_layers": 16, "num_key_value_heads": 16, "rms_norm_eps": 1e-6, "rope_scaling": null,
        "rope_theta": 500000, "tie_word_embeddings": false, "vocab_size": 100352})
}

fn phi4_mini() -> Value {
    json!({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-5,
        "rope_scaling": {"type": "longrope", "short_factor": vec![1.0; 48], "long_factor": vec![2.0; 48]},
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true, "vocab_size": 200064})
}

fn ministral3() -> Value {
    json!({"model_type": "ministral3", "head_dim": 128, "hidden_act": "silu", "hidden_size": 3072,
        "intermediate_size": 9216, "max_position_embeddings": 262144, "num_attention_heads": 32,
        "num_hidden_layers": 26, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": null,
        "tie_word_embeddings": true, "vocab_size": 131072, "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0,
            "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn"}})
}

fn granite4() -> Value {
    json!({"architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": false, "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 8192,
        "layer_types": vec!["attention"; 40], "logits_scaling": 10.0, "max_position_embeddings": 131072,
        "model_type": "granitemoehybrid", "num_attention_heads": 40, "num_experts_per_tok": 0,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "num_local_experts": 0, "position_embedding_type": "rope",
        "residual_multiplier": 0.22, "rms_norm_eps": 1e-5, "rope_theta": 10000000, "shared_intermediate_size": 8192,
        "tie_word_embeddings": true, "vocab_size": 100352})
}

#[test]
fn olmo_2_norms_results_and_whole_widths_and_no_input() {
    let config = read(&olmo2());
    assert_eq!((config.parameter_count(), config.parameters().len()), (1_484_916_736, 2 + 16 * 11 + 1));
    assert!(config.output_norms() && config.width_norms() && !config.head_norms());
    assert_eq!((config.input_norm(), config.mlp_norm()), (None, None));
    assert_eq!(config.query_and_key_norms(0), Some([2048; 2]));
    let names: Vec<String> = config.parameters().into_iter().map(|(name, _)| name).collect();
    assert!(!names.iter().any(|name| name.contains("input_layernorm") || name.contains("pre_feedforward")));
}

#[test]
fn phi_4_mini_has_fused_projections_and_turns_a_part_of_each_head() {
    let config = read(&phi4_mini());
    assert_eq!((config.parameter_count(), config.parameters().len()), (3_836_021_760, 1 + 32 * 6 + 1));
    assert_eq!((config.head_dim, config.rotary_dim, config.attention(0).unwrap().window), (128, 96, None));
    assert_eq!(config.attention_names().inputs().collect::<Vec<_>>(), ["self_attn.qkv_proj"]);
    assert!(config.mlp_names().is_fused() && config.original_length() == Some(4096));
    let factor = (1.0 + 32.0_f64.ln() / 4096.0_f64.ln()).sqrt();
    assert!((config.rotary_factor(Rotary::Global) - factor).abs() < 1e-15);
    let window = with(phi4_mini(), &json!({"sliding_window": 2047})).unwrap();
    assert!(window.attention_layers().all(|(_, layer)| layer.window == Some(2047)));
    let plain = with(phi4_mini(), &json!({"rope_scaling": null, "partial_rotary_factor": null})).unwrap();
    assert_eq!((plain.rotary_dim, plain.original_length(), plain.rope_scaling), (128, None, None));
}

#[test]
fn tables_of_longrope_have_short_rows_first_and_all_positions_of_long_rows_behind() {
    let changes = json!({"max_position_embeddings": 16, "original_max_position_embeddings": 4, "hidden_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "partial_rotary_factor": 0.25,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}});
    let config = with(phi4_mini(), &changes).unwrap();
    assert_eq!([4, 5].map(|length| config.rotary_begin(length)), [0, 4]);
    for positions in [1, 4, 5, 16] {
        assert_eq!(config.rotary_positions(config.rotary_rows(positions)), positions);
    }
    let factor = (1.0 + 4.0_f64.ln() / 4.0_f64.ln()).sqrt();
    let expected = |position: f64, divisors: [f64; 2]| {
        [1.0, 0.01].iter().zip(divisors).map(|(f, d)| ((position * f / d).cos() * factor) as f32).collect::<Vec<_>>()
    };
    let (cos, sin) = config.rotary_tables(Rotary::Global, 6);
    assert_eq!((cos.len(), sin.len()), (2 * (4 + 6), 2 * (4 + 6)));
    assert_eq!(cos[2 * 3..2 * 4], expected(3.0, [1.0, 2.0]));
    assert_eq!(cos[2 * 4..2 * 5], expected(0.0, [4.0, 8.0]));
    assert_eq!(cos[2 * 9..], expected(5.0, [4.0, 8.0]));
    assert_eq!(config.rotary_tables(Rotary::Global, 4).0.len(), 2 * 4, "no sequence is longer than that");
}

#[test]
fn ministral_3_is_read_alone_and_within_its_wrapper() {
    let config = read(&ministral3());
    assert_eq!(config.parameters().len(), 1 + 26 * 9 + 1);
    assert!(!config.wrapped && config.rotary_factor(Rotary::Global) == 1.0);
    let growth = config.query_factors(32769).unwrap();
    assert_eq!((growth[0], growth[16383]), (1.0, 1.0));
    assert_eq!((growth[16384], growth[32768]), (1.0 + 0.1 * 2_f32.ln(), 1.0 + 0.1 * 3_f32.ln()));
    let frequencies = config.inverse_frequencies(Rotary::Global);
    let plain = |i: usize| 1e6_f64.powf(-2.0 * i as f64 / 128.0);
    assert_eq!(frequencies[0], 1.0, "fast pairs turn as ever");
    assert!((frequencies[63] - plain(63) / 16.0).abs() < 1e-18, "slow pairs are divided in full");
    let middle = frequencies[32] / plain(32);
    assert!(middle < 1.0 && middle > 1.0 / 16.0, "{middle}");

    let wrapper = json!({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": ministral3(), "vision_config": {"model_type": "pixtral", "hidden_size": 1024}});
    assert_eq!(read(&wrapper), ModelConfig { wrapped: true, ..config });
    for (whole, text, tied) in [
        (None, Some(true), true),
        (None, None, false),
        (Some(true), Some(false), false),
        (Some(true), None, true),
        (Some(false), Some(false), false),
        (Some(false), Some(true), false),
    ] {
        let mut text_config = ministral3();
        text_config["tie_word_embeddings"] = json!(text);
        let changes = json!({"tie_word_embeddings": whole, "text_config": text_config});
        assert_eq!(with(wrapper.clone(), &changes).unwrap().tie_word_embeddings, tied, "{whole:?} and {text:?}");
    }
    refused(&wrapper, &json!({"text_config": null}), &["`text_config` is missing"]);
    let mut other = ministral3();
    other["model_type"] = json!("mistral");
    refused(&wrapper, &json!({"text_config": other}), &["`text_config.model_type` = \"mistral\"", "ministral3"]);
    refused(&wrapper, &json!({"quantization_config": {"quant_method": "fp8"}}), &["`quantization_config`"]);
}

#[test]
fn without_a_section_ministral_3_has_the_positions_of_its_class() {
    let missing = with(ministral3(), &json!({"rope_parameters": null})).unwrap();
    assert_eq!(missing, read(&ministral3()));
}

#[test]
fn granite_4_has_multipliers_and_a_fused_mlp() {
    let config = read(&granite4());
    assert_eq!((config.head_dim, config.intermediate_size, config.attention_scale), (64, 8192, 0.015_625));
    assert_eq!((config.embedding_scale(), config.residual_multiplier, config.logits_scaling), (Some(12.0), 0.22, 10.0));
    let last = config.parameters().into_iter().rfind(|(name, _)| name.contains("shared_mlp")).unwrap();
    assert_eq!(last, ("model.layers.39.shared_mlp.output_linear.weight".into(), vec![2560, 8192]));
    let without = with(granite4(), &json!({"position_embedding_type": null})).unwrap();
    assert!(without.attention_layers().all(|(_, layer)| layer.rotary.is_none()));
    let named = with(granite4(), &json!({"layer_types": vec!["full_attention"; 40]})).unwrap();
    assert_eq!(named, config);
}

#[test]
fn what_is_not_supported_of_the_newer_families_is_refused_with_key_and_value() {
    let longrope = |short: usize, more: Value| {
        let mut section = json!({"type": "longrope", "short_factor": vec![1.0; short], "long_factor": vec![2.0; 48]});
        section.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"rope_scaling": section})
    };
    for (config, changes, words) in [
        (granite4(), json!({"num_local_experts": 32}), ["`num_local_experts` = 32", "dense"]),
        (granite4(), json!({"num_local_experts": null}), ["`num_local_experts` is missing", "dense"]),
        (granite4(), json!({"position_embedding_type": "alibi"}), ["`position_embedding_type`", "alibi"]),
        (granite4(), json!({"logits_scaling": 0}), ["`logits_scaling`", "positive"]),
        (granite4(), json!({"shared_intermediate_size": null}), ["`shared_intermediate_size`", "missing"]),
        (phi4_mini(), longrope(47, json!({})), ["`rope_scaling.short_factor`", "48 positive numbers"]),
        (phi4_mini(), longrope(48, json!({"long_mscale": 1.2})), ["`rope_scaling.long_mscale`", "1.2"]),
        (phi4_mini(), longrope(48, json!({"factor": 4.0})), ["`rope_scaling.factor`", "which is 32"]),
        (
            phi4_mini(),
            longrope(48, json!({"original_max_position_embeddings": 8192})),
            ["`rope_scaling.original_max_position_embeddings`", "which is 4096"],
        ),
        (phi4_mini(), json!({"partial_rotary_factor": 0.01}), ["`partial_rotary_factor`", "128 entries"]),
        (phi4_mini(), json!({"partial_rotary_factor": 1.5}), ["`partial_rotary_factor`", "(1.5)"]),
        (ministral3(), json!({"rope_parameters": {"rope_type": "yarn"}}), ["`rope_parameters.factor`", "missing"]),
        (ministral3(), json!({"partial_rotary_factor": 0.5}), ["`partial_rotary_factor`", "0.5"]),
        (olmo2(), json!({"sliding_window": 4096}), ["`sliding_window` = 4096", "everything"]),
        (olmo2(), json!({"rope_scaling": {"rope_type": "yarn", "factor": 0.0}}), ["`rope_scaling.factor`", "0"]),
        (
            olmo2(),
            json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "conv"]}),
            ["`layer_types`", "layer 1 is \"conv\""],
        ),
    ] {
        refused(&config, &changes, &words);
    }
}

/// Qwen3-30B-A3B.
fn qwen3_moe() -> Value {
    json!({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-6,
        "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})
}

#[test]
fn experts_stand_in_the_place_of_the_mlp_in_the_layers_that_have_them() {
    let config = read(&qwen3_moe());
    assert!(
        config.head_norms() && !config.qkv_bias && config.attention_layers().all(|(_, kind)| kind.window.is_none())
    );
    let experts = config.experts.clone().unwrap();
    assert_eq!((experts.count, experts.per_token, experts.width, experts.normalised), (128, 8, 768, true));
    assert_eq!(config.inner_width(), 8 * 768);
    // The published number of parameters.
    assert_eq!(config.parameter_count(), 30_532_122_624);
    assert_eq!(config.parameter_count() - config.idle_parameters(), 3_353_032_704);
    let names: Vec<String> = config.parameters().into_iter().map(|(name, _)| name).collect();
    for name in ["mlp.gate.weight", "mlp.experts.127.gate_proj.weight", "mlp.experts.0.down_proj.weight"] {
        assert!(names.contains(&format!("model.layers.47.{name}")), "{name}");
    }
    assert!(!names.iter().any(|name| name.ends_with(".mlp.up_proj.weight")));

    let mixed = with(
        qwen3_moe(),
        &json!({"decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": null,
        "num_local_experts": 16}),
    );
    let mixed = mixed.unwrap();
    let sparse: Vec<usize> = (0..8).filter(|&layer| mixed.experts_of(layer).is_some()).collect();
    assert_eq!((sparse, mixed.experts.as_ref().unwrap().count), (vec![1, 5, 7], 16));
    assert_eq!(mixed.inner_width(), 6144);
    let shapes: std::collections::HashMap<_, _> = mixed.parameters().into_iter().collect();
    assert_eq!(shapes["model.layers.0.mlp.up_proj.weight"], [6144, 2048]);
    assert_eq!(shapes["model.layers.1.mlp.gate.weight"], [16, 2048]);
    assert_eq!(shapes["model.layers.1.mlp.experts.15.down_proj.weight"], [2048, 768]);
    let all: Vec<usize> = (0..48).collect();
    assert_eq!(with(qwen3_moe(), &json!({"mlp_only_layers": all})).unwrap().experts, None);
}

#[test]
fn wrong_numbers_of_experts_are_refused_by_key() {
    for (changes, words) in [
        (json!({"num_experts": 0}), ["`num_experts`", "positive"]),
        (json!({"num_experts": 5000}), ["`num_experts`", "at most 1024"]),
        (json!({"num_local_experts": 64}), ["`num_experts` is 128", "`num_local_experts` is 64"]),
        (json!({"num_experts_per_tok": 129}), ["`num_experts_per_tok` (129)", "128 experts"]),
        (json!({"moe_intermediate_size": "wide"}), ["`moe_intermediate_size`", "positive whole number"]),
        (json!({"norm_topk_prob": 1}), ["`norm_topk_prob`", "true or false"]),
        (json!({"decoder_sparse_step": 0}), ["`decoder_sparse_step`", "positive"]),
        (json!({"mlp_only_layers": [48]}), ["`mlp_only_layers`", "48 layers"]),
        (json!({"mlp_only_layers": 3}), ["`mlp_only_layers`", "48 layers"]),
        (json!({"use_sliding_window": true}), ["`use_sliding_window`", "without windows"]),
        (json!({"moe_intermediate_size": 1 << 30}), ["`hidden_size`", "parameters"]),
    ] {
        refused(&qwen3_moe(), &changes, &words);
    }
}

#[test]
fn configurations_of_dense_models_are_written_as_before() {
    let text = serde_json::to_string(&read(&olmo2())).unwrap();
    assert!(!text.contains("experts"), "{text}");
    let whole: ModelConfig = serde_json::from_str(&serde_json::to_string(&read(&qwen3_moe())).unwrap()).unwrap();
    assert_eq!(whole, read(&qwen3_moe()));
}
