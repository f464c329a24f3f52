//! Rewards of other processes: [`command`] asks a program, [`python`] a function in Python, both in the same way.
//!
//! For every group a process gets one line `{"id": 1, "prompt": …, "completions": [{"text": …, "token_ids": […],
//! "finish_reason": …}, …], "columns": {…}}`, with `messages` where the row's prompt is a conversation. A completion
//! with tools also has `messages`, its `owner_mask`, and `opening`, the first words of its environment. The process
//! writes one line back: a list with, for each completion, a number (the score), `null` (it abstains), `[[end, score],
//! …]` (scores of steps, each with the index of its last token) or `{"error": …}`. The line may also be `{"id": 1,
//! "scores": […]}` with that list, which names the request, and may then have `log_extra` and `log_metric`. Anything
//! else is a failure of that completion or, where the line is no such list, of the group. A process that misses the
//! deadline is killed, one that ended is replaced. What it writes to stderr goes to the log.
//!
//! A function in Python is such a program too. The user's interpreter runs `host.py`, which is compiled in; it imports
//! the function and calls it.
//!
//! Environments run in such processes as well: [`Kept`] starts one as its [`Containment`] says, and takes lines both
//! ways.

mod answer;
pub(crate) mod command;
mod containment;
mod kept;
mod log;
mod process;
pub(crate) mod python;
mod words;

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Map, Value, json};
use shared::{Logged, RewardOutcome};

use super::{Conversation, Reward, RewardCompletion, RewardInput, Scope, failed};
use answer::Answer;
pub use containment::{Containment, contained};
pub use kept::{Ender, Kept, end_all};
use process::{AskError, Process};
pub use python::{IMPORT, LIBRARY, interpreter, located};
pub use words::LastWords;

/// How a process is started.
struct Invocation {
    /// Its name in messages.
    label: String,
    program: PathBuf,
    args: Vec<OsString>,
    /// The working directory.
    dir: PathBuf,
    /// Whether its first line says that it is ready.
    greets: bool,
    /// Its permissions and limits.
    containment: Containment,
}

/// In a rehearsal, how long a program that does not greet may take to answer before it is examined.
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// In a rehearsal, how long a program that does not greet may take to load.
const LOADING: Duration = Duration::from_secs(30);

/// A reward function with its idle processes.
struct Program {
    invocation: Invocation,
    processes: usize,
    idle: Mutex<Vec<Process>>,
    words: LastWords,
    /// Whether a process said more than it was asked.
    says_more: AtomicBool,
}

impl Program {
    /// Starts all processes: programs often load for longer than they score.
    fn start(invocation: Invocation, processes: usize) -> Result<Self, String> {
        let program = Self {
            invocation,
            processes,
            idle: Mutex::default(),
            words: LastWords::default(),
            says_more: AtomicBool::new(false),
        };
        for _ in 0..processes {
            program.keep(program.start_process()?);
        }
        Ok(program)
    }

    fn start_process(&self) -> Result<Process, String> {
        let Invocation { label, program, args, dir, greets, containment } = &self.invocation;
        let command = containment.command(program, args, dir)?;
        self.words.begin();
        Process::start(command, label, &self.words, *greets)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, process: Process) {
        self.idle().push(process);
    }

    fn take_idle(&self) -> Option<Process> {
        let mut idle = self.idle();
        while let Some(process) = idle.pop() {
            if process.is_ready() {
                return Some(process);
            }
        }
        None
    }

    /// The answer to a group: from an idle process if there is one, else from a new one. If the idle process turns out
    /// to have ended, a new one gets the group.
    fn ask(&self, input: &RewardInput) -> Result<Answer, AskError> {
        if let Some(process) = self.take_idle() {
            match self.ask_process(process, input) {
                Err(AskError::Ended(_)) => tracing::info!("`{}` ended and is started again", self.invocation.label),
                answer => return answer,
            }
        }
        let process = self.start_process().map_err(AskError::Start)?;
        self.ask_process(process, input)
    }

    fn ask_process(&self, mut process: Process, input: &RewardInput) -> Result<Answer, AskError> {
        match process.greeting(input.deadline) {
            // It goes on loading; only this call is lost.
            Err(AskError::Late) => {
                self.keep(process);
                return Err(AskError::Loading);
            }
            greeting => greeting?,
        };
        if self.says_more.load(Ordering::Relaxed) {
            process.watch();
        }
        // A process without an answer is dropped and ends. So is one with a wrong answer, since the right one may still
        // follow.
        let line = process.ask(|id| request(id, input), input.deadline).inspect_err(|error| {
            if matches!(error, AskError::Surplus(_)) && !self.says_more.swap(true, Ordering::Relaxed) {
                tracing::warn!("`{}` {error}", self.invocation.label);
            }
        })?;
        let answer = answer::read(&line, input.completions.len()).map_err(AskError::Line)?;
        self.keep(process);
        Ok(answer)
    }

    fn outcomes(&self, input: &RewardInput) -> Result<Vec<RewardOutcome>, AskError> {
        self.answered(input).map(|(outcomes, _)| outcomes)
    }

    /// The outcomes, with what was logged beside them.
    fn answered(&self, input: &RewardInput) -> Result<(Vec<RewardOutcome>, Logged), AskError> {
        let answer = self.ask(input).inspect_err(|_| self.words.set_traceback(None))?;
        answer.tracebacks.iter().for_each(|traceback| self.words.set_traceback(Some(traceback)));
        Ok(answer.explained(&self.invocation.label, &self.invocation.containment, input))
    }

    /// A reason of failure, with the option that stood in the way, where the reason or `words` show that.
    fn explained(&self, reason: String, words: &[String]) -> String {
        let words = format!("{reason}\n{}", words.join("\n"));
        self.invocation.containment.explained(reason, &words)
    }

    /// The same for an error. What a process said before it ended may name the cause.
    fn explained_error(&self, error: &AskError) -> String {
        let words = if matches!(error, AskError::Ended(_)) { self.words.lines() } else { Vec::new() };
        self.explained(error.to_string(), &words)
    }

    /// The outcomes, or the same failure for every completion of the input.
    fn settled(&self, outcomes: Result<Vec<RewardOutcome>, AskError>, input: &RewardInput) -> Vec<RewardOutcome> {
        outcomes.unwrap_or_else(|error| failed(self.explained_error(&error), input.completions.len()))
    }

    /// As [`Self::settled`]; a failure for want of time also states the limit.
    fn settled_within(
        &self,
        limit: Option<String>,
        outcomes: Result<Vec<RewardOutcome>, AskError>,
        input: &RewardInput,
    ) -> Vec<RewardOutcome> {
        let is_late = matches!(outcomes, Err(AskError::Late | AskError::Loading));
        let limit = limit.filter(|_| is_late);
        let explained = |outcome| match (outcome, &limit) {
            (RewardOutcome::Failed(reason), Some(limit)) => RewardOutcome::Failed(format!("{reason}; {limit}")),
            (outcome, _) => outcome,
        };
        self.settled(outcomes, input).into_iter().map(explained).collect()
    }

    /// Whether a process answers once its input has ended. A process that does, but did not answer in as much time
    /// before, does not flush its output.
    fn answers_at_the_end_of_its_input(&self, input: &RewardInput) -> bool {
        let Ok(process) = self.start_process() else { return false };
        process.ask_last(&request(1, input), Instant::now().checked_add(FIRST_ANSWER)).is_ok()
    }

    /// Outcomes for the first group of a rehearsal, when a program that does not greet may still be loading.
    fn first_outcomes(&self, input: &RewardInput) -> Result<Vec<RewardOutcome>, AskError> {
        let within = |patience| RewardInput { deadline: Instant::now().checked_add(patience), ..input.clone() };
        match self.outcomes(&within(FIRST_ANSWER)) {
            Err(AskError::Late) if self.answers_at_the_end_of_its_input(input) => Err(AskError::Unflushed),
            Err(AskError::Late) => self.outcomes(&within(LOADING)),
            outcomes => outcomes,
        }
    }
}

impl Reward for Program {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        self.score_and_log(input).0
    }

    fn score_and_log(&self, input: &RewardInput) -> (Vec<RewardOutcome>, Logged) {
        let patience = input.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let (outcomes, logged) = match self.answered(input) {
            Ok((outcomes, logged)) => (Ok(outcomes), logged),
            Err(error) => (Err(error), Logged::default()),
        };
        let limit = patience.map(|patience| format!("a call has {} s (`reward_timeout`)", in_seconds(patience)));
        (self.settled_within(limit, outcomes, input), logged)
    }

    fn score_first(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        if self.invocation.greets {
            return self.score(input);
        }
        let limit = format!(
            "the first call has {} s, since a program that does not greet may be loading, and the others have \
             `reward_timeout`",
            in_seconds(LOADING)
        );
        self.settled_within(Some(limit), self.first_outcomes(input), input)
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }

    fn concurrency(&self) -> usize {
        self.processes
    }

    fn last_words(&self) -> Vec<String> {
        self.words.lines()
    }
}

/// Seconds, rounded to one decimal.
fn in_seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// Words in Python's errors for a missing column.
const COLUMN_MISSING: [&str; 3] = ["required positional argument", "required keyword-only argument", "KeyError: "];

/// A reason of failure, with the columns of the row where one may be missing.
fn with_columns(reason: String, input: &RewardInput) -> String {
    let variable = containment::hidden_variable(&reason).is_some();
    if variable || !COLUMN_MISSING.iter().any(|words| reason.contains(words)) {
        return reason;
    }
    let names: Vec<&str> = input.columns.keys().map(String::as_str).collect();
    match names.as_slice() {
        [] => format!("{reason}; the row has no columns besides its prompt"),
        names => format!("{reason}; the row has the columns {}", names.join(", ")),
    }
}

/// A completion as a program gets it.
fn completion_of(completion: &RewardCompletion) -> Value {
    let RewardCompletion { text, token_ids, finish_reason, conversation, .. } = completion;
    let mut fields = json!({"text": text, "token_ids": token_ids, "finish_reason": finish_reason.as_str()});
    if let Some(Conversation { messages, opening }) = conversation.as_deref() {
        fields["messages"] = messages.clone().into();
        fields["owner_mask"] = completion.owner_mask().map(u8::from).collect();
        if let Some(opening) = opening {
            fields["opening"] = opening.as_str().into();
        }
    }
    fields
}

/// The line for a group.
fn request(id: u64, input: &RewardInput) -> String {
    // Programs in the shell look for the number at the beginning.
    let mut line = Map::from_iter([("id".to_owned(), id.into())]);
    line.extend(group(input));
    format!("{}\n", Value::Object(line))
}

/// What a request says of a group.
#[must_use]
pub fn group(input: &RewardInput) -> Map<String, Value> {
    let completions: Value = input.completions.iter().map(completion_of).collect();
    let columns = Value::Object((*input.columns).clone());
    let fields = [("prompt", Value::from(&*input.prompt)), ("completions", completions), ("columns", columns)];
    let messages = input.messages.iter().map(|messages| ("messages", messages.to_vec().into()));
    fields.into_iter().chain(messages).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The outcomes for a group, and what is logged beside them, from the line that answers a request. `label` is the name
/// of the function in the log, and `containment` that of its process.
///
/// # Errors
/// A line that is no such answer.
pub fn outcomes(
    line: &str,
    input: &RewardInput,
    (label, containment): (&str, &Containment),
) -> Result<(Vec<RewardOutcome>, Logged), String> {
    answer::read(line, input.completions.len()).map(|answer| answer.explained(label, containment, input))
}

impl Answer {
    /// The outcomes, and what is logged. Reasons of failures have the columns or the option that stood in the way, and
    /// the log has the tracebacks.
    fn explained(self, label: &str, containment: &Containment, input: &RewardInput) -> (Vec<RewardOutcome>, Logged) {
        let Self { outcomes, tracebacks, logged, contained } = self;
        tracebacks.iter().for_each(|traceback| tracing::warn!("`{label}`: {traceback}"));
        let explained = |outcome| match outcome {
            RewardOutcome::Failed(reason) => {
                let reason = with_columns(reason, input);
                let words = || format!("{reason}\n{}", tracebacks.join("\n"));
                let explained = contained.then(|| containment.explained(reason.clone(), &words()));
                RewardOutcome::Failed(explained.unwrap_or(reason))
            }
            outcome => outcome,
        };
        (outcomes.into_iter().map(explained).collect(), logged)
    }
}
