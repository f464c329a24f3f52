//! Exports that are the model pass, and exports that are not are refused with what is wrong.

use std::{fs, path::Path};

use exporters_verify::{Model, compare, gguf, huggingface, values_as_of, verify};
use serde_json::json;
use shared::Dtype;

use crate::support::{GgufType, TestModel, rows, same};

/// Families with changes that make every key of theirs count.
pub fn families() -> [(&'static str, serde_json::Value); 12] {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16});
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    // The length is that of the model, where no key says it.
    let louder = json!({"type": "yarn", "factor": 2.0, "attention_factor": 1.25});
    [
        ("llama", json!({"rope_scaling": llama3})),
        ("llama", json!({"attention_bias": true, "mlp_bias": true, "head_dim": 32})),
        ("qwen2", json!({"rope_scaling": linear, "tie_word_embeddings": true})),
        ("qwen3", json!({"rope_theta": 5e5})),
        ("qwen3", json!({"rope_scaling": yarn})),
        ("llama", json!({"rope_scaling": louder})),
        ("qwen2", json!({"rope_scaling": {"type": "dynamic", "factor": 4.0}})),
        (
            "qwen3_moe",
            // All experts are chosen: rounded weights would choose others.
            json!({"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "norm_topk_prob": true}),
        ),
        ("smollm3", json!({"tie_word_embeddings": true})),
        ("gemma3_text", json!({})),
        ("gemma3_text", json!({"rope_scaling": linear})),
        ("lfm2", json!({"block_auto_adjust_ff_dim": false, "conv_L_cache": 4, "full_attn_idxs": [1, 4]})),
    ]
}

/// Newer families likewise, which have no form for ONNX Runtime GenAI or are tried there by themselves.
pub fn newer_families() -> [(&'static str, serde_json::Value); 9] {
    let granite = |layers: [&str; 6], positions: &str| {
        json!({"num_local_experts": 0, "shared_intermediate_size": 64, "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6, "attention_multiplier": 0.2, "logits_scaling": 0.5, "layer_types": layers,
            "position_embedding_type": positions, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2,
            "mamba_d_state": 8, "mamba_expand": 2, "mamba_d_conv": 4, "tie_word_embeddings": true})
    };
    let (mamba, attention) = ("mamba", "attention");
    let yarn = json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5,
        "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let louder = json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
        "attention_factor": 1.25});
    let longrope = |original: u32| {
        json!({"partial_rotary_factor": 0.75, "original_max_position_embeddings": original, "sliding_window": null,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}})
    };
    let (slides, full) = ("sliding_attention", "full_attention");
    let turned = json!({
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    [
        ("granitemoehybrid", granite([attention; 6], "rope")),
        ("granitemoehybrid", granite([mamba, attention, mamba, mamba, attention, mamba], "nope")),
        ("olmo2", json!({"num_key_value_heads": 4})),
        ("ministral3", json!({"sliding_window": null, "rope_parameters": yarn})),
        ("ministral3", json!({"sliding_window": null, "rope_parameters": louder})),
        ("phi3", longrope(16)),
        ("phi3", longrope(32)),
        (
            "qwen3_5_text",
            json!({"rms_norm_eps": 1e-6, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                "linear_key_head_dim": 8, "linear_value_head_dim": 8, "full_attention_interval": 3,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
        ),
        (
            "gemma4_text",
            json!({"global_head_dim": 32, "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
                "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 40, "final_logit_softcapping": 5.0,
                "layer_types": [slides, slides, full, slides, slides, full], "rope_parameters": turned}),
        ),
    ]
}

const TYPES: [(GgufType, Option<f64>); 5] = [
    (GgufType::F32, Some(1e-4)),
    (GgufType::F16, Some(1e-2)),
    (GgufType::Bf16, Some(8e-2)),
    (GgufType::Q8_0, None),
    (GgufType::Q4_0, None),
];

#[test]
fn every_family_in_every_type_is_its_model() {
    for (family, changes) in families().into_iter().chain(newer_families()) {
        let model = TestModel::new(family, &changes);
        // Random weights of a newer family multiply roundings, so its values alone are compared.
        let is_older = families().iter().any(|(older, _)| *older == family);
        let bound_of = |bound: Option<f64>| bound.filter(|bound| is_older || *bound == 1e-4);
        for (kind, bound) in TYPES {
            let export = gguf::open(&model.write_gguf(kind, same)).unwrap();
            let distance =
                model.verify(export, bound_of(bound)).unwrap_or_else(|e| panic!("{family} {changes} {kind}: {e}"));
            assert_eq!(distance.tokens, 46);
            assert!(kind == GgufType::F32 || distance.largest > 0.0, "{family} {kind} rounds nothing");
            // A short convolution multiplies three projections, and so their roundings.
            let most = if family == "lfm2" { 0.6 } else { 0.3 };
            assert!(kind != GgufType::Q8_0 || !is_older || distance.largest < most, "{family}: {distance:?}");
        }
        for (dtype, bound) in [(Dtype::Fp32, 1e-4), (Dtype::Fp16, 1e-2), (Dtype::Bf16, 8e-2)] {
            let export = huggingface::open(&model.write_hf(dtype, same), None).unwrap();
            let distance = model.verify(export, bound_of(Some(bound)));
            let distance = distance.unwrap_or_else(|e| panic!("{family} {dtype}: {e}"));
            assert!(dtype != Dtype::Fp32 || distance.largest == 0.0, "{distance:?}");
        }
    }
}

#[test]
fn values_of_an_export_come_back_in_the_order_of_the_model() {
    for (family, changes) in families().into_iter().chain(newer_families()) {
        let model = TestModel::new(family, &changes);
        let (source, export) = (model.source(), gguf::open(&model.write_gguf(GgufType::F32, same)).unwrap());
        for name in source.weights().names() {
            let meant = source.weights().read(&name).unwrap().values;
            let found = values_as_of(source.architecture(), &export, &name).unwrap();
            // Weights of Gemma's norms had 1 added, which rounds them.
            let is_same = meant.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(is_same && meant.len() == found.len(), "{family} {changes}: {name}");
        }
    }
}

/// A change of parameters.
pub type Change<'a> = &'a dyn Fn(&str, Vec<f32>) -> Vec<f32>;

const UP: &str = "model.layers.1.mlp.up_proj.weight";

/// Makes one value of a parameter another one, by more than any rounding.
pub fn flip(name: &str, mut values: Vec<f32>) -> Vec<f32> {
    if name == UP {
        values[77] = -values[77] - 0.5;
    }
    values
}

pub fn transpose(name: &str, values: Vec<f32>) -> Vec<f32> {
    if name != UP {
        return values;
    }
    (0..values.len()).map(|at| values[at % 64 * 64 + at / 64]).collect()
}

/// The error of an export, and the one that log-probs alone give, without a look at the tensors.
fn errors(model: &TestModel, mut export: Model) -> (String, Option<String>) {
    let of_logprobs = compare(&mut model.source(), &mut export, &rows()).unwrap().require(1e-4).err();
    (model.verify(export, Some(1e-4)).unwrap_err().to_string(), of_logprobs.map(|error| error.to_string()))
}

#[test]
fn spoilt_weights_are_refused_by_value_and_by_log_probs() {
    let model = TestModel::new("llama", &json!({}));
    let source = shared::ModelDir::open(model.path()).unwrap();
    let swap = |name: &str, values: Vec<f32>| {
        let other = match name.split('.').nth(2) {
            Some("2") => name.replacen(".2.", ".3.", 1),
            Some("3") => name.replacen(".3.", ".2.", 1),
            _ => return values,
        };
        exporters::Checkpoint::open(&source).unwrap().read_f32(&other).unwrap()
    };
    let changes: [(&str, Change<'_>); 3] = [
        ("value 77 of tensor model.layers.1.mlp.up_proj", &flip),
        ("of tensor model.layers.1.mlp.up_proj", &transpose),
        ("of tensor model.layers.2.input_layernorm", &swap),
    ];
    for (words, change) in changes {
        let of_gguf = gguf::open(&model.write_gguf(GgufType::F32, change)).unwrap();
        let of_hf = huggingface::open(&model.write_hf(Dtype::Fp32, change), None).unwrap();
        for export in [of_gguf, of_hf] {
            let (error, of_logprobs) = errors(&model, export);
            assert!(error.starts_with("the export is not the model: ") && error.contains(words), "{error}");
            assert!(of_logprobs.is_some_and(|error| error.contains("the bound is 1e-4")), "{words}");
        }
    }
}

/// Spoils one tensor after the other.
#[test]
fn a_value_of_any_tensor_of_a_newer_family_is_refused() {
    for (family, changes) in newer_families() {
        let model = TestModel::new(family, &changes);
        // These have what layers 0 to 2 have.
        let is_first = |name: &String| !name.contains("layers.3.") && !name.contains("layers.4.");
        for name in model.source().weights().names().into_iter().filter(is_first) {
            let flip = |other: &str, mut values: Vec<f32>| {
                if other == name {
                    let last = values.len() - 1;
                    values[last] = 0.5 - values[last];
                }
                values
            };
            let export = gguf::open(&model.write_gguf(GgufType::F32, flip)).unwrap();
            let error = model.verify(export, Some(1e-4)).unwrap_err().to_string();
            assert!(error.contains(&format!("of tensor {name} is")), "{family} {name}: {error}");
        }
    }
}

#[test]
fn layers_and_heads_of_a_newer_family_in_another_order_are_refused() {
    for (family, changes) in newer_families() {
        let model = TestModel::new(family, &changes);
        let source = shared::ModelDir::open(model.path()).unwrap();
        let swap = |name: &str, values: Vec<f32>| {
            let other =
                if name.contains(".2.") { name.replacen(".2.", ".5.", 1) } else { name.replacen(".5.", ".2.", 1) };
            let read = exporters::Checkpoint::open(&source).unwrap().read_f32(&other);
            read.ok().filter(|other| other.len() == values.len()).unwrap_or(values)
        };
        let (error, of_logprobs) = errors(&model, gguf::open(&model.write_gguf(GgufType::F32, swap)).unwrap());
        assert!(error.contains("of tensor model.layers.2."), "{family}: {error}");
        assert!(of_logprobs.is_some(), "{family}: log-probs do not show it");
        // The first two rows of the first projection of layer 0.
        let mixed = ["self_attn.q_proj", "self_attn.qkv_proj", "linear_attn.in_proj_qkv", "mamba.in_proj"];
        let turn = |name: &str, mut values: Vec<f32>| {
            if mixed.iter().any(|part| name == format!("model.layers.0.{part}.weight")) {
                values.rotate_left(64);
            }
            values
        };
        let (error, of_logprobs) = errors(&model, gguf::open(&model.write_gguf(GgufType::F32, turn)).unwrap());
        assert!(error.contains("value 0 of tensor model.layers.0."), "{family}: {error}");
        assert!(of_logprobs.is_some(), "{family}: log-probs do not show it");
    }
}

#[test]
fn a_flipped_value_is_refused_in_every_type() {
    let model = TestModel::new("qwen3", &json!({}));
    for (kind, bound) in TYPES {
        let export = gguf::open(&model.write_gguf(kind, flip)).unwrap();
        let error = model.verify(export, bound).unwrap_err().to_string();
        assert!(error.contains("tensor model.layers.1.mlp.up_proj.weight is"), "{kind}: {error}");
    }
}

/// An export of the same weights under another configuration.
fn of_other_config(model: &TestModel, changes: &serde_json::Value) -> Model {
    let path = model.path().join("config.json");
    let before = fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&before).unwrap();
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    fs::write(&path, config.to_string()).unwrap();
    let export = gguf::open(&model.write_gguf(GgufType::F32, same)).unwrap();
    fs::write(&path, before).unwrap();
    export
}

#[test]
fn positions_and_numbers_of_another_configuration_are_refused() {
    let linear = json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}});
    let gemma = |key: &str| json!({key: {"rope_type": "linear", "factor": 4.0}});
    let plain = json!({"rope_type": "default", "rope_theta": 1e4});
    let mut slower = newer_families()[3].1["rope_parameters"].clone();
    slower["factor"] = 8.0.into();
    let (granite, newer) = ("granitemoehybrid", |index: usize| newer_families()[index].1.clone());
    for (family, right, wrong, words) in [
        ("llama", linear.clone(), json!({"rope_scaling": null}), "rotary positions of layer 0 are others"),
        ("llama", families()[0].1.clone(), json!({"rope_scaling": null}), "rotary positions of layer 0 are others"),
        ("llama", json!({}), json!({"rope_theta": 5e3}), "rotary positions of layer 0 are others"),
        ("gemma3_text", gemma("rope_scaling"), json!({"rope_scaling": null}), "rotary positions of layer 5 are others"),
        ("gemma3_text", json!({}), json!({"sliding_window": 6}), "window of layer 0 is Some(6)"),
        ("qwen2", json!({}), json!({"rms_norm_eps": 1e-2}), "epsilon of norms"),
        (granite, newer(0), json!({"embedding_multiplier": 2.0}), "factor on embeddings"),
        (granite, newer(0), json!({"residual_multiplier": 1.0}), "factor on outputs of blocks"),
        (granite, newer(1), json!({"position_embedding_type": "rope"}), "rotary positions of layer 1 are others"),
        ("olmo2", newer(2), json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}), "positions of layer 0"),
        ("ministral3", newer(3), newer(4), "factor on cosines and sines"),
        ("ministral3", newer(3), json!({"rope_parameters": plain}), "growth of queries"),
        ("ministral3", newer(3), json!({"rope_parameters": slower}), "rotary positions of layer 0 are others"),
        ("phi3", newer(5), json!({"rope_scaling": null}), "factor on cosines and sines"),
        ("phi3", newer(5), newer(6), "factor on cosines and sines"),
        ("qwen3_5_text", newer(7), json!({"rope_parameters": {"rope_theta": 1e5}}), "rotary positions of layer 2"),
        ("gemma4_text", newer(8), json!({"final_logit_softcapping": 6.0}), "bound of logits"),
        ("gemma4_text", newer(8), json!({"sliding_window": 6}), "window of layer 0"),
    ] {
        let model = TestModel::new(family, &right);
        let (error, of_logprobs) = errors(&model, of_other_config(&model, &wrong));
        assert!(error.contains(words), "{family} {wrong}: {error}");
        assert!(of_logprobs.is_some(), "{family} {wrong}: log-probs do not show it");
    }
}

/// Replaces bytes of a file by as many others.
fn replace(path: &Path, from: &[u8], to: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    fs::write(path, bytes).unwrap();
}

#[test]
fn tensors_that_lack_are_too_many_or_lie_elsewhere_are_refused() {
    let model = TestModel::new("qwen2", &json!({}));
    let path = model.write_gguf(GgufType::F32, same);
    replace(&path, b"blk.0.attn_q.bias", b"blk.9.attn_q.bias");
    let error = gguf::open(&path).err().unwrap().to_string();
    assert!(error.contains("model.gguf: has a tensor blk.9.attn_q.bias, which is no part of the model"), "{error}");
    let path = model.write_gguf(GgufType::F32, same);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 32]).unwrap();
    let error = verify(&mut model.source(), &mut gguf::open(&path).unwrap(), &rows(), None).unwrap_err().to_string();
    assert!(error.contains("model.gguf: ends before byte"), "{error}");
    let other = TestModel::new("qwen2", &json!({"num_hidden_layers": 5}));
    let error = model.verify(other.source(), None).unwrap_err().to_string();
    assert!(error.contains("number of layers is 5, the model's is 6"), "{error}");
}
