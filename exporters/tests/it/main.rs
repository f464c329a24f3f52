//! The exporter through its public interface; no runtime is needed.

mod adapter;
mod cache;
mod checkpoint;
mod graph;
mod support;
mod versions;
