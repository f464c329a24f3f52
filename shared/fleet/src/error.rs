//! Errors that keep coordinator and worker apart.

use std::path::PathBuf;

use shared::config::endpoint::{Endpoint, EndpointError, Scheme};

/// A coordinator that does not open, or a worker that does not join. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// An endpoint that cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A file that cannot be used.
    #[error("{option} {}: {reason}", path.display())]
    File {
        /// The option or flag that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Flags that do not fit together.
    #[error("{0}")]
    Flags(String),
    /// The coordinator cannot listen.
    #[error("`listen` {endpoint}: {reason}")]
    Listen {
        /// Where.
        endpoint: Endpoint,
        /// Why not.
        reason: String,
    },
    /// The name of the coordinator is unknown.
    #[error("--join {endpoint}: the name `{}` has no address ({reason}); is it spelt right, and does this host know \
        it?", endpoint.host)]
    Name {
        /// Where.
        endpoint: Endpoint,
        /// The resolver's words.
        reason: String,
    },
    /// No connection.
    #[error(
        "--join {endpoint}: nothing listens there ({reason}); is the run up, and does a firewall let this host through?"
    )]
    Nobody {
        /// Where.
        endpoint: Endpoint,
        /// The system's words.
        reason: String,
    },
    /// The coordinator's certificate is not accepted.
    #[error("--join {endpoint}: the coordinator's certificate is not accepted: {reason}")]
    Certificate {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        reason: String,
    },
    /// The coordinator does not accept this worker's certificate, or misses it.
    #[error("--join {endpoint}: the coordinator {reason}")]
    OwnCertificate {
        /// Where.
        endpoint: Endpoint,
        /// The coordinator's refusal.
        reason: String,
    },
    /// The coordinator has another token, or one side has none.
    #[error("--join {endpoint}: the coordinator {reason}")]
    Token {
        /// Where.
        endpoint: Endpoint,
        /// The coordinator's refusal.
        reason: &'static str,
    },
    /// The coordinator has certificates, and the worker does not ask for them.
    #[error("--join {endpoint}: what listens there speaks TLS; join \
        {}", Endpoint { scheme: Scheme::Tls, ..endpoint.clone() })]
    SpeaksTls {
        /// Where.
        endpoint: Endpoint,
    },
    /// Something else listens there.
    #[error("--join {endpoint}: {reason}")]
    NoCoordinator {
        /// Where.
        endpoint: Endpoint,
        /// What the connection showed.
        reason: String,
    },
    /// An error of zenoh's.
    #[error("{endpoint}: {reason}")]
    Zenoh {
        /// Where.
        endpoint: Endpoint,
        /// Its words.
        reason: String,
    },
}

impl FleetError {
    /// Whether waiting may help although nobody does anything on this side: the coordinator may not be up yet.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Name { .. } | Self::Nobody { .. } | Self::NoCoordinator { .. } | Self::Zenoh { .. })
    }
}

/// An error of zenoh's in one line, without the places in its source.
pub(crate) fn plain(error: &str) -> String {
    let mut words = Vec::new();
    for word in error.split_whitespace() {
        let place = word.trim_end_matches(['.', ']', ',', '"']);
        match place.rsplit_once(".rs:") {
            Some((_, line)) if line.bytes().all(|byte| byte.is_ascii_digit()) => {
                words.pop_if(|before| *before == "at");
            }
            _ => words.push(word),
        }
    }
    words.join(" ").trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_the_source_of_zenoh_are_left_out() {
        let error = "Can not create a link: [127.0.0.1:1: Connection refused at /x/src/tcp.rs:105.] at \
            /x/src/tcp.rs:133. at /x/src/unicast.rs:287.";
        assert_eq!(plain(error), "Can not create a link: [127.0.0.1:1: Connection refused");
        assert_eq!(plain("look at a.rs:b\nat last."), "look at a.rs:b at last");
    }
}
