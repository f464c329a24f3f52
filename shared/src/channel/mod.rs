//! The seam between the two processes: groups one way, two small statuses, one each way.
//!
//! Statuses are *states, not events*: each side repeats its newest status several times a second, so a lost message, a
//! late start or a restart needs no special case, and silence means that the peer is gone. Everything that must not be
//! lost is either on disk (weights, checkpoints, the end of the run) or kept by the sampler until
//! [`LearnerStatus::durable_step`] passes it.
//!
//! A status that has changed is sent at once; the repetition makes its loss harmless. Versions of the weights are found
//! in the same way: the newest complete manifest on disk is the current one, and a message is only a reason to look.
//!
//! The transport of one node is iceoryx2 ([`iox`]); the tests of either half join two threads of one process instead.
//! With samplers on other hosts, [`fleet`] is a second seam behind the first one, with frames of the same kind.

pub mod fleet;
pub mod frame;
pub mod in_flight;
pub mod iox;
mod run_id;
mod silence;
pub mod weights;

use std::{
    io,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

pub use run_id::{RunId, RunIdError};
pub use silence::Silence;

use crate::{
    files::{atomic, run_dir::RunDir},
    generation::{
        group::Placed,
        ids::{PolicyVersion, Step},
        rng,
    },
};

/// A random number that no other process of a run is likely to draw.
#[must_use]
pub fn incarnation() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    rng::hash(&[now, std::process::id().into()])
}

/// The learner's status, which it repeats to the sampler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnerStatus {
    /// Random number drawn at process start, and at each roll-back: a change means that the learner goes on from a
    /// checkpoint.
    pub incarnation: u64,
    /// Newest published version, complete on disk.
    pub version: PolicyVersion,
    /// The publication that `version` is of: drawn with `incarnation`, and one more whenever a version is published
    /// again because the sampler refused it.
    pub publication: u64,
    /// The step that is being trained or waited for: every earlier step is done.
    pub step: Step,
    /// Dataset position at which `step` begins.
    pub cursor: u64,
    /// Every step before this one is in a checkpoint; its groups need not be kept any longer.
    pub durable_step: Step,
    /// Indices of the groups of `step` that have arrived, ascending, up to the first gap.
    pub received: Vec<u32>,
    /// Dataset position at which the first missing group begins.
    pub next_cursor: u64,
    /// Number of steps of the whole run.
    pub total_steps: u64,
    /// Versions that a roll-back has given up, after the first and up to the second. Completions sampled from them do
    /// not count.
    pub given_up: Option<(PolicyVersion, PolicyVersion)>,
    /// A checkpoint of `step` is being written: the sampler adds what it has in flight ([`in_flight`]).
    pub saving: bool,
    /// Whether the newest checkpoint holds what was in flight at the sampler, in a form that still fits the run.
    pub in_flight: bool,
    /// The run is over: the sampler ends.
    pub finished: bool,
}

impl LearnerStatus {
    /// The status of a process that begins, or of a run that goes back. Its numbers are those of no other beginning: a
    /// refusal that the sampler remembers from before is about none of its publications.
    #[must_use]
    pub fn begun() -> Self {
        let incarnation = incarnation();
        Self { incarnation, publication: incarnation >> 1, ..Self::default() }
    }

    /// Leaves the last status of a finished run on disk. The learner will soon be gone, and a sampler that is starting
    /// or restarting must not wait for it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn leave(&self, run_dir: &RunDir, run: RunId) -> io::Result<()> {
        let left = Left { run: run.to_string(), status: self.clone() };
        atomic::write(&run_dir.finished(), &serde_json::to_vec(&left)?)
    }

    /// What [`LearnerStatus::leave`] has left of this run; none while it goes on.
    #[must_use]
    pub fn left(run_dir: &RunDir, run: RunId) -> Option<Self> {
        let left: Left = serde_json::from_slice(&shared_bounds::read(&run_dir.finished(), MOST_LEFT).ok()?).ok()?;
        (left.run.parse() == Ok(run)).then_some(left.status)
    }
}

/// Most bytes of `finished.json`.
const MOST_LEFT: u64 = 1 << 20;

/// `finished.json`: the last status of a run, with the id of the start that left it.
#[derive(Serialize, Deserialize)]
struct Left {
    run: String,
    #[serde(flatten)]
    status: LearnerStatus,
}

/// A version whose content is not what the learner published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The version.
    pub version: PolicyVersion,
    /// Which of its publications ([`LearnerStatus::publication`]).
    pub publication: u64,
    /// The difference.
    pub reason: String,
}

impl Refusal {
    /// Whether it is about this publication of a version.
    #[must_use]
    pub fn is_of(&self, version: PolicyVersion, publication: u64) -> bool {
        (self.version, self.publication) == (version, publication)
    }
}

/// The sampler's answer to [`LearnerStatus::saving`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// The incarnation of the learner that asked.
    pub learner: u64,
    /// The step of the checkpoint.
    pub step: Step,
    /// Hash of the file that was written for it; none if it could not be written.
    pub blake3: Option<[u8; 32]>,
}

/// State and figures of a run's workers, all of them together. Counters count from the start of the process that sends
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// Workers that can make completions now.
    pub workers: u64,
    /// Completion tokens that they make per second, over the last half minute or so.
    pub tokens_per_s: u64,
    /// The largest number of versions that one of them is behind the newest.
    pub staleness: u64,
    /// Leases that were taken back because they were not finished in time.
    pub expired: u64,
    /// Completions that were made although another worker had delivered them first.
    pub twice: u64,
    /// Prompts that were sampled again elsewhere with the same result.
    pub verified: u64,
    /// Prompts whose second result differed.
    pub disputed: u64,
    /// Bytes written to the store.
    pub stored_bytes: u64,
    /// Bytes that workers fetched from the store.
    pub fetched_bytes: u64,
    /// Microseconds during which no worker was at work.
    pub alone_micros: u64,
}

/// The sampler's status, which it repeats to the learner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerStatus {
    /// Random number drawn at process start.
    pub incarnation: u64,
    /// The version that new tokens are sampled from.
    pub version: PolicyVersion,
    /// The oldest version whose files are still mapped: it and everything newer must stay on disk.
    pub oldest_in_use: PolicyVersion,
    /// How long the last swap took, from noticing the version to its first usable session, in microseconds.
    pub swap_micros: u64,
    /// How long the step loop stood still for that swap, in microseconds.
    pub swap_stall_micros: u64,
    /// How long the conformity gate took for the version, in microseconds.
    pub gate_micros: u64,
    /// The version that the sampler refuses, as long as it does.
    pub refusal: Option<Refusal>,
    /// Completion tokens generated since the process started.
    pub generated_tokens: u64,
    /// Microseconds spent generating (not waiting) since the process started.
    pub busy_micros: u64,
    /// Microseconds spent waiting for weights or for room in the channel since the process started.
    pub idle_micros: u64,
    /// Whether it waits right now, and needs none of its cores.
    pub waiting: bool,
    /// The last checkpoint for which it has written its completions in flight.
    pub in_flight: Option<InFlight>,
    /// Its workers, if it samples with workers.
    pub fleet: Option<FleetStatus>,
}

/// A hand-over that failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The peer did not take the message before the deadline.
    #[error("the {peer} did not take a message for {seconds:.0} s; see its log in the run directory")]
    Timeout {
        /// `sampler`, `learner` or `coordinator`.
        peer: &'static str,
        /// How long the hand-over was tried.
        seconds: f64,
    },
    /// A frame is damaged or of another version of this program.
    #[error("a frame from the peer cannot be read: {0}")]
    Frame(String),
    /// The transport failed.
    #[error("the shared-memory channel failed: {0}")]
    Transport(String),
    /// There is no connection to the coordinator.
    #[error("the coordinator cannot be reached: {0}")]
    Unreachable(String),
    /// The coordinator's reason for refusing a call, or a message that is larger than either side takes.
    #[error("a call was refused: {0}")]
    Refused(String),
}

impl From<frame::FrameError> for ChannelError {
    fn from(error: frame::FrameError) -> Self {
        Self::Frame(error.to_string())
    }
}

/// The sampler's end.
pub trait SamplerEnd: Send {
    /// Hands a group over; waits while the channel is full, so that a slow learner slows the sampler. Having no
    /// receiver counts as full.
    ///
    /// # Errors
    /// [`ChannelError::Timeout`] at the deadline.
    fn send_group(&mut self, group: &Placed, deadline: Instant) -> Result<(), ChannelError>;

    /// Repeats the sampler's status. Never waits.
    ///
    /// # Errors
    /// When the transport fails.
    fn publish_status(&mut self, status: &SamplerStatus) -> Result<(), ChannelError>;

    /// The learner's newest status since the last call, if one came. Never waits.
    ///
    /// # Errors
    /// When the transport fails or the frame is damaged.
    fn learner_status(&mut self) -> Result<Option<LearnerStatus>, ChannelError>;
}

/// The learner's end.
pub trait LearnerEnd: Send {
    /// The next group, waiting at most `timeout` for it.
    ///
    /// # Errors
    /// When the transport fails or the frame is damaged.
    fn receive_group(&mut self, timeout: Duration) -> Result<Option<Placed>, ChannelError>;

    /// Repeats the learner's status. Never waits.
    ///
    /// # Errors
    /// When the transport fails.
    fn publish_status(&mut self, status: &LearnerStatus) -> Result<(), ChannelError>;

    /// The sampler's newest status since the last call, if one came. Never waits.
    ///
    /// # Errors
    /// When the transport fails or the frame is damaged.
    fn sampler_status(&mut self) -> Result<Option<SamplerStatus>, ChannelError>;
}

/// How often each side repeats its status.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_about_no_publication_of_another_start() {
        let (first, second) = (LearnerStatus::begun(), LearnerStatus::begun());
        assert_ne!(first.incarnation, second.incarnation);
        let refusal = Refusal { version: first.version, publication: first.publication, reason: "a hash".into() };
        assert!(refusal.is_of(first.version, first.publication));
        assert!(!refusal.is_of(second.version, second.publication));
    }
}
