//! The seam between a run and its samplers on other hosts: a coordinator beside the learner, and any number of workers.
//!
//! The coordinator has the plan, the dataset and the rewards. It *leases* prompts to workers, which only turn token ids
//! into token ids. A worker calls ([`WorkerEnd::exchange`]) whenever it has something to tell or the coordinator has
//! woken it ([`CoordinatorEnd::wake`]), and at least every [`CALL_INTERVAL`]. A call carries what the worker *is and
//! has*, the answer what is *its to do*: states, as everywhere in this module, so a call, an answer or a wake-up that
//! is lost costs time and nothing else. What a worker has finished is part of its calls until one is answered, and may
//! arrive twice; a lease that nobody finishes is given to another worker, so it may be finished twice. Each completion
//! counts once.
//!
//! Weights do not pass here. An [`Edition`] names them by hash, and the store of the run has them, or its run directory where
//! there is no store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ChannelError, Refusal};
use crate::{
    compute::{Device, Kernels, KvDtype, RolloutDtype},
    episode::{FinishReason, TokenLogprob},
    group::RewardOutcome,
    ids::{PolicyVersion, PromptId},
    sampling::SamplingParams,
};

/// How often a worker calls although nothing has happened.
pub const CALL_INTERVAL: Duration = Duration::from_millis(500);
/// Largest message that either side takes.
pub const MOST_BYTES: usize = 256 << 20;
/// About as many bytes of what it has made a worker puts into one call, and keeps the rest for the next: a message that is not
/// sent within some seconds is lost with its connection, however slow that is.
pub const CALL_BYTES: usize = 1 << 20;

/// A published version as it lies in the store, or where the learner has left it ([`RunFacts::run_dir`]). A version that a
/// restarted learner makes again, or publishes again, is another edition of the same number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Edition {
    /// The version.
    pub version: PolicyVersion,
    /// Which of the coordinator's publications: another one of the same bytes is looked at again by a worker that
    /// refused it.
    pub publication: u64,
    /// Hash of the index that the store has of it, which has the hashes of everything else; without a store, hash of its
    /// manifest.
    pub blake3: [u8; 32],
    /// The same of the export that it adds an adapter to, if it is one and lies in the store.
    pub base: Option<[u8; 32]>,
    /// Whether it lies there rounded, for workers that compute in what the run does.
    pub rounded: bool,
    /// Shorter ways to it, from editions that workers had when it was published.
    pub differences: Vec<Difference>,
}

/// What has changed from one edition to another, as it lies in the store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Difference {
    /// The version that it leads from.
    pub from: PolicyVersion,
    /// Hash of that edition.
    pub from_blake3: [u8; 32],
    /// Hash of the index that the store has of the difference.
    pub blake3: [u8; 32],
}

/// What the last bits of a worker's figures depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelClass {
    /// Where it computes.
    pub device: Device,
    /// What computes.
    pub kernels: Kernels,
    /// What linear layers compute in.
    pub rollout_dtype: RolloutDtype,
    /// What keys and values are stored as.
    pub kv_dtype: KvDtype,
}

/// Some completions of one prompt, to be made by one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lease {
    /// Its number, from the coordinator.
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
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// What reward functions see of the row, as JSON, where the worker is to score what it makes: all completions of the group.
    pub row: Option<String>,
}

/// A completion that a worker has made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// The lease that it is of.
    pub lease: u64,
    /// Index within the group.
    pub sample: u32,
    /// Sampled tokens; the end-of-sequence token, if one came, is the last.
    pub token_ids: Vec<u32>,
    /// One entry per token.
    pub logprobs: Vec<TokenLogprob>,
    /// Runs of weight versions, `(first token index, version)`.
    pub versions: Vec<(u32, PolicyVersion)>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seconds from its admission to the last token.
    pub seconds: f64,
    /// What the reward functions of the run, in their order, say of it; empty where the worker was not to score it.
    pub rewards: Vec<RewardOutcome>,
}

/// What a worker is and has, told with every call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Random number drawn at the worker's start.
    pub worker: u64,
    /// What people call it. Whoever has no name is no worker, and is told what a worker is told first.
    pub name: String,
    /// Version of the program.
    pub build: String,
    /// Seconds since 1970 by the worker's clock, for people: nothing goes by it.
    pub clock: f64,
    /// The coordinator whose leases it has: [`Orders::coordinator`] of the last answer, 0 before the first.
    pub coordinator: u64,
    /// What it computes with, once it has begun to.
    pub class: Option<KernelClass>,
    /// Sequences that it decodes at once; 0 before it can.
    pub max_num_seqs: u32,
    /// The edition that new tokens are sampled from.
    pub edition: Option<Edition>,
    /// Leases of which it has something to do, ascending.
    pub held: Vec<u64>,
    /// What it has made and the coordinator may not have.
    pub made: Vec<Made>,
    /// An edition that it does not take into use, with the reason.
    pub refusal: Option<Refusal>,
    /// An edition that it cannot fetch, and tries again, or has fetched by a longer way.
    pub unfetched: Option<Unfetched>,
    /// Why it can do nothing for this run. It leaves once the coordinator has answered.
    pub problem: Option<String>,
    /// Counters since its start.
    pub work: Work,
}

/// Why an edition does not come to a worker, or not by the shortest way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfetched {
    /// Which: [`Edition::publication`].
    pub publication: u64,
    /// Whether the store has something else than the coordinator has published, or nothing any more.
    pub is_damage: bool,
    /// What is in the way.
    pub reason: String,
}

/// What a worker has done since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Completion tokens generated, those of sequences that still run included: they grow as long as it gets on.
    pub tokens: u64,
    /// Completions scored.
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
    /// Seconds that the last version took from being heard of to being in use.
    pub swap_s: f64,
}

/// What a worker needs to know of a run before it can do anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFacts {
    /// The resolved configuration, as TOML.
    pub config: String,
    /// Hash of the store's index of the model's files (configuration and tokenizer, no weights).
    pub model: [u8; 32],
    /// Longest prompt plus completion.
    pub max_model_len: u64,
    /// Where the store is, as the coordinator was told.
    pub store: String,
    /// The run directory, where workers are on its host and read versions where they lie: the store has none then.
    pub run_dir: Option<String>,
}

/// What is a worker's to do: the answer to a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// Random number drawn at the coordinator's start. Leases of another coordinator are of no use.
    pub coordinator: u64,
    /// Facts of the run, for a worker that has not named this coordinator.
    pub facts: Option<RunFacts>,
    /// The edition to sample from; none before the first.
    pub edition: Option<Edition>,
    /// Every lease of the worker, ascending; what it has besides is to be given up.
    pub leases: Vec<u64>,
    /// Those of them that it has not named.
    pub granted: Vec<Lease>,
    /// Why the coordinator wants nothing of this worker. It leaves.
    pub refused: Option<String>,
    /// The run is over. The worker leaves.
    pub finished: bool,
}

/// A worker's end.
pub trait WorkerEnd: Send {
    /// Calls the coordinator. What is in the report has arrived when there is an answer; without one it may have.
    ///
    /// # Errors
    /// [`ChannelError::Unreachable`] without a connection, which comes back by itself; [`ChannelError::Timeout`] without an
    /// answer; [`ChannelError::Refused`] by the coordinator; an answer that cannot be read.
    fn exchange(&mut self, report: &Report, timeout: Duration) -> Result<Orders, ChannelError>;

    /// Waits until the coordinator wakes it, at most so long; whether it has.
    fn listen(&mut self, timeout: Duration) -> bool;
}

/// The coordinator's end.
pub trait CoordinatorEnd: Send {
    /// What has happened, waiting at most so long for it.
    ///
    /// # Errors
    /// When the transport does not work. A message that cannot be read is not an error of the coordinator's.
    fn next(&mut self, timeout: Duration) -> Result<Option<CoordinatorEvent>, ChannelError>;

    /// Has every worker call. Never waits.
    fn wake(&mut self);
}

/// What happens at the coordinator's end.
pub enum CoordinatorEvent {
    /// A worker calls.
    Call(Box<dyn Call>),
    /// The connection to the worker of this number is gone. It may come back.
    Gone(u64),
    /// A message that could not be read was answered with an error; who sent it, as far as that is known, and why.
    Refused {
        /// Who it was from.
        from: String,
        /// What was wrong with it.
        reason: String,
    },
}

/// A call that waits for its answer. Dropped without one, it looks lost.
pub trait Call: Send {
    /// What the worker says.
    fn report(&self) -> &Report;

    /// Answers. Whether the answer arrives is not known.
    fn answer(self: Box<Self>, orders: &Orders);
}
