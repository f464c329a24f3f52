//! Log output of the binaries: plain lines on stderr, level from `--log-level` or `TANDEM_LOG`.

use tracing_subscriber::{EnvFilter, fmt};

/// Environment variable with a `tracing` filter, for instance `debug` or `rollout::engine=trace`.
pub const LOG_VARIABLE: &str = "TANDEM_LOG";

/// Installs the process-wide subscriber. A second call does nothing.
pub fn init() {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new("info"));
    let _ = fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).with_target(false).try_init();
}
