//! The decoder graph and the few ONNX messages it is made of.
//!
//! One graph serves prefill and decode. The KV cache and states are bound to the same memory at both ends of the graph.
//! The language-model head sees the last position of each row only. A reward model has the same layers under a score
//! head, but no cache, and gives scores of whichever tokens are asked for. A third form has the inputs and outputs of
//! ONNX Runtime GenAI, and may have its weights in blocks of a few bits.

pub(crate) mod blocked;
pub mod builder;
pub(crate) mod decoder;
mod inputs;
pub mod proto;
pub(crate) mod states;

pub use decoder::decoder as decoder_graph;
pub use states::{GraphState, graph_states};
