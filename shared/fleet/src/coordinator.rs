//! The coordinator's end.

use std::{
    io,
    net::{TcpListener, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use shared::{
    channel::{
        ChannelError,
        fleet::{Call, CoordinatorEnd, CoordinatorEvent, MOST_BYTES, Orders, Report},
        frame,
    },
    config::endpoint::{Endpoint, Scheme},
};
use zenoh::{
    Session, Wait,
    pubsub::{Publisher, Subscriber},
    qos::CongestionControl,
    query::{Query, Queryable},
    sample::{Sample, SampleKind},
};

use crate::{
    FleetError, ListenOptions,
    error::plain,
    overheard::{self, Listener},
    probe::Facts,
    queue::{Event, Queue, length},
    refused, session,
};

/// Most answers that are being sent at a time. A worker that does not read its answer holds up that answer, and no
/// other.
const MOST_ANSWERS: usize = 256;

/// The coordinator's end of a run's fleet. Dropped, it no longer listens.
pub struct ZenohCoordinator {
    endpoint: Endpoint,
    queue: Arc<Queue>,
    answers: Arc<Answers>,
    wake_up: Option<Publisher<'static>>,
    calls: Option<Queryable<()>>,
    tokens: Option<Subscriber<()>>,
    session: Session,
    /// Kept for as long as the coordinator is there.
    _overhears: Arc<Listener>,
}

impl ZenohCoordinator {
    /// Listens.
    ///
    /// # Errors
    /// What is wrong with the options, or why the address cannot be listened on.
    pub fn open(options: &ListenOptions) -> Result<Self, FleetError> {
        let token = options.token()?;
        let options = ListenOptions { endpoint: free(&options.endpoint)?, ..options.clone() };
        let endpoint = options.endpoint.clone();
        let queue = Arc::new(Queue::default());
        let overhears = refused::listener(Arc::clone(&queue), endpoint.port, endpoint.scheme == Scheme::Tls);
        overheard::overhear(&overhears);
        let session = session::listen(&options, token.as_ref())?;
        let failed = |e: zenoh::Error| FleetError::Zenoh { endpoint: endpoint.clone(), reason: plain(&e.to_string()) };
        let wake_up = session.declare_publisher(session::WAKE_UP).congestion_control(CongestionControl::Drop);
        let answers = Arc::new(Answers::default());
        let (to, by) = (Arc::clone(&queue), Arc::clone(&answers));
        let calls = session.declare_queryable(session::CALL).callback(move |call| take(&to, &by, call));
        let to = Arc::clone(&queue);
        let tokens = session.liveliness().declare_subscriber(format!("{}/*", session::WORKERS));
        let tokens = tokens.callback(move |sample| {
            if let Some(worker) = gone(&sample) {
                to.gone(worker);
            }
        });
        Ok(Self {
            wake_up: Some(wake_up.wait().map_err(failed)?),
            calls: Some(calls.wait().map_err(failed)?),
            tokens: Some(tokens.wait().map_err(failed)?),
            endpoint,
            queue,
            answers,
            session,
            _overhears: overhears,
        })
    }

    /// The endpoint it listens on, with the port that it took.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A call, if it can be read.
    fn read(&self, call: Query) -> Option<CoordinatorEvent> {
        let bytes = call.payload().map(|payload| payload.to_bytes()).unwrap_or_default();
        let report = frame::decode::<Report>(&bytes);
        drop(bytes);
        match report {
            Ok(report) => Some(CoordinatorEvent::Call(Box::new(Waiting {
                report,
                call: Some(call),
                answers: Arc::clone(&self.answers),
            }))),
            Err(error) => {
                refuse(&self.queue, &self.answers, call, error.to_string());
                None
            }
        }
    }
}

impl CoordinatorEnd for ZenohCoordinator {
    fn next(&mut self, timeout: Duration) -> Result<Option<CoordinatorEvent>, ChannelError> {
        let deadline = Instant::now() + timeout;
        while let Some(event) = self.queue.next(deadline.saturating_duration_since(Instant::now())) {
            let event = match event {
                Event::Call(call) => self.read(call),
                Event::Gone(worker) => Some(CoordinatorEvent::Gone(worker)),
                Event::Refused { from, reason } => Some(CoordinatorEvent::Refused { from, reason }),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
        match self.session.is_closed() {
            true => Err(ChannelError::Transport("zenoh has closed the coordinator's session".into())),
            false => Ok(None),
        }
    }

    fn wake(&mut self) {
        // A wake-up that nobody hears is lost.
        if let Some(wake_up) = &self.wake_up {
            drop(wake_up.put(Vec::new()).wait());
        }
    }
}

impl Drop for ZenohCoordinator {
    fn drop(&mut self) {
        (self.wake_up, self.calls, self.tokens) = (None, None, None);
        // Workers see for themselves what the coordinator cannot tell them any more.
        drop(self.session.close().wait());
        self.answers.wait(Duration::from_secs(1));
    }
}

/// An endpoint with its port; port 0 is replaced by one that is free.
fn free(endpoint: &Endpoint) -> Result<Endpoint, FleetError> {
    let failed = |error: io::Error| {
        let reason = match error.kind() {
            io::ErrorKind::AddrInUse => "the port is in use; does another run listen there? choose another port".into(),
            io::ErrorKind::AddrNotAvailable => {
                "this host has no such address; 0.0.0.0 stands for all that it has".into()
            }
            io::ErrorKind::PermissionDenied => "ports below 1024 are for root; choose another port".into(),
            _ => format!("cannot listen there: {error}"),
        };
        FleetError::Listen { endpoint: endpoint.clone(), reason }
    };
    let addresses: Vec<_> = (endpoint.host.as_str(), endpoint.port).to_socket_addrs().map_err(failed)?.collect();
    let listener = TcpListener::bind(addresses.as_slice()).map_err(failed)?;
    Ok(Endpoint { port: listener.local_addr().map_err(failed)?.port(), ..endpoint.clone() })
}

/// Takes a call as it arrives, on a thread of zenoh's that must not be held up.
fn take(queue: &Queue, answers: &Arc<Answers>, call: Query) {
    let bytes = length(&call);
    if bytes == 0 {
        return answers.run(move || drop(call.reply(session::CALL, Facts::own().to_string()).wait()));
    }
    if bytes > MOST_BYTES {
        return refuse(queue, answers, call, format!("a call of {bytes} bytes; {MOST_BYTES} are the most"));
    }
    if let Some(call) = queue.call(call) {
        let reason = "too many calls wait; the coordinator does not get on";
        answers.run(move || drop(call.reply_err(reason).wait()));
    }
}

/// Answers a call with its fault, and tells the coordinator.
fn refuse(queue: &Queue, answers: &Arc<Answers>, call: Query, reason: String) {
    queue.refuse(caller(&call), reason.clone());
    answers.run(move || drop(call.reply_err(reason).wait()));
}

/// The caller's name, in its own words.
fn caller(call: &Query) -> String {
    let words = call.attachment().map(|words| words.to_bytes()).unwrap_or_default();
    let words: String = String::from_utf8_lossy(&words).chars().take(80).collect();
    if words.is_empty() { "a worker".into() } else { words }
}

/// The worker whose liveliness token is gone.
fn gone(sample: &Sample) -> Option<u64> {
    if sample.kind() != SampleKind::Delete {
        return None;
    }
    u64::from_str_radix(sample.key_expr().as_str().rsplit('/').next()?, 16).ok()
}

/// A call that waits for its answer.
struct Waiting {
    report: Report,
    /// None once it is answered.
    call: Option<Query>,
    answers: Arc<Answers>,
}

impl Call for Waiting {
    fn report(&self) -> &Report {
        &self.report
    }

    fn answer(mut self: Box<Self>, orders: &Orders) {
        let Some(call) = self.call.take() else { return };
        let frame = frame::encode(orders);
        if frame.len() > MOST_BYTES {
            let reason = format!("its answer has {} bytes; {MOST_BYTES} are the most", frame.len());
            tracing::error!("worker {} ({:016x}): {reason}", self.report.name, self.report.worker);
            return self.answers.run(move || drop(call.reply_err(reason).wait()));
        }
        self.answers.run(move || drop(call.reply(session::CALL, frame).wait()));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            // zenoh tells the worker that the query is over, which may take as long as an answer.
            self.answers.run(move || drop(call));
        }
    }
}

/// Answers on their way. Sending one waits for as long as the worker does not read, so each has a thread of its own.
#[derive(Default)]
struct Answers(AtomicUsize);

impl Answers {
    /// Runs `send`, unless too many answers are being sent: then this one is lost, as answers may be.
    fn run(self: &Arc<Self>, send: impl FnOnce() + Send + 'static) {
        let count = Count::of(self);
        if count.0.0.load(SeqCst) <= MOST_ANSWERS {
            drop(thread::Builder::new().name("fleet-answer".into()).spawn(move || {
                send();
                drop(count);
            }));
        }
    }

    /// Waits until all are sent or given up.
    fn wait(&self, at_most: Duration) {
        let deadline = Instant::now() + at_most;
        while self.0.load(SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(session::LOOK);
        }
    }
}

/// One answer in the count, for as long as this value lives.
struct Count(Arc<Answers>);

impl Count {
    fn of(answers: &Arc<Answers>) -> Self {
        answers.0.fetch_add(1, SeqCst);
        Self(Arc::clone(answers))
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}
