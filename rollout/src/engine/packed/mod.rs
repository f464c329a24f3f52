//! The engine on its own kernels: ONNX Runtime runs a rewritten graph whose operators are those of [`rollout_kernels`].
//!
//! The published `model.onnx` stays as it is on disk. `graph` checks that it is node for node what this program exports
//! and replaces it by the same computation in a few large operators, `operators` implements these, `weights` packs a
//! version for them, and `session` joins the three.
//!
//! # Why the graph is replaced
//!
//! Three things cannot be had of the published graph. Weights are its initialisers, so a new version means a new
//! session, which maps, optimises and packs everything again; here it is one pass of packing and the exchange of a
//! pointer (0.20 s against 0.67 s for 540 MB). Keys and values are tensors of one row for each sequence, so completions
//! cannot share those of their prompt; here they lie in pages (a decode step of 16 completions after a prompt of 1,024
//! tokens takes 42 ms against 70 ms, and the process 735 MB against 1,545 MB). And an operator is a norm, a product, a
//! bias or an activation, which all write to memory what the next one reads; here a linear layer is one pass (1.3 to
//! 1.5 times the tokens a second on short prompts). BENCHMARKS.md has the figures in full. What ONNX Runtime still does
//! is to order the nodes and to give them memory for activations.
//!
//! # Why operators read a shared state
//!
//! Activations pass between the nodes as tensors. Weights, pages and the spans of a call do not: they are in a
//! [`operators::State`] behind a lock that every node takes. As inputs of the graph they would cost more than they
//! explain: packed weights have a layout that no element type of ONNX names, so they would be opaque bytes, a hundred
//! of them to be bound anew for every version; pages are written in place, so each would be bound at both ends of the
//! node. And spans are a nested structure that would be flattened into tensors and read back by every layer. A lock
//! that nobody contends for takes less than 0.2 microseconds even on a busy machine: of a model with 30 layers, 152
//! nodes, less than 0.1 % of a step of 40 ms.
//!
//! # How prompts, drafts and adapters are computed
//!
//! Short prompts are computed together, without padding, and so is what comes after states. A prompt longer than
//! `max_num_batched_tokens` is computed in pieces, one a step, while sequences run. Drafts are further rows of a step.
//!
//! A version that is an adapter is added to the mapped weights of its base: row by row, in fp32, on the way into the
//! packed layout. Products that no adapter changes, the head among them, are packed once for all versions
//! (`weights::Kept`). The result has the bits of the merged model.
//!
//! Layers with a recurrent state (short convolutions, delta rules) have a block of memory for each sequence in place of
//! pages (`cache`). A prompt is computed once, and its state is copied to each completion. Its tokens are taken one
//! after the other in one order, so that neither pieces nor neighbours show in a bit. A state cannot go back: nothing
//! goes on from the middle of one, and drafts are refused.
//!
//! Adapters can also lie beside the weights in use (`adapted`), so that sequences of several run at once. A call takes
//! the tokens of all of them. Products that an adapter changes are computed adapter by adapter, all others once.

mod adapted;
mod backend;
mod cache;
mod choices;
mod graph;
mod mixers;
mod operators;
mod products;
mod session;
mod weights;

pub use adapted::{AdapterLoader, LoadedAdapter, adapter_bytes};
pub(super) use backend::PackedBackend;
use cache::PoolShapes;
#[cfg(test)]
pub(super) use cache::state_shape;

use std::time::Duration;

use rollout_kernels::{
    attention::MAX_HEAD_DIM,
    element::{Format, KvFormat},
    pages::PageShape,
    simd::{Isa, MAX_BYTE_PRODUCTS},
    thread_pool::ThreadPool,
};
use shared::{
    ModelConfig, WeightManifest, config::KvDtype, model::model_config::WIDEST_PACKED_HEAD,
    run::memory_plan::PARTIAL_PAGES,
};

use super::{EngineError, EngineOptions, WeightSource};

/// Sizes of the pools of pages: every slot may hold a sequence of its own of the greatest length.
pub(super) fn page_shape(config: &ModelConfig, slots: usize, positions: usize, format: KvFormat) -> PoolShapes {
    PoolShapes::new(config, slots * (PageShape::pages_for(positions) + PARTIAL_PAGES), format)
}

/// Threads for kernels.
fn start_threads(count: usize, spin: Duration) -> Result<ThreadPool, EngineError> {
    ThreadPool::new(count, spin).map_err(|e| EngineError::Options(format!("cannot start {count} threads: {e}")))
}

/// Whether the packed kernels can stand for the graph of a folder: it must be the one that this program exports.
pub(super) fn supports(
    source: &WeightSource,
    config: &ModelConfig,
    manifest: &WeightManifest,
) -> Result<bool, EngineError> {
    Ok(config.unknown_to_packed().is_none() && graph::is_known(source, config, manifest)?)
}

const _: () = assert!(WIDEST_PACKED_HEAD == MAX_HEAD_DIM, "the kernels and the configuration know the same heads");

/// The packed kernels batch prompts by themselves, and their logits are in main memory.
fn check(options: &EngineOptions) -> Result<(), EngineError> {
    let refused = [
        ("candidates", options.candidates > 0),
        ("prefill_batch above 1", options.prefill_batch > 1),
        ("cuda_graphs", options.cuda_graphs),
    ];
    if let Some((name, _)) = refused.iter().find(|(_, on)| *on) {
        return Err(EngineError::Options(format!(
            "{name} needs the stock kernels (--kernels stock, `rollout_kernels`)"
        )));
    }
    if options.kv_dtype == KvDtype::Int8 && options.max_model_len > MAX_BYTE_PRODUCTS {
        let message = format!("kv_dtype int8 takes a max_model_len of at most {MAX_BYTE_PRODUCTS}; auto takes more");
        return Err(EngineError::Options(message));
    }
    Ok(())
}

/// Logs which choices may be slower than others on this processor, or that the environment bounds its instructions.
fn remark_on_speed(isa: Isa, is_bounded: bool, options: &EngineOptions) {
    if is_bounded {
        let instructions = isa.name(options.format());
        tracing::warn!("TANDEM_CPU_CAPABILITY bounds the instructions of the sampler: it computes with {instructions}");
        return;
    }
    if isa.is_plain() {
        // Without fused products, plain Rust is slow. Another processor may have them, and was not measured.
        let faster = if cfg!(target_arch = "x86_64") { "should" } else { "may" };
        tracing::warn!(
            "this processor has none of the instruction sets of the packed kernels (AVX2 with FMA and F16C, AVX-512): \
             --kernels stock (`rollout_kernels`) {faster} be faster"
        );
        return;
    }
    let format = options.format();
    let of_bytes = matches!(format, Format::Int8 | Format::Int4) || options.kv_dtype == KvDtype::Int8;
    if of_bytes && !isa.has_byte_products() {
        tracing::warn!("this processor has no VNNI: int8 and int4 save memory, and may not be faster than fp32");
    }
    match format {
        Format::Bf16 | Format::Bf16x3 if isa.has_pair_products() => tracing::warn!(
            "this processor has AVX512_BF16 and no AMX: --rollout-dtype bf16dot (`rollout_dtype`) is faster than \
             {dtype}",
            dtype = options.rollout_dtype
        ),
        Format::Bf16 | Format::Bf16x3 if !isa.has_tiles() => tracing::warn!(
            "this processor has no AMX: bf16 saves memory, and neither it nor bf16x3 need be faster than fp32"
        ),
        Format::Bf16Dot if isa.has_tiles() => {
            tracing::warn!("this processor has AMX: --rollout-dtype bf16 (`rollout_dtype`) is faster than bf16dot")
        }
        Format::Bf16Dot if !isa.has_pair_products() => {
            tracing::warn!("this processor has no AVX512_BF16: bf16dot saves memory, and need not be faster than fp32")
        }
        _ => {}
    }
}
