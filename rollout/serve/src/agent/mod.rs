//! Agents: programs of the user that ask the policy over HTTP, one for each completion of a run.
//!
//! [`Agents`] is a generator around the engine of a run. For each sample of a group it starts the program ([`Program`])
//! with a key of its own, or asks a server of verifiers to play an episode with that key ([`Verifiers`]). Requests with
//! the key are recorded as token ids ([`Samples`]). Messages that continue a recorded path go on from its ids, and only
//! what is new is rendered; others begin a path of their own. All paths of a sample are trained on. Routes, desk and
//! forms of answers are those of the endpoint; the step loop of the run drives all of it.

mod generator;
mod messages;
mod path;
mod program;
mod samples;
mod verdict;
mod verifiers;

pub use generator::{Agents, Server};
pub use messages::Said;
pub use program::{Outcome, Place, Program, Starter};
pub use samples::{Known, Sample, Samples, Session, Turn};
pub use verifiers::{Policy, Verifiers};
