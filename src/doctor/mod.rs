//! `tandem doctor`: checks whether this machine is fit for the pair, and names remedies.

mod leftovers;
mod libraries;
mod machine;

use std::{
    ffi::OsStr,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

pub use machine::{gpu_memory, has_bf16_tiles, processor_name};

use crate::{programs::binaries, terminal::output};

/// Flags of `tandem doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Remove what dead runs left in shared memory and in the temporary folder
    #[arg(long)]
    remove_leftovers: bool,
    /// See too whether this host could work for a run that listens there: tls/HOST:PORT or tcp/HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    join: Option<String>,
    /// With --join, as for `tandem worker`: file with the run's word
    #[arg(long, value_name = "FILE", requires = "join")]
    token_file: Option<PathBuf>,
    /// With --join, as for `tandem worker`: who must have signed the run's certificate
    #[arg(long, value_name = "FILE", requires = "join")]
    tls_ca: Option<PathBuf>,
    /// With --join, as for `tandem worker`: this host's certificate
    #[arg(long, value_name = "FILE", requires = "tls_private_key")]
    tls_certificate: Option<PathBuf>,
    /// With --join, as for `tandem worker`: the key of --tls-certificate
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_private_key: Option<PathBuf>,
    /// With --join, as for `tandem worker`: where weights lie for this host
    #[arg(long, value_name = "PLACE", requires = "join")]
    store: Option<PathBuf>,
}

impl Args {
    /// Flags of `rollout-fleet reach`, which does the asking.
    fn of_reach(&self) -> Vec<&OsStr> {
        let flags = [
            ("--token-file", &self.token_file),
            ("--tls-ca", &self.tls_ca),
            ("--tls-certificate", &self.tls_certificate),
            ("--tls-private-key", &self.tls_private_key),
            ("--store", &self.store),
        ];
        let given = flags.iter().filter_map(|(flag, value)| Some([OsStr::new(*flag), value.as_ref()?.as_os_str()]));
        given.flatten().collect()
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// One line of the examination.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    level: Level,
    subject: &'static str,
    detail: String,
    /// What the user can do about it.
    remedy: Option<String>,
}

impl Finding {
    fn ok(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { level: Level::Ok, subject, detail: detail.into(), remedy: None }
    }

    fn warn(subject: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, subject, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn fail(subject: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Fail, subject, detail: detail.into(), remedy: Some(remedy.into()) }
    }

    fn line(&self) -> String {
        let (word, colour) = match self.level {
            Level::Ok => ("ok  ", "32"),
            Level::Warn => ("warn", "33"),
            Level::Fail => ("FAIL", "31"),
        };
        let remedy = self.remedy.as_ref().map(|r| format!("\n      {:<14} -> {r}", "")).unwrap_or_default();
        format!("\x1b[{colour}m{word}\x1b[0m  {:<14} {}{remedy}", self.subject, self.detail)
    }
}

/// Runs `tandem doctor`; the exit code is not zero when anything failed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let left = vec![leftovers::examine(args.remove_leftovers)];
    let findings = [libraries::examine(), machine::examine(), left].concat();
    findings.iter().for_each(|finding| output::print(finding.line()));
    let Some(join) = &args.join else { return Ok(verdict(&findings)) };
    let mut reach = Command::new(binaries::fleet("--join")?);
    let status = reach.args(["reach", "--join", join]).args(args.of_reach()).status().context("rollout-fleet reach")?;
    // A worker needs nothing else that a pair needs.
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn verdict(findings: &[Finding]) -> ExitCode {
    if findings.iter().any(|f| f.level == Level::Fail) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failure_makes_the_exit_code_non_zero() {
        let ok = Finding::ok("a", "");
        let warn = Finding::warn("b", "", "");
        let fail = Finding::fail("c", "", "");
        assert_eq!(verdict(&[ok.clone(), warn.clone()]), ExitCode::SUCCESS);
        assert_eq!(verdict(&[ok, warn, fail]), ExitCode::FAILURE);
    }

    #[test]
    fn a_line_has_level_subject_detail_and_remedy() {
        let line = Finding::fail("memory", "too small", "buy some").line();
        let line = anstream::adapter::strip_str(&line).to_string();
        assert!(line.starts_with("FAIL  memory         too small\n"), "{line}");
        assert!(line.ends_with("-> buy some"), "{line}");
    }
}
