//! What the processes of one start of a run are handed: its options, in memory of the launcher.

use std::{fs, fs::File, os::fd::AsRawFd, path::PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use shared::session;

/// One start of a run.
#[derive(Debug)]
pub struct Session {
    config: File,
}

impl Session {
    /// With the text of a configuration.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new(config: &str) -> Result<Self> {
        let what = "memory for the options of the run";
        let file = File::from(memfd_create("tandem-config.toml", MemfdFlags::CLOEXEC).context(what)?);
        let session = Self { config: file };
        fs::write(session.path(), config).context(what)?;
        Ok(session)
    }

    /// Where a process finds the configuration as long as this one lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.config.as_raw_fd()).into()
    }

    /// The variable for the environment of the processes.
    pub fn variable(&self) -> (&'static str, String) {
        (session::CONFIG_VARIABLE, self.path().display().to_string())
    }
}
