//! The coordinator beside the learner: workers on other hosts sample for the step loop.
//!
//! | file | subject |
//! |---|---|
//! | [`fleet`] | the generator |
//! | `server` | the thread that answers calls |
//! | [`scheduler`] | requests, leases and workers: who makes what, without a transport or a clock |
//! | [`registry`] | what is known of a worker |
//! | [`check`], [`arbiter`] | completions that are made again; the engine beside the learner that decides |
//! | [`table`] | `workers.json` |
//! | `factory` | all of that from a configuration |

pub mod arbiter;
pub mod check;
mod factory;
pub mod fleet;
pub mod registry;
pub mod scheduler;
mod server;
pub mod table;

pub use factory::FleetFactory;
