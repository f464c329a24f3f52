//! What the page of `tandem ui` and the endpoint of `tandem serve` have in common: connections within bounds
//! ([`Connections`]), names of this machine, and comparisons of secrets.

mod access;
mod connections;

pub use access::{equal, is_this_machine, random};
pub use connections::{Busy, Connection, Connections};
