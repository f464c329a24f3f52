//! TensorBoard's event files of a run, which lie beside `metrics.jsonl`: what `tensorboard --logdir` shows.

mod file;
mod follower;
mod histogram;
mod proto;

pub use file::files;
pub use follower::Follower;
