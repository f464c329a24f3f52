//! The environments of all conversations of a run, beside generation.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::channel::{Receiver, Sender, unbounded};
use rollout_rewards::RewardInput;
use serde_json::{Map, Value};
use tokio::{
    runtime::{self, Handle},
    sync::{mpsc, oneshot},
};

pub use crate::python::Rating;
use crate::{
    Failure, RowError, StartError,
    environment::{Environment, Opening, Sample, Step, Turn},
    plan::{Entries, Plan, Said},
    process::{FirstLine, Hosts, Invocation, Queued},
    python::rate,
    sources::Sources,
};

/// What has become of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The environment waits for a place, for as long as it takes. [`Event::Opened`] still comes.
    Queued,
    /// The conversation can begin.
    Opened(Opening),
    /// The calls of a turn have run.
    Stepped(Step),
    /// What the raters say of the conversation, beside the others of its group.
    Rated(Rating),
    /// The reward at the end; none where the environment gives none.
    Scored(Option<f64>),
    /// The environment failed, and answers no more. The conversation has no reward then, which is not a reward of 0.
    Failed(Failure),
}

/// All environments of a run, many at once, on a thread of their own and in processes. No method waits.
///
/// A conversation is opened, stepped through turn by turn, perhaps rated and scored, and closed. Each of these but the
/// last leads to one [`Event`], and the next is asked for after that event; [`Event::Queued`] may come before
/// [`Event::Opened`]. A conversation may be closed at any time. An event that was under way may come after that, so a
/// sample that is opened once more should have another tag.
pub struct Environments {
    plan: Plan,
    /// The processes: those with Python, and those of each program.
    pub(crate) hosts: Vec<Arc<Hosts>>,
    reward_timeout: Duration,
    conversations: Mutex<HashMap<Sample, Conversation>>,
    sender: Sender<(Sample, Event)>,
    events: Receiver<(Sample, Event)>,
    /// Where the conversations run. Dropped last.
    room: Room,
}

/// The handle of a conversation; dropping it ends the conversation.
struct Conversation {
    orders: mpsc::UnboundedSender<Order>,
    _open: oneshot::Sender<()>,
}

/// What a conversation is asked for.
enum Order {
    Step(Turn),
    Score,
}

impl Environments {
    /// Starts the processes of the options, and waits until each has said what it has.
    ///
    /// # Errors
    /// What cannot be used, with file and line where there are any.
    pub fn start(sources: &Sources) -> Result<Self, StartError> {
        let entries = Entries::read(sources)?;
        let room = Room::open()?;
        let (hosts, said) = started(&entries, sources, &room.handle)?;
        let plan = Plan::of(&entries, &said)?;
        let (sender, events) = unbounded();
        let (conversations, reward_timeout) = (Mutex::default(), sources.reward_timeout);
        Ok(Self { plan, hosts, reward_timeout, conversations, sender, events, room })
    }

    /// JSON schemas of the tools of a row in the order of the prompt: the listed tools, then the public methods of the
    /// class by name.
    ///
    /// # Errors
    /// When the row names no environment.
    pub fn tools(&self, row: &Map<String, Value>) -> Result<&[Value], RowError> {
        Ok(self.plan.kind(row)?.schemas())
    }

    /// Whether any environment gives a reward at the end of a conversation.
    #[must_use]
    pub fn give_rewards(&self) -> bool {
        self.plan.gives_rewards()
    }

    /// Whether any environment gives rewards by turn.
    #[must_use]
    pub fn give_turn_rewards(&self) -> bool {
        self.plan.gives_turn_rewards()
    }

    /// Begins a conversation about a row of the dataset. Leads to [`Event::Opened`].
    pub fn open(&self, sample: Sample, row: Arc<Map<String, Value>>) {
        let kind = match self.plan.kind(&row) {
            Ok(kind) => kind,
            Err(error) => return self.tell(sample, Event::Failed(error.into())),
        };
        let queued = || -> Queued {
            let sender = self.sender.clone();
            Box::new(move || drop(sender.send((sample, Event::Queued))))
        };
        let environment = kind.environment(&self.hosts, sample, queued);
        let columns = kind.columns(&row).into_owned();
        let (orders, taken) = mpsc::unbounded_channel();
        let (open, closed) = oneshot::channel();
        self.conversations().insert(sample, Conversation { orders, _open: open });
        let told = Teller { sample, sender: self.sender.clone() };
        self.room.handle.spawn(converse(environment, columns, taken, closed, told));
    }

    /// Runs the calls of a turn. Leads to [`Event::Stepped`].
    pub fn step(&self, sample: Sample, turn: Turn) {
        self.order(sample, Order::Step(turn));
    }

    /// Has the raters say something of conversations of one group, which must be open and wait for nothing. `input` has
    /// their completions, in their order. Leads to [`Event::Rated`] for each.
    pub fn rate(&self, samples: Vec<Sample>, input: RewardInput) {
        let with_raters = self.hosts.iter().find(|hosts| !hosts.raters().is_empty()).cloned();
        let (sender, limit) = (self.sender.clone(), self.reward_timeout);
        self.room.handle.spawn(async move {
            let ratings = match &with_raters {
                Some(hosts) => rate(hosts, &samples, &input, limit).await,
                None => vec![Rating::default(); samples.len()],
            };
            for (sample, rating) in samples.into_iter().zip(ratings) {
                let _ = sender.send((sample, Event::Rated(rating)));
            }
        });
    }

    /// Asks for the reward of the whole conversation. Leads to [`Event::Scored`].
    pub fn score(&self, sample: Sample) {
        self.order(sample, Order::Score);
    }

    /// Ends a conversation, also one that has failed: what runs is cancelled, and its instance is free for another one.
    pub fn close(&self, sample: Sample) {
        self.conversations().remove(&sample);
    }

    /// What has happened; can be selected on.
    #[must_use]
    pub fn events(&self) -> &Receiver<(Sample, Event)> {
        &self.events
    }

    fn conversations(&self) -> MutexGuard<'_, HashMap<Sample, Conversation>> {
        self.conversations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, sample: Sample, order: Order) {
        // One that has failed takes no more orders, and its event is under way.
        if let Some(conversation) = self.conversations().get(&sample) {
            let _ = conversation.orders.send(order);
        }
    }

    fn tell(&self, sample: Sample, event: Event) {
        let _ = self.sender.send((sample, event));
    }
}

impl Drop for Environments {
    fn drop(&mut self) {
        self.conversations().clear();
        self.hosts.clear();
        self.room.close();
    }
}

/// Starts all processes, and waits for the first line of each kind.
fn started(entries: &Entries, sources: &Sources, runtime: &Handle) -> Result<(Vec<Arc<Hosts>>, Vec<Said>), StartError> {
    let Sources { host, timeout, .. } = sources;
    let fail = |reason: String| StartError::Process { reason, words: Vec::new() };
    type Invoked = Result<Invocation, String>;
    let start = |invocation: Invoked, processes: usize| -> Result<(Arc<Hosts>, FirstLine), StartError> {
        Hosts::start(invocation.map_err(fail)?, processes, runtime.clone())
    };
    let mut begun = Vec::new();
    if let Some(python) = entries.in_python() {
        begun.push((None, start(python.invocation(host, *timeout), host.processes.max(1))?));
    }
    for program in entries.programs() {
        begun.push((Some(program.entry.clone()), start(program.invocation(host, *timeout), program.processes(host))?));
    }
    let (mut all, mut said) = (Vec::new(), Vec::new());
    for (program, (hosts, first_line)) in begun {
        said.push(Said { program, greeting: hosts.greeted(&first_line)? });
        all.push(hosts);
    }
    Ok((all, said))
}

/// Sends events of a conversation. An environment that panics has failed.
struct Teller {
    sample: Sample,
    sender: Sender<(Sample, Event)>,
}

impl Teller {
    fn tell(&self, event: Event) {
        // Nobody listens any more where the run is about to end.
        let _ = self.sender.send((self.sample, event));
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        if thread::panicking() {
            let environment = "built in".to_owned();
            let reason = "it panicked; the log says where".to_owned();
            self.tell(Event::Failed(Failure::Broken { environment, reason, traceback: None }));
        }
    }
}

/// A conversation from its beginning until it is closed or fails.
async fn converse(
    mut environment: Box<dyn Environment>,
    columns: Map<String, Value>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut closed: oneshot::Receiver<()>,
    told: Teller,
) {
    let mut next = None;
    loop {
        let environment = environment.as_mut();
        let work = async {
            match next {
                None => environment.init(&columns).await.map(Event::Opened),
                Some(Order::Step(turn)) => environment.step(turn).await.map(Event::Stepped),
                Some(Order::Score) => environment.score().await.map(Event::Scored),
            }
        };
        let event = tokio::select! {
            biased;
            _ = &mut closed => return,
            event = work => event,
        };
        let is_over = event.is_err();
        told.tell(event.unwrap_or_else(Event::Failed));
        if is_over {
            return;
        }
        next = orders.recv().await;
        if next.is_none() {
            return;
        }
    }
}

/// A thread with a runtime.
struct Room {
    handle: Handle,
    door: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Room {
    fn open() -> Result<Self, StartError> {
        let runtime = runtime::Builder::new_current_thread().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (door, closed) = oneshot::channel::<()>();
        let run = move || drop(runtime.block_on(closed));
        let thread = thread::Builder::new().name("environments".to_owned()).spawn(run)?;
        Ok(Self { handle, door: Some(door), thread: Some(thread) })
    }

    fn close(&mut self) {
        self.door = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
