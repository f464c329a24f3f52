//! Between HTTP and the engine: requests go to the thread that drives the engine, and tokens come back.
//!
//! A [`Service`] is one of many handles on the side of HTTP. The [`Desk`] is the loop's `Work`, on the engine's thread.
//! It begins what was asked for, cancels what nobody waits for any more, and sends on what each step has made. It never
//! waits for anybody: commands are taken as they lie, and the channel of a request has room for all of its tokens.

use std::{
    collections::{HashMap, VecDeque},
    iter,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};
use rollout::{
    engine::{
        Constrained, Engine, EngineError, FinishedSequence, GivenLogprob, GroupRequest, LoadedAdapter, Output, Request,
        State, TopLogprob,
    },
    generate::{Generate, Next, Work},
};
use shared::{FinishReason, TokenLogprob};
use tokio::sync::{mpsc, oneshot};

use crate::{error::ApiError, metrics::Metrics};

/// Longest wait for a command while nothing runs.
const IDLE: Duration = Duration::from_millis(200);

/// A generator that also has adapters, and knows log-probs of tokens that it did not draw.
pub trait Serve: Generate {
    /// As [`Generate::begin`], of the model with an adapter.
    ///
    /// # Errors
    /// A request that it refuses.
    fn begin_with(&mut self, request: Request, adapter: Option<LoadedAdapter>) -> Result<(), EngineError>;

    /// Log-probs of all tokens but the first, each after those before it, with the `top` likeliest in its place.
    /// Everything else waits meanwhile.
    ///
    /// # Errors
    /// Those of the engine.
    fn score(
        &mut self,
        ids: &[u32],
        top: u32,
        adapter: Option<&LoadedAdapter>,
    ) -> Result<Vec<GivenLogprob>, EngineError>;
}

impl Serve for Engine {
    fn begin_with(&mut self, request: Request, adapter: Option<LoadedAdapter>) -> Result<(), EngineError> {
        Self::begin_with(self, request, adapter)
    }

    fn score(
        &mut self,
        ids: &[u32],
        top: u32,
        adapter: Option<&LoadedAdapter>,
    ) -> Result<Vec<GivenLogprob>, EngineError> {
        if ids.len() < 2 { Ok(Vec::new()) } else { self.given_logprobs(&ids[..1], &ids[1..], top as usize, adapter) }
    }
}

/// What is wanted of completions beside their ends.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// Their tokens as they come.
    pub stream: bool,
    /// The likeliest tokens in each place.
    pub top_logprobs: u32,
    /// The adapter that makes them, if one does.
    pub adapter: Option<LoadedAdapter>,
    /// What they go on from; the prompt is then the ids that come next.
    pub from: Option<State>,
    /// Whether they leave states to go on from.
    pub keep: bool,
}

/// What comes of a prompt.
#[derive(Debug)]
pub enum Event {
    /// A token of a completion, for a request that streams.
    Token {
        /// Index of the completion.
        sample: u32,
        /// The token.
        id: u32,
        /// Its log-probs.
        logprob: TokenLogprob,
        /// The likeliest tokens in its place.
        top: Vec<TopLogprob>,
    },
    /// A completion has ended.
    Ended {
        /// The completion.
        sequence: FinishedSequence,
        /// What it leaves to go on from, where that is wanted.
        state: Option<State>,
    },
    /// The engine does not take the prompt.
    Refused(String),
}

/// Tokens with their log-probs, or what went wrong.
type Scores = Result<Vec<GivenLogprob>, String>;

enum Command {
    Begin { groups: Vec<(GroupRequest, Place)>, wish: Wish, events: mpsc::UnboundedSender<(u64, Event)> },
    Score(Given),
    Cancel(u64),
    Stop,
}

/// Tokens that are to be scored.
struct Given {
    ids: Arc<[u32]>,
    top: u32,
    adapter: Option<LoadedAdapter>,
    reply: oneshot::Sender<Scores>,
}

/// A place in the queue for a prompt, which is free again when it is dropped: with the prompt's first token.
#[derive(Debug)]
pub struct Place {
    waiting: Arc<AtomicUsize>,
    since: Instant,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Relaxed);
    }
}

/// A handle for requests.
#[derive(Debug, Clone)]
pub struct Service {
    commands: Sender<Command>,
    waiting: Arc<AtomicUsize>,
    next_tag: Arc<AtomicU64>,
    queue: usize,
}

/// Makes both sides; no request is taken while `queue` prompts wait for their first token.
#[must_use]
pub fn open(queue: usize, metrics: Arc<Metrics>) -> (Service, Desk) {
    let (sender, commands) = unbounded();
    let service = Service { commands: sender, waiting: Arc::default(), next_tag: Arc::default(), queue };
    (service, Desk { commands, open: HashMap::new(), scores: VecDeque::new(), stopped: false, metrics })
}

impl Service {
    /// A place in the queue for the first prompt of a request.
    ///
    /// # Errors
    /// When it is full.
    pub fn enter(&self) -> Result<Place, ApiError> {
        if self.waiting.fetch_add(1, Relaxed) < self.queue {
            return Ok(Place { waiting: Arc::clone(&self.waiting), since: Instant::now() });
        }
        self.waiting.fetch_sub(1, Relaxed);
        Err(ApiError::full(self.queue))
    }

    /// Places for all prompts of a request that has its first. Even a request of more prompts than the queue has places
    /// is taken, while there is a place.
    fn places(&self, first: Place, prompts: usize) -> Result<impl Iterator<Item = Place>, ApiError> {
        let others = prompts.saturating_sub(1);
        let since = first.since;
        if others > 0 && self.waiting.fetch_add(others, Relaxed) > self.queue {
            self.waiting.fetch_sub(others, Relaxed);
            return Err(ApiError::full(self.queue));
        }
        let waiting = &self.waiting;
        let another = move || Place { waiting: Arc::clone(waiting), since };
        Ok(iter::once(first).chain(iter::repeat_with(another).take(others)))
    }

    /// Asks for completions of these prompts, whose tags are set here.
    ///
    /// # Errors
    /// When the queue has become full with requests of many prompts.
    pub fn begin(&self, place: Place, mut groups: Vec<GroupRequest>, wish: Wish) -> Result<Ticket, ApiError> {
        let places = self.places(place, groups.len())?;
        let count = groups.len() as u64;
        let first = self.next_tag.fetch_add(count, Relaxed);
        groups.iter_mut().zip(first..).for_each(|(group, tag)| group.tag = tag);
        let left = groups.iter().map(|group| group.samples.len()).collect();
        let constraint = groups.first().and_then(|group| group.constraint.clone());
        let (sender, events) = mpsc::unbounded_channel();
        // Without an engine nobody takes it: then there is no event either.
        let groups = groups.into_iter().zip(places).collect();
        let _ = self.commands.send(Command::Begin { groups, wish, events: sender });
        Ok(Ticket { tags: first..first + count, left, events, constraint, commands: self.commands.clone() })
    }

    /// Log-probs of all tokens but the first, with the `top` likeliest in each place, of the model with an adapter.
    ///
    /// # Errors
    /// Those of the engine, or that there is none any more.
    pub async fn score(
        &self,
        ids: Arc<[u32]>,
        top: u32,
        adapter: Option<LoadedAdapter>,
    ) -> Result<Vec<GivenLogprob>, ApiError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Score(Given { ids, top, adapter, reply }));
        answer.await.map_err(|_| ApiError::engine_gone())?.map_err(ApiError::internal)
    }

    /// Ends the loop, and with it all that runs.
    pub fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }
}

/// A request in the engine. When it is dropped before its end, what is left of it is cancelled.
#[derive(Debug)]
pub struct Ticket {
    tags: Range<u64>,
    /// Completions of each prompt that have not ended.
    left: Vec<usize>,
    events: mpsc::UnboundedReceiver<(u64, Event)>,
    /// What its completions may be.
    constraint: Option<Constrained>,
    commands: Sender<Command>,
}

impl Ticket {
    /// The next event, with the index of its prompt; none after the last one.
    ///
    /// # Errors
    /// A prompt that the engine refuses, a constraint that a completion cannot go on with, or an engine that has ended.
    pub async fn next(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        if self.left.iter().all(|left| *left == 0) {
            return Ok(None);
        }
        let Some((tag, event)) = self.events.recv().await else { return Err(ApiError::engine_gone()) };
        let prompt = (tag - self.tags.start) as usize;
        match event {
            Event::Ended { ref sequence, .. } => {
                self.left[prompt] -= 1;
                if sequence.finish_reason == FinishReason::Aborted {
                    return Err(self.given_up());
                }
            }
            Event::Refused(message) => {
                self.left[prompt] = 0;
                return Err(ApiError::field("prompt", message));
            }
            Event::Token { .. } => (),
        }
        Ok(Some((prompt, event)))
    }

    /// Why a completion was given up.
    fn given_up(&self) -> ApiError {
        match self.constraint.as_ref().and_then(|constraint| Some((constraint.name(), constraint.failure()?))) {
            Some((field, reason)) => ApiError::field(field, format!("`{field}`: {reason}")),
            None => ApiError::engine_gone(),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        for (tag, _) in self.tags.clone().zip(&self.left).filter(|(_, left)| **left > 0) {
            let _ = self.commands.send(Command::Cancel(tag));
        }
    }
}

/// A prompt in the engine.
struct Prompt {
    events: mpsc::UnboundedSender<(u64, Event)>,
    stream: bool,
    /// Completions that have not ended.
    left: usize,
    /// Until its first token.
    place: Option<Place>,
}

/// What is done with the engine between two of its steps.
pub struct Desk {
    commands: Receiver<Command>,
    open: HashMap<u64, Prompt>,
    scores: VecDeque<Given>,
    stopped: bool,
    metrics: Arc<Metrics>,
}

impl Desk {
    /// Whether nobody has asked for anything since it was fed.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.commands.is_empty() && self.scores.is_empty()
    }

    fn obey<G: Serve + ?Sized>(&mut self, command: Command, generator: &mut G) {
        match command {
            Command::Begin { groups, wish, events } => {
                for (group, place) in groups {
                    self.begin(group, wish.clone(), place, events.clone(), generator);
                }
            }
            Command::Score(given) => self.scores.push_back(given),
            Command::Cancel(tag) => self.cancel(tag, generator),
            Command::Stop => self.stopped = true,
        }
    }

    fn begin<G: Serve + ?Sized>(
        &mut self,
        group: GroupRequest,
        wish: Wish,
        place: Place,
        events: mpsc::UnboundedSender<(u64, Event)>,
        generator: &mut G,
    ) {
        let (tag, left, tokens) = (group.tag, group.samples.len(), group.prompt_ids.len());
        // Tokens as they come also say when the first one came.
        let Wish { stream, top_logprobs, adapter, from, keep } = wish;
        let request = Request { stream: true, top_logprobs, from, keep, ..group.into() };
        if let Err(error) = generator.begin_with(request, adapter) {
            let _ = events.send((tag, Event::Refused(error.to_string())));
            return;
        }
        self.metrics.prompt_tokens.fetch_add(tokens as u64, Relaxed);
        self.open.insert(tag, Prompt { events, stream, left, place: Some(place) });
    }

    fn cancel<G: Generate + ?Sized>(&mut self, tag: u64, generator: &mut G) {
        if self.open.remove(&tag).is_some() {
            self.metrics.cancelled.fetch_add(generator.cancel(tag, None).len() as u64, Relaxed);
        }
    }

    /// One of the sequences that wait for their log-probs; the others come after further steps of what runs.
    fn score<G: Serve + ?Sized>(&mut self, generator: &mut G) {
        // Nobody may be waiting for it any more.
        let waited_for = |given: &Given| !given.reply.is_closed();
        if let Some(Given { ids, top, adapter, reply }) = iter::from_fn(|| self.scores.pop_front()).find(waited_for) {
            let given = generator.score(&ids, top, adapter.as_ref()).map_err(|error| error.to_string());
            let _ = reply.send(given.and_then(all_finite));
        }
    }

    fn measure<G: Generate + ?Sized>(&self, generator: &G) {
        self.metrics.running.store(generator.running(), Relaxed);
        self.metrics.waiting.store(generator.waiting(), Relaxed);
    }

    fn hand_on(&mut self, output: Output) {
        let (tag, event, ends) = match output {
            Output::Token { tag, sample, id, logprob, top } => (tag, Event::Token { sample, id, logprob, top }, false),
            Output::Ended { sequence, state } => (sequence.tag, Event::Ended { sequence, state }, true),
        };
        let Some(prompt) = self.open.get_mut(&tag) else { return };
        if let Some(place) = prompt.place.take() {
            self.metrics.first_token(place.since.elapsed());
        }
        if !ends {
            self.metrics.generation_tokens.fetch_add(1, Relaxed);
        }
        if ends || prompt.stream {
            // Whoever is gone has sent a command to cancel.
            let _ = prompt.events.send((tag, event));
        }
        prompt.left -= usize::from(ends);
        if prompt.left == 0 {
            self.open.remove(&tag);
        }
    }
}

/// Scores of a damaged model are no scores.
fn all_finite(given: Vec<GivenLogprob>) -> Scores {
    let is_finite = |top: &TopLogprob| top.logprob.is_finite();
    if given.iter().all(|given| given.logprob.is_finite() && given.top.iter().all(is_finite)) {
        return Ok(given);
    }
    Err("the log-probs are not finite: the weights are damaged or too large for the number format".into())
}

impl<G: Serve + ?Sized> Work<G> for Desk {
    type End = ();

    fn feed(&mut self, generator: &mut G) -> anyhow::Result<Next<()>> {
        while !self.stopped {
            match self.commands.try_recv() {
                Ok(command) => self.obey(command, generator),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.stopped = true,
            }
        }
        if self.stopped {
            return Ok(Next::End(()));
        }
        self.score(generator);
        self.measure(generator);
        Ok(if generator.is_idle() { Next::Idle } else { Next::Advance })
    }

    fn take(&mut self, generator: &mut G, outputs: Vec<Output>, _: Instant) -> anyhow::Result<()> {
        // Before anybody has an answer, after which the figures are those of the others.
        self.measure(generator);
        outputs.into_iter().for_each(|output| self.hand_on(output));
        Ok(())
    }

    fn idle(&mut self, generator: &mut G) -> anyhow::Result<()> {
        if self.stopped || !self.scores.is_empty() {
            return Ok(());
        }
        match self.commands.recv_timeout(IDLE) {
            Ok(command) => self.obey(command, generator),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => self.stopped = true,
        }
        Ok(())
    }
}
