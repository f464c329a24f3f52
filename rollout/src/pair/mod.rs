//! The sampler's half of the training pair.
//!
//! [`setup`] builds everything from a run directory, [`sampler`] is the step loop. It works on [`plan`] (which group is
//! made and handed over next), [`order`] (which prompt that is), [`assembly`] (from sequences to scored groups),
//! [`weights`] (following the learner's versions), [`evaluation`] (between the steps) and [`link`] (the thread that owns
//! the channel); [`inherited`] is about what the launcher left open. All state that must survive this process is the learner's status and what lies in the run directory: a
//! sampler that is killed starts anew from there.

pub mod assembly;
pub mod evaluation;
pub mod inherited;
pub mod link;
pub mod order;
pub mod plan;
pub mod sampler;
pub mod setup;
pub mod weights;

pub use sampler::Ended;
pub use setup::run;
