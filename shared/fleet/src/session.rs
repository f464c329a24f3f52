//! Sessions of zenoh: what each side may do, and how long it waits.

use std::{
    os::fd::AsRawFd,
    path::Path,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use shared::{
    channel::fleet::MOST_BYTES,
    config::endpoint::{Endpoint, Scheme},
};
use zenoh::{Config, Session, Wait, query::Querier};

use crate::{
    FleetError, JoinOptions, ListenOptions,
    error::plain,
    reach,
    token::{Token, USER},
};

/// Key expression of calls.
pub(crate) const CALL: &str = "tandem/fleet/call";
/// Key expression of the wake-up for workers. Builds that talk to each other share these names, so the names stay.
pub(crate) const WAKE_UP: &str = "tandem/fleet/bell";
/// Workers have their liveliness tokens below this key.
pub(crate) const WORKERS: &str = "tandem/fleet/worker";

/// A connection without a sign of life is given up after this.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long a message may take to be sent; after that, zenoh closes the connection. Less than [`LEASE`]: if a
/// connection dies with a message half sent, zenoh's only thread for sending waits for that peer, and all other
/// connections wait with it.
const SLOWEST: Duration = Duration::from_secs(8);
/// How long a worker rests between two tries to connect again: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// Connections that have not identified themselves: enough that a scan of the port, whose connections say nothing,
/// keeps no worker out.
const MOST_PENDING: usize = 1024;
/// How often the code polls for events that zenoh does not announce.
pub(crate) const LOOK: Duration = Duration::from_millis(5);

/// The session of a coordinator.
pub(crate) fn listen(options: &ListenOptions, token: Option<&Token>) -> Result<Session, FleetError> {
    let failed = |reason: String| FleetError::Listen { endpoint: options.endpoint.clone(), reason };
    let mut config = common(&options.endpoint, LEASE);
    config["listen"] = json!({ "endpoints": [options.endpoint.to_string()] });
    config["access_control"] = may();
    config["transport"]["link"]["tls"] = json!({
        "listen_certificate": text(options.certificate.as_deref()),
        "listen_private_key": text(options.private_key.as_deref()),
        "enable_mtls": options.client_ca.is_some(),
        "root_ca_certificate": text(options.client_ca.as_deref()),
    });
    // Read while the session is opened.
    let dictionary =
        token.map(Token::dictionary).transpose().map_err(|e| failed(format!("no temporary file ({e})")))?;
    if let Some(file) = &dictionary {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        config["transport"]["auth"] = json!({ "usrpwd": { "dictionary_file": path } });
    }
    open(config).map_err(failed)
}

/// The session of a worker, connected, and a querier for the coordinator that was seen there. Takes at most about
/// `within`, or twice that when something is wrong.
pub(crate) fn join(
    options: &JoinOptions,
    token: Option<&Token>,
    within: Duration,
) -> Result<(Session, Querier<'static>), FleetError> {
    let deadline = Instant::now() + within;
    let addresses = reach::resolve(&options.endpoint, within)?;
    // zenoh would report a failure without a reason. A coordinator with TLS pauses after a failed connection, so TLS
    // endpoints are not tried first.
    if options.endpoint.scheme == Scheme::Tcp {
        reach::connect(&options.endpoint, &addresses, within)?;
    }
    let within = deadline.saturating_duration_since(Instant::now()).max(LOOK);
    let session = open(joining(options, token, within)).map_err(|words| reach::why(options, &words, within))?;
    let failed =
        |e: zenoh::Error| FleetError::Zenoh { endpoint: options.endpoint.clone(), reason: plain(&e.to_string()) };
    let querier = session.declare_querier(CALL).wait().map_err(failed)?;
    if wait_for_coordinator(&querier, deadline) {
        return Ok((session, querier));
    }
    let reason = "what listens there speaks zenoh and is no coordinator of a run, or has just ended".into();
    Err(FleetError::NoCoordinator { endpoint: options.endpoint.clone(), reason })
}

fn joining(options: &JoinOptions, token: Option<&Token>, within: Duration) -> Value {
    let mut config = common(&options.endpoint, within);
    config["connect"] = json!({
        "endpoints": [options.endpoint.to_string()],
        // Once, and the error is returned; the rest is for connecting again.
        "timeout_ms": 0,
        "exit_on_failure": true,
        "retry": {
            "period_init_ms": RETRY.0.as_millis(),
            "period_max_ms": RETRY.1.as_millis(),
            "period_increase_factor": 2,
        },
    });
    config["transport"]["link"]["tls"] = json!({
        "root_ca_certificate": text(options.ca.as_deref()),
        "enable_mtls": options.certificate.is_some(),
        "connect_certificate": text(options.certificate.as_deref()),
        "connect_private_key": text(options.key.as_deref()),
    });
    if let Some(token) = token {
        config["transport"]["auth"] = json!({ "usrpwd": { "user": USER, "password": token.word() } });
    }
    config
}

/// Waits until the coordinator announces that it takes calls; returns whether it has.
pub(crate) fn wait_for_coordinator(querier: &Querier<'_>, deadline: Instant) -> bool {
    loop {
        if querier.matching_status().wait().is_ok_and(|status| status.matching()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// Settings that both sides have in common. Both are peers: peers do not pass on what others say, and a worker that is
/// refused is told why.
fn common(endpoint: &Endpoint, open_timeout: Duration) -> Value {
    let protocol = match endpoint.scheme {
        Scheme::Tcp => "tcp",
        Scheme::Tls => "tls",
    };
    json!({
        "mode": "peer",
        "listen": { "endpoints": [] },
        "connect": { "endpoints": [] },
        "open": { "return_conditions": { "connect_scouted": false, "declares": false } },
        "scouting": { "multicast": { "enabled": false }, "gossip": { "enabled": false } },
        "adminspace": { "enabled": false },
        "transport": {
            "unicast": {
                "open_timeout": open_timeout.as_millis().max(1) as u64,
                "accept_timeout": LEASE.as_millis() as u64,
                "accept_pending": MOST_PENDING,
            },
            "link": {
                "protocols": [protocol],
                "tx": {
                    "lease": LEASE.as_millis() as u64,
                    "queue": { "congestion_control": {
                        "block": { "wait_before_close": SLOWEST.as_micros() as u64 },
                        // The wake-up waits for nobody.
                        "drop": { "wait_before_drop": 0, "max_wait_before_drop_fragments": 0 },
                    } },
                },
                "rx": { "max_message_size": MOST_BYTES + (1 << 16) },
            },
            "shared_memory": { "enabled": false },
        },
    })
}

/// Rights of workers to send and to hear, at the coordinator's end of their connections.
fn may() -> Value {
    let rules = [
        ("call", "ingress", json!(["query"]), CALL),
        ("answer", "egress", json!(["reply", "declare_queryable"]), CALL),
        ("listen", "ingress", json!(["declare_subscriber"]), WAKE_UP),
        ("wake", "egress", json!(["put"]), WAKE_UP),
        ("live", "ingress", json!(["liveliness_token"]), "tandem/fleet/worker/*"),
        ("look", "egress", json!(["declare_liveliness_subscriber", "liveliness_query"]), "tandem/fleet/worker/*"),
    ];
    let rule = |(id, flow, messages, key): &(&str, &str, Value, &str)| {
        json!({ "id": id, "flows": [flow],
        "messages": messages, "key_exprs": [key], "permission": "allow" })
    };
    json!({
        "enabled": true,
        "default_permission": "deny",
        "rules": rules.iter().map(rule).collect::<Vec<_>>(),
        "subjects": [{ "id": "worker" }],
        "policies": [{ "rules": rules.map(|(id, ..)| id), "subjects": ["worker"] }],
    })
}

fn open(config: Value) -> Result<Session, String> {
    let config = Config::from_json5(&config.to_string()).map_err(|e| plain(&e.to_string()))?;
    zenoh::open(config).wait().map_err(|e| plain(&e.to_string()))
}

/// Paths were checked to be UTF-8.
fn text(path: Option<&Path>) -> Option<&str> {
    path.and_then(Path::to_str)
}
