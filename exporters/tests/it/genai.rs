//! Folders for ONNX Runtime GenAI: files, graph, rounded weights, refusals.

use std::{fs, path::Path};

use exporters::{
    genai::{GenAiOptions, Precision, export, fill},
    onnx::proto::{DataType, GraphProto, TensorProto},
};
use safetensors::Dtype;
use serde_json::{Value, json};
use shared::ModelDir;

use crate::{
    adapter,
    support::{TestModel, assert_well_formed, described, files, graph, values},
};

/// One model of every family, with all kinds of layers; the last has widths that are no multiples of a block.
fn families() -> [Value; 7] {
    [
        json!({"attention_bias": true, "mlp_bias": true}),
        json!({"model_type": "qwen2", "tie_word_embeddings": true}),
        json!({"model_type": "qwen3", "head_dim": 8}),
        json!({"model_type": "smollm3", "no_rope_layers": [0, 1], "use_sliding_window": true, "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention"]}),
        json!({"model_type": "gemma3_text", "head_dim": 16, "sliding_window_pattern": 2}),
        json!({"hidden_size": 48, "intermediate_size": 40, "tie_word_embeddings": true}),
        json!({"model_type": "lfm2", "block_auto_adjust_ff_dim": false, "full_attn_idxs": [1]}),
    ]
}

fn model(changes: &Value) -> TestModel {
    let model = TestModel::new(changes, Dtype::F32);
    harness::tiny_model::write_tokenizer(model.path());
    model
}

fn options(precision: Precision) -> GenAiOptions {
    GenAiOptions { precision, max_positions: None }
}

/// The graph and the bytes of an export.
fn exported(model: &TestModel, precision: Precision) -> (GraphProto, Vec<u8>) {
    let out = model.path().join("genai");
    export(&model.open(), &out, &options(precision)).unwrap();
    (graph(&out), fs::read(out.join("model.onnx.data")).unwrap())
}

fn config(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join("genai_config.json")).unwrap()).unwrap()
}

fn tensor<'a>(graph: &'a GraphProto, name: &str) -> Option<&'a TensorProto> {
    graph.initializer.iter().find(|t| t.name == name)
}

/// The bytes of a tensor.
fn bytes<'a>(tensor: &TensorProto, data: &'a [u8]) -> &'a [u8] {
    let of = |key: &str| tensor.external_data.iter().find(|e| e.key == key).unwrap().value.clone();
    assert_eq!(of("location"), "model.onnx.data");
    let [offset, length] = ["offset", "length"].map(|key| of(key).parse::<usize>().unwrap());
    assert_eq!(offset % 4096, 0, "{}", tensor.name);
    &data[offset..offset + length]
}

#[test]
fn the_same_model_gives_the_same_bytes_in_any_folder() {
    let model = model(&json!({}));
    let elsewhere = tempfile::tempdir().unwrap();
    for precision in Precision::ALL {
        let (first, second) = (model.path().join("a"), elsewhere.path().join("b"));
        let written = export(&model.open(), &first, &options(precision)).unwrap();
        assert_eq!(export(&model.open(), &second, &options(precision)).unwrap(), written);
        assert_eq!(files(&first), files(&second));
        assert_eq!(
            files(&first).into_keys().collect::<Vec<_>>(),
            [
                "genai_config.json",
                "generation_config.json",
                "model.onnx",
                "model.onnx.data",
                "tokenizer.json",
                "tokenizer_config.json",
            ],
            "neither config.json nor manifest.json: the folder is no model directory and no version"
        );
        assert_eq!(written.data_bytes, fs::metadata(first.join("model.onnx.data")).unwrap().len());
        assert_eq!(written.context_length, 64);
    }
}

#[test]
fn every_value_is_made_before_it_is_read_and_every_weight_is_read() {
    for (changes, precision) in families().iter().flat_map(|changes| Precision::ALL.map(|p| (changes, p))) {
        let (graph, data) = exported(&model(changes), precision);
        assert_well_formed(&graph, &format!("{changes}, {precision:?}"));
        for tensor in graph.initializer.iter().filter(|t| !t.external_data.is_empty()) {
            bytes(tensor, &data);
        }
    }
}

#[test]
fn inputs_and_outputs_are_those_that_the_configuration_names() {
    let changes = json!({"num_hidden_layers": 1, "head_dim": 8});
    let (graph, _) = exported(&model(&changes), Precision::Fp16);
    assert_eq!(
        graph.input.iter().map(described).collect::<Vec<_>>(),
        [
            "input_ids: Int64 [batch, sequence]",
            "attention_mask: Int64 [batch, total_sequence_length]",
            "position_ids: Int64 [batch, sequence]",
            "past_key_values.0.key: Float16 [batch, 2, past_sequence_length, 8]",
            "past_key_values.0.value: Float16 [batch, 2, past_sequence_length, 8]",
        ]
    );
    assert_eq!(
        graph.output.iter().map(described).collect::<Vec<_>>(),
        [
            "logits: Float [batch, sequence, 32]",
            "present.0.key: Float16 [batch, 2, total_sequence_length, 8]",
            "present.0.value: Float16 [batch, 2, total_sequence_length, 8]",
        ]
    );
}

#[test]
fn the_configuration_describes_the_model() {
    let model = model(&json!({"model_type": "qwen3", "head_dim": 8}));
    fs::write(
        model.path().join("generation_config.json"),
        r#"{"eos_token_id": [5, 7], "bos_token_id": 3, "do_sample": true, "temperature": 0.6, "top_k": 20}"#,
    )
    .unwrap();
    let out = model.path().join("genai");
    let asked = GenAiOptions { precision: Precision::Fp32, max_positions: Some(48) };
    assert_eq!(export(&model.open(), &out, &asked).unwrap().context_length, 48);
    assert_eq!(
        config(&out),
        json!({
            "model": {
                "type": "qwen3",
                "vocab_size": 32,
                "context_length": 48,
                "bos_token_id": 3,
                "eos_token_id": [0, 5, 7],
                "pad_token_id": 0,
                "decoder": {
                    "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                    "filename": "model.onnx",
                    "head_size": 8,
                    "hidden_size": 16,
                    "num_attention_heads": 4,
                    "num_hidden_layers": 2,
                    "num_key_value_heads": 2,
                    "inputs": {
                        "input_ids": "input_ids",
                        "attention_mask": "attention_mask",
                        "position_ids": "position_ids",
                        "past_key_names": "past_key_values.%d.key",
                        "past_value_names": "past_key_values.%d.value",
                    },
                    "outputs": {
                        "logits": "logits",
                        "present_key_names": "present.%d.key",
                        "present_value_names": "present.%d.value",
                    },
                },
            },
            "search": {
                "do_sample": true,
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 1.0,
                "repetition_penalty": 1.0,
                "min_length": 0,
                "max_length": 48,
                "past_present_share_buffer": true,
            },
        })
    );
}

#[test]
fn families_have_the_names_that_genai_knows() {
    let names: Vec<String> = families()
        .iter()
        .map(|changes| {
            let model = model(changes);
            exported(&model, Precision::Int4);
            config(&model.path().join("genai"))["model"]["type"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(names, ["llama", "qwen2", "qwen3", "smollm3", "gemma3_text", "llama", "lfm2"]);
}

/// The values of a weight in blocks of so many bits, and the step of each value.
fn unpacked(graph: &GraphProto, data: &[u8], codes: &str, weight: &str, bits: usize, columns: usize) -> Vec<[f32; 2]> {
    let codes = tensor(graph, codes).unwrap_or_else(|| panic!("{weight} has no {codes}"));
    assert_eq!(codes.data_type, DataType::Uint8 as i32);
    let scales = bytes(tensor(graph, &format!("{weight}.scales")).unwrap(), data);
    let middle = (1 << (bits - 1)) as f32;
    let blocks = bytes(codes, data).chunks(32 * bits / 8).zip(scales.as_chunks().0);
    let values: Vec<[f32; 2]> = blocks
        .flat_map(|(codes, &scale)| {
            let scale = f32::from_le_bytes(scale);
            let codes: Vec<u8> =
                if bits == 4 { codes.iter().flat_map(|c| [c & 15, c >> 4]).collect() } else { codes.to_vec() };
            codes.into_iter().map(move |code| [(f32::from(code) - middle) * scale, scale.abs()])
        })
        .collect();
    let padded = columns.next_multiple_of(32);
    values.chunks(padded).flat_map(|row| &row[..columns]).copied().collect()
}

#[test]
fn rounded_values_are_within_a_step_of_the_weights() {
    for (changes, precision) in families().iter().flat_map(|c| [(c, Precision::Int8), (c, Precision::Int4)]) {
        let model = model(changes);
        let (graph, data) = exported(&model, precision);
        let tied = model.config().tie_word_embeddings;
        for (name, shape) in model.parameters() {
            let what = format!("{changes}, {precision:?}, {name}");
            let expected = values(&name, &shape);
            let whole = ["model.embed_tokens.weight", "lm_head.weight"].contains(&name.as_str());
            if shape.len() != 2 {
                let stored = bytes(tensor(&graph, &name).unwrap(), &data);
                assert_eq!(stored, bytemuck::cast_slice::<f32, u8>(&expected), "{what}");
                continue;
            }
            let bits = if precision == Precision::Int4 && !whole { 4 } else { 8 };
            let is_embedding = name == "model.embed_tokens.weight";
            for (form, is_needed) in [("codes", tied || !is_embedding), ("rows", is_embedding)] {
                let codes = format!("{name}.{form}");
                if !is_needed {
                    assert!(tensor(&graph, &codes).is_none(), "{what}: nobody needs {codes}");
                    continue;
                }
                let found = unpacked(&graph, &data, &codes, &name, bits, shape[1]);
                assert_eq!(found.len(), expected.len(), "{what}");
                let mut furthest = 0.0_f32;
                for ([found, step], expected) in found.iter().zip(&expected) {
                    // Half a step, and a whole one where the value opposite to a block's extreme is cut off.
                    let distance = (found - expected).abs() / step;
                    assert!(distance <= 1.0 + 1e-4, "{what}: {found} of {expected}, step {step}");
                    let cut = (expected / step).abs() > ((1 << (bits - 1)) - 1) as f32;
                    furthest = furthest.max(if cut { 0.0 } else { distance });
                }
                assert!(furthest <= 0.5 + 1e-4, "{what}: {furthest} of a step");
                assert!(furthest > 0.1, "{what}: nothing was rounded");
            }
        }
    }
}

#[test]
fn a_tied_embedding_is_stored_once() {
    let model = model(&json!({"tie_word_embeddings": true}));
    let (graph, data) = exported(&model, Precision::Int4);
    let [codes, rows] = ["codes", "rows"].map(|form| tensor(&graph, &format!("model.embed_tokens.weight.{form}")));
    let (codes, rows) = (codes.unwrap(), rows.unwrap());
    assert_eq!(codes.external_data, rows.external_data);
    assert_eq!((codes.dims.as_slice(), rows.dims.as_slice()), (&[32, 1, 32][..], &[32, 32][..]));
    assert_eq!(bytes(codes, &data).len(), 32 * 32);
}

#[test]
fn an_adapter_is_merged_into_its_base() {
    let model = model(&json!({}));
    let adapter = adapter::write(&model, &adapter::config());
    let merged = model.path().join("merged");
    let with_adapter = ModelDir::open_adapter(adapter.path(), model.path()).unwrap();
    exporters::merge(&with_adapter, &merged).unwrap();
    let (first, second, base) = (model.path().join("a"), model.path().join("b"), model.path().join("c"));
    export(&with_adapter, &first, &options(Precision::Int8)).unwrap();
    export(&ModelDir::open(&merged).unwrap(), &second, &options(Precision::Int8)).unwrap();
    export(&model.open(), &base, &options(Precision::Int8)).unwrap();
    let data = |dir: &Path| fs::read(dir.join("model.onnx.data")).unwrap();
    assert!(data(&first) == data(&second), "the adapter's export has the merged weights");
    assert!(data(&first) != data(&base), "the adapter changes the weights");
}

#[test]
fn values_of_any_source_are_written_and_their_faults_named() {
    let model = model(&json!({}));
    let (exported, filled) = (model.path().join("a"), tempfile::tempdir().unwrap());
    export(&model.open(), &exported, &options(Precision::Int4)).unwrap();
    let shapes = model.parameters();
    fill(&model.open(), filled.path(), &options(Precision::Int4), &mut |name| Ok(values(name, &shapes[name]).into()))
        .unwrap();
    assert_eq!(files(&exported), files(filled.path()));

    let name = "model.layers.1.mlp.down_proj.weight";
    let fault = |precision, read: fn(Vec<f32>) -> Vec<f32>| {
        let out = tempfile::tempdir().unwrap();
        let error = fill(&model.open(), out.path(), &options(precision), &mut |asked| {
            let values = values(asked, &shapes[asked]);
            Ok(if asked == name { read(values) } else { values }.into())
        });
        error.unwrap_err().to_string()
    };
    let short = fault(Precision::Int4, |values| values[1..].to_vec());
    assert!(short.contains(name) && short.contains("383 values"), "{short}");
    let large = fault(Precision::Fp16, |mut values| {
        values[5] = 7e4;
        values
    });
    assert!(large.contains(name) && large.contains("70000") && large.contains("fp32"), "{large}");
}

#[test]
fn what_genai_cannot_run_is_refused_by_name() {
    let refusal = |model: &TestModel| {
        let out = model.path().join("genai");
        let error = export(&model.open(), &out, &options(Precision::Int4)).unwrap_err().to_string();
        assert!(!out.exists());
        error
    };
    let scorer = model(&json!({"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}));
    let error = refusal(&scorer);
    assert!(error.starts_with("`architectures` = ...ForSequenceClassification cannot be exported"), "{error}");
    let error = refusal(&model(&json!({"head_dim": 12})));
    assert!(error.starts_with("`head_dim` = 12 cannot be exported"), "{error}");
    let error = refusal(&model(&json!({"model_type": "gemma4_text", "hidden_size_per_layer_input": 0})));
    assert!(error.starts_with("`model_type` = \"gemma4_text\" cannot be exported"), "{error}");

    for (file, words) in [("tokenizer.json", "tokenizer.json"), ("tokenizer_config.json", "`{}` is enough")] {
        let without = model(&json!({}));
        fs::remove_file(without.path().join(file)).unwrap();
        let error = refusal(&without);
        assert!(error.contains(file) && error.contains(words), "{error}");
    }
    let other = model(&json!({}));
    fs::write(other.path().join("tokenizer.json"), r#"{"model": {"type": "Unigram", "vocab": []}}"#).unwrap();
    let error = refusal(&other);
    assert!(error.contains("tokenizer.json: the tokenizer is of the kind Unigram"), "{error}");
}

#[test]
fn a_model_without_an_end_goes_on_to_the_longest_length() {
    let endless = model(&json!({}));
    fs::remove_file(endless.path().join("generation_config.json")).unwrap();
    fs::write(endless.path().join("tokenizer_config.json"), "{}").unwrap();
    exported(&endless, Precision::Fp32);
    let described = config(&endless.path().join("genai"))["model"].clone();
    assert_eq!(described["eos_token_id"], json!([]));
    assert!(described.get("pad_token_id").is_none() && described.get("bos_token_id").is_none());
}
