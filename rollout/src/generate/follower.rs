//! Keeping the engine on the newest version that a receiver offers.

use std::time::{Duration, Instant};

use anyhow::ensure;
use shared::{
    PolicyVersion, WeightReceiver,
    channel::{Refusal, weights::Publication},
    config::{TrainConfig, WeightSwap},
};

use super::Generate;
use crate::engine::{EngineError, SwapReport};

/// A folder that was just being replaced (by a restarted learner) is whole again at once; anything else is no accident.
const ATTEMPTS: u32 = 5;
/// Pause before a swap that failed is tried again.
const RETRY: Duration = Duration::from_millis(500);

/// Follows the learner's version, by whatever [`WeightReceiver`] brings it. The new session is built beside generation;
/// when it takes over depends on what runs:
///
/// - with [`WeightSwap::Drain`], running sequences finish first and waiting ones start after the swap;
/// - with [`WeightSwap::Continue`], it takes over between two decode steps, and so it does with
///   [`WeightSwap::Recompute`], where the engine computes the context of running sequences again;
/// - a version that goes *down* (the learner was restarted from a checkpoint) waits until everything that was begun has
///   finished, since a group's staleness was checked when it was begun.
pub struct WeightFollower {
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
    /// A follower that lets a new version take over in this way.
    #[must_use]
    pub fn new(swap: WeightSwap) -> Self {
        Self {
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

    /// A follower for a run with this configuration.
    #[must_use]
    pub fn of(config: &TrainConfig) -> Self {
        Self::new(if config.max_staleness == 0 { WeightSwap::Drain } else { config.weight_swap })
    }

    /// One look at where things stand, without waiting: begins a swap, or makes it when it may be made. A version that
    /// is refused is tried again when it was published again.
    ///
    /// # Errors
    /// When the receiver is of no further use, or the version cannot be loaded, after several attempts, or is refused
    /// and nothing is published after it.
    pub fn follow<R>(&mut self, engine: &mut dyn Generate, receiver: &mut R) -> anyhow::Result<()>
    where
        R: WeightReceiver<Error: Into<anyhow::Error>>,
    {
        let Some(wanted) = receiver.newest().map_err(Into::<anyhow::Error>::into)? else { return Ok(()) };
        let target = wanted.source.version;
        self.lost |= wanted.replaces && self.pending != Some(target);
        let refused = self.refused.as_ref().filter(|refused| self.pending.is_none() && wanted.is_refused_by(refused));
        if let Some(refused) = refused {
            ensure!(!wanted.is_last, "weights v{target} are refused: {}", refused.reason);
            return Ok(());
        }
        let result = match self.pending {
            None if target == engine.version() && !self.lost || Instant::now() < self.not_before => return Ok(()),
            None => self.begin(engine, wanted, receiver),
            Some(pending) if self.may_swap(engine, pending) => self.finish(engine, receiver),
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
            receiver.refused(refusal);
            return Ok(());
        }
        receiver.failed();
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
        let may_start = |pending: PolicyVersion| {
            !self.replaces_lost && self.swap != WeightSwap::Drain && pending > engine.version()
        };
        !self.lost && self.pending.is_none_or(may_start)
    }

    /// Whether sequences that wait in the engine may start.
    #[must_use]
    pub fn lets_start(&self, engine: &dyn Generate) -> bool {
        self.pending.is_none_or(|pending| self.swap != WeightSwap::Drain || pending < engine.version())
    }

    /// Whether a session is in the making.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.pending.is_some()
    }

    fn begin<R>(&mut self, engine: &mut dyn Generate, wanted: Publication, receiver: &mut R) -> anyhow::Result<()>
    where
        R: WeightReceiver,
    {
        let target = wanted.source.version;
        self.publication = wanted.number;
        self.replaces_lost = std::mem::take(&mut self.lost);
        receiver.taking(&wanted, engine.version());
        engine.begin_swap(wanted.source)?;
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
        self.swap != WeightSwap::Drain || engine.running() == 0
    }

    fn finish<R>(&mut self, engine: &mut dyn Generate, receiver: &mut R) -> anyhow::Result<()>
    where
        R: WeightReceiver,
    {
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
        receiver.taken(&report);
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use shared::channel::weights::WeightSource;

    use super::{super::testing::Scripted, *};

    /// Versions in the memory of a test: there is no folder, and nobody looks into one.
    #[derive(Default)]
    struct InMemory {
        newest: Option<Publication>,
        said: Vec<Said>,
    }

    /// What a receiver was told, by the numbers of versions.
    #[derive(Debug, PartialEq)]
    enum Said {
        Taking { version: u64, in_use: u64 },
        Taken(u64),
        Refused { version: u64, publication: u64 },
        Failed,
    }

    impl InMemory {
        fn publish(&mut self, publication: Publication) {
            self.newest = Some(publication);
        }
    }

    impl WeightReceiver for InMemory {
        type Error = Infallible;

        fn newest(&mut self) -> Result<Option<Publication>, Infallible> {
            Ok(self.newest.clone())
        }

        fn taking(&mut self, publication: &Publication, in_use: PolicyVersion) {
            self.said.push(Said::Taking { version: publication.source.version.0, in_use: in_use.0 });
        }

        fn taken(&mut self, report: &SwapReport) {
            self.newest.iter_mut().for_each(|newest| newest.replaces = false);
            self.said.push(Said::Taken(report.version.0));
        }

        fn refused(&mut self, refusal: Refusal) {
            self.said.push(Said::Refused { version: refusal.version.0, publication: refusal.publication });
        }

        fn failed(&mut self) {
            self.said.push(Said::Failed);
        }
    }

    fn publication(version: u64, number: u64) -> Publication {
        let source = WeightSource { dir: "/nowhere".into(), version: PolicyVersion(version) };
        Publication { source, number, is_last: false, replaces: false }
    }

    /// An engine with version 0, its follower, and a transport that has published nothing else.
    fn parts(swap: WeightSwap) -> (Scripted, WeightFollower, InMemory) {
        let mut weights = InMemory::default();
        weights.publish(publication(0, 0));
        (Scripted::new(1, |_, _| vec![7]), WeightFollower::new(swap), weights)
    }

    #[test]
    fn a_version_is_taken_from_whatever_offers_it() {
        let (mut engine, mut follower, mut weights) = parts(WeightSwap::Drain);
        follower.follow(&mut engine, &mut InMemory::default()).unwrap();
        follower.follow(&mut engine, &mut weights).unwrap();
        assert!(weights.said.is_empty() && !follower.pending(), "it has what is offered");
        weights.publish(publication(1, 0));
        follower.follow(&mut engine, &mut weights).unwrap();
        assert_eq!(weights.said, [Said::Taking { version: 1, in_use: 0 }]);
        assert!(follower.pending() && !follower.takes_groups(&engine));
        assert_eq!(engine.version(), PolicyVersion(0), "until the swap");
        follower.follow(&mut engine, &mut weights).unwrap();
        assert_eq!(weights.said[1..], [Said::Taken(1)]);
        assert!(engine.version() == PolicyVersion(1) && !follower.pending() && follower.takes_groups(&engine));
    }

    #[test]
    fn only_drain_waits_for_what_runs() {
        for swap in [WeightSwap::Drain, WeightSwap::Recompute, WeightSwap::Continue] {
            let (_, mut follower, mut weights) = parts(swap);
            let mut engine = Scripted::new(1, |_, _| vec![7; 4]);
            engine.begin(crate::engine::testing::group(0, 2).into()).unwrap();
            engine.advance().unwrap();
            weights.publish(publication(1, 0));
            (0..3).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
            let is_drained = swap == WeightSwap::Drain;
            assert_eq!(engine.version().0, u64::from(!is_drained), "{swap}");
            assert_eq!((follower.takes_groups(&engine), follower.lets_start(&engine)), (!is_drained, !is_drained));
            // The sequence that runs ends; the one that waits does not start before the swap.
            (0..8).for_each(|_| drop(engine.advance().unwrap()));
            follower.follow(&mut engine, &mut weights).unwrap();
            assert_eq!((engine.version().0, engine.waiting()), (1, usize::from(is_drained)), "{swap}");
        }
    }

    #[test]
    fn a_version_that_is_refused_is_taken_when_it_was_published_again() {
        let (mut engine, mut follower, mut weights) = parts(WeightSwap::Continue);
        weights.publish(publication(1, 4));
        let version = PolicyVersion(1);
        engine.trouble = Some(EngineError::Refused { version, reason: "a hash".into() });
        (0..4).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
        let refused = [Said::Taking { version: 1, in_use: 0 }, Said::Refused { version: 1, publication: 4 }];
        assert_eq!(weights.said, refused, "it is tried once");
        assert_eq!(engine.version(), PolicyVersion(0));
        weights.publish(publication(1, 5));
        (0..2).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
        assert_eq!(weights.said[2..], [Said::Taking { version: 1, in_use: 0 }, Said::Taken(1)]);

        weights.publish(Publication { is_last: true, ..publication(2, 5) });
        let version = PolicyVersion(2);
        engine.trouble = Some(EngineError::Refused { version, reason: "a norm".into() });
        (0..2).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
        let error = follower.follow(&mut engine, &mut weights).unwrap_err().to_string();
        assert_eq!(error, "weights v2 are refused: a norm", "nobody publishes it again");
    }

    #[test]
    fn a_version_that_was_made_again_is_taken_although_its_number_is_in_use() {
        let (mut engine, mut follower, mut weights) = parts(WeightSwap::Continue);
        weights.publish(Publication { replaces: true, ..publication(0, 1) });
        follower.follow(&mut engine, &mut weights).unwrap();
        assert!(!follower.takes_groups(&engine), "what it has is lost");
        (0..3).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
        assert_eq!(weights.said, [Said::Taking { version: 0, in_use: 0 }, Said::Taken(0)]);
        assert!(follower.takes_groups(&engine));
    }

    #[test]
    fn a_version_that_cannot_be_loaded_is_given_back_and_another_one_is_taken_in_its_place() {
        let (mut engine, mut follower, mut weights) = parts(WeightSwap::Continue);
        weights.publish(publication(1, 0));
        let version = PolicyVersion(1);
        engine.trouble = Some(EngineError::Swap { version, message: "the folder is gone".into() });
        (0..2).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
        assert_eq!(weights.said, [Said::Taking { version: 1, in_use: 0 }, Said::Failed]);
        weights.publish(publication(2, 0));
        std::thread::sleep(RETRY);
        (0..2).for_each(|_| follower.follow(&mut engine, &mut weights).unwrap());
        assert_eq!(weights.said[2..], [Said::Taking { version: 2, in_use: 0 }, Said::Taken(2)]);
    }
}
