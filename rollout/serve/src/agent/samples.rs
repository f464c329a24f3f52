//! The samples of a run whose agents are at work: their keys, and what they have asked so far.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::http::StatusCode;
use rollout::{
    conversation::{After, Conversation, Dialogue, Limits, Onward},
    engine::{FinishedSequence, GroupRequest, State},
};
use serde_json::Value;
use shared::{FinishReason, SamplingParams, generation::rng};
use shared_chat::calls::Call;

use super::{
    messages::Said,
    path::{Asked, Path},
};
use crate::{
    error::ApiError,
    request::{chat::Chat, generate::Generation, sampling::Sampling},
};

/// Most keys of ended samples that are told from unknown ones.
const MOST_ENDED: usize = 65_536;

/// What is known of a key.
pub enum Known {
    /// Its sample's agent is at work.
    Live(Arc<Sample>),
    /// Its sample has ended.
    Ended,
    /// Nothing.
    Unknown,
}

/// What a client calls one of its conversations (`X-Session-ID`). Messages continue a conversation of their session
/// alone, and without a session one without.
#[derive(Debug, Clone)]
pub struct Session(pub String);

/// All samples by their keys.
pub struct Samples {
    dialogue: Arc<Dialogue>,
    /// Whether names of conversations count.
    has_sessions: bool,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    live: HashMap<String, Arc<Sample>>,
    ended: HashSet<String>,
    /// The ended ones in order.
    order: VecDeque<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Samples {
    /// No samples, whose conversations will have these bounds and this template.
    #[must_use]
    pub fn new(dialogue: Dialogue) -> Self {
        Self { dialogue: Arc::new(dialogue), has_sessions: true, keys: Mutex::default() }
    }

    /// The same, for clients that draw the names of their conversations: random numbers that follow from these would
    /// make every run another one.
    #[must_use]
    pub fn without_sessions(self) -> Self {
        Self { has_sessions: false, ..self }
    }

    /// Bounds of every conversation.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.dialogue.limits()
    }

    /// Gives a sample of a group its key. `request` is that of its group, and `prompt` has the messages of its row.
    pub fn open(&self, key: String, index: u32, request: GroupRequest, prompt: Arc<[Said]>) -> Arc<Sample> {
        let sample = Arc::new(Sample { index, request, prompt, record: Mutex::default() });
        lock(&self.keys).live.insert(key, Arc::clone(&sample));
        sample
    }

    /// Takes the key of a sample away.
    pub fn close(&self, key: &str) {
        let mut keys = lock(&self.keys);
        if let Some((key, _)) = keys.live.remove_entry(key) {
            keys.ended.insert(key.clone());
            keys.order.push_back(key);
        }
        if keys.order.len() > MOST_ENDED
            && let Some(oldest) = keys.order.pop_front()
        {
            keys.ended.remove(&oldest);
        }
    }

    /// What is known of a key.
    #[must_use]
    pub fn find(&self, key: &str) -> Known {
        let keys = lock(&self.keys);
        match keys.live.get(key) {
            Some(sample) => Known::Live(Arc::clone(sample)),
            None if keys.ended.contains(key) => Known::Ended,
            None => Known::Unknown,
        }
    }

    /// The turn that a request of a sample asks for. Prompt and values of sampling in `chat` become those of the run.
    ///
    /// # Errors
    /// A request that a run cannot train on, or that has no room.
    pub fn turn(&self, sample: &Arc<Sample>, chat: &mut Chat, session: Option<&Session>) -> Result<Turn, ApiError> {
        let refuse = |field: &str, message: &str| Err(ApiError::field(field, message));
        if chat.prompt.goes_on {
            return refuse("messages", "the last message is the assistant's: in a run, answers are the policy's alone");
        }
        if chat.has_variables {
            return refuse("chat_template_kwargs", "in a run, `chat_template_kwargs` is an option of the run");
        }
        let is_overridden = sample.adopt(&mut chat.sampling)?;
        let session = session.filter(|_| self.has_sessions).map(|Session(name)| name.as_str());
        let turn = sample.begin(&self.dialogue, (&chat.messages, &chat.tools, session), is_overridden)?;
        chat.prompt.ids = Arc::clone(&turn.all);
        chat.prompt.max_tokens = chat.prompt.max_tokens.min(turn.room);
        Ok(turn)
    }

    /// As [`Samples::turn`], of a request with token ids.
    ///
    /// # Errors
    /// A request that a run cannot train on, or that has no room.
    pub fn turn_of_ids(&self, sample: &Arc<Sample>, asked: &mut Generation) -> Result<Turn, ApiError> {
        let is_overridden = sample.adopt(&mut asked.sampling)?;
        let turn = sample.begin_ids(&self.dialogue, &asked.prompt.ids, is_overridden)?;
        asked.prompt.max_tokens = asked.prompt.max_tokens.min(turn.room);
        Ok(turn)
    }
}

/// A sample whose agent is at work.
pub struct Sample {
    index: u32,
    request: GroupRequest,
    /// The messages of its row.
    prompt: Arc<[Said]>,
    record: Mutex<Record>,
}

/// What the agent of a sample has done.
#[derive(Default)]
pub struct Record {
    /// What it has asked, in the order in which the paths had their first answers; when it is over, in an order that
    /// follows from the paths.
    pub paths: Vec<Path>,
    /// The reward that it has given itself.
    pub reward: Option<f64>,
    /// Requests whose values of sampling were replaced by the run's.
    pub overridden: u32,
    /// How long it waited for the policy.
    pub sampled: Duration,
    /// Paths that were begun, by a hash of their prompts.
    opened: HashMap<u64, u64>,
    /// Turns that nobody waited for to the end.
    given_up: u64,
    is_over: bool,
}

impl Sample {
    /// Takes the reward that the agent gives.
    ///
    /// # Errors
    /// When it has one already.
    pub fn reward(&self, reward: f64) -> Result<(), ApiError> {
        let mut record = lock(&self.record);
        if let Some(given) = record.reward {
            let message = format!("this sample has its reward already: {given}");
            return Err(ApiError::new(StatusCode::CONFLICT, message));
        }
        record.reward = Some(reward);
        Ok(())
    }

    /// What the agent has done. Nothing is recorded any more.
    pub fn finish(&self) -> Record {
        let mut record = lock(&self.record);
        let mut done = std::mem::take(&mut *record);
        record.is_over = true;
        done.paths.sort_by_cached_key(Path::order);
        done
    }

    /// Puts the run's values of sampling in the place of a request's. Returns whether these were others.
    fn adopt(&self, asked: &mut Sampling) -> Result<bool, ApiError> {
        if asked.n != 1 {
            let message = "`n` must be 1 in a run: each request has one answer, which is trained on";
            return Err(ApiError::field("n", message));
        }
        if let Some(grammar) = &asked.grammar {
            // What is wrong with a schema lies in `tools`, but they force nothing: their client may need them.
            let field = if grammar.field == "tools" { "tool_choice" } else { grammar.field };
            let message = format!("an answer that `{field}` forces is not the policy's own: leave it out in a run");
            return Err(ApiError::field(field, message));
        }
        let run = &self.request.sampling;
        let own = &asked.params;
        let is_other = |name: &&str| match *name {
            "temperature" => own.temperature != run.temperature,
            "top_k" => own.top_k != run.top_k,
            "top_p" => own.top_p != run.top_p,
            "min_p" => own.min_p != run.min_p,
            "repetition_penalty" => own.repetition_penalty != run.repetition_penalty,
            "presence_penalty" => own.presence_penalty != run.presence_penalty,
            "frequency_penalty" => own.frequency_penalty != run.frequency_penalty,
            _ => own.ignore_eos != run.ignore_eos,
        };
        let is_other = asked.named.iter().any(is_other) || asked.seed.is_some();
        let stop = if asked.params.stop.is_empty() { run.stop.clone() } else { asked.params.stop.clone() };
        (asked.params, asked.seed) = (SamplingParams { stop, ..(**run).clone() }, None);
        Ok(is_other)
    }

    fn begin(
        self: &Arc<Self>,
        dialogue: &Arc<Dialogue>,
        (messages, tools, session): (&[Value], &[Value], Option<&str>),
        is_overridden: bool,
    ) -> Result<Turn, ApiError> {
        let refuse = |error: &dyn ToString| ApiError::field("messages", error.to_string());
        let said: Vec<Said> = messages.iter().map(Said::of).collect();
        let mut record = lock(&self.record);
        if record.is_over {
            return Err(ApiError::ended());
        }
        let asked = Asked { said: &said, tools, session };
        // Of equal ones the first in an order that does not depend on time.
        let known = record.paths.iter().enumerate().filter(|(_, path)| path.is_continued_by(&asked));
        let at = known.max_by_key(|(_, path)| (path.said.len(), Reverse(path.order()))).map(|(at, _)| at);
        let (path, next, room) = match at {
            Some(at) => {
                let mut path = record.paths[at].clone();
                let rest = messages[path.said.len()..].to_vec();
                match path.conversation.went_on(dialogue, rest).map_err(|error| refuse(&error))? {
                    Onward::Sample { given, room } => {
                        record.paths[at].state = None;
                        (path, given, room)
                    }
                    Onward::Over(_) => return Err(too_long("messages", dialogue)),
                }
            }
            None => {
                let forks = record.paths.iter().filter_map(|path| Some((path.common(&asked)?, path)));
                let fork = forks.max_by_key(|(kept, path)| (*kept, Reverse(path.order())));
                let fork = fork.and_then(|(kept, path)| Some((kept, path.forked(dialogue, kept)?)));
                let is_branch = fork.is_some();
                let (conversation, room) = match fork {
                    Some((kept, mut conversation)) => {
                        let onward = conversation.went_on(dialogue, messages[kept..].to_vec());
                        let Onward::Sample { room, .. } = onward.map_err(|error| refuse(&error))? else {
                            return Err(too_long("messages", dialogue));
                        };
                        (conversation, room)
                    }
                    None => {
                        let ids = dialogue.opening(messages, tools).map_err(|error| refuse(&error))?;
                        let conversation = dialogue.begin(messages.to_vec(), tools, ids.into());
                        let room = conversation.room();
                        (conversation, room)
                    }
                };
                if room == 0 {
                    return Err(too_long("messages", dialogue));
                }
                let is_of_row = said == *self.prompt;
                let path = self.path(&mut record, conversation, (tools, session), is_of_row);
                (Path { is_branch, ..path }, Vec::new(), room)
            }
        };
        Ok(self.turn(dialogue, &mut record, (at, Path { said, ..path }), (next, room), is_overridden))
    }

    fn begin_ids(
        self: &Arc<Self>,
        dialogue: &Arc<Dialogue>,
        ids: &[u32],
        is_overridden: bool,
    ) -> Result<Turn, ApiError> {
        let mut record = lock(&self.record);
        if record.is_over {
            return Err(ApiError::ended());
        }
        let rest_after = |path: &Path| {
            let rest = ids.strip_prefix(&path.conversation.prompt_ids()[..])?;
            rest.strip_prefix(path.conversation.episode().token_ids()).filter(|rest| !rest.is_empty())
        };
        let known = record.paths.iter().enumerate().filter(|(_, path)| !path.is_busy);
        let known = known.filter_map(|(at, path)| Some((at, rest_after(path)?.to_vec())));
        let (at, path, next, room) = match known.min_by_key(|(_, rest)| rest.len()) {
            Some((at, rest)) => {
                let mut path = record.paths[at].clone();
                let onward = path.conversation.went_on_with(dialogue, &rest);
                match onward.map_err(|error| ApiError::field("token_ids", error.to_string()))? {
                    Onward::Sample { given, room } => {
                        record.paths[at].state = None;
                        (Some(at), path, given, room)
                    }
                    Onward::Over(_) => return Err(too_long("token_ids", dialogue)),
                }
            }
            None => {
                let conversation = dialogue.begin(Vec::new(), &[], ids.into());
                let room = conversation.room();
                if room == 0 {
                    return Err(too_long("token_ids", dialogue));
                }
                let is_of_row = *ids == *self.request.prompt_ids;
                // Ids that begin as another path are its history, told in another way.
                let is_branch = record.paths.iter().any(|path| ids.starts_with(path.conversation.prompt_ids()));
                let path = self.path(&mut record, conversation, (&[], None), is_of_row);
                (None, Path { is_branch, ..path }, Vec::new(), room)
            }
        };
        let path = Path { is_of_ids: true, ..path };
        Ok(self.turn(dialogue, &mut record, (at, path), (next, room), is_overridden))
    }

    /// A path that begins. That of the row's own prompt has the random numbers of the run. Others have numbers that
    /// follow from their prompts and sessions, so that it does not matter which of them begins first.
    fn path(
        &self,
        record: &mut Record,
        conversation: Conversation,
        (tools, session): (&[Value], Option<&str>),
        is_of_row: bool,
    ) -> Path {
        let begin = conversation.prompt_ids().iter().chain(conversation.episode().token_ids());
        let hash = |values: &mut dyn Iterator<Item = u64>| rng::hash(&values.collect::<Vec<_>>());
        let ids = hash(&mut begin.map(|&id| u64::from(id)));
        let prompt = match session {
            Some(session) => hash(&mut [ids].into_iter().chain(session.bytes().map(u64::from))),
            None => ids,
        };
        let known = record.opened.entry(prompt).or_default();
        let (number, is_first) = (*known, *known == 0);
        *known += 1;
        let run = self.request.sampling.seed;
        // Equal requests of one sample are to have answers of their own.
        let seed = if is_of_row && is_first && session.is_none() { run } else { rng::hash(&[run, prompt, number]) };
        Path {
            conversation,
            calls: 0,
            recomputed: 0,
            said: Vec::new(),
            tools: tools.to_vec(),
            session: session.map(str::to_owned),
            state: None,
            seed,
            is_of_row,
            is_branch: false,
            is_of_ids: false,
            is_busy: false,
        }
    }

    fn turn(
        self: &Arc<Self>,
        dialogue: &Arc<Dialogue>,
        record: &mut Record,
        (at, path): (Option<usize>, Path),
        (next, room): (Vec<u32>, usize),
        is_overridden: bool,
    ) -> Turn {
        if let Some(at) = at {
            record.paths[at].is_busy = true;
        }
        record.overridden += u32::from(is_overridden);
        let all = [&path.conversation.prompt_ids()[..], path.conversation.episode().token_ids()].concat();
        let recomputed = at.is_some() && path.state.as_ref().is_none_or(|state| !state.is_held());
        Turn {
            has_state: path.state.is_some(),
            sample: Arc::clone(self),
            dialogue: Arc::clone(dialogue),
            at,
            path: Path { is_busy: false, recomputed: path.recomputed + u32::from(recomputed), ..path },
            next: next.into(),
            all: all.into(),
            room: u32::try_from(room).unwrap_or(u32::MAX),
            begun: Instant::now(),
            is_recorded: false,
        }
    }
}

fn too_long(field: &str, dialogue: &Dialogue) -> ApiError {
    let limits = dialogue.limits();
    let message = format!(
        "this run's maximum context length is {} tokens (`max_model_len`), and at most {} of them after the first \
         prompt (`max_completion_length`); the request leaves no room for an answer",
        limits.max_model_len, limits.max_completion_length
    );
    ApiError::too_long(field, message)
}

/// A turn that is being sampled. If it is dropped before its end, the path is as it was before.
pub struct Turn {
    sample: Arc<Sample>,
    dialogue: Arc<Dialogue>,
    /// The path that it continues; none for a new one.
    at: Option<usize>,
    /// The path with all that was given.
    path: Path,
    /// What comes behind the state of the path, where it goes on from one.
    next: Arc<[u32]>,
    all: Arc<[u32]>,
    room: u32,
    /// Whether it goes on from a state.
    has_state: bool,
    begun: Instant,
    is_recorded: bool,
}

impl Turn {
    /// What it goes on from. Nobody else has it, so that its keys and values are free when they have been used.
    #[must_use]
    pub fn take_state(&mut self) -> Option<State> {
        self.path.state.take()
    }

    /// The request of a client as one of the run.
    #[must_use]
    pub fn group(&self, asked: GroupRequest) -> GroupRequest {
        let run = &self.sample.request;
        let sampling = SamplingParams { seed: self.path.seed, ..(*asked.sampling).clone() };
        GroupRequest {
            prompt_id: run.prompt_id,
            epoch: run.epoch,
            prompt_ids: Arc::clone(if self.has_state { &self.next } else { &self.all }),
            samples: [self.sample.index].into(),
            sampling: Arc::new(sampling),
            ..asked
        }
    }

    /// Records the turn as it was sampled, and as the client is told of it.
    pub fn ended(&mut self, sequence: &FinishedSequence, state: Option<State>, text: &str, calls: &[Call]) {
        let FinishedSequence { token_ids, logprobs, versions, finish_reason, .. } = sequence;
        if *finish_reason == FinishReason::Aborted {
            return;
        }
        let path = &mut self.path;
        match path.conversation.turn_ended(&self.dialogue, token_ids, logprobs, versions, *finish_reason) {
            Ok(After::Calls(calls, _)) => path.calls += calls.len() as u32,
            Ok(After::Over(_)) => {}
            Err(error) => {
                tracing::warn!("a turn of an agent is not recorded: {error}");
                return;
            }
        }
        path.said.push(Said::turn(text, calls));
        let path = Path { state, ..path.clone() };
        let mut record = lock(&self.sample.record);
        self.is_recorded = true;
        if record.is_over {
            return;
        }
        record.sampled += self.begun.elapsed();
        match self.at {
            Some(at) => record.paths[at] = path,
            None => record.paths.push(path),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut record = lock(&self.sample.record);
        if let (Some(at), false, false) = (self.at, self.is_recorded, record.is_over) {
            let number = record.given_up;
            let path = &mut record.paths[at];
            path.is_busy = false;
            path.state = self.path.state.take();
            if path.state.is_none() {
                // The place in the random numbers was that of the state, so the next turn has others.
                path.seed = rng::hash(&[path.seed, number]);
                record.given_up += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
