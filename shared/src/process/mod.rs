//! Conventions of all programs of a run: messages at the terminal, log, exit codes, signals, the environment of a
//! learner, the heartbeat for the launcher, the session that a launcher hands to its processes, and the commands that a
//! program says it has.

pub mod command_line;
pub mod described;
pub mod environment;
pub mod exit;
pub mod heartbeat;
pub mod logging;
pub mod pace;
pub mod session;
pub mod signals;
