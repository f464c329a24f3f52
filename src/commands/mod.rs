//! Commands that are a file each; the longer ones have rooms of their own.

pub mod export;
pub mod halves;
pub mod learner_rank;
pub mod merge;
