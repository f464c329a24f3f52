//! What an engine will need, computed before anything is allocated.

use std::fmt;

use shared::{Dtype, ModelConfig, config::Device};

use super::{
    EngineError, EngineOptions,
    device::{self, cuda::Cuda},
    packed::{self, page_shape},
    stock::kv_cache::KvShape,
};

/// Share of the free memory that a plan may take.
const USABLE: f64 = 0.9;

/// Memory of an engine in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights in the layout of the matrix kernels, or all of them in the memory of a device.
    pub packed_weights: u64,
    /// Weights read where they are in the mapped file: embedding and norms.
    pub mapped_weights: u64,
    /// A second set of packed and mapped weights, while new ones are taken into use.
    pub swap: u64,
    /// Keys and values of every slot at full length. Packed kernels use less while prompts are shared: each is held once.
    pub kv_cache: u64,
    /// A row of logits for each row of a step and each prompt; with candidates two more, for what is computed of them; with
    /// CUDA graphs one more at least, on the device.
    pub logits: u64,
    /// Activations of the largest call.
    pub activations: u64,
    /// Free memory (main memory, or that of the device).
    pub available: u64,
}

impl MemoryPlan {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        let parts = [self.packed_weights, self.mapped_weights, self.swap, self.kv_cache, self.logits, self.activations];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Whether it fits into nine tenths of what is free.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.total() as f64 <= self.available as f64 * USABLE
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second_set = (self.swap > 0).then_some(("second set of weights for the swap", self.swap));
        let weights = [("packed weights", self.packed_weights), ("mapped weights", self.mapped_weights)];
        let rest = [("KV cache", self.kv_cache), ("logits", self.logits), ("activations", self.activations)];
        for (name, bytes) in weights.into_iter().chain(second_set).chain(rest) {
            write!(f, "{name} {}, ", Size(bytes))?;
        }
        write!(f, "together {} of {} free", Size(self.total()), Size(self.available))
    }
}

/// Bytes for people.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 as f64 / f64::from(1 << 20);
        if mib < 1000.0 { write!(f, "{mib:.1} MiB") } else { write!(f, "{:.2} GiB", mib / 1024.0) }
    }
}

/// The plan of an engine, given `available` free bytes.
#[must_use]
pub fn memory_plan(config: &ModelConfig, dtype: Dtype, options: &EngineOptions, available: u64) -> MemoryPlan {
    let size = dtype.size() as u64;
    let mut packed = 0;
    let mut mapped = 0;
    for (name, shape) in config.parameters() {
        let bytes = shape.iter().product::<usize>() as u64 * size;
        let embedding = name == "model.embed_tokens.weight";
        if shape.len() > 1 && (!embedding || config.tie_word_embeddings) {
            packed += bytes;
        }
        if shape.len() == 1 || embedding {
            mapped += bytes;
        }
    }
    let (packed, mapped) = match options.device {
        Device::Cpu => (packed, mapped),
        Device::Cuda | Device::Tensorrt => (config.parameter_count() * size, 0),
    };
    // Rounding is that of the packed kernels, which begin with fp32.
    let packed = packed / options.format().per_word() as u64;
    // Numbers that no memory holds must not wrap to ones that fit.
    let (slot, prompts, together) = if packed::wanted(options.kernels, options.device, dtype) {
        let pages = page_shape(config, 1, options.max_model_len, options.kv_format());
        (pages.bytes(), packed::PREFILL.prompts, packed::PREFILL.together)
    } else {
        let prompts = options.prefill_batch;
        let padded = prompts.saturating_mul(options.max_model_len).min(options.max_num_batched_tokens);
        (KvShape::new(config, dtype, 1, options.max_model_len).bytes(), prompts, padded)
    };
    let copies = if options.candidates > 0 { 3 } else { 1 + u64::from(options.cuda_graphs) };
    let row = (config.vocab_size * size_of::<f32>()) as u64 * copies;
    let tokens = options.max_model_len.max(options.rows()).max(together) as u64;
    MemoryPlan {
        packed_weights: packed,
        mapped_weights: mapped,
        swap: if options.hot_swap { packed + mapped } else { 0 },
        kv_cache: (slot as u64).saturating_mul(options.slots() as u64),
        logits: row.saturating_mul(options.rows().saturating_add(prompts) as u64),
        activations: activations(config).saturating_mul(tokens).saturating_mul(size),
        available,
    }
}

/// Scalars of a token that are alive at once in the widest part of a layer: residual, norm, gate, up, their product, q, k,
/// v.
fn activations(config: &ModelConfig) -> u64 {
    let heads = config.num_attention_heads + 2 * config.num_key_value_heads;
    (3 * config.hidden_size + 3 * config.intermediate_size + 2 * heads * config.head_dim) as u64
}

/// Free memory in bytes of the device that the engine is to run on.
///
/// # Errors
/// When the system does not tell, or there is no such device.
pub fn available_memory(on: Device) -> Result<u64, EngineError> {
    device::require(on)?;
    match on {
        Device::Cpu => main_memory(),
        Device::Cuda | Device::Tensorrt => Cuda::get()?.free_memory(),
    }
}

fn main_memory() -> Result<u64, EngineError> {
    shared::memory::available().map_err(|e| EngineError::Memory(e.to_string()))
}

/// The plan of an engine, refused when it does not fit.
///
/// # Errors
/// With the figures and what to lower.
pub fn plan_memory(
    config: &ModelConfig,
    dtype: Dtype,
    options: &EngineOptions,
    available: u64,
) -> Result<MemoryPlan, EngineError> {
    let plan = memory_plan(config, dtype, options, available);
    if plan.fits() {
        return Ok(plan);
    }
    let weights = plan.packed_weights + plan.mapped_weights + plan.swap;
    let way_out = if weights as f64 > available as f64 * USABLE {
        "the model itself is too large for this machine".to_owned()
    } else {
        format!("lower max_num_seqs ({}) or max_model_len ({})", options.max_num_seqs, options.max_model_len)
    };
    Err(EngineError::Memory(format!("does not fit into memory: {plan} (of which 90 % may be used); {way_out}")))
}

/// The largest `max_num_seqs` up to `wanted` whose plan fits; the other options stay as they are.
///
/// # Errors
/// When not even one sequence fits, with the figures.
pub fn auto_max_num_seqs(
    config: &ModelConfig,
    dtype: Dtype,
    options: &EngineOptions,
    wanted: usize,
    available: u64,
) -> Result<usize, EngineError> {
    let with = |max_num_seqs: usize| EngineOptions { max_num_seqs, ..options.clone() };
    let fits = |n: usize| memory_plan(config, dtype, &with(n), available).fits();
    plan_memory(config, dtype, &with(1), available)?;
    // The plan grows with every sequence: bisect between one that fits and one that does not.
    let (mut low, mut high) = (1, wanted.max(1).saturating_add(1));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use shared::config::{KvDtype, RolloutDtype};

    use super::*;
    use crate::engine::Kernels;

    fn config(tied: bool) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
            "tie_word_embeddings": {tied}}}"#
        ))
        .unwrap()
    }

    fn options(max_num_seqs: usize) -> EngineOptions {
        EngineOptions {
            device: Device::Cpu,
            kernels: Kernels::Stock,
            rollout_dtype: RolloutDtype::Auto,
            kv_dtype: KvDtype::Auto,
            threads: 1,
            max_num_seqs,
            max_num_batched_tokens: 256,
            speculative_tokens: 0,
            prefill_batch: 1,
            max_model_len: 128,
            candidates: 0,
            cuda_graphs: false,
            spinning: false,
            hot_swap: false,
        }
    }

    #[test]
    fn the_plan_counts_what_the_engine_allocates() {
        for tied in [true, false] {
            let config = config(tied);
            let plan = memory_plan(&config, Dtype::Fp32, &options(7), 1 << 30);
            assert_eq!(plan.kv_cache, 2 * 2 * 8 * 2 * 128 * 16 * 4);
            assert_eq!(plan.logits, 8 * 512 * 4);
            // Packed matrices and mapped rest are all parameters; a tied embedding is both.
            let embedding = 512 * 64 * 4;
            let all = config.parameter_count() * 4;
            let both = if tied { embedding } else { 0 };
            assert_eq!(plan.packed_weights + plan.mapped_weights, all + both);
            for (rollout_dtype, share) in [(RolloutDtype::Bf16, 2), (RolloutDtype::Int8, 4)] {
                let rounded = EngineOptions { kernels: Kernels::Packed, rollout_dtype, ..options(7) };
                let rounded = memory_plan(&config, Dtype::Fp32, &rounded, 1 << 30);
                assert_eq!(rounded.packed_weights, plan.packed_weights / share, "{rollout_dtype:?}");
            }
            let candidates = EngineOptions { candidates: 64, ..options(7) };
            assert_eq!(memory_plan(&config, Dtype::Fp32, &candidates, 1 << 30).logits, 3 * plan.logits);
            let graphs = EngineOptions { cuda_graphs: true, ..options(7) };
            assert_eq!(memory_plan(&config, Dtype::Fp32, &graphs, 1 << 30).logits, 2 * plan.logits);
            let batched = EngineOptions { prefill_batch: 4, ..options(7) };
            assert_eq!(memory_plan(&config, Dtype::Fp32, &batched, 1 << 30).kv_cache, plan.kv_cache / 8 * 11);
            let swapping = EngineOptions { hot_swap: true, ..options(7) };
            assert_eq!(memory_plan(&config, Dtype::Fp32, &swapping, 1 << 30).swap, all + both);
        }
    }

    #[test]
    fn keys_and_values_in_bytes_take_as_much_as_their_pages() {
        let with = |kv_dtype| EngineOptions { kernels: Kernels::Packed, kv_dtype, ..options(7) };
        let kv_cache = |kv_dtype| memory_plan(&config(true), Dtype::Fp32, &with(kv_dtype), 1 << 30).kv_cache;
        // Two layers, two heads of 16, eight slots of eight pages and two for what is left over.
        let pages = 2 * 2 * 8 * 10;
        assert_eq!(kv_cache(KvDtype::Auto), pages * 16 * (16 + 16) * 4);
        // The same numbers in bytes, and two scales for each of the sixteen positions.
        assert_eq!(kv_cache(KvDtype::Int8), pages * (16 * (16 + 16) + 16 * 2 * 4));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_figures() {
        let error = plan_memory(&config(true), Dtype::Fp32, &options(64), 1 << 20).unwrap_err().to_string();
        for part in ["KV cache 4.1 MiB", "of 1.0 MiB free", "max_num_seqs (64)", "max_model_len (128)"] {
            assert!(error.contains(part), "{error}");
        }
        let error = plan_memory(&config(true), Dtype::Fp32, &options(1), 1000).unwrap_err().to_string();
        assert!(error.contains("the model itself is too large"), "{error}");
    }

    #[test]
    fn the_automatic_choice_is_the_largest_that_fits() {
        let config = config(true);
        let available = 4 << 20;
        let n = auto_max_num_seqs(&config, Dtype::Fp32, &options(1), 64, available).unwrap();
        assert!(n > 1 && n < 64);
        assert!(memory_plan(&config, Dtype::Fp32, &options(n), available).fits());
        assert!(!memory_plan(&config, Dtype::Fp32, &options(n + 1), available).fits());
        assert_eq!(auto_max_num_seqs(&config, Dtype::Fp32, &options(1), 8, 1 << 40).unwrap(), 8);
        assert!(auto_max_num_seqs(&config, Dtype::Fp32, &options(1), 8, 1000).is_err());
    }

    #[test]
    fn the_free_memory_of_this_machine_is_known() {
        assert!(available_memory(Device::Cpu).unwrap() > 1 << 20);
    }
}
