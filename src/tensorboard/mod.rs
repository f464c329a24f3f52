//! TensorBoard's event files of a run, which lie beside `metrics.jsonl`: they are shown by `tensorboard --logdir`.
//!
//! The launcher makes them from the records. If it cannot write them, it says so once, and the run goes on.

mod file;
mod follower;
mod histogram;
mod proto;

pub use file::files;
pub use follower::Follower;
