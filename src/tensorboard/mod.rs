//! TensorBoard's event files of a run, which lie beside `metrics.jsonl`: what `tensorboard --logdir` shows.
//!
//! The launcher makes them of the records. Where it cannot write them, it says so once, and the run goes on.

mod file;
mod follower;
mod histogram;
mod proto;

pub use file::files;
pub use follower::Follower;
