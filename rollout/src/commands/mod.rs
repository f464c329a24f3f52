//! One file per subcommand: its flags (a clap `Args`) and a `run` function. The rest is what several of them share.

pub mod bench;
mod complete;
pub mod eval;
pub mod flags;
pub mod generate;
mod progress;
pub mod rewards;
mod rows;
pub mod run;
pub mod tune;
