//! A text model within a model of images and text.

use std::fs;

use exporters::{Adapter, AdapterConfig, Checkpoint, ExportOptions, export, fill_adapter, write_hf, write_hf_scorer};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::{
    adapter,
    support::{Tensors, TestModel, values, write_safetensors},
};

const NORM: &str = "model.language_model.norm.weight";
const TOWER: &str = "model.vision_tower.patch_conv.weight";

/// A Ministral 3 in its wrapper, with the names of transformers 5 or with earlier ones, and two tensors of other parts.
fn wrapped(rename: impl Fn(&str) -> String) -> TestModel {
    let model = TestModel { dir: tempfile::tempdir().unwrap() };
    let rope = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let text = json!({"model_type": "ministral3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 32,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_parameters": rope, "torch_dtype": "bfloat16",
        "tie_word_embeddings": false});
    let whole = json!({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": text, "vision_config": {"model_type": "pixtral"}, "torch_dtype": "bfloat16"});
    fs::write(model.path().join("config.json"), whole.to_string()).unwrap();
    let mut tensors: Tensors = model.parameters().into_iter().map(|(name, shape)| (rename(&name), shape)).collect();
    tensors.insert(TOWER.into(), vec![3, 2, 2, 2]);
    tensors.insert("model.multi_modal_projector.linear_1.weight".into(), vec![4, 4]);
    write_safetensors(&model.path().join("model.safetensors"), &tensors, Dtype::BF16);
    model
}

fn newer(name: &str) -> String {
    name.replacen("model.", "model.language_model.", 1)
}

fn earlier(name: &str) -> String {
    format!("language_model.{name}")
}

#[test]
fn the_text_model_is_read_under_its_own_names() {
    for rename in [newer, earlier] {
        let model = wrapped(rename);
        let checkpoint = Checkpoint::open(&model.open()).unwrap();
        for (name, shape) in model.parameters() {
            assert_eq!(checkpoint.read_f32(&name).unwrap(), values(&rename(&name), &shape), "{name}");
        }
        let manifest = export(&model.open(), &model.path().join("onnx"), &ExportOptions::default()).unwrap();
        assert!(manifest.tensor(TOWER).is_none() && manifest.is_of(&model.config()));
    }
}

/// As transformers saves the text model of Qwen3.5, opened from the whole.
#[test]
fn a_text_model_alone_may_have_the_names_of_the_whole() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let mut tensors: Tensors = model.parameters().into_iter().map(|(name, shape)| (newer(&name), shape)).collect();
    write_safetensors(&model.path().join("model.safetensors"), &tensors, Dtype::F32);
    let checkpoint = Checkpoint::open(&model.open()).unwrap();
    for (name, shape) in model.parameters() {
        assert_eq!(checkpoint.read_f32(&name).unwrap(), values(&newer(&name), &shape), "{name}");
    }
    drop(checkpoint);
    // Beside a tower, they are a whole, and config.json is that of another model.
    tensors.insert(TOWER.into(), vec![3, 2, 2, 2]);
    write_safetensors(&model.path().join("model.safetensors"), &tensors, Dtype::F32);
    let error = Checkpoint::open(&model.open()).unwrap_err().to_string();
    assert!(error.contains("images and text"), "{error}");
}

#[test]
fn a_directory_that_is_written_has_the_names_and_the_other_tensors_of_the_whole() {
    for rename in [newer, earlier] {
        let model = wrapped(rename);
        let out = model.path().join("out");
        let shapes = model.parameters();
        write_hf(&model.open(), &out, &mut |name| Ok(vec![0.5; shapes[name].iter().product()].into())).unwrap();
        let [before, after] = [model.path(), out.as_path()].map(|dir| fs::read(dir.join("model.safetensors")).unwrap());
        let [before, after] = [&before, &after].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
        let names = |file: &SafeTensors<'_>| {
            let mut names: Vec<String> = file.names().into_iter().map(str::to_owned).collect();
            names.sort();
            names
        };
        assert_eq!(names(&before), names(&after));
        for name in names(&before) {
            let [before, after] = [&before, &after].map(|file| file.tensor(&name).unwrap());
            let is_text = name.contains("language_model") || name == "lm_head.weight";
            assert_eq!(after.dtype(), if is_text { Dtype::F32 } else { Dtype::BF16 }, "{name}");
            assert_eq!(after.data() == before.data(), !is_text, "{name}");
        }
        let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(
            (&config["torch_dtype"], &config["text_config"]["torch_dtype"]),
            (&json!("float32"), &json!("float32"))
        );
        assert_eq!(config["model_type"], "mistral3");
    }
    let model = wrapped(newer);
    let scorer = write_hf_scorer(&model.open(), &model.path().join("scorer"), &mut |_| Ok(Vec::new().into()));
    assert!(scorer.unwrap_err().to_string().contains("`text_config`"));
}

#[test]
fn an_adapter_has_the_names_of_the_whole() {
    let model = wrapped(newer);
    let config = AdapterConfig { wrapped: true, ..adapter::config() };
    let dir = tempfile::tempdir().unwrap();
    let shapes: Tensors = config.tensors(model.config().parameters()).unwrap().into_iter().collect();
    fill_adapter(dir.path(), &config, model.config().parameters(), &mut |name| Ok(values(name, &shapes[name]).into()))
        .unwrap();
    let bytes = fs::read(dir.path().join("adapter_model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let prefix = "base_model.model.model.language_model.layers.";
    assert!(stored.names().iter().all(|name| name.starts_with(prefix)), "{:?}", stored.names());
    // A tower has layers of the same ends, so each layer of the text model is named.
    let stated: Value = serde_json::from_slice(&fs::read(dir.path().join("adapter_config.json")).unwrap()).unwrap();
    let targets = stated["target_modules"].as_array().unwrap();
    assert_eq!(targets.len(), shapes.len() / 2);
    for end in ["0.self_attn.q_proj", "1.mlp.up_proj"] {
        assert!(targets.contains(&json!(format!("model.language_model.layers.{end}"))), "{end}: {targets:?}");
    }
    let opened = Adapter::open(dir.path(), model.config().parameters()).unwrap();
    assert!(opened.config().wrapped && opened.tensors().count() == shapes.len());
    assert!(opened.tensors().all(|(name, found)| found == values(&name, &shapes[&name])));
}

#[test]
fn a_text_model_that_lacks_a_tensor_is_named_by_it() {
    let model = wrapped(|name| if name == "model.norm.weight" { "model.other".into() } else { newer(name) });
    let error = Checkpoint::open(&model.open()).unwrap_err().to_string();
    assert!(error.contains("model.norm.weight") && !error.contains(NORM), "{error}");
}
