//! The channel between the two processes of one machine: iceoryx2 publish-subscribe over POSIX shared memory.
//!
//! Three topics of byte slices, each with at most one publisher and one subscriber, so that a message can never reach a
//! dead receiver in place of a living one: a restarted process first clears away its predecessor and then takes the
//! place. Groups are bounded and never overwritten; of the statuses, only the newest is kept.
//!
//! iceoryx2's own blocking send waits without a deadline and counts "no receiver" as success. So a send here never
//! blocks inside iceoryx2: it is tried again, with short sleeps, until a receiver has taken the frame or the deadline
//! passes.
//!
//! The channels of crossbeam are no alternative: they carry values between threads and cannot cross an address space.
//!
//! `room` takes every page of shared memory before a frame is written there. Published versions need no such care: they
//! are written and not mapped, so full memory is an error there, and they go to disk.

mod domain;
mod room;
mod topic;

use std::{
    thread,
    time::{Duration, Instant},
};

use domain::Domain;
pub use domain::{abandoned, files, remove_leftovers};
use topic::{Inbox, Outbox, Topic};

use super::{ChannelError, LearnerEnd, LearnerStatus, RunId, SamplerEnd, SamplerStatus};
use crate::{files::run_dir::RunDir, generation::group::Placed};

/// Groups that the channel holds when the learner does not take them.
pub const CAPACITY: usize = 4;

const GROUPS: Topic = Topic { name: "groups", capacity: CAPACITY, overwrite: false, initial_len: 64 * 1024 };
const LEARNER_STATUS: Topic = Topic { name: "learner-status", capacity: 1, overwrite: true, initial_len: 1024 };
const SAMPLER_STATUS: Topic = Topic { name: "sampler-status", capacity: 1, overwrite: true, initial_len: 256 };

/// First pause of a wait; it doubles up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
/// Longest pause of a wait, and so the latency of a message after a long silence.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);
/// How often a send that finds no receiver looks for dead processes to clear away.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);

/// Tries again until there is a result or the deadline passes.
fn attempt_until<T>(
    deadline: Instant,
    mut attempt: impl FnMut() -> Result<Option<T>, ChannelError>,
) -> Result<Option<T>, ChannelError> {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let found = attempt()?;
        let now = Instant::now();
        if found.is_some() || now >= deadline {
            return Ok(found);
        }
        thread::sleep(pause.min(deadline - now));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The sampler's end in shared memory.
#[derive(Debug)]
pub struct IoxSampler {
    groups: Outbox,
    own: Outbox,
    peer: Inbox,
    last_cleanup: Instant,
    // The last field: it removes the folders that the fields above leave empty.
    domain: Domain,
}

impl IoxSampler {
    /// Joins the channel of a run as its sampler, in place of a predecessor that died.
    ///
    /// # Errors
    /// When shared memory cannot be used, or another sampler of this run is alive.
    pub fn open(run_dir: &RunDir, run: RunId) -> Result<Self, ChannelError> {
        let (domain, _lock) = Domain::enter(run_dir, run, "sampler")?;
        Ok(Self {
            peer: Inbox::open(&domain, &LEARNER_STATUS)?,
            groups: Outbox::open(&domain, &GROUPS)?,
            own: Outbox::open(&domain, &SAMPLER_STATUS)?,
            last_cleanup: Instant::now(),
            domain,
        })
    }

    fn clear_dead(&mut self) {
        if self.last_cleanup.elapsed() >= CLEANUP_INTERVAL {
            self.domain.clear_dead();
            self.last_cleanup = Instant::now();
        }
    }
}

impl SamplerEnd for IoxSampler {
    fn send_group(&mut self, group: &Placed, deadline: Instant) -> Result<(), ChannelError> {
        let start = Instant::now();
        self.groups.fill(group);
        let sent = attempt_until(deadline, || {
            let taken = self.groups.try_send()?;
            if !taken {
                self.clear_dead();
            }
            Ok(taken.then_some(()))
        })?;
        sent.ok_or_else(|| ChannelError::Timeout { peer: "learner", seconds: start.elapsed().as_secs_f64() })
    }

    fn publish_status(&mut self, status: &SamplerStatus) -> Result<(), ChannelError> {
        self.own.fill(status);
        self.own.try_send()?;
        Ok(())
    }

    fn learner_status(&mut self) -> Result<Option<LearnerStatus>, ChannelError> {
        self.peer.newest()
    }
}

/// The learner's end in shared memory.
#[derive(Debug)]
pub struct IoxLearner {
    groups: Inbox,
    peer: Inbox,
    own: Outbox,
    // The last field: it removes the folders that the fields above leave empty.
    _domain: Domain,
}

impl IoxLearner {
    /// Joins the channel of a run as its learner, in place of a predecessor that died.
    ///
    /// # Errors
    /// When shared memory cannot be used, or another learner of this run is alive.
    pub fn open(run_dir: &RunDir, run: RunId) -> Result<Self, ChannelError> {
        let (domain, _lock) = Domain::enter(run_dir, run, "learner")?;
        // The place for groups is taken before any status can be sent: a sampler that sees a status of this process can
        // be sure that groups reach it and not its predecessor.
        Ok(Self {
            groups: Inbox::open(&domain, &GROUPS)?,
            peer: Inbox::open(&domain, &SAMPLER_STATUS)?,
            own: Outbox::open(&domain, &LEARNER_STATUS)?,
            _domain: domain,
        })
    }
}

impl LearnerEnd for IoxLearner {
    fn receive_group(&mut self, timeout: Duration) -> Result<Option<Placed>, ChannelError> {
        attempt_until(Instant::now() + timeout, || self.groups.next())
    }

    fn publish_status(&mut self, status: &LearnerStatus) -> Result<(), ChannelError> {
        self.own.fill(status);
        self.own.try_send()?;
        Ok(())
    }

    fn sampler_status(&mut self) -> Result<Option<SamplerStatus>, ChannelError> {
        self.peer.newest()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt, path::PathBuf};

    use super::*;
    use crate::generation::{
        group::Group,
        ids::{GroupId, Step},
        testing,
    };

    fn group(index: u32, tokens: usize) -> Placed {
        let group = Group { prompt_ids: vec![7; tokens], ..testing::group(0, Vec::new()) };
        testing::placed(GroupId { step: Step(1), index }, group)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(30)
    }

    #[test]
    fn no_receiver_and_a_full_channel_are_both_a_timeout_and_nothing_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let mut sampler = IoxSampler::open(&run_dir, RunId::NONE).unwrap();
        assert!(matches!(sampler.send_group(&group(0, 1), soon()), Err(ChannelError::Timeout { .. })));
        let mut learner = IoxLearner::open(&run_dir, RunId::NONE).unwrap();
        assert!(learner.receive_group(Duration::ZERO).unwrap().is_none());
        for index in 0..CAPACITY as u32 {
            // Growing sizes make the shared segment grow several times.
            sampler.send_group(&group(index, 1 << (4 * index)), soon()).unwrap();
        }
        let late = group(CAPACITY as u32, 3);
        assert!(matches!(sampler.send_group(&late, soon()), Err(ChannelError::Timeout { .. })));
        for index in 0..CAPACITY as u32 {
            let received = learner.receive_group(Duration::ZERO).unwrap().unwrap();
            assert_eq!(received, group(index, 1 << (4 * index)));
            if index == 0 {
                sampler.send_group(&late, soon()).unwrap();
            }
        }
        assert_eq!(learner.receive_group(Duration::ZERO).unwrap().unwrap(), late);
        assert!(learner.receive_group(Duration::ZERO).unwrap().is_none());
    }

    #[test]
    fn only_the_newest_status_is_seen_and_a_late_comer_sees_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let mut learner = IoxLearner::open(&run_dir, RunId::NONE).unwrap();
        let status = |cursor| LearnerStatus { cursor, received: vec![1; 5000], ..LearnerStatus::default() };
        learner.publish_status(&status(1)).unwrap();
        let mut sampler = IoxSampler::open(&run_dir, RunId::NONE).unwrap();
        assert_eq!(sampler.learner_status().unwrap(), None);
        for cursor in 2..5 {
            learner.publish_status(&status(cursor)).unwrap();
        }
        assert_eq!(sampler.learner_status().unwrap(), Some(status(4)));
        assert_eq!(sampler.learner_status().unwrap(), None);
        drop(sampler);
        let mut sampler = IoxSampler::open(&run_dir, RunId::NONE).unwrap();
        learner.publish_status(&status(6)).unwrap();
        assert_eq!(sampler.learner_status().unwrap(), Some(status(6)));
    }

    #[test]
    fn every_page_is_taken_before_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let mut sampler = IoxSampler::open(&run_dir, RunId::NONE).unwrap();
        let mut learner = IoxLearner::open(&run_dir, RunId::NONE).unwrap();
        let sparse = || -> Vec<_> {
            let files = files(&run_dir).unwrap().into_iter().filter(|path| path.is_file());
            let holes = |path: &PathBuf| path.metadata().is_ok_and(|file| file.blocks() * 512 < file.len());
            files.filter(holes).collect()
        };
        assert_eq!(sparse(), Vec::<PathBuf>::new());
        learner.publish_status(&LearnerStatus::default()).unwrap();
        sampler.publish_status(&SamplerStatus::default()).unwrap();
        assert!(sampler.learner_status().unwrap().is_some() && learner.sampler_status().unwrap().is_some());
        assert_eq!(sparse(), Vec::<PathBuf>::new());
        for index in 0..3 {
            sampler.send_group(&group(index, 1 << (8 * index)), soon()).unwrap();
            assert_eq!(sparse(), Vec::<PathBuf>::new());
            assert!(learner.receive_group(Duration::ZERO).unwrap().is_some());
        }
        assert_eq!(sparse(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_second_sampler_of_the_same_run_is_refused_and_other_runs_do_not_see_it() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let _first = IoxSampler::open(&RunDir::new(one.path()), RunId::NONE).unwrap();
        let error = IoxSampler::open(&RunDir::new(one.path()), RunId::NONE).unwrap_err().to_string();
        assert!(error.contains("another sampler"), "{error}");
        let _other_run = IoxSampler::open(&RunDir::new(two.path()), RunId::NONE).unwrap();
    }

    /// As when a directory was removed and made again, or is there twice beside one `/dev/shm`.
    #[test]
    fn runs_with_one_path_do_not_hear_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let (before, now) = (RunId::draw(), RunId::draw());
        let mut dying = IoxLearner::open(&run_dir, before).unwrap();
        let mut sampler = IoxSampler::open(&run_dir, now).unwrap();
        dying.publish_status(&LearnerStatus { finished: true, ..LearnerStatus::default() }).unwrap();
        assert_eq!(sampler.learner_status().unwrap(), None, "the farewell of another run");
        let mut learner = IoxLearner::open(&run_dir, now).unwrap();
        let status = LearnerStatus { cursor: 3, ..LearnerStatus::default() };
        learner.publish_status(&status).unwrap();
        assert_eq!(sampler.learner_status().unwrap(), Some(status));
        sampler.send_group(&group(1, 5), soon()).unwrap();
        assert!(dying.receive_group(Duration::ZERO).unwrap().is_none());
        assert!(learner.receive_group(Duration::ZERO).unwrap().is_some());
    }

    /// Even if they share a channel.
    #[test]
    fn frames_of_another_run_are_passed_over_and_counted() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let run = RunId::draw();
        let mut learner = IoxLearner::open(&run_dir, run).unwrap();
        let mut sampler = IoxSampler::open(&run_dir, run).unwrap();
        for own in [false, true] {
            let of = if own { run } else { RunId::draw() };
            learner.own.be_of(of);
            learner.publish_status(&LearnerStatus { finished: !own, ..LearnerStatus::default() }).unwrap();
            let heard = sampler.learner_status().unwrap();
            assert_eq!(heard.map(|status| status.finished), own.then_some(false));
            assert_eq!(sampler.peer.foreign(), 1);
            sampler.groups.be_of(of);
            sampler.send_group(&group(7, 3), soon()).unwrap();
            assert_eq!(learner.receive_group(Duration::ZERO).unwrap().is_some(), own);
        }
    }

    #[test]
    fn the_word_that_a_run_is_over_is_for_that_run_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let (own, other) = (RunId::draw(), RunId::draw());
        let last = LearnerStatus { finished: true, total_steps: 7, ..LearnerStatus::default() };
        last.leave(&run_dir, own).unwrap();
        assert_eq!(LearnerStatus::left(&run_dir, own), Some(last));
        assert_eq!(LearnerStatus::left(&run_dir, other), None);
        assert_eq!(LearnerStatus::left(&run_dir, RunId::NONE), None);
    }
}
