//! `cargo xtask gpu-proof`: measures this project's claims about GPUs on a machine that has a GPU and nothing else.
//!
//! | file | what it does |
//! |---|---|
//! | `bundle` | packs the programs for such a machine, here |
//! | `plan` | what is measured there, in which order, for how long at most |
//! | `models` | the models, prompts and token ids of the measurements, made there |
//! | `machine` | where the libraries are there, and how much memory of the device is taken |
//! | `runner` | runs what has no result yet (`xtask gpu-proof-run`) |
//! | `process` | one program under a limit of time |
//! | `results` | `results.jsonl`, a line for each result as soon as it is there |
//! | `table` | what they say, for BENCHMARKS.md, and which defaults they would change |
//!
//! `rivals.py` measures the figures for comparison: transformers' `generate`, a training step in plain torch, and the
//! limits of the device as far as torch reaches them.

mod bundle;
mod machine;
mod models;
mod plan;
mod process;
mod results;
mod runner;
mod table;
#[cfg(test)]
mod tests;

pub use self::{
    bundle::{BundleArgs, pack},
    runner::{RunArgs, run},
};
