//! The options of one start of a run, which its processes read from memory of the launcher.

use std::{fs, fs::File, os::fd::AsRawFd, path::PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use shared::process::session;

/// One start of a run.
#[derive(Debug)]
pub struct Session {
    config: File,
}

impl Session {
    /// A start with the text of a configuration.
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

    /// The path of the configuration for other processes, valid as long as this process lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.config.as_raw_fd()).into()
    }

    /// The variable for the environment of the processes.
    pub fn variable(&self) -> (&'static str, String) {
        (session::CONFIG_VARIABLE, self.path().display().to_string())
    }
}
