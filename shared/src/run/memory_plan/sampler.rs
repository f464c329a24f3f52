//! Memory of a sampler.

use super::kept_numbers;
use crate::{
    Experts, ModelConfig, StateParts,
    config::{RouterReplay, TrainConfig},
    system::compute::{Device, Dtype, Kernels, KvDtype, RolloutDtype},
};

/// Positions of a page of keys and values (packed kernels).
const PAGE: usize = 16;
/// Pages beyond those of the longest sequence (packed kernels): prefix and completion may each leave one partly filled.
pub const PARTIAL_PAGES: usize = 2;
/// Most prompts, and most tokens, that the packed kernels compute together in a prefill.
pub const PACKED_PREFILL: (usize, usize) = (8, 256);

/// Properties of a sampler on which its memory depends.
#[derive(Debug, Clone, Copy)]
pub struct SamplerSizes {
    /// Element type of the weights on disk.
    pub dtype: Dtype,
    /// Device of the model.
    pub device: Device,
    /// Kernels that compute it.
    pub kernels: Kernels,
    /// Number format of products in linear layers.
    pub rollout_dtype: RolloutDtype,
    /// Number format of stored keys and values.
    pub kv_dtype: KvDtype,
    /// Sequences decoded at once.
    pub max_num_seqs: usize,
    /// Longest prompt plus completion.
    pub max_model_len: usize,
    /// Most rows of a decode step.
    pub rows: usize,
    /// Prompt tokens prefilled between two decode steps.
    pub max_num_batched_tokens: usize,
    /// Prompts prefilled in one call (stock kernels).
    pub prefill_batch: usize,
    /// Kept states whose keys and values are held for sequences that continue them (packed kernels).
    pub kept_states: usize,
    /// Whether choices of experts are kept beside keys and values (packed kernels).
    pub keep_routing: bool,
    /// Rows of logits that are held for each row that is sampled from.
    pub logits_copies: usize,
    /// Whether new weights can be swapped in.
    pub hot_swap: bool,
    /// Numbers in matrices that no version changes, if versions are adapters (packed kernels).
    pub kept: u64,
}

/// Bytes of a sampler, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplerPlan {
    /// Weights in the layout of the matrix kernels; on a device, all weights.
    pub packed_weights: u64,
    /// Weights that are read from the mapped file: embedding and norms.
    pub mapped_weights: u64,
    /// A second set of packed and mapped weights during a swap; for adapters, of the changed matrices only.
    pub swap: u64,
    /// Keys and values of every slot at full length. Packed kernels use less when sequences share prompts, since each
    /// prompt is held once.
    pub kv_cache: u64,
    /// Recurrent states of every slot, in the models that have them. Their size does not depend on any length.
    pub states: u64,
    /// One or several rows of logits, for each row of a step and each prompt.
    pub logits: u64,
    /// Activations of the largest call.
    pub activations: u64,
}

impl SamplerSizes {
    /// Those of a run's engine, as its options say: `rollout::engine::sizes` has the same of the engine itself. Rows of
    /// drafts are not counted.
    #[must_use]
    pub fn of(config: &TrainConfig, model: &ModelConfig, max_num_seqs: usize, max_model_len: usize) -> Self {
        Self {
            dtype: config.rollout_device.export_dtype(),
            device: config.rollout_device,
            kernels: config.rollout_kernels,
            rollout_dtype: config.rollout_dtype,
            kv_dtype: config.kv_dtype,
            max_num_seqs,
            max_model_len,
            rows: max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            prefill_batch: config.rollout_prefill_batch,
            kept_states: config.kept_states(max_num_seqs),
            keep_routing: config.router_replay != RouterReplay::Disabled,
            logits_copies: Self::logits_copies(config.rollout_candidates, config.rollout_cuda_graphs),
            hot_swap: true,
            kept: kept_numbers(config, model),
        }
    }

    /// Rows of logits for each row that is sampled from: with candidates two more, for intermediate results; with CUDA
    /// graphs one more at least, on the device.
    #[must_use]
    pub fn logits_copies(candidates: usize, cuda_graphs: bool) -> usize {
        if candidates > 0 { 3 } else { 1 + usize::from(cuda_graphs) }
    }

    /// Whether packed kernels are used.
    #[must_use]
    pub fn packed(&self) -> bool {
        self.kernels == Kernels::Packed && self.device == Device::Cpu && self.dtype == Dtype::Fp32
    }

    /// The plan for a model.
    #[must_use]
    pub fn plan(&self, model: &ModelConfig) -> SamplerPlan {
        if self.packed() && model.unknown_to_packed().is_some() {
            return Self { kernels: Kernels::Stock, ..*self }.plan(model);
        }
        let size = self.dtype.size() as u64;
        // Routers stay in fp32 whatever the rest is rounded to.
        let (mut layers, mut outside, mut routers, mut mapped) = (0, 0, 0, 0);
        for (name, shape) in model.parameters() {
            let bytes = shape.iter().product::<usize>() as u64 * size;
            // Convolutions are no matrices.
            let is_matrix = shape.len() == 2;
            if is_matrix && Experts::is_router(&name) {
                routers += bytes;
            } else if is_matrix && model.is_product(&name) {
                *(if name.starts_with("model.layers.") { &mut layers } else { &mut outside }) += bytes;
            }
            if !is_matrix || ModelConfig::is_table(&name) {
                mapped += bytes;
            }
        }
        if self.device != Device::Cpu {
            (layers, outside, routers, mapped) = (model.parameter_count() * size, 0, 0, 0);
        }
        // Only the packed kernels round, and they start from fp32.
        let rounded = |dtype: RolloutDtype, layers: u64, outside: u64| match dtype {
            RolloutDtype::Auto | RolloutDtype::Bf16x3 => layers + outside,
            RolloutDtype::Bf16 | RolloutDtype::Bf16Dot => (layers + outside) / 2,
            RolloutDtype::Int8 => (layers + outside) / 4,
            // Four bits and a scale of two bytes for each 32; the head and others outside the layers have bytes.
            RolloutDtype::Int4 => layers / 64 * 9 + outside / 4,
        };
        let own = rounded(self.rollout_dtype, layers, outside) + routers;
        // Before a version is packed in four bits, all of it is scored in bytes, with the base of an adapter.
        let is_scored_in_bytes = self.rollout_dtype == RolloutDtype::Int4;
        let scored = if is_scored_in_bytes { rounded(RolloutDtype::Int8, layers, outside) + routers } else { own };
        // Versions that are adapters also share the base's file.
        let second = match self.kept > 0 && self.packed() {
            false => scored + mapped,
            true if is_scored_in_bytes => scored,
            true => rounded(self.rollout_dtype, (layers + outside + routers).saturating_sub(self.kept * size), 0),
        };
        let (prompts, together) = if self.packed() {
            PACKED_PREFILL
        } else {
            let padded = self.prefill_batch.saturating_mul(self.max_model_len).min(self.max_num_batched_tokens);
            (self.prefill_batch, padded)
        };
        // Numbers beyond any memory must not wrap around to ones that fit.
        let kept_states = if self.packed() { self.kept_states } else { 0 };
        let slots = self.max_num_seqs.saturating_add(self.prefill_batch).saturating_add(kept_states) as u64;
        let row = (model.vocab_size * size_of::<f32>() * self.logits_copies) as u64;
        let tokens = self.max_model_len.max(self.rows).max(together) as u64;
        SamplerPlan {
            packed_weights: own,
            mapped_weights: mapped,
            swap: if self.hot_swap { second } else { scored - own },
            kv_cache: self.slot_bytes(model).saturating_add(self.routing_bytes(model)).saturating_mul(slots),
            states: self.state_bytes(model).saturating_mul(slots),
            logits: row.saturating_mul(self.rows.saturating_add(prompts) as u64),
            activations: activations(model).saturating_mul(tokens).saturating_mul(size),
        }
    }

    /// Keys and values of one slot at full length.
    #[must_use]
    pub fn slot_bytes(&self, model: &ModelConfig) -> u64 {
        let of_head = |width: usize| match (self.packed(), self.kv_dtype) {
            (false, _) => 2 * width * self.dtype.size(),
            // Values are stored in whole blocks, bytes in quads; each position of bytes has two scales.
            (true, KvDtype::Auto) => (width + width.next_multiple_of(PAGE)) * size_of::<f32>(),
            (true, KvDtype::Bf16) => (width.next_multiple_of(2) + width.next_multiple_of(PAGE)) * size_of::<u16>(),
            (true, KvDtype::Int8) => width.next_multiple_of(4) + width.next_multiple_of(PAGE) + 2 * size_of::<f32>(),
        };
        let positions =
            if self.packed() { (self.max_model_len.div_ceil(PAGE) + PARTIAL_PAGES) * PAGE } else { self.max_model_len };
        let heads: usize = model.caching_layers().map(|(layer, _)| of_head(model.head_dim_of(layer))).sum();
        (model.num_key_value_heads * heads) as u64 * positions as u64
    }

    /// Recurrent states of one slot, in fp32 whatever the model computes in.
    #[must_use]
    pub fn state_bytes(&self, model: &ModelConfig) -> u64 {
        // The packed kernels keep channels and columns in whole blocks.
        let whole = |count: usize| if self.packed() { count.next_multiple_of(PAGE) } else { count };
        let of_layer = |layer: usize| {
            let StateParts { window: [channels, kept], matrix: [heads, rows, columns] } = model.state_parts(layer);
            kept * whole(channels) + heads * rows * whole(columns)
        };
        ((0..model.num_hidden_layers).map(of_layer).sum::<usize>() * size_of::<f32>()) as u64
    }
}

impl SamplerSizes {
    /// Choices of experts of one slot at full length.
    fn routing_bytes(&self, model: &ModelConfig) -> u64 {
        let Some(experts) = model.experts.as_ref().filter(|_| self.keep_routing && self.packed()) else { return 0 };
        let layers = model.num_hidden_layers - experts.dense_layers.len();
        let positions = (self.max_model_len.div_ceil(PAGE) + PARTIAL_PAGES) * PAGE;
        (layers * experts.per_token * positions * size_of::<u16>()) as u64
    }
}

impl SamplerPlan {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add)
    }

    /// The parts, with their bytes.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("packed weights", self.packed_weights),
            ("mapped weights", self.mapped_weights),
            ("second set of weights for the swap", self.swap),
            ("KV cache", self.kv_cache),
            ("recurrent states", self.states),
            ("logits", self.logits),
            ("activations", self.activations),
        ]
    }
}

/// Scalars per token that are alive at once in the widest part of a layer: residual, norm, gate, up, their product, q,
/// k, v, or whatever a layer with a state has in the place of these. Experts have a row of their own for each token
/// that they compute, and a result before it is added. Inputs of each layer's own are there for all layers at once.
fn activations(model: &ModelConfig) -> u64 {
    let heads = model.num_attention_heads + 2 * model.num_key_value_heads;
    let attention = 2 * heads * model.widest_head();
    let mixers = (0..model.num_hidden_layers).map(|layer| 2 * model.mixer_widths(layer).iter().sum::<usize>());
    let results = model.experts.as_ref().map_or(0, |experts| experts.per_token * model.hidden_size + experts.count);
    let inputs = model.per_layer_input.map_or(0, |input| 2 * model.num_hidden_layers * input.width);
    (3 * model.hidden_size + 3 * model.inner_width() + results + inputs + mixers.fold(attention, usize::max)) as u64
}
