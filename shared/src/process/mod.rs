//! Conventions of all programs of a run: messages at the terminal, log, exit codes, signals, the environment of a
//! learner, the heartbeat for the launcher, and the session that a launcher hands to its processes.

pub mod command_line;
pub mod environment;
pub mod exit;
pub mod heartbeat;
pub mod logging;
pub mod pace;
pub mod session;
pub mod signals;
