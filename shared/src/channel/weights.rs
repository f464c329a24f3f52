//! The seam for weights: how a new version gets from the side that makes it to the side that samples from it.
//!
//! A [`WeightSender`] publishes versions. A [`WeightReceiver`] brings them to this host and offers the newest. The
//! sampler's follower drives a receiver and knows no transport, so the same follower runs beside the learner and in a
//! worker on another host.
//!
//! | transport | sender | receiver |
//! |---|---|---|
//! | run directory, disk or shared memory ([`crate::run::versions`]) | `learner::publish` | `rollout::pair::weights` |
//! | store of a run with workers | `rollout_fleet::weights`, in the coordinator | `rollout_fleet::worker` |
//!
//! The coordinator is a relay: it receives from the run directory and sends to the store.
//!
//! How a receiver hears that there is something new is the transport's own affair: the pair hears it by the learner's
//! status ([`crate::channel`]), a worker by the coordinator's orders ([`crate::channel::fleet`]). Both are repeated
//! states, so a receiver may miss any number of versions and offers the newest one all the same.
//!
//! An offered version lies in a folder: the engine maps its files or reads them piece by piece, and the gate compares
//! them with the manifest and the canaries beside them. A transport without folders, such as a broadcast between GPUs,
//! writes what it receives into a folder in shared memory and offers that folder.

use std::path::PathBuf;

use crate::{channel::Refusal, generation::ids::PolicyVersion};

/// A version of the weights on disk: a folder with `model.onnx`, `weights.data` and `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSource {
    /// The folder.
    pub dir: PathBuf,
    /// The version it holds.
    pub version: PolicyVersion,
}

/// A version that a receiver offers, as it was published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Where it lies on this host, whole.
    pub source: WeightSource,
    /// Which publication it is: a version that was refused is published again, with another number.
    pub number: u64,
    /// Whether nothing is published after it: a refusal is then an error.
    pub is_last: bool,
    /// Whether it is the version that was taken last, made again with other weights.
    pub replaces: bool,
}

impl Publication {
    /// Whether a refusal is about this publication, and not about an earlier one of the version.
    #[must_use]
    pub fn is_refused_by(&self, refusal: &Refusal) -> bool {
        refusal.is_of(self.source.version, self.number)
    }
}

/// How a swap of weights went.
#[derive(Debug, Clone, Copy)]
pub struct SwapReport {
    /// The version now in use.
    pub version: PolicyVersion,
    /// Seconds from the request until the version was in use.
    pub seconds: f64,
    /// Seconds that the step loop stood still.
    pub stall_seconds: f64,
    /// Seconds that the conformity gate took.
    pub gate_seconds: f64,
}

impl SwapReport {
    /// The report of a version that was in use from the start and took the place of none.
    #[must_use]
    pub fn of_first(version: PolicyVersion) -> Self {
        Self { version, seconds: 0.0, stall_seconds: 0.0, gate_seconds: 0.0 }
    }
}

/// Publishes versions for receivers.
pub trait WeightSender {
    /// What a version is published from: a policy in memory, or a folder that was received.
    type Weights<'a>;
    /// How a version is known once it was published: by its number, or by an edition that names its bytes.
    type Version;
    /// What is known of a publication when [`WeightSender::publish`] returns: all of it, or how to ask for its end.
    type Published;
    /// Why a version cannot be published.
    type Error;

    /// Publishes a version. Receivers never see a part of it.
    ///
    /// # Errors
    /// Weights that are not to be published, or a transport that does not take them.
    fn publish(&mut self, weights: Self::Weights<'_>) -> Result<Self::Published, Self::Error>;

    /// Learns that receivers are offered `newest`, use the versions `in_use`, and have let go of all others. A version
    /// that is older and has been let go of may be removed, and a version in use only where each receiver has a copy of
    /// its own.
    ///
    /// # Errors
    /// Versions that cannot be removed, or whose removal cannot be noted down.
    fn let_go(&mut self, newest: Self::Version, in_use: &[Self::Version]) -> Result<(), Self::Error>;
}

/// Brings versions to this host, one after the other. No method waits: what takes long goes on beside the caller.
///
/// Whoever goes over from one version to the next calls [`WeightReceiver::taking`] before the first look at the files
/// of the next one. Then exactly one of [`WeightReceiver::taken`], [`WeightReceiver::refused`] and
/// [`WeightReceiver::failed`] follows. Nothing is in use before the first version, which is only taken or refused.
pub trait WeightReceiver {
    /// Why no version will come any more.
    type Error;

    /// The newest version that may be taken; none before the first has come, and always one afterwards. It may be the
    /// one that is in use.
    ///
    /// # Errors
    /// A transport that is of no further use.
    fn newest(&mut self) -> Result<Option<Publication>, Self::Error>;

    /// The files of this publication are read from now on, and the files of the version `in_use` as before. Both must
    /// stay as they are.
    fn taking(&mut self, publication: &Publication, in_use: PolicyVersion);

    /// The version that was being read, or else the first one, is in use. The files of the one before are needed no
    /// longer.
    fn taken(&mut self, report: &SwapReport);

    /// The version that was being read, or else the first one, is not what was published. The one before stays in use,
    /// and another publication is waited for.
    fn refused(&mut self, refusal: Refusal);

    /// The version that was being read could not be loaded. What is newest by then will be tried.
    fn failed(&mut self);
}
