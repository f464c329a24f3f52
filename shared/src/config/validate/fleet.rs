//! Samplers on other hosts.

use crate::config::{
    ConfigError, Device, Kernels, StoreFormat, TrainConfig,
    endpoint::{Endpoint, Guards},
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
        endpoint.check(guards).map_err(|e| ConfigError::Value(e.to_string()))?;
        ensure!(
            endpoint.port != 0,
            "`listen` {endpoint}: workers cannot know the port that 0 stands for; name a free one, such as 7447"
        );
        ensure!(
            self.store_format != StoreFormat::Rounded || self.can_round(),
            "`store_format` rounded is for workers that compute alike, with the packed kernels on a CPU: leave it out"
        );
        Ok(())
    }

    /// Whether versions are rounded in the store.
    #[must_use]
    pub fn stores_rounded(&self) -> bool {
        match self.store_format {
            StoreFormat::Plain => false,
            StoreFormat::Rounded => self.can_round(),
            StoreFormat::Auto => self.can_round() && self.weights_store.is_some(),
        }
    }

    /// Whether workers run on the host of the run and read versions where the learner leaves them.
    #[must_use]
    pub fn versions_stay(&self) -> bool {
        let endpoint = self.listen.as_deref().and_then(|listen| listen.parse::<Endpoint>().ok());
        let is_here = endpoint.is_some_and(|endpoint| endpoint.is_loopback());
        is_here && self.weights_store.is_none() && self.store_format == StoreFormat::Auto
    }

    /// Whether every worker computes in the format that versions would be rounded to.
    fn can_round(&self) -> bool {
        self.rollout_device == Device::Cpu && self.rollout_kernels == Kernels::Packed && !self.accept_other_kernels
    }

    fn check_without_fleet(&self) -> Result<(), ConfigError> {
        let options = [
            "weights_store",
            "store_versions",
            "store_format",
            "token_file",
            "tls_certificate",
            "tls_private_key",
            "tls_client_ca",
            "rewards_on",
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
        Device, Kernels, RewardsOn, StoreFormat, TrainConfig,
        validate::testing::{accepted, refused},
    };

    fn listen(config: &mut TrainConfig, endpoint: &str) {
        config.listen = Some(endpoint.into());
    }

    #[test]
    fn a_run_for_workers_says_where_they_reach_it() {
        refused("`listen`: `tcp://run:7447` is no endpoint: write tcp/HOST:PORT", |c| listen(c, "tcp://run:7447"));
        refused("`listen`: `7447` is no endpoint", |c| listen(c, "7447"));
        accepted(|c| listen(c, "tcp/127.0.0.1:7447"));
        accepted(|c| listen(c, "tcp/[::1]:7447"));
    }

    #[test]
    fn a_port_that_workers_cannot_know_is_refused() {
        refused("`listen` tcp/127.0.0.1:0: workers cannot know the port", |c| listen(c, "tcp/127.0.0.1:0"));
        refused("`listen` tls/[::1]:0: workers cannot know the port", |c| {
            listen(c, "tls/[::1]:0");
            (c.tls_certificate, c.tls_private_key) = (Some("cert.pem".into()), Some("key.pem".into()));
        });
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
            listen(c, "tcp/run:7447");
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
    fn versions_are_rounded_for_workers_that_compute_alike() {
        let stores_rounded = |change: fn(&mut TrainConfig)| {
            let mut config = TrainConfig { weights_store: Some("s3://bucket".into()), ..TrainConfig::default() };
            change(&mut config);
            config.stores_rounded()
        };
        assert!(stores_rounded(|_| ()));
        assert!(!stores_rounded(|c| c.weights_store = None), "workers of this host read the folder of the run");
        assert!(stores_rounded(|c| (c.weights_store, c.store_format) = (None, StoreFormat::Rounded)));
        assert!(!stores_rounded(|c| c.store_format = StoreFormat::Plain));
        assert!(!stores_rounded(|c| c.accept_other_kernels = true));
        assert!(!stores_rounded(|c| c.rollout_kernels = Kernels::Stock));
        assert!(!stores_rounded(|c| c.rollout_device = Device::Cuda));
        refused("`store_format` rounded is for workers that compute alike", |c| {
            listen(c, "tcp/127.0.0.1:7447");
            (c.store_format, c.accept_other_kernels) = (StoreFormat::Rounded, true);
        });
    }

    #[test]
    fn versions_stay_where_they_are_for_workers_of_the_host() {
        let stay = |change: fn(&mut TrainConfig)| {
            let mut config = TrainConfig { listen: Some("tcp/127.0.0.1:7447".into()), ..TrainConfig::default() };
            change(&mut config);
            config.versions_stay()
        };
        assert!(stay(|_| ()));
        assert!(!stay(|c| c.listen = None));
        assert!(!stay(|c| c.listen = Some("tcp/10.0.0.1:7447".into())));
        assert!(!stay(|c| c.weights_store = Some("/shared".into())));
        assert!(!stay(|c| c.store_format = StoreFormat::Plain));
    }

    #[test]
    fn options_of_workers_have_no_effect_without_them() {
        type Change = fn(&mut TrainConfig);
        let changes: [(&str, Change); 11] = [
            ("weights_store", |c| c.weights_store = Some("s3://bucket/run".into())),
            ("store_versions", |c| c.store_versions = 2),
            ("store_format", |c| c.store_format = StoreFormat::Plain),
            ("token_file", |c| c.token_file = Some("token".into())),
            ("tls_certificate", |c| c.tls_certificate = Some("cert.pem".into())),
            ("tls_private_key", |c| c.tls_private_key = Some("key.pem".into())),
            ("tls_client_ca", |c| c.tls_client_ca = Some("ca.pem".into())),
            ("rewards_on", |c| c.rewards_on = RewardsOn::Workers),
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
