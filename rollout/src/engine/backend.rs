//! What computes logits: the stock graph with an arena of slots, or the packed kernels with pages.

use shared::{Dtype, ModelConfig, WeightManifest};

use super::{
    EngineError, EngineOptions, WeightSource,
    batch::{Batch, DecodeRow},
    kv_cache::{KvCache, KvShape},
    memory::PREFIX_SLOTS,
    packed::{self, PackedBackend, PackedOptions, page_shape},
    profile::Profile,
    session::{GraphSession, SessionOptions, dtype_of},
    swap::{Loaded, Loader},
    types::{Kernels, KvDtype, RolloutDtype},
};

/// A loaded model with the keys and values of its sequences.
pub(super) enum Backend {
    Stock(Box<StockBackend>),
    Packed(Box<PackedBackend>),
}

/// The published graph. Slots `0..max_num_seqs` run; the one after them holds the prompt that samples start from.
pub(super) struct StockBackend {
    session: GraphSession,
    kv: KvCache,
    batch: Batch,
    prefix_slot: usize,
    prefix_len: usize,
}

fn session_options(options: &EngineOptions) -> SessionOptions {
    SessionOptions { device: options.device, threads: options.threads, spinning: options.spinning }
}

impl Backend {
    /// Loads a version and reserves the memory of every slot.
    pub fn open(
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let dtype = dtype_of(manifest);
        let slots = options.max_num_seqs + PREFIX_SLOTS;
        if packed::wanted(options.kernels, options.device, dtype) {
            if packed::supports(source, config, manifest)? {
                let pages = page_shape(config, slots, options.max_model_len, options.kv_dtype.format());
                let format = options.rollout_dtype.format();
                let options = PackedOptions { session: session_options(options), pages, format };
                return Ok(Self::Packed(Box::new(PackedBackend::open(source, config, manifest, options)?)));
            }
            tracing::warn!(
                folder = %source.dir.display(),
                "the packed kernels do not know this graph; the kernels of ONNX Runtime are used"
            );
        }
        for (name, int8) in [
            ("rollout_dtype", options.rollout_dtype == RolloutDtype::Int8),
            ("kv_dtype", options.kv_dtype == KvDtype::Int8),
        ] {
            if int8 {
                let message = format!("{name} int8 needs the packed kernels, which take fp32 exports on the CPU");
                return Err(EngineError::Options(message));
            }
        }
        let shape = KvShape::new(config, dtype, slots, options.max_model_len);
        Ok(Self::Stock(Box::new(StockBackend {
            session: GraphSession::open(source, config, session_options(options))?,
            kv: KvCache::new(shape, options.device)?,
            batch: Batch::default(),
            prefix_slot: options.max_num_seqs,
            prefix_len: 0,
        })))
    }

    /// Element type of the weights.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Stock(stock) => stock.session.dtype(),
            Self::Packed(_) => Dtype::Fp32,
        }
    }

    /// The kernels in use.
    pub fn kernels(&self) -> Kernels {
        match self {
            Self::Stock(_) => Kernels::Stock,
            Self::Packed(_) => Kernels::Packed,
        }
    }

    /// Puts a prompt where samples start from; `logits` (`[vocab]`) receives what follows it.
    pub fn prefill(&mut self, prompt: &[u32], logits: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => {
                stock.batch.set_prefill(prompt);
                stock.prefix_len = prompt.len();
                stock.session.run(&stock.batch, &mut stock.kv, stock.prefix_slot, logits)
            }
            Self::Packed(packed) => packed.prefill(prompt, logits),
        }
    }

    /// What [`Backend::prefill`] left was computed with weights that are no longer in use.
    pub fn forget_prefix(&mut self) {
        if let Self::Packed(packed) = self {
            packed.forget_prefix();
        }
    }

    /// Starts a sequence after that prompt.
    pub fn start(&mut self, slot: usize) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => stock.kv.copy_slot(stock.prefix_slot, slot, stock.prefix_len),
            Self::Packed(packed) => {
                packed.start(slot);
                Ok(())
            }
        }
    }

    /// The sequence of one slot, with `used` positions, is in another one now.
    pub fn moved(&mut self, from: usize, to: usize, used: usize) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => stock.kv.copy_slot(from, to, used),
            Self::Packed(packed) => {
                packed.moved(from, to);
                Ok(())
            }
        }
    }

    /// The sequence of a slot has ended.
    pub fn release(&mut self, slot: usize) {
        if let Self::Packed(packed) = self {
            packed.release(slot);
        }
    }

    /// All sequences have ended.
    pub fn release_all(&mut self) {
        if let Self::Packed(packed) = self {
            packed.release_all();
        }
    }

    /// One more token for each of the slots `0..rows.len()`; `logits` is `[rows, vocab]`.
    pub fn decode(&mut self, rows: &[DecodeRow], logits: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => {
                stock.batch.set_decode(rows.iter().copied());
                stock.session.run(&stock.batch, &mut stock.kv, 0, logits)
            }
            Self::Packed(packed) => packed.decode(rows, logits),
        }
    }

    /// Adds the time of the parts of the graph since the last call, where it is known.
    pub fn add_times(&mut self, profile: &mut Profile) {
        if let Self::Packed(packed) = self {
            let times = packed.take_times();
            profile.linear += times.linear;
            profile.head += times.head;
            profile.attention += times.attention;
        }
    }

    /// What loads another version for this backend on a side thread.
    pub fn loader(&mut self, options: &EngineOptions) -> Loader {
        let session = session_options(options);
        match self {
            Self::Stock(_) => Loader::Stock(session),
            Self::Packed(packed) => Loader::Packed(session, options.rollout_dtype.format(), packed.take_spare()),
        }
    }

    /// Takes a loaded version into use.
    pub fn install(&mut self, loaded: Loaded) {
        match (self, loaded) {
            (Self::Stock(stock), Loaded::Stock(session)) => {
                super::swap::retire(std::mem::replace(&mut stock.session, *session));
            }
            (Self::Packed(packed), Loaded::Packed(weights)) => packed.exchange(weights),
            _ => unreachable!("a version is loaded for the backend that asked for it"),
        }
    }
}
