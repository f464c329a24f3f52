//! A worker: samples for a run on another host. It knows no dataset, no rewards and no plan; everything it needs comes
//! with the coordinator's answers and from where the run has its weights, so it may come and go at any time.
//!
//! A worker runs the engine, and follows the versions with the same [`follower`](rollout::generate::follower) as the
//! sampler of a pair.
//!
//! | file | subject |
//! |---|---|
//! | `client` | the thread that calls the coordinator |
//! | `session` | what is done for one coordinator: opening, the loop, leases and their answers |
//! | `receiver` | the editions that it is to sample from, as a [`WeightReceiver`](shared::WeightReceiver) |
//! | `fetcher` | the thread that fetches them |
//! | `scratch` | where they are put |

mod client;
mod fetcher;
mod receiver;
mod scratch;
mod session;

use std::{
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use shared::channel::fleet::WorkerEnd;

pub use client::Client;
pub use scratch::Scratch;

/// What a worker is told by whoever starts it.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// What people call it.
    pub name: String,
    /// Where the store is, if it is elsewhere than the coordinator says.
    pub store: Option<String>,
    /// Where weights are put.
    pub cache: PathBuf,
    /// Threads; all cores if absent.
    pub threads: Option<usize>,
    /// Sequences decoded at once; as the run's if absent.
    pub max_num_seqs: Option<usize>,
    /// Overrides of what the run computes with, which make other bits.
    pub kernels: Option<shared::config::Kernels>,
    /// The same, of where it computes.
    pub device: Option<shared::config::Device>,
    /// Where this host has the reward functions of the run, if that is elsewhere than on the run's own.
    pub reward_dir: Option<PathBuf>,
    /// How long a coordinator that does not answer is called.
    pub retry_for: Duration,
    /// Tokens per second that it makes at most, for trying out how throughput grows.
    pub tokens_per_second: Option<f64>,
}

/// Why a worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The run is over.
    RunOver,
    /// A signal asked it to.
    BySignal,
}

/// Works for the run that `end` leads to, until it is over or a signal asks for the end.
///
/// # Errors
/// A coordinator that wants nothing of this worker, or does not answer for too long; a store or an engine that fails.
pub fn run(
    end: impl WorkerEnd + 'static,
    number: u64,
    options: &WorkerOptions,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Left> {
    let client = Client::start(end, number, options)?;
    let scratch = Scratch::open(&options.cache)?;
    let result = session::work(&client, &scratch, options, stop);
    if let Err(error) = &result {
        client.report(|report| report.problem = Some(format!("{error:#}")));
        client.say_last();
    }
    result
}
