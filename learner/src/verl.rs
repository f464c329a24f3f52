//! Constants that several of verl's methods share.

/// Bound of the log of a ratio on both sides.
pub const LOG_RATIO_BOUND: f64 = 20.0;

/// Keeps divisors of means away from 0.
pub const EPSILON: f64 = 1e-8;
