//! The way to a coordinator in stages, so that an error can name the stage that fails.

use std::{
    io::{self, ErrorKind, Read},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, RootCertStore, Stream, crypto::ring,
    pki_types::ServerName,
};
use shared::config::endpoint::{Endpoint, Scheme};

use crate::{FleetError, JoinOptions, tls};

/// How long a coordinator may take to complain of a certificate once it has seen it.
const COMPLAINT: Duration = Duration::from_secs(1);

/// The addresses of a coordinator.
pub(crate) fn resolve(endpoint: &Endpoint, within: Duration) -> Result<Vec<SocketAddr>, FleetError> {
    let (host, port) = (endpoint.host.clone(), endpoint.port);
    let (sender, receiver) = mpsc::channel();
    // The system's resolver has no deadline. The thread is left alone and ends with the resolver.
    thread::spawn(move || sender.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter)));
    let failed = |reason: String| FleetError::Name { endpoint: endpoint.clone(), reason };
    match receiver.recv_timeout(within) {
        Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
        Ok(Ok(_)) => Err(failed("none is known".into())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(format!("the resolver has not answered for {:.0} s", within.as_secs_f64()))),
    }
}

/// A connection to the first address that takes one.
pub(crate) fn connect(
    endpoint: &Endpoint,
    addresses: &[SocketAddr],
    within: Duration,
) -> Result<TcpStream, FleetError> {
    let deadline = Instant::now() + within;
    let mut reason = String::new();
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => reason = format!("{address}: {}", connecting(&error, within)),
        }
    }
    Err(FleetError::Nobody { endpoint: endpoint.clone(), reason })
}

fn connecting(error: &io::Error, within: Duration) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".into(),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("no answer within {:.0} s", within.as_secs_f64().ceil()),
        _ => error.to_string(),
    }
}

/// Why a session did not open, given zenoh's words for it. TLS is tried once more for its own reason, since zenoh's
/// words do not contain it.
pub(crate) fn why(options: &JoinOptions, words: &str, within: Duration) -> FleetError {
    if let Some(reason) = of_token(words, options.token_file.is_some()) {
        return FleetError::Token { endpoint: options.endpoint.clone(), reason };
    }
    let other = |reason: String| FleetError::NoCoordinator { endpoint: options.endpoint.clone(), reason };
    let tls = resolve(&options.endpoint, within)
        .and_then(|addresses| connect(&options.endpoint, &addresses, within))
        .and_then(|stream| handshake(options, stream, within.min(COMPLAINT)));
    match (options.endpoint.scheme, tls) {
        (Scheme::Tls, Err(error)) => error,
        (Scheme::Tcp, Ok(()) | Err(FleetError::Certificate { .. } | FleetError::OwnCertificate { .. })) => {
            FleetError::SpeaksTls { endpoint: options.endpoint.clone() }
        }
        _ if words.contains("deadline has elapsed") => {
            other("what listens there takes connections and says nothing".into())
        }
        _ if ["eof", "reset by peer"].iter().any(|sign| words.contains(sign)) => {
            other("what listens there takes connections and ends them; is it a coordinator?".into())
        }
        _ => other(format!("what listens there is no coordinator: {words}")),
    }
}

/// What zenoh's words say of a token. A caller with the wrong token is refused at the second message, a caller without
/// one at the first.
fn of_token(words: &str, given: bool) -> Option<&'static str> {
    if given && words.contains("response to an OpenSyn") {
        return Some("does not accept the token: --token-file has another word than its `token_file`");
    }
    if !given && words.contains("response to an InitSyn") {
        return Some("asks for a token: give --token-file, with the word of its `token_file`");
    }
    let needless = given && words.contains("UsrPwd");
    needless.then_some("has no token: leave out --token-file, or give it `token_file`")
}

/// The handshake of TLS as zenoh does it, up to the point where the coordinator would complain of the worker's
/// certificate.
pub(crate) fn handshake(options: &JoinOptions, mut stream: TcpStream, within: Duration) -> Result<(), FleetError> {
    let endpoint = &options.endpoint;
    let other = |reason: String| FleetError::NoCoordinator { endpoint: endpoint.clone(), reason };
    let name = ServerName::try_from(endpoint.host.clone()).map_err(|e| other(e.to_string()))?;
    let mut tls = ClientConnection::new(Arc::new(client(options)?), name).map_err(|e| other(e.to_string()))?;
    let timeouts = |stream: &TcpStream, within: Duration| {
        stream.set_read_timeout(Some(within)).and_then(|()| stream.set_write_timeout(Some(within)))
    };
    let Endpoint { host, port, .. } = endpoint;
    let silent = || other(format!("what listens there does not speak TLS; is it tcp/{host}:{port}?"));
    let failed = |error: &io::Error| refusal(options, error).unwrap_or_else(silent);
    timeouts(&stream, within.max(Duration::from_millis(1))).map_err(|e| failed(&e))?;
    while tls.is_handshaking() {
        tls.complete_io(&mut stream).map_err(|e| failed(&e))?;
    }
    timeouts(&stream, COMPLAINT).map_err(|e| failed(&e))?;
    // The coordinator speaks second, so there is nothing to read but a complaint.
    match Stream::new(&mut tls, &mut stream).read(&mut [0]) {
        Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            refusal(options, &error).map_or(Ok(()), Err)
        }
        _ => Ok(()),
    }
}

fn client(options: &JoinOptions) -> Result<ClientConfig, FleetError> {
    // As in zenoh, which adds the given authority to the public ones.
    let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if let Some(ca) = &options.ca {
        roots.add_parsable_certificates(tls::certificates("--tls-ca", ca)?);
    }
    let versions =
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let wrong = |e: rustls::Error| FleetError::Flags(format!("--tls-certificate: {e}"));
    let builder = versions.map_err(wrong)?.with_root_certificates(roots);
    match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => {
            let chain = tls::certificates("--tls-certificate", certificate)?;
            builder.with_client_auth_cert(chain, tls::key("--tls-private-key", key)?).map_err(wrong)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

/// The meaning of a failed handshake, if certificates are the cause.
fn refusal(options: &JoinOptions, error: &io::Error) -> Option<FleetError> {
    let endpoint = options.endpoint.clone();
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(error) => {
            Some(FleetError::Certificate { reason: wrong(options, error), endpoint })
        }
        rustls::Error::AlertReceived(alert) => {
            Some(FleetError::OwnCertificate { endpoint, reason: complaint(options, *alert) })
        }
        _ => None,
    }
}

/// What is wrong with the coordinator's certificate.
fn wrong(options: &JoinOptions, error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired; the coordinator needs a new one, if this host's clock is right".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; is this host's clock right?".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => match &options.ca {
            Some(_) => "it is signed by neither --tls-ca nor a public authority".into(),
            None => "it is signed by no public authority; name who signed it with --tls-ca".into(),
        },
        CertificateError::NotValidForName => format!("it is not for the name {}", options.endpoint.host),
        CertificateError::NotValidForNameContext { presented, .. } => {
            format!("it is not for the name {}, but for {}", options.endpoint.host, names(presented))
        }
        _ => error.to_string(),
    }
}

/// Names as a certificate has them: `DnsName("coordinator")`.
fn names(presented: &[String]) -> String {
    let bare =
        |name: &String| name.split_once("(\"").map_or(name.clone(), |(_, rest)| rest.trim_end_matches("\")").into());
    presented.iter().map(bare).collect::<Vec<_>>().join(", ")
}

/// What the coordinator's alert says of this worker's certificate.
fn complaint(options: &JoinOptions, alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateRequired => {
            "asks for a certificate: give --tls-certificate and --tls-private-key, signed by its `tls_client_ca`".into()
        }
        AlertDescription::CertificateExpired => "does not accept --tls-certificate: it has expired".into(),
        AlertDescription::UnknownCA | AlertDescription::DecryptError | AlertDescription::BadCertificate => {
            "does not accept --tls-certificate: it is not signed by its `tls_client_ca`".into()
        }
        _ if options.certificate.is_some() => format!("does not accept --tls-certificate: {alert:?}"),
        _ => format!("broke off TLS: {alert:?}"),
    }
}
