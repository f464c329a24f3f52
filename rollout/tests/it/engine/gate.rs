//! The conformity gate: versions that are not what the learner published are refused, whatever is wrong with them, and
//! honest ones pass. The learner's part is played by figures of transformers.

use std::{fs, path::Path};

use exporters::{
    Adapter, AdapterConfig, Checkpoint, ExportOptions, VersionDir, export, write_adapter_version, write_version,
};
use rollout::engine::{Engine, EngineOptions, Kernels, WeightSource};
use serde_json::{Value, json};
use shared::{
    Canaries, Dtype, Experts, ModelDir, PolicyVersion, WeightManifest,
    config::{KvDtype, RolloutDtype},
    model::manifest::{DATA_FILE, MODEL_FILE, hash_of},
};

use super::support::{MODES, exported, golden_model, options, trained, wait_swap, write};

/// A model with its export, version 0, and with version 1, which training has made of it.
pub struct Bench {
    pub model: ModelDir,
    folder: tempfile::TempDir,
    pub v0: WeightSource,
    pub v1: WeightSource,
    golden: Value,
}

impl Bench {
    pub fn new(name: &str) -> Self {
        let (model, folder) = (golden_model(name), tempfile::tempdir().unwrap());
        let v0 = exported(&model, folder.path());
        let v1 = trained(name, &v0, folder.path());
        let golden = harness::golden_numerics().into_iter().find(|case| case["name"] == name).unwrap();
        let bench = Self { model, folder, v0, v1, golden };
        bench.canaries(0, "completion_logps").write(&bench.v0.dir).unwrap();
        bench.trained_canaries().write(&bench.v1.dir).unwrap();
        bench
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The canaries of a version whose tensors are in its folder as the learner has them.
    fn canaries(&self, version: u64, logprobs: &str) -> Canaries {
        let row = |value: &Value| value[2].as_array().unwrap().clone();
        let ids = |key: &str| row(&self.golden["inputs"][key]).into_iter().map(|id| id.as_u64().unwrap() as u32);
        let stored = VersionDir::open(&self.path().join(format!("v{version}"))).unwrap();
        Canaries {
            version: PolicyVersion(version),
            dtype: Dtype::Fp32,
            token_ids: ids("prompt_ids").chain(ids("completion_ids")).collect(),
            logprobs: row(&self.golden["expected"][logprobs]).iter().map(|l| l.as_f64().unwrap()).collect(),
            norms: stored.manifest().parameters().map(|(name, _)| (name.clone(), norm(&stored, &name))).collect(),
        }
    }

    fn trained_canaries(&self) -> Canaries {
        self.canaries(1, "completion_logps_after")
    }

    /// Version 1 in a folder of its own, with values that `read` makes from the trained ones.
    fn tampered(&self, name: &str, read: impl Fn(&str, &VersionDir) -> Vec<f32>) -> WeightSource {
        let (dir, good) = (self.path().join(name), VersionDir::open(&self.v1.dir).unwrap());
        write_version(&self.v0.dir, &dir, PolicyVersion(1), &mut |name| Ok(read(name, &good).into())).unwrap();
        self.trained_canaries().write(&dir).unwrap();
        WeightSource { dir, version: PolicyVersion(1) }
    }

    /// Version 1 with the first two layers in each other's place.
    pub fn swapped_layers(&self) -> WeightSource {
        self.tampered("swapped", |name, good| {
            let other = match name.strip_prefix("model.layers.") {
                Some(rest) if rest.starts_with('0') => format!("model.layers.1{}", &rest[1..]),
                Some(rest) if rest.starts_with('1') => format!("model.layers.0{}", &rest[1..]),
                _ => name.to_owned(),
            };
            good.read_f32(&other).unwrap()
        })
    }

    pub fn open(&self, weights: &WeightSource, change: impl FnOnce(&mut EngineOptions)) -> Result<Engine, String> {
        let mut options = EngineOptions { hot_swap: true, ..options(2, 1) };
        change(&mut options);
        Engine::new(weights.clone(), &self.model, options).map_err(|error| error.refusal().expect("a refusal"))
    }

    /// Every way of computing the model refuses a version, at a swap and at the start, with a message that has `part`.
    /// Without the gate it is taken.
    fn assert_refused(&self, what: &str, weights: &WeightSource, part: &str) {
        for (kernels, rollout_dtype, kv_dtype) in MODES {
            let mode = |options: &mut EngineOptions| {
                (options.kernels, options.rollout_dtype, options.kv_dtype) = (kernels, rollout_dtype, kv_dtype);
            };
            let context = format!("{what}, {kernels:?} {rollout_dtype} {kv_dtype}");
            let mut engine = self.open(&self.v0, mode).unwrap();
            engine.begin_swap(weights.clone()).unwrap();
            let error = wait_swap(&mut engine).expect_err(&context);
            let reason = error.refusal().unwrap_or_else(|| panic!("{context}: {error}"));
            assert!(reason.contains(part), "{context}: {reason}");
            assert_eq!(engine.version(), PolicyVersion(0), "{context}");
            let reason = self.open(weights, mode).err().expect(&context);
            assert!(reason.contains(part), "{context}: {reason}");
            self.take(&mut engine, &self.v1, &context);

            let ungated = |options: &mut EngineOptions| (mode(options), options.conformity_gate = false).0;
            self.take(&mut self.open(&self.v0, ungated).unwrap(), weights, &context);
        }
    }

    fn take(&self, engine: &mut Engine, weights: &WeightSource, context: &str) {
        engine.begin_swap(weights.clone()).unwrap();
        let report = wait_swap(engine).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(report.version, weights.version, "{context}");
    }
}

fn norm(stored: &VersionDir, name: &str) -> f64 {
    exporters::norm(&stored.read_f32(name).unwrap())
}

/// Changes a byte in the middle of a tensor.
fn corrupt(dir: &Path, tensor: &str) {
    let manifest = WeightManifest::read(dir).unwrap();
    let entry = manifest.tensor(tensor).unwrap();
    let mut data = fs::read(dir.join(DATA_FILE)).unwrap();
    data[(entry.offset + entry.length / 2) as usize] ^= 0x40;
    fs::remove_file(dir.join(DATA_FILE)).unwrap();
    fs::write(dir.join(DATA_FILE), data).unwrap();
}

/// Writes a manifest that fits the files in the folder, as if they had been published like that.
fn reseal(dir: &Path) {
    let mut manifest = WeightManifest::read(dir).unwrap();
    let data = fs::read(dir.join(DATA_FILE)).unwrap();
    for tensor in &mut manifest.tensors {
        let bytes = &data[tensor.offset as usize..][..tensor.length as usize];
        tensor.blake3 = blake3::hash(bytes).to_hex().to_string();
    }
    manifest.data_blake3 = hash_of(&manifest.tensors);
    manifest.model_blake3 = blake3::hash(&fs::read(dir.join(MODEL_FILE)).unwrap()).to_hex().to_string();
    manifest.write(dir).unwrap();
}

/// Writes the norms that the learner would have if its own values were the stored ones: only log-probs can tell.
pub fn with_norms_of_what_is_stored(weights: &WeightSource) {
    let stored = VersionDir::open(&weights.dir).unwrap();
    let mut canaries = Canaries::read(&weights.dir).unwrap().unwrap();
    canaries.norms.iter_mut().for_each(|(name, found)| *found = norm(&stored, name));
    canaries.write(&weights.dir).unwrap();
}

const DOWN: &str = "model.layers.1.mlp.down_proj.weight";
const LOGPROBS: &str = "and the log-probs of 8 canaries are not";

#[test]
fn golden_versions_of_every_family_pass_however_they_are_computed() {
    for name in &harness::golden_models() {
        let bench = Bench::new(name);
        for (kernels, rollout_dtype, kv_dtype) in MODES {
            let mode = |options: &mut EngineOptions| {
                (options.kernels, options.rollout_dtype, options.kv_dtype) = (kernels, rollout_dtype, kv_dtype);
            };
            let context = format!("{name}, {kernels:?} {rollout_dtype} {kv_dtype}");
            let mut engine = bench.open(&bench.v0, mode).unwrap();
            bench.take(&mut engine, &bench.v1, &context);
            bench.take(&mut engine, &bench.v0, &context);
        }
    }
}

#[test]
fn golden_versions_in_half_precision_pass() {
    for name in &harness::golden_models() {
        let bench = Bench::new(name);
        let half = WeightSource { dir: bench.path().join("half"), version: PolicyVersion(0) };
        export(&bench.model, &half.dir, &ExportOptions { dtype: Dtype::Fp16, ..ExportOptions::default() }).unwrap();
        bench.canaries(0, "completion_logps").write(&half.dir).unwrap();
        bench.open(&half, |options| options.kernels = Kernels::Stock).unwrap();
    }
}

#[test]
fn a_corrupted_tensor_is_named() {
    let bench = Bench::new("qwen2");
    let bad = bench.tampered("bad", |name, good| good.read_f32(name).unwrap());
    corrupt(&bad.dir, DOWN);
    bench.assert_refused("corrupted", &bad, &format!("bytes that are not those of the manifest: {DOWN}"));
    // Values that were written wrong in the first place have the right hashes.
    reseal(&bad.dir);
    bench.assert_refused("written wrong", &bad, &format!("not what the learner has, by the norms: {DOWN}"));
}

#[test]
fn swapped_layers_are_named_and_found_by_their_log_probs_as_well() {
    let bench = Bench::new("llama");
    let swapped = bench.swapped_layers();
    bench.assert_refused("swapped", &swapped, "not what the learner has, by the norms: model.layers.0");
    with_norms_of_what_is_stored(&swapped);
    bench.assert_refused("swapped in the learner's norms too", &swapped, LOGPROBS);
}

#[test]
fn swapped_experts_are_named_and_found_by_their_log_probs_as_well() {
    if !harness::has_golden_model("qwen3_moe") {
        return;
    }
    let bench = Bench::new("qwen3_moe");
    // Each expert has its neighbour's weights, and the router's rows stay where they are.
    let swapped = bench.tampered("swapped", |name, good| {
        let other = Experts::number_in(name)
            .map(|expert| name.replace(&format!(".experts.{expert}."), &format!(".experts.{}.", expert ^ 1)));
        good.read_f32(other.as_deref().unwrap_or(name)).unwrap()
    });
    bench.assert_refused("swapped", &swapped, "not what the learner has, by the norms: model.layers.0.mlp.experts.");
    with_norms_of_what_is_stored(&swapped);
    bench.assert_refused("swapped in the learner's norms too", &swapped, LOGPROBS);
}

#[test]
fn a_stale_or_mixed_publication_is_refused() {
    let bench = Bench::new("qwen3");
    let old = |name: &str| VersionDir::open(&bench.v0.dir).unwrap().read_f32(name).unwrap();
    let stale = bench.tampered("stale", |name, _| old(name));
    bench.assert_refused("stale", &stale, "not what the learner has, by the norms: model.embed_tokens.weight, ");
    let mixed =
        bench.tampered("mixed", |name, good| if name == DOWN { old(name) } else { good.read_f32(name).unwrap() });
    bench.assert_refused("mixed", &mixed, &format!("by the norms: {DOWN}"));
    let other = bench.tampered("other", |name, good| good.read_f32(name).unwrap());
    bench.canaries(0, "completion_logps").write(&other.dir).unwrap();
    bench.assert_refused("canaries of another version", &other, "the canaries beside it are those of v0");
    fs::write(other.dir.join("canaries.json"), "{").unwrap();
    bench.assert_refused("half a file of canaries", &other, "canaries.json: ");
}

#[test]
fn a_foreign_graph_is_refused() {
    let bench = Bench::new("qwen2");
    let foreign = bench.tampered("foreign", |name, good| good.read_f32(name).unwrap());
    // The graph of a model that differs by a constant of its norms: it takes the same tensors.
    let other = bench.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(bench.model.path().join("model.safetensors"), other.join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(bench.model.path().join("config.json")).unwrap()).unwrap();
    config["rms_norm_eps"] = json!(0.5);
    fs::write(other.join("config.json"), config.to_string()).unwrap();
    export(&ModelDir::open(&other).unwrap(), &other.join("v0"), &ExportOptions::default()).unwrap();
    fs::copy(other.join("v0").join(MODEL_FILE), foreign.dir.join(MODEL_FILE)).unwrap();
    let hash = "model.onnx: is not the graph that the manifest was written for";
    bench.assert_refused("another graph", &foreign, hash);

    reseal(&foreign.dir);
    let refused = |kernels: Kernels, part: &str| {
        let mut engine = bench.open(&bench.v0, |options| options.kernels = kernels).unwrap();
        engine.begin_swap(foreign.clone()).unwrap();
        let reason = wait_swap(&mut engine).unwrap_err().refusal().unwrap();
        assert!(reason.contains(part), "{reason}");
    };
    refused(Kernels::Packed, "its graph is not the one that the packed kernels stand for");
    refused(Kernels::Stock, LOGPROBS);
}

#[test]
fn damaged_constants_are_refused() {
    let bench = Bench::new("smollm3");
    let good = bench.tampered("good", |name, good| good.read_f32(name).unwrap());
    // In the cache, versions are no longer made of them.
    let cached = bench.path().join("cached");
    export(&bench.model, &cached, &ExportOptions::default()).unwrap();
    corrupt(&cached, exporters::ROTARY_COS);
    let values = Checkpoint::open(&bench.model).unwrap();
    let made = |name: &str| {
        let mut read = |name: &str| Ok(values.read_f32(name)?.into());
        write_version(&cached, &bench.path().join(name), PolicyVersion(1), &mut read)
    };
    let error = made("of damaged constants").unwrap_err().to_string();
    assert!(error.contains(exporters::ROTARY_COS) && error.contains("not what was exported"), "{error}");

    // Tables that were wrong from the start have the right hashes, and no norm that the learner knows.
    let manifest = WeightManifest::read(&good.dir).unwrap();
    let table = manifest.tensor(exporters::ROTARY_COS).unwrap();
    let mut data = fs::read(good.dir.join(DATA_FILE)).unwrap();
    data[table.offset as usize..][..table.length as usize / 2].fill(0);
    fs::write(good.dir.join(DATA_FILE), data).unwrap();
    bench.assert_refused("damaged", &good, &format!("bytes that are not those of the manifest: {}", table.name));
    reseal(&good.dir);
    bench.assert_refused("wrong tables", &good, LOGPROBS);
}

#[test]
fn golden_adapters_pass_and_one_that_is_not_merged_does_not() {
    let bench = Bench::new("qwen2");
    let golden = &harness::golden("adapter.json")["cases"][0];
    let parameters = || bench.model.config().parameters();
    let adapter = Adapter::open(&harness::golden_dir_of("adapter.json").join("adapters/qwen2"), parameters()).unwrap();
    let config = AdapterConfig { base_blake3: None, ..adapter.config().clone() };
    let (ids, logprobs) = (&golden["inputs"]["ids"][0], golden["expected"]["logprobs"][0].as_array().unwrap());
    let canaries = Canaries {
        version: PolicyVersion(1),
        dtype: Dtype::Fp32,
        token_ids: ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect(),
        logprobs: logprobs[logprobs.len() - 8..].iter().map(|l| l.as_f64().unwrap()).collect(),
        norms: adapter.tensors().map(|(name, values)| (name, exporters::norm(values))).collect(),
    };
    let publish = |name: &str, of: &dyn Fn(&str, &[f32]) -> Vec<f32>| {
        let dir = bench.path().join(name);
        let mut read = |name: &str| {
            let values = adapter.tensors().find(|(known, _)| known == name).unwrap().1;
            Ok(of(name, values).into())
        };
        write_adapter_version(&bench.v0.dir, &dir, PolicyVersion(1), &config, &mut read).unwrap();
        canaries.write(&dir).unwrap();
        WeightSource { dir, version: PolicyVersion(1) }
    };
    let good = publish("adapter", &|_, values| values.to_vec());
    for (kernels, rollout_dtype, kv_dtype) in MODES {
        let mode = |options: &mut EngineOptions| {
            (options.kernels, options.rollout_dtype, options.kv_dtype) = (kernels, rollout_dtype, kv_dtype);
        };
        let context = format!("{kernels:?} {rollout_dtype} {kv_dtype}");
        bench.take(&mut bench.open(&bench.v0, mode).unwrap(), &good, &context);
        bench.open(&good, mode).unwrap();
    }

    let without =
        |name: &str, values: &[f32]| if name.contains("lora_B") { vec![0.0; values.len()] } else { values.to_vec() };
    let unmerged = publish("unmerged", &without);
    bench.assert_refused("an adapter of nothing", &unmerged, "lora_B");
    let mut unknown = canaries.clone();
    unknown.norms.iter_mut().filter(|(name, _)| name.contains("lora_B")).for_each(|(_, norm)| *norm = 0.0);
    unknown.write(&unmerged.dir).unwrap();
    for kernels in [Kernels::Packed, Kernels::Stock] {
        let reason = bench.open(&unmerged, |options| options.kernels = kernels).err().expect("not merged");
        assert!(reason.contains(LOGPROBS), "{reason}");
    }
    // The base in its place.
    let base = bench.tampered("base", |name, _| VersionDir::open(&bench.v0.dir).unwrap().read_f32(name).unwrap());
    canaries.write(&base.dir).unwrap();
    bench.assert_refused("the base", &base, "by the norms: model.embed_tokens.weight");
    // A base that was damaged behind its adapter.
    corrupt(&bench.v0.dir, DOWN);
    let reason = bench.open(&good, |_| ()).err().expect("a damaged base");
    assert!(reason.contains("its base ") && reason.contains(DOWN), "{reason}");
}

/// Without canaries, as in commands that only generate, the bytes are looked at all the same.
#[test]
fn an_export_without_canaries_must_have_its_own_bytes() {
    let bench = Bench::new("llama");
    fs::remove_file(bench.v0.dir.join("canaries.json")).unwrap();
    bench.open(&bench.v0, |_| ()).unwrap();
    let copy =
        write(&bench.v0, bench.path(), 2, |name| Checkpoint::open(&bench.model).unwrap().read_f32(name).unwrap());
    bench.open(&copy, |_| ()).unwrap();
    corrupt(&copy.dir, DOWN);
    let mode =
        |options: &mut EngineOptions| (options.rollout_dtype, options.kv_dtype) = (RolloutDtype::Int8, KvDtype::Int8);
    let reason = bench.open(&copy, mode).err().expect("damaged");
    assert!(reason.contains(DOWN), "{reason}");
}
