//! The exporter through its public interface; no runtime is needed.

mod cache;
mod checkpoint;
mod cli;
mod graph;
mod support;
mod versions;
