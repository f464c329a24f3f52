//! The thread that owns the sampler's end of the channel.
//!
//! Whatever the step loop is busy with, this thread repeats the sampler's status and watches the learner's. So a long
//! step or session build never looks like a dead process. The thread also waits for room in the channel, in place of
//! the step loop.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context;
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use shared::{
    GroupId, Placed, RunDir,
    channel::{ChannelError, LearnerStatus, RunId, STATUS_INTERVAL, SamplerEnd, SamplerStatus, Silence},
    process::heartbeat::{self, Phase},
};

/// How often the thread looks for a new status of the learner: the latency of a new version in synchronous mode.
const POLL: Duration = Duration::from_millis(1);
/// Silence after which the thread looks on disk whether the learner has left because the run is over.
const QUIET: Duration = STATUS_INTERVAL.saturating_mul(4);
/// Groups on their way to the thread, besides the one that it is sending.
const QUEUE: usize = 1;

/// The reports of the thread, in the order in which things happened.
#[derive(Debug)]
pub enum LinkEvent {
    /// The learner's status has changed.
    Status(LearnerStatus),
    /// The channel has taken a group.
    Sent(GroupId),
    /// No sign of life from the learner for this many seconds; the thread has ended.
    Silent(f64),
    /// The channel does not work; the thread has ended.
    Failed(ChannelError),
}

/// The step loop's handle on the thread; dropping it ends the thread and leaves the channel.
#[derive(Debug)]
pub struct Link {
    groups: Sender<Arc<Placed>>,
    stop: Arc<AtomicBool>,
    events: Receiver<LinkEvent>,
    status: Arc<Mutex<SamplerStatus>>,
    /// Whether the status is to be sent at once.
    news: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts the thread for the run in `run_dir`. The learner is given up after `timeout` without a sign of life,
    /// counted from now, unless it has left because the run is over.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        end: impl SamplerEnd + 'static,
        status: SamplerStatus,
        timeout: Duration,
        (run_dir, run): (RunDir, RunId),
    ) -> std::io::Result<Self> {
        let (groups, to_send) = bounded(QUEUE);
        let (report, events) = unbounded();
        let status = Arc::new(Mutex::new(status));
        let [stop, news] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mut worker = Worker {
            end,
            stop: stop.clone(),
            own: status.clone(),
            news: news.clone(),
            to_send,
            report,
            timeout,
            run_dir,
            run,
            learner: None,
            silence: Silence::default(),
            next_status: Instant::now(),
            in_hand: None,
            spoken: 0,
        };
        let thread = thread::Builder::new().name("channel".into()).spawn(move || worker.run())?;
        Ok(Self { groups, stop, events, status, news, thread: Some(thread) })
    }

    /// The events since the last call.
    #[must_use]
    pub fn events(&self) -> &Receiver<LinkEvent> {
        &self.events
    }

    /// Waits for the next status of the learner that is `wanted`; `None` when a signal came first.
    ///
    /// # Errors
    /// A learner that is silent for too long, or a channel that does not work.
    pub fn next_status(
        &self,
        stop: &AtomicBool,
        wanted: impl Fn(&LearnerStatus) -> bool,
    ) -> anyhow::Result<Option<LearnerStatus>> {
        while !stop.load(Ordering::Relaxed) {
            heartbeat::beat(Phase::Wait);
            match self.events.recv_timeout(Duration::from_millis(50)) {
                Ok(LinkEvent::Status(status)) if wanted(&status) => return Ok(Some(status)),
                Ok(LinkEvent::Silent(seconds)) => return Err(silent(seconds)),
                Ok(LinkEvent::Failed(error)) => return Err(error).context("hand-over to the learner"),
                Ok(LinkEvent::Status(_) | LinkEvent::Sent(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(silent(0.0)),
            }
        }
        Ok(None)
    }

    /// Whether [`Link::send`] would not wait.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.groups.is_full()
    }

    /// Gives the thread a group to send.
    pub fn send(&self, group: Arc<Placed>) {
        // A thread that has ended has said why in its last event.
        let _ = self.groups.send(group);
    }

    /// The status that is repeated to the learner.
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<SamplerStatus>> {
        Arc::clone(&self.status)
    }

    /// Changes the status that is repeated to the learner.
    pub fn update(&self, change: impl FnOnce(&mut SamplerStatus)) {
        change(&mut self.status.lock().expect("no holder of the lock panics"));
    }

    /// As [`Link::update`], for a change that the learner waits for.
    pub fn announce(&self, change: impl FnOnce(&mut SamplerStatus)) {
        self.update(change);
        self.news.store(true, Ordering::Release);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The error for a learner that has died or hangs.
pub(super) fn silent(seconds: f64) -> anyhow::Error {
    anyhow::anyhow!(
        "no sign of life from the learner for {seconds:.0} s (peer_timeout); see logs/learner.log in the run directory"
    )
}

struct Worker<E> {
    end: E,
    stop: Arc<AtomicBool>,
    own: Arc<Mutex<SamplerStatus>>,
    news: Arc<AtomicBool>,
    to_send: Receiver<Arc<Placed>>,
    report: Sender<LinkEvent>,
    timeout: Duration,
    run_dir: RunDir,
    run: RunId,
    learner: Option<LearnerStatus>,
    silence: Silence,
    next_status: Instant,
    in_hand: Option<Arc<Placed>>,
    /// Statuses sent so far.
    spoken: u64,
}

impl<E: SamplerEnd> Worker<E> {
    fn run(&mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let end = match self.turn() {
                Ok(()) if self.over() || self.silence.length() <= self.timeout => continue,
                Ok(()) => LinkEvent::Silent(self.timeout.as_secs_f64()),
                Err(error) => LinkEvent::Failed(error),
            };
            let _ = self.report.send(end);
            return;
        }
    }

    fn turn(&mut self) -> Result<(), ChannelError> {
        if self.news.swap(false, Ordering::Acquire) || Instant::now() >= self.next_status {
            self.speak()?;
        }
        self.listen()?;
        if self.in_hand.is_none() {
            self.in_hand = self.to_send.recv_timeout(POLL).ok();
        }
        self.send()
    }

    fn speak(&mut self) -> Result<(), ChannelError> {
        let own = self.own.lock().expect("no holder of the lock panics").clone();
        self.next_status = Instant::now() + STATUS_INTERVAL;
        self.end.publish_status(&own)?;
        self.spoken += 1;
        heartbeat::beat_of_channel(self.spoken);
        Ok(())
    }

    fn listen(&mut self) -> Result<(), ChannelError> {
        let status = match self.end.learner_status()? {
            None if !self.over() && self.silence.length() > QUIET => LearnerStatus::left(&self.run_dir, self.run),
            heard => heard,
        };
        self.silence.note(status.is_some());
        if let Some(status) = status
            && self.learner.as_ref() != Some(&status)
        {
            self.learner = Some(status.clone());
            let _ = self.report.send(LinkEvent::Status(status));
        }
        Ok(())
    }

    /// Whether the learner has said that the run is over, after which it may well be silent.
    fn over(&self) -> bool {
        self.learner.as_ref().is_some_and(|status| status.finished)
    }

    /// Tries for one status interval; a slow learner is no failure as long as it gives signs of life.
    fn send(&mut self) -> Result<(), ChannelError> {
        let Some(group) = self.in_hand.take() else {
            return Ok(());
        };
        // The learner's record of a step counts what the sampler had done when it handed over the last group.
        self.speak()?;
        match self.end.send_group(&group, self.next_status) {
            Ok(()) => drop(self.report.send(LinkEvent::Sent(group.id))),
            Err(ChannelError::Timeout { .. }) => self.in_hand = Some(group),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use harness::memory::{self, MemorySampler};
    use shared::{Step, channel::LearnerEnd, generation::testing};

    use super::*;

    fn group(index: u32) -> Arc<Placed> {
        Arc::new(testing::placed(GroupId { step: Step(0), index }, testing::group(0, Vec::new())))
    }

    const LONG: Duration = Duration::from_secs(10);

    fn start(end: MemorySampler, status: SamplerStatus, timeout: Duration) -> Link {
        Link::start(end, status, timeout, (RunDir::new("/nowhere"), RunId::NONE)).unwrap()
    }

    fn next(link: &Link) -> LinkEvent {
        link.events().recv_timeout(LONG).unwrap()
    }

    #[test]
    fn a_slow_learner_that_gives_signs_of_life_is_waited_for() {
        let (end, mut learner) = memory::pair(1);
        let timeout = STATUS_INTERVAL * 40;
        let link = start(end, SamplerStatus { incarnation: 5, ..SamplerStatus::default() }, timeout);
        link.send(group(0));
        link.send(group(1));
        assert!(matches!(next(&link), LinkEvent::Sent(id) if id.index == 0));
        for cursor in 0..3 {
            learner.publish_status(&LearnerStatus { cursor, ..LearnerStatus::default() }).unwrap();
            assert!(matches!(next(&link), LinkEvent::Status(s) if s.cursor == cursor));
            // Only status is exchanged for longer than the timeout; the channel stays full.
            thread::sleep(timeout / 2);
            assert_eq!(learner.sampler_status().unwrap().unwrap().incarnation, 5);
        }
        assert_eq!(learner.receive_group(LONG).unwrap().unwrap().id.index, 0);
        assert!(matches!(next(&link), LinkEvent::Sent(id) if id.index == 1));
        assert_eq!(learner.receive_group(LONG).unwrap().unwrap().id.index, 1);
    }

    #[test]
    fn silence_is_reported_unless_the_run_is_over() {
        let (end, _learner) = memory::pair(1);
        let link = start(end, SamplerStatus::default(), Duration::from_millis(30));
        assert!(matches!(next(&link), LinkEvent::Silent(_)));

        let (end, mut learner) = memory::pair(1);
        learner.publish_status(&LearnerStatus { finished: true, ..LearnerStatus::default() }).unwrap();
        let link = start(end, SamplerStatus::default(), Duration::from_millis(30));
        assert!(matches!(next(&link), LinkEvent::Status(_)));
        assert!(link.events().recv_timeout(Duration::from_millis(100)).is_err());
    }

    #[test]
    fn a_learner_that_has_left_because_the_run_is_over_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        let (end, _learner) = memory::pair(1);
        let link = Link::start(end, SamplerStatus::default(), LONG, (run_dir.clone(), RunId::NONE)).unwrap();
        assert!(link.events().recv_timeout(QUIET * 2).is_err(), "it may yet come");
        let last = LearnerStatus { finished: true, total_steps: 7, ..LearnerStatus::default() };
        last.leave(&run_dir, RunId::NONE).unwrap();
        assert!(matches!(next(&link), LinkEvent::Status(status) if status == last));
    }

    #[test]
    fn dropping_the_link_ends_the_thread_even_with_a_full_channel() {
        let (end, _learner) = memory::pair(0);
        let link = start(end, SamplerStatus::default(), LONG);
        link.send(group(0));
        let begin = Instant::now();
        drop(link);
        assert!(begin.elapsed() < LONG / 10);
    }
}
