//! One version of the weights, loaded: an ONNX Runtime session whose inputs and outputs are bound to the engine's
//! memory.

use std::{ffi::CString, fmt::Debug};

use bytemuck::Pod;
use exporters::{ExportError, VersionDir, onnx::graph_states};
use half::{bf16, f16};
use ort::{
    memory::AllocationDevice,
    session::{RunOptions, Session},
    value::{DynTensor, PrimitiveTensorElementType, Tensor, TensorElementType},
};
use shared::{Dtype, ModelConfig, config::Device, model::manifest::MODEL_FILE};

use super::{
    batch::{Batch, Inputs},
    slots::Slots,
};
use crate::engine::{
    EngineError, WeightSource,
    backend::EachRow,
    binding::{Bindings, TensorMemory},
    device, runtime,
    sequence::DecodeRow,
    session::{SessionOptions, dtype_of, load, loaded, read_manifest},
    storage::FloatMemory,
};

/// A loaded version.
pub(in crate::engine) struct GraphSession {
    session: Session,
    bindings: Bindings,
    /// Of runs that are not recorded.
    plain: RunOptions,
    /// For each plane of the cache, and then for each state, the names of its input and its output.
    caches: Vec<[CString; 2]>,
    wants_positions: bool,
    vocab: usize,
    dtype: Dtype,
    device: Device,
    /// What the cache inputs and outputs are bound to: address of the first slot and number of rows.
    bound: Option<(usize, usize)>,
}

impl GraphSession {
    /// Loads `model.onnx` of a folder; its weights are mapped, and packed where the device's kernels want that.
    pub fn open(source: &WeightSource, config: &ModelConfig, options: SessionOptions) -> Result<Self, EngineError> {
        let manifest = read_manifest(source, config)?;
        let path = manifest.export_dir(&source.dir).join(MODEL_FILE);
        let doing = format!("cannot load {}", path.display());
        device::require(options.device)?;
        runtime::environment()?;
        let (weights, merged) = match manifest.adapter {
            None => (Some(manifest.data_blake3.as_str()), Vec::new()),
            Some(_) => (None, merged(source)?),
        };
        let session = load(&path, options, weights, merged).map_err(EngineError::runtime(&doing))?;
        let device = if options.device == Device::Cpu { AllocationDevice::CPU } else { AllocationDevice::CUDA };
        let bindings = Bindings::new(&session, device).map_err(EngineError::runtime(&doing))?;
        let plain = run_options(None).map_err(EngineError::runtime(&doing))?;
        let wants_positions = session.inputs().iter().any(|input| input.name() == "position_ids");
        let name = |name: String| CString::new(name).expect("names of the graph hold no zero byte");
        let of_planes = config.caching_layers().flat_map(|(layer, _)| {
            ["key", "value"].map(|kind| ["past_key_values", "present"].map(|side| format!("{side}.{layer}.{kind}")))
        });
        let of_states = graph_states(config).into_iter().map(|state| [state.past, state.present]);
        let caches: Vec<_> = of_planes.chain(of_states).map(|names| names.map(name)).collect();
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

    /// Runs the batch on the slots `first_slot..first_slot + rows`: keys, values and states are written in place, and
    /// `logits` (`[rows, vocab]`) receives the row of each sequence's last token. With [`run_options`] of a CUDA
    /// `graph`, the run is recorded, or replays what was recorded: over the memory it was recorded with, which must be
    /// the same and alive.
    pub fn run(
        &mut self,
        inputs: &Inputs<'_>,
        memory: &mut Slots,
        first_slot: usize,
        logits: FloatMemory<'_>,
        graph: Option<&RunOptions>,
    ) -> Result<(), EngineError> {
        assert_eq!(logits.len(), inputs.rows * self.vocab, "one row of logits for each row of the batch");
        memory.settle()?;
        self.bind(inputs, memory, first_slot, logits)
            .map_err(EngineError::runtime("cannot bind the graph's inputs"))?;
        // SAFETY: the inputs and the logits are borrowed for the whole call; the slots are borrowed too, and a stale
        // binding of earlier ones is noticed by its address and replaced in `bind`. What a replay works on instead
        // is the same memory, as the caller promises.
        unsafe { self.bindings.run(&mut self.session, Some(graph.unwrap_or(&self.plain))) }
    }

    fn bind(
        &mut self,
        inputs: &Inputs<'_>,
        memory: &mut Slots,
        first_slot: usize,
        logits: FloatMemory<'_>,
    ) -> ort::Result<()> {
        let tokens: &[usize] = &[inputs.rows, inputs.width];
        let rows = &tokens[..1];
        let longest = std::ptr::from_ref(inputs.total_sequence_length).cast_mut().cast();
        let (wide, narrow) = (TensorElementType::Int64, TensorElementType::Int32);
        let integers = [
            (c"input_ids", inputs.input_ids, tokens, wide, inputs.on_device),
            (c"seqlens_k", inputs.seqlens_k, rows, narrow, inputs.on_device),
            (c"total_sequence_length", longest, &[], narrow, false),
            (c"last_index", inputs.last_index, rows, wide, inputs.on_device),
            (c"position_ids", inputs.position_ids, tokens, wide, inputs.on_device),
        ];
        for (name, data, shape, element, on_device) in integers {
            if name == c"position_ids" && !self.wants_positions {
                continue;
            }
            // SAFETY: the inputs are borrowed until `run` returns; they are only read.
            unsafe { self.bindings.bind_input(name, &TensorMemory::new(data, shape, element, on_device))? };
        }
        // SAFETY: the logits are exclusively borrowed until `run` returns, and bound anew at the next call.
        unsafe { self.bindings.bind_output(c"logits", &logits.tensor(&[inputs.rows, self.vocab]))? };
        self.bind_caches(memory, first_slot, inputs.rows)
    }

    fn bind_caches(&mut self, slots: &mut Slots, first_slot: usize, rows: usize) -> ort::Result<()> {
        let target = Some((slots.address(first_slot), rows));
        if self.bound == target {
            return Ok(());
        }
        self.bound = None;
        let memory = slots.slices(first_slot, rows);
        for ([past, present], memory) in self.caches.iter().zip(&memory) {
            // SAFETY: the slots are exclusively borrowed until `run` returns. The operators work in place when past and
            // present are the same memory.
            unsafe {
                self.bindings.bind_input(past, memory)?;
                self.bindings.bind_output(present, memory)?;
            }
        }
        self.bound = target;
        Ok(())
    }

    /// Gives `each` the logits (`[vocab]`) of the positions before each of the last `scored` of some tokens, in a
    /// slot of their own.
    pub fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        let mut slots = Slots::new(config, self.dtype, 1, tokens.len(), self.device)?;
        let mut batch = Batch::default();
        let mut logits = vec![f32::NAN; self.vocab];
        let prompt = tokens.len() - scored;
        let begin = std::iter::once(config.rotary_begin(tokens.len()));
        batch.set_prefill([&tokens[..prompt]].into_iter());
        batch.turn_from(begin.clone());
        let scored = (prompt..tokens.len()).try_for_each(|next| {
            self.run(&batch.inputs(), &mut slots, 0, FloatMemory::new(&mut logits), None)?;
            each(&logits);
            batch.set_decode([DecodeRow { token: tokens[next], position: next }].into_iter());
            batch.turn_from(begin.clone());
            Ok(())
        });
        self.bound = None;
        scored
    }
}

/// What an adapter makes of the tensors of its base. They lie beside the mapped file as long as the session lives.
fn merged(source: &WeightSource) -> Result<Vec<(String, DynTensor)>, EngineError> {
    let unusable =
        |e: ExportError| EngineError::Weights { path: source.dir.display().to_string(), message: e.to_string() };
    let version = VersionDir::open(&source.dir).map_err(unusable)?;
    let tensors = version.merged().map(|merged| {
        let (entry, bytes) = merged.map_err(unusable)?;
        let tensor = match entry.dtype {
            Dtype::Fp32 => tensor::<f32>(&entry.shape, &bytes),
            Dtype::Fp16 => tensor::<f16>(&entry.shape, &bytes),
            Dtype::Bf16 => tensor::<bf16>(&entry.shape, &bytes),
        };
        Ok((entry.name.clone(), tensor.map_err(EngineError::runtime("cannot pass on a merged tensor"))?))
    });
    tensors.collect()
}

fn tensor<T: PrimitiveTensorElementType + Pod + Debug>(shape: &[u64], bytes: &[u8]) -> ort::Result<DynTensor> {
    let shape: Vec<i64> = shape.iter().map(|&n| n as i64).collect();
    let values: Vec<T> = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
    Ok(Tensor::from_array((shape, values))?.upcast())
}

/// Options of a run that is recorded as a CUDA graph under an id, which is not 0 (that is ONNX Runtime's own), or not
/// recorded. Without CUDA graphs they change nothing.
pub(in crate::engine) fn run_options(graph: Option<u32>) -> ort::Result<RunOptions> {
    loaded()?;
    let mut options = RunOptions::new()?;
    options.set("gpu_graph_id", graph.map_or("-1".into(), |id| id.to_string()))?;
    Ok(options)
}
