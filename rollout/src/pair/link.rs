//! The thread that owns the sampler's end of the channel.
//!
//! It repeats the sampler's status and watches the learner's whatever the step loop is busy with, so that a long step or
//! session build never looks like a dead process; and it waits for room in the channel in the step loop's place.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};
use shared::{
    GroupId, RolloutGroup,
    channel::{ChannelError, LearnerStatus, STATUS_INTERVAL, SamplerEnd, SamplerStatus},
};

/// How often the thread looks for a new status of the learner: the latency of a new version in synchronous mode.
const POLL: Duration = Duration::from_millis(2);
/// Groups on their way to the thread, besides the one that it is sending.
const QUEUE: usize = 1;

/// What the thread reports, in the order in which it happened.
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
    groups: Sender<Arc<RolloutGroup>>,
    stop: Arc<AtomicBool>,
    events: Receiver<LinkEvent>,
    status: Arc<Mutex<SamplerStatus>>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Starts the thread. The learner is given up after `timeout` without a sign of life, counted from now.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(end: impl SamplerEnd + 'static, status: SamplerStatus, timeout: Duration) -> std::io::Result<Self> {
        let (groups, to_send) = bounded(QUEUE);
        let (report, events) = unbounded();
        let status = Arc::new(Mutex::new(status));
        let stop = Arc::new(AtomicBool::new(false));
        let mut worker = Worker {
            end,
            stop: stop.clone(),
            own: status.clone(),
            to_send,
            report,
            timeout,
            learner: None,
            last_sign: Instant::now(),
            next_status: Instant::now(),
            in_hand: None,
        };
        let thread = thread::Builder::new().name("channel".into()).spawn(move || worker.run())?;
        Ok(Self { groups, stop, events, status, thread: Some(thread) })
    }

    /// What has happened since the last call.
    #[must_use]
    pub fn events(&self) -> &Receiver<LinkEvent> {
        &self.events
    }

    /// Whether [`Link::send`] would not wait.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.groups.is_full()
    }

    /// Gives the thread a group to send.
    pub fn send(&self, group: Arc<RolloutGroup>) {
        // A thread that has ended has said why in its last event.
        let _ = self.groups.send(group);
    }

    /// Changes the status that is repeated to the learner.
    pub fn update(&self, change: impl FnOnce(&mut SamplerStatus)) {
        change(&mut self.status.lock().expect("no holder of the lock panics"));
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

struct Worker<E> {
    end: E,
    stop: Arc<AtomicBool>,
    own: Arc<Mutex<SamplerStatus>>,
    to_send: Receiver<Arc<RolloutGroup>>,
    report: Sender<LinkEvent>,
    timeout: Duration,
    learner: Option<LearnerStatus>,
    last_sign: Instant,
    next_status: Instant,
    in_hand: Option<Arc<RolloutGroup>>,
}

impl<E: SamplerEnd> Worker<E> {
    fn run(&mut self) {
        let end = loop {
            match self.turn() {
                Ok(Turn::Go) => {}
                Ok(Turn::End) => return,
                Ok(Turn::Silent) => break LinkEvent::Silent(self.timeout.as_secs_f64()),
                Err(error) => break LinkEvent::Failed(error),
            }
        };
        let _ = self.report.send(end);
    }

    fn turn(&mut self) -> Result<Turn, ChannelError> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(Turn::End);
        }
        self.speak()?;
        self.listen()?;
        let finished = self.learner.as_ref().is_some_and(|s| s.finished);
        if !finished && self.last_sign.elapsed() > self.timeout {
            return Ok(Turn::Silent);
        }
        if self.in_hand.is_none() {
            self.in_hand = self.to_send.recv_timeout(POLL).ok();
        }
        self.send()?;
        Ok(Turn::Go)
    }

    fn speak(&mut self) -> Result<(), ChannelError> {
        if Instant::now() >= self.next_status {
            let own = self.own.lock().expect("no holder of the lock panics").clone();
            self.end.publish_status(&own)?;
            self.next_status = Instant::now() + STATUS_INTERVAL;
        }
        Ok(())
    }

    fn listen(&mut self) -> Result<(), ChannelError> {
        let Some(status) = self.end.learner_status()? else {
            return Ok(());
        };
        self.last_sign = Instant::now();
        if self.learner.as_ref() != Some(&status) {
            self.learner = Some(status.clone());
            let _ = self.report.send(LinkEvent::Status(status));
        }
        Ok(())
    }

    /// Tries for one status interval; a slow learner is no failure as long as it gives signs of life.
    fn send(&mut self) -> Result<(), ChannelError> {
        let Some(group) = self.in_hand.take() else {
            return Ok(());
        };
        match self.end.send_group(&group, self.next_status) {
            Ok(()) => drop(self.report.send(LinkEvent::Sent(group.id))),
            Err(ChannelError::Timeout { .. }) => self.in_hand = Some(group),
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

enum Turn {
    Go,
    End,
    Silent,
}

#[cfg(test)]
mod tests {
    use shared::{
        PolicyVersion, PromptId, Step,
        channel::{LearnerEnd, memory},
    };

    use super::*;

    fn group(index: u32) -> Arc<RolloutGroup> {
        Arc::new(RolloutGroup {
            id: GroupId { step: Step(0), index },
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
        })
    }

    const LONG: Duration = Duration::from_secs(10);

    fn next(link: &Link) -> LinkEvent {
        link.events().recv_timeout(LONG).unwrap()
    }

    #[test]
    fn a_slow_learner_that_gives_signs_of_life_is_waited_for() {
        let (end, mut learner) = memory::pair(1);
        let timeout = STATUS_INTERVAL * 40;
        let link = Link::start(end, SamplerStatus { incarnation: 5, ..SamplerStatus::default() }, timeout).unwrap();
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
        let link = Link::start(end, SamplerStatus::default(), Duration::from_millis(30)).unwrap();
        assert!(matches!(next(&link), LinkEvent::Silent(_)));

        let (end, mut learner) = memory::pair(1);
        learner.publish_status(&LearnerStatus { finished: true, ..LearnerStatus::default() }).unwrap();
        let link = Link::start(end, SamplerStatus::default(), Duration::from_millis(30)).unwrap();
        assert!(matches!(next(&link), LinkEvent::Status(_)));
        assert!(link.events().recv_timeout(Duration::from_millis(100)).is_err());
    }

    #[test]
    fn dropping_the_link_ends_the_thread_even_with_a_full_channel() {
        let (end, _learner) = memory::pair(0);
        let link = Link::start(end, SamplerStatus::default(), LONG).unwrap();
        link.send(group(0));
        let begin = Instant::now();
        drop(link);
        assert!(begin.elapsed() < LONG / 10);
    }
}
