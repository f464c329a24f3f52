//! Keeping the engine on the version that the learner has.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use anyhow::ensure;
use shared::{
    PolicyVersion, RunDir,
    channel::{LearnerStatus, Refusal, SamplerStatus},
    config::WeightSwap,
};

use super::Generate;
use crate::engine::{EngineError, SwapReport, WeightSource};

/// A folder that was just being replaced (by a restarted learner) is whole again at once; anything else is no accident.
const ATTEMPTS: u32 = 5;
/// Pause before a swap that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// What a generator is to have: a version, as it was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publication {
    /// The version.
    pub version: PolicyVersion,
    /// Which publication it is: a version that was refused is published again, with another number.
    pub number: u64,
    /// Whether nothing is published after it: a refusal is then an error.
    pub is_last: bool,
}

impl From<&LearnerStatus> for Publication {
    fn from(learner: &LearnerStatus) -> Self {
        Self { version: learner.version, number: learner.publication, is_last: learner.finished }
    }
}

/// Follows the learner's version. The new session is built beside generation; when it takes over depends on what runs:
///
/// - with [`WeightSwap::Drain`], running sequences finish first and waiting ones start after the swap;
/// - with [`WeightSwap::Continue`], it takes over between two decode steps;
/// - a version that goes *down* (the learner was restarted from a checkpoint) waits until everything that was begun has
///   finished, since a group's staleness was checked when it was begun.
pub struct WeightFollower {
    run_dir: RunDir,
    swap: WeightSwap,
    pending: Option<PolicyVersion>,
    /// Which publication that is, or was.
    publication: u64,
    /// What the engine has is not what the learner calls by that version.
    lost: bool,
    /// So it is until the pending version is in use.
    replaces_lost: bool,
    /// A version that waits for another publication, with what was found.
    refused: Option<Refusal>,
    failures: u32,
    not_before: Instant,
}

impl WeightFollower {
    /// A follower of the versions in a run directory.
    #[must_use]
    pub fn new(run_dir: RunDir, swap: WeightSwap) -> Self {
        Self {
            run_dir,
            swap,
            pending: None,
            publication: 0,
            lost: false,
            replaces_lost: false,
            refused: None,
            failures: 0,
            not_before: Instant::now(),
        }
    }

    /// Where a version is.
    #[must_use]
    pub fn source(&self, version: PolicyVersion) -> WeightSource {
        WeightSource { dir: self.run_dir.version(version), version }
    }

    /// One look at where things stand, without waiting: begins a swap, or makes it when it may be made. A version that
    /// is refused is tried again when the learner has published it again.
    ///
    /// # Errors
    /// When the version cannot be loaded, after several attempts, or is refused after the learner's end.
    pub fn follow(
        &mut self,
        engine: &mut dyn Generate,
        wanted: Publication,
        status: &Mutex<SamplerStatus>,
    ) -> anyhow::Result<()> {
        let target = wanted.version;
        let refused = self.refused.as_ref().filter(|refused| self.pending.is_none() && is_about(refused, wanted));
        if let Some(refused) = refused {
            ensure!(!wanted.is_last, "weights v{target} are refused: {}", refused.reason);
            return Ok(());
        }
        let result = match self.pending {
            None if target == engine.version() && !self.lost || Instant::now() < self.not_before => return Ok(()),
            None => self.begin(engine, wanted, status),
            Some(pending) if self.may_swap(engine, pending) => self.finish(engine, status),
            Some(_) => return Ok(()),
        };
        let Err(error) = result else {
            return Ok(());
        };
        let version = self.pending.take().unwrap_or(target);
        self.lost |= self.replaces_lost;
        engine.set_admission(true);
        if let Some(refusal) = refusal(&error, version, self.publication) {
            self.failures = 0;
            self.refused = Some(refusal.clone());
            own(status).refusal = Some(refusal);
            return Ok(());
        }
        if is_final(&error) {
            return Err(error);
        }
        self.failures += 1;
        self.not_before = Instant::now() + RETRY;
        if self.failures < ATTEMPTS {
            tracing::warn!("weights v{target} cannot be loaded, trying again: {error:#}");
            return Ok(());
        }
        Err(error.context(format!("weights v{target} cannot be loaded")))
    }

    /// The learner was restarted and makes the versions after `newest` anew: one of them that is loaded, or about to
    /// be, is replaced even by a version of the same number.
    pub fn forget(&mut self, engine: &dyn Generate, newest: PolicyVersion) {
        self.lost |= self.pending.unwrap_or(newest).max(engine.version()) > newest;
    }

    /// Whether new groups may be given to the engine: not before a swap that waits for the running ones, and not while
    /// what it has is lost.
    #[must_use]
    pub fn takes_groups(&self, engine: &dyn Generate) -> bool {
        !self.lost && self.pending.is_none_or(|pending| self.swap == WeightSwap::Continue && pending > engine.version())
    }

    /// Whether sequences that wait in the engine may start.
    #[must_use]
    pub fn lets_start(&self, engine: &dyn Generate) -> bool {
        self.pending.is_none_or(|pending| self.swap == WeightSwap::Continue || pending < engine.version())
    }

    /// Whether the engine has what it was to have.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.pending.is_none() && !self.lost
    }

    /// Whether a session is in the making.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.pending.is_some()
    }

    fn begin(
        &mut self,
        engine: &mut dyn Generate,
        wanted: Publication,
        status: &Mutex<SamplerStatus>,
    ) -> anyhow::Result<()> {
        let target = wanted.version;
        self.publication = wanted.number;
        self.replaces_lost = std::mem::take(&mut self.lost);
        own(status).oldest_in_use = target.min(engine.version());
        engine.begin_swap(self.source(target))?;
        if self.swap == WeightSwap::Drain && target > engine.version() {
            engine.set_admission(false);
        }
        self.pending = Some(target);
        Ok(())
    }

    fn may_swap(&self, engine: &dyn Generate, pending: PolicyVersion) -> bool {
        if pending < engine.version() {
            return engine.is_idle();
        }
        self.swap == WeightSwap::Continue || engine.running() == 0
    }

    fn finish(&mut self, engine: &mut dyn Generate, status: &Mutex<SamplerStatus>) -> anyhow::Result<()> {
        let swapped = engine.try_swap().map_err(|error| match error {
            EngineError::Unsent { .. } => error.into(),
            other => anyhow::Error::new(other).context("the new session is of no use"),
        });
        let Some(report) = swapped? else { return Ok(()) };
        self.pending = None;
        self.failures = 0;
        self.refused = None;
        engine.set_admission(true);
        let SwapReport { version, seconds, stall_seconds, gate_seconds } = report;
        let (stall, gate) = (stall_seconds * 1e3, gate_seconds * 1e3);
        tracing::info!("weights v{version} in use after {seconds:.3} s, gate {gate:.1} ms, stall {stall:.1} ms");
        let mut status = own(status);
        status.version = version;
        status.oldest_in_use = version;
        status.swap_micros = micros(seconds);
        status.swap_stall_micros = micros(stall_seconds);
        status.gate_micros = micros(gate_seconds);
        status.refusal = None;
        Ok(())
    }
}

/// The refusal of a publication, if that is what an error is about.
pub(crate) fn refusal(error: &anyhow::Error, version: PolicyVersion, publication: u64) -> Option<Refusal> {
    let reason = error.downcast_ref::<EngineError>()?.refusal()?;
    tracing::error!("weights v{version} are refused, and wait for the learner to publish them again: {reason}");
    Some(Refusal { version, publication, reason })
}

/// Whether another attempt has been made already as often as it is of use.
fn is_final(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::Unsent { .. }))
}

/// Whether a refusal is about what the learner has published last.
pub(crate) fn is_about(refusal: &Refusal, wanted: Publication) -> bool {
    (refusal.version, refusal.publication) == (wanted.version, wanted.number)
}

fn own(status: &Mutex<SamplerStatus>) -> MutexGuard<'_, SamplerStatus> {
    status.lock().expect("no holder of the lock panics")
}

fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}
