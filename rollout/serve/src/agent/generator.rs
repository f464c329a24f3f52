//! A generator whose completions are the conversations of agents, around the engine of a run.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use crossbeam::channel::{Receiver, Sender, unbounded};
use rollout::{
    conversation::{Conversation, Limits},
    data::PromptRow,
    engine::{
        EngineError, FinishedSequence, GivenLogprob, GroupRequest, LoadedAdapter, Output, Request, SwapReport,
        WeightSource,
    },
    generate::{Conversed, Generate, Next, PairGenerator, Work},
    turns::{
        conversed,
        prompts::{self, RoomRemark},
        sampled,
    },
};
use shared::{EpisodeEnd, Exchange, FinishReason, PolicyVersion, RewardOutcome, config::RAISE_MAX_MODEL_LEN};
use tokio::sync::Notify;

use super::{Outcome, Place, Said, Sample, Samples, Starter, path::Path, verdict::judged};
use crate::desk::{Desk, Serve};

/// A generator inside a run has no adapters beside the policy.
impl Serve for dyn PairGenerator {
    fn begin_with(&mut self, request: Request, _: Option<LoadedAdapter>) -> Result<(), EngineError> {
        self.begin(request)
    }

    fn score(&mut self, _: &[u32], _: u32, _: Option<&LoadedAdapter>) -> Result<Vec<GivenLogprob>, EngineError> {
        let message = "log-probs of a prompt are not computed inside a run".into();
        Err(EngineError::Request { prompt: 0, message })
    }
}

/// A generator of the conversations of agents.
pub struct Agents {
    inner: Box<dyn PairGenerator>,
    desk: Desk,
    samples: Arc<Samples>,
    starter: Box<dyn Starter>,
    /// Most agents at once.
    most: usize,
    ends: Receiver<(Place, Outcome)>,
    tell: Sender<(Place, Outcome)>,
    /// The groups that are not complete, by numbers of their own.
    groups: HashMap<u64, Begun>,
    live: HashMap<Place, Live>,
    /// Samples whose agents have not been started.
    queue: VecDeque<Place>,
    /// Whether agents may be started.
    admits: bool,
    outputs: Vec<Output>,
    /// Ended conversations that have not been taken.
    ended: HashMap<(u64, u32), Conversed>,
    next: u64,
    counts: Counts,
    server: Server,
}

/// What is told at the end of a run.
#[derive(Default)]
struct Counts {
    overridden: u64,
    branches: u64,
    /// On prompts that take the room of completions.
    room: RoomRemark,
}

/// The server of the endpoint, which ends with the generator.
pub struct Server {
    /// Asks it to end.
    pub over: Arc<Notify>,
    /// Its thread.
    pub thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A group whose agents are at work.
struct Begun {
    request: GroupRequest,
    row: Arc<str>,
    /// The messages of the row.
    prompt: Arc<[Said]>,
    /// Samples that have not ended.
    live: usize,
    /// The token that the prompts of its conversations begin with.
    first: Option<u32>,
}

/// A sample whose agent is at work.
struct Live {
    key: String,
    sample: Arc<Sample>,
    begun: Instant,
    /// Ends it.
    _running: Box<dyn Send>,
}

impl Agents {
    /// A generator of the conversations of at most `most` agents at once, which reach `desk` by `server`.
    #[must_use]
    pub fn new(
        inner: Box<dyn PairGenerator>,
        (desk, samples, server): (Desk, Arc<Samples>, Server),
        starter: Box<dyn Starter>,
        most: usize,
    ) -> Self {
        let (tell, ends) = unbounded();
        Self {
            inner,
            desk,
            samples,
            starter,
            most,
            ends,
            tell,
            groups: HashMap::new(),
            live: HashMap::new(),
            queue: VecDeque::new(),
            admits: true,
            outputs: Vec::new(),
            ended: HashMap::new(),
            next: 0,
            counts: Counts::default(),
            server,
        }
    }

    fn open(&mut self, request: GroupRequest, row: &PromptRow) {
        let number = self.next;
        self.next += 1;
        self.queue.extend(request.samples.iter().map(|&index| (number, index)));
        let prompt = row.messages.iter().flat_map(|messages| messages.iter()).map(Said::of).collect();
        let row = serde_json::Value::from(prompts::environment_row(row)).to_string().into();
        self.groups.insert(number, Begun { row, prompt, live: request.samples.len(), first: None, request });
    }

    fn can_start(&self) -> bool {
        self.admits && self.live.len() < self.most && !self.queue.is_empty()
    }

    /// Starts agents as long as there is room for them.
    fn start(&mut self) {
        while self.can_start()
            && let Some(place) = self.queue.pop_front()
        {
            let Some(group) = self.groups.get(&place.0) else { continue };
            // An agent asks as soon as it is started. One that cannot be started has the empty key, which none may use.
            let random = shared_http::random();
            let key = random.as_ref().map_or_else(|_| String::new(), String::clone);
            let prompt = Arc::clone(&group.prompt);
            let sample = self.samples.open(key.clone(), place.1, group.request.clone(), prompt);
            let (row, tell) = (Arc::clone(&group.row), self.tell.clone());
            let started = random.and_then(|key| self.starter.start(key, row, place, tell));
            let running = started.unwrap_or_else(|error| {
                // The outcome comes as that of an agent does.
                let _ = self.tell.send((place, Outcome::Failed(format!("the agent cannot be started: {error}"))));
                Box::new(())
            });
            self.live.insert(place, Live { key, sample, begun: Instant::now(), _running: running });
        }
    }

    /// An agent has ended.
    fn hear(&mut self, place: Place, outcome: Outcome) {
        let Some((conversed, is_whole)) = self.take_out(place, outcome) else { return };
        let sequence = sampled(&conversed);
        if !is_whole {
            tracing::warn!("{}", conversed.exchange.failure.as_deref().unwrap_or("an agent failed"));
        }
        self.ended.insert((conversed.tag, conversed.sample), conversed);
        self.outputs.push(Output::Ended { sequence, state: None });
    }

    /// What a sample has come to, and whether it has a reward.
    fn take_out(&mut self, place: Place, outcome: Outcome) -> Option<(Conversed, bool)> {
        let live = self.live.remove(&place)?;
        self.samples.close(&live.key);
        let record = live.sample.finish();
        let group = self.groups.get_mut(&place.0)?;
        let tag = group.request.tag;
        self.counts.add(record.overridden, record.paths.len());
        let reward = judged(record.reward, outcome);
        let (overridden, seconds) = (Some(record.overridden), live.begun.elapsed());
        let waited_seconds = seconds.saturating_sub(record.sampled).as_secs_f64();
        let sum = |of: fn(&Path) -> u32| record.paths.iter().map(of).sum::<u32>();
        let (calls, recomputed) = (sum(|path| path.calls), sum(|path| path.recomputed));
        let of_row = &group.request.prompt_ids;
        let written = record.paths.iter().filter_map(|path| path.written(of_row)).max();
        self.counts.look_at_room(written, self.samples.limits());
        let mut conversations: Vec<Conversation> = record.paths.into_iter().map(|path| path.conversation).collect();
        let first = |one: &Conversation| one.prompt_ids().first().copied();
        let is_shared = conversations.iter().all(|one| begins_alike(&mut group.first, first(one)));
        conversations.retain(|_| is_shared);
        let failed = |reason: String| Err((EpisodeEnd::EnvironmentFailed, reason));
        let reward = match why_unusable(&conversations, self.samples.limits().max_model_len) {
            _ if !is_shared => failed("the prompts of the agents of one row do not begin with the same token".into()),
            Some(reason) => reward.and(failed(reason)),
            None => reward,
        };
        group.live -= 1;
        if group.live == 0 {
            self.groups.remove(&place.0);
        }
        let end_of_all = end_of(&conversations);
        let (end, rewards, failure) = match reward {
            Ok(reward) => (end_of_all, RewardOutcome::Score(reward), None),
            Err((end, reason)) => (end, RewardOutcome::Failed(reason.clone()), Some(reason)),
        };
        let is_whole = failure.is_none();
        let exchange = |blank| Exchange {
            failure,
            calls,
            recomputed,
            rewards: vec![rewards],
            waited_seconds,
            seconds: seconds.as_secs_f64(),
            overridden,
            ..blank
        };
        Some((conversed((tag, place.1), conversations, end, self.inner.version(), exchange), is_whole))
    }
}

/// Whether a prompt begins with the token that those of its group begin with. The first one sets it; an agent without a
/// prompt sets none for the others.
fn begins_alike(of_group: &mut Option<u32>, own: Option<u32>) -> bool {
    own.is_none_or(|own| *of_group.get_or_insert(own) == own)
}

impl Counts {
    fn add(&mut self, overridden: u32, paths: usize) {
        if overridden > 0 && self.overridden == 0 {
            tracing::warn!("an agent asked for values of sampling of its own, and got those of the run");
        }
        self.overridden += u64::from(overridden);
        self.branches += paths.saturating_sub(1) as u64;
    }

    /// Tells, once, of a prompt that takes the room of completions. `written` are the tokens of the longest prompt that
    /// the agent has written.
    fn look_at_room(&mut self, written: Option<usize>, limits: Limits) {
        let remark = written.and_then(|tokens| crowded(tokens, limits));
        if let Some(remark) = self.room.first(remark) {
            tracing::warn!("{remark}");
        }
    }
}

/// A remark on a prompt of so many tokens, where it leaves less room than a completion may take.
fn crowded(prompt: usize, limits: Limits) -> Option<String> {
    let rest = prompts::little_room(prompt, limits, "let the agent ask with less")?;
    Some(format!("an agent asked with a prompt of {prompt} tokens. {rest}"))
}

/// Why the conversations of a sample, which has `most` tokens at most, cannot be trained on.
fn why_unusable(conversations: &[Conversation], most: usize) -> Option<String> {
    if conversations.is_empty() {
        return Some("the agent had no answer of the policy".into());
    }
    let tokens = |one: &Conversation| one.prompt_ids().len() + one.episode().token_ids().len();
    let all: usize = conversations.iter().map(tokens).sum();
    (conversations.len() > 1 && all > most).then(|| {
        format!(
            "the {} conversations of the agent have {all} tokens together, more than the learner takes at once: \
             {RAISE_MAX_MODEL_LEN} ({most})",
            conversations.len()
        )
    })
}

/// The end of a sample: that of a conversation which did not end by itself, if there is one.
fn end_of(conversations: &[Conversation]) -> EpisodeEnd {
    let mut ends = conversations.iter().filter_map(Conversation::end);
    ends.find(|end| *end != EpisodeEnd::Stop).unwrap_or(EpisodeEnd::Stop)
}

impl Generate for Agents {
    fn version(&self) -> PolicyVersion {
        self.inner.version()
    }

    /// Agents think and wait too, so there may be more of them than sequences.
    fn capacity(&self) -> usize {
        self.most
    }

    /// Agents at work: new weights under `drain` wait for all of them.
    fn running(&self) -> usize {
        self.live.len()
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Refused: an agent needs its row.
    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        let message = "completions are those of agents here, which need the row of their prompt".into();
        Err(EngineError::Request { prompt: request.group.prompt_id.0, message })
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        self.start();
        // What the desk says of its end is for loops of its own.
        let fed = self.desk.feed(&mut *self.inner).map(|next: Next<()>| next == Next::Advance);
        if fed.unwrap_or(false) {
            let begun = Instant::now();
            let outputs = self.inner.advance()?;
            let _ = self.desk.take(&mut *self.inner, outputs, begun);
        }
        let ends: Vec<(Place, Outcome)> = self.ends.try_iter().collect();
        ends.into_iter().for_each(|(place, outcome)| self.hear(place, outcome));
        Ok(mem::take(&mut self.outputs))
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        let numbers = self.groups.iter().filter(|(_, group)| group.request.tag == tag).map(|(number, _)| *number);
        let numbers: Vec<u64> = numbers.collect();
        let is_it = |place: &Place| numbers.contains(&place.0) && sample.is_none_or(|index| index == place.1);
        let given_up = || Outcome::Failed("the sampler gave it up".into());
        let (queued, queue): (Vec<Place>, VecDeque<Place>) = {
            let all = mem::take(&mut self.queue);
            let (queued, queue): (VecDeque<Place>, VecDeque<Place>) = all.into_iter().partition(is_it);
            (queued.into(), queue)
        };
        self.queue = queue;
        let mut cancelled = Vec::new();
        for place in queued {
            let Some(group) = self.groups.get_mut(&place.0) else { continue };
            let tag = group.request.tag;
            group.live -= 1;
            if group.live == 0 {
                self.groups.remove(&place.0);
            }
            let version = self.inner.version();
            let nothing = conversed((tag, place.1), Vec::new(), EpisodeEnd::Aborted, version, |blank| blank);
            cancelled.push(sampled(&nothing));
        }
        let mut places: Vec<Place> = self.live.keys().copied().filter(is_it).collect();
        places.sort_unstable();
        for place in places {
            cancelled.extend(self.take_out(place, given_up()).map(|(conversed, _)| sampled(&conversed)));
        }
        let aborted = |sequence| FinishedSequence { finish_reason: FinishReason::Aborted, ..sequence };
        cancelled.into_iter().map(aborted).collect()
    }

    fn waits(&self) -> bool {
        let has_heard = !self.desk.is_quiet() || !self.ends.is_empty() || !self.outputs.is_empty();
        !self.live.is_empty() && !has_heard && !self.can_start() && self.inner.is_idle()
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        self.inner.begin_swap(weights)
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        self.inner.try_swap()
    }

    /// Agents wait to be started; requests of those at work do not, or these would never end.
    fn set_admission(&mut self, admit: bool) {
        self.admits = admit;
    }
}

impl PairGenerator for Agents {
    fn begin_row(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        self.open(request.group, row);
        Ok(())
    }

    fn begin_rest(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        self.begin_row(request, row)
    }

    fn take_conversation(&mut self, sequence: &FinishedSequence) -> Option<Conversed> {
        self.ended.remove(&(sequence.tag, sequence.sample))
    }

    fn close(&mut self) {
        let Counts { overridden, branches, .. } = self.counts;
        if overridden + branches > 0 {
            tracing::info!(
                "agents: {overridden} requests with values of sampling of their own, which were overridden; {branches} \
                 conversations beside the first ones of their samples"
            );
        }
        self.server.over.notify_one();
        self.inner.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_that_takes_the_room_of_completions_is_told_of_with_the_options() {
        let limits = Limits { max_completion_length: 40, max_model_len: 100, max_tool_calling_iterations: None };
        assert_eq!(crowded(60, limits), None);
        let told = crowded(61, limits).unwrap();
        for words in ["of 61 tokens", "`max_model_len` (100) leaves 39", "`max_completion_length` (40)"] {
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn a_silent_agent_says_nothing_of_how_prompts_begin() {
        let mut of_group = None;
        let alike = [None, Some(7), None, Some(8), Some(7)].map(|own| begins_alike(&mut of_group, own));
        assert_eq!((alike, of_group), ([true, true, true, false, true], Some(7)));
    }
}
