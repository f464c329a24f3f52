//! A process with environments, asked by lines that it answers in any order.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded};
use rollout_rewards::program::{Containment, Ender, Kept, LastWords};
use serde_json::Value;
use tokio::sync::oneshot;

use super::answer::{self, Greeting};
use crate::Failure;

/// Calls that go on though nobody waits for them, from which on a process gets no new groups.
const ABANDONED: u64 = 4;

/// Gets what the first line of a process says, or why there is none.
pub type FirstLine = Receiver<Result<Greeting, Failure>>;

/// How a process is started.
#[derive(Debug)]
pub struct Invocation {
    /// Its name in the log.
    pub label: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The working directory.
    pub dir: PathBuf,
    pub containment: Containment,
    /// How long a function may take.
    pub timeout: Duration,
}

/// A running process. Dropping it ends it.
#[derive(Debug)]
pub struct Host {
    requests: Sender<Vec<u8>>,
    ender: Ender,
    calls: Arc<Calls>,
    /// Conversations that use it.
    pub live: AtomicUsize,
}

impl Host {
    /// Starts a process. The channel gets what its first line says, or why there is none.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(invocation: &Arc<Invocation>) -> Result<(Arc<Self>, FirstLine), String> {
        let Invocation { label, program, args, dir, containment, .. } = &**invocation;
        let words = LastWords::default();
        let kept = Kept::start(containment.command(program, args, dir)?, label, &words)?;
        let calls = Arc::new(Calls {
            invocation: Arc::clone(invocation),
            words,
            state: Mutex::default(),
            is_ready: AtomicBool::new(false),
            is_retired: AtomicBool::new(false),
        });
        let host = Self { requests: kept.requests().clone(), ender: kept.ender(), calls, live: AtomicUsize::default() };
        let (told, greeting) = bounded(1);
        let calls = Arc::clone(&host.calls);
        thread::spawn(move || calls.follow(&kept, &told));
        Ok((Arc::new(host), greeting))
    }

    /// Sends a request. The answer comes when it comes; it may be given up.
    pub fn ask(&self, mut request: Value) -> impl Future<Output = Result<Value, Failure>> + Send + use<> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.calls.state();
        if let Some(failure) = &state.ended {
            let _ = sender.send(Err(failure.clone()));
        } else {
            state.last += 1;
            request["id"] = state.last.into();
            let number = state.last;
            state.waiting.insert(number, Waiting { since: Instant::now(), answer: sender });
            // Sent while the state is locked, so that requests have the order of their numbers. A process that is gone
            // is told by the end of its output.
            let _ = self.requests.send(format!("{request}\n").into_bytes());
        }
        drop(state);
        let calls = Arc::clone(&self.calls);
        async move { answer.await.unwrap_or_else(|_| Err(calls.died(""))) }
    }

    /// The permissions and limits of the process.
    pub fn containment(&self) -> &Containment {
        &self.calls.invocation.containment
    }

    /// Whether it has ended, or will.
    pub fn is_over(&self) -> bool {
        self.calls.state().ended.is_some()
    }

    /// Whether it gets no new groups.
    pub fn is_retired(&self) -> bool {
        self.calls.is_retired.load(Ordering::Relaxed)
    }

    /// Whether a request has waited for longer than a function may take. While the process is loading, none has.
    pub fn is_overdue(&self) -> bool {
        let oldest = |state: &State| state.waiting.values().map(|waiting| waiting.since).min();
        let is_ready = self.calls.is_ready.load(Ordering::Relaxed);
        is_ready && oldest(&self.calls.state()).is_some_and(|since| since.elapsed() > self.calls.invocation.timeout)
    }

    /// Ends it because it answers nothing.
    pub fn end_stuck(&self, waited: Duration) {
        let failure = Failure::Stuck { environment: String::new(), seconds: waited.as_secs_f64().round() };
        tracing::warn!("{}", failure.clone().of(&self.calls.invocation.label));
        self.calls.end(failure);
        self.ender.end();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ender.end();
    }
}

/// The requests of a process that wait for answers.
#[derive(Debug)]
struct Calls {
    invocation: Arc<Invocation>,
    words: LastWords,
    state: Mutex<State>,
    /// Whether it has said its first line.
    is_ready: AtomicBool,
    is_retired: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the last request.
    last: u64,
    waiting: HashMap<u64, Waiting>,
    /// Why it answers no more.
    ended: Option<Failure>,
    /// Lines that answered nothing.
    surplus: u64,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    answer: oneshot::Sender<Result<Value, Failure>>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all lines of a process, and tells every request how it ended.
    fn follow(&self, kept: &Kept, greeting: &Sender<Result<Greeting, Failure>>) {
        for line in kept.answers() {
            match line {
                Ok(line) if self.is_ready.load(Ordering::Relaxed) => self.take(&line),
                Ok(line) => match answer::greeting(&line) {
                    Some(Ok(said)) => {
                        self.is_ready.store(true, Ordering::Relaxed);
                        let _ = greeting.try_send(Ok(said));
                    }
                    Some(Err(wrong)) => {
                        let reason = self.invocation.containment.explained(wrong.reason.clone(), &wrong.reason);
                        let traceback = wrong.traceback;
                        self.end(Failure::Broken { environment: String::new(), reason, traceback });
                        break;
                    }
                    None => self.throw_away(&line),
                },
                Err(reason) => {
                    self.end(Failure::Broken { environment: String::new(), reason, traceback: None });
                    break;
                }
            }
        }
        if self.state().ended.is_none() {
            self.end(self.died(&kept.ended()));
        }
        if let Some(failure) = &self.state().ended {
            let _ = greeting.try_send(Err(failure.clone()));
        }
    }

    fn take(&self, line: &str) {
        let answer = match answer::read(line, self.invocation.timeout.as_secs_f64()) {
            Ok(answer) => answer,
            Err(_) => return self.throw_away(line),
        };
        if answer.abandoned >= ABANDONED && !self.is_retired.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "`{}`: {} calls go on that were given up; its process gets no new conversations and is replaced",
                self.invocation.label,
                answer.abandoned
            );
        }
        let waiting = self.state().waiting.remove(&answer.id);
        match waiting {
            // A future that was given up takes no answer.
            Some(waiting) => drop(waiting.answer.send(answer.fields.map_err(|failure| self.explained(failure)))),
            None => self.throw_away(line),
        }
    }

    /// Counts a line that answers nothing. The log tells of the first.
    fn throw_away(&self, line: &str) {
        let mut state = self.state();
        state.surplus += 1;
        if state.surplus == 1 {
            let quoted: String = line.trim().chars().take(80).collect();
            tracing::warn!("`{}` wrote `{quoted}`, which answers nothing and is passed over", self.invocation.label);
        }
    }

    /// A failure with the option that stood in the way, where its words show that.
    fn explained(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Broken { environment, reason, traceback } => {
                let words = format!("{reason}\n{}", traceback.as_deref().unwrap_or_default());
                let reason = self.invocation.containment.explained(reason, &words);
                Failure::Broken { environment, reason, traceback }
            }
            failure => failure,
        }
    }

    fn died(&self, end: &str) -> Failure {
        let words = self.words.lines();
        let end = self.invocation.containment.explained(end.to_owned(), &format!("{end}\n{}", words.join("\n")));
        Failure::Died { environment: String::new(), end, words }
    }

    /// Fails all requests; the first reason stays.
    fn end(&self, failure: Failure) {
        let mut state = self.state();
        let failure = state.ended.get_or_insert(failure).clone();
        for (_, waiting) in state.waiting.drain() {
            let _ = waiting.answer.send(Err(failure.clone()));
        }
    }
}
