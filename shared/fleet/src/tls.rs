//! Certificates and keys, looked at before zenoh sees them: zenoh's errors name neither the file nor its fault.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use rustls::{
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::FleetError;

/// Largest file of certificates.
const MOST: u64 = 1 << 20;

/// The certificates of a file.
pub(crate) fn certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, FleetError> {
    let wrong = |reason: String| FleetError::File { option, path: path.into(), reason };
    let bytes = read(option, path)?;
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let list = list.map_err(|e| wrong(format!("it is no PEM: {e}")))?;
    if list.is_empty() {
        return Err(wrong("it has no certificate: expected PEM, with a line BEGIN CERTIFICATE".into()));
    }
    Ok(list)
}

/// As [`certificates`], once. Warns of certificates that are not valid today: clocks differ, so refusing them is left
/// to the other side.
pub(crate) fn check(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, FleetError> {
    let list = certificates(option, path)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
    for certificate in &list {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| FleetError::File {
            option,
            path: path.into(),
            reason: format!("it is no certificate: {e}"),
        })?;
        let validity = parsed.validity();
        if validity.not_after.timestamp() < now {
            tracing::warn!("{option} {}: the certificate expired on {}", path.display(), validity.not_after);
        }
        if validity.not_before.timestamp() > now {
            tracing::warn!("{option} {}: the certificate is not valid before {}", path.display(), validity.not_before);
        }
    }
    Ok(list)
}

/// The key of a file.
pub(crate) fn key(option: &'static str, path: &Path) -> Result<PrivateKeyDer<'static>, FleetError> {
    let bytes = read(option, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| FleetError::File {
        option,
        path: path.into(),
        reason: "it has no private key: expected PEM, with a line BEGIN PRIVATE KEY".into(),
    })
}

/// Checks that a key is that of a certificate. Both arguments come with the name of their option.
pub(crate) fn check_pair(certificate: (&'static str, &Path), key: (&'static str, &Path)) -> Result<(), FleetError> {
    let chain = check(certificate.0, certificate.1)?;
    let private = self::key(key.0, key.1)?;
    let wrong = |reason: String| FleetError::File { option: key.0, path: key.1.into(), reason };
    let signing = ring::sign::any_supported_type(&private).map_err(|e| wrong(e.to_string()))?;
    match CertifiedKey::new(chain, signing).keys_match() {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(wrong(format!("it is not the key of {} {}", certificate.0, certificate.1.display())))
        }
        _ => Ok(()),
    }
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, FleetError> {
    let wrong = |reason: String| FleetError::File { option, path: path.into(), reason };
    // zenoh takes the settings of a link as one text, in which these characters are separators.
    if path.to_str().is_none_or(|text| text.contains([';', '#', '?', '=', '|'])) {
        return Err(wrong("its path has one of ; # ? = | in it, or is no UTF-8; move it to another".into()));
    }
    shared_bounds::read(path, MOST).map_err(|e| wrong(e.to_string()))
}
