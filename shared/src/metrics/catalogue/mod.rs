//! Every metric that is recorded, by section.
//!
//! A constant is called as the key is: `clip_ratio/low_mean` is [`CLIP_RATIO_LOW_MEAN`]. The first paragraph of a
//! metric's text says what it is, the second what is normal and what a departure means.

mod agents;
mod completions;
mod credit;
mod dynamic_sampling;
mod evaluation;
mod fleet;
mod mismatch;
mod optimisation;
mod policy;
mod rewards;
mod run;
mod time;
mod turns;

pub use agents::*;
pub use completions::*;
pub use credit::*;
pub use dynamic_sampling::*;
pub use evaluation::*;
pub use fleet::*;
pub use mismatch::*;
pub use optimisation::*;
pub use policy::*;
pub use rewards::*;
pub use run::*;
pub use time::*;
pub use turns::*;

use super::{Metric, Section};

/// Metrics of the optimiser.
pub const OPTIMISATION: &Section = optimisation::SECTION;

/// Metrics of the losses.
pub const POLICY: &Section = policy::SECTION;

/// Metrics of the two evaluations: `eval.jsonl`, and `tandem eval`.
pub const EVALUATION: &Section = evaluation::SECTION;

/// All sections, in the order of the page.
pub const SECTIONS: &[&Section] = &[
    run::SECTION,
    rewards::SECTION,
    completions::SECTION,
    turns::SECTION,
    agents::SECTION,
    optimisation::SECTION,
    policy::SECTION,
    mismatch::SECTION,
    credit::SECTION,
    dynamic_sampling::SECTION,
    time::SECTION,
    fleet::SECTION,
    evaluation::SECTION,
];

/// All metrics, in the order of the page.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.iter().flat_map(|section| section.metrics).copied()
}

/// The declaration that a key of a record belongs to.
#[must_use]
pub fn find(key: &str) -> Option<&'static Metric> {
    all().find(|metric| metric.name_in(key).is_some())
}

#[cfg(test)]
mod tests;
