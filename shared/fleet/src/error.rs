//! Why coordinator and worker do not come together.

use std::path::PathBuf;

use shared::endpoint::{Endpoint, EndpointError, Scheme};

/// A coordinator that does not open, or a worker that does not join. No message has a secret in it.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// An endpoint that does not do.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A file that does not do.
    #[error("{option} {}: {reason}", path.display())]
    File {
        /// The option or flag that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Flags that do not fit each other.
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
        /// What the coordinator does.
        reason: String,
    },
    /// The word that the coordinator knows is another one, or missing on one side.
    #[error("--join {endpoint}: the coordinator {reason}")]
    Token {
        /// Where.
        endpoint: Endpoint,
        /// What the coordinator does.
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
        /// What was seen of it.
        reason: String,
    },
    /// What zenoh says.
    #[error("{endpoint}: {reason}")]
    Zenoh {
        /// Where.
        endpoint: Endpoint,
        /// Its words.
        reason: String,
    },
}

impl FleetError {
    /// Whether it may be otherwise in a while although nobody does anything here: a coordinator that is not up yet.
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
