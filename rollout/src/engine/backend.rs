//! What computes logits: the stock graph with an arena of slots, or the packed kernels with pages.

use std::fmt::Display;

use rollout_kernels::{
    packed::Format,
    simd::{Isa, MAX_BYTE_PRODUCTS},
};
use shared::{
    Dtype, ModelConfig, WeightManifest,
    config::{KvDtype, RolloutDtype},
};

use super::{
    EngineError, EngineOptions, WeightSource,
    batch::{Batch, DecodeRow, Drafts},
    candidates::Candidates,
    captured::CapturedSteps,
    kv_cache::{KvCache, KvShape},
    logits::Floats,
    packed::{self, PackedBackend, PackedOptions, page_shape},
    profile::Profile,
    scheduler::PrefillLimits,
    session::{GraphSession, SessionOptions, dtype_of},
    swap::{Loaded, Loader, Retired},
    types::Kernels,
};

/// A loaded model with the keys and values of its sequences.
pub(super) enum Backend {
    Stock(Box<StockBackend>),
    Packed(Box<PackedBackend>),
}

/// The published graph. Slots `0..max_num_seqs` run; those after them hold the prompts that samples start from.
pub(super) struct StockBackend {
    session: GraphSession,
    retired: Retired,
    kv: KvCache,
    batch: Batch,
    first_prefix_slot: usize,
    prefix_lens: Vec<usize>,
    /// With it, the logits of decode steps stay where they are computed.
    candidates: Option<Candidates>,
    /// With CUDA graphs.
    captured: Option<CapturedSteps>,
}

impl StockBackend {
    /// See [`Backend::decode`].
    fn decode(&mut self, rows: &[DecodeRow], loading: bool, logits: &mut [f32]) -> Result<(), EngineError> {
        let Self { session, kv, batch, candidates, captured, .. } = self;
        batch.set_decode(rows.iter().copied());
        if let Some(captured) = captured.as_mut().filter(|steps| steps.takes(rows.len(), !loading)) {
            return captured.run(session, batch, kv, candidates.as_mut(), logits);
        }
        let logits = match candidates {
            Some(candidates) => candidates.logits(rows.len())?,
            None => Floats::new(logits),
        };
        session.run(&batch.inputs(), kv, 0, logits, None)
    }
}

/// Short prompts are computed together: products of few rows are slow, and the weights are read once for all. From some
/// hundred rows on there is nothing to gain, and activations would leave the caches. Nothing is padded.
pub(super) const PACKED_PREFILL: PrefillLimits = PrefillLimits { prompts: 8, together: 256, padded: false };

/// The packed kernels batch prompts by themselves, and their logits are in main memory.
fn refuse_stock_options(options: &EngineOptions) -> Result<(), EngineError> {
    let refused = [
        ("candidates", options.candidates > 0),
        ("prefill_batch above 1", options.prefill_batch > 1),
        ("cuda_graphs", options.cuda_graphs),
    ];
    match refused.iter().find(|(_, on)| *on) {
        None => Ok(()),
        Some((name, _)) => Err(EngineError::Options(format!("{name} needs the stock kernels (--kernels stock)"))),
    }
}

/// Logs which choices may be slower than others on this processor.
fn remark_on_speed(isa: Isa, format: Format, kv_dtype: KvDtype) {
    if isa.is_plain() {
        tracing::warn!(
            "this processor has none of the instruction sets of the packed kernels (AVX2 with FMA, AVX-512, NEON): --kernels \
             stock (`rollout_kernels`) should be faster"
        );
        return;
    }
    if (format == Format::Int8 || kv_dtype == KvDtype::Int8) && !isa.has_byte_products() {
        tracing::warn!("this processor has no VNNI: int8 saves memory, and may not be faster than fp32");
    }
    if matches!(format, Format::Bf16 | Format::Bf16x3) && !isa.has_tiles() {
        tracing::warn!(
            "this processor has no AMX: bf16 saves memory, and neither it nor bf16x3 need be faster than fp32"
        );
    }
}

fn needs_packed(option: &str, dtype: impl Display) -> EngineError {
    EngineError::Options(format!("{option} {dtype} needs the packed kernels, which take fp32 exports on the CPU"))
}

fn session_options(options: &EngineOptions) -> SessionOptions {
    let EngineOptions { device, threads, spinning, hot_swap, cuda_graphs, .. } = *options;
    SessionOptions { device, threads, spinning, hot_swap, cuda_graphs }
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
        let slots = options.slots();
        if packed::wanted(options.kernels, options.device, dtype) {
            if packed::supports(source, config, manifest)? {
                refuse_stock_options(options)?;
                if options.kv_dtype == KvDtype::Int8 && options.max_model_len > MAX_BYTE_PRODUCTS {
                    let message =
                        format!("kv_dtype int8 takes a max_model_len of at most {MAX_BYTE_PRODUCTS}; auto takes more");
                    return Err(EngineError::Options(message));
                }
                let pages = page_shape(config, slots, options.max_model_len, options.kv_format());
                let format = options.format();
                remark_on_speed(Isa::detect(), format, options.kv_dtype);
                let options = PackedOptions { session: session_options(options), pages, format };
                return Ok(Self::Packed(Box::new(PackedBackend::open(source, config, manifest, options)?)));
            }
            tracing::warn!(
                folder = %source.dir.display(),
                "the packed kernels do not know this graph; the kernels of ONNX Runtime are used"
            );
        }
        if options.rollout_dtype != RolloutDtype::Auto {
            return Err(needs_packed("rollout_dtype", options.rollout_dtype));
        }
        if options.kv_dtype != KvDtype::Auto {
            return Err(needs_packed("kv_dtype", options.kv_dtype));
        }
        let shape = KvShape::new(config, dtype, slots, options.max_model_len);
        let EngineOptions { max_num_seqs, max_model_len, device, .. } = *options;
        let candidates = match options.candidates {
            0 => None,
            limit => Candidates::new(max_num_seqs, config.vocab_size, limit, session_options(options))?,
        };
        let captured = options
            .cuda_graphs
            .then(|| CapturedSteps::new(max_num_seqs, max_model_len, config.vocab_size, candidates.is_none(), device))
            .transpose()?;
        Ok(Self::Stock(Box::new(StockBackend {
            session: GraphSession::open(source, config, session_options(options))?,
            retired: Retired::default(),
            kv: KvCache::new(shape, device)?,
            batch: Batch::default(),
            first_prefix_slot: max_num_seqs,
            prefix_lens: Vec::with_capacity(options.prefill_batch),
            candidates,
            captured,
        })))
    }

    /// What draws the tokens of a decode step, where its logits stay on the device.
    pub fn candidates(&mut self) -> Option<&mut Candidates> {
        match self {
            Self::Stock(stock) => stock.candidates.as_mut(),
            Self::Packed(_) => None,
        }
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

    /// What one call of [`Backend::prefill`] takes.
    pub fn prefill_limits(&self, options: &EngineOptions) -> PrefillLimits {
        match self {
            Self::Stock(_) => PrefillLimits { prompts: options.prefill_batch, together: usize::MAX, padded: true },
            Self::Packed(_) => PACKED_PREFILL,
        }
    }

    /// Puts prompts, within [`Backend::prefill_limits`], where samples start from; `logits` (`[prompts, vocab]`) receives
    /// what follows each.
    pub fn prefill<'a>(
        &mut self,
        prompts: impl Iterator<Item = &'a [u32]> + Clone,
        logits: &mut [f32],
    ) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => {
                stock.batch.set_prefill(prompts.clone());
                stock.prefix_lens.clear();
                stock.prefix_lens.extend(prompts.map(<[u32]>::len));
                let (inputs, logits) = (stock.batch.inputs(), Floats::new(logits));
                stock.session.run(&inputs, &mut stock.kv, stock.first_prefix_slot, logits, None)
            }
            Self::Packed(packed) => packed.prefill(prompts, usize::MAX, logits),
        }
    }

    /// Computes the next `piece` tokens of a prompt, which has more of them left, if prompts can be cut;
    /// [`Backend::prefill`] would compute what is left of it.
    pub fn prefill_piece(&mut self, prompt: &[u32], piece: usize) -> Option<Result<(), EngineError>> {
        match self {
            Self::Stock(_) => None,
            Self::Packed(packed) => Some(packed.prefill(std::iter::once(prompt), piece, &mut [])),
        }
    }

    /// What [`Backend::prefill`] left was computed with weights that are no longer in use.
    pub fn forget_prefixes(&mut self) {
        if let Self::Packed(packed) = self {
            packed.forget_prefixes();
        }
    }

    /// Starts a sequence after one of those prompts.
    pub fn start(&mut self, slot: usize, prompt: usize) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => stock.kv.copy_slot(stock.first_prefix_slot + prompt, slot, stock.prefix_lens[prompt]),
            Self::Packed(packed) => {
                packed.start(slot, prompt);
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

    /// One more token for each of the slots `0..rows.len()`, and its drafts, which only the packed backend takes; `logits`
    /// is `[rows + drafts, vocab]`, slot by slot, and stays as it is where there are [`Backend::candidates`]. `loading` says
    /// that weights are being loaded beside.
    pub fn decode(
        &mut self,
        rows: &[DecodeRow],
        drafts: &Drafts,
        loading: bool,
        logits: &mut [f32],
    ) -> Result<(), EngineError> {
        match self {
            Self::Stock(stock) => {
                debug_assert_eq!(drafts.len(), 0, "the published graph gives logits of last tokens only");
                stock.decode(rows, loading, logits)
            }
            Self::Packed(packed) => packed.decode(rows, drafts, logits),
        }
    }

    /// The next draft of a slot turned out to be right: its keys and values are those of the sequence.
    pub fn keep_draft(&mut self, slot: usize) {
        if let Self::Packed(packed) = self {
            packed.keep_draft(slot);
        }
    }

    /// Bytes of keys and values that the last decode step read.
    pub fn kv_bytes_read(&self) -> u64 {
        match self {
            Self::Stock(_) => self.kv_bytes_in_use(),
            Self::Packed(packed) => packed.kv_bytes_read(),
        }
    }

    /// Bytes of keys and values in use; with the stock graph those of the last call, where nothing is shared.
    pub fn kv_bytes_in_use(&self) -> u64 {
        match self {
            Self::Stock(stock) => stock.batch.positions * stock.kv.position_bytes(),
            Self::Packed(packed) => packed.kv_bytes_in_use(),
        }
    }

    /// Adds the time of the parts of the graph since the last call, where it is known, and the steps that CUDA graphs took.
    pub fn add_times(&mut self, profile: &mut Profile) {
        match self {
            Self::Stock(stock) => profile.graph_steps += stock.captured.as_mut().map_or(0, CapturedSteps::take_count),
            Self::Packed(packed) => {
                let times = packed.take_times();
                profile.linear += times.linear;
                profile.head += times.head;
                profile.attention += times.attention;
            }
        }
    }

    /// What loads another version for this backend on a side thread.
    pub fn loader(&mut self, options: &EngineOptions) -> Loader {
        let session = session_options(options);
        match self {
            Self::Stock(_) => Loader::Stock(session),
            Self::Packed(packed) => Loader::Packed(session, options.format(), packed.take_spare()),
        }
    }

    /// Takes a loaded version into use.
    pub fn install(&mut self, loaded: Loaded) {
        match (self, loaded) {
            (Self::Stock(stock), Loaded::Stock(session)) => {
                let old = std::mem::replace(&mut stock.session, *session);
                match &mut stock.captured {
                    None => stock.retired.push(old),
                    // Freeing it on another thread would break off what this one records next.
                    Some(captured) => {
                        captured.forget();
                        drop(old);
                    }
                }
            }
            (Self::Packed(packed), Loaded::Packed(weights)) => packed.exchange(weights),
            _ => unreachable!("a version is loaded for the backend that asked for it"),
        }
    }
}
