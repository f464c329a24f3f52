//! `rollout-fleet worker`: samples for a run on another host.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, ensure};
use rollout::engine::Kernels;
use shared::{
    channel::incarnation,
    config::{Device, TrainConfig},
    process::{exit::ENDED_BY_SIGNAL, heartbeat::Deadlines, signals},
};
use shared_fleet::{JoinOptions, ZenohWorker};

use crate::{
    messages::{host_of, name_on},
    worker::{self, Left, WorkerOptions},
};

/// Where a run is, and what opens its door.
#[derive(Debug, clap::Args)]
pub struct JoinFlags {
    /// Where the run listens: tls/HOST:PORT or tcp/HOST:PORT
    #[arg(long, env = "TANDEM_JOIN", value_name = "ADDRESS")]
    pub join: String,
    /// File with the run's word (its `token_file`)
    #[arg(long, env = "TANDEM_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// With tls/…: certificates that the run's must be signed by, in PEM
    #[arg(long, env = "TANDEM_TLS_CA", value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// With tls/…: this worker's certificate, in PEM, where the run asks for one
    #[arg(long, env = "TANDEM_TLS_CERTIFICATE", value_name = "FILE", requires = "tls_private_key")]
    pub tls_certificate: Option<PathBuf>,
    /// The key of --tls-certificate, in PEM
    #[arg(long, env = "TANDEM_TLS_PRIVATE_KEY", value_name = "FILE", requires = "tls_certificate")]
    pub tls_private_key: Option<PathBuf>,
    /// Where weights lie, if this host finds them elsewhere than the run says: a folder or a URL
    #[arg(long, env = "TANDEM_STORE", value_name = "PLACE")]
    pub store: Option<String>,
}

impl JoinFlags {
    /// The options of the transport.
    ///
    /// # Errors
    /// An invalid address.
    pub fn options(&self) -> anyhow::Result<JoinOptions> {
        Ok(JoinOptions {
            endpoint: self.join.parse().with_context(|| format!("--join {}", self.join))?,
            token_file: self.token_file.clone(),
            ca: self.tls_ca.clone(),
            certificate: self.tls_certificate.clone(),
            key: self.tls_private_key.clone(),
        })
    }
}

/// Flags of `rollout-fleet worker`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where and how.
    #[command(flatten)]
    pub join: JoinFlags,
    /// Where weights are put [default: tandem/workers in the user's cache folder]
    #[arg(long, env = "TANDEM_WORKER_CACHE", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// What the run calls this worker [default: the name of the host, and the process]
    #[arg(long, env = "TANDEM_WORKER_NAME", value_name = "NAME")]
    pub name: Option<String>,
    /// Threads [default: all cores]
    #[arg(long, env = "TANDEM_THREADS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Sequences decoded at once [default: as the run says, as far as memory allows]
    #[arg(long, env = "TANDEM_MAX_NUM_SEQS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_num_seqs: Option<u32>,
    /// Where this worker computes, if elsewhere than the run says; the run must accept that (`accept_other_kernels`)
    #[arg(long, env = "TANDEM_DEVICE", value_name = "DEVICE")]
    pub device: Option<Device>,
    /// What computes, if something else than the run says; the run must accept that (`accept_other_kernels`)
    #[arg(long, env = "TANDEM_KERNELS", value_name = "KERNELS")]
    pub kernels: Option<Kernels>,
    /// Where this host has the reward functions of a run with `rewards_on` workers [default: the run's own
    /// `reward_dir`]
    #[arg(long, env = "TANDEM_REWARD_DIR", value_name = "DIR")]
    pub reward_dir: Option<PathBuf>,
    /// Seconds for which a run that does not answer is called again and again before this worker gives up
    #[arg(long, env = "TANDEM_RETRY_FOR", value_name = "SECONDS", default_value_t = 600.0)]
    pub retry_for: f64,
    /// Make no more tokens than this in a second: for finding out how a run scales without the machines
    #[arg(long, env = "TANDEM_TOKENS_PER_SECOND", value_name = "N")]
    pub tokens_per_second: Option<f64>,
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    ensure!(args.retry_for.is_finite() && args.retry_for >= 0.0, "--retry-for {}: seconds", args.retry_for);
    ensure!(args.tokens_per_second.is_none_or(positive), "--tokens-per-second must be above 0");
    let name = args.name.as_deref().map_or_else(|| Ok(default_name()), own_name)?;
    let stop = signals::listen(Deadlines::of(&TrainConfig::default())).context("signal handler")?;
    let cache = args.cache.clone().map_or_else(default_cache, Ok)?;
    let options = WorkerOptions {
        name,
        store: args.join.store.clone(),
        cache,
        threads: args.threads.map(|n| n as usize),
        max_num_seqs: args.max_num_seqs.map(|n| n as usize),
        kernels: args.kernels,
        device: args.device,
        reward_dir: args.reward_dir.as_ref().map(std::path::absolute).transpose().context("--reward-dir")?,
        retry_for: Duration::from_secs_f64(args.retry_for.min(1e9)),
        tokens_per_second: args.tokens_per_second,
    };
    let number = incarnation();
    let end = ZenohWorker::join(&args.join.options()?, number, options.retry_for)?;
    Ok(match worker::run(end, number, &options, &stop)? {
        Left::RunOver => ExitCode::SUCCESS,
        Left::BySignal => ExitCode::from(ENDED_BY_SIGNAL),
    })
}

fn default_cache() -> anyhow::Result<PathBuf> {
    let home = || Some(Path::new(&env::var_os("HOME")?).join(".cache"));
    let root = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    Ok(root.context("there is no home directory; name a folder with --cache")?.join("tandem").join("workers"))
}

/// The name that a user has given this worker. The run takes a name with a process for that of a host's worker, and a
/// caller without a name for one that only asks.
fn own_name(name: &str) -> anyhow::Result<String> {
    ensure!(!name.is_empty(), "--name: an empty name; leave the option out, and the host gives the name");
    ensure!(
        host_of(name).is_none(),
        "--name {name}: names of this form are those of workers without a --name; write {}",
        name.replace('/', "-")
    );
    Ok(name.to_owned())
}

fn default_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = Some(host.trim()).filter(|host| !host.is_empty()).unwrap_or("worker");
    name_on(host, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_none_that_a_worker_without_a_name_could_have() {
        for name in ["gpu-0", "rack/gpu-0", "gpu/"] {
            assert_eq!(own_name(name).unwrap(), name);
        }
        for (name, words) in [("rack/gpu/0", "write rack-gpu-0"), ("", "leave the option out")] {
            let error = own_name(name).unwrap_err().to_string();
            assert!(error.starts_with("--name") && error.contains(words), "{error}");
        }
        assert!(own_name(&default_name()).is_err());
    }
}
