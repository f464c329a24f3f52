//! The thread that owns the channel: it tells the sampler the learner's status while the main thread trains, listens
//! for signs of life and passes groups on.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use shared::{
    Placed,
    channel::{ChannelError, LearnerEnd, LearnerStatus, STATUS_INTERVAL, SamplerStatus, Silence},
    config::TrainConfig,
    process::heartbeat,
};

use crate::{cores, error::LearnerError};

/// How often the thread looks for groups: the latency of a group.
const POLL: Duration = Duration::from_millis(1);

/// Most groups that wait for the trainer in its own memory; more wait in the channel.
const MAX_QUEUED: u64 = 1 << 16;

/// How long the end of the run is announced to a sampler that keeps talking.
const FAREWELL: Duration = Duration::from_secs(1);

/// Silence after which a sampler that was told of the end counts as gone.
const QUIET: Duration = Duration::from_millis(500);

/// Groups that wait for the trainer: as many as the sampler may be ahead, so that it is held back by `max_staleness`
/// before it is by the channel. The queue's memory is taken at once, which is why there is a bound.
pub fn capacity(config: &TrainConfig) -> usize {
    let steps = config.max_staleness.saturating_add(1);
    u64::from(config.groups_per_step()).saturating_mul(steps).min(MAX_QUEUED) as usize
}

/// The status that is repeated.
#[derive(Debug)]
struct Own {
    status: LearnerStatus,
    /// It has not been sent since it was changed.
    news: bool,
}

/// What the sampler last said, and how long ago.
#[derive(Debug, Default)]
struct Heard {
    status: Option<SamplerStatus>,
    silence: Duration,
}

#[derive(Debug)]
struct Shared {
    own: Mutex<Own>,
    heard: Mutex<Heard>,
    /// Why the thread has ended.
    failure: Mutex<Option<ChannelError>>,
    stop: AtomicBool,
}

/// The main thread's view of the channel.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    groups: Receiver<Placed>,
    thread: Option<JoinHandle<()>>,
    peer_timeout: Duration,
}

impl Link {
    /// Starts the thread. At most `capacity` groups wait here; the rest stay in the channel, which holds the sampler
    /// back.
    pub fn start(end: impl LearnerEnd + 'static, status: LearnerStatus, capacity: usize, timeout: Duration) -> Self {
        let shared = Arc::new(Shared {
            own: Mutex::new(Own { status, news: true }),
            heard: Mutex::default(),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let (sender, groups) = bounded(capacity);
        let now = Instant::now();
        let mut worker = Worker {
            end,
            shared: Arc::clone(&shared),
            groups: sender,
            silence: Silence::default(),
            next_status: now,
            spoken: 0,
        };
        let thread = thread::Builder::new()
            .name("channel".into())
            .spawn(move || worker.run())
            .expect("the system has room for one more thread");
        Self { shared, groups, thread: Some(thread), peer_timeout: timeout }
    }

    /// Changes the status that is repeated; the sampler is told at once.
    pub fn announce(&self, change: impl FnOnce(&mut LearnerStatus)) {
        {
            let mut own = lock(&self.shared.own);
            change(&mut own.status);
            own.news = true;
        }
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// The status that is repeated.
    #[must_use]
    pub fn status(&self) -> LearnerStatus {
        lock(&self.shared.own).status.clone()
    }

    /// The sampler's newest status.
    #[must_use]
    pub fn sampler(&self) -> Option<SamplerStatus> {
        lock(&self.shared.heard).status.clone()
    }

    /// How long the sampler has given no sign of life.
    #[must_use]
    pub fn silence(&self) -> Duration {
        lock(&self.shared.heard).silence
    }

    /// The next group, or none within `wait`.
    ///
    /// # Errors
    /// A failed channel, or a sampler that has been silent for longer than the peer timeout.
    pub fn receive(&self, wait: Duration) -> Result<Option<Placed>, LearnerError> {
        match self.groups.recv_timeout(wait) {
            Ok(group) => Ok(Some(group)),
            Err(RecvTimeoutError::Timeout) => {
                let silence = lock(&self.shared.heard).silence;
                if silence > self.peer_timeout {
                    return Err(LearnerError::Peer(format!(
                        "the sampler has shown no sign of life for {:.0} s (`peer_timeout`); see logs/rollout.log in \
                         the run directory",
                        silence.as_secs_f64()
                    )));
                }
                Ok(None)
            }
            Err(RecvTimeoutError::Disconnected) => Err(match lock(&self.shared.failure).take() {
                Some(error) => error.into(),
                None => LearnerError::Peer("the channel's thread has ended".into()),
            }),
        }
    }

    /// Tells the sampler that the run is over, until it falls silent, and ends the thread.
    pub fn finish(mut self) {
        self.announce(|status| status.finished = true);
        let start = Instant::now();
        while start.elapsed() < FAREWELL && lock(&self.shared.heard).silence < QUIET {
            thread::sleep(STATUS_INTERVAL);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of the lock panics")
}

struct Worker<E> {
    end: E,
    shared: Arc<Shared>,
    groups: Sender<Placed>,
    silence: Silence,
    next_status: Instant,
    /// Statuses sent so far.
    spoken: u64,
}

impl<E: LearnerEnd> Worker<E> {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => thread::park_timeout(POLL),
                Err(error) => {
                    // The main thread learns of it when it has taken the groups that wait, which may be minutes from
                    // now.
                    tracing::error!("the channel to the sampler has failed: {error}");
                    *lock(&self.shared.failure) = Some(error);
                    return;
                }
            }
        }
    }

    /// One look at the channel; whether a group was there.
    fn turn(&mut self) -> Result<bool, ChannelError> {
        self.speak()?;
        let group = if self.groups.is_full() { None } else { self.end.receive_group(Duration::ZERO)? };
        let status = self.end.sampler_status()?;
        self.silence.note(group.is_some() || status.is_some());
        if let Some(status) = &status {
            cores::sampler_waits(status.waiting);
        }
        {
            let mut heard = lock(&self.shared.heard);
            heard.silence = self.silence.length();
            heard.status = status.or(heard.status.take());
        }
        let found = group.is_some();
        if let Some(group) = group {
            // This thread is the only sender, so the room seen above is still there.
            let _ = self.groups.try_send(group);
        }
        Ok(found)
    }

    fn speak(&mut self) -> Result<(), ChannelError> {
        let status = {
            let mut own = lock(&self.shared.own);
            if !own.news && Instant::now() < self.next_status {
                return Ok(());
            }
            own.news = false;
            own.status.clone()
        };
        self.next_status = Instant::now() + STATUS_INTERVAL;
        self.end.publish_status(&status)?;
        self.spoken += 1;
        heartbeat::beat_of_channel(self.spoken);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use harness::memory;
    use shared::{GroupId, channel::SamplerEnd, generation::testing};

    use super::*;

    /// Gives groups without end, until it fails after a number of statuses.
    struct Failing(u32);

    impl LearnerEnd for Failing {
        fn receive_group(&mut self, _: Duration) -> Result<Option<Placed>, ChannelError> {
            Ok(Some(testing::placed(GroupId::default(), testing::group(0, Vec::new()))))
        }

        fn publish_status(&mut self, _: &LearnerStatus) -> Result<(), ChannelError> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| ChannelError::Transport("the memory is gone".into()))?;
            Ok(())
        }

        fn sampler_status(&mut self) -> Result<Option<SamplerStatus>, ChannelError> {
            Ok(None)
        }
    }

    #[test]
    fn the_queue_holds_what_the_sampler_may_be_ahead_within_bounds() {
        let of = |batch, max_staleness| {
            let config = TrainConfig { generation_batch_size: Some(batch), max_staleness, ..TrainConfig::default() };
            capacity(&config)
        };
        assert_eq!((of(64, 0), of(64, 3)), (8, 32));
        for (batch, max_staleness) in [(64, 1_000_000), (u32::MAX, 0), (u32::MAX, u64::MAX)] {
            assert_eq!(of(batch, max_staleness), MAX_QUEUED as usize);
        }
    }

    #[test]
    fn a_channel_that_fails_behind_a_full_queue_is_reported_after_the_groups_in_it() {
        let link = Link::start(Failing(4), LearnerStatus::default(), 2, Duration::from_secs(60));
        let thread = link.thread.as_ref().unwrap();
        while !thread.is_finished() {
            thread::sleep(Duration::from_millis(10));
        }
        for _ in 0..2 {
            assert!(link.receive(Duration::ZERO).unwrap().is_some());
        }
        let error = link.receive(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("the memory is gone"), "{error}");
    }

    /// A synchronous sampler waits for each version: it must hear of it when it is there, not when the status would
    /// have been repeated anyway.
    #[test]
    fn a_status_that_has_changed_is_sent_at_once() {
        const NEWS: u64 = 20;
        let (mut sampler, end) = memory::pair(1);
        let link = Link::start(end, LearnerStatus::default(), 1, Duration::from_secs(60));
        let begin = Instant::now();
        for cursor in 1..=NEWS {
            link.announce(|status| status.cursor = cursor);
            while sampler.learner_status().unwrap().is_none_or(|status| status.cursor != cursor) {
                assert!(begin.elapsed() < Duration::from_secs(60), "the thread says nothing");
                thread::yield_now();
            }
        }
        assert!(begin.elapsed() < STATUS_INTERVAL * NEWS as u32 / 2, "{:?} for {NEWS} changes", begin.elapsed());
    }

    #[test]
    fn the_learner_knows_when_the_sampler_waits() {
        let (mut sampler, end) = memory::pair(1);
        let _link = Link::start(end, LearnerStatus::default(), 1, Duration::from_secs(60));
        let begin = Instant::now();
        for waiting in [true, false] {
            sampler.publish_status(&SamplerStatus { waiting, ..SamplerStatus::default() }).unwrap();
            while cores::does_sampler_wait() != waiting {
                assert!(begin.elapsed() < Duration::from_secs(60), "it does not know of waiting = {waiting}");
                thread::yield_now();
            }
        }
    }
}
