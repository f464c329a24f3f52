//! One direction of the channel: a service of byte slices with one publisher and one subscriber.

use std::{cell::Cell, fmt::Display};

use iceoryx2::{
    node::Node,
    port::{SendError, publisher::Publisher, subscriber::Subscriber, update_connections::UpdateConnections as _},
    prelude::{AllocationStrategy, BackpressureStrategy, ServiceName},
    service::{
        ipc_threadsafe::Service,
        port_factory::{PortFactory as _, publish_subscribe::PortFactory},
    },
};

use super::{domain::Domain, room::Room};
use crate::channel::{
    ChannelError, RunId,
    frame::{self, Message},
};

/// Properties of a topic.
#[derive(Debug)]
pub(super) struct Topic {
    /// Name of the service within the run's domain.
    pub name: &'static str,
    /// Frames that wait for the subscriber.
    pub capacity: usize,
    /// Whether a new frame pushes the oldest one out when the topic is full.
    pub overwrite: bool,
    /// Bytes reserved per frame at first; longer frames make the segment grow to the next power of two.
    pub initial_len: usize,
}

type Factory = PortFactory<Service, [u8], ()>;

impl Topic {
    fn service(&self, node: &Node<Service>) -> Result<Factory, ChannelError> {
        let name = ServiceName::new(self.name).map_err(|e| self.failed("name", e))?;
        node.service_builder(&name)
            .publish_subscribe::<[u8]>()
            .enable_safe_overflow(self.overwrite)
            .subscriber_max_buffer_size(self.capacity)
            .subscriber_max_borrowed_samples(1)
            .history_size(0)
            .max_publishers(1)
            .max_subscribers(1)
            // Both processes and, for a moment, their dead predecessors.
            .max_nodes(8)
            .open_or_create()
            .map_err(|e| self.failed("open", e))
    }

    fn failed(&self, what: &str, error: impl Display) -> ChannelError {
        ChannelError::Transport(format!("cannot {what} topic {}: {error}", self.name))
    }
}

/// The publisher of a topic.
#[derive(Debug)]
pub(super) struct Outbox {
    publisher: Publisher<Service, [u8], ()>,
    service: Factory,
    topic: &'static Topic,
    room: Room,
    run: RunId,
    frame: Vec<u8>,
}

impl Outbox {
    pub fn open(domain: &Domain, topic: &'static Topic) -> Result<Self, ChannelError> {
        let room = Room::new(domain.prefix(), topic.capacity, topic.initial_len)?;
        let service = topic.service(domain.node())?;
        let publisher = service
            .publisher_builder()
            .initial_max_slice_len(topic.initial_len)
            .allocation_strategy(AllocationStrategy::PowerOfTwo)
            .backpressure_strategy(BackpressureStrategy::DiscardData)
            .max_loaned_samples(1)
            .create()
            .map_err(|e| topic.failed("publish on", e))?;
        room.take()?;
        Ok(Self { publisher, service, topic, room, run: domain.run(), frame: Vec::new() })
    }

    /// From now on, frames belong to this run.
    #[cfg(test)]
    pub fn be_of(&mut self, run: RunId) {
        self.run = run;
    }

    /// Encodes what [`Outbox::try_send`] is to hand over.
    pub fn fill<M: Message>(&mut self, message: &M) {
        frame::encode_into(message, self.run, &mut self.frame);
    }

    /// Copies the frame into shared memory and hands it over; false when there is no subscriber or no room.
    pub fn try_send(&self) -> Result<bool, ChannelError> {
        let frame = self.frame.as_slice();
        let subscribers = self.service.dynamic_config().number_of_subscribers();
        if subscribers == 0 {
            return Ok(false);
        }
        let sample = self.room.with(subscribers, (self.topic.capacity, frame.len()), || {
            // A subscriber that is just coming or going makes the update fail; sending reports that. A failed
            // connection is not tried again.
            if self.publisher.update_connections().is_err() {
                self.room.take()?;
            }
            self.publisher.loan_slice_uninit(frame.len()).map_err(|e| self.topic.failed("reserve memory on", e))
        })?;
        match sample.write_from_slice(frame).send() {
            Ok(recipients) => Ok(recipients > 0),
            // The subscriber is just coming or going; the next attempt checks its place again.
            Err(SendError::ConnectionError(_)) => Ok(false),
            Err(e) => Err(self.topic.failed("send on", e)),
        }
    }
}

/// The subscriber of a topic.
#[derive(Debug)]
pub(super) struct Inbox {
    subscriber: Subscriber<Service, [u8], ()>,
    service: Factory,
    topic: &'static Topic,
    room: Room,
    run: RunId,
    /// Frames of other runs that were passed over.
    foreign: Cell<u64>,
}

impl Inbox {
    pub fn open(domain: &Domain, topic: &'static Topic) -> Result<Self, ChannelError> {
        let room = Room::new(domain.prefix(), 0, 0)?;
        let service = topic.service(domain.node())?;
        let subscriber = service.subscriber_builder().create().map_err(|e| topic.failed("subscribe to", e))?;
        room.take()?;
        Ok(Self { subscriber, service, topic, room, run: domain.run(), foreign: Cell::new(0) })
    }

    /// The oldest waiting message of this run.
    pub fn next<M: Message>(&self) -> Result<Option<M>, ChannelError> {
        loop {
            let publishers = self.service.dynamic_config().number_of_publishers();
            let receive = || self.subscriber.receive().map_err(|e| self.topic.failed("receive from", e));
            let Some(sample) = self.room.with(publishers, (0, 0), receive)? else { return Ok(None) };
            match frame::run_of(sample.payload()).filter(|run| *run != self.run) {
                Some(other) => self.pass_over(other),
                None => return Ok(Some(frame::decode(sample.payload())?)),
            }
        }
    }

    /// Counts a frame of another run; the first one is logged.
    fn pass_over(&self, other: RunId) {
        if self.foreign.replace(self.foreign.get() + 1) == 0 {
            tracing::warn!(
                "{}: a message of another run ({other}, this is {}) is passed over, and so are all further ones",
                self.topic.name,
                self.run
            );
        }
    }

    /// Frames of other runs that were passed over.
    #[cfg(test)]
    pub fn foreign(&self) -> u64 {
        self.foreign.get()
    }

    /// The newest waiting message; older ones are passed over.
    pub fn newest<M: Message>(&self) -> Result<Option<M>, ChannelError> {
        let mut newest = None;
        while let Some(message) = self.next()? {
            newest = Some(message);
        }
        Ok(newest)
    }
}
