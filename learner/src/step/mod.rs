//! One training step: a generation batch, every optimiser update on it, one new policy version.
//!
//! [`StepBatch`] holds the sampler's groups, [`StepInputs`] the inputs of the losses, [`StepMetrics`] the report on the
//! step. [`Trainer`] goes from the first to the last: [`CreditAssigner`] gives advantages, [`Forward`] gives log-probs,
//! and one pass for each update gives its gradients.
//!
//! [`Objective`](crate::loss::Objective) says whether a method has to see a token, a completion or a minibatch at once,
//! and `passes` shows it that much. A trainer may be one of several ranks ([`crate::ranks`]); every rank then makes the
//! update that a single rank would make.

mod batch;
mod credit;
mod forward;
mod inputs;
mod metrics;
mod passes;
mod stats;
mod trainer;
mod weights;

pub use batch::{BatchRow, StepBatch};
pub use credit::{Assignment, CreditAssigner};
pub use forward::{Evaluation, Forward, evaluate};
pub use inputs::StepInputs;
pub use metrics::record;
pub use stats::{Fate, Fates, Mean, Mismatch, StepMetrics, Times, TokenNotes};
pub use trainer::{Allows, Before, Carried, TrainedStep, Trainer};
