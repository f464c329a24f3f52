//! The process that starts the program and counts what it takes.

use std::{ffi::OsString, process::ExitCode};

use rustix::process::{Signal, kill_process_group, set_parent_process_death_signal};
use shared::memory::Size;
use signal_hook::consts::SIGCHLD;

use super::{
    ENDED, Plan, Stage, exit_code,
    keeper::{Waker, reaped},
    namespaces, refuse, say, start, tree,
};

/// The exit code of a program that was killed, as shells have it.
const KILLED: u8 = 137;

/// As the first process of a PID namespace, with whose end the kernel ends all others of it.
pub fn run_in_namespace(plan: &Plan, words: &[OsString]) -> ExitCode {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if let Err(error) = namespaces::furnish(plan.memory) {
        return refuse(&format!("the namespace cannot be furnished: {error}"));
    }
    match Waker::new(&[SIGCHLD]) {
        Ok(mut waker) => watch(plan, words, &mut waker, || false),
        Err(error) => refuse(&format!("signals cannot be handled: {error}")),
    }
}

/// Starts the program and watches until it ends, takes too much or is `unwanted`. What it leaves behind is for the caller.
pub fn watch(plan: &Plan, words: &[OsString], waker: &mut Waker, unwanted: impl Fn() -> bool) -> ExitCode {
    let program = match start(Stage::Seal, plan, words) {
        Ok(program) => program,
        Err(error) => return refuse(&format!("a process cannot be started: {error}")),
    };
    loop {
        if let Some(end) = reaped(program) {
            return ExitCode::from(exit_code(plan, end));
        }
        let excess = excess(plan);
        if excess.is_some() || unwanted() {
            // The group that it leads goes at once, since no fork escapes that.
            let _ = kill_process_group(program, Signal::KILL);
            excess.iter().for_each(|excess| say(ENDED, excess));
            return ExitCode::from(KILLED);
        }
        waker.sleep();
    }
}

/// What of the plan is exceeded.
fn excess(plan: &Plan) -> Option<String> {
    let usage = tree::usage(plan.memory);
    if usage.processes > plan.processes {
        return Some(format!("there were more than {} processes of it (`reward_max_processes`)", plan.processes));
    }
    (usage.memory > plan.memory).then(|| {
        format!("it took more than {} of memory with all that it started (`reward_memory`)", Size(plan.memory))
    })
}
