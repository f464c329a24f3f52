//! The model's side: adapters, versions and older files are read as what they are.

use std::fs;

use exporters::{Checkpoint, ExportOptions, export, fill_hf_as};
use exporters_verify::{compare, huggingface, published, verify};
use serde_json::json;
use shared::{Dtype, ModelDir};

use crate::support::{TestModel, rows};

#[test]
fn golden_adapter_is_what_the_merged_model_is() {
    for case in harness::golden("adapter.json")["cases"].as_array().unwrap() {
        let folder = |key: &str| harness::golden_dir_of("adapter.json").join(case["params"][key].as_str().unwrap());
        let (base, adapter) = (folder("base_dir"), folder("adapter_dir"));
        let model = ModelDir::open_adapter(&adapter, &base).unwrap();
        let out = tempfile::tempdir().unwrap();
        let merged = out.path().join("merged");
        exporters::merge(&model, &merged).unwrap();
        let mut source = huggingface::open(&base, Some(&adapter)).unwrap();
        let mut export = huggingface::open(&merged, None).unwrap();
        let rows: Vec<Vec<u32>> = case["inputs"]["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect())
            .collect();
        let distance = verify(&mut source, &mut export, &rows, Some(1e-4)).unwrap();
        assert!(distance.tokens > 0);
        let mut base = huggingface::open(&base, None).unwrap();
        let error = verify(&mut base, &mut export, &rows, Some(1e-4)).unwrap_err().to_string();
        assert!(error.contains("the export is not the model"), "the adapter is no part of it: {error}");
    }
}

#[test]
fn a_published_version_is_read_with_the_configuration_of_its_run() {
    let model = TestModel::new("qwen2", &json!({"tie_word_embeddings": true}));
    let version = model.path().join("version");
    for dtype in [Dtype::Fp32, Dtype::Fp16] {
        export(&model.open(), &version, &ExportOptions { dtype, ..ExportOptions::default() }).unwrap();
        let mut read = published::open(&version, &model.path().join("config.json")).unwrap();
        let distance = compare(&mut model.source(), &mut read, &rows()).unwrap();
        assert!((distance.largest == 0.0) == (dtype == Dtype::Fp32) && distance.largest < 1e-2, "{distance:?}");
    }
}

#[test]
fn shards_and_a_copy_of_the_embedding_are_read_as_transformers_reads_them() {
    let model = TestModel::new("llama", &json!({"tie_word_embeddings": true}));
    let (open, shards) = (model.open(), model.path().join("shards"));
    let checkpoint = Checkpoint::open(&open).unwrap();
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let values = checkpoint.read_f32(&name).unwrap();
        (name, shape, values)
    };
    let mut map = serde_json::Map::new();
    let (first, second): (Vec<_>, Vec<_>) =
        open.config().parameters().into_iter().partition(|(name, _)| name.contains("mlp"));
    for (shard, part) in [("a.safetensors", first), ("b.safetensors", second)] {
        fs::create_dir_all(&shards).unwrap();
        let head = part.iter().find(|(name, _)| name.contains("embed_tokens")).cloned();
        let head = head.map(|(name, shape)| ("lm_head.weight".to_owned(), shape, checkpoint.read_f32(&name).unwrap()));
        map.extend(part.iter().map(|(name, _)| (name.clone(), shard.into())));
        harness::tiny_model::write_safetensors(&shards, part.into_iter().map(tensor).chain(head));
        fs::rename(shards.join("model.safetensors"), shards.join(shard)).unwrap();
    }
    fs::write(shards.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    fs::copy(model.path().join("config.json"), shards.join("config.json")).unwrap();
    let distance = model.verify(huggingface::open(&shards, None).unwrap(), Some(0.0)).unwrap();
    assert_eq!((distance.largest, distance.same_greedy), (0.0, 1.0));
}

/// The model adds 1 to the weights of its norms, and half a unit in the last place is that of a weight as it is stored.
#[test]
fn weights_of_norms_are_rounded_as_they_are_stored() {
    let model = TestModel::new("gemma3_text", &json!({}));
    let lower = |name: &str, mut values: Vec<f32>| {
        if name.ends_with("norm.weight") {
            values.iter_mut().for_each(|value| *value -= 1.3);
        }
        values
    };
    let folder = model.write_hf(Dtype::Fp32, lower);
    let source = ModelDir::open(&folder).unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    for dtype in [Dtype::Fp16, Dtype::Bf16] {
        let rounded = tempfile::tempdir().unwrap();
        fill_hf_as(&source, rounded.path(), dtype, &mut |name| Ok(checkpoint.read_f32(name)?.into())).unwrap();
        let [mut source, mut export] =
            [folder.as_path(), rounded.path()].map(|dir| huggingface::open(dir, None).unwrap());
        verify(&mut source, &mut export, &rows(), None).unwrap();
    }
}
