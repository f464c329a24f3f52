//! Runs reward functions beside generation.
//!
//! A dispatcher thread takes groups from a channel, cuts them into items (one call of one function, see [`Scope`]) and
//! keeps as many of them running on a rayon pool as it has threads. The deadline of an item counts from its start (or
//! from its hand-over to the threads, should none take it up within that time). A thread cannot be stopped from
//! outside. So when an item overruns, it is given up, and a fresh pool replaces the one with the lost thread: later
//! items are not held up. A function that keeps losing threads is no longer called.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, Sender, at, never, select, unbounded};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use shared::{Logged, RewardOutcome, StepScore};

use super::{RewardCompletion, RewardFunction, RewardInput, Scope, failed};

/// A function with this many calls that never came back is not called again until one of them does.
const MAX_LOST_CALLS: usize = 8;

/// How long after its deadline a call may still come back, before its thread is given up.
const GRACE: Duration = Duration::from_millis(100);

/// One call of one function, for a timeline.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// When it began.
    pub begin: Instant,
    /// When it came back.
    pub end: Instant,
    /// The thread of the pool.
    pub thread: usize,
    /// Index of the function.
    pub function: usize,
    /// Completions scored.
    pub completions: usize,
}

/// The scores of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredGroup {
    /// The tag that it was submitted with.
    pub tag: u64,
    /// One list per completion, with one outcome per function, in the order of the functions.
    pub outcomes: Vec<Vec<RewardOutcome>>,
    /// What the functions have logged beside their scores.
    pub logged: Logged,
}

/// Scores groups on threads of its own. Every group that is submitted comes back, whatever its functions do.
#[derive(Debug)]
pub struct RewardPool {
    groups: Option<Sender<(u64, RewardInput)>>,
    scored: Receiver<ScoredGroup>,
    pending: usize,
    dispatcher: Option<JoinHandle<()>>,
}

impl RewardPool {
    /// A pool of `threads` threads; `deadline` is the time that one function may take for one completion (for one group
    /// with [`Scope::Group`]). `observe` is told of every call that came back.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn new(
        functions: Vec<RewardFunction>,
        threads: usize,
        deadline: Duration,
        observe: fn(Call),
    ) -> Result<Self, ThreadPoolBuildError> {
        let (groups, submitted) = unbounded();
        let (results, scored) = unbounded();
        let mut dispatcher = Dispatcher::new(functions.into(), threads.max(1), deadline, observe, results)?;
        let dispatcher = std::thread::spawn(move || dispatcher.run(&submitted));
        Ok(Self { groups: Some(groups), scored, pending: 0, dispatcher: Some(dispatcher) })
    }

    /// Hands over a group; returns at once. The tag comes back with the scores.
    pub fn submit(&mut self, tag: u64, input: RewardInput) {
        let groups = self.groups.as_ref().expect("the channel is open until the pool is dropped");
        groups.send((tag, input)).expect("the dispatcher runs until the pool is dropped");
        self.pending += 1;
    }

    /// Number of groups that were submitted and not yet received.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending
    }

    /// A group whose scores are complete, if there is one.
    pub fn try_recv(&mut self) -> Option<ScoredGroup> {
        let group = self.scored.try_recv().ok()?;
        self.pending -= 1;
        Some(group)
    }

    /// Waits for the next group whose scores are complete; `None` when none is pending. Deadlines bound the wait.
    pub fn recv(&mut self) -> Option<ScoredGroup> {
        if self.pending == 0 {
            return None;
        }
        let group = self.scored.recv().expect("the dispatcher runs until the pool is dropped");
        self.pending -= 1;
        Some(group)
    }
}

impl Drop for RewardPool {
    fn drop(&mut self) {
        // The closed channel ends the dispatcher. Threads of calls that hang are not waited for.
        self.groups = None;
        if let Some(dispatcher) = self.dispatcher.take() {
            let _ = dispatcher.join();
        }
    }
}

/// One call of one function.
struct Item {
    group: u64,
    function: usize,
    /// Index of the first completion of `input` within its group.
    first: usize,
    input: RewardInput,
}

/// The dispatcher's record of an item that runs.
struct Running {
    group: u64,
    function: usize,
    first: usize,
    /// Tokens of each completion.
    tokens: Vec<Tokens>,
    given_up_at: Option<Instant>,
}

/// A group whose scores are being collected.
struct Open {
    tag: u64,
    outcomes: Vec<Vec<RewardOutcome>>,
    /// Of each function; together in their order, since calls end in any.
    logged: Vec<Logged>,
    missing: usize,
}

/// A message of a thread about an item, which it names by number.
enum Notice {
    /// The item has begun, and is given up at this time.
    Begun(u64, Option<Instant>),
    /// What the item has come to.
    Done(u64, Answer),
}

/// The outcomes of a call with what it has logged, or the reason why there are none.
type Answer = Result<(Vec<RewardOutcome>, Logged), String>;

struct Dispatcher {
    functions: Arc<[RewardFunction]>,
    threads: usize,
    deadline: Duration,
    observe: fn(Call),
    pool: ThreadPool,
    queue: VecDeque<Item>,
    running: HashMap<u64, Running>,
    /// The functions of items that were given up and whose threads have not come back.
    lost: HashMap<u64, usize>,
    open: HashMap<u64, Open>,
    next: u64,
    notices: (Sender<Notice>, Receiver<Notice>),
    results: Sender<ScoredGroup>,
}

impl Dispatcher {
    fn new(
        functions: Arc<[RewardFunction]>,
        threads: usize,
        deadline: Duration,
        observe: fn(Call),
        results: Sender<ScoredGroup>,
    ) -> Result<Self, ThreadPoolBuildError> {
        Ok(Self {
            functions,
            threads,
            deadline,
            observe,
            pool: thread_pool(threads)?,
            queue: VecDeque::new(),
            running: HashMap::new(),
            lost: HashMap::new(),
            open: HashMap::new(),
            next: 0,
            notices: unbounded(),
            results,
        })
    }

    /// Works until the channel is closed.
    fn run(&mut self, submitted: &Receiver<(u64, RewardInput)>) {
        let notices = self.notices.1.clone();
        loop {
            self.start_items();
            let earliest = self.running.values().filter_map(|item| item.given_up_at).min();
            let alarm = earliest.map_or_else(never, at);
            select! {
                recv(submitted) -> group => match group {
                    Ok((tag, input)) => self.open_group(tag, input),
                    Err(_) => return,
                },
                recv(notices) -> notice => self.take(notice.expect("the dispatcher holds a sender")),
                recv(alarm) -> now => self.give_up_overdue(now.expect("an alarm goes off once")),
            }
        }
    }

    fn open_group(&mut self, tag: u64, mut input: RewardInput) {
        let group = self.number();
        let queued = self.queue.len();
        let completions = mem::take(&mut input.completions);
        let seeing = |completions| RewardInput { completions, ..input.clone() };
        for (function, called) in self.functions.iter().enumerate() {
            match called.reward().scope() {
                Scope::Group => {
                    self.queue.push_back(Item { group, function, first: 0, input: seeing(completions.clone()) });
                }
                Scope::Completion => self.queue.extend(completions.iter().enumerate().map(|(first, completion)| {
                    Item { group, function, first, input: seeing(vec![completion.clone()]) }
                })),
            }
        }
        let empty = vec![RewardOutcome::NotApplicable; self.functions.len()];
        let outcomes = vec![empty; completions.len()];
        let missing = self.queue.len() - queued;
        let logged = vec![Logged::default(); self.functions.len()];
        self.open.insert(group, Open { tag, outcomes, logged, missing });
        self.close_if_complete(group);
    }

    fn start_items(&mut self) {
        while self.running.len() < self.threads
            && let Some(place) = self.queue.iter().position(|item| self.may_start(item.function))
            && let Some(mut item) = self.queue.remove(place)
        {
            let id = self.number();
            let deadline = self.deadline;
            let running = Running {
                group: item.group,
                function: item.function,
                first: item.first,
                tokens: item.input.completions.iter().map(Tokens::from).collect(),
                given_up_at: given_up_at(Instant::now().checked_add(deadline)),
            };
            self.running.insert(id, running);
            let lost = self.lost.values().filter(|&&function| function == item.function).count();
            if lost >= MAX_LOST_CALLS {
                self.finish_item(id, Err(format!("not called any more: {lost} calls have not come back")));
                continue;
            }
            let (function, notices) = (self.functions[item.function].clone(), self.notices.0.clone());
            let observe = self.observe;
            self.pool.spawn(move || {
                item.input.deadline = Instant::now().checked_add(deadline);
                // The receiver is gone only when the whole pool is.
                let _ = notices.send(Notice::Begun(id, given_up_at(item.input.deadline)));
                let _ = notices.send(Notice::Done(id, call(&function, &item, observe)));
            });
        }
    }

    fn may_start(&self, function: usize) -> bool {
        let limit = self.functions[function].reward().concurrency().max(1);
        limit >= self.threads || self.running.values().filter(|item| item.function == function).count() < limit
    }

    fn take(&mut self, notice: Notice) {
        match notice {
            Notice::Begun(id, given_up_at) => {
                if let Some(item) = self.running.get_mut(&id) {
                    item.given_up_at = given_up_at;
                }
            }
            Notice::Done(id, answer) => self.finish_item(id, answer),
        }
    }

    fn finish_item(&mut self, id: u64, answer: Answer) {
        let Some(item) = self.running.remove(&id) else {
            // A call that was given up has come back after all; its thread ends with its pool.
            self.lost.remove(&id);
            return;
        };
        let completions = item.tokens.len();
        let (outcomes, logged) = match answer {
            Ok((found, logged)) if found.len() == completions => (found, logged),
            Ok((found, _)) => {
                let reason = format!("returned {} outcomes for {completions} completions", found.len());
                (failed(reason, completions), Logged::default())
            }
            Err(reason) => (failed(reason, completions), Logged::default()),
        };
        let group = self.open.get_mut(&item.group).expect("a group stays open until its last item");
        for (offset, outcome) in outcomes.into_iter().enumerate() {
            group.outcomes[item.first + offset][item.function] = checked(outcome, &item.tokens[offset]);
        }
        group.logged[item.function].extend(logged);
        group.missing -= 1;
        self.close_if_complete(item.group);
    }

    fn close_if_complete(&mut self, group: u64) {
        if self.open.get(&group).is_none_or(|open| open.missing > 0) {
            return;
        }
        if let Some(open) = self.open.remove(&group) {
            let mut logged = Logged::default();
            open.logged.into_iter().for_each(|of_function| logged.extend(of_function));
            // The receiver is gone only when the whole pool is.
            let _ = self.results.send(ScoredGroup { tag: open.tag, outcomes: open.outcomes, logged });
        }
    }

    /// Gives up the items that are overdue at `now`. This thread may have woken up late, so it first hears what threads
    /// have said since.
    fn give_up_overdue(&mut self, now: Instant) {
        while let Ok(notice) = self.notices.1.try_recv() {
            self.take(notice);
        }
        let overdue: Vec<u64> = self
            .running
            .iter()
            .filter(|(_, item)| item.given_up_at.is_some_and(|at| at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in &overdue {
            let function = self.running[id].function;
            self.finish_item(*id, Err(format!("no result within {} s", self.deadline.as_secs_f64())));
            self.lost.insert(*id, function);
            tracing::warn!("reward function `{}` ran out of time", self.functions[function].name());
        }
        if overdue.is_empty() {
            return;
        }
        match thread_pool(self.threads) {
            // The old pool's other threads finish what they are at, then end.
            Ok(pool) => self.pool = pool,
            // Without new threads, items wait on the old pool and run into their deadlines: late, but they come back.
            Err(error) => tracing::error!("no threads to replace those of hanging reward functions: {error}"),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn given_up_at(deadline: Option<Instant>) -> Option<Instant> {
    deadline?.checked_add(GRACE)
}

fn thread_pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("reward-{i}")).build()
}

fn call(function: &RewardFunction, item: &Item, observe: fn(Call)) -> Answer {
    let begin = Instant::now();
    let answer = catch_unwind(AssertUnwindSafe(|| function.reward().score_and_log(&item.input)));
    let thread = rayon::current_thread_index().unwrap_or(0);
    let completions = item.input.completions.len();
    observe(Call { begin, end: Instant::now(), thread, function: item.function, completions });
    answer.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("panicked: {}", text.unwrap_or("without a message"))
    })
}

/// The tokens of a completion, as far as steps are compared with them.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    count: usize,
    given: Vec<Range<usize>>,
}

impl From<&RewardCompletion> for Tokens {
    fn from(completion: &RewardCompletion) -> Self {
        Self { count: completion.token_ids.len(), given: completion.given.clone() }
    }
}

impl Tokens {
    /// Whether the policy has sampled any of these.
    fn has_sampled(&self, span: Range<usize>) -> bool {
        let within = |given: &Range<usize>| given.end.min(span.end).saturating_sub(given.start.max(span.start));
        self.given.iter().map(within).sum::<usize>() < span.len()
    }
}

/// The outcome, or a failure where it is invalid: scores must be finite, steps in order and within the completion. A
/// step of given tokens alone is left out, since the policy did not make it.
pub(crate) fn checked(outcome: RewardOutcome, tokens: &Tokens) -> RewardOutcome {
    match outcome {
        RewardOutcome::Score(score) if !score.is_finite() => RewardOutcome::Failed(format!("returned {score}")),
        RewardOutcome::Steps(mut steps) => match wrong_steps(&steps, tokens.count) {
            Some(wrong) => RewardOutcome::Failed(wrong),
            None => {
                let mut start = 0;
                steps.retain(|step| {
                    let end = step.end as usize + 1;
                    tokens.has_sampled(mem::replace(&mut start, end)..end)
                });
                RewardOutcome::Steps(steps)
            }
        },
        other => other,
    }
}

fn wrong_steps(steps: &[StepScore], tokens: usize) -> Option<String> {
    if let Some(step) = steps.iter().find(|step| !step.score.is_finite()) {
        return Some(format!("returned {} for the step that ends with token {}", step.score, step.end));
    }
    if let Some(step) = steps.iter().find(|step| step.end as usize >= tokens) {
        return Some(format!("returned a step that ends with token {} of a completion of {tokens} tokens", step.end));
    }
    let unordered = steps.windows(2).any(|pair| pair[0].end >= pair[1].end);
    unordered.then(|| "returned steps whose ends do not ascend".to_owned())
}

#[cfg(test)]
mod tests;
