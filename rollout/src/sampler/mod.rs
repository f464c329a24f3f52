//! From a row of logits to a token, on the host.
//!
//! The distribution is transformers': repetition penalty, temperature, top-k (ties with the k-th kept), top-p, min-p, in
//! this order. The randomness is a number given from outside ([`shared::rng::token_uniform`]), turned into a token by
//! inversion of the cumulative distribution in the order of the vocabulary. There is no generator state and no row knows
//! of another, so a token depends on its logits, its history and its key alone.
//!
//! [`stats`] holds the passes over the vocabulary, [`truncate`] the kept set, [`row`] the sampling of one row,
//! [`blocks`] that of a row whose logits lie elsewhere, and [`pool`] that of many rows at once.

pub mod blocks;
pub mod pool;
pub mod row;
pub mod stats;
pub mod truncate;

pub use blocks::{BlockPlan, Summary};
pub use pool::SamplerPool;
pub use row::{Draw, Law, RowError, Scratch, SeenTokens, sample_row};
