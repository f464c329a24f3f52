//! Exports that are the model pass, and exports that are not are refused with what is wrong.

use std::{fs, path::Path};

use exporters_verify::{Model, compare, gguf, huggingface, values_as_of, verify};
use serde_json::json;
use shared::Dtype;

use crate::support::{GgufType, TestModel, rows, same};

/// Families with changes that make every key of theirs count.
pub fn families() -> [(&'static str, serde_json::Value); 9] {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16});
    let linear = json!({"rope_type": "linear", "factor": 4.0});
    [
        ("llama", json!({"rope_scaling": llama3})),
        ("llama", json!({"attention_bias": true, "mlp_bias": true, "head_dim": 32})),
        ("qwen2", json!({"rope_scaling": linear, "tie_word_embeddings": true})),
        ("qwen3", json!({"rope_theta": 5e5})),
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

const TYPES: [(GgufType, Option<f64>); 5] = [
    (GgufType::F32, Some(1e-4)),
    (GgufType::F16, Some(1e-2)),
    (GgufType::Bf16, Some(8e-2)),
    (GgufType::Q8_0, None),
    (GgufType::Q4_0, None),
];

#[test]
fn every_family_in_every_type_is_its_model() {
    for (family, changes) in families() {
        let model = TestModel::new(family, &changes);
        for (kind, bound) in TYPES {
            let export = gguf::open(&model.write_gguf(kind, same)).unwrap();
            let distance = model.verify(export, bound).unwrap_or_else(|e| panic!("{family} {changes} {kind}: {e}"));
            assert_eq!(distance.tokens, 46);
            assert!(kind == GgufType::F32 || distance.largest > 0.0, "{family} {kind} rounds nothing");
            // A short convolution multiplies three projections, and so their roundings.
            let most = if family == "lfm2" { 0.6 } else { 0.3 };
            assert!(kind != GgufType::Q8_0 || distance.largest < most, "{family}: {distance:?}");
        }
        for (dtype, bound) in [(Dtype::Fp32, 1e-4), (Dtype::Fp16, 1e-2), (Dtype::Bf16, 8e-2)] {
            let export = huggingface::open(&model.write_hf(dtype, same), None).unwrap();
            let distance = model.verify(export, Some(bound)).unwrap_or_else(|e| panic!("{family} {dtype}: {e}"));
            assert!(dtype != Dtype::Fp32 || distance.largest == 0.0, "{distance:?}");
        }
    }
}

#[test]
fn values_of_an_export_come_back_in_the_order_of_the_model() {
    for (family, changes) in families() {
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
    for (family, right, wrong, words) in [
        ("llama", linear.clone(), json!({"rope_scaling": null}), "rotary positions of layer 0 are others"),
        ("llama", families()[0].1.clone(), json!({"rope_scaling": null}), "rotary positions of layer 0 are others"),
        ("llama", json!({}), json!({"rope_theta": 5e3}), "rotary positions of layer 0 are others"),
        ("gemma3_text", gemma("rope_scaling"), json!({"rope_scaling": null}), "rotary positions of layer 5 are others"),
        ("gemma3_text", json!({}), json!({"sliding_window": 6}), "window of layer 0 is Some(6)"),
        ("qwen2", json!({}), json!({"rms_norm_eps": 1e-2}), "epsilon of norms"),
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
