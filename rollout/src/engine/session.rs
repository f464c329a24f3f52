//! How sessions of ONNX Runtime are made, whatever they compute.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use ort::{
    environment::Environment,
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::DynTensor,
};
use shared::{Dtype, Head, ModelConfig, WeightManifest, config::Device};

use super::{EngineError, EngineOptions, WeightSource, device::providers, runtime};

/// How long an idle thread of the graph spins before it sleeps. That covers the gap from one operator to the next;
/// ONNX Runtime's own duration is longer by far and makes a step several times slower as soon as another process wants
/// the cores.
const SPIN_MICROSECONDS: &str = "100";

/// How sessions are made; the same for every version of an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionOptions {
    pub device: Device,
    pub threads: usize,
    pub spinning: bool,
    /// Whether other weights will follow; what a device compiles for these is then not kept.
    pub hot_swap: bool,
    /// Whether runs may be recorded as CUDA graphs; only those are whose options name one.
    pub cuda_graphs: bool,
}

impl SessionOptions {
    /// Those of an engine.
    pub fn of(options: &EngineOptions) -> Self {
        let EngineOptions { device, threads, spinning, hot_swap, cuda_graphs, .. } = *options;
        Self { device, threads, spinning, hot_swap, cuda_graphs }
    }
}

/// Checks that a folder of weights belongs to the model and reads its manifest.
pub(super) fn read_manifest(source: &WeightSource, config: &ModelConfig) -> Result<WeightManifest, EngineError> {
    let manifest = WeightManifest::read(&source.dir)?;
    let refuse = |message: &str| {
        Err(EngineError::Weights { path: source.dir.display().to_string(), message: message.to_owned() })
    };
    if config.head != Head::LanguageModel {
        return refuse("is a reward model, which generates nothing; it can be a reward function, `model:path=DIR`");
    }
    if !manifest.is_of(config) {
        return refuse("the parameters are not those of the model's config.json");
    }
    Ok(manifest)
}

/// Element type of weights, activations and cache.
pub(super) fn dtype_of(manifest: &WeightManifest) -> Dtype {
    manifest.tensors.first().map_or(Dtype::Fp32, |t| t.dtype)
}

/// Passes the logits of a probe if all are finite.
pub(super) fn require_finite(logits: &[f32]) -> Result<(), EngineError> {
    if logits.iter().all(|l| l.is_finite()) {
        return Ok(());
    }
    Err(EngineError::Runtime {
        doing: "the probe of the weights failed".into(),
        message: "the logits of a fixed prompt are not finite".into(),
    })
}

/// A session for a graph; `weights` is the hash of what it was exported from, if it is known, and `merged` are the
/// tensors that it has in place of those of the export.
pub(crate) fn load(
    path: &Path,
    options: SessionOptions,
    weights: Option<&str>,
    merged: Vec<(String, DynTensor)>,
) -> ort::Result<Session> {
    let mut builder = builder(options)?.with_execution_providers(providers::for_model(options, weights)?)?;
    for (name, tensor) in merged {
        builder = builder.with_external_initializer(name, tensor.into_dyn())?;
    }
    alone(|| builder.commit_from_file(path))
}

/// A session for a small graph in memory, beside one for a model.
pub(super) fn load_small(graph: &[u8], options: SessionOptions) -> ort::Result<Session> {
    let mut builder = builder(options)?.with_execution_providers(providers::for_small_graph(options.device))?;
    alone(|| builder.commit_from_memory(graph))
}

static BEING_MADE: Mutex<()> = Mutex::new(());

/// Makes a session while no other is made. ONNX Runtime looks for the domain of a session's operators in a table of the
/// process and enters it there if it is new, both without a lock (microsoft/onnxruntime#26366): of two threads that
/// make the first sessions with packed operators, or with TensorRT, one can fail.
pub(super) fn alone(make: impl FnOnce() -> ort::Result<Session>) -> ort::Result<Session> {
    let _made = BEING_MADE.lock().unwrap_or_else(PoisonError::into_inner);
    make()
}

/// ONNX Runtime, of which nothing may be used before.
pub(super) fn loaded() -> ort::Result<&'static Environment> {
    runtime::environment().map_err(|e| ort::Error::new(e.to_string()))
}

/// What sessions of every kind have in common.
pub(super) fn builder(options: SessionOptions) -> ort::Result<SessionBuilder> {
    Ok(Session::builder(loaded()?)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(options.threads)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(options.spinning)?
        .with_config_entry("session.intra_op.spin_duration_us", SPIN_MICROSECONDS)?
        // Shapes change from call to call: plans of memory by shape would only pile up.
        .with_memory_pattern(false)?)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use exporters::{ExportOptions, export};
    use shared::{ModelDir, PolicyVersion};

    use super::*;
    use crate::engine::{Engine, EngineOptions, Kernels};

    #[test]
    fn sessions_are_made_one_after_the_other() {
        let model = ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let weights = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
        export(&model, &weights.dir, &ExportOptions::default()).unwrap();
        for kernels in [Kernels::Packed, Kernels::Stock] {
            let options = EngineOptions { kernels, max_num_batched_tokens: 16, ..EngineOptions::new(1, 32) };
            let (made, is_made) = mpsc::channel();
            let being_made = BEING_MADE.lock().unwrap();
            thread::scope(|scope| {
                let (weights, model) = (&weights, &model);
                scope.spawn(move || made.send(Engine::new(weights.clone(), model, options).map(drop)));
                let early = is_made.recv_timeout(Duration::from_millis(300));
                assert!(early.is_err(), "{kernels:?}: made beside another");
                drop(being_made);
                is_made.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
            });
        }
    }
}
