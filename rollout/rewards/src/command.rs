//! Rewards of another process: a program that answers one line of JSON for every line that it reads.
//!
//! `command:run=…` starts the command line with `/bin/sh -c` and keeps the process. For every group it gets one line
//! `{"prompt": …, "completions": [{"text": …, "token_ids": […], "finish_reason": …}, …], "columns": {…}}` and writes one line
//! back: a list with, for each completion, a number (the score), `null` (it abstains) or `[[end, score], …]` (scores of
//! steps, each with the index of its last token). Anything else is a failure of that completion or, where the line is no
//! such list, of the group. A process that misses the deadline is killed, one that ended is replaced; calls that run at
//! the same time have processes of their own. What it writes to stderr goes to the log.

mod answer;
mod process;

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use shared::RewardOutcome;

use super::{Reward, RewardInput, Scope, entry::Parameters, failed};
pub use process::end_all;
use process::{AskError, Process};

/// A command with its idle processes.
struct CommandReward {
    run: String,
    idle: Mutex<Vec<Process>>,
}

impl CommandReward {
    fn take_idle(&self) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(process) = idle.pop() {
            if process.is_ready() {
                return Some(process);
            }
        }
        None
    }

    /// The answer to a request: from an idle process if there is one, else from a new one. A process that was idle may
    /// have been about to end, so the request is then put to a new one.
    fn ask(&self, request: &str, input: &RewardInput) -> Result<String, String> {
        if let Some(process) = self.take_idle() {
            match self.ask_process(process, request, input) {
                Err(AskError::Ended(_)) => tracing::info!("`{}` ended and is started again", self.run),
                answer => return answer.map_err(|e| e.to_string()),
            }
        }
        let process = Process::start(&self.run)?;
        self.ask_process(process, request, input).map_err(|e| e.to_string())
    }

    fn ask_process(&self, process: Process, request: &str, input: &RewardInput) -> Result<String, AskError> {
        // Without an answer the process ends here.
        let answer = process.ask(request, input.deadline)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
        Ok(answer)
    }
}

impl Reward for CommandReward {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        let completions = input.completions.len();
        let found = self.ask(&request(input), input).and_then(|line| answer::outcomes(&line, completions));
        found.unwrap_or_else(|reason| failed(reason, completions))
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }
}

/// The line for a group.
fn request(input: &RewardInput) -> String {
    let completions: Vec<_> = input
        .completions
        .iter()
        .map(|c| json!({"text": c.text, "token_ids": c.token_ids, "finish_reason": c.finish_reason.as_str()}))
        .collect();
    let columns: &serde_json::Map<_, _> = &input.columns;
    let mut line = json!({"prompt": &*input.prompt, "completions": completions, "columns": columns}).to_string();
    line.push('\n');
    line
}

pub(super) fn build(parameters: &Parameters) -> Result<Arc<dyn Reward>, String> {
    let run: String = parameters.get("run")?;
    if run.trim().is_empty() {
        return Err("parameter `run` must be a command line".into());
    }
    // The first process starts now: programs often load for longer than they score.
    let first = Process::start(&run)?;
    Ok(Arc::new(CommandReward { run, idle: Mutex::new(vec![first]) }))
}

#[cfg(test)]
mod tests;
