//! Samplers on other hosts.

use crate::{
    channel::endpoint::{Endpoint, Guards},
    config::{ConfigError, TrainConfig},
};

impl TrainConfig {
    pub(super) fn check_fleet(&self) -> Result<(), ConfigError> {
        let Some(listen) = &self.listen else { return self.check_without_fleet() };
        let endpoint: Endpoint = listen.parse().map_err(|e| ConfigError::Value(format!("`listen`: {e}")))?;
        let guards = Guards {
            token: self.token_file.is_some(),
            certificate: self.tls_certificate.is_some(),
            private_key: self.tls_private_key.is_some(),
            client_ca: self.tls_client_ca.is_some(),
        };
        endpoint.check(guards).map_err(|e| ConfigError::Value(e.to_string()))
    }

    fn check_without_fleet(&self) -> Result<(), ConfigError> {
        let options = [
            "weights_store",
            "store_versions",
            "token_file",
            "tls_certificate",
            "tls_private_key",
            "tls_client_ca",
            "verify_share",
            "lease_timeout",
            "accept_other_kernels",
        ];
        for key in options {
            ensure!(
                !self.is_set(key),
                "`{key}` has no effect without `listen`: say where workers reach the run, or remove it"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{
        TrainConfig,
        validate::testing::{accepted, refused},
    };

    fn listen(config: &mut TrainConfig, endpoint: &str) {
        config.listen = Some(endpoint.into());
    }

    #[test]
    fn a_run_for_workers_says_where_they_reach_it() {
        refused("`listen`: `tcp://hub:7447` is no endpoint: write tcp/HOST:PORT", |c| listen(c, "tcp://hub:7447"));
        refused("`listen`: `7447` is no endpoint", |c| listen(c, "7447"));
        accepted(|c| listen(c, "tcp/127.0.0.1:7447"));
        accepted(|c| listen(c, "tcp/[::1]:7447"));
    }

    #[test]
    fn what_others_reach_is_guarded() {
        refused("`listen` tcp/0.0.0.0:7447 is open to everyone", |c| listen(c, "tcp/0.0.0.0:7447"));
        refused("`listen` tcp/[::]:7447 is open to everyone", |c| listen(c, "tcp/[::]:7447"));
        let tls = |c: &mut TrainConfig| {
            listen(c, "tls/0.0.0.0:7447");
            (c.tls_certificate, c.tls_private_key) = (Some("cert.pem".into()), Some("key.pem".into()));
        };
        refused("`listen` tls/0.0.0.0:7447 is open to everyone", tls);
        accepted(|c| {
            tls(c);
            c.tls_client_ca = Some("ca.pem".into());
        });
        accepted(|c| {
            tls(c);
            c.token_file = Some("token".into());
        });
        accepted(|c| {
            listen(c, "tcp/hub:7447");
            c.token_file = Some("token".into());
        });
    }

    #[test]
    fn certificates_are_for_tls_and_tls_needs_them() {
        refused("`listen` tls/127.0.0.1:7447 needs `tls_certificate`", |c| listen(c, "tls/127.0.0.1:7447"));
        refused("`listen` tls/127.0.0.1:7447 needs `tls_private_key`", |c| {
            listen(c, "tls/127.0.0.1:7447");
            c.tls_certificate = Some("cert.pem".into());
        });
        refused("`tls_certificate` has no effect with `listen` tcp/127.0.0.1:7447", |c| {
            listen(c, "tcp/127.0.0.1:7447");
            c.tls_certificate = Some("cert.pem".into());
        });
    }

    #[test]
    fn options_of_workers_have_no_effect_without_them() {
        type Change = fn(&mut TrainConfig);
        let changes: [(&str, Change); 9] = [
            ("weights_store", |c| c.weights_store = Some("s3://bucket/run".into())),
            ("store_versions", |c| c.store_versions = 2),
            ("token_file", |c| c.token_file = Some("token".into())),
            ("tls_certificate", |c| c.tls_certificate = Some("cert.pem".into())),
            ("tls_private_key", |c| c.tls_private_key = Some("key.pem".into())),
            ("tls_client_ca", |c| c.tls_client_ca = Some("ca.pem".into())),
            ("verify_share", |c| c.verify_share = 0.5),
            ("lease_timeout", |c| c.lease_timeout = 5.0),
            ("accept_other_kernels", |c| c.accept_other_kernels = true),
        ];
        for (key, change) in changes {
            refused(&format!("`{key}` has no effect without `listen`"), change);
            if !key.starts_with("tls_") {
                accepted(|c| {
                    listen(c, "tcp/127.0.0.1:7447");
                    change(c);
                });
            }
        }
    }
}
