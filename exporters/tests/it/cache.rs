//! Exports kept for the next start.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use exporters::{
    AdapterConfig, Checkpoint, ExportOptions, VersionDir, ensure_export_in, export, fill_hf, fill_version,
    onnx::proto::ModelProto,
};
use prost::Message as _;
use safetensors::Dtype;
use serde_json::json;
use shared::{ModelDir, PolicyVersion, WeightManifest};

use crate::{
    adapter::{config, write},
    support::{self, TestModel},
};

const FP32: ExportOptions = ExportOptions { dtype: shared::Dtype::Fp32, max_positions: None, base: None };

fn modified(folder: &Path) -> SystemTime {
    fs::metadata(folder.join("model.onnx")).unwrap().modified().unwrap()
}

#[test]
fn a_model_is_exported_once_and_again_when_anything_changes() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let ensure = |options: &ExportOptions| ensure_export_in(cache.path(), &model.open(), options).unwrap();
    let first = ensure(&FP32);
    assert!(first.starts_with(cache.path()) && VersionDir::open(&first).unwrap().is_intact());
    assert_eq!(fs::read_dir(model.path()).unwrap().count(), 2, "nothing is written into the model directory");
    let written = modified(&first);
    assert_eq!((ensure(&FP32), modified(&first)), (first.clone(), written));

    let mut seen = vec![first];
    let mut is_new = |folder: PathBuf| {
        assert!(!seen.contains(&folder));
        seen.push(folder);
    };
    is_new(ensure(&ExportOptions { max_positions: Some(32), ..FP32 }));
    is_new(ensure(&ExportOptions { dtype: shared::Dtype::Fp16, ..FP32 }));
    model.write_config(&json!({"rms_norm_eps": 1e-6}));
    is_new(ensure(&FP32));
    let path = model.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(&path, weights).unwrap();
    is_new(ensure(&FP32));
}

#[test]
fn an_adapter_has_an_export_of_its_own_whatever_lies_beside_its_base() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let base = checkpoint_of(&model);
    let config = AdapterConfig { base_model_name_or_path: base.path().to_str().unwrap().into(), ..config() };
    let ensure = |config: &AdapterConfig| {
        let adapter = write(&model, config);
        let opened = ModelDir::open(adapter.path()).unwrap();
        let export = VersionDir::open(&ensure_export_in(cache.path(), &opened, &FP32).unwrap()).unwrap();
        let weights = Checkpoint::open(&opened).unwrap();
        for (name, shape) in model.config().parameters() {
            let values = export.read_f32(&name).unwrap();
            assert_eq!(values, weights.read_f32(&name).unwrap());
            assert_eq!(values != support::values(&name, &shape), weights.adapter().unwrap().update(&name).is_some());
        }
        export.manifest().data_blake3.clone()
    };
    let first = ensure(&config);
    assert_eq!(ensure(&config), first);
    assert_ne!(ensure(&AdapterConfig { lora_alpha: 7.0, ..config.clone() }), first);
    assert_eq!(fs::read_dir(cache.path().join("exports")).unwrap().count(), 2);
}

#[test]
fn a_copy_of_a_model_shares_its_export() {
    let cache = tempfile::tempdir().unwrap();
    let [a, b] = [(), ()].map(|()| TestModel::new(&json!({}), Dtype::BF16));
    let [a, b] = [a, b].map(|m| ensure_export_in(cache.path(), &m.open(), &FP32).unwrap());
    assert_eq!(a, b);
}

#[test]
fn a_damaged_export_is_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let folder = ensure_export_in(cache.path(), &model.open(), &FP32).unwrap();
    fs::write(folder.join("weights.data"), "").unwrap();
    assert_eq!(ensure_export_in(cache.path(), &model.open(), &FP32).unwrap(), folder);
    assert!(VersionDir::open(&folder).unwrap().is_intact());
}

#[test]
fn exports_at_the_same_time_do_not_disturb_one_another() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let folders: Vec<PathBuf> = std::thread::scope(|scope| {
        let run = || ensure_export_in(cache.path(), &model.open(), &FP32).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(folders.iter().all(|f| *f == folders[0]));
    assert!(VersionDir::open(&folders[0]).unwrap().is_intact());
    assert_eq!(fs::read_dir(cache.path().join("exports")).unwrap().count(), 1, "no temporary folder is left");
}

/// A checkpoint directory with both forms of the same weights.
fn checkpoint_of(model: &TestModel) -> tempfile::TempDir {
    checkpoint_as(model, &FP32)
}

fn checkpoint_as(model: &TestModel, options: &ExportOptions) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = model.path().join("base");
    export(&model.open(), &base, options).unwrap();
    let weights = Checkpoint::open(&model.open()).unwrap();
    fill_hf(&model.open(), dir.path(), &mut |name| Ok(weights.read_f32(name)?.into())).unwrap();
    fill_version(&base, dir.path(), PolicyVersion(3), &mut |name| Ok(weights.read_f32(name)?.into())).unwrap();
    dir
}

#[test]
fn a_directory_with_a_fitting_export_is_used_as_it_is() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let checkpoint = checkpoint_of(&model);
    let ensure = |options: &ExportOptions| {
        ensure_export_in(cache.path(), &ModelDir::open(checkpoint.path()).unwrap(), options).unwrap()
    };
    assert_eq!(ensure(&FP32), checkpoint.path());
    assert_eq!(ensure(&ExportOptions { max_positions: Some(10), ..FP32 }), checkpoint.path());
    assert_ne!(ensure(&ExportOptions { dtype: shared::Dtype::Fp16, ..FP32 }), checkpoint.path());

    // Other weights were put beside the export: the safetensors are the model.
    let path = checkpoint.path().join("model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    *weights.last_mut().unwrap() ^= 1;
    fs::write(&path, weights).unwrap();
    assert_ne!(ensure(&FP32), checkpoint.path());
}

/// Decays, and what else a head has of its own, are float32 in files of every type.
#[test]
fn an_export_of_a_rule_in_fp16_is_used_as_it_is() {
    let cache = tempfile::tempdir().unwrap();
    let fp16 = ExportOptions { dtype: shared::Dtype::Fp16, ..FP32 };
    let delta_rule = json!({"model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8});
    let mamba = json!({"model_type": "granitemoehybrid", "num_local_experts": 0, "shared_intermediate_size": 24,
        "mamba_n_heads": 4, "mamba_d_state": 6, "layer_types": ["mamba", "attention"]});
    for (changes, block, exact, rounded) in [
        (delta_rule, "linear_attn", vec!["A_log", "dt_bias"], ["conv1d.weight", "in_proj_a.weight"]),
        (mamba, "mamba", vec!["A_log", "dt_bias", "D"], ["conv1d.bias", "in_proj.weight"]),
    ] {
        let checkpoint = checkpoint_as(&TestModel::new(&changes, Dtype::F32), &fp16);
        let manifest = WeightManifest::read(checkpoint.path()).unwrap();
        let dtype = |part: &str| manifest.tensor(&format!("model.layers.0.{block}.{part}")).unwrap().dtype;
        assert!(exact.iter().all(|part| dtype(part) == shared::Dtype::Fp32), "{block}");
        assert!(rounded.iter().all(|part| dtype(part) == shared::Dtype::Fp16), "{block}");
        let model = ModelDir::open(checkpoint.path()).unwrap();
        assert_eq!(ensure_export_in(cache.path(), &model, &fp16).unwrap(), checkpoint.path());
    }
}

#[test]
fn an_export_without_safetensors_is_used_or_refused_with_the_reason() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let checkpoint = checkpoint_of(&model);
    fs::remove_file(checkpoint.path().join("model.safetensors")).unwrap();
    let dir = ModelDir::open(checkpoint.path()).unwrap();
    assert_eq!(ensure_export_in(cache.path(), &dir, &FP32).unwrap(), checkpoint.path());
    let fp16 = ExportOptions { dtype: shared::Dtype::Fp16, ..FP32 };
    let error = ensure_export_in(cache.path(), &dir, &fp16).unwrap_err().to_string();
    assert!(error.ends_with("the export is fp32, not fp16"), "{error}");
}

/// The manifest fits the foreign graph, so no other check would notice.
#[test]
fn a_foreign_graph_beside_the_weights_is_not_used() {
    let cache = tempfile::tempdir().unwrap();
    let model = TestModel::new(&json!({}), Dtype::F32);
    let checkpoint = checkpoint_of(&model);
    let ensure = || ensure_export_in(cache.path(), &ModelDir::open(checkpoint.path()).unwrap(), &FP32).unwrap();
    assert_eq!(ensure(), checkpoint.path());
    let path = checkpoint.path().join("model.onnx");
    let mut graph = ModelProto::decode(fs::read(&path).unwrap().as_slice()).unwrap();
    graph.producer_name = "another".into();
    let graph = graph.encode_to_vec();
    fs::write(&path, &graph).unwrap();
    let mut manifest = WeightManifest::read(checkpoint.path()).unwrap();
    manifest.model_blake3 = blake3::hash(&graph).to_hex().to_string();
    manifest.write(checkpoint.path()).unwrap();
    assert!(VersionDir::open(checkpoint.path()).is_ok());
    assert!(ensure().starts_with(cache.path()));
}
