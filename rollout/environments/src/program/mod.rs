//! Tools and environments in programs, in any language: `command:./my_env`.
//!
//! A program is a [process](crate::process) that greets and answers as docs/environments-protocol.md says. Environments
//! and tools of servers are such a program too: `rollout-bridge` asks a server of OpenEnv (`openenv:ws://…`) or of MCP
//! (`mcp:http://…`). It is a package of its own, which the default build leaves out.

#[cfg(test)]
mod tests;

use std::{
    env,
    ffi::OsString,
    path::{self, PathBuf},
    time::Duration,
};

use rollout_rewards::program::{Containment, IMPORT};
use shared::config::{RewardHost, environments::COMMAND};

use crate::process::{Invocation, Manner};

/// What reward functions write before the command line. It may stand here too.
const RUN: &str = "run=";

/// What stands before the address of a server of OpenEnv.
const OPENENV: &str = "openenv:";

/// What stands before the address of a server of MCP, or before the command line that starts one.
const MCP: &str = "mcp:";

/// The program that asks servers.
const BRIDGE: &str = "rollout-bridge";

/// A program that an entry names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The entry.
    pub entry: String,
    what: What,
}

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// A command line, by `/bin/sh`.
    Line(String),
    /// [`BRIDGE`] with these arguments.
    Bridge {
        args: Vec<String>,
        /// Whether it speaks to a server over the network, which the entry names and so allows.
        has_network: bool,
    },
}

impl Program {
    /// The program of an entry; `None` for an entry of something else.
    pub fn parse(entry: &str) -> Option<Result<Self, String>> {
        let what = if let Some(line) = entry.strip_prefix(COMMAND) {
            command(line)
        } else if let Some(server) = entry.strip_prefix(OPENENV) {
            openenv(server)
        } else {
            mcp(entry.strip_prefix(MCP)?)
        };
        Some(what.map(|what| Self { entry: entry.to_owned(), what }))
    }

    /// How many processes a run starts. One knows how many places a server has.
    pub fn processes(&self, host: &RewardHost) -> usize {
        match self.what {
            What::Line(_) => host.processes.max(1),
            What::Bridge { .. } => 1,
        }
    }

    /// How a process of it is started. An answer may take `limit`.
    ///
    /// # Errors
    /// When the working directory, or the program that asks servers, cannot be found.
    pub fn invocation(&self, host: &RewardHost, limit: Duration) -> Result<Invocation, String> {
        let dir = path::absolute(&host.dir).map_err(|e| format!("{}: {e}", host.dir.display()))?;
        let mut host = host.clone();
        let (program, args): (PathBuf, Vec<OsString>) = match &self.what {
            What::Line(line) => ("/bin/sh".into(), vec!["-c".into(), line.into()]),
            What::Bridge { args, has_network } => {
                host.bounds.network |= has_network;
                (bridge().map_err(|e| format!("`{}`: {e}", self.entry))?, args.iter().map(OsString::from).collect())
            }
        };
        Ok(Invocation {
            manner: Manner::Program,
            label: self.entry.clone(),
            program,
            args,
            dir,
            containment: Containment::of(&host)?,
            timeout: limit,
            loading: IMPORT,
            raters: Vec::new(),
        })
    }
}

fn command(line: &str) -> Result<What, String> {
    let line = line.strip_prefix(RUN).unwrap_or(line).replace("\\:", ":");
    match line.trim() {
        "" => Err(format!("`{COMMAND}` needs a command line, as in `{COMMAND}./my_env`")),
        _ => Ok(What::Line(line)),
    }
}

/// An address, and flags of the bridge behind it.
fn openenv(server: &str) -> Result<What, String> {
    let words = server.split_whitespace().map(str::to_owned);
    let args: Vec<String> = std::iter::once("openenv".to_owned()).chain(words).collect();
    let is_address = |word: &String| word.starts_with("ws://") || word.starts_with("http://");
    if args.get(1).is_some_and(is_address) {
        return Ok(What::Bridge { args, has_network: true });
    }
    Err(format!("`{OPENENV}` needs an address of a server, as in `{OPENENV}ws://localhost:8000`"))
}

/// An address, or the command line of a server, which gets the network that programs of the run have.
fn mcp(server: &str) -> Result<What, String> {
    let server = server.trim().to_owned();
    if server.is_empty() {
        return Err(format!(
            "`{MCP}` needs an address or a command line, as in `{MCP}http://localhost:8000/mcp` or `{MCP}./my_server`"
        ));
    }
    let scheme = server.to_ascii_lowercase();
    let has_network = scheme.starts_with("http://") || scheme.starts_with("https://");
    Ok(What::Bridge { args: vec!["mcp".to_owned(), server], has_network })
}

/// The bridge, which lies beside this program.
fn bridge() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|e| e.to_string())?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(BRIDGE)).find(|path| path.is_file());
    beside.ok_or_else(|| {
        let (folder, build) = (own.parent().unwrap_or(&own).display(), "cargo build --release --workspace --bin");
        format!("`{BRIDGE}`, which asks servers, is not in {folder}: build it with `{build} {BRIDGE}`")
    })
}
