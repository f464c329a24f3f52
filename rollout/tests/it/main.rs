//! The sampler through its public interface and its command line.

mod bench;
mod engine;
mod engine_device;
mod generate;
mod help;
mod pair;
mod reward_model;
mod tune;
