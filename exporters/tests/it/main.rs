//! The exporter through its public interface; no runtime is needed.

mod adapter;
mod cache;
mod checkpoint;
mod gemma4;
mod genai;
mod graph;
mod support;
mod versions;
mod wrapper;
