//! A worker's end.

use std::{
    fmt::Display,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use shared::channel::{
    ChannelError,
    fleet::{MOST_BYTES, Orders, Report, WorkerEnd},
    frame,
};
use zenoh::{
    Session, Wait,
    liveliness::LivelinessToken,
    pubsub::Subscriber,
    qos::CongestionControl,
    query::{ConsolidationMode, Querier},
};

use crate::{
    FleetError, JoinOptions,
    error::plain,
    session::{self, wait_for_coordinator},
    token::Token,
};

/// Shortest and longest time for one try to join, and the rest between two tries.
const TRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
const REST: Duration = Duration::from_secs(1);
/// How often a worker without a connection looks for the reason, and how long that may take.
const LOOK_WHY: Duration = Duration::from_secs(5);
const LOOKING: Duration = Duration::from_secs(2);

/// A worker's end of a run's fleet. When it is dropped, the coordinator sees the worker leave.
pub struct ZenohWorker {
    options: JoinOptions,
    token: Option<Token>,
    /// The worker's name, for frames that cannot be read.
    caller: String,
    wake_up: Arc<WakeUp>,
    /// Why there is no connection, and when that was checked.
    why: Option<(Instant, String)>,
    querier: Option<Querier<'static>>,
    alive: Option<LivelinessToken>,
    wakes: Option<Subscriber<()>>,
    session: Session,
}

impl ZenohWorker {
    /// Joins the coordinator as worker number `worker`; waits up to `wait` for the coordinator to come up.
    ///
    /// # Errors
    /// The fault, at once if waiting does not help.
    pub fn join(options: &JoinOptions, worker: u64, wait: Duration) -> Result<Self, FleetError> {
        let token = options.token()?;
        let (session, querier) = connect(options, token.as_ref(), Instant::now() + wait)?;
        let failed =
            |e: zenoh::Error| FleetError::Zenoh { endpoint: options.endpoint.clone(), reason: plain(&e.to_string()) };
        let wake_up = Arc::new(WakeUp::default());
        let to = Arc::clone(&wake_up);
        let wakes = session.declare_subscriber(session::WAKE_UP).callback(move |_| to.come()).wait().map_err(failed)?;
        let alive = session.liveliness().declare_token(format!("{}/{worker:016x}", session::WORKERS));
        Ok(Self {
            options: options.clone(),
            token,
            caller: format!("worker {worker:016x} of build {}", env!("CARGO_PKG_VERSION")),
            wake_up,
            why: None,
            querier: Some(querier),
            alive: Some(alive.wait().map_err(failed)?),
            wakes: Some(wakes),
            session,
        })
    }

    /// Whether the coordinator is there; waits for it until the deadline.
    fn reachable(&mut self, deadline: Instant) -> Result<(), ChannelError> {
        let Some(querier) = &self.querier else { return Err(ChannelError::Unreachable("the worker has left".into())) };
        // If only the connection was cut, the coordinator is back within a moment.
        let soon = deadline.min(Instant::now() + LOOKING);
        if wait_for_coordinator(querier, soon) {
            self.why = None;
            return Ok(());
        }
        if self.why.as_ref().is_none_or(|(at, _)| at.elapsed() >= LOOK_WHY) {
            let words = match session::join(&self.options, self.token.as_ref(), LOOKING) {
                Ok(_) => "it is there again, and the connection is about to come back".into(),
                Err(error) => error.to_string(),
            };
            self.why = Some((Instant::now(), words));
        }
        if wait_for_coordinator(querier, deadline) {
            return Ok(());
        }
        let words = self.why.as_ref().map(|(_, words)| words.clone()).unwrap_or_default();
        Err(ChannelError::Unreachable(words))
    }
}

/// Connects; tries again until the deadline if that may help.
fn connect(
    options: &JoinOptions,
    token: Option<&Token>,
    deadline: Instant,
) -> Result<(Session, Querier<'static>), FleetError> {
    let mut told = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match session::join(options, token, left.clamp(TRY[0], TRY[1])) {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !error.may_pass() || left.is_zero() {
            return Err(error);
        }
        if !told {
            tracing::info!("waiting up to {:.0} s for the coordinator: {error}", left.as_secs_f64().ceil());
            told = true;
        }
        thread::sleep(left.min(REST));
    }
}

impl WorkerEnd for ZenohWorker {
    fn exchange(&mut self, report: &Report, timeout: Duration) -> Result<Orders, ChannelError> {
        let start = Instant::now();
        let frame = frame::encode(report);
        if frame.len() > MOST_BYTES {
            return Err(ChannelError::Refused(format!("it has {} bytes; {MOST_BYTES} are the most", frame.len())));
        }
        self.reachable(start + timeout)?;
        let unanswered = || ChannelError::Timeout { peer: "coordinator", seconds: start.elapsed().as_secs_f64() };
        let failed = |error: &dyn Display| ChannelError::Unreachable(plain(&error.to_string()));
        let (sender, answers) = mpsc::channel();
        // Waits until zenoh and the system have taken the whole message; from then on the answer has all of `timeout`.
        // zenoh's own deadline must only come after that.
        self.session
            .get(session::CALL)
            .payload(frame)
            .attachment(self.caller.as_str())
            .congestion_control(CongestionControl::Block)
            .consolidation(ConsolidationMode::None)
            .timeout(timeout + 2 * session::LEASE)
            .callback(move |answer| drop(sender.send(answer)))
            .wait()
            .map_err(|e| failed(&e))?;
        let Ok(answer) = answers.recv_timeout(timeout) else { return Err(unanswered()) };
        match answer.result() {
            Ok(sample) => Ok(frame::decode(&sample.payload().to_bytes())?),
            Err(error) => match error.payload().try_to_string().unwrap_or_default().as_ref() {
                // zenoh's word for its own timeout.
                "Timeout" => Err(unanswered()),
                reason => Err(ChannelError::Refused(reason.to_owned())),
            },
        }
    }

    fn listen(&mut self, timeout: Duration) -> bool {
        self.wake_up.wait(timeout)
    }
}

impl Drop for ZenohWorker {
    fn drop(&mut self) {
        (self.querier, self.alive, self.wakes) = (None, None, None);
        drop(self.session.close().wait());
    }
}

/// Whether a wake-up has come since the last look.
#[derive(Default)]
struct WakeUp {
    has_come: Mutex<bool>,
    comes: Condvar,
}

impl WakeUp {
    fn come(&self) {
        *self.has_come.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.comes.notify_one();
    }

    fn wait(&self, timeout: Duration) -> bool {
        let has_come = self.has_come.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut has_come, _) = self
            .comes
            .wait_timeout_while(has_come, timeout, |has_come| !*has_come)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut has_come)
    }
}
