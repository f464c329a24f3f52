//! One file per subcommand that only this program has: its flags (a clap `Args`) and a `run` function. `rollout-fleet
//! run` is that of the crate `rollout`, with another generator.

pub mod check;
pub mod reach;
pub mod worker;
