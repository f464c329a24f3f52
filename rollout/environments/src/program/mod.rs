//! Tools and environments in programs, in any language: `command:./my_env`.
//!
//! A program is a [process](crate::process) that greets and answers as docs/environments-protocol.md says.

#[cfg(test)]
mod tests;

use std::{path, time::Duration};

use rollout_rewards::program::{Containment, IMPORT};
use shared::config::{RewardHost, environments::COMMAND};

use crate::process::{Invocation, Manner};

/// What reward functions write before the command line. It may stand here too.
const RUN: &str = "run=";

/// A program that an entry names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The entry.
    pub entry: String,
    /// The command line, for `/bin/sh`.
    line: String,
}

impl Program {
    /// The program of an entry; `None` for an entry of something else.
    pub fn parse(entry: &str) -> Option<Result<Self, String>> {
        let line = entry.strip_prefix(COMMAND)?;
        let line = line.strip_prefix(RUN).unwrap_or(line).replace("\\:", ":");
        if line.trim().is_empty() {
            return Some(Err(format!("`{COMMAND}` needs a command line, as in `{COMMAND}./my_env`")));
        }
        Some(Ok(Self { entry: entry.to_owned(), line }))
    }

    /// How a process of it is started. An answer may take `limit`.
    ///
    /// # Errors
    /// When the working directory cannot be found.
    pub fn invocation(&self, host: &RewardHost, limit: Duration) -> Result<Invocation, String> {
        let dir = path::absolute(&host.dir).map_err(|e| format!("{}: {e}", host.dir.display()))?;
        Ok(Invocation {
            manner: Manner::Program,
            label: self.entry.clone(),
            program: "/bin/sh".into(),
            args: vec!["-c".into(), self.line.clone().into()],
            dir,
            containment: Containment::of(host)?,
            timeout: limit,
            loading: IMPORT,
            raters: Vec::new(),
        })
    }
}
