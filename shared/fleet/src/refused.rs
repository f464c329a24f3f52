//! Connections that never came to be. zenoh does not tell the coordinator of them; this module understands zenoh's log.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::task;

use crate::{error::plain, overheard::Listener, queue::Queue};

/// Name of a caller that no line names.
const SOMEBODY: &str = "somebody";
/// Most handshakes that are followed at a time.
const MOST: usize = 1024;

/// Tells a coordinator's queue of the fate of connections to its port.
pub(crate) fn listener(queue: Arc<Queue>, port: u16, tls: bool) -> Arc<Listener> {
    let peers = Peers::default();
    Arc::new(move |target, message| {
        if target.starts_with("zenoh_link_tls") {
            if let Some(reason) = of_tls(message).filter(|_| tls) {
                queue.refuse(SOMEBODY.into(), reason);
            }
            return;
        }
        let link = of_link(message);
        let named = link.is_some();
        let peer = link.filter(|link| link.port == port).map(|link| link.peer);
        if message.starts_with("Establishment Accept ") {
            peers.note(peer);
        } else if let Some(reason) = of_handshake(message)
            && let Some(peer) = if named { peer } else { peers.take() }
        {
            queue.refuse(peer, reason.into());
        }
    })
}

/// The other end of each handshake with the coordinator, by the zenoh task that runs it: the line about a refused token
/// does not name the other end, but the same task has logged the message with the token.
#[derive(Default)]
struct Peers(Mutex<HashMap<task::Id, String>>);

impl Peers {
    fn note(&self, peer: Option<String>) {
        let (Some(peer), Some(task)) = (peer, task::try_id()) else { return };
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.len() >= MOST {
            // Handshakes that ended well are forgotten here.
            peers.clear();
        }
        peers.insert(task, peer);
    }

    /// The other end of the present task's handshake.
    fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&task::try_id()?)
    }
}

/// The two ends of a link.
#[derive(Debug, PartialEq)]
struct Link {
    port: u16,
    peer: String,
}

/// The link that a record names: `… tcp/127.0.0.1:7447 => tcp/127.0.0.1:5 …`.
fn of_link(message: &str) -> Option<Link> {
    let (before, after) = message.split_once(" => ")?;
    let port = before.rsplit(':').next()?.parse().ok()?;
    let (_, peer) = after.split_once('/')?;
    let colon = if peer.starts_with('[') { peer.find("]:")? + 1 } else { peer.find(':')? };
    let digits = peer[colon + 1..].bytes().take_while(u8::is_ascii_digit).count();
    Some(Link { port, peer: peer[..colon + 1 + digits].to_owned() })
}

/// What a record says of a handshake that failed. A connection that says nothing, such as a port scan, is not reported.
fn of_handshake(message: &str) -> Option<&'static str> {
    let known = [
        ("Invalid password", "its token is not that of `token_file`"),
        ("Invalid user", "its token is not that of `token_file`"),
        ("UsrPwd extension - Recv InitSyn. Expected extension", "it has no token, and `token_file` asks for one"),
        ("Received a close message", "it broke off: it has a token, and there is no `token_file`"),
        ("unsupported Zenoh protocol version", "it speaks another version of zenoh"),
        ("Decode error on link", "it does not speak zenoh"),
        ("Read error from link", "it does not speak zenoh"),
        ("invalid message", "it does not speak zenoh as workers do"),
    ];
    known.iter().find(|(sign, _)| message.contains(sign)).map(|(_, reason)| *reason)
}

/// What a warning says of a failed TLS handshake.
fn of_tls(message: &str) -> Option<String> {
    let words = plain(message.split(". Hint:").next().unwrap_or_default());
    let known = [
        ("peer sent no certificates", "it has no certificate, and `tls_client_ca` asks for one"),
        ("CertificateRequired", "it has no certificate, and `tls_client_ca` asks for one"),
        ("certificate expired", "its certificate has expired"),
        ("UnknownIssuer", "its certificate is not signed by `tls_client_ca`"),
        ("BadSignature", "its certificate is not signed by `tls_client_ca`"),
        ("received fatal alert: UnknownCA", "it does not know who signed `tls_certificate`"),
        ("received fatal alert: CertificateExpired", "`tls_certificate` has expired"),
        ("received fatal alert: BadCertificate", "it does not accept `tls_certificate`; is it for another name?"),
        ("received corrupt message", "it does not speak TLS"),
    ];
    if let Some((_, reason)) = known.iter().find(|(sign, _)| words.contains(sign)) {
        return Some((*reason).into());
    }
    let silent = ["eof", "reset by peer", "Broken pipe"].iter().any(|sign| words.contains(sign));
    (!silent).then(|| format!("no handshake of TLS: {}", words.chars().take(160).collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_link_are_found() {
        let link = |port, peer: &str| Some(Link { port, peer: peer.into() });
        let record =
            "Establishment Accept InitSyn: tcp/127.0.0.1:7447 => tcp/10.0.0.5:4242. Received: TransportMessage";
        assert_eq!(of_link(record), link(7447, "10.0.0.5:4242"));
        assert_eq!(
            of_link("Decode error on link: tls/[::1]:7 => tls/[fe80::1]:42 at x.rs:1."),
            link(7, "[fe80::1]:42")
        );
        assert_eq!(of_link("UsrPwd extension - Recv OpenSyn. Invalid password."), None);
    }

    #[test]
    fn whoever_only_looks_is_not_refused() {
        assert_eq!(
            of_handshake("Read error on TCP link 127.0.0.1:1 => 127.0.0.1:2: early eof at /x/unicast.rs:161."),
            None
        );
        assert_eq!(of_tls("tls handshake eof. Hint: increase the system open file limit."), None);
        assert_eq!(of_tls("oops. Hint: increase."), Some("no handshake of TLS: oops".into()));
    }
}
