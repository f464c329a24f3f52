//! One version of the weights, loaded: an ONNX Runtime session whose inputs and outputs are bound to the engine's memory.

use std::{
    ffi::{CString, c_void},
    path::Path,
    sync::{Mutex, PoisonError},
};

use ort::{
    environment::Environment,
    ep,
    memory::AllocationDevice,
    session::{
        RunOptions, Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::TensorElementType,
};
use shared::{
    Head, ModelConfig, WeightManifest,
    config::Device,
    manifest::{Dtype, MODEL_FILE},
};

use super::{
    EngineError, WeightSource,
    batch::{Batch, Inputs},
    binding::{Bindings, TensorMemory},
    kv_cache::{KvCache, KvShape, Plane},
    logits::Floats,
    placement::{Placement, RECORD},
    runtime, tensorrt,
};

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
    /// Whether runs may be recorded as CUDA graphs; only those are that have [`run_options`] with an id.
    pub cuda_graphs: bool,
}

/// Names of the values of one layer's cache in the graph.
struct LayerNames {
    past: CString,
    present: CString,
    plane: Plane,
}

/// A loaded version.
pub(super) struct GraphSession {
    session: Session,
    bindings: Bindings,
    /// Of runs that are not recorded.
    plain: RunOptions,
    caches: Vec<LayerNames>,
    wants_positions: bool,
    vocab: usize,
    dtype: Dtype,
    device: Device,
    /// What the cache inputs and outputs are bound to: address of the first slot and number of rows.
    bound: Option<(*mut c_void, usize)>,
}

// SAFETY: `bound` is compared, never dereferenced; session, bindings and options may be moved between threads.
unsafe impl Send for GraphSession {}

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

impl GraphSession {
    /// Loads `model.onnx` of a folder; its weights are mapped, and packed where the device's kernels want that.
    pub fn open(source: &WeightSource, config: &ModelConfig, options: SessionOptions) -> Result<Self, EngineError> {
        let manifest = read_manifest(source, config)?;
        let path = source.dir.join(MODEL_FILE);
        let doing = format!("cannot load {}", path.display());
        runtime::require_device(options.device)?;
        runtime::environment()?;
        let session = load(&path, options, Some(&manifest.data_blake3)).map_err(EngineError::runtime(&doing))?;
        if options.device != Device::Cpu {
            match Placement::of(&session) {
                Ok(placement) => tracing::info!("{}: {placement}", path.display()),
                Err(error) => tracing::debug!(%error, "ONNX Runtime does not say where its nodes are"),
            }
        }
        let device = if options.device == Device::Cpu { AllocationDevice::CPU } else { AllocationDevice::CUDA };
        let bindings = Bindings::new(&session, device).map_err(EngineError::runtime(&doing))?;
        let plain = run_options(None).map_err(EngineError::runtime(&doing))?;
        let wants_positions = session.inputs().iter().any(|input| input.name() == "position_ids");
        let name = |text: String| CString::new(text).expect("names of the graph hold no zero byte");
        let caches = (0..config.num_hidden_layers)
            .flat_map(|i| [("key", Plane::Key(i), i), ("value", Plane::Value(i), i)])
            .map(|(kind, plane, i)| LayerNames {
                past: name(format!("past_key_values.{i}.{kind}")),
                present: name(format!("present.{i}.{kind}")),
                plane,
            })
            .collect();
        let dtype = dtype_of(&manifest);
        Ok(Self {
            session,
            bindings,
            plain,
            caches,
            wants_positions,
            vocab: config.vocab_size,
            dtype,
            device: options.device,
            bound: None,
        })
    }

    /// Runs the batch on the slots `first_slot..first_slot + rows`: the cache is extended in place, and `logits`
    /// (`[rows, vocab]`) receives the row of each sequence's last token. With [`run_options`] of a CUDA `graph`, the run is
    /// recorded, or replays what was recorded: over the memory it was recorded with, which must be the same and alive.
    pub fn run(
        &mut self,
        inputs: &Inputs<'_>,
        kv: &mut KvCache,
        first_slot: usize,
        logits: Floats<'_>,
        graph: Option<&RunOptions>,
    ) -> Result<(), EngineError> {
        assert_eq!(logits.len(), inputs.rows * self.vocab, "one row of logits for each row of the batch");
        kv.settle()?;
        self.bind(inputs, kv, first_slot, logits).map_err(EngineError::runtime("cannot bind the graph's inputs"))?;
        // SAFETY: the inputs and the logits are borrowed for the whole call; the cache is borrowed too, and a stale
        // binding of an earlier cache is noticed by its address and replaced in `bind`. What a replay works on instead is
        // the same memory, as the caller promises.
        unsafe { self.bindings.run(&mut self.session, Some(graph.unwrap_or(&self.plain))) }
    }

    fn bind(
        &mut self,
        inputs: &Inputs<'_>,
        kv: &mut KvCache,
        first_slot: usize,
        logits: Floats<'_>,
    ) -> ort::Result<()> {
        let tokens: &[i64] = &[inputs.rows as i64, inputs.width as i64];
        let rows = &tokens[..1];
        let longest = std::ptr::from_ref(inputs.total_sequence_length).cast_mut().cast();
        let (wide, narrow) = ((TensorElementType::Int64, 8), (TensorElementType::Int32, 4));
        let integers = [
            (c"input_ids", inputs.input_ids, tokens, wide, inputs.on_device),
            (c"seqlens_k", inputs.seqlens_k, rows, narrow, inputs.on_device),
            (c"total_sequence_length", longest, &[], narrow, false),
            (c"last_index", inputs.last_index, rows, wide, inputs.on_device),
            (c"position_ids", inputs.position_ids, tokens, wide, inputs.on_device),
        ];
        for (name, data, shape, (element, size), on_device) in integers {
            if name == c"position_ids" && !self.wants_positions {
                continue;
            }
            let bytes = shape.iter().product::<i64>() as usize * size;
            // SAFETY: the inputs are borrowed until `run` returns; they are only read.
            unsafe { self.bindings.bind_input(name, TensorMemory { data, bytes, shape, element, on_device })? };
        }
        // SAFETY: the logits are exclusively borrowed until `run` returns, and bound anew at the next call.
        unsafe { self.bindings.bind_output(c"logits", logits.tensor(&[rows[0], self.vocab as i64]))? };
        self.bind_caches(kv, first_slot, inputs.rows)
    }

    fn bind_caches(&mut self, kv: &mut KvCache, first_slot: usize, rows: usize) -> ort::Result<()> {
        let target = Some((kv.slice(Plane::Key(0), first_slot, rows).data, rows));
        if self.bound == target {
            return Ok(());
        }
        self.bound = None;
        for cache in &self.caches {
            let slice = kv.slice(cache.plane, first_slot, rows);
            let memory = TensorMemory {
                data: slice.data,
                bytes: slice.bytes,
                shape: &slice.shape,
                element: slice.element,
                on_device: slice.on_device,
            };
            // SAFETY: the cache is exclusively borrowed until `run` returns. GroupQueryAttention works in place when
            // past and present are the same memory.
            unsafe {
                self.bindings.bind_input(&cache.past, memory)?;
                self.bindings.bind_output(&cache.present, memory)?;
            }
        }
        self.bound = target;
        Ok(())
    }

    /// Runs a short fixed prompt on memory of its own; fails unless every logit is finite.
    pub fn probe(&mut self, config: &ModelConfig) -> Result<(), EngineError> {
        const PROBE_TOKENS: u32 = 8;
        let prompt: Vec<u32> = (0..PROBE_TOKENS).map(|t| t % config.vocab_size as u32).collect();
        let mut kv = KvCache::new(KvShape::new(config, self.dtype, 1, prompt.len()), self.device)?;
        let mut batch = Batch::default();
        batch.set_prefill([prompt.as_slice()].into_iter());
        let mut logits = vec![f32::NAN; self.vocab];
        let result = self.run(&batch.inputs(), &mut kv, 0, Floats::new(&mut logits), None);
        self.bound = None;
        result?;
        require_finite(&logits)
    }

    /// Element type of weights, activations and cache.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }
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

/// Options of a run that is recorded as a CUDA graph under an id, which is not 0 (that is ONNX Runtime's own), or not
/// recorded. Without CUDA graphs they change nothing.
pub(super) fn run_options(graph: Option<u32>) -> ort::Result<RunOptions> {
    loaded()?;
    let mut options = RunOptions::new()?;
    options.set("gpu_graph_id", graph.map_or("-1".into(), |id| id.to_string()))?;
    Ok(options)
}

/// A session for a graph; `weights` is the hash of what it was exported from, if it is known.
pub(crate) fn load(path: &Path, options: SessionOptions, weights: Option<&str>) -> ort::Result<Session> {
    let builder = builder(options)?;
    let mut builder = match options.device {
        Device::Cpu => builder,
        Device::Cuda => {
            let provider = cuda().with_cuda_graph(options.cuda_graphs).build().error_on_failure();
            builder.with_config_entry(RECORD, "1")?.with_execution_providers([provider])?
        }
        Device::Tensorrt => {
            let tensorrt = tensorrt::provider(weights.filter(|_| !options.hot_swap))
                .map_err(|e| ort::Error::new(e.to_string()))?;
            builder
                .with_config_entry(RECORD, "1")?
                .with_execution_providers([tensorrt, cuda().build().error_on_failure()])?
        }
    };
    alone(|| builder.commit_from_file(path))
}

/// A session for a small graph in memory, beside one for a model. On devices, CUDA runs it: TensorRT would take longer to
/// build it than it ever runs.
pub(super) fn load_small(graph: &[u8], options: SessionOptions) -> ort::Result<Session> {
    let builder = builder(options)?;
    let mut builder = match options.device {
        Device::Cpu => builder,
        Device::Cuda | Device::Tensorrt => builder.with_execution_providers([cuda().build().error_on_failure()])?,
    };
    alone(|| builder.commit_from_memory(graph))
}

static BEING_MADE: Mutex<()> = Mutex::new(());

/// Makes a session while no other is made. ONNX Runtime looks for the domain of a session's operators in a table of the
/// process and enters it there if it is new, both without a lock (microsoft/onnxruntime#26366): of two threads that make
/// the first sessions with packed operators, or with TensorRT, one can fail.
pub(super) fn alone(make: impl FnOnce() -> ort::Result<Session>) -> ort::Result<Session> {
    let _made = BEING_MADE.lock().unwrap_or_else(PoisonError::into_inner);
    make()
}

fn cuda() -> ep::CUDA {
    ep::CUDA::default().with_device_id(0).with_tf32(false)
}

/// ONNX Runtime, of which nothing may be used before.
fn loaded() -> ort::Result<&'static Environment> {
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
    use shared::{
        ModelDir, PolicyVersion,
        config::{KvDtype, RolloutDtype},
    };

    use super::*;
    use crate::engine::{Engine, EngineOptions, Kernels};

    #[test]
    fn sessions_are_made_one_after_the_other() {
        let model = ModelDir::open(::tests::golden_dir().join("models/qwen2")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let weights = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
        export(&model, &weights.dir, &ExportOptions::default()).unwrap();
        for kernels in [Kernels::Packed, Kernels::Stock] {
            let options = EngineOptions {
                device: Device::Cpu,
                kernels,
                rollout_dtype: RolloutDtype::Auto,
                kv_dtype: KvDtype::Auto,
                threads: 1,
                max_num_seqs: 1,
                max_num_batched_tokens: 16,
                speculative_tokens: 0,
                prefill_batch: 1,
                max_model_len: 32,
                candidates: 0,
                cuda_graphs: false,
                spinning: false,
                hot_swap: false,
            };
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
