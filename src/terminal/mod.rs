//! Communication between the launcher and its user: output to the terminal, and signals from it.

pub mod help;
pub mod output;
pub mod signals;
