//! Engines on rounded versions: the same tokens and log-probs, bit for bit, as on the versions that these were made of.

use std::{collections::BTreeMap, path::PathBuf};

use exporters::VersionDir;
use rollout::engine::{Engine, EngineOptions, Kernels, WeightSource, distance_of};
use rollout_rounded::{difference, round, unpack};
use shared::{
    PolicyVersion, WeightManifest, config::RolloutDtype, generation::rng::Stream, model::manifest::MANIFEST_FORMAT,
};

use super::{
    gate::Bench,
    support::{Outcome, Steps, finish, mixed_groups, options, outcome, wait_swap, write},
};

const DTYPES: [RolloutDtype; 6] = [
    RolloutDtype::Auto,
    RolloutDtype::Bf16x3,
    RolloutDtype::Bf16,
    RolloutDtype::Bf16Dot,
    RolloutDtype::Int8,
    RolloutDtype::Int4,
];

fn open(bench: &Bench, weights: &WeightSource, dtype: RolloutDtype) -> Engine {
    let options = EngineOptions { rollout_dtype: dtype, hot_swap: true, ..options(16, 2) };
    Engine::new(weights.clone(), &bench.model, options)
        .unwrap_or_else(|error| panic!("{}: {error}", weights.dir.display()))
}

/// The completions that an engine makes of some prompts.
fn completions(engine: &mut Engine) -> BTreeMap<(u64, u32), Outcome> {
    mixed_groups().into_iter().for_each(|group| engine.add_group(group).unwrap());
    finish(engine).into_iter().map(outcome).collect()
}

/// Versions 0 and 1 with the canaries of a learner, and version 2, for which the gate has hashes alone.
fn versions(bench: &Bench) -> [WeightSource; 3] {
    let before = VersionDir::open(&bench.v1.dir).unwrap();
    let v2 = write(&bench.v0, bench.path(), 2, |name| {
        let mut stream = Stream::new(&[name.len() as u64]);
        let values = before.read_f32(name).unwrap();
        values.iter().map(|value| value + 1e-3 * (stream.below(2001) as f32 * 1e-3 - 1.0)).collect()
    });
    [bench.v0.clone(), bench.v1.clone(), v2]
}

#[test]
fn completions_are_those_of_the_version_itself() {
    for name in &harness::golden_models() {
        let bench = Bench::new(name);
        let versions = versions(&bench);
        for dtype in DTYPES {
            let path = |what: &str, number: usize| -> PathBuf { bench.path().join(format!("{what}-{dtype}-{number}")) };
            let (mut local, mut remote) = (None, None);
            for (number, source) in versions.iter().enumerate() {
                let what = format!("{name}, {dtype}, version {number}");
                let (packed, whole, out) = (path("packed", number), path("whole", number), path("out", number));
                round(&source.dir, dtype, &packed).unwrap();
                unpack(&packed, None, &whole).unwrap();
                if number == 0 {
                    unpack(&packed, None, &out).unwrap();
                } else {
                    let change = path("change", number);
                    difference(&packed, &path("packed", number - 1), &change).unwrap();
                    unpack(&change, Some(&path("out", number - 1)), &out).unwrap();
                }
                let unpacked = |dir| WeightSource { dir, version: source.version };
                let expected = completions(&mut open(&bench, source, dtype));
                assert!(completions(&mut open(&bench, &unpacked(whole), dtype)) == expected, "{what}, whole");
                // Engines that take one version after the other into use, as those of a run do.
                for (engine, source) in [(&mut local, source.clone()), (&mut remote, unpacked(out))] {
                    let engine = engine.get_or_insert_with(|| open(&bench, &source, dtype));
                    if number > 0 {
                        engine.begin_swap(source).unwrap();
                        wait_swap(engine).unwrap_or_else(|error| panic!("{what}: {error}"));
                    }
                    assert!(completions(engine) == expected, "{what}, swapped");
                }
            }
        }
    }
}

/// The gate sees through the rounding: canaries of a learner that has other weights do not pass. The loss of four bits
/// hides them, so there the norms alone tell, before a version is rounded.
#[test]
fn rounded_weights_that_are_not_the_learners_are_refused() {
    for dtype in [RolloutDtype::Bf16, RolloutDtype::Int8, RolloutDtype::Int4] {
        let bench = Bench::new("llama");
        let [packed, rounded] = ["packed", "rounded"].map(|name| bench.path().join(name));
        let other = bench.swapped_layers();
        let error = round(&other.dir, dtype, &packed).unwrap_err().to_string();
        assert!(error.contains("is not what the learner published: model.layers.0"), "{dtype}: {error}");
        if dtype == RolloutDtype::Int4 {
            continue;
        }
        super::gate::with_norms_of_what_is_stored(&other);
        round(&other.dir, dtype, &packed).unwrap();
        unpack(&packed, None, &rounded).unwrap();
        let weights = WeightSource { dir: rounded, version: PolicyVersion(1) };
        let reason = bench.open(&weights, |options| options.rollout_dtype = dtype).err().unwrap();
        assert!(reason.contains("canaries"), "{dtype}: {reason}");
    }
}

/// Four bits are computed as the numbers that they stand for: an engine in fp32 that has these numbers is near, and one
/// that has the stored ones is not.
#[test]
fn four_bits_give_the_log_probs_of_the_numbers_that_they_stand_for() {
    let (prompt, completion): (Vec<u32>, Vec<u32>) = ((1..20).collect(), (0..40).map(|i| 1 + 37 * i % 200).collect());
    for name in ["llama", "qwen2", "lfm2", "granite4_h"] {
        if !harness::has_golden_model(name) {
            continue;
        }
        let bench = Bench::new(name);
        let [packed, whole] = ["packed", "whole"].map(|name| bench.path().join(name));
        round(&bench.v1.dir, RolloutDtype::Int4, &packed).unwrap();
        unpack(&packed, None, &whole).unwrap();
        // As if these numbers were the learner's own.
        let mut manifest = WeightManifest::read(&whole).unwrap();
        (manifest.format, manifest.rounded) = (MANIFEST_FORMAT, None);
        manifest.write(&whole).unwrap();
        let rounded = WeightSource { dir: whole, version: PolicyVersion(1) };
        let logprobs = |weights: &WeightSource, dtype: RolloutDtype| {
            let change =
                |options: &mut EngineOptions| (options.rollout_dtype, options.conformity_gate) = (dtype, false);
            bench.open(weights, change).unwrap().score(&prompt, &completion).unwrap()
        };
        let meant = logprobs(&rounded, RolloutDtype::Auto);
        let near = distance_of(&logprobs(&bench.v1, RolloutDtype::Int4), &meant);
        let far = distance_of(&logprobs(&bench.v1, RolloutDtype::Auto), &meant);
        assert!(near < 0.05 && near < 0.5 * far, "{name}: {near} from the rounded numbers, {far} between the two");
    }
}

#[test]
fn a_version_that_was_rounded_for_others_is_refused_with_and_without_a_gate() {
    let bench = Bench::new("llama");
    let [packed, rounded] = ["packed", "rounded"].map(|name| bench.path().join(name));
    round(&bench.v1.dir, RolloutDtype::Bf16, &packed).unwrap();
    unpack(&packed, None, &rounded).unwrap();
    let weights = WeightSource { dir: rounded, version: PolicyVersion(1) };
    for (kernels, dtype) in [
        (Kernels::Packed, RolloutDtype::Auto),
        (Kernels::Stock, RolloutDtype::Auto),
        (Kernels::Packed, RolloutDtype::Int8),
        (Kernels::Packed, RolloutDtype::Bf16Dot),
        (Kernels::Packed, RolloutDtype::Bf16x3),
    ] {
        for gate in [true, false] {
            let change = |options: &mut EngineOptions| {
                (options.kernels, options.rollout_dtype, options.conformity_gate) = (kernels, dtype, gate);
            };
            let meant = format!("its weights were rounded for `rollout_dtype` bf16, and this sampler's is {dtype}");
            assert_eq!(bench.open(&weights, change).err().as_ref(), Some(&meant), "{kernels:?}, {gate}");
            let mut engine = bench.open(&bench.v0, change).unwrap();
            engine.begin_swap(weights.clone()).unwrap();
            assert_eq!(wait_swap(&mut engine).unwrap_err().refusal(), Some(meant), "{kernels:?}, {gate}");
        }
    }
}
