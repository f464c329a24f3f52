//! What only a device needs. No GPU has judged these paths yet, so each stands in a folder or file of its own and is
//! off unless an option asks for it: `candidates` (logits stay on the device), `captured` (decode steps as CUDA
//! graphs), [`tensorrt`] (what that provider is set to). [`cuda`] is the memory of the device.
//!
//! To drop one, delete its folder and the field of [`DeviceBackend`] that holds it.

mod candidates;
mod captured;
pub(super) mod cuda;
pub(super) mod tensorrt;

use ndarray::ArrayViewMut2;
use shared::{ModelConfig, WeightManifest, config::Device, native::ONNXRUNTIME_VARIABLE};

use self::{candidates::Candidates, captured::CapturedSteps};
use super::{
    EngineError, EngineOptions, WeightSource,
    backend::{Abilities, Backend, Cost, EachRow, Prompts, draw_on_host},
    draft::Drafts,
    runtime::library_path,
    sequence::{DecodeRow, Sequence},
    session::SessionOptions,
    stock::StockBackend,
    storage::FloatMemory,
    swap::LoadJob,
};
use crate::sampling::SamplingThreads;

/// Checks that the ONNX Runtime at hand was built for the device, and loads what its provider needs, before ONNX
/// Runtime complains less clearly.
///
/// # Errors
/// When the provider library or one that it links is missing.
pub(super) fn require(device: Device) -> Result<(), EngineError> {
    if device == Device::Cpu {
        return Ok(());
    }
    let provider = format!("libonnxruntime_providers_{device}.so");
    let library = library_path()?;
    let library = library.canonicalize().unwrap_or(library);
    if library.with_file_name(&provider).is_file() {
        return cuda::load_libraries(device);
    }
    Err(EngineError::Library(format!(
        "device {device} needs {provider} beside {}; run `cargo xtask setup --cuda`, or let {ONNXRUNTIME_VARIABLE} \
         name the library of an onnxruntime-gpu package",
        library.display()
    )))
}

/// The published graph, with decode steps that leave something on the device.
pub(super) struct DeviceBackend {
    stock: StockBackend,
    /// With it, the logits of decode steps stay where they are computed.
    candidates: Option<Candidates>,
    /// With CUDA graphs.
    captured: Option<CapturedSteps>,
}

/// Whether these options ask for any of it.
pub(super) fn wanted(options: &EngineOptions) -> bool {
    options.candidates > 0 || options.cuda_graphs
}

impl DeviceBackend {
    pub fn new(stock: StockBackend, config: &ModelConfig, options: &EngineOptions) -> Result<Self, EngineError> {
        let EngineOptions { max_num_seqs, max_model_len, device, .. } = *options;
        let candidates = match options.candidates {
            0 => None,
            limit => Candidates::new(max_num_seqs, config.vocab_size, limit, SessionOptions::of(options))?,
        };
        let captured = options
            .cuda_graphs
            .then(|| CapturedSteps::new(max_num_seqs, max_model_len, config.vocab_size, candidates.is_none(), device))
            .transpose()?;
        Ok(Self { stock, candidates, captured })
    }
}

impl Backend for DeviceBackend {
    fn abilities(&self) -> Abilities {
        self.stock.abilities()
    }

    fn prefill(&mut self, prompts: Prompts<'_>, logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError> {
        self.stock.prefill(prompts, logits)
    }

    fn start(&mut self, slot: usize, prompt: usize) -> Result<(), EngineError> {
        self.stock.start(slot, prompt)
    }

    fn moved(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError> {
        self.stock.moved(from, to, used)
    }

    /// `logits` stays as it is where there are [`Candidates`].
    fn decode(&mut self, rows: &[DecodeRow], _: &Drafts, logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError> {
        let may_record = !self.stock.is_loading();
        if let Some(captured) = self.captured.as_mut().filter(|steps| steps.takes(rows.len(), may_record)) {
            self.stock.batch.set_decode(rows.iter().copied());
            captured.run(&mut self.stock, self.candidates.as_mut(), logits)?;
            return Ok(Cost { captured: true, ..self.stock.cost() });
        }
        match &mut self.candidates {
            Some(candidates) => self.stock.decode_to(rows, candidates.logits(rows.len())?),
            None => self.stock.decode_to(rows, FloatMemory::of(logits)),
        }
    }

    fn draw(
        &mut self,
        slots: &mut [Option<Sequence>],
        row_of: &(dyn Fn(usize) -> Option<usize> + Sync),
        logits: ArrayViewMut2<'_, f32>,
        threads: &mut SamplingThreads,
    ) -> Result<usize, EngineError> {
        match &mut self.candidates {
            Some(candidates) => candidates.draw(slots, logits, threads),
            None => Ok(draw_on_host(slots, row_of, logits.view(), threads)),
        }
    }

    fn release(&mut self, slot: usize) {
        self.stock.release(slot);
    }

    fn kv_bytes_in_use(&self) -> u64 {
        self.stock.kv_bytes_in_use()
    }

    fn score(
        &mut self,
        config: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        self.stock.score(config, tokens, scored, each)
    }

    fn load(&mut self, source: WeightSource, config: ModelConfig, manifest: WeightManifest) -> LoadJob {
        self.stock.load(source, config, manifest)
    }

    fn install(&mut self) {
        match &mut self.captured {
            None => self.stock.install(),
            // Freeing the old version on another thread would break off what this one records next.
            Some(captured) => {
                captured.forget();
                drop(self.stock.exchange());
            }
        }
    }
}
