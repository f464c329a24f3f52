//! Where a coordinator listens and workers reach it: `tcp/HOST:PORT`, or `tls/HOST:PORT` with certificates.

use std::{fmt, net::IpAddr, str::FromStr};

/// The transport of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Unencrypted.
    Tcp,
    /// Encrypted, to a peer with a certificate.
    Tls,
}

/// A place on the network. It is written and read as `tcp/HOST:PORT`; an IPv6 address is in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The transport of the bytes.
    pub scheme: Scheme,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port. At port 0, a coordinator takes a free port; `listen` and `--join` must name another.
    pub port: u16,
}

/// An endpoint that cannot be used, in the words of the option `listen` or the flag `--join`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// The text has not the form of an endpoint.
    #[error(
        "`{text}` is no endpoint: write tcp/HOST:PORT or tls/HOST:PORT, and an IPv6 address in brackets, as in \
         tcp/[::1]:7447"
    )]
    Syntax {
        /// The text.
        text: String,
    },
    /// Anybody who can reach it could take part.
    #[error(
        "`listen` {endpoint} is open to everyone who reaches it: give `token_file`, or `tls_client_ca` with tls/…, or \
         listen on this host alone (tcp/127.0.0.1:{})", endpoint.port
    )]
    Open {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// TLS without an option that it needs.
    #[error("`listen` {endpoint} needs `{missing}`: a file in PEM")]
    Incomplete {
        /// The endpoint.
        endpoint: Endpoint,
        /// The missing option.
        missing: &'static str,
    },
    /// An option for TLS without TLS.
    #[error("`{option}` has no effect with `listen` {endpoint}: listen on tls/…, or remove it")]
    WithoutTls {
        /// The endpoint.
        endpoint: Endpoint,
        /// The option.
        option: &'static str,
    },
}

/// The protection of a coordinator: which of its options are given.
#[derive(Debug, Clone, Copy, Default)]
pub struct Guards {
    /// `token_file`.
    pub token: bool,
    /// `tls_certificate`.
    pub certificate: bool,
    /// `tls_private_key`.
    pub private_key: bool,
    /// `tls_client_ca`.
    pub client_ca: bool,
}

impl Endpoint {
    /// Whether it can be reached from this host only. A name other than `localhost` may stand for any address.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(address) => address.to_canonical().is_loopback(),
            Err(_) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }

    /// Checks that a coordinator with this protection may listen here.
    ///
    /// # Errors
    /// When everybody could take part, or when certificates and scheme do not match.
    pub fn check(&self, guards: Guards) -> Result<(), EndpointError> {
        let endpoint = || self.clone();
        let options = [
            ("tls_certificate", guards.certificate),
            ("tls_private_key", guards.private_key),
            ("tls_client_ca", guards.client_ca),
        ];
        match self.scheme {
            Scheme::Tcp => {
                if let Some((option, _)) = options.into_iter().find(|(_, given)| *given) {
                    return Err(EndpointError::WithoutTls { endpoint: endpoint(), option });
                }
            }
            Scheme::Tls => {
                if let Some((missing, _)) = options[..2].iter().find(|(_, given)| !*given) {
                    return Err(EndpointError::Incomplete { endpoint: endpoint(), missing });
                }
            }
        }
        if guards.token || guards.client_ca || self.is_loopback() {
            return Ok(());
        }
        Err(EndpointError::Open { endpoint: endpoint() })
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        parse(text).ok_or_else(|| EndpointError::Syntax { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<Endpoint> {
    let (scheme, place) = text.split_once('/')?;
    let scheme = match scheme {
        "tcp" => Scheme::Tcp,
        "tls" => Scheme::Tls,
        _ => return None,
    };
    let (host, port) = place.rsplit_once(':')?;
    // `parse` would accept a sign, too.
    let port = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|address| matches!(address.parse(), Ok(IpAddr::V6(_))))?,
        None => Some(host).filter(|name| is_name(name))?,
    };
    Some(Endpoint { scheme, host: host.to_owned(), port })
}

/// Whether it may be the name of a host, or an IPv4 address.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Tcp => "tcp",
            Scheme::Tls => "tls",
        };
        match self.host.contains(':') {
            true => write!(f, "{scheme}/[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}/{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_as_it_was() {
        for text in ["tcp/127.0.0.1:7447", "tls/run.example.org:1", "tcp/[::1]:0", "tls/[2001:db8::7]:65535"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        let wrong = [
            "",
            "run:7447",
            "tcp/run",
            "tcp/:7447",
            "udp/run:7447",
            "tcp://run:7447",
            "tcp/run:70000",
            "tcp/run:+7",
            "tcp/run:",
            "tcp/::1:7447",
            "tcp/[run]:7447",
            "tcp/[127.0.0.1]:7447",
            "tls/run:7447#a=b",
            "tls/run?x:7447",
            "TCP/run:7447",
            "tcp/run :7447",
        ];
        for text in wrong {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::Syntax { text: text.into() }));
        }
    }

    #[test]
    fn loopback_is_this_host_alone() {
        let loopback = |text: &str| text.parse::<Endpoint>().unwrap().is_loopback();
        for text in ["tcp/127.0.0.1:1", "tcp/127.8.0.1:1", "tcp/[::1]:1", "tcp/[::ffff:127.0.0.1]:1", "tcp/LocalHost:1"]
        {
            assert!(loopback(text), "{text}");
        }
        for text in ["tcp/0.0.0.0:1", "tcp/[::]:1", "tcp/10.0.0.1:1", "tcp/run:1", "tcp/localhost.example.org:1"] {
            assert!(!loopback(text), "{text}");
        }
    }

    #[test]
    fn a_coordinator_for_everyone_is_refused() {
        let check = |text: &str, guards| text.parse::<Endpoint>().unwrap().check(guards).map_err(|e| e.to_string());
        let none = Guards::default();
        let token = Guards { token: true, ..none };
        let tls = Guards { certificate: true, private_key: true, ..none };
        assert_eq!(check("tcp/127.0.0.1:7447", none), Ok(()));
        assert_eq!(check("tcp/0.0.0.0:7447", token), Ok(()));
        assert_eq!(check("tls/localhost:7447", tls), Ok(()));
        assert_eq!(check("tls/0.0.0.0:7447", Guards { client_ca: true, ..tls }), Ok(()));
        assert_eq!(check("tls/0.0.0.0:7447", Guards { token: true, ..tls }), Ok(()));
        let open = "`listen` tcp/0.0.0.0:7447 is open to everyone who reaches it: give `token_file`, or \
            `tls_client_ca` with tls/…, or listen on this host alone (tcp/127.0.0.1:7447)";
        assert_eq!(check("tcp/0.0.0.0:7447", none), Err(open.into()));
        assert!(check("tls/0.0.0.0:7447", tls).unwrap_err().contains("is open to everyone"));
        assert_eq!(
            check("tls/127.0.0.1:1", Guards { certificate: true, ..none }),
            Err("`listen` tls/127.0.0.1:1 needs `tls_private_key`: a file in PEM".into())
        );
        assert_eq!(
            check("tcp/0.0.0.0:1", Guards { client_ca: true, ..none }),
            Err("`tls_client_ca` has no effect with `listen` tcp/0.0.0.0:1: listen on tls/…, or remove it".into())
        );
    }
}
