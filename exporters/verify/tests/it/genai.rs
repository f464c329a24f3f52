//! Folders for ONNX Runtime GenAI. No runtime is here, so the model itself stands for one that runs the graph well.

use std::{fs, path::PathBuf};

use exporters::{
    Checkpoint,
    genai::{GenAiOptions, Precision, fill},
};
use exporters_verify::{Distance, Reader, VerifyError, genai};
use serde_json::{Value, json};
use shared::ModelDir;

use crate::{
    refused::{Change, families, flip, transpose},
    support::{TestModel, rows, same},
};

const PRECISIONS: [(Precision, Option<f64>); 4] =
    [(Precision::Fp32, Some(1e-4)), (Precision::Fp16, Some(1e-2)), (Precision::Int8, None), (Precision::Int4, None)];

/// Writes a model as a folder, with its parameters changed by `change`.
fn folder(model: &TestModel, precision: Precision, change: Change<'_>) -> PathBuf {
    fs::write(model.path().join("tokenizer_config.json"), "{}").unwrap();
    let (opened, out) = (model.open(), model.path().join("genai"));
    let _ = fs::remove_dir_all(&out);
    fs::create_dir(&out).unwrap();
    let checkpoint = Checkpoint::open(&opened).unwrap();
    let options = GenAiOptions { precision, max_positions: None };
    fill(&opened, &out, &options, &mut |name| Ok(change(name, checkpoint.read_f32(name)?).into())).unwrap();
    out
}

/// Compares a model with its folder, which `runtime` runs.
fn verified(model: &TestModel, runtime: &mut dyn Reader, bound: Option<f64>) -> Result<Distance, VerifyError> {
    genai::verify(&mut model.source(), genai::open(&model.path().join("genai"))?, runtime, &rows(), bound)
}

fn refusal(model: &TestModel, bound: Option<f64>) -> String {
    let error = verified(model, &mut model.source(), bound).unwrap_err().to_string();
    assert!(error.starts_with("the export is not the model: "), "{error}");
    error
}

#[test]
fn every_family_in_every_format_is_its_model() {
    // Rows that end within a block, of an embedding that is looked up alone, and of one that is the head too.
    let narrow = |tied: bool| json!({"hidden_size": 48, "intermediate_size": 40, "tie_word_embeddings": tied});
    let narrow = [("llama", narrow(true)), ("llama", narrow(false)), ("qwen3", json!({"head_dim": 8}))];
    // GenAI is not tried with experts, so no folder of them is written.
    let written = families().into_iter().filter(|(family, _)| *family != "qwen3_moe");
    for (family, changes) in written.chain(narrow) {
        let model = TestModel::new(family, &changes);
        for (precision, bound) in PRECISIONS {
            folder(&model, precision, &same);
            let distance = verified(&model, &mut model.source(), bound);
            let distance = distance.unwrap_or_else(|e| panic!("{family} {changes} {precision:?}: {e}"));
            assert_eq!((distance.tokens, distance.largest), (46, 0.0));
        }
    }
}

#[test]
fn spoilt_weights_are_refused_in_every_format() {
    let model = TestModel::new("llama", &json!({}));
    let source = ModelDir::open(model.path()).unwrap();
    let swap = |name: &str, values: Vec<f32>| {
        let other = if name.contains(".2.") { name.replacen(".2.", ".3.", 1) } else { return values };
        Checkpoint::open(&source).unwrap().read_f32(&other).unwrap()
    };
    let head = |name: &str, mut values: Vec<f32>| {
        if name == "lm_head.weight" {
            values[5] = -values[5] - 0.5;
        }
        values
    };
    let changes: [(&str, Change<'_>); 4] = [
        ("of tensor model.layers.1.mlp.up_proj", &flip),
        ("of tensor model.layers.1.mlp.up_proj", &transpose),
        ("of tensor model.layers.2.input_layernorm", &swap),
        ("value 5 of tensor lm_head.weight", &head),
    ];
    for (precision, bound) in PRECISIONS {
        for (words, change) in changes {
            folder(&model, precision, change);
            let error = refusal(&model, bound);
            assert!(error.contains(words), "{precision:?}: {error}");
        }
    }
}

#[test]
fn positions_and_numbers_of_another_configuration_are_refused() {
    let linear = json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}});
    let none = json!({"rope_scaling": null});
    let cases: [(&str, Value, Value, &str); 7] = [
        ("llama", linear.clone(), none.clone(), "rotary positions of layer 0 are others (pair 0 at position 1"),
        ("llama", families()[0].1.clone(), none.clone(), "rotary positions of layer 0 are others"),
        ("qwen3", json!({"head_dim": 8, "rope_theta": 5e5}), json!({"rope_theta": 1e4}), "rotary positions of layer 0"),
        ("gemma3_text", linear, none, "rotary positions of layer 5 are others"),
        ("gemma3_text", json!({}), json!({"sliding_window": 6}), "its window of layer 0 is Some(6)"),
        ("gemma3_text", json!({}), json!({"query_pre_attn_scalar": 64}), "factor on attention scores of layer 0"),
        ("qwen2", json!({}), json!({"rms_norm_eps": 1e-2}), "its epsilon of norms is"),
    ];
    for (family, right, wrong, words) in cases {
        for (precision, bound) in PRECISIONS {
            let model = TestModel::new(family, &right);
            let path = model.path().join("config.json");
            let before = fs::read_to_string(&path).unwrap();
            let mut config: Value = serde_json::from_str(&before).unwrap();
            config.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
            fs::write(&path, config.to_string()).unwrap();
            folder(&model, precision, &same);
            fs::write(&path, before).unwrap();
            let error = refusal(&model, bound);
            assert!(error.contains(words), "{family} {wrong} {precision:?}: {error}");
        }
    }
}

#[test]
fn what_genai_reads_of_sizes_is_compared() {
    let model = TestModel::new("qwen2", &json!({}));
    for (key, words) in [
        ("/model/context_length", "longest sequence is 65"),
        ("/model/vocab_size", "vocabulary is 41"),
        ("/model/decoder/num_hidden_layers", "number of layers is 7"),
        ("/model/decoder/head_size", "width of a head is 17"),
    ] {
        let path = folder(&model, Precision::Fp32, &same).join("genai_config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let size = config.pointer_mut(key).unwrap();
        *size = (size.as_u64().unwrap() + 1).into();
        fs::write(&path, config.to_string()).unwrap();
        let error = refusal(&model, None);
        assert!(error.contains(words), "{error}");
    }
}

/// A graph that is wrong though its weights are right shows in what the runtime says.
#[test]
fn a_runtime_that_says_something_else_is_refused() {
    let (model, other) = (TestModel::new("llama", &json!({})), TestModel::new("llama", &json!({"rope_theta": 10.0})));
    for (precision, bound) in PRECISIONS {
        folder(&model, precision, &same);
        let error = verified(&model, &mut other.source(), bound).unwrap_err().to_string();
        let words = if bound.is_some() { "the bound is" } else { "with the same weights in a plain forward pass" };
        assert!(error.contains(words), "{precision:?}: {error}");
    }
}

#[test]
fn files_that_are_cut_or_lack_are_named() {
    let model = TestModel::new("llama", &json!({}));
    let out = folder(&model, Precision::Int4, &same);
    let data = out.join("model.onnx.data");
    let bytes = fs::read(&data).unwrap();
    fs::write(&data, &bytes[..bytes.len() - 1]).unwrap();
    let error = verified(&model, &mut model.source(), None).unwrap_err().to_string();
    assert!(error.contains("model.onnx.data: ends before byte"), "{error}");
    fs::write(out.join("model.onnx"), b"no protobuf").unwrap();
    assert!(genai::open(&out).err().unwrap().to_string().contains("model.onnx: is no ONNX model"));
    fs::remove_file(&data).unwrap();
    folder(&model, Precision::Int4, &same);
    fs::remove_file(&data).unwrap();
    assert!(genai::open(&out).err().unwrap().to_string().contains("model.onnx.data"));
}
