//! The engine on a CUDA device. These tests run where `TANDEM_TEST_DEVICE` is `cuda` or `tensorrt` and say that they
//! are skipped elsewhere; what a machine without the device reports is tested everywhere.

use std::{
    collections::BTreeMap,
    path::Path,
    process::Command,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use exporters::{Checkpoint, ExportOptions, export, write_version};
use rollout::engine::{Engine, EngineOptions, GroupRequest, Output, Request, WeightSource};
use shared::{ModelDir, PolicyVersion, PromptId, SamplingParams, config::Device};

fn device(test: &str) -> Option<Device> {
    match std::env::var("TANDEM_TEST_DEVICE").as_deref() {
        Ok("cuda") => Some(Device::Cuda),
        Ok("tensorrt") => Some(Device::Tensorrt),
        _ => {
            harness::without_hardware(test, "TANDEM_TEST_DEVICE is neither cuda nor tensorrt");
            None
        }
    }
}

/// While CUDA graphs are recorded, nobody else in the process may use the device.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options(device: Device, max_num_seqs: usize) -> EngineOptions {
    EngineOptions {
        device,
        threads: 2,
        max_num_batched_tokens: 256,
        prefill_batch: if device == Device::Cpu { 1 } else { 8 },
        candidates: if device == Device::Cpu { 0 } else { 8192 },
        hot_swap: true,
        ..EngineOptions::new(max_num_seqs, 96)
    }
}

fn golden_model(name: &str) -> ModelDir {
    ModelDir::open(harness::golden_model_dir(name)).unwrap()
}

fn exported(model: &ModelDir, device: Device, folder: &Path) -> WeightSource {
    let dir = folder.join(format!("{device:?}"));
    export(model, &dir, &ExportOptions { dtype: device.export_dtype(), ..ExportOptions::default() }).unwrap();
    WeightSource { dir, version: PolicyVersion(0) }
}

/// Tokens and log-probs by tag and sample.
type Completions = BTreeMap<(u64, u32), (Vec<u32>, Vec<f32>)>;

/// Greedy completions of ragged lengths.
fn greedy(engine: &mut Engine) -> Completions {
    let sampling = SamplingParams { temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
    for tag in 0..6u64 {
        let prompt: Vec<u32> = (0..3 + 5 * tag as u32).map(|i| 3 + (97 * i + 31 * tag as u32) % 500).collect();
        engine
            .begin(Request::from(GroupRequest {
                tag,
                prompt_id: PromptId(tag),
                epoch: 0,
                prompt_ids: prompt.into(),
                samples: (0..4).collect(),
                sampling: Arc::new(sampling.clone()),
                lengths: Some(Arc::from([24, 5, 17, 9])),
                stop_criterion: None,
                constraint: None,
            }))
            .unwrap();
    }
    let mut finished = BTreeMap::new();
    while !engine.is_idle() {
        for sequence in engine.advance().unwrap().into_iter().filter_map(Output::ended) {
            let logprobs = sequence.logprobs.iter().map(|l| l.logprob).collect();
            finished.insert((sequence.tag, sequence.sample), (sequence.token_ids, logprobs));
        }
    }
    finished
}

/// Half precision shifts logits a little: log-probs must agree closely as long as the tokens do, and a flipped arg-max
/// must stay rare. A wrong position, slot or copy would break nearly every completion.
fn assert_agrees(what: &str, got: &Completions, expected: &Completions) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let (mut tokens, mut equal) = (0, 0);
    for (key, (expected_ids, expected_logprobs)) in expected {
        let (ids, logprobs) = &got[key];
        assert_eq!(ids.len(), expected_ids.len(), "{what} {key:?}");
        tokens += ids.len();
        for t in 0..ids.len() {
            if ids[t] != expected_ids[t] {
                break;
            }
            equal += 1;
            let error = (logprobs[t] - expected_logprobs[t]).abs();
            assert!(error < 0.05, "{what} {key:?}: log-prob of token {t} is off by {error}");
        }
    }
    assert!(equal * 4 >= tokens * 3, "{what}: only {equal} of {tokens} tokens before the first difference");
}

#[test]
fn a_device_agrees_with_the_cpu_whatever_the_batch() {
    let Some(device) = device("a_device_agrees_with_the_cpu_whatever_the_batch") else { return };
    let _alone = alone();
    for name in &harness::golden_models() {
        let model = golden_model(name);
        let folder = tempfile::tempdir().unwrap();
        let on_cpu = exported(&model, Device::Cpu, folder.path());
        let expected = greedy(&mut Engine::new(on_cpu, &model, options(Device::Cpu, 8)).unwrap());
        let weights = exported(&model, device, folder.path());
        for (max_num_seqs, cuda_graphs) in [(1, false), (3, false), (64, false), (3, true), (64, true), (5, true)] {
            let has_states = model.config().has_states();
            if cuda_graphs && (device != Device::Cuda || has_states) {
                continue;
            }
            let mut defaults = options(device, max_num_seqs);
            if has_states {
                defaults.prefill_batch = 1;
            }
            let candidates = if max_num_seqs == 5 { 0 } else { defaults.candidates };
            let options = EngineOptions { cuda_graphs, candidates, ..defaults };
            let mut engine = Engine::new(weights.clone(), &model, options).unwrap();
            let what = format!("{name}, max_num_seqs {max_num_seqs}, CUDA graphs {cuda_graphs}");
            assert_agrees(&what, &greedy(&mut engine), &expected);
            let profile = engine.profile();
            assert_eq!(profile.graph_steps, if cuda_graphs { profile.decode_steps } else { 0 }, "{what}");
        }
    }
}

#[test]
fn a_device_takes_new_weights() {
    let Some(device) = device("a_device_takes_new_weights") else { return };
    let _alone = alone();
    let model = golden_model("qwen2");
    let folder = tempfile::tempdir().unwrap();
    let weights = exported(&model, device, folder.path());
    let checkpoint = Checkpoint::open(&model).unwrap();
    let scaled = WeightSource { dir: folder.path().join("v1"), version: PolicyVersion(1) };
    write_version(&weights.dir, &scaled.dir, scaled.version, &mut |name| {
        let factor = if name == "model.norm.weight" { 2.0 } else { 1.0 };
        Ok(checkpoint.read_f32(name).unwrap().iter().map(|v| v * factor).collect())
    })
    .unwrap();
    let options = EngineOptions { cuda_graphs: device == Device::Cuda, ..options(device, 8) };
    let mut engine = Engine::new(weights, &model, options).unwrap();
    let old = greedy(&mut engine);
    engine.begin_swap(scaled).unwrap();
    // Steps go on beside the loading, those that were recorded as replays.
    assert_agrees("while weights are loaded", &greedy(&mut engine), &old);
    let swapped = loop {
        match engine.try_swap().unwrap() {
            Some(report) => break report,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(swapped.version, PolicyVersion(1));
    let new = greedy(&mut engine);
    // Doubled logits keep the arg-max and sharpen the distribution.
    assert!(new.iter().all(|(key, (_, logprobs))| logprobs[0] > old[key].1[0]));
}

#[test]
fn a_missing_device_is_one_clear_line() {
    let folder = shared::system::native::onnxruntime().unwrap().canonicalize().unwrap();
    if folder.with_file_name("libonnxruntime_providers_cuda.so").exists() {
        harness::without_hardware("a_missing_device_is_one_clear_line", "this ONNX Runtime has the CUDA provider");
        return;
    }
    let model = golden_model("llama");
    let export_folder = tempfile::tempdir().unwrap();
    for (device, library) in [(Device::Cuda, "providers_cuda.so"), (Device::Tensorrt, "providers_tensorrt.so")] {
        let weights = exported(&model, device, export_folder.path());
        let error = Engine::new(weights, &model, options(device, 2)).err().expect("an error").to_string();
        assert!(error.contains(library) && error.contains("cargo xtask setup --cuda"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

/// The note on tests that were skipped without a device must be seen, also where the harness hides the output of
/// passing tests.
#[test]
fn a_skipped_test_says_so() {
    let name = "a_device_takes_new_weights";
    let list = tempfile::NamedTempFile::new().unwrap();
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("engine_device::{name}")])
        .env_remove("TANDEM_TEST_DEVICE")
        .env("TANDEM_SKIPPED_FILE", list.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && said.contains(&format!("SKIPPED {name}: ")), "{said}");
    let listed = std::fs::read_to_string(list.path()).unwrap();
    assert!(listed.starts_with(&format!("SKIPPED {name}: ")) && listed.lines().count() == 1, "{listed}");
}
