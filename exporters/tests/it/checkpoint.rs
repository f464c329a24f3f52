//! Reading Hugging Face weights.

use std::{collections::BTreeMap, fs, path::Path};

use exporters::{Checkpoint, ExportOptions, export};
use safetensors::Dtype;
use serde_json::json;
use shared::{ModelDir, run::checkpoints};

use crate::support::{Tensors, TestModel, values, write_safetensors};

fn llama() -> TestModel {
    TestModel::new(&json!({}), Dtype::F32)
}

fn refusal(model: &TestModel) -> String {
    Checkpoint::open(&model.open()).unwrap_err().to_string()
}

/// Splits the weights into two shards with an index; returns the weight map.
fn shard(model: &TestModel) -> BTreeMap<String, String> {
    fs::remove_file(model.path().join("model.safetensors")).unwrap();
    let mut map = BTreeMap::new();
    let all: Vec<_> = model.parameters().into_iter().collect();
    for (i, part) in all.chunks(all.len().div_ceil(2)).enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", i + 1);
        let tensors: Tensors = part.iter().cloned().collect();
        write_safetensors(&model.path().join(&name), &tensors, Dtype::F32);
        map.extend(tensors.into_keys().map(|tensor| (tensor, name.clone())));
    }
    write_index(model, &map);
    map
}

fn write_index(model: &TestModel, map: &BTreeMap<String, String>) {
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
    fs::write(model.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
}

fn assert_values(model: &TestModel) {
    let checkpoint = Checkpoint::open(&model.open()).unwrap();
    let expected: Vec<_> = model.config().parameters();
    for (name, shape) in &expected {
        assert_eq!(checkpoint.read_f32(name).unwrap(), values(name, shape), "{name}");
    }
}

#[test]
fn every_element_type_is_read_exactly() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        assert_values(&TestModel::new(&json!({"tie_word_embeddings": true}), dtype));
    }
}

/// transformers ties the embedding to the head where a file has the head alone.
#[test]
fn a_tied_model_may_have_its_head_in_place_of_the_embedding() {
    let model = TestModel::new(&json!({"tie_word_embeddings": true}), Dtype::F32);
    let mut tensors = model.parameters();
    let shape = tensors.remove("model.embed_tokens.weight").unwrap();
    tensors.insert("lm_head.weight".into(), shape.clone());
    model.write_weights(&tensors, Dtype::F32);
    let found = Checkpoint::open(&model.open()).unwrap().read_f32("model.embed_tokens.weight").unwrap();
    assert_eq!(found, values("lm_head.weight", &shape));
    model.write_config(&json!({"tie_word_embeddings": false}));
    assert!(refusal(&model).contains("no tensor model.embed_tokens.weight"));
}

/// A bit that flips in a value leaves it finite, so only the list of checksums shows it.
#[test]
fn weights_of_a_checkpoint_are_those_that_were_written() {
    let model = llama();
    checkpoints::seal(model.path()).unwrap();
    assert_values(&model);
    let file = model.path().join("model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let words = refusal(&model);
    assert!(words.contains("model.safetensors is not what was written") && words.contains("remove checksums.json"));
    fs::remove_file(model.path().join(checkpoints::CHECKSUMS_FILE)).unwrap();
    Checkpoint::open(&model.open()).unwrap();
}

#[test]
fn shards_are_read_like_one_file() {
    let model = llama();
    shard(&model);
    assert_values(&model);
}

#[test]
fn a_shard_that_is_missing_or_lacks_a_tensor_is_named() {
    let model = llama();
    let mut map = shard(&model);
    map.insert("model.norm.weight".into(), "model-00001-of-00002.safetensors".into());
    write_index(&model, &map);
    let error = refusal(&model);
    assert!(error.contains("index.json: names tensor model.norm.weight in model-00001-of-00002"), "{error}");

    map.insert("model.norm.weight".into(), "model-00003-of-00002.safetensors".into());
    write_index(&model, &map);
    assert!(refusal(&model).contains("names model-00003-of-00002.safetensors, which is not there"));

    map.insert("model.norm.weight".into(), "../elsewhere.safetensors".into());
    write_index(&model, &map);
    assert!(refusal(&model).contains("`../elsewhere.safetensors` is not the name of a file beside it"));

    fs::write(model.path().join("model.safetensors.index.json"), "{}").unwrap();
    assert!(refusal(&model).contains("index.json: not a safetensors index"));
}

#[test]
fn no_weights_at_all_say_what_is_looked_for() {
    let model = llama();
    fs::remove_file(model.path().join("model.safetensors")).unwrap();
    let error = refusal(&model);
    assert!(error.contains("no model.safetensors") && error.contains("save_pretrained"), "{error}");
}

#[test]
fn a_broken_file_is_one_clear_error_with_its_name() {
    let model = llama();
    let path = model.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    let mut corrupt = whole.clone();
    corrupt[8..40].fill(b'#');
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let cut = |n: usize| whole[..n].to_vec();
    let longer = [whole.as_slice(), b"tail"].concat();
    for content in [Vec::new(), cut(5), cut(200), cut(whole.len() - 1), corrupt, huge, longer] {
        fs::write(&path, content).unwrap();
        let error = refusal(&model);
        assert!(error.starts_with(&format!("{}: not a whole safetensors file", path.display())), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn parameters_must_be_exactly_those_of_the_configuration() {
    let model = llama();
    let mut tensors = model.parameters();
    tensors.remove("model.layers.1.mlp.up_proj.weight");
    model.write_weights(&tensors, Dtype::F32);
    assert!(refusal(&model).contains("no tensor model.layers.1.mlp.up_proj.weight"));

    let mut tensors = model.parameters();
    tensors.insert("model.layers.2.mlp.up_proj.weight".into(), vec![2]);
    model.write_weights(&tensors, Dtype::F32);
    assert!(refusal(&model).contains("have a tensor model.layers.2.mlp.up_proj.weight that"));

    let mut tensors = model.parameters();
    tensors.insert("model.norm.weight".into(), vec![17]);
    model.write_weights(&tensors, Dtype::F32);
    let error = refusal(&model);
    assert!(error.contains("model.safetensors: tensor model.norm.weight has shape [17]"), "{error}");
    assert!(error.contains("asks for [16]"), "{error}");

    let mut tensors = model.parameters();
    tensors.remove("lm_head.weight");
    model.write_weights(&tensors, Dtype::F32);
    assert!(refusal(&model).contains("no tensor lm_head.weight (with `tie_word_embeddings` true"));
}

/// Overwrites the last value of a file of weights, which is that of the last tensor by name.
pub fn spoil(path: &Path, value: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    let end = bytes.len();
    bytes[end - value.len()..].copy_from_slice(value);
    fs::write(path, bytes).unwrap();
}

#[test]
fn values_that_are_not_finite_are_refused_by_tensor_place_and_number() {
    let (nan, infinity) = (f32::NAN.to_le_bytes(), f32::NEG_INFINITY.to_le_bytes());
    let cases: [(Dtype, &[u8], &str); 4] = [
        (Dtype::F32, &nan, "NaN"),
        (Dtype::F32, &infinity, "-inf"),
        (Dtype::F16, &[0x00, 0x7c], "inf"),
        (Dtype::BF16, &[0x80, 0xff], "-inf"),
    ];
    for (dtype, value, shown) in cases {
        let model = TestModel::new(&json!({}), dtype);
        spoil(&model.path().join("model.safetensors"), value);
        let error = refusal(&model);
        let text = format!(
            "tensor model.norm.weight has values that are not finite (1 of 16; the first, {shown}, at [15]); such \
             weights"
        );
        assert!(error.contains(&text), "{error}");
        assert!(export(&model.open(), &model.path().join("export"), &ExportOptions::default()).is_err());
    }
    let model = llama();
    shard(&model);
    spoil(&model.path().join("model-00002-of-00002.safetensors"), &nan);
    assert!(refusal(&model).contains("tensor model.norm.weight has values that are not finite"));
}

#[test]
fn names_of_wrappers_are_told_with_the_tensor_as_it_is_and_as_it_should_be() {
    let model = llama();
    for prefix in ["base_model.model.", "_orig_mod.", "module.", "transformer."] {
        let tensors = model.parameters().into_iter().map(|(name, shape)| (format!("{prefix}{name}"), shape)).collect();
        model.write_weights(&tensors, Dtype::F32);
        let error = refusal(&model);
        let text =
            format!("the weights have a tensor {prefix}lm_head.weight, which should be lm_head.weight: `{prefix}` is");
        assert!(error.contains(&text), "{error}");
    }
    // As many layers as the configuration says, under names that are not asked for.
    let rename = |name: String| name.replace("self_attn", "_checkpoint_wrapped_module.self_attn");
    model.write_weights(
        &model.parameters().into_iter().map(|(name, shape)| (rename(name), shape)).collect(),
        Dtype::F32,
    );
    assert!(refusal(&model).contains("`_checkpoint_wrapped_module.` is that of activation checkpointing"));
}

#[test]
fn a_pointer_in_the_place_of_a_file_is_told() {
    let model = llama();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n";
    for file in ["model.safetensors", "config.json"] {
        fs::write(model.path().join(file), pointer).unwrap();
        let error = exporters_error(&model);
        assert!(error.contains("is a pointer of Git LFS and not the file: run `git lfs pull`"), "{error}");
    }
}

/// The error of opening a model, whichever file it is about.
fn exporters_error(model: &TestModel) -> String {
    match ModelDir::open(model.path()) {
        Ok(dir) => Checkpoint::open(&dir).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn other_element_types_are_refused() {
    let error = refusal(&TestModel::new(&json!({}), Dtype::F64));
    assert!(error.contains("has element type F64; supported: F32, F16, BF16"), "{error}");
}

#[test]
fn rotary_buffers_of_old_checkpoints_are_passed_over() {
    let model = llama();
    let mut tensors = model.parameters();
    tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), vec![8]);
    model.write_weights(&tensors, Dtype::F32);
    assert_values(&model);
}

#[test]
fn a_tied_models_own_head_must_equal_the_embedding() {
    let model = TestModel::new(&json!({"tie_word_embeddings": true}), Dtype::F32);
    let path = model.path().join("model.safetensors");
    let mut tensors = model.parameters();
    tensors.insert("lm_head.weight".into(), vec![32, 16]);
    model.write_weights(&tensors, Dtype::F32);
    let error = refusal(&model);
    assert!(error.contains("`tie_word_embeddings` = true") && error.contains("set it to false"), "{error}");

    // The same values in both places: the head is the first 2048 bytes, the embedding the next.
    let mut bytes = fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let embedding: Vec<u8> = bytes[start + 2048..start + 4096].to_vec();
    bytes[start..start + 2048].copy_from_slice(&embedding);
    fs::write(&path, bytes).unwrap();
    let checkpoint = Checkpoint::open(&model.open()).unwrap();
    assert!(checkpoint.read_f32("lm_head.weight").is_err());
    let expected = values("model.embed_tokens.weight", &[32, 16]);
    assert_eq!(checkpoint.read_f32("model.embed_tokens.weight").unwrap(), expected);
}

fn experts(changes: serde_json::Value) -> serde_json::Value {
    let mut config = json!({"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "mlp_only_layers": [0]});
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

#[test]
fn a_wrong_number_of_experts_is_named_before_any_tensor() {
    let model = TestModel::new(&experts(json!({})), Dtype::F32);
    assert_values(&model);
    for (changes, words) in [
        (json!({"num_experts": 4}), "`num_experts` = 4, but the weights have 3 experts"),
        (json!({"num_experts": 2}), "`num_experts` = 2, but the weights have 3 experts"),
        (
            json!({"mlp_only_layers": [0, 1]}),
            "the weights have 3 experts in a layer, but a model with this config.json",
        ),
        (json!({"moe_intermediate_size": 9}), "has shape [8, 16], config.json asks for [9, 16]"),
    ] {
        model.write_config(&experts(changes));
        assert!(refusal(&model).contains(words), "{words}: {}", refusal(&model));
    }
    model.write_config(&experts(json!({})));
    let mut tensors = model.parameters();
    tensors.retain(|name, _| !name.contains(".experts.1."));
    model.write_weights(&tensors, Dtype::F32);
    assert!(refusal(&model).contains("no tensor model.layers.1.mlp.experts.1.gate_proj.weight"), "{}", refusal(&model));
    tensors.retain(|name, _| !name.contains(".experts."));
    tensors.insert("model.layers.1.mlp.experts.gate_up_proj".into(), vec![3, 16, 16]);
    model.write_weights(&tensors, Dtype::F32);
    assert!(refusal(&model).contains("all experts of a layer in one tensor"), "{}", refusal(&model));
}

#[test]
fn an_adapter_is_on_attention_and_never_on_experts_or_their_router() {
    let parameters = || TestModel::new(&experts(json!({})), Dtype::F32).config().parameters();
    let modules = |targets: &[&str]| {
        let adapter = exporters::AdapterConfig {
            base_model_name_or_path: String::new(),
            base_blake3: None,
            r: 2,
            lora_alpha: 2.0,
            lora_dropout: 0.0,
            target_modules: targets.iter().map(|&target| target.to_owned()).collect(),
            use_rslora: false,
            wrapped: false,
        };
        adapter.modules(parameters()).map_err(|error| error.to_string())
    };
    assert_eq!(modules(&["q_proj", "o_proj"]).unwrap().len(), 4);
    // The dense layer has projections of the same names.
    for target in ["down_proj", "experts.2.up_proj", "gate"] {
        let error = modules(&["q_proj", target]).unwrap_err();
        assert!(error.contains(&format!("{target} is a part of the experts")), "{error}");
    }
    let error = modules(&["qkv_proj"]).unwrap_err();
    assert!(error.ends_with("these can: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"), "{error}");
}
