//! The two ends of the channel, joined by the memory of one process: for tests of either half of the pair.
//!
//! Messages cross as frames, exactly as between processes. To its peer, a dropped end looks like a dead process.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use shared::{
    Placed,
    channel::{
        ChannelError, LearnerEnd, LearnerStatus, SamplerEnd, SamplerStatus,
        frame::{self, Message},
    },
};

/// How long a sender sleeps before it tries a full channel again.
const POLL: Duration = Duration::from_micros(200);

/// Joins two ends by a channel that holds `capacity` groups.
#[must_use]
pub fn pair(capacity: usize) -> (MemorySampler, MemoryLearner) {
    let (groups_out, groups_in) = sync_channel(capacity);
    let (learner, sampler) = (Latest::default(), Latest::default());
    (
        MemorySampler { groups: groups_out, own: sampler.clone(), peer: learner.clone() },
        MemoryLearner { groups: groups_in, own: learner, peer: sampler },
    )
}

/// Place for the newest frame of a kind.
#[derive(Debug, Clone, Default)]
struct Latest(Arc<Mutex<Option<Vec<u8>>>>);

impl Latest {
    fn put<M: Message>(&self, message: &M) {
        *self.0.lock().expect("no holder of the lock panics") = Some(frame::encode(message));
    }

    fn take<M: Message>(&self) -> Result<Option<M>, ChannelError> {
        let newest = self.0.lock().expect("no holder of the lock panics").take();
        Ok(newest.map(|bytes| frame::decode(&bytes)).transpose()?)
    }
}

/// The sampler's end in memory.
#[derive(Debug)]
pub struct MemorySampler {
    groups: SyncSender<Vec<u8>>,
    own: Latest,
    peer: Latest,
}

impl SamplerEnd for MemorySampler {
    fn send_group(&mut self, group: &Placed, deadline: Instant) -> Result<(), ChannelError> {
        let start = Instant::now();
        let mut bytes = frame::encode(group);
        loop {
            bytes = match self.groups.try_send(bytes) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(bytes) | TrySendError::Disconnected(bytes)) => bytes,
            };
            if Instant::now() >= deadline {
                return Err(ChannelError::Timeout { peer: "learner", seconds: start.elapsed().as_secs_f64() });
            }
            thread::sleep(POLL);
        }
    }

    fn publish_status(&mut self, status: &SamplerStatus) -> Result<(), ChannelError> {
        self.own.put(status);
        Ok(())
    }

    fn learner_status(&mut self) -> Result<Option<LearnerStatus>, ChannelError> {
        self.peer.take()
    }
}

/// The learner's end in memory.
#[derive(Debug)]
pub struct MemoryLearner {
    groups: Receiver<Vec<u8>>,
    own: Latest,
    peer: Latest,
}

impl LearnerEnd for MemoryLearner {
    fn receive_group(&mut self, timeout: Duration) -> Result<Option<Placed>, ChannelError> {
        match self.groups.recv_timeout(timeout) {
            Ok(bytes) => Ok(Some(frame::decode(&bytes)?)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                // Only its silence shows that a sampler is dead; until then, the wait takes as long as was asked.
                thread::sleep(timeout);
                Ok(None)
            }
        }
    }

    fn publish_status(&mut self, status: &LearnerStatus) -> Result<(), ChannelError> {
        self.own.put(status);
        Ok(())
    }

    fn sampler_status(&mut self) -> Result<Option<SamplerStatus>, ChannelError> {
        self.peer.take()
    }
}

#[cfg(test)]
mod tests {
    use shared::{GroupId, Step, generation::testing};

    use super::*;

    fn group(index: u32) -> Placed {
        testing::placed(GroupId { step: Step(0), index }, testing::group(0, Vec::new()))
    }

    #[test]
    fn a_full_channel_times_out_and_loses_nothing() {
        let (mut sampler, mut learner) = pair(2);
        let soon = || Instant::now() + Duration::from_millis(20);
        for index in 0..2 {
            sampler.send_group(&group(index), soon()).unwrap();
        }
        assert!(matches!(sampler.send_group(&group(2), soon()), Err(ChannelError::Timeout { .. })));
        assert_eq!(learner.receive_group(Duration::ZERO).unwrap().unwrap().id.index, 0);
        sampler.send_group(&group(2), soon()).unwrap();
        assert_eq!(learner.receive_group(Duration::ZERO).unwrap().unwrap().id.index, 1);
        assert_eq!(learner.receive_group(Duration::ZERO).unwrap().unwrap().id.index, 2);
        assert!(learner.receive_group(Duration::ZERO).unwrap().is_none());
        drop(learner);
        assert!(matches!(sampler.send_group(&group(3), soon()), Err(ChannelError::Timeout { .. })));
    }

    #[test]
    fn only_the_newest_status_is_seen_and_only_once() {
        let (mut sampler, mut learner) = pair(1);
        for cursor in 0..3 {
            learner.publish_status(&LearnerStatus { cursor, ..LearnerStatus::default() }).unwrap();
        }
        assert_eq!(sampler.learner_status().unwrap().unwrap().cursor, 2);
        assert!(sampler.learner_status().unwrap().is_none());
        sampler.publish_status(&SamplerStatus { generated_tokens: 5, ..SamplerStatus::default() }).unwrap();
        assert_eq!(learner.sampler_status().unwrap().unwrap().generated_tokens, 5);
    }
}
