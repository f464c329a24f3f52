//! Versions that are adapters on an export.

use std::{collections::BTreeSet, path::Path};

use exporters::{AdapterConfig, ExportOptions, VersionDir, export, write_adapter_version};
use rollout::engine::{Engine, EngineOptions, Kernels, WeightSource};
use shared::{Dtype, Experts, ModelDir, PolicyVersion, generation::rng::Stream};

use super::support::{
    MODES, Outcome, Steps, exported, finish, golden_model, greedy, group, options, outcome, wait_swap, write,
};

pub const ALL: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// The family's names of modules: some families have several of them in one tensor. Experts have no adapters: attention
/// has them instead.
fn own_names(parameters: &[(String, Vec<usize>)], modules: &[&str]) -> Vec<String> {
    let has = |module: &str| parameters.iter().any(|(name, _)| name.ends_with(&format!(".{module}.weight")));
    let of_experts = parameters.iter().any(|(name, _)| Experts::own(name));
    let mut names = BTreeSet::new();
    for &module in modules {
        names.insert(match module {
            "gate_proj" | "up_proj" if of_experts => "v_proj",
            "down_proj" if of_experts => "o_proj",
            // LFM3 has a gate of that name in attention, where no adapter is.
            "gate_proj" if has("w1") => "w1",
            module if has(module) => module,
            "o_proj" => "out_proj",
            "up_proj" if has("w3") => "w3",
            "down_proj" if has("w2") => "w2",
            "q_proj" | "k_proj" | "v_proj" => "qkv_proj",
            "down_proj" => "output_linear",
            _ if has("input_linear") => "input_linear",
            _ => "gate_up_proj",
        });
    }
    names.into_iter().map(str::to_owned).collect()
}

/// A version with random updates of some of the modules, of this size.
pub fn adapter(base: &WeightSource, folder: &Path, version: u64, modules: &[&str], size: f32) -> WeightSource {
    let parameters = VersionDir::open(&base.dir).unwrap().manifest().parameters().collect::<Vec<_>>();
    let config = AdapterConfig {
        base_model_name_or_path: "base".into(),
        base_blake3: None,
        r: 3,
        lora_alpha: 6.0,
        lora_dropout: 0.0,
        target_modules: own_names(&parameters, modules),
        use_rslora: false,
        wrapped: false,
    };
    let mut stream = Stream::new(&[version]);
    let mut tensors = config.tensors(parameters).unwrap().into_iter();
    let (dir, version) = (folder.join(format!("adapter-{version}")), PolicyVersion(version));
    write_adapter_version(&base.dir, &dir, version, &config, &mut |name| {
        let (expected, shape) = tensors.next().unwrap();
        assert_eq!(name, expected);
        Ok((0..shape.iter().product()).map(|_| size * stream.next_normal() as f32).collect())
    })
    .unwrap();
    WeightSource { dir, version }
}

/// A version with random updates of some of the modules, and one with the weights that they make.
fn adapted(base: &WeightSource, folder: &Path, version: u64, modules: &[&str]) -> [WeightSource; 2] {
    let adapter = adapter(base, folder, version, modules, 0.1);
    let merged = VersionDir::open(&adapter.dir).unwrap();
    let whole = write(base, folder, version, |name| merged.read_f32(name).unwrap());
    [adapter, whole]
}

fn complete(engine: &mut Engine) -> Outcome {
    engine.add_group(group(0, &[1, 200, 69, 238], 1, greedy(20))).unwrap();
    outcome(finish(engine).swap_remove(0)).1
}

/// An adapter gives the same as a whole version, to the last bit, whatever came before it.
fn check(model: &ModelDir, base: &WeightSource, folder: &Path, options: impl Fn() -> EngineOptions) {
    let open = |weights: &WeightSource| Engine::new(weights.clone(), model, options()).unwrap();
    let versions: Vec<(WeightSource, Outcome)> = [&ALL[..], &ALL[..], &["q_proj", "up_proj"], &["down_proj"]]
        .iter()
        .zip(1..)
        .map(|(modules, version)| {
            let [adapter, whole] = adapted(base, folder, version, modules);
            (adapter, complete(&mut open(&whole)))
        })
        .collect();
    let plain = (base.clone(), complete(&mut open(base)));
    let [a, b, some, down] = &versions[..] else { panic!("four versions") };
    assert!(plain.1 != a.1 && a.1 != b.1 && b.1 != some.1 && some.1 != down.1, "they must differ to test anything");
    let mut engine = open(&a.0);
    assert!(complete(&mut engine) == a.1);
    for (weights, expected) in [b, a, b, some, down, some, &plain, a, b] {
        engine.begin_swap(weights.clone()).unwrap();
        wait_swap(&mut engine).unwrap();
        assert!(complete(&mut engine) == *expected, "{}", weights.dir.display());
    }
}

#[test]
fn an_adapter_is_its_merged_model_bit_for_bit() {
    for name in &harness::golden_models() {
        let model = golden_model(name);
        for (kernels, rollout_dtype, kv_dtype) in MODES {
            let folder = tempfile::tempdir().unwrap();
            let base = exported(&model, folder.path());
            let options = || EngineOptions { kernels, rollout_dtype, kv_dtype, hot_swap: true, ..options(2, 2) };
            check(&model, &base, folder.path(), options);
        }
    }
}

#[test]
fn an_adapter_on_an_export_in_half_precision_is_rounded_once() {
    for name in &harness::golden_models() {
        let (model, folder) = (golden_model(name), tempfile::tempdir().unwrap());
        let base = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
        export(&model, &base.dir, &ExportOptions { dtype: Dtype::Fp16, ..ExportOptions::default() }).unwrap();
        check(&model, &base, folder.path(), || EngineOptions {
            kernels: Kernels::Stock,
            hot_swap: true,
            ..options(2, 2)
        });
    }
}

#[test]
fn an_adapter_whose_base_is_gone_or_that_is_damaged_is_named() {
    let (model, folder) = (golden_model("qwen2"), tempfile::tempdir().unwrap());
    let base = exported(&model, folder.path());
    let [adapter, _] = adapted(&base, folder.path(), 1, &ALL);
    let refusal = |kernels, conformity_gate| {
        let options = EngineOptions { kernels, conformity_gate, ..options(1, 1) };
        Engine::new(adapter.clone(), &model, options).err().unwrap().to_string()
    };
    let path = adapter.dir.join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    for kernels in [Kernels::Packed, Kernels::Stock] {
        assert!(refusal(kernels, false).contains("adapter_model.safetensors: is not the adapter that the manifest"));
        assert!(refusal(kernels, true).contains("adapter_model.safetensors as a whole, by its hash"));
    }
    std::fs::remove_dir_all(&base.dir).unwrap();
    assert!(refusal(Kernels::Packed, true).contains("v0/manifest.json: No such file"));
}
