//! What the crate does across processes.

mod two_processes;
