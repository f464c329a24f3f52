//! The seam between a run and its samplers on other hosts: a coordinator beside the learner, and any number of workers.
//!
//! The coordinator has the plan, the dataset and the rewards. It *leases* prompts to workers, which only turn token ids
//! into token ids. A worker calls ([`WorkerEnd::exchange`]) whenever it has something to tell or the coordinator has
//! woken it ([`CoordinatorEnd::wake`]), and at least every [`CALL_INTERVAL`]. A call carries what the worker *is and
//! has*, the answer what is *its to do*: states, as everywhere in this module, so a call, an answer or a wake-up that
//! is lost costs time and nothing else. Completions that a worker has finished are part of its calls until one is
//! answered, and may arrive twice; a lease that nobody finishes is given to another worker, so it may be finished
//! twice. Each completion counts once.
//!
//! Weights do not pass here. An [`Edition`] names them by hash, and the store of the run has them, or its run directory
//! where there is no store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ChannelError, Refusal};
use crate::{
    generation::{
        episode::{FinishReason, TokenLogprob},
        group::RewardOutcome,
        ids::{PolicyVersion, PromptId},
        sampling::SamplingParams,
    },
    system::compute::{Device, Kernels, KvDtype, RolloutDtype},
};

/// How often a worker calls although nothing has happened.
pub const CALL_INTERVAL: Duration = Duration::from_millis(500);
/// Largest message that either side takes.
pub const MOST_BYTES: usize = 256 << 20;
/// A worker puts about this many bytes of completions into one call, and keeps the rest for the next: a message that
/// cannot be sent within some seconds is lost with its connection, however slow that is.
pub const CALL_BYTES: usize = 1 << 20;

/// A published version as it lies in the store, or where the learner has left it ([`RunFacts::run_dir`]). A version
/// that a restarted learner makes again, or publishes again, is another edition of the same number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Edition {
    /// The version.
    pub version: PolicyVersion,
    /// Number of the publication: a worker that refused an edition looks again at a new publication of the same bytes.
    pub publication: u64,
    /// Hash of its index in the store, which has the hashes of everything else; without a store, hash of its manifest.
    pub blake3: [u8; 32],
    /// The same hash for the export that it adds an adapter to, if it is an adapter and lies in the store.
    pub base: Option<[u8; 32]>,
    /// Whether it is rounded in the store, for workers that compute in the run's `rollout_dtype`.
    pub rounded: bool,
    /// Differences that lead to it from editions that workers had when it was published.
    pub differences: Vec<Difference>,
}

impl Edition {
    /// Whether it is a publication of the same bytes.
    #[must_use]
    pub fn has_bytes_of(&self, other: &Self) -> bool {
        (self.blake3, self.base) == (other.blake3, other.base)
    }
}

/// The difference between two editions, as it lies in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Difference {
    /// The version that it starts from.
    pub from: PolicyVersion,
    /// Hash of the edition that it starts from.
    pub from_blake3: [u8; 32],
    /// Hash of the difference's index in the store.
    pub blake3: [u8; 32],
}

/// Properties of a worker that decide the last bits of its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelClass {
    /// Device of the model.
    pub device: Device,
    /// Kernels that compute it.
    pub kernels: Kernels,
    /// Number format of products in linear layers.
    pub rollout_dtype: RolloutDtype,
    /// Number format of stored keys and values.
    pub kv_dtype: KvDtype,
}

/// Some completions of one prompt, assigned to one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number, given by the coordinator.
    pub id: u64,
    /// The oldest version that a token of it may be sampled from; with `max_staleness` 0, the only one.
    pub version: PolicyVersion,
    /// Key of the randomness.
    pub prompt_id: PromptId,
    /// Key of the randomness: the epoch of the dataset.
    pub epoch: u32,
    /// The prompt.
    pub prompt_ids: Vec<u32>,
    /// Indices of the completions within their group, ascending.
    pub samples: Vec<u32>,
    /// Parameters of the sampling distribution.
    pub sampling: SamplingParams,
    /// The row as reward functions see it, as JSON, if the worker must score its completions: all completions of the
    /// group.
    pub row: Option<String>,
}

/// A completion that a worker has made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// The lease that it belongs to.
    pub lease: u64,
    /// Index within the group.
    pub sample: u32,
    /// Sampled tokens; the end-of-sequence token, if one came, is the last.
    pub token_ids: Vec<u32>,
    /// One entry per token.
    pub logprobs: Vec<TokenLogprob>,
    /// Runs of weight versions, `(first token index, version)`.
    pub versions: Vec<(u32, PolicyVersion)>,
    /// Why generation ended.
    pub finish_reason: FinishReason,
    /// Seconds from its admission to the last token.
    pub seconds: f64,
    /// Outcomes of the run's reward functions, in their order; empty if the worker does not score it.
    pub rewards: Vec<RewardOutcome>,
}

/// State of a worker, sent with every call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Random number drawn at the worker's start.
    pub worker: u64,
    /// Its name for people. Without a name it is no worker, and the answer has what a worker is told first.
    pub name: String,
    /// Version of the program.
    pub build: String,
    /// Seconds since 1970 by the worker's clock, for people: nothing depends on it.
    pub clock: f64,
    /// The coordinator whose leases it has: [`Orders::coordinator`] of the last answer, 0 before the first.
    pub coordinator: u64,
    /// The class of its kernels, once it has begun to compute.
    pub class: Option<KernelClass>,
    /// Sequences that it decodes at once; 0 before it can.
    pub max_num_seqs: u32,
    /// The edition that new tokens are sampled from.
    pub edition: Option<Edition>,
    /// Leases that it works on, ascending.
    pub held: Vec<u64>,
    /// Completions that it has made and the coordinator may not have.
    pub made: Vec<Made>,
    /// An edition that it refuses, with the reason.
    pub refusal: Option<Refusal>,
    /// An edition that it could not fetch and tries again, or has fetched in a longer way.
    pub unfetched: Option<Unfetched>,
    /// Why it can do nothing for this run. It leaves once the coordinator has answered.
    pub problem: Option<String>,
    /// Counters since its start.
    pub work: Work,
}

/// Why a worker could not fetch an edition, or not in the shortest way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfetched {
    /// Which: [`Edition::publication`].
    pub publication: u64,
    /// Whether the store has other bytes than the coordinator published, or none any more.
    pub is_damage: bool,
    /// The obstacle.
    pub reason: String,
}

/// What a worker has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Completion tokens generated, including those of running sequences: the number grows as long as the worker makes
    /// progress.
    pub tokens: u64,
    /// Number of completions scored.
    pub scored: u64,
    /// Leases whose completions are being scored, which takes as long as reward functions may.
    pub scoring: u32,
    /// Seconds spent generating.
    pub busy_s: f64,
    /// Seconds spent without anything to do.
    pub idle_s: f64,
    /// Bytes fetched from the store.
    pub fetched_bytes: u64,
    /// Seconds spent fetching them.
    pub fetch_s: f64,
    /// Seconds from the announcement of the last version to its first use.
    pub swap_s: f64,
}

/// Facts of a run that a worker needs before it can do anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFacts {
    /// The resolved configuration, as TOML.
    pub config: String,
    /// Hash of the store's index of the model's files (configuration and tokenizer, no weights).
    pub model: [u8; 32],
    /// Longest prompt plus completion.
    pub max_model_len: u64,
    /// The store's address, as the coordinator was given it.
    pub store: String,
    /// The run directory, if workers run on its host and read versions there: the store has none then.
    pub run_dir: Option<String>,
}

/// Work for a worker: the answer to a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// Random number drawn at the coordinator's start. Leases of another coordinator are of no use.
    pub coordinator: u64,
    /// Facts of the run, for a worker that has not named this coordinator.
    pub facts: Option<RunFacts>,
    /// The edition to sample from; none before the first version.
    pub edition: Option<Edition>,
    /// Every lease of the worker, ascending; it must give up any other.
    pub leases: Vec<u64>,
    /// Those of `leases` that its report did not name.
    pub granted: Vec<Lease>,
    /// Why the coordinator wants nothing of this worker, which then leaves.
    pub refused: Option<String>,
    /// The run is over, and the worker leaves.
    pub finished: bool,
}

/// A worker's end.
pub trait WorkerEnd: Send {
    /// Calls the coordinator. After an answer, the report has arrived; without one, it may have.
    ///
    /// # Errors
    /// [`ChannelError::Unreachable`] without a connection, which comes back by itself; [`ChannelError::Timeout`]
    /// without an answer; [`ChannelError::Refused`] by the coordinator; an answer that cannot be read.
    fn exchange(&mut self, report: &Report, timeout: Duration) -> Result<Orders, ChannelError>;

    /// Waits for a wake-up, at most `timeout`; returns whether one came.
    fn listen(&mut self, timeout: Duration) -> bool;
}

/// The coordinator's end.
pub trait CoordinatorEnd: Send {
    /// The next event, after a wait of at most `timeout`.
    ///
    /// # Errors
    /// When the transport does not work. A message that cannot be read is not an error of the coordinator's.
    fn next(&mut self, timeout: Duration) -> Result<Option<CoordinatorEvent>, ChannelError>;

    /// Makes every worker call. Never waits.
    fn wake(&mut self);
}

/// An event at the coordinator's end.
pub enum CoordinatorEvent {
    /// A worker calls.
    Call(Box<dyn Call>),
    /// The connection to the worker of this number is gone. It may come back.
    Gone(u64),
    /// A message could not be read and was answered with an error.
    Refused {
        /// The sender, as far as it is known.
        from: String,
        /// The fault.
        reason: String,
    },
}

/// A call that waits for its answer. If it is dropped without an answer, it looks lost to the worker.
pub trait Call: Send {
    /// The worker's report.
    fn report(&self) -> &Report;

    /// Answers the call. Whether the answer arrives is not known.
    fn answer(self: Box<Self>, orders: &Orders);
}
