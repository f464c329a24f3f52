//! The memory that a run will take, computed beforehand from the model and the options.
//!
//! The launcher prints [`RunPlan`] and refuses what does not fit. It has the learner's token budget from it, which
//! decides how sums are rounded and so must follow from what a machine has and never from what is free just now. The
//! sampler takes its share of the memory from the plan, and fits the number of its sequences to the share.

mod budget;
mod learner;
mod run;
mod sampler;
mod versions;

pub use budget::Workload;
pub use learner::{LearnerPlan, LearnerSizes, head_chunk};
pub use run::{DoesNotFit, Machine, RunPlan, adapter_numbers, kept_numbers};
pub use sampler::{PACKED_PREFILL, PARTIAL_PAGES, SamplerPlan, SamplerSizes};
pub use versions::VersionRoom;
