//! Commands that take one file each; longer ones have folders of their own.

use std::path::Path;

use shared::files::leftovers;

use crate::terminal::output;

pub mod completions;
mod described;
pub mod export;
pub mod halves;
pub mod learner_rank;
pub mod man;
pub mod merge;
pub mod schema;

/// Removes what interrupted commands have left of their output. What cannot be removed hinders nothing.
fn remove_leftovers(out: &Path) {
    if let Err(error) = leftovers::remove(out) {
        output::tell(format_args!("warning: what an earlier command has left: {error}"));
    }
}
