//! Commands that take one file each; longer ones have folders of their own.

pub mod completions;
pub mod export;
pub mod halves;
pub mod learner_rank;
pub mod man;
pub mod merge;
pub mod schema;
