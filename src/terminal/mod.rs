//! What passes between the launcher and its user: words to the terminal, and signals from there.

pub mod help;
pub mod output;
pub mod signals;
