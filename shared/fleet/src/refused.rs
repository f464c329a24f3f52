//! Connections that never came to be. zenoh tells the hub nothing of them, and says in its log what is understood here.

use std::{cell::RefCell, sync::Arc};

use crate::{error::plain, queue::Queue};

thread_local! {
    /// The other end of the link that this thread of zenoh's has just spoken of, if it is one of the hub's: a refused token is
    /// logged without it, by the thread that has logged the message with the token in it.
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
            return;
        }
        let link = of_link(message);
        let named = link.is_some();
        let peer = link.filter(|link| link.port == port).map(|link| link.peer);
        if message.starts_with("Establishment Accept ") {
            PEER.set(peer);
        } else if let Some(reason) = of_handshake(message)
            && let Some(peer) = if named { peer } else { PEER.take() }
        {
            queue.refuse(peer, reason.into());
        }
    })
}

/// The two ends of a link.
#[derive(Debug, PartialEq)]
struct Link {
    port: u16,
    peer: String,
}

/// The link that a record names: `… tcp/127.0.0.1:7447 => tcp/127.0.0.1:5. …`.
fn of_link(message: &str) -> Option<Link> {
    let (before, after) = message.split_once(" => ")?;
    let port = before.rsplit(':').next()?.parse().ok()?;
    let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]/%".contains(c))).unwrap_or(after.len());
    let end = after[..end].trim_end_matches(['.', ':']);
    Some(Link { port, peer: end.split_once('/').map_or(end, |(_, address)| address).to_owned() })
}

/// What a record says of a handshake that failed. Whoever only looks whether there is anybody is not remarked on.
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

/// What a warning says of a handshake of TLS that failed.
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
