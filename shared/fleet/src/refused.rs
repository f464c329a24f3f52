//! Connections that never came to be. zenoh tells the hub nothing of them, and says in its log what is understood here.

use std::{cell::RefCell, sync::Arc};

use crate::{error::plain, queue::Queue};

thread_local! {
    /// The other end of the link that this thread of zenoh's speaks of, if it is one of the hub's. A refusal is logged by the
    /// thread that has just logged the message which it is about.
    static PEER: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Whom nobody has named.
const SOMEBODY: &str = "somebody";

/// Tells a hub's queue of what becomes of connections to its port.
pub(crate) fn listener(queue: Arc<Queue>, port: u16, tls: bool) -> Arc<dyn Fn(&str, &str) + Send + Sync> {
    Arc::new(move |target, message| {
        if target.starts_with("zenoh_link_tls") {
            if let Some(reason) = of_tls(message).filter(|_| tls) {
                queue.refuse(SOMEBODY.into(), reason);
            }
        } else if let Some(link) = of_link(message) {
            PEER.set(link.filter(|link| link.port == port).map(|link| link.peer));
        } else if let (Some(reason), Some(peer)) = (of_handshake(message), PEER.take()) {
            queue.refuse(peer, reason);
        }
    })
}

/// The two ends of a link.
#[derive(Debug, PartialEq)]
struct Link {
    port: u16,
    peer: String,
}

/// Whether a record is about a message on a link, and which: `Establishment Accept InitSyn: 127.0.0.1:7447 => 127.0.0.1:5. …`,
/// with more around the two ends.
fn of_link(message: &str) -> Option<Option<Link>> {
    let rest = message.strip_prefix("Establishment Accept ")?;
    Some(rest.split_once(" => ").and_then(|(before, after)| {
        let port = before.rsplit(':').next()?.parse().ok()?;
        let end = after.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c))).unwrap_or(after.len());
        Some(Link { port, peer: after[..end].trim_end_matches(['.', ':']).to_owned() })
    }))
}

/// What a record says of a handshake that failed.
fn of_handshake(message: &str) -> Option<String> {
    let words = plain(message);
    let known = [
        ("Invalid password", "its token is not that of `token_file`"),
        ("Invalid user", "its token is not that of `token_file`"),
        ("UsrPwd extension - Recv InitSyn. Expected extension", "it has no token, and `token_file` asks for one"),
        ("Received a close message", "it broke off: it has a token, and there is no `token_file`"),
        ("unsupported Zenoh protocol version", "it speaks another version of zenoh"),
    ];
    if let Some((_, reason)) = known.iter().find(|(sign, _)| words.contains(sign)) {
        return Some((*reason).into());
    }
    // Somebody who only looked whether there is anybody.
    let silent = ["eof", "reset by peer", "Broken pipe", "os error"].iter().any(|sign| words.contains(sign));
    (!silent).then(|| format!("it does not speak zenoh ({})", short(&words)))
}

/// What a warning says of a handshake of TLS that failed.
fn of_tls(message: &str) -> Option<String> {
    let words = plain(message.split(". Hint:").next().unwrap_or_default());
    let known = [
        ("peer sent no certificates", "it has no certificate, and `tls_client_ca` asks for one"),
        ("CertificateRequired", "it has no certificate, and `tls_client_ca` asks for one"),
        ("certificate expired", "its certificate has expired"),
        ("UnknownIssuer", "its certificate is not signed by `tls_client_ca`"),
        ("received fatal alert: UnknownCA", "it does not know who signed `tls_certificate`"),
        ("received fatal alert: CertificateExpired", "`tls_certificate` has expired"),
        ("received fatal alert: BadCertificate", "it does not accept `tls_certificate`; is it for another name?"),
        ("received corrupt message", "it does not speak TLS"),
    ];
    if let Some((_, reason)) = known.iter().find(|(sign, _)| words.contains(sign)) {
        return Some((*reason).into());
    }
    let silent = ["eof", "reset by peer", "Broken pipe"].iter().any(|sign| words.contains(sign));
    (!silent).then(|| format!("no handshake of TLS: {}", short(&words)))
}

/// Words that a stranger may have chosen.
fn short(words: &str) -> String {
    words.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_link_are_found() {
        let link = |port, peer: &str| Some(Some(Link { port, peer: peer.into() }));
        let record =
            "Establishment Accept InitSyn: Link { 127.0.0.1:7447 => 10.0.0.5:4242 }. Received: TransportMessage";
        assert_eq!(of_link(record), link(7447, "10.0.0.5:4242"));
        let record = "Establishment Accept OpenSyn: [::1]:7 => [fe80::1]:42. Received: x => y";
        assert_eq!(of_link(record), link(7, "[fe80::1]:42"));
        assert_eq!(of_link("Establishment Accept nothing"), Some(None));
        assert_eq!(of_link("another"), None);
    }

    #[test]
    fn whoever_only_looks_is_not_refused() {
        assert_eq!(of_handshake("Read error on TCP link: early eof at /x/unicast.rs:161."), None);
        assert_eq!(of_tls("tls handshake eof. Hint: increase the system open file limit."), None);
        assert!(
            of_handshake("Decoding error at /x/y.rs:1.").unwrap().contains("does not speak zenoh (Decoding error)")
        );
    }
}
