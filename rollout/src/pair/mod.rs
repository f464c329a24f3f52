//! The sampler's half of the training pair.
//!
//! [`setup`] builds everything from a run directory, [`step_loop`] is what is then repeated. It works on [`plan`]
//! (which group is made and handed over next), [`order`] (which prompt that is), [`assembly`](crate::assembly) (from
//! sequences to scored groups), [`generator`] (what samples: an engine here, or workers elsewhere), [`factory`] (what
//! makes the generator of a run), [`weights`] (following the learner's versions), [`evaluation`] (between the steps),
//! [`in_flight`] (what a checkpoint keeps) and [`link`] (the thread that owns the channel); [`check`] is about what
//! would be refused. All state that must survive this process is the learner's status and what lies in the run
//! directory: a sampler that is killed starts anew from there.

pub mod check;
pub mod evaluation;
pub mod factory;
pub mod generator;
pub mod in_flight;
pub mod link;
pub mod order;
pub mod plan;
pub mod setup;
pub mod step_loop;
pub mod weights;

pub use factory::{GeneratorFactory, LocalEngine};
pub use setup::run;
pub use step_loop::Ended;
