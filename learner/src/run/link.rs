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
    stop: AtomicBool,
}

/// The main thread's view of the channel.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    groups: Receiver<Result<RolloutGroup, ChannelError>>,
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
            Ok(group) => Ok(Some(group?)),
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
            Err(RecvTimeoutError::Disconnected) => Err(LearnerError::Peer("the channel's thread has ended".into())),
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

fn serve(mut end: impl LearnerEnd, shared: &Shared, groups: &Sender<Result<RolloutGroup, ChannelError>>) {
    while !shared.stop.load(Ordering::Acquire) {
        if let Err(error) = exchange(&mut end, shared, groups) {
            // The main thread may be gone already; then there is nobody to tell.
            let _ = groups.send_timeout(Err(error), Duration::from_secs(1));
            return;
        }
    }
}

fn exchange(
    end: &mut impl LearnerEnd,
    shared: &Shared,
    groups: &Sender<Result<RolloutGroup, ChannelError>>,
) -> Result<(), ChannelError> {
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
        let _ = groups.try_send(Ok(group));
    }
    Ok(())
}
