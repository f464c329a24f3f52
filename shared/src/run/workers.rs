//! The samplers on other hosts, for users: the coordinator writes a table once a second, and launcher, page and report
//! show it.
//!
//! The table describes the present, as a status does, and is no record: a coordinator that starts again begins a new
//! one. What a run keeps of its fleet is in its metrics.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    config::TrainConfig,
    files::{atomic, run_dir::RunDir},
};

/// How often the coordinator writes the table.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// Workers that are gone and still in the table, the last ones.
pub const REMEMBERED: usize = 50;

/// Most bytes of a table that is read.
const MOST_BYTES: u64 = 16 << 20;
/// Age in seconds above which a table belongs to a coordinator that no longer writes it.
const OLD: f64 = 15.0;

/// State of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Has called, and does not know the run yet.
    #[default]
    Joining,
    /// Fetches the model or its first version, and builds its engine.
    Loading,
    /// Makes completions.
    Sampling,
    /// Could make completions, but has no lease, or not the version for one.
    Waiting,
    /// Has not called for a while. It keeps its leases.
    Silent,
    /// Has left, or was silent for too long. It may come back.
    Gone,
    /// The coordinator wants nothing of it: [`WorkerRow::reason`].
    Dropped,
}

impl WorkerState {
    /// Whether it is connected and can make completions.
    #[must_use]
    pub fn at_work(self) -> bool {
        matches!(self, Self::Sampling | Self::Waiting)
    }

    /// Whether it is connected, or about to be.
    #[must_use]
    pub fn there(self) -> bool {
        !matches!(self, Self::Gone | Self::Dropped)
    }
}

/// A worker. Counters count from the start of the coordinator that writes the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerRow {
    /// Its number ([`crate::channel::fleet::Report::worker`]) in sixteen hexadecimal digits: readers of JSON round such
    /// numbers.
    pub number: String,
    /// Its name for people.
    pub name: String,
    /// Its state.
    pub state: WorkerState,
    /// Why it was dropped or refused, or its last words when it left.
    pub reason: Option<String>,
    /// What it computes with ([`crate::channel::fleet::KernelClass`]), in words; empty before it does.
    pub class: String,
    /// The version that its new tokens are sampled from.
    pub version: Option<u64>,
    /// Number of versions that it is behind the newest.
    pub staleness: Option<u64>,
    /// Completion tokens that it has generated.
    pub tokens: u64,
    /// Tokens per second over the last half minute or so.
    #[serde(deserialize_with = "or_zero")]
    pub tokens_per_s: f64,
    /// Share of its time that it spent generating.
    #[serde(deserialize_with = "or_zero")]
    pub busy_share: f64,
    /// Leases that it holds now.
    pub leases: u64,
    /// Its completions that count.
    pub completions: u64,
    /// Completions that it scored (`rewards_on`).
    #[serde(default)]
    pub scored: u64,
    /// Completions that it made although another worker had delivered them first.
    pub twice: u64,
    /// Leases that were taken back because they were not finished in time.
    pub expired: u64,
    /// Its calls that could not be read, and editions that it refused.
    pub failures: u64,
    /// Bytes that it fetched from the store.
    pub fetched_bytes: u64,
    /// Seconds that it spent fetching them.
    #[serde(deserialize_with = "or_zero")]
    pub fetch_s: f64,
    /// Seconds from the announcement of its last version to the first use.
    #[serde(deserialize_with = "or_zero")]
    pub swap_s: f64,
    /// Its clock minus the coordinator's, in seconds; the travel time of the call is included.
    #[serde(deserialize_with = "or_zero")]
    pub clock_off_s: f64,
    /// Seconds since its last call.
    #[serde(deserialize_with = "or_zero")]
    pub last_call_s: f64,
    /// Seconds since its first call.
    #[serde(deserialize_with = "or_zero")]
    pub joined_s: f64,
}

/// The table of all workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkersTable {
    /// Seconds since 1970 when the table was written, so that readers can tell an old table from a new one.
    #[serde(deserialize_with = "or_zero")]
    pub written: f64,
    /// Where the coordinator listens.
    pub listen: String,
    /// The command that starts a worker, as [`join`] has it.
    pub join: String,
    /// Seconds for which no worker has been at work: since the last one, or since the coordinator began to listen. 0
    /// while one is.
    #[serde(deserialize_with = "or_zero")]
    pub alone_s: f64,
    /// Those that are there, in the order in which they came, and the last [`REMEMBERED`] that are not.
    pub workers: Vec<WorkerRow>,
    /// The newest version that was announced to workers.
    pub version: Option<u64>,
    /// Prompts that were sampled again elsewhere with the same result.
    pub verified: u64,
    /// Prompts whose second result differed.
    pub disputed: u64,
    /// Why the engine beside the learner could not check the last prompt that it should have checked.
    pub check_trouble: Option<String>,
    /// Calls that could not be read or came from nobody known.
    pub refused_calls: u64,
    /// Their numbers by reason, for the first few reasons.
    pub refusals: BTreeMap<String, u64>,
    /// Why the newest version cannot be stored. The coordinator tries again.
    pub store_trouble: Option<String>,
    /// Bytes written to the store.
    pub store_bytes_out: u64,
    /// Versions that the store has.
    pub store_versions: u64,
}

impl WorkersTable {
    /// How many workers can make completions.
    #[must_use]
    pub fn at_work(&self) -> usize {
        self.workers.iter().filter(|row| row.state.at_work()).count()
    }

    /// Forgets workers that left before the last [`REMEMBERED`].
    pub fn forget(&mut self) {
        let away = self.workers.iter().filter(|row| !row.state.there());
        let mut calls: Vec<f64> = away.map(|row| row.last_call_s).collect();
        calls.sort_by(f64::total_cmp);
        if let Some(too_long) = calls.get(REMEMBERED) {
            self.workers.retain(|row| row.state.there() || row.last_call_s < *too_long);
        }
    }

    /// Writes the table in one visible step, without waiting for the disk.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(&self, run_dir: &RunDir) -> io::Result<()> {
        atomic::write_passing(&run_dir.workers(), &serde_json::to_vec(self)?)
    }

    /// Reads the table; none if the run has none.
    #[must_use]
    pub fn read(run_dir: &RunDir) -> Option<Self> {
        serde_json::from_slice(&shared_bounds::read(&run_dir.workers(), MOST_BYTES).ok()?).ok()
    }

    /// Seconds since it was written.
    #[must_use]
    pub fn age(&self) -> f64 {
        (now() - self.written).max(0.0)
    }

    /// Whether it still describes the present.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.age() < OLD
    }
}

/// The command that starts a worker of a run, with every option that the run asks for; none for a run that does not
/// listen. Nobody can connect to the address that stands for all interfaces, so HOST stands in its place, and FILE in
/// that of paths, which differ from host to host.
#[must_use]
pub fn join(config: &TrainConfig) -> Option<String> {
    let reached = config.listen.as_deref()?.replace("/0.0.0.0:", "/HOST:").replace("/[::]:", "/HOST:");
    let asks_for_certificate = config.tls_client_ca.is_some();
    let files = [
        ("--token-file", config.token_file.is_some()),
        ("--tls-ca", config.tls_certificate.is_some()),
        ("--tls-certificate", asks_for_certificate),
        ("--tls-private-key", asks_for_certificate),
    ];
    let wanted = files.iter().filter(|(_, is_wanted)| *is_wanted).map(|(flag, _)| format!(" {flag} FILE"));
    Some(format!("tandem worker --join {reached}{}", wanted.collect::<String>()))
}

/// A number; a value that JSON cannot express is written as `null`.
fn or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(0.0))
}

/// Seconds since 1970, for [`WorkersTable::written`].
#[must_use]
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn row(name: &str, state: WorkerState, last_call_s: f64) -> WorkerRow {
        WorkerRow { name: name.into(), state, last_call_s, ..WorkerRow::default() }
    }

    #[test]
    fn a_table_comes_back_and_a_damaged_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        assert_eq!(WorkersTable::read(&run), None);
        let sampling = WorkerRow { number: format!("{:016x}", u64::MAX), ..row("node-1", WorkerState::Sampling, 0.25) };
        let table = WorkersTable { written: now(), workers: vec![sampling], verified: 3, ..WorkersTable::default() };
        table.write(&run).unwrap();
        assert_eq!(WorkersTable::read(&run), Some(table.clone()));
        assert!(table.age() < 10.0 && table.at_work() == 1);
        let text = fs::read_to_string(run.workers()).unwrap();
        assert!(text.contains(r#""number":"ffffffffffffffff""#) && text.contains(r#""state":"sampling""#), "{text}");
        assert_eq!(serde_json::from_str::<WorkersTable>(r#"{"alone_s":null}"#).unwrap(), WorkersTable::default());
        fs::write(run.workers(), &text[..text.len() / 2]).unwrap();
        assert_eq!(WorkersTable::read(&run), None);
    }

    #[test]
    fn an_address_that_nobody_reaches_is_not_told() {
        let at = |listen: &str| TrainConfig { listen: Some(listen.into()), ..TrainConfig::default() };
        assert_eq!(join(&TrainConfig::default()), None);
        for (listen, reached) in [
            ("tls/0.0.0.0:7447", "tls/HOST:7447"),
            ("tcp/[::]:1", "tcp/HOST:1"),
            ("tcp/127.0.0.1:7447", "tcp/127.0.0.1:7447"),
        ] {
            assert_eq!(join(&at(listen)).unwrap(), format!("tandem worker --join {reached}"));
        }
    }

    #[test]
    fn the_command_of_a_worker_has_every_option_that_the_run_asks_for() {
        let file = || Some("file".into());
        let run = TrainConfig { listen: Some("tls/run:7447".into()), ..TrainConfig::default() };
        let (certificate, key) = (file(), file());
        let run = TrainConfig { tls_certificate: certificate, tls_private_key: key, ..run };
        let command = |run: &TrainConfig| join(run).unwrap().replace("tandem worker --join tls/run:7447", "");
        let with_token = TrainConfig { token_file: file(), ..run.clone() };
        assert_eq!(command(&with_token), " --token-file FILE --tls-ca FILE");
        let own = " --tls-ca FILE --tls-certificate FILE --tls-private-key FILE";
        let with_certificates = TrainConfig { tls_client_ca: file(), ..run };
        assert_eq!(command(&with_certificates), own);
        let with_both = TrainConfig { token_file: file(), ..with_certificates };
        assert_eq!(command(&with_both), format!(" --token-file FILE{own}"));
    }

    #[test]
    fn of_those_that_left_the_last_are_remembered() {
        let away = |n: usize| row(&format!("w{n}"), WorkerState::Gone, n as f64);
        let mut table = WorkersTable::default();
        table.workers.push(row("old but here", WorkerState::Silent, 1e6));
        table.workers.extend((0..REMEMBERED + 3).map(away));
        table.workers.push(row("here", WorkerState::Waiting, 0.0));
        table.forget();
        let names: Vec<&str> = table.workers.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names.len(), REMEMBERED + 2);
        assert_eq!((names[0], names[1], names[REMEMBERED + 1]), ("old but here", "w0", "here"));
        assert!(!names.contains(&"w50") && names.contains(&"w49"), "{names:?}");
        let before = table.clone();
        table.forget();
        assert_eq!(table, before);
    }
}
