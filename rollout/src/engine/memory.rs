//! What an engine will need, computed before anything is allocated.

use std::fmt;

use shared::{
    Dtype, ModelConfig,
    config::Device,
    run::memory_plan::{Machine, SamplerPlan, SamplerSizes},
    system::memory::{self, Size},
};

use super::{
    EngineError, EngineOptions,
    device::{self, cuda::Cuda},
};

/// Share of the free memory that an engine may take, where nobody has planned it.
const USABLE: f64 = 0.9;

/// A plan beside the memory that there is for it.
struct Against<'a>(&'a SamplerPlan, u64);

impl fmt::Display for Against<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.0.parts().into_iter().map(|(name, bytes)| (name, Size(bytes)));
        for (name, size) in parts.filter(|(_, size)| !size.is_shown_as_nothing()) {
            write!(f, "{name} {size}, ")?;
        }
        write!(f, "together {} of {} that may be used", Size(self.0.total()), Size(self.1))
    }
}

/// Sizes of an engine for weights of an element type.
#[must_use]
pub fn sizes(dtype: Dtype, options: &EngineOptions) -> SamplerSizes {
    SamplerSizes {
        dtype,
        device: options.device,
        kernels: options.kernels,
        rollout_dtype: options.rollout_dtype,
        kv_dtype: options.kv_dtype,
        max_num_seqs: options.max_num_seqs,
        max_model_len: options.max_model_len,
        rows: options.rows(),
        max_num_batched_tokens: options.max_num_batched_tokens,
        prefill_batch: options.prefill_batch,
        kept_states: options.kept_states,
        keep_routing: options.keep_routing,
        logits_copies: SamplerSizes::logits_copies(options.candidates, options.cuda_graphs),
        hot_swap: options.hot_swap,
        kept: options.kept,
    }
}

/// Memory that the engine may take, in bytes: what is planned for it, else nine tenths of what the device has free.
///
/// # Errors
/// When the system does not tell, or there is no such device.
pub fn available_memory(options: &EngineOptions) -> Result<u64, EngineError> {
    device::require(options.device)?;
    if let Some(planned) = options.memory {
        return Ok(planned);
    }
    let free = match options.device {
        Device::Cpu => memory::available().map_err(|e| EngineError::Memory(e.to_string()))?,
        Device::Cuda | Device::Tensorrt => Cuda::get()?.memory()?.0,
    };
    Ok((free as f64 * USABLE) as u64)
}

/// The memory of this machine and of the device that is to be used.
///
/// # Errors
/// As [`available_memory`].
pub fn machine(on: Device) -> Result<Machine, EngineError> {
    device::require(on)?;
    let gpu = if on == Device::Cpu { None } else { Some(Cuda::get()?.memory()?.1) };
    Machine::this(gpu).map_err(|e| EngineError::Memory(e.to_string()))
}

/// The plan of an engine, refused when it does not fit into `available` bytes; as text for the log.
///
/// # Errors
/// With the figures and what to lower.
pub fn plan_memory(
    config: &ModelConfig,
    dtype: Dtype,
    options: &EngineOptions,
    available: u64,
) -> Result<String, EngineError> {
    let plan = sizes(dtype, options).plan(config);
    let against = Against(&plan, available);
    if plan.total() <= available {
        return Ok(against.to_string());
    }
    let weights = plan.packed_weights + plan.mapped_weights + plan.swap;
    let way_out = if weights > available {
        "the model itself is too large for this machine".to_owned()
    } else {
        format!("lower max_num_seqs ({}) or max_model_len ({})", options.max_num_seqs, options.max_model_len)
    };
    Err(EngineError::Memory(format!("does not fit into memory: {against}; {way_out}")))
}

impl EngineOptions {
    /// Fits `max_num_seqs` to the memory where nobody has given a number of sequences: to the largest up to what the
    /// options say that the memory has room for.
    ///
    /// # Errors
    /// As [`available_memory`]; when there is too little memory for one sequence.
    pub fn fit(&mut self, given: Option<usize>, config: &ModelConfig, dtype: Dtype) -> Result<(), EngineError> {
        if given.is_none() {
            let available = available_memory(self)?;
            let fitting = auto_max_num_seqs(config, dtype, self, self.max_num_seqs, available)?;
            *self = self.with_sequences(fitting);
        }
        Ok(())
    }
}

impl EngineOptions {
    /// The same for another number of sequences. Where as many states are held as there are sequences, that stays so.
    fn with_sequences(&self, max_num_seqs: usize) -> Self {
        let kept_states = if self.kept_states == self.max_num_seqs { max_num_seqs } else { self.kept_states };
        Self { max_num_seqs, kept_states, ..self.clone() }
    }
}

/// The largest `max_num_seqs` up to `wanted` whose plan fits; the other options stay as they are.
///
/// # Errors
/// When not even one sequence fits, with the figures.
fn auto_max_num_seqs(
    config: &ModelConfig,
    dtype: Dtype,
    options: &EngineOptions,
    wanted: usize,
    available: u64,
) -> Result<usize, EngineError> {
    let with = |max_num_seqs: usize| options.with_sequences(max_num_seqs);
    let fits = |n: usize| sizes(dtype, &with(n)).plan(config).total() <= available;
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
    use rollout_kernels::element::KvFormat;
    use shared::config::{KvDtype, RolloutDtype, TrainConfig};

    use super::*;
    use crate::engine::{
        Kernels,
        packed::{page_shape, state_shape},
    };

    fn planned(config: &ModelConfig, dtype: Dtype, options: &EngineOptions) -> SamplerPlan {
        sizes(dtype, options).plan(config)
    }

    fn config(tied: bool) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256,
            "tie_word_embeddings": {tied}}}"#
        ))
        .unwrap()
    }

    fn options(max_num_seqs: usize) -> EngineOptions {
        EngineOptions { kernels: Kernels::Stock, max_num_batched_tokens: 256, ..EngineOptions::new(max_num_seqs, 128) }
    }

    #[test]
    fn the_plan_counts_what_the_engine_allocates() {
        for tied in [true, false] {
            let config = config(tied);
            let plan = planned(&config, Dtype::Fp32, &options(7));
            assert_eq!(plan.kv_cache, 2 * 2 * 8 * 2 * 128 * 16 * 4);
            assert_eq!(plan.logits, 8 * 512 * 4);
            // Packed matrices and mapped rest are all parameters; a tied embedding is both.
            let embedding = 512 * 64 * 4;
            let all = config.parameter_count() * 4;
            let both = if tied { embedding } else { 0 };
            assert_eq!(plan.packed_weights + plan.mapped_weights, all + both);
            for (rollout_dtype, share) in [(RolloutDtype::Bf16, 2), (RolloutDtype::Int8, 4)] {
                let rounded = EngineOptions { kernels: Kernels::Packed, rollout_dtype, ..options(7) };
                let rounded = planned(&config, Dtype::Fp32, &rounded);
                assert_eq!(rounded.packed_weights, plan.packed_weights / share, "{rollout_dtype:?}");
            }
            let four = EngineOptions {
                kernels: Kernels::Packed,
                rollout_dtype: RolloutDtype::Int4,
                hot_swap: true,
                ..options(7)
            };
            let of_layers = plan.packed_weights - embedding;
            let in_bytes = plan.packed_weights / 4;
            let swapped = planned(&config, Dtype::Fp32, &four);
            assert_eq!(swapped.packed_weights, of_layers / 64 * 9 + embedding / 4);
            assert_eq!(swapped.swap, in_bytes + plan.mapped_weights, "a version is scored in bytes");
            let opened = planned(&config, Dtype::Fp32, &EngineOptions { hot_swap: false, ..four });
            assert_eq!(opened.packed_weights + opened.swap, in_bytes);
            let candidates = EngineOptions { candidates: 64, ..options(7) };
            assert_eq!(planned(&config, Dtype::Fp32, &candidates).logits, 3 * plan.logits);
            let graphs = EngineOptions { cuda_graphs: true, ..options(7) };
            assert_eq!(planned(&config, Dtype::Fp32, &graphs).logits, 2 * plan.logits);
            let batched = EngineOptions { prefill_batch: 4, ..options(7) };
            assert_eq!(planned(&config, Dtype::Fp32, &batched).kv_cache, plan.kv_cache / 8 * 11);
            let swapping = EngineOptions { hot_swap: true, ..options(7) };
            assert_eq!(planned(&config, Dtype::Fp32, &swapping).swap, all + both);
        }
    }

    /// The launcher plans with options alone, before there is an engine.
    #[test]
    fn a_run_is_planned_with_the_sizes_that_its_engine_has() {
        let usual = TrainConfig { max_num_seqs: Some(7), use_peft: true, ..TrainConfig::default() };
        let rounded = TrainConfig {
            rollout_dtype: RolloutDtype::Int8,
            kv_dtype: KvDtype::Int8,
            use_peft: false,
            ..usual.clone()
        };
        let stock = TrainConfig {
            rollout_kernels: Kernels::Stock,
            rollout_prefill_batch: 3,
            rollout_candidates: 64,
            max_num_batched_tokens: 512,
            ..rounded.clone()
        };
        let graphs = TrainConfig { rollout_candidates: 0, rollout_cuda_graphs: true, ..stock.clone() };
        for run in [usual, rounded, stock, graphs] {
            let model = config(false);
            let of_engine = planned(&model, run.rollout_device.export_dtype(), &EngineOptions::of(&run, &model, 128));
            assert_eq!(SamplerSizes::of(&run, &model, 7, 128).plan(&model), of_engine, "{run:?}");
        }
    }

    #[test]
    fn rounded_keys_and_values_take_as_much_as_their_pages() {
        let with = |kv_dtype| EngineOptions { kernels: Kernels::Packed, kv_dtype, ..options(7) };
        let kv_cache = |kv_dtype| planned(&config(true), Dtype::Fp32, &with(kv_dtype)).kv_cache;
        // Two layers, two heads of 16, eight slots of eight pages and two for what is left over.
        let pages = 2 * 2 * 8 * 10;
        let formats =
            [(KvDtype::Auto, KvFormat::Fp32), (KvDtype::Int8, KvFormat::Int8), (KvDtype::Bf16, KvFormat::Bf16)];
        for (kv_dtype, format) in formats {
            let pool = page_shape(&config(true), 8, 128, format).bytes();
            assert_eq!(kv_cache(kv_dtype), pool as u64, "{kv_dtype:?}");
        }
        assert_eq!(kv_cache(KvDtype::Auto), pages * 16 * (16 + 16) * 4);
        // The same numbers in bytes, and two scales for each of the sixteen positions.
        assert_eq!(kv_cache(KvDtype::Int8), pages * (16 * (16 + 16) + 16 * 2 * 4));
        assert_eq!(kv_cache(KvDtype::Bf16), pages * 16 * (16 + 16) * 2);
    }

    /// Of four layers, the last two read the keys and values of the first two, whose heads have two widths.
    #[test]
    fn layers_with_wider_heads_have_a_pool_of_their_own_and_layers_that_share_have_none() {
        let text = r#"{"model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 64, "vocab_size": 512,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "global_head_dim": 40, "num_kv_shared_layers": 2, "max_position_embeddings": 256,
            "vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]}"#;
        let config = ModelConfig::from_json(text).unwrap();
        let with =
            |kernels, kv_dtype| planned(&config, Dtype::Fp32, &EngineOptions { kernels, kv_dtype, ..options(7) });
        for (kv_dtype, format) in
            [(KvDtype::Auto, KvFormat::Fp32), (KvDtype::Int8, KvFormat::Int8), (KvDtype::Bf16, KvFormat::Bf16)]
        {
            let pools = page_shape(&config, 8, 128, format);
            assert_eq!(with(Kernels::Packed, kv_dtype).kv_cache, pools.bytes() as u64, "{kv_dtype:?}");
        }
        let positions = 8 * 10 * 16;
        assert_eq!(with(Kernels::Packed, KvDtype::Auto).kv_cache, 2 * positions * (16 + 16 + 40 + 48) * 4);
        assert_eq!(with(Kernels::Stock, KvDtype::Auto).kv_cache, 2 * 8 * 128 * 2 * (16 + 40) * 4);
        // The table is looked up and not multiplied with.
        let table = 512 * 4 * 8 * 4;
        let plan = with(Kernels::Packed, KvDtype::Auto);
        let embedding = 512 * 64 * 4;
        let buffers = 4 * 4;
        let all = config.parameter_count() * 4 + buffers;
        assert_eq!(plan.packed_weights + plan.mapped_weights, all + embedding);
        assert!(plan.mapped_weights > table + embedding && plan.mapped_weights < table + embedding + 16_000);
    }

    #[test]
    fn a_kept_state_takes_the_memory_of_a_sequence_and_none_where_none_is_held() {
        let with = |kernels, kept_states| {
            let options = EngineOptions { kernels, kept_states, ..options(7) };
            planned(&config(true), Dtype::Fp32, &options).kv_cache
        };
        assert_eq!(with(Kernels::Packed, 3), with(Kernels::Packed, 0) / 8 * 11);
        assert_eq!(with(Kernels::Stock, 3), with(Kernels::Stock, 0));
    }

    /// Published sizes with fewer layers of the same kinds.
    #[test]
    fn states_take_as_much_as_their_blocks_and_no_more_for_longer_sequences() {
        let lfm2 = r#"{"model_type": "lfm2", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 3,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 512, "conv_L_cache": 3,
            "max_position_embeddings": 4096, "layer_types": ["conv", "full_attention", "conv"]}"#;
        let qwen = r#"{"model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584, "vocab_size": 512,
            "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
            "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 4096,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]}"#;
        let granite = r#"{"model_type": "granitemoehybrid", "hidden_size": 1536, "shared_intermediate_size": 4096,
            "num_hidden_layers": 3, "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 512,
            "num_local_experts": 0, "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128,
            "max_position_embeddings": 4096, "layer_types": ["mamba", "mamba", "attention"]}"#;
        let of_mamba = (3 << 19) + (39 << 10);
        for (text, sequence) in [(lfm2, 2 * (16 << 10)), (qwen, 3 * ((1 << 20) + (72 << 10))), (granite, 2 * of_mamba)]
        {
            let config = ModelConfig::from_json(text).unwrap();
            for kernels in [Kernels::Packed, Kernels::Stock] {
                let with = |kept_states, max_model_len| {
                    let own = EngineOptions { kernels, kept_states, max_model_len, ..options(7) };
                    planned(&config, Dtype::Fp32, &own)
                };
                assert_eq!(with(0, 128).states, 8 * sequence, "{kernels:?}");
                assert_eq!(with(0, 4096).states, 8 * sequence);
                let held = if kernels == Kernels::Packed { 3 } else { 0 };
                assert_eq!(with(3, 128).states, (8 + held) * sequence);
            }
            assert_eq!(state_shape(&config, 8).bytes() as u64, 8 * sequence);
            let pages = page_shape(&config, 8, 128, KvFormat::Fp32).bytes() as u64;
            let packed = EngineOptions { kernels: Kernels::Packed, ..options(7) };
            assert_eq!(
                planned(&config, Dtype::Fp32, &packed).kv_cache,
                pages,
                "layers with attention alone have pages"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_figures() {
        let error = plan_memory(&config(true), Dtype::Fp32, &options(64), 1 << 20).unwrap_err().to_string();
        for part in ["KV cache 4.1 MiB", "of 1.0 MiB that may be used", "max_num_seqs (64)", "max_model_len (128)"] {
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
        let total = |n| planned(&config, Dtype::Fp32, &options(n)).total();
        assert!(total(n) <= available && total(n + 1) > available);
        assert_eq!(auto_max_num_seqs(&config, Dtype::Fp32, &options(1), 8, 1 << 40).unwrap(), 8);
        assert!(auto_max_num_seqs(&config, Dtype::Fp32, &options(1), 8, 1000).is_err());
    }

    #[test]
    fn what_is_planned_counts_and_else_what_is_free() {
        assert!(available_memory(&options(1)).unwrap() > 1 << 20);
        let planned = EngineOptions { memory: Some(77), ..options(1) };
        assert_eq!(available_memory(&planned).unwrap(), 77);
    }
}
