//! Versions that are rounded, packed and unpacked again.

mod refusals;
mod support;
mod ways;
