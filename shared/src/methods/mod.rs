//! Methods as data: one description each of every loss, advantage estimator, way to combine rewards and KL estimator.
//!
//! [`LossType::spec`](crate::config::LossType::spec) and its siblings say everything about a method but its formula: what
//! it must see at once, which options it has and excludes, what it counts, where it comes from. Validation, warnings, the
//! importer, the generated pages, the metrics and the learner read these descriptions. The formulas are in the learner
//! (`loss::policy`, `advantage::credit`, `kl`). No other code asks which method is configured: the compiler points at
//! descriptions and formulas that a new method lacks, and `cargo xtask tidy` finds comparisons elsewhere.

#![deny(clippy::wildcard_enum_match_arm)]

pub mod advantage;
pub mod kl;
pub mod loss;
pub mod metric;
pub mod page;
pub mod reduction;

pub use advantage::{AdvantageSpec, CreditUnit, MultiObjectiveSpec};
pub use kl::KlSpec;
pub use loss::{ImportanceWeights, LossSpec, Ratio, Scope};
pub use metric::{Counted, LossMetric};
pub use reduction::Reduction;
