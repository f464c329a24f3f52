//! A process with environments, asked by lines that it answers in any order.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, bounded};
use rollout_rewards::program::{Containment, Ender, Kept, LastWords};
use serde_json::{Map, Value};
use tokio::{
    sync::oneshot,
    time::{timeout, timeout_at},
};

use super::answer::{self, Greeting};
use crate::Failure;

/// Calls that go on though nobody waits for them, from which on a process gets no new groups.
const ABANDONED: u64 = 4;

/// Lines that answer nothing, with which a process is ended.
const MAX_SURPLUS: u64 = 10_000;

/// Hears that a request waits for a place.
pub type Queued = Box<dyn FnOnce() + Send>;

/// Gets what the first line of a process says, or why there is none.
pub type FirstLine = Receiver<Result<Greeting, Failure>>;

/// How a process is started.
#[derive(Debug)]
pub struct Invocation {
    pub manner: Manner,
    /// Its name in the log.
    pub label: String,
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The working directory.
    pub dir: PathBuf,
    pub containment: Containment,
    /// How long a function may take.
    pub timeout: Duration,
    /// How long its first line may take.
    pub loading: Duration,
    /// Entries of the reward functions in it that ask for environments.
    pub raters: Vec<String>,
}

/// What runs in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// The user's interpreter. It keeps the time of each function by itself.
    Python,
    /// A program. Each of its answers has a deadline.
    Program,
}

impl Manner {
    /// What may hold up a process of the kind.
    fn hint(self) -> &'static str {
        match self {
            Self::Python => "an `async` function that waits without `await` holds up all others",
            Self::Program => "a program that answers one request after the other is held up by the slowest",
        }
    }
}

/// A running process. Dropping it ends it.
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
            answered: AtomicU64::new(0),
            begun: Instant::now(),
        });
        let host = Self { requests: kept.requests().clone(), ender: kept.ender(), calls, live: AtomicUsize::default() };
        let (told, greeting) = bounded(1);
        let calls = Arc::clone(&host.calls);
        thread::spawn(move || calls.follow(&kept, &told));
        Ok((Arc::new(host), greeting))
    }

    /// Sends a request about an episode, and waits for the answer as long as this kind of process may take. The answer
    /// may be given up. `queued` is called once, should the process say that the episode has to wait for a place.
    pub fn ask(
        &self,
        (episode, wanted): (u64, &'static str),
        fields: Map<String, Value>,
        queued: Option<Queued>,
    ) -> impl Future<Output = Result<Value, Failure>> + Send + use<> {
        let (number, mut answer) = self.send((episode, wanted), fields, queued);
        let calls = Arc::clone(&self.calls);
        let Invocation { manner, timeout: limit, .. } = *self.calls.invocation;
        async move {
            let mut deadline = Instant::now() + limit;
            loop {
                let answered = match manner {
                    Manner::Python => Ok((&mut answer).await),
                    Manner::Program => timeout_at(deadline.into(), &mut answer).await,
                };
                if let Ok(answer) = answered {
                    return answer.unwrap_or_else(|_| Err(calls.died("")));
                }
                match calls.time_left(number) {
                    Some(left) => deadline = Instant::now() + left,
                    None => break,
                }
            }
            drop(answer);
            calls.retire_if_late();
            let (environment, function) = (String::new(), format!("`{wanted}`"));
            Err(Failure::Late { environment, function, seconds: limit.as_secs_f64() })
        }
    }

    /// Whether it answers anything within this time. An answer to another request is a sign of life too.
    pub async fn is_alive(&self, patience: Duration) -> bool {
        let before = self.calls.answered.load(Ordering::Relaxed);
        let (_, answer) = self.send((0, "ping"), Map::new(), None);
        timeout(patience, answer).await.is_ok() || self.calls.answered.load(Ordering::Relaxed) != before
    }

    /// Sends a line that begins with `id`, `episode` and `do`.
    fn send(
        &self,
        (episode, wanted): (u64, &'static str),
        fields: Map<String, Value>,
        queued: Option<Queued>,
    ) -> (u64, oneshot::Receiver<Result<Value, Failure>>) {
        let (sender, answer) = oneshot::channel();
        let mut state = self.calls.state();
        if let Some(failure) = &state.ended {
            let _ = sender.send(Err(failure.clone()));
        } else {
            state.last += 1;
            let number = state.last;
            let head = [("id", number.into()), ("episode", episode.into()), ("do", wanted.into())];
            let head = head.map(|(name, value): (_, Value)| (name.to_owned(), value));
            let request: Value = head.into_iter().chain(fields).collect();
            state.waiting.insert(number, Waiting { since: Instant::now(), answer: sender, queued });
            // Sent while the state is locked, so that requests have the order of their numbers. A process that is gone
            // is told by the end of its output.
            let _ = self.requests.send(format!("{request}\n").into_bytes());
        }
        (state.last, answer)
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
        let (environment, hint) = (String::new(), self.calls.invocation.manner.hint());
        let failure = Failure::Stuck { environment, seconds: waited.as_secs_f64().round(), hint };
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
struct Calls {
    invocation: Arc<Invocation>,
    words: LastWords,
    state: Mutex<State>,
    /// Whether it has said its first line.
    is_ready: AtomicBool,
    is_retired: AtomicBool,
    /// Requests that have been answered.
    answered: AtomicU64,
    begun: Instant,
}

#[derive(Default)]
struct State {
    /// The number of the last request.
    last: u64,
    waiting: HashMap<u64, Waiting>,
    /// Why it answers no more.
    ended: Option<Failure>,
    /// Lines that answered nothing.
    surplus: u64,
}

struct Waiting {
    /// Its time counts from here on.
    since: Instant,
    answer: oneshot::Sender<Result<Value, Failure>>,
    queued: Option<Queued>,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all lines of a process, and tells every request how it ended.
    fn follow(&self, kept: &Kept, greeting: &Sender<Result<Greeting, Failure>>) {
        for line in kept.answers() {
            if self.state().ended.is_some() {
                break;
            }
            match line {
                Ok(line) if self.is_ready.load(Ordering::Relaxed) => self.take(&line),
                Ok(line) => match answer::greeting(&line) {
                    Some(Ok(said)) => {
                        self.becomes_ready();
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
        self.retire_with(answer.abandoned);
        if answer.queued {
            return self.has_queued(answer.id, line);
        }
        let waiting = self.state().waiting.remove(&answer.id);
        match waiting {
            Some(waiting) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                // A future that was given up takes no answer.
                let _ = waiting.answer.send(answer.fields.map_err(|failure| self.explained(failure)));
            }
            None => self.throw_away(line),
        }
    }

    /// A request waits for a place: its time begins anew.
    fn has_queued(&self, number: u64, line: &str) {
        let mut state = self.state();
        let Some(waiting) = state.waiting.get_mut(&number) else {
            drop(state);
            return self.throw_away(line);
        };
        waiting.since = Instant::now();
        let queued = waiting.queued.take();
        drop(state);
        self.answered.fetch_add(1, Ordering::Relaxed);
        if let Some(queued) = queued {
            queued();
        }
    }

    /// The time of requests that have come before counts from here on.
    fn becomes_ready(&self) {
        let mut state = self.state();
        state.waiting.values_mut().for_each(|waiting| waiting.since = Instant::now());
        self.is_ready.store(true, Ordering::Relaxed);
    }

    /// What is left of a request's time; none if it is over. While the process is loading, no time passes.
    fn time_left(&self, number: u64) -> Option<Duration> {
        let Invocation { timeout, loading, .. } = *self.invocation;
        let since = self.state().waiting.get(&number)?.since;
        let left = match self.is_ready.load(Ordering::Relaxed) {
            true => timeout.checked_sub(since.elapsed()),
            false => loading.checked_sub(self.begun.elapsed()).map(|left| left.min(timeout)),
        };
        left.filter(|left| !left.is_zero())
    }

    /// Takes no new groups once several calls go on that were given up.
    fn retire_with(&self, abandoned: u64) {
        if abandoned >= ABANDONED && !self.is_retired.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "`{}`: {abandoned} calls go on that were given up; its process gets no new conversations and is \
                 replaced",
                self.invocation.label
            );
        }
    }

    /// The same, by the requests that have had their time and were given up.
    fn retire_if_late(&self) {
        let limit = self.invocation.timeout;
        let is_late = |waiting: &&Waiting| waiting.answer.is_closed() && waiting.since.elapsed() >= limit;
        let late = self.state().waiting.values().filter(is_late).count();
        self.retire_with(late as u64);
    }

    /// Counts a line that answers nothing. The log tells of the first.
    fn throw_away(&self, line: &str) {
        let mut state = self.state();
        state.surplus += 1;
        let surplus = state.surplus;
        drop(state);
        if surplus == 1 {
            let quoted: String = line.trim().chars().take(80).collect();
            tracing::warn!("`{}` wrote `{quoted}`, which answers nothing and is passed over", self.invocation.label);
        }
        if surplus == MAX_SURPLUS {
            let reason = format!("its process wrote {surplus} lines that answer nothing, and was ended");
            tracing::warn!("`{}`: {reason}", self.invocation.label);
            self.end(Failure::Broken { environment: String::new(), reason, traceback: None });
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
