//! The thread that owns the channel: it repeats the learner's status while the main thread trains, listens for signs of
//! life and passes groups on.

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
    RolloutGroup,
    channel::{ChannelError, LearnerEnd, LearnerStatus, STATUS_INTERVAL, SamplerStatus},
};

use crate::error::LearnerError;

/// How long the end of the run is announced to a sampler that keeps talking.
const FAREWELL: Duration = Duration::from_secs(10);

/// Silence after which a sampler that was told of the end counts as gone.
const QUIET: Duration = Duration::from_millis(500);

/// What the sampler last said, and when.
#[derive(Debug, Clone)]
struct Heard {
    status: Option<SamplerStatus>,
    at: Instant,
}

#[derive(Debug)]
struct Shared {
    own: Mutex<LearnerStatus>,
    heard: Mutex<Heard>,
    /// Why the thread has ended.
    failure: Mutex<Option<ChannelError>>,
    stop: AtomicBool,
}

/// The main thread's view of the channel.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    groups: Receiver<RolloutGroup>,
    thread: Option<JoinHandle<()>>,
    peer_timeout: Duration,
}

impl Link {
    /// Starts the thread. At most `capacity` groups wait here; the rest stay in the channel, which holds the sampler
    /// back.
    pub fn start(end: impl LearnerEnd + 'static, status: LearnerStatus, capacity: usize, timeout: Duration) -> Self {
        let shared = Arc::new(Shared {
            own: Mutex::new(status),
            heard: Mutex::new(Heard { status: None, at: Instant::now() }),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let (sender, groups) = bounded(capacity);
        let thread = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("channel".into())
                .spawn(move || serve(end, &shared, &sender))
                .expect("the system has room for one more thread")
        };
        Self { shared, groups, thread: Some(thread), peer_timeout: timeout }
    }

    /// Changes the status that is repeated.
    pub fn announce(&self, change: impl FnOnce(&mut LearnerStatus)) {
        change(&mut lock(&self.shared.own));
    }

    /// The sampler's newest status.
    #[must_use]
    pub fn sampler(&self) -> Option<SamplerStatus> {
        lock(&self.shared.heard).status.clone()
    }

    /// The next group, or none within `wait`.
    ///
    /// # Errors
    /// A failed channel, or a sampler that has been silent for longer than the peer timeout.
    pub fn receive(&self, wait: Duration) -> Result<Option<RolloutGroup>, LearnerError> {
        match self.groups.recv_timeout(wait) {
            Ok(group) => Ok(Some(group)),
            Err(RecvTimeoutError::Timeout) => {
                let silence = lock(&self.shared.heard).at.elapsed();
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
        let ever_heard = self.sampler().is_some();
        while ever_heard && start.elapsed() < FAREWELL && lock(&self.shared.heard).at.elapsed() < QUIET {
            thread::sleep(STATUS_INTERVAL);
        }
        self.stop();
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
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

fn serve(mut end: impl LearnerEnd, shared: &Shared, groups: &Sender<RolloutGroup>) {
    while !shared.stop.load(Ordering::Acquire) {
        if let Err(error) = exchange(&mut end, shared, groups) {
            // The main thread learns of it when it has taken the groups that wait, which may be minutes from now.
            tracing::error!("the channel to the sampler has failed: {error}");
            *lock(&shared.failure) = Some(error);
            return;
        }
    }
}

fn exchange(end: &mut impl LearnerEnd, shared: &Shared, groups: &Sender<RolloutGroup>) -> Result<(), ChannelError> {
    let own = lock(&shared.own).clone();
    end.publish_status(&own)?;
    if let Some(status) = end.sampler_status()? {
        *lock(&shared.heard) = Heard { status: Some(status), at: Instant::now() };
    }
    if groups.is_full() {
        thread::sleep(STATUS_INTERVAL);
        return Ok(());
    }
    if let Some(group) = end.receive_group(STATUS_INTERVAL)? {
        lock(&shared.heard).at = Instant::now();
        // This thread is the only sender, so the room seen above is still there.
        let _ = groups.try_send(group);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use shared::{GroupId, PolicyVersion, PromptId, Step};

    use super::*;

    /// Gives groups without end, until it fails after a number of statuses.
    struct Failing(u32);

    impl LearnerEnd for Failing {
        fn receive_group(&mut self, _: Duration) -> Result<Option<RolloutGroup>, ChannelError> {
            Ok(Some(RolloutGroup {
                id: GroupId { step: Step(0), index: 0 },
                prompt_id: PromptId(0),
                epoch: 0,
                prompt_ids: vec![1],
                prompt_text: String::new(),
                completions: Vec::new(),
                reward_names: Vec::new(),
                policy_version: PolicyVersion(0),
                cursor: 1,
                dropped: Vec::new(),
                filler: false,
                generation_seconds: 0.0,
            }))
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
}
