//! Commands that take one file each; longer ones have folders of their own.

pub mod export;
pub mod halves;
pub mod learner_rank;
pub mod merge;
