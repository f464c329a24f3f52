//! Coordinator and workers of a run over zenoh: the transport behind [`shared::channel::fleet`].
//!
//! A worker's call is a query with a frame of [`Report`](shared::channel::fleet::Report), and the answer is a reply
//! with a frame of [`Orders`](shared::channel::fleet::Orders). The wake-up is a publication of no bytes. Each worker
//! has a liveliness token, so the coordinator hears of a lost connection. Nothing else is on the network: no scouting,
//! no gossip, no other listeners; workers connect to the coordinator alone, and it lets none of them do, see or hear
//! more than this (for the settings see [`session`]). A worker whose connection is cut connects again by itself.
//!
//! No thread that serves all workers waits for one of them. So threads of their own send the answers. And the time to
//! send a message is shorter than the time after which a dead connection is given up: otherwise zenoh's thread for
//! sending would wait for that connection.
//!
//! zenoh's own threads belong to the process: the first session starts them, and they outlive the last.

mod coordinator;
mod error;
mod options;
mod overheard;
mod probe;
mod queue;
mod reach;
mod refused;
mod session;
mod tls;
mod token;
mod worker;

pub use coordinator::ZenohCoordinator;
pub use error::FleetError;
pub use options::{JoinOptions, ListenOptions};
pub use overheard::{RefusedCalls, init_logging};
pub use probe::{Probe, Stage, probe};
pub use worker::ZenohWorker;
