//! Records of a run, read while it goes on: metrics, notices, and the completions of a step.

pub mod notices;
pub mod samples;
pub mod summary;
pub mod tail;
