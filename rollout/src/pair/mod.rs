//! The sampler's half of the training pair.
//!
//! [`setup`] builds everything from a run directory, and [`step_loop`] then repeats the steps. It works on [`plan`]
//! (which group is made and handed over next), [`order`] (which prompt that is), [`assembly`](crate::assembly) (from
//! sequences to scored groups), [`generate`](crate::generate) (the engine here, or workers elsewhere, on the learner's
//! versions), [`weights`] (where those versions come from), [`factory`] (which makes the generator of a run),
//! [`evaluation`] (between the steps), [`in_flight`] (what a checkpoint keeps) and [`link`] (the thread that owns the
//! channel). [`check`] finds what would be refused. All state that must survive this process is the learner's status
//! and the files of the run directory: a sampler that is killed starts anew from there.
//!
//! A synchronous run makes lost versions again as they were. With `max_staleness` they come out differently, so
//! whatever was sampled from a lost version is thrown away, wherever it is.
//!
//! While the learner writes a checkpoint, its status says so. The sampler then writes what is in flight into a file of
//! the run directory, on a thread of its own, and its status names the request and the hash of the file. No version
//! after that of the checkpoint is there at that time, so every token is of a version that a run from this checkpoint
//! has. A sampler that starts takes up the file of the newest checkpoint, if the learner's status says that the file
//! fits. A file that is damaged, foreign or of another step costs time and no more.

pub mod check;
pub mod evaluation;
pub mod factory;
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
