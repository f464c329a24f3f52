//! Versions that cannot be rounded, and packed directories that were changed.

use std::{fs, path::Path};

use exporters::{AdapterConfig, ExportOptions, export, fill_version, write_adapter_version};
use rollout_rounded::{DATA_FILE, INDEX_FILE, Index, RoundedError, difference, index::Block, round, unpack};
use shared::{Canaries, Dtype, ModelDir, PolicyVersion, WeightManifest, config::RolloutDtype, model::manifest};

use super::support::{Versions, WIDE};

const DTYPE: RolloutDtype = RolloutDtype::Bf16;

/// Versions 0 and 1, both packed, and the difference between them.
fn packed() -> Versions {
    let versions = Versions::of_random(WIDE);
    versions.train(1, 1e-4);
    round(&versions.path("v0"), DTYPE, &versions.path("p0")).unwrap();
    round(&versions.path("v1"), DTYPE, &versions.path("p1")).unwrap();
    difference(&versions.path("p1"), &versions.path("p0"), &versions.path("change")).unwrap();
    unpack(&versions.path("p0"), None, &versions.path("base")).unwrap();
    versions
}

impl Versions {
    fn refused(&self, packed: &str, base: Option<&str>) -> RoundedError {
        let (base, out) = (base.map(|base| self.path(base)), self.path("out"));
        let error = unpack(&self.path(packed), base.as_deref(), &out).unwrap_err();
        assert!(!out.exists(), "nothing is left of it");
        error
    }

    fn change_index(&self, name: &str, change: impl FnOnce(&mut Index)) {
        let path = self.path(name).join(INDEX_FILE);
        let mut index: Index = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut index);
        fs::write(path, serde_json::to_vec(&index).unwrap()).unwrap();
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn adapters_halves_and_rounded_versions_travel_as_they_are() {
    let versions = Versions::of_random(WIDE);
    let model = versions.path("model");
    WIDE.write(&model, 1);
    let model = ModelDir::open(&model).unwrap();
    let config = AdapterConfig {
        base_model_name_or_path: String::new(),
        base_blake3: None,
        r: 1,
        lora_alpha: 1.0,
        lora_dropout: 0.0,
        target_modules: vec!["q_proj".into()],
        use_rslora: false,
        wrapped: false,
    };
    let mut zeros = |name: &str| {
        let shapes = config.tensors(model.config().parameters()).unwrap();
        let (_, shape) = shapes.iter().find(|(found, _)| found == name).unwrap();
        Ok(vec![0.0; shape.iter().product()].into())
    };
    write_adapter_version(&versions.path("v0"), &versions.path("adapter"), PolicyVersion(1), &config, &mut zeros)
        .unwrap();
    let options = ExportOptions { dtype: Dtype::Fp16, ..ExportOptions::default() };
    export(&model, &versions.path("halves"), &options).unwrap();
    round(&versions.path("v0"), DTYPE, &versions.path("p0")).unwrap();
    unpack(&versions.path("p0"), None, &versions.path("rounded")).unwrap();
    for (name, what) in [("adapter", "an adapter"), ("halves", "not fp32"), ("rounded", "rounded already")] {
        let error = round(&versions.path(name), DTYPE, &versions.path("out")).unwrap_err();
        assert!(matches!(error, RoundedError::AsItIs { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert!(!versions.path("out").exists());
    }
}

#[test]
fn only_what_the_learner_has_is_rounded() {
    let versions = Versions::of_random(WIDE);
    let (v0, out) = (versions.path("v0"), versions.path("out"));
    let unlike = |tensor: &str| match round(&v0, DTYPE, &out).unwrap_err() {
        RoundedError::Unlike { tensors, .. } => assert_eq!(tensors, [tensor]),
        other => panic!("{other}"),
    };
    let name = "model.layers.0.mlp.up_proj.weight";
    let canaries = Canaries::read(&v0).unwrap().unwrap();
    let mut other = canaries.clone();
    *other.norms.get_mut(name).unwrap() *= 1.0 + 1e-9;
    other.write(&v0).unwrap();
    unlike(name);
    canaries.write(&v0).unwrap();
    let offset = WeightManifest::read(&v0).unwrap().tensor("model.norm.weight").unwrap().offset;
    flip(&v0.join(manifest::DATA_FILE), offset as usize);
    unlike("model.norm.weight");
    assert!(!out.exists());
}

#[test]
fn a_difference_is_to_one_version_and_no_other() {
    let versions = packed();
    let hash = |name: &str| WeightManifest::read(&versions.path(name)).unwrap().data_blake3;
    unpack(&versions.path("change"), Some(&versions.path("base")), &versions.path("new")).unwrap();
    // No base, the version itself, and the version to which the difference leads.
    for base in [None, Some("v0"), Some("new")] {
        match versions.refused("change", base) {
            RoundedError::WrongBase { needed, found } => {
                assert_eq!((needed, found), (hash("base"), base.map(hash)));
            }
            other => panic!("{other}"),
        }
    }
    // The same hash, but other tensors.
    let mut manifest = WeightManifest::read(&versions.path("base")).unwrap();
    manifest.tensors.last_mut().unwrap().name = "other".into();
    manifest.write(&versions.path("base")).unwrap();
    assert!(matches!(versions.refused("change", Some("base")), RoundedError::OtherModel { .. }));
}

#[test]
fn a_base_that_is_damaged_is_found_out() {
    let versions = packed();
    let name = "model.layers.0.mlp.gate_proj.weight";
    let offset = WeightManifest::read(&versions.path("base")).unwrap().tensor(name).unwrap().offset;
    flip(&versions.path("base").join(manifest::DATA_FILE), offset as usize + 3);
    match versions.refused("change", Some("base")) {
        RoundedError::Damaged { tensor, .. } => assert_eq!(tensor, name),
        other => panic!("{other}"),
    }
}

#[test]
fn differences_are_between_whole_versions_of_one_model() {
    let versions = packed();
    let path = |name: &str| versions.path(name);
    for (newer, older) in [("change", "p0"), ("p1", "change")] {
        let error = difference(&path(newer), &path(older), &path("out")).unwrap_err();
        assert!(matches!(error, RoundedError::NotWhole { .. }), "{error}");
    }
    round(&path("v0"), RolloutDtype::Int8, &path("bytes")).unwrap();
    let other = Versions::of_golden("llama");
    round(&other.path("v0"), DTYPE, &path("llama")).unwrap();
    for older in ["bytes", "llama"] {
        let error = difference(&path("p1"), &path(older), &path("out")).unwrap_err();
        assert!(matches!(error, RoundedError::OtherModel { .. }), "{error}");
    }
    assert!(!path("out").exists());
}

/// Every byte belongs to some tensor, and the error for it names that tensor.
#[test]
fn damage_is_found_wherever_it_is_and_named() {
    let versions = packed();
    let data = versions.path("p0").join(DATA_FILE);
    let length = fs::metadata(&data).unwrap().len() as usize;
    for at in (0..40).map(|i| i * (length - 1) / 39) {
        flip(&data, at);
        let error = versions.refused("p0", None);
        assert!(matches!(error, RoundedError::Damaged { .. }), "byte {at}: {error}");
        flip(&data, at);
    }
    flip(&versions.path("p0").join(manifest::MODEL_FILE), 77);
    let error = versions.refused("p0", None).to_string();
    assert!(error.ends_with("p0: tensor graph is damaged"), "{error}");
}

#[test]
fn what_is_cut_says_so() {
    let versions = packed();
    let data = versions.path("change").join(DATA_FILE);
    let bytes = fs::read(&data).unwrap();
    for cut in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
        fs::write(&data, cut).unwrap();
        match versions.refused("change", Some("base")) {
            RoundedError::Truncated { found, needed, .. } => {
                assert_eq!((found, needed), (cut.len() as u64, bytes.len() as u64));
            }
            other => panic!("{other}"),
        }
    }
    fs::remove_file(&data).unwrap();
    assert!(matches!(versions.refused("change", Some("base")), RoundedError::Io(_)));
}

#[test]
fn an_index_of_another_format_is_no_damage() {
    let versions = packed();
    let path = versions.path("p0").join(INDEX_FILE);
    fs::write(&path, r#"{"format": 7, "whatever": []}"#).unwrap();
    let error = versions.refused("p0", None);
    assert!(matches!(error, RoundedError::UnknownFormat { found: 7, .. }), "{error}");
    fs::write(&path, r#"{"tensors": []}"#).unwrap();
    let error = versions.refused("p0", None).to_string();
    assert!(error.contains("rounded.json: not an index"), "{error}");
}

/// No false index causes an allocation.
#[test]
fn an_index_that_lies_is_refused_before_anything_is_read() {
    type Lie = fn(&mut Index);
    let lies: [Lie; 8] = [
        |index| drop(index.tensors.pop()),
        |index| index.tensors[0].blocks.push(Block(false, vec![1, 0, 0, 0])),
        |index| drop(index.tensors[0].blocks.pop()),
        |index| index.tensors[0].blocks[0].1[0] = u32::MAX,
        |index| index.tensors[0].blocks[0].1.push(0),
        |index| index.tensors[0].blocks[0].1.truncate(3),
        |index| index.tensors[0].form = rollout_rounded::Form::Halves,
        |index| index.tensors[0].blocks[0].0 = true,
    ];
    for (number, lie) in lies.into_iter().enumerate() {
        let versions = packed();
        versions.change_index("p0", lie);
        let error = versions.refused("p0", None);
        assert!(matches!(error, RoundedError::Index { .. }), "lie {number}: {error}");
    }
}

#[test]
fn a_tensor_that_no_memory_holds_is_not_begun() {
    let versions = packed();
    for (shape, part) in [(vec![1 << 50], "the blocks of tensor"), (vec![1, 1 << 45], "GiB of free memory")] {
        let mut manifest = WeightManifest::read_alone(&versions.path("p0")).unwrap();
        let last = manifest.tensors.last_mut().unwrap();
        (last.length, last.shape) = (4 * shape.iter().product::<u64>(), shape);
        manifest.data_length = last.offset + last.length;
        manifest.write(&versions.path("p0")).unwrap();
        let error = versions.refused("p0", None).to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// A version that somebody writes on top of a rounded one is a version like any other.
#[test]
fn a_version_that_is_written_on_a_rounded_one_is_not_rounded() {
    let versions = packed();
    let stored = exporters::VersionDir::open(&versions.path("v1")).unwrap();
    let out = versions.path("next");
    fs::create_dir(&out).unwrap();
    let mut read = |name: &str| Ok(stored.read_f32(name)?.into());
    let manifest = fill_version(&versions.path("base"), &out, PolicyVersion(1), &mut read).unwrap();
    assert_eq!((manifest.rounded, &manifest.data_blake3), (None, &stored.manifest().data_blake3));
}
