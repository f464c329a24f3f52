//! From a row of logits to a token, on the host.
//!
//! The distribution is transformers': repetition penalty, temperature, top-k (ties with the k-th kept), top-p, min-p,
//! in this order. The randomness is a number given from outside ([`shared::generation::rng::token_uniform`]), turned
//! into a token by inversion of the cumulative distribution in the order of the vocabulary. There is no generator
//! state, and rows are independent, so a token depends on its logits, its history and its key alone.
//!
//! [`stats`] holds the passes over the vocabulary, [`truncate`] their support, [`row`] the sampling of one row,
//! [`allowed`] that of a row of which only some tokens may come, [`top`] its likeliest tokens, and [`threads`] the
//! sampling of many rows at once.

pub mod allowed;
pub mod row;
pub mod stats;
pub mod threads;
pub mod top;
pub mod truncate;

pub use allowed::{sample_allowed, sample_allowed_and_top};
pub use row::{Distribution, Draw, RowError, Scratch, SeenTokens, sample_row, sample_row_and_top};
pub use threads::SamplingThreads;
pub use top::TopLogprob;
