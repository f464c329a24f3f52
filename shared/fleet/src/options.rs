//! Options of coordinator and worker.

use std::path::PathBuf;

use shared::config::{
    TrainConfig,
    endpoint::{Endpoint, EndpointError, Guards, Scheme},
};

use crate::{FleetError, tls, token::Token};

/// How a coordinator listens: those options of a run that are about it.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// `listen`.
    pub endpoint: Endpoint,
    /// `token_file`.
    pub token_file: Option<PathBuf>,
    /// `tls_certificate`.
    pub certificate: Option<PathBuf>,
    /// `tls_private_key`.
    pub private_key: Option<PathBuf>,
    /// `tls_client_ca`.
    pub client_ca: Option<PathBuf>,
}

impl ListenOptions {
    /// The options of a run; none if the run has no coordinator.
    ///
    /// # Errors
    /// When `listen` is no endpoint.
    pub fn from_config(config: &TrainConfig) -> Result<Option<Self>, FleetError> {
        let Some(listen) = &config.listen else { return Ok(None) };
        Ok(Some(Self {
            endpoint: listen.parse()?,
            token_file: config.token_file.clone(),
            certificate: config.tls_certificate.clone(),
            private_key: config.tls_private_key.clone(),
            client_ca: config.tls_client_ca.clone(),
        }))
    }

    /// Checks everything that can be checked without listening: that not everyone may take part, and that the files
    /// exist and hold what they should. Warns of things that work now but will not for long.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), FleetError> {
        self.token().map(drop)
    }

    /// As [`Self::check`]; returns the token, if there is one.
    pub(crate) fn token(&self) -> Result<Option<Token>, FleetError> {
        self.endpoint.check(Guards {
            token: self.token_file.is_some(),
            certificate: self.certificate.is_some(),
            private_key: self.private_key.is_some(),
            client_ca: self.client_ca.is_some(),
        })?;
        if let (Some(certificate), Some(key)) = (&self.certificate, &self.private_key) {
            tls::check_pair(("`tls_certificate`", certificate), ("`tls_private_key`", key))?;
        }
        if let Some(ca) = &self.client_ca {
            tls::check("`tls_client_ca`", ca)?;
        }
        self.token_file.as_ref().map(|path| Token::read("`token_file`", path)).transpose()
    }
}

/// How a worker joins: its flags.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// `--join`.
    pub endpoint: Endpoint,
    /// `--token-file`.
    pub token_file: Option<PathBuf>,
    /// `--tls-ca`: the authority that signed the coordinator's certificate; without the flag, any public authority
    /// counts.
    pub ca: Option<PathBuf>,
    /// `--tls-certificate`.
    pub certificate: Option<PathBuf>,
    /// `--tls-private-key`.
    pub key: Option<PathBuf>,
}

impl JoinOptions {
    /// Joins this endpoint, without token or certificates.
    ///
    /// # Errors
    /// When it is no endpoint.
    pub fn to(endpoint: &str) -> Result<Self, EndpointError> {
        Ok(Self { endpoint: endpoint.parse()?, token_file: None, ca: None, certificate: None, key: None })
    }

    /// Checks everything that can be checked without the coordinator.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), FleetError> {
        self.token().map(drop)
    }

    /// As [`Self::check`]; returns the token, if there is one.
    pub(crate) fn token(&self) -> Result<Option<Token>, FleetError> {
        let endpoint = &self.endpoint;
        let flags =
            [("--tls-ca", &self.ca), ("--tls-certificate", &self.certificate), ("--tls-private-key", &self.key)];
        let given = flags.into_iter().find(|(_, file)| file.is_some());
        if let (Scheme::Tcp, Some((flag, _))) = (endpoint.scheme, given) {
            return Err(FleetError::Flags(format!(
                "{flag} has no effect with --join {endpoint}: join tls/…, or leave it out"
            )));
        }
        if endpoint.scheme == Scheme::Tls && endpoint.host.contains(':') {
            return Err(FleetError::Flags(format!(
                "--join {endpoint}: TLS needs the name that is in the coordinator's certificate, or its IPv4 address; \
                 write that"
            )));
        }
        if endpoint.port == 0 {
            return Err(FleetError::Flags(format!(
                "--join {endpoint}: nobody listens at port 0; write the port of the run's `listen`"
            )));
        }
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                tls::check_pair(("--tls-certificate", certificate), ("--tls-private-key", key))?;
            }
            (None, None) => {}
            _ => {
                return Err(FleetError::Flags(
                    "--tls-certificate and --tls-private-key belong together; give both".into(),
                ));
            }
        }
        if let Some(ca) = &self.ca {
            tls::check("--tls-ca", ca)?;
        }
        self.token_file.as_ref().map(|path| Token::read("--token-file", path)).transpose()
    }
}
