//! `command:run=…`: a command line that is started with `/bin/sh -c`, in the folder of the file that names it.

use std::sync::Arc;

use super::{Containment, Invocation, Program};
use crate::{
    Reward,
    entry::{Entry, Parameter, Parameters},
};

/// The function's name.
pub const NAME: &str = "command";

/// The function.
pub const ENTRY: &Entry = &Entry {
    name: NAME,
    about: "a program of yours: one line of JSON for each group, one line with its scores back (docs/rewards.md)",
    columns: &[],
    parameters: &[Parameter { name: "run", default: None, about: "the command line, for /bin/sh" }],
    build,
};

/// Starts the command.
///
/// # Errors
/// Without a command line, or when no process can be started.
fn build(parameters: &Parameters) -> Result<Arc<dyn Reward>, String> {
    let run: String = parameters.get("run")?;
    if run.trim().is_empty() {
        return Err("parameter `run` must be a command line".into());
    }
    let host = parameters.host();
    let invocation = Invocation {
        label: run.clone(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), run.into()],
        dir: host.dir.clone(),
        greets: false,
        containment: Containment::of(host)?,
    };
    Ok(Arc::new(Program::start(invocation, host.processes)?))
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
