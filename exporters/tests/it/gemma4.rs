//! Weights of Gemma 4: tensors that transformers passes over too, tensors that are missing or of another width, and the
//! towers of the whole.

use std::fs;

use exporters::{Checkpoint, ExportOptions, export, write_hf};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::support::{Tensors, TestModel, values, write_safetensors};

const TOWERS: [&str; 2] = ["model.vision_tower.patch_embedder.weight", "model.audio_tower.norm.weight"];
const UNUSED: &str = "model.layers.2.self_attn.k_proj.weight";

fn text() -> Value {
    json!({"model_type": "gemma4_text", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "vocab_size": 32,
        "vocab_size_per_layer_input": 40, "hidden_size_per_layer_input": 8, "max_position_embeddings": 64,
        "sliding_window": 6, "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "final_logit_softcapping": 5.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})
}

/// A model with this configuration, whose weights `change` has changed.
fn model(config: &Value, change: impl FnOnce(&mut Tensors)) -> TestModel {
    let model = TestModel { dir: tempfile::tempdir().unwrap() };
    fs::write(model.path().join("config.json"), config.to_string()).unwrap();
    let mut tensors = model.parameters();
    change(&mut tensors);
    model.write_weights(&tensors, Dtype::F32);
    model
}

fn refusal(change: impl FnOnce(&mut Tensors)) -> String {
    Checkpoint::open(&model(&text(), change).open()).unwrap_err().to_string()
}

#[test]
fn keys_of_layers_that_read_those_of_others_are_passed_over_and_no_others() {
    let checkpoint = Checkpoint::open(&model(&text(), |all| drop(all.insert(UNUSED.into(), vec![16, 16]))).open());
    assert!(checkpoint.unwrap().read_f32(UNUSED).is_err());
    let extra = UNUSED.replace("k_proj", "z_proj");
    let error = refusal(|all| drop(all.insert(extra.clone(), vec![16, 16])));
    assert!(error.contains(&format!("a tensor {extra}")), "{error}");
}

#[test]
fn what_is_missing_or_has_another_width_is_named() {
    for name in [
        "model.layers.1.layer_scalar",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.3.per_layer_projection.weight",
        "model.embed_tokens_per_layer.weight",
    ] {
        let error = refusal(|all| drop(all.remove(name)));
        assert!(error.contains(&format!("no tensor {name}")), "{error}");
    }
    for (name, shape, asked) in [
        ("model.layers.1.self_attn.q_proj.weight", vec![32, 16], "[64, 16]"),
        ("model.layers.2.mlp.up_proj.weight", vec![24, 16], "[48, 16]"),
        ("model.embed_tokens_per_layer.weight", vec![32, 32], "[40, 32]"),
    ] {
        let error = refusal(|all| drop(all.insert(name.into(), shape)));
        assert!(error.contains(name) && error.contains(&format!("config.json asks for {asked}")), "{error}");
    }
}

#[test]
fn the_whole_keeps_its_towers_and_the_factors_that_are_not_trained() {
    let whole = json!({"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "text_config": text(), "vision_config": {"model_type": "gemma4_vision"},
        "audio_config": {"model_type": "gemma4_audio"}});
    let model = TestModel { dir: tempfile::tempdir().unwrap() };
    fs::write(model.path().join("config.json"), whole.to_string()).unwrap();
    let newer = |name: &String| name.replacen("model.", "model.language_model.", 1);
    let mut tensors: Tensors = model.parameters().iter().map(|(name, shape)| (newer(name), shape.clone())).collect();
    TOWERS.iter().for_each(|name| drop(tensors.insert((*name).into(), vec![3, 5])));
    write_safetensors(&model.path().join("model.safetensors"), &tensors, Dtype::BF16);
    let manifest = export(&model.open(), &model.path().join("onnx"), &ExportOptions::default()).unwrap();
    assert!(manifest.tensor("model.layers.0.layer_scalar").is_some() && manifest.tensor(TOWERS[0]).is_none());
    let (checkpoint, out) = (Checkpoint::open(&model.open()).unwrap(), model.path().join("out"));
    write_hf(&model.open(), &out, &mut |name| Ok(checkpoint.read_f32(name)?.into())).unwrap();
    let bytes = fs::read(out.join("model.safetensors")).unwrap();
    let written = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(written.names().len(), tensors.len());
    let scalar = "model.language_model.layers.3.layer_scalar";
    let expected: Vec<u8> = values(scalar, &[1]).iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(written.tensor(scalar).unwrap().data(), expected);
    for tower in TOWERS {
        assert_eq!(written.tensor(tower).unwrap().dtype(), Dtype::BF16, "{tower}");
    }
}
