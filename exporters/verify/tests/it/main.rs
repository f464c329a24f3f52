//! The verifying crate through its public interface: what transformers computes, and exports that are not the model.

mod genai;
mod golden;
mod python;
mod refused;
mod sources;
mod support;
