//! `command:run=…`: a command line that is started with `/bin/sh -c`, in the folder of the file that names it.

use std::sync::Arc;

use super::{Containment, Invocation, Program};
use crate::{Reward, entry::Parameters};

/// The function's name.
pub const NAME: &str = "command";

/// Starts the command.
///
/// # Errors
/// Without a command line, or when no process can be started.
pub fn build(parameters: &Parameters) -> Result<Arc<dyn Reward>, String> {
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
