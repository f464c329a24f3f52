//! PEFT directories.

use std::{fs, path::Path};

use exporters::{
    Adapter, AdapterConfig, Checkpoint, ExportOptions, VersionDir, export, fill_adapter, merge, version_to_hf,
    write_adapter_version,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use shared::{ModelDir, PolicyVersion};

use crate::{
    checkpoint::spoil,
    support::{Tensors, TestModel, files, values, write_safetensors},
};

pub fn config() -> AdapterConfig {
    AdapterConfig {
        base_model_name_or_path: "../model".into(),
        base_blake3: None,
        r: 4,
        lora_alpha: 6.0,
        lora_dropout: 0.0,
        target_modules: vec!["q_proj".into(), "self_attn.o_proj".into(), "up_proj".into()],
        use_rslora: false,
        wrapped: false,
    }
}

/// The tensors of an adapter.
fn shapes(model: &TestModel, config: &AdapterConfig) -> Tensors {
    config.tensors(model.config().parameters()).unwrap().into_iter().collect()
}

/// A folder with an adapter of the test's values.
pub fn write(model: &TestModel, config: &AdapterConfig) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let shapes = shapes(model, config);
    fill_adapter(dir.path(), config, model.config().parameters(), &mut |name| Ok(values(name, &shapes[name]).into()))
        .unwrap();
    dir
}

fn llama() -> TestModel {
    TestModel::new(&json!({}), Dtype::F32)
}

fn refusal(dir: &Path, model: &TestModel) -> String {
    Adapter::open(dir, model.config().parameters()).unwrap_err().to_string()
}

#[test]
fn an_adapter_is_read_as_written_under_pefts_names() {
    let model = llama();
    let written = AdapterConfig { base_blake3: Some("ab".repeat(32)), ..config() };
    let dir = write(&model, &written);
    let adapter = Adapter::open(dir.path(), model.config().parameters()).unwrap();
    assert_eq!(*adapter.config(), written);
    let stored = files(dir.path());
    assert_eq!(adapter.blake3(), blake3::hash(&stored["adapter_model.safetensors"]).to_hex().as_str());
    let tensors = SafeTensors::deserialize(&stored["adapter_model.safetensors"]).unwrap();
    assert_eq!(tensors.len(), 2 * 2 * 3, "A and B of three layers in each of two");
    let b = tensors.tensor("base_model.model.model.layers.1.mlp.up_proj.lora_B.weight").unwrap();
    assert_eq!((b.shape(), b.dtype()), (&[24, 4][..], Dtype::F32));
    let json: Value = serde_json::from_slice(&stored["adapter_config.json"]).unwrap();
    assert_eq!(json["lora_alpha"].as_i64(), Some(6), "PEFT declares a whole number");
    assert_eq!((&json["peft_type"], &json["task_type"]), (&json!("LORA"), &json!("CAUSAL_LM")));

    let fraction = AdapterConfig { lora_alpha: 0.5, use_rslora: true, ..config() };
    let dir = write(&model, &fraction);
    assert_eq!(*Adapter::open(dir.path(), model.config().parameters()).unwrap().config(), fraction);
}

#[test]
fn merging_adds_the_scaled_product_to_what_is_adapted_and_to_nothing_else() {
    let model = llama();
    for use_rslora in [false, true] {
        let config = AdapterConfig { use_rslora, ..config() };
        let scaling = if use_rslora { 3.0 } else { 1.5 };
        assert_eq!(config.scaling(), scaling);
        let dir = write(&model, &config);
        let adapter = Adapter::open(dir.path(), model.config().parameters()).unwrap();
        for (name, shape) in model.config().parameters() {
            let base = values(&name, &shape);
            let merged = adapter.merged(&name, base.clone());
            let adapted = ["q_proj", "o_proj", "up_proj"].iter().any(|target| name.contains(target));
            assert_eq!(adapter.update(&name).is_some(), adapted, "{name}");
            if !adapted {
                assert_eq!(merged, base, "{name}");
                continue;
            }
            let (outputs, inputs) = (shape[0], shape[1]);
            let [a, b] = AdapterConfig::tensor_names(name.strip_suffix(".weight").unwrap());
            let (a, b) = (values(&a, &[4, inputs]), values(&b, &[outputs, 4]));
            for (i, found) in merged.iter().enumerate() {
                let (row, column) = (i / inputs, i % inputs);
                let product: f32 = (0..4).map(|k| b[row * 4 + k] * a[k * inputs + column]).sum();
                // All factors are multiples of 1/64 below 2, so no sum is rounded.
                assert_eq!(*found, base[i] + scaling as f32 * product, "{name}");
            }
        }
    }
}

#[test]
fn half_precision_is_read_exactly() {
    let model = llama();
    for dtype in [Dtype::F16, Dtype::BF16] {
        let dir = write(&model, &config());
        let shapes = shapes(&model, &config());
        write_safetensors(&dir.path().join("adapter_model.safetensors"), &shapes, dtype);
        let adapter = Adapter::open(dir.path(), model.config().parameters()).unwrap();
        let [a, _] = AdapterConfig::tensor_names("model.layers.0.mlp.up_proj");
        assert_eq!(adapter.update("model.layers.0.mlp.up_proj.weight").unwrap().a(), values(&a, &[4, 16]));
    }
}

#[test]
fn tensors_must_be_exactly_those_of_the_configuration() {
    let model = llama();
    let dir = write(&model, &config());
    let path = dir.path().join("adapter_model.safetensors");
    let shapes = shapes(&model, &config());
    let [a, b] = AdapterConfig::tensor_names("model.layers.1.self_attn.q_proj");
    let spoilt = |spoil: &dyn Fn(&mut Tensors)| {
        let mut shapes = shapes.clone();
        spoil(&mut shapes);
        write_safetensors(&path, &shapes, Dtype::F32);
        refusal(dir.path(), &model)
    };
    let error = spoilt(&|shapes| drop(shapes.remove(&a)));
    assert!(error.contains(&format!("adapter_model.safetensors: has no tensor {a}")), "{error}");
    let error = spoilt(&|shapes| drop(shapes.insert(b.clone(), vec![64, 5])));
    assert!(error.contains(&b) && error.contains("[64, 5]") && error.contains("[64, 4]"), "{error}");
    let error = spoilt(&|shapes| drop(shapes.insert("base_model.model.lm_head.weight".into(), vec![2])));
    assert!(error.contains("base_model.model.lm_head.weight that adapter_config.json does not ask for"), "{error}");
    write_safetensors(&path, &shapes, Dtype::F16);
    spoil(&path, &[0x00, 0xfc]);
    let error = refusal(dir.path(), &model);
    assert!(error.contains("lora_B.weight has values that are not finite (1 of ") && error.contains("-inf"), "{error}");
    let plain = |name: String| name.trim_start_matches("base_model.model.").to_owned();
    let plain: Tensors = shapes.iter().map(|(name, shape)| (plain(name.clone()), shape.clone())).collect();
    write_safetensors(&path, &plain, Dtype::F32);
    assert!(refusal(dir.path(), &model).contains("`base_model.model.` is missing"));
    fs::write(&path, b"12345").unwrap();
    assert!(refusal(dir.path(), &model).contains("not a whole safetensors file"));
    fs::remove_file(&path).unwrap();
    assert!(refusal(dir.path(), &model).contains("adapter_model.safetensors: no such file"));
}

#[test]
fn what_would_change_the_computation_is_refused_with_its_key() {
    let model = llama();
    let dir = write(&model, &config());
    let path = dir.path().join("adapter_config.json");
    let whole: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let with = |key: &str, value: Value| {
        let mut json = whole.clone();
        json[key] = value;
        fs::write(&path, json.to_string()).unwrap();
    };
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("task_type", json!("SEQ_CLS")),
        ("bias", json!("all")),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("rank_pattern", json!({"q_proj": 8})),
        ("alpha_pattern", json!({"q_proj": 8})),
        ("layers_to_transform", json!([0])),
        ("target_modules", json!(".*_proj")),
        ("init_lora_weights", json!("pissa")),
        ("an_idea_of_tomorrow", json!({"lines": 3})),
    ] {
        with(key, value.clone());
        let error = refusal(dir.path(), &model);
        assert!(error.contains(&format!("adapter_config.json: `{key}` = {value} is not supported (")), "{error}");
        assert!(error.contains("merge the adapter with PEFT") && error.contains("merge_and_unload"), "{error}");
    }
    with("target_modules", json!(["q_proj", "lm_head"]));
    let error = refusal(dir.path(), &model);
    assert!(
        error.contains(
            "adapter_config.json: `target_modules`: lm_head is no linear layer that can be adapted here; these"
        ),
        "{error}"
    );
    assert!(error.contains("merge_and_unload"), "{error}");
    for (key, value) in [("target_modules", json!([])), ("r", json!(0))] {
        with(key, value);
        assert!(
            refusal(dir.path(), &model).contains("`r` must be at least 1, and `target_modules` must name something")
        );
    }
    with("r", json!("x"));
    assert!(refusal(dir.path(), &model).contains("not the configuration of a LoRA adapter"));
    // What PEFT writes for features that are not used.
    for (key, value) in
        [("rank_pattern", json!({})), ("layers_to_transform", json!(null)), ("init_lora_weights", json!(true))]
    {
        with(key, value);
        Adapter::open(dir.path(), model.config().parameters()).unwrap();
    }
}

#[test]
fn a_version_that_is_an_adapter_reads_as_the_merged_model() {
    let model = llama();
    let path = |name: &str| model.path().join(name);
    let exported = export(&model.open(), &path("base"), &ExportOptions::default()).unwrap();
    let shapes = shapes(&model, &config());
    let mut read = |name: &str| Ok(values(name, &shapes[name]).into());
    write_adapter_version(&path("base"), &path("v1"), PolicyVersion(1), &config(), &mut read).unwrap();
    // For an earlier version, its base is taken.
    let manifest = write_adapter_version(&path("v1"), &path("v2"), PolicyVersion(2), &config(), &mut read).unwrap();
    assert_eq!((manifest.version, manifest.export_dir(&path("v2"))), (PolicyVersion(2), &*path("base")));
    assert_eq!((&manifest.data_blake3, &manifest.tensors), (&exported.data_blake3, &exported.tensors));
    assert_eq!(files(&path("v1"))["adapter_model.safetensors"], files(&path("v2"))["adapter_model.safetensors"]);
    assert_eq!(files(&path("v2")).len(), 3, "no weights of the base");

    let adapter = Adapter::open(&path("v2"), model.config().parameters()).unwrap();
    let version = VersionDir::open(&path("v2")).unwrap();
    assert!(version.is_intact());
    version_to_hf(&model.open(), &path("v2"), &path("hf")).unwrap();
    let whole = Checkpoint::open(&ModelDir::open(path("hf")).unwrap()).unwrap();
    for (name, shape) in model.config().parameters() {
        let merged = adapter.merged(&name, values(&name, &shape));
        assert_eq!(version.read_f32(&name).unwrap(), merged, "{name}");
        assert_eq!(whole.read_f32(&name).unwrap(), merged, "{name}");
    }

    let weights = path("v2").join("adapter_model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let error = VersionDir::open(&path("v2")).unwrap_err().to_string();
    assert!(error.contains("adapter_model.safetensors: is not the adapter that the manifest"), "{error}");
}

#[test]
fn an_adapter_knows_its_base_by_the_weights() {
    let (model, copy, other) = (llama(), llama(), TestModel::new(&json!({}), Dtype::BF16));
    let hash = Checkpoint::open(&model.open()).unwrap().weights_blake3();
    let dir = write(&model, &AdapterConfig { base_blake3: Some(hash.clone()), ..config() });
    let open = |base: &TestModel| Checkpoint::open(&ModelDir::open_adapter(dir.path(), base.path()).unwrap());
    let merged = open(&copy).unwrap();
    assert_eq!(merged.weights_blake3(), hash, "the name of the base");
    let error = open(&other).unwrap_err().to_string();
    assert!(error.contains("is an adapter for other weights than those in") && error.contains("trained on"), "{error}");
}

/// Figures of PEFT itself.
#[test]
fn a_merge_without_effect_is_refused_unless_nothing_was_trained() {
    let model = llama();
    let config = AdapterConfig { base_model_name_or_path: model.path().to_str().unwrap().into(), ..config() };
    let shapes = shapes(&model, &config);
    let merged = |a: f32, b: f32| {
        let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut read = |name: &str| {
            let value = if name.contains("lora_B") { b } else { a };
            Ok(vec![value; shapes[name].iter().product()].into())
        };
        fill_adapter(dir.path(), &config, model.config().parameters(), &mut read).unwrap();
        merge(&ModelDir::open(dir.path()).unwrap(), &out.path().join("merged"))
    };
    merged(1.0, 0.0).unwrap();
    merged(1.0, 0.5).unwrap();
    let error = merged(1e-30, 1e-30).unwrap_err().to_string();
    assert!(error.contains("has no effect on its base"), "{error}");
}

#[test]
fn golden_adapter_merges_to_pefts_weights() {
    let (params, expected) = (["adapter_dir", "base_dir"], ["base_logprobs", "logprobs", "merged_abs_sums"]);
    for case in harness::golden::cases("adapter.json", "adapter", &params, &["ids"], &expected) {
        let dir = |key: &str| harness::golden_dir_of("adapter.json").join(case["params"][key].as_str().unwrap());
        let model = ModelDir::open(dir("adapter_dir")).unwrap();
        assert_eq!(model.path().canonicalize().unwrap(), dir("base_dir").canonicalize().unwrap());
        let weights = Checkpoint::open(&model).unwrap();
        for (name, sum) in case["expected"]["merged_abs_sums"].as_object().unwrap() {
            let found: f64 = weights.read_f32(name).unwrap().iter().map(|value| f64::from(value.abs())).sum();
            assert!((found / sum.as_f64().unwrap() - 1.0).abs() < 1e-6, "{name}: {found} is not {sum}");
        }
    }
}
