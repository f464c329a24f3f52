//! Whole and by differences, a version becomes the same.

use exporters::VersionDir;
use rollout_rounded::{Form, INDEX_FILE, Index, difference, round, unpack};
use shared::{Canaries, WeightManifest, config::RolloutDtype, generation::rng::Stream};

use super::support::{DTYPES, Versions, WIDE, files};

fn index_of(dir: &std::path::Path) -> Index {
    Index::read(&dir.join(INDEX_FILE), &WeightManifest::read_alone(dir).unwrap()).unwrap()
}

fn assert_same(what: &str, got: &std::path::Path, expected: &std::path::Path) {
    let (got, expected) = (files(got), files(expected));
    assert!(got.keys().eq(expected.keys()), "{what}: {:?} and {:?}", got.keys(), expected.keys());
    got.iter().for_each(|(name, bytes)| assert!(*bytes == expected[name], "{what}: {name}"));
}

#[test]
fn a_chain_of_differences_leads_to_what_whole_versions_are() {
    let models = harness::golden_models();
    assert!(["llama", "qwen2", "qwen3", "gemma3"].iter().all(|name| models.iter().any(|model| model == name)));
    for model in &models {
        chain(model, &Versions::of_golden(model));
    }
    chain("wide", &Versions::of_random(WIDE));
}

fn chain(model: &str, versions: &Versions) {
    versions.train(1, 1e-5);
    versions.train(2, 1e-3);
    for dtype in DTYPES {
        let what = format!("{model}, {dtype}");
        let path = |name: &str, version: usize| versions.path(&format!("{name}-{dtype}-{version}"));
        for version in 0..3 {
            let original = versions.path(&format!("v{version}"));
            let (packed, whole) = (path("packed", version), path("whole", version));
            let sizes = round(&original, dtype, &packed).unwrap();
            assert_eq!(sizes.packed, files(&packed).values().map(|file| file.len() as u64).sum::<u64>());
            let manifest = unpack(&packed, None, &whole).unwrap();
            assert_eq!(manifest, WeightManifest::read(&whole).unwrap(), "{what}");
            assert_eq!(sizes.unpacked, manifest.data_length);
            if dtype == RolloutDtype::Auto {
                assert_same(&what, &whole, &original);
            }
            assert_as_published(&what, &whole, &original, dtype);
            if version > 0 {
                let (change, out) = (path("change", version), path("out", version));
                let changed = difference(&packed, &path("packed", version - 1), &change).unwrap();
                assert!(changed.packed < sizes.packed, "{what}");
                assert!(!change.join("model.onnx").exists(), "the base has it");
                let base = if version == 1 { path("whole", 0) } else { path("out", version - 1) };
                assert_eq!(index_of(&change).base, Some(WeightManifest::read(&base).unwrap().data_blake3));
                unpack(&change, Some(&base), &out).unwrap();
                assert_same(&what, &out, &whole);
            }
        }
    }
}

/// Names, places and unrounded tensors are as the learner published them, and norms go with the values.
fn assert_as_published(what: &str, whole: &std::path::Path, original: &std::path::Path, dtype: RolloutDtype) {
    let (whole_version, version) = (VersionDir::open(whole).unwrap(), VersionDir::open(original).unwrap());
    let (canaries, published) = [whole, original].map(|dir| Canaries::read(dir).unwrap().unwrap()).into();
    assert_eq!(Canaries { norms: published.norms.clone(), ..canaries.clone() }, published, "{what}");
    let (manifest, rounded) = (whole_version.manifest(), (dtype != RolloutDtype::Auto).then_some(dtype));
    assert_eq!((manifest.rounded, manifest.version), (rounded, version.manifest().version), "{what}");
    for (found, meant) in whole_version.inspect().iter().zip(&version.manifest().tensors) {
        let name = &found.entry.name;
        assert!(found.intact, "{what}: {name}");
        assert_eq!((name, found.entry.offset, &found.entry.shape), (&meant.name, meant.offset, &meant.shape), "{what}");
        let is_same = found.entry.blake3 == meant.blake3;
        assert!(
            is_same || Form::of(name, &meant.dimensions(), dtype) != Form::Whole,
            "{what}: {name} is used as it is"
        );
        if let Some(norm) = canaries.norms.get(name) {
            assert_eq!(*norm, found.norm, "{what}: {name}");
            let share = if dtype == RolloutDtype::Int4 { 0.05 } else { 0.01 };
            assert!((norm - published.norms[name]).abs() <= share * norm, "{what}: {name}");
        }
    }
}

#[test]
fn the_bytes_depend_on_nothing_but_the_version() {
    let versions = Versions::of_random(WIDE);
    versions.train(1, 1e-4);
    for dtype in DTYPES {
        let all = [1, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let [older, newer, change] = ["a", "b", "c"].map(|name| versions.path(&format!("{name}{threads}{dtype}")));
            pool.install(|| {
                round(&versions.path("v0"), dtype, &older).unwrap();
                round(&versions.path("v1"), dtype, &newer).unwrap();
                difference(&newer, &older, &change).unwrap();
            });
            [older, newer, change].map(|dir| files(&dir))
        });
        assert!(all[0] == all[1], "{dtype}");
    }
}

#[test]
fn a_difference_has_what_has_changed_and_no_more() {
    let versions = Versions::of_random(WIDE);
    let changed = "model.layers.0.mlp.up_proj.weight";
    versions.write(1, |name, values| {
        if name == changed {
            values[5] += 1.0;
        }
    });
    let [v0, v1, change] = ["p0", "p1", "change"].map(|name| versions.path(name));
    round(&versions.path("v0"), RolloutDtype::Bf16, &v0).unwrap();
    round(&versions.path("v1"), RolloutDtype::Bf16, &v1).unwrap();
    difference(&v1, &v0, &change).unwrap();
    let index = index_of(&change);
    assert!((1..200).contains(&index.data_length()), "{} bytes for one number", index.data_length());
    let names = WeightManifest::read_alone(&change).unwrap().tensors.into_iter().map(|tensor| tensor.name);
    for (name, tensor) in names.zip(&index.tensors) {
        let bytes: u32 = tensor.blocks.iter().flat_map(|block| &block.1).sum();
        assert_eq!(bytes > 0, name == changed, "{name}");
    }
}

/// Values that have nothing to do with those before go whole, block by block.
#[test]
fn what_is_no_less_as_a_difference_goes_as_it_is() {
    let versions = Versions::of_random(WIDE);
    versions.write(1, |name, values| {
        let mut stream = Stream::new(&[name.len() as u64]);
        values.iter_mut().for_each(|value| *value = 1e-2 * stream.below(1 << 20) as f32);
    });
    for dtype in DTYPES {
        let [v0, v1, change] = ["p0", "p1", "change"].map(|name| versions.path(&format!("{name}{dtype}")));
        round(&versions.path("v0"), dtype, &v0).unwrap();
        let whole = round(&versions.path("v1"), dtype, &v1).unwrap();
        let changed = difference(&v1, &v0, &change).unwrap();
        assert!(changed.packed < whole.packed + 200, "{dtype}: the hash of the base is all that it has besides");
        let blocks = index_of(&change).tensors.into_iter().flat_map(|tensor| tensor.blocks);
        assert!(blocks.filter(|block| !block.0).count() > 5, "{dtype}");
    }
}

/// Version 1 has a row that bytes cannot stand for, and version 2 has none.
#[test]
fn a_tensor_that_cannot_be_rounded_stays_as_it_is() {
    let versions = Versions::of_random(WIDE);
    let odd = "model.layers.0.mlp.up_proj.weight";
    let row = |value: f32| {
        move |name: &str, values: &mut [f32]| {
            if name == odd {
                values[256..512].fill(value);
            }
        }
    };
    versions.write(1, row(1e-38));
    versions.write(2, row(0.01));
    let packed = [0, 1, 2].map(|version| {
        let packed = versions.path(&format!("p{version}"));
        round(&versions.path(&format!("v{version}")), RolloutDtype::Int8, &packed).unwrap();
        packed
    });
    let [v0, v1, v2] = packed.each_ref().map(|packed| index_of(packed));
    let forms = |index: &Index| index.tensors.iter().filter(|tensor| tensor.form == Form::Bytes).count();
    assert_eq!((forms(&v0), forms(&v1), forms(&v2)), (7, 6, 7));
    let mut base = versions.path("base");
    unpack(&packed[0], None, &base).unwrap();
    for version in [1, 2] {
        let [change, out, whole] = ["change", "out", "whole"].map(|name| versions.path(&format!("{name}{version}")));
        difference(&packed[version], &packed[version - 1], &change).unwrap();
        unpack(&change, Some(&base), &out).unwrap();
        unpack(&packed[version], None, &whole).unwrap();
        assert_same("odd", &out, &whole);
        base = out;
    }
}
