//! The decoder graph and the few ONNX messages it is made of.

pub mod builder;
pub(crate) mod decoder;
pub mod proto;

pub use decoder::decoder as decoder_graph;
