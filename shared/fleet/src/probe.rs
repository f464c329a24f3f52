//! Checks the way from a worker to a coordinator, stage by stage.

use std::{
    fmt,
    net::SocketAddr,
    str::FromStr,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use shared::{channel::frame::FRAME_VERSION, config::endpoint::Scheme};
use zenoh::{Session, Wait, handlers::FifoChannel, query::ConsolidationMode};

use crate::{FleetError, JoinOptions, reach, session};

/// A stage on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Flags and files of this side.
    Options,
    /// The coordinator's name.
    Resolve,
    /// A connection to its port.
    Connect,
    /// TLS, with the certificates of both sides.
    Certificates,
    /// The token, and a coordinator at the other end.
    Join,
    /// An answer.
    Answer,
}

/// The result of a probe. A stage that works has its figures; the first stage that fails is named.
#[derive(Debug, Default)]
pub struct Probe {
    /// Addresses of the coordinator's name.
    pub resolved: Vec<SocketAddr>,
    /// The address that took the connection.
    pub address: Option<SocketAddr>,
    /// Seconds until it took the connection.
    pub tcp_connect_s: Option<f64>,
    /// Seconds for TLS, including the time that the coordinator has for refusing a certificate.
    pub tls_handshake_s: Option<f64>,
    /// Seconds until the coordinator had let the worker in.
    pub join_s: Option<f64>,
    /// Seconds from a question to its answer, the median of several.
    pub round_trip_s: Option<f64>,
    /// Version of the coordinator's program.
    pub coordinator_build: Option<String>,
    /// Version of its frames; workers with another version are refused.
    pub coordinator_frames: Option<u16>,
    /// Seconds by which the coordinator's clock is ahead of this host's.
    pub clock_ahead_s: Option<f64>,
    /// The stage that failed, and why.
    pub failed: Option<(Stage, FleetError)>,
}

/// How many questions are timed.
const QUESTIONS: usize = 9;

/// Goes to a coordinator as a worker does, and leaves again without having been a worker; each stage takes at most
/// about `within`.
#[must_use]
pub fn probe(options: &JoinOptions, within: Duration) -> Probe {
    let mut probe = Probe::default();
    probe.failed = go(&mut probe, options, within).err();
    probe
}

fn go(probe: &mut Probe, options: &JoinOptions, within: Duration) -> Result<(), (Stage, FleetError)> {
    let at = |stage| move |error| (stage, error);
    let since = |start: Instant| Some(start.elapsed().as_secs_f64());
    let token = options.token().map_err(at(Stage::Options))?;
    probe.resolved = reach::resolve(&options.endpoint, within).map_err(at(Stage::Resolve))?;
    let start = Instant::now();
    let stream = reach::connect(&options.endpoint, &probe.resolved, within).map_err(at(Stage::Connect))?;
    (probe.tcp_connect_s, probe.address) = (since(start), stream.peer_addr().ok());
    if options.endpoint.scheme == Scheme::Tls {
        let start = Instant::now();
        reach::handshake(options, stream, within).map_err(at(Stage::Certificates))?;
        probe.tls_handshake_s = since(start);
    }
    let start = Instant::now();
    let (session, _querier) = session::join(options, token.as_ref(), within).map_err(at(Stage::Join))?;
    probe.join_s = since(start);
    let silent = || FleetError::NoCoordinator {
        endpoint: options.endpoint.clone(),
        reason: format!(
            "the coordinator has not answered for {:.0} s; it is stuck, or of another build",
            within.as_secs_f64()
        ),
    };
    let mut times = Vec::new();
    for _ in 0..QUESTIONS {
        let start = Instant::now();
        let facts = ask(&session, within).ok_or_else(|| (Stage::Answer, silent()))?;
        let took = start.elapsed().as_secs_f64();
        times.push(took);
        // The coordinator read its clock half-way through the call.
        probe.clock_ahead_s = Some(facts.clock - (now() - took / 2.0));
        (probe.coordinator_build, probe.coordinator_frames) = (Some(facts.build), Some(facts.frames));
    }
    times.sort_by(f64::total_cmp);
    probe.round_trip_s = Some(times[QUESTIONS / 2]);
    Ok(())
}

/// Asks a coordinator for its facts: a call without a frame.
fn ask(session: &Session, within: Duration) -> Option<Facts> {
    let question = session.get(session::CALL).consolidation(ConsolidationMode::None).timeout(within);
    let answers = question.with(FifoChannel::new(1)).wait().ok()?;
    let answer = answers.recv_timeout(within).ok()??;
    answer.result().ok()?.payload().try_to_string().ok()?.parse().ok()
}

/// What a coordinator tells anyone who has been let in.
pub(crate) struct Facts {
    build: String,
    frames: u16,
    clock: f64,
}

impl Facts {
    pub(crate) fn own() -> Self {
        Self { build: env!("CARGO_PKG_VERSION").into(), frames: FRAME_VERSION, clock: now() }
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.build, self.frames, self.clock)
    }
}

impl FromStr for Facts {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or(());
        let build = word()?.chars().filter(|c| !c.is_control()).take(40).collect();
        Ok(Self { build, frames: word()?.parse().map_err(drop)?, clock: word()?.parse().map_err(drop)? })
    }
}
