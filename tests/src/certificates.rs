//! Certificate authorities, in temporary folders.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

/// Valid from yesterday until tomorrow.
pub const TODAY: [i64; 2] = [-1, 1];
/// Valid until yesterday.
pub const EXPIRED: [i64; 2] = [-2, -1];

/// Tells authorities apart.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// An authority that signs certificates.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    /// An authority that nobody else knows.
    ///
    /// # Panics
    /// When it cannot be created.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are good names");
        params.distinguished_name.push(DnType::CommonName, format!("authority {}", NUMBER.fetch_add(1, Relaxed)));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority signs itself");
        let dir = tempfile::tempdir().expect("there is room for a folder");
        write(&dir.path().join("ca.pem"), &issuer.pem());
        Self { issuer, dir }
    }

    /// The file with its own certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Signs a certificate for a name. `days` is its validity, from and until, counted from now. Returns certificate
    /// and key.
    ///
    /// # Panics
    /// When the name is not valid.
    #[must_use]
    pub fn sign(&self, name: &str, days: [i64; 2]) -> (PathBuf, PathBuf) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let now = OffsetDateTime::now_utc();
        [params.not_before, params.not_after] = days.map(|days| now + Duration::days(days));
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params.signed_by(&key, &self.issuer).expect("an authority signs");
        let [to, key_to] = ["cert", "key"].map(|kind| self.dir.path().join(format!("{name}{days:?}.{kind}.pem")));
        write(&to, &certificate.pem());
        write(&key_to, &key.serialize_pem());
        (to, key_to)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("files can be written");
}
