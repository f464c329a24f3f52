//! The other programs of the workspace: found beside this one, started, watched, and ended.

pub mod binaries;
mod process;
mod pulse;
pub mod tool;

pub use process::{Process, Spec, describe};
pub use pulse::Verdict;
