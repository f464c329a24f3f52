//! Publishing versions and writing them back.

use std::{borrow::Cow, error::Error, fs};

use exporters::{
    Checkpoint, ExportOptions, SourceError, TensorSource, VersionDir, export, fill_hf, fill_version, version_to_hf,
    write_hf, write_version,
};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use shared::{ModelDir, PolicyVersion, TensorEntry, WeightManifest, files::atomic, model::model_dir::TEMPLATE_DIR};

use crate::support::{TestModel, files, values};

/// A source that negates the checkpoint's values.
fn negated(checkpoint: &Checkpoint) -> impl FnMut(&str) -> Result<Cow<'static, [f32]>, SourceError> {
    |name| Ok(checkpoint.read_f32(name)?.into_iter().map(|v| -v).collect())
}

#[test]
fn a_version_has_new_weights_under_the_same_graph() {
    for dtype in [shared::Dtype::Fp32, shared::Dtype::Fp16] {
        let model = TestModel::new(&json!({"tie_word_embeddings": true}), Dtype::F32);
        let (base, out) = (model.path().join("base"), model.path().join("v000007"));
        let options = ExportOptions { dtype, ..ExportOptions::default() };
        let exported = export(&model.open(), &base, &options).unwrap();
        let checkpoint = Checkpoint::open(&model.open()).unwrap();
        let manifest = write_version(&base, &out, PolicyVersion(7), &mut negated(&checkpoint)).unwrap();
        assert_eq!(manifest.version, PolicyVersion(7));
        let places = |manifest: &WeightManifest| -> Vec<TensorEntry> {
            let unhashed = |tensor: &TensorEntry| TensorEntry { blake3: String::new(), ..tensor.clone() };
            manifest.tensors.iter().map(unhashed).collect()
        };
        assert_eq!((places(&manifest), &manifest.model_blake3), (places(&exported), &exported.model_blake3));
        assert_ne!(manifest.data_blake3, exported.data_blake3);
        assert_eq!(files(&out)["model.onnx"], files(&base)["model.onnx"]);

        let (old, new) = (VersionDir::open(&base).unwrap(), VersionDir::open(&out).unwrap());
        assert!(new.is_intact());
        for tensor in &manifest.tensors {
            let (old, new) = (old.read_f32(&tensor.name).unwrap(), new.read_f32(&tensor.name).unwrap());
            let sign = if tensor.name.starts_with("rotary.") { 1.0 } else { -1.0 };
            assert!(old.iter().zip(&new).all(|(a, b)| sign * a == *b), "{}", tensor.name);
        }
    }
}

#[test]
fn the_same_weights_give_the_same_version_whatever_its_base() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let path = |name: &str| model.path().join(name);
    export(&model.open(), &path("v0"), &ExportOptions::default()).unwrap();
    let checkpoint = Checkpoint::open(&model.open()).unwrap();
    write_version(&path("v0"), &path("v1"), PolicyVersion(1), &mut negated(&checkpoint)).unwrap();
    let mut original = |name: &str| Ok(checkpoint.read_f32(name)?.into());
    write_version(&path("v1"), &path("v2"), PolicyVersion(0), &mut original).unwrap();
    assert_eq!(files(&path("v2")), files(&path("v0")));
}

#[test]
fn a_failing_or_wrong_source_is_named_and_leaves_nothing() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let (base, out) = (model.path().join("base"), model.path().join("v1"));
    export(&model.open(), &base, &ExportOptions::default()).unwrap();
    let refusal = |read: TensorSource<'_, 'static>| {
        let error = write_version(&base, &out, PolicyVersion(1), read).unwrap_err();
        assert!(!out.exists() && fs::read_dir(model.path()).unwrap().count() == 3);
        error.source().map_or_else(|| error.to_string(), |reason| format!("{error}: {reason}"))
    };
    let error = refusal(&mut |_| Err("out of memory".into()));
    assert_eq!(error, "tensor model.embed_tokens.weight: out of memory");
    let error = refusal(&mut |_| Ok(vec![0.0; 5].into()));
    assert_eq!(error, "tensor model.embed_tokens.weight: has 5 values, but shape [32, 16] needs 512");
}

#[test]
fn tensors_that_differ_are_named_and_have_norms() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let out = model.path().join("v0");
    export(&model.open(), &out, &ExportOptions::default()).unwrap();
    let version = VersionDir::open(&out).unwrap();
    assert!(version.damaged().next().is_none());
    let checkpoint = Checkpoint::open(&model.open()).unwrap();
    version.require(&mut |name| Ok(checkpoint.read_f32(name)?.into())).unwrap();
    let error = version.require(&mut negated(&checkpoint)).unwrap_err().to_string();
    assert_eq!(error, "tensor model.embed_tokens.weight: was not read back as it was written; check the disk");

    let spoilt = "model.layers.1.mlp.up_proj.weight";
    let offset = version.manifest().tensor(spoilt).unwrap().offset as usize;
    let mut data = fs::read(out.join("weights.data")).unwrap();
    data[offset] ^= 1;
    fs::remove_file(out.join("weights.data")).unwrap();
    fs::write(out.join("weights.data"), data).unwrap();
    let version = VersionDir::open(&out).unwrap();
    assert_eq!((version.damaged().collect::<Vec<_>>(), version.is_intact()), (vec![spoilt], false));
    for tensor in version.inspect() {
        let name = &tensor.entry.name;
        assert_eq!(tensor.intact, name != spoilt, "{name}");
        assert_eq!(tensor.norm, exporters::norm(&version.read_f32(name).unwrap()), "{name}");
    }
}

#[test]
fn a_damaged_base_is_named() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let base = model.path().join("base");
    export(&model.open(), &base, &ExportOptions::default()).unwrap();
    fs::write(base.join("model.onnx"), "other").unwrap();
    let error = VersionDir::open(&base).unwrap_err().to_string();
    assert!(error.ends_with("model.onnx: is not the graph that the manifest was written for"), "{error}");
    fs::write(base.join("weights.data"), "short").unwrap();
    assert!(VersionDir::open(&base).unwrap_err().to_string().contains("weights.data: is 5 bytes long"));
}

#[test]
fn golden_models_come_back_byte_for_byte() {
    for case in harness::golden_numerics() {
        let folder = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
        let model = ModelDir::open(&folder).unwrap();
        let out = tempfile::tempdir().unwrap();
        let (onnx, back) = (out.path().join("onnx"), out.path().join("hf"));
        export(&model, &onnx, &ExportOptions::default()).unwrap();
        version_to_hf(&model, &onnx, &back).unwrap();
        for name in ["model.safetensors", "config.json", "generation_config.json"] {
            let (before, after) = (fs::read(folder.join(name)).unwrap(), fs::read(back.join(name)).unwrap());
            assert!(before == after, "{}: {name}", folder.display());
        }
    }
}

#[test]
fn a_directory_written_back_states_its_element_type() {
    for key in ["torch_dtype", "dtype"] {
        let model = TestModel::new(&json!({"torch_dtype": null, key: "bfloat16"}), Dtype::BF16);
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
            fs::write(model.path().join(name), name).unwrap();
        }
        let out = model.path().join("hf");
        let checkpoint = Checkpoint::open(&model.open()).unwrap();
        write_hf(&model.open(), &out, &mut |name| Ok(checkpoint.read_f32(name)?.into())).unwrap();

        let config: Value = serde_json::from_slice(&files(&out)["config.json"]).unwrap();
        assert_eq!(config[key], "float32", "transformers would round the weights to bfloat16");
        assert_eq!(files(&out)["chat_template.jinja"], b"chat_template.jinja");
        // Another template of the run, and one in a folder.
        let (other, with_other) = (model.path().join("other"), model.path().join("hf-other"));
        fs::create_dir_all(other.join(TEMPLATE_DIR)).unwrap();
        fs::write(other.join("chat_template.jinja"), "of the run").unwrap();
        fs::write(other.join(TEMPLATE_DIR).join("tool_use.jinja"), "for tools").unwrap();
        let of_run = model.open().with_chat_template(Some(&other)).unwrap();
        write_hf(&of_run, &with_other, &mut |name| Ok(checkpoint.read_f32(name)?.into())).unwrap();
        let templates = ModelDir::open(&with_other).unwrap().chat_templates().unwrap();
        assert_eq!((templates.default(), templates.tool_use()), (Some("of the run"), Some("for tools")));
        let back = ModelDir::open(&out).unwrap();
        assert_eq!(back.config(), model.open().config());
        let weights = Checkpoint::open(&back).unwrap();
        let written = files(&out);
        let stored = SafeTensors::deserialize(&written["model.safetensors"]).unwrap();
        for (name, shape) in back.config().parameters() {
            assert_eq!(stored.tensor(&name).unwrap().dtype(), Dtype::F32);
            assert_eq!(weights.read_f32(&name).unwrap(), values(&name, &shape));
        }
    }
}

#[test]
fn a_checkpoint_holds_both_forms() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let (base, out) = (model.path().join("base"), model.path().join("checkpoint-3"));
    export(&model.open(), &base, &ExportOptions::default()).unwrap();
    let checkpoint = Checkpoint::open(&model.open()).unwrap();
    atomic::write_dir(&out, |dir| {
        fill_hf(&model.open(), dir, &mut negated(&checkpoint))?;
        fill_version(&base, dir, PolicyVersion(3), &mut negated(&checkpoint)).map(drop)
    })
    .unwrap();
    let (hf, onnx) = (Checkpoint::open(&ModelDir::open(&out).unwrap()).unwrap(), VersionDir::open(&out).unwrap());
    for (name, _) in model.config().parameters() {
        assert_eq!(hf.read_f32(&name).unwrap(), onnx.read_f32(&name).unwrap());
    }
}

#[test]
fn a_version_that_is_damaged_or_of_another_model_is_not_written_back() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let (onnx, out) = (model.path().join("onnx"), model.path().join("hf"));
    export(&model.open(), &onnx, &ExportOptions::default()).unwrap();
    let other = TestModel::new(&json!({"vocab_size": 48}), Dtype::F32);
    let error = version_to_hf(&other.open(), &onnx, &out).unwrap_err().to_string();
    assert!(error.contains("not a version of the model in"), "{error}");

    let mut data = fs::read(onnx.join("weights.data")).unwrap();
    data[100] ^= 1;
    fs::write(onnx.join("weights.data"), data).unwrap();
    let error = version_to_hf(&model.open(), &onnx, &out).unwrap_err().to_string();
    assert!(error.contains("differ from the checksum"), "{error}");
    assert!(!out.exists());
}
