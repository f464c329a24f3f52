//! A generator whose completions are conversations, around one whose completions are turns.

mod rating;
mod stragglers;

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
    time::Instant,
};

use rollout_environments::{Event, Opening, Sample, Step, Turn};
use serde_json::{Map, Value};
use shared::{EpisodeEnd, FinishReason, Placed, PolicyVersion, PromptId, RewardOutcome, SamplingParams, Segment};

use super::{
    Hosts, Live, Patience, Rewards,
    live::{At, end_of_failure},
    patience::{Pace, Verdict},
    prompts::{self, RoomRemark},
};
use crate::{
    conversation::{After, Dialogue, Onward},
    data::{Beginning, PromptRow},
    engine::{EngineError, FinishedSequence, GroupRequest, Output, Request, State, SwapReport, WeightSource},
    generate::{Conversed, Generate, PairGenerator},
};

/// A generator of conversations.
pub struct Conversing {
    inner: Box<dyn PairGenerator>,
    dialogue: Dialogue,
    hosts: Box<dyn Hosts>,
    rewards: Rewards,
    patience: Patience,
    /// Conversations that the generator holds states of.
    kept_states: usize,
    /// The groups that are not complete, by numbers of their own. A tag may come again after its group, and an
    /// environment may answer late.
    groups: HashMap<u64, Begun>,
    /// The conversations that go on.
    live: HashMap<Sample, Live>,
    /// First turns that the generator has not been asked for.
    first_turns: VecDeque<FirstTurns>,
    /// Whether first turns may be asked for.
    admits: bool,
    /// Ended conversations that have not been told.
    outputs: Vec<Output>,
    /// Ended conversations that have not been taken.
    ended: HashMap<(u64, u32), Conversed>,
    next: u64,
    /// On first words of an environment that take the room of completions.
    room_remark: RoomRemark,
}

/// A group whose conversations go on.
struct Begun {
    request: GroupRequest,
    prompt: PromptRow,
    /// What environments are opened with.
    row: Arc<Map<String, Value>>,
    beginning: Beginning,
    /// Conversations that have not ended.
    live: usize,
    /// Those whose environment is not open.
    unopened: usize,
    /// Samples by their prompts: environments mostly say the same to all samples of a row, which then share a prefill.
    opened: Vec<FirstTurns>,
    pace: Pace,
    /// Groups of its prompt that were dropped for their stragglers before it.
    dropped: u32,
    /// Conversations that have ended and are not told of as long as the group may be dropped.
    held_back: Vec<(FinishedSequence, Conversed)>,
}

/// Samples of a group with the same prompt.
struct FirstTurns {
    group: u64,
    opening: Option<String>,
    prompt_ids: Arc<[u32]>,
    samples: Vec<u32>,
}

impl Conversing {
    /// A generator of conversations in a dialogue, whose turns `inner` samples.
    #[must_use]
    pub fn new(inner: Box<dyn PairGenerator>, dialogue: Dialogue, (hosts, rewards): (Box<dyn Hosts>, Rewards)) -> Self {
        Self {
            inner,
            dialogue,
            hosts,
            rewards,
            patience: Patience::default(),
            kept_states: 0,
            groups: HashMap::new(),
            live: HashMap::new(),
            first_turns: VecDeque::new(),
            admits: true,
            outputs: Vec::new(),
            ended: HashMap::new(),
            next: 0,
            room_remark: RoomRemark::default(),
        }
    }

    /// With bounds of time.
    #[must_use]
    pub fn with_patience(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    /// With so many states that the generator holds: as many conversations are begun beyond its slots.
    #[must_use]
    pub fn with_kept_states(self, kept_states: usize) -> Self {
        Self { kept_states, ..self }
    }

    /// Opens an environment for each sample of a request. So many groups of its prompt were dropped before.
    fn open(&mut self, request: GroupRequest, prompt: PromptRow, dropped: u32) {
        let number = self.next;
        self.next += 1;
        let samples = request.samples.clone();
        self.groups.insert(
            number,
            Begun {
                row: Arc::new(prompts::environment_row(&prompt)),
                beginning: prompt.beginning.clone().unwrap_or_default(),
                prompt,
                live: samples.len(),
                unopened: samples.len(),
                opened: Vec::new(),
                pace: Pace::of(samples.len()),
                dropped,
                held_back: Vec::new(),
                request,
            },
        );
        for &index in samples.iter() {
            let sample = Sample { tag: number, index };
            self.live.insert(sample, Live::open());
            self.hosts.open(sample, self.groups[&number].row.clone());
        }
    }

    /// Takes what environments have said, and asks for the turns that may begin.
    fn listen(&mut self) -> Result<(), EngineError> {
        let events: Vec<(Sample, Event)> = self.hosts.events().try_iter().collect();
        for (sample, event) in &events {
            self.hear(*sample, event)?;
        }
        self.look_at_the_time();
        self.begin_first_turns()
    }

    fn hear(&mut self, sample: Sample, event: &Event) -> Result<(), EngineError> {
        // A conversation that was given up has no answer to wait for.
        let Some(live) = self.live.get(&sample) else { return Ok(()) };
        match (event, live.at) {
            (Event::Queued, At::Opening) => self.queued(sample),
            (Event::Queued, _) => {}
            (Event::Opened(opening), At::Opening) => self.opened(sample, opening),
            (Event::Stepped(step), At::Stepping) => return self.stepped(sample, step),
            (Event::Rated(rating), At::Rating(end)) => {
                self.live.get_mut(&sample).expect("it was just looked at").rated(rating);
                self.ask_for_reward(sample, end);
            }
            (Event::Scored(reward), At::Scoring(end)) => self.scored(sample, end, *reward),
            (Event::Failed(failure), _) => {
                tracing::warn!("{failure}");
                failure.words().iter().for_each(|line| tracing::warn!("  {line}"));
                self.give_up(sample, end_of_failure(failure), failure.to_string());
            }
            (Event::Opened(_) | Event::Stepped(_) | Event::Rated(_) | Event::Scored(_), _) => {
                self.give_up(sample, EpisodeEnd::EnvironmentFailed, "the environment answered out of turn".into());
            }
        }
        Ok(())
    }

    /// The environment of a sample waits for a place, perhaps for one that another sample of its group has: the first
    /// turns of the others begin without it.
    fn queued(&mut self, sample: Sample) {
        let Some(live) = self.live.get_mut(&sample).filter(|live| !live.is_queued) else { return };
        live.is_queued = true;
        self.no_longer_unopened(sample.tag);
    }

    /// The environment of a sample is open. With the last one of a group, its first turns may begin.
    fn opened(&mut self, sample: Sample, opening: &Opening) {
        let Some(group) = self.groups.get(&sample.tag) else { return };
        let messages = prompts::opened(&group.beginning.messages, opening.text.as_deref());
        let known = group.opened.iter().find(|known| known.opening == opening.text);
        let prompt_ids = match known {
            Some(known) => Ok(known.prompt_ids.clone()),
            None => self
                .dialogue
                .opening(&messages, &group.beginning.tools)
                .map(Arc::from)
                .map_err(|error| error.to_string()),
        };
        let prompt_ids = match prompt_ids {
            Ok(ids) => ids,
            Err(reason) => return self.give_up(sample, EpisodeEnd::EnvironmentFailed, reason),
        };
        let (length, limits) = (prompt_ids.len(), self.dialogue.limits());
        if let Some(reason) = prompts::without_room(length, limits) {
            tracing::warn!("{reason}");
            return self.give_up(sample, EpisodeEnd::EnvironmentFailed, reason);
        }
        let remark = prompts::crowded(group.prompt.prompt_ids.len(), length, limits);
        if let Some(remark) = self.room_remark.first(remark) {
            tracing::warn!("{remark}");
        }
        let conversation = self.dialogue.begin(messages, &group.beginning.tools, prompt_ids.clone());
        let live = self.live.get_mut(&sample).expect("it is heard of live conversations alone");
        live.go(At::Opened);
        live.conversation = Some(conversation);
        live.opening.clone_from(&opening.text);
        let group = self.groups.get_mut(&sample.tag).expect("it was just looked at");
        if live.is_queued {
            let (opening, samples) = (opening.text.clone(), vec![sample.index]);
            self.first_turns.push_back(FirstTurns { group: sample.tag, opening, prompt_ids, samples });
            return;
        }
        match group.opened.iter_mut().find(|known| known.opening == opening.text) {
            Some(known) => known.samples.push(sample.index),
            None => group.opened.push(FirstTurns {
                group: sample.tag,
                opening: opening.text.clone(),
                prompt_ids,
                samples: vec![sample.index],
            }),
        }
        self.no_longer_unopened(sample.tag);
    }

    /// One environment less is awaited.
    fn no_longer_unopened(&mut self, number: u64) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        group.unopened -= 1;
        if group.unopened == 0 {
            let mut opened = mem::take(&mut group.opened);
            opened.iter_mut().for_each(|turns| turns.samples.sort_unstable());
            opened.sort_unstable_by_key(|turns| turns.samples.first().copied());
            self.first_turns.extend(opened);
        }
    }

    /// Whether there is room for the first turn of a conversation: a slot, or a place among those whose states are
    /// held. The one that begins has the longest way to go: begun early, it waits for its tools beside the turns of
    /// others, and not at the end beside empty slots.
    fn has_room(&self) -> bool {
        let slots = self.inner.capacity();
        self.inner.running() + self.inner.waiting() < slots || self.count(At::has_state) < slots + self.kept_states
    }

    /// Asks for first turns as long as the generator has room, and may begin any.
    fn begin_first_turns(&mut self) -> Result<(), EngineError> {
        while self.admits
            && !self.first_turns.is_empty()
            && self.has_room()
            && let Some(turns) = self.first_turns.pop_front()
        {
            let FirstTurns { group: tag, prompt_ids, mut samples, .. } = turns;
            samples.retain(|&index| self.live.contains_key(&Sample { tag, index }));
            let Some(group) = self.groups.get(&tag).filter(|_| !samples.is_empty()) else { continue };
            for &index in &samples {
                if let Some(live) = self.live.get_mut(&Sample { tag, index }) {
                    live.go(At::Sampling);
                }
            }
            let samples: Arc<[u32]> = samples.into();
            let group = GroupRequest { tag, prompt_ids, samples: Arc::clone(&samples), ..group.request.clone() };
            match self.inner.begin(Request { keep: true, ..group.into() }) {
                // With the environment's first words, the prompt is one that the engine refuses.
                Err(EngineError::Request { message, .. }) => {
                    for &index in samples.iter() {
                        self.give_up(Sample { tag, index }, EpisodeEnd::EnvironmentFailed, message.clone());
                    }
                }
                begun => begun?,
            }
        }
        Ok(())
    }

    /// A turn has ended: its calls are run, or the conversation is over.
    fn turn_ended(&mut self, sequence: &FinishedSequence, state: Option<State>) {
        let sample = Sample { tag: sequence.tag, index: sequence.sample };
        let Some(live) = self.live.get_mut(&sample) else { return };
        let FinishedSequence { token_ids, logprobs, versions, finish_reason, .. } = sequence;
        live.turn_ended();
        let Some(conversation) = &mut live.conversation else { return };
        if *finish_reason == FinishReason::Aborted {
            return self.give_up(sample, EpisodeEnd::Aborted, "the sampler gave it up".into());
        }
        match conversation.turn_ended(&self.dialogue, token_ids, logprobs, versions, *finish_reason) {
            Ok(After::Calls(calls, text)) => {
                live.called(calls.len());
                live.state = state;
                live.go(At::Stepping);
                self.hosts.step(sample, Turn { calls, text });
            }
            Ok(After::Over(end)) => self.over(sample, end),
            Err(error) => self.give_up(sample, EpisodeEnd::EnvironmentFailed, error.to_string()),
        }
    }

    /// Tools have answered: the next turn is asked for, or the conversation is over.
    fn stepped(&mut self, sample: Sample, step: &Step) -> Result<(), EngineError> {
        let Some(live) = self.live.get_mut(&sample) else { return Ok(()) };
        live.stepped(step);
        let state = live.state.take();
        let Some(conversation) = &mut live.conversation else { return Ok(()) };
        let onward = match conversation.replied(&self.dialogue, &step.replies) {
            Ok(onward) => onward,
            Err(error) => {
                self.give_up(sample, EpisodeEnd::EnvironmentFailed, error.to_string());
                return Ok(());
            }
        };
        match onward {
            Onward::Over(end) => self.over(sample, end),
            Onward::Sample { .. } if step.done => self.over(sample, EpisodeEnd::Stop),
            Onward::Sample { given, room } => {
                live.go(At::Sampling);
                live.recomputed += u32::from(state.as_ref().is_none_or(|state| !state.is_held()));
                let group = &self.groups[&sample.tag].request;
                let sampling = SamplingParams { max_completion_length: room as u32, ..(*group.sampling).clone() };
                let group = GroupRequest {
                    tag: sample.tag,
                    prompt_ids: given.into(),
                    samples: [sample.index].into(),
                    sampling: Arc::new(sampling),
                    ..group.clone()
                };
                self.inner.begin(Request { from: state, keep: true, ..group.into() })?;
            }
        }
        Ok(())
    }

    /// A conversation ends without a reward.
    fn give_up(&mut self, sample: Sample, end: EpisodeEnd, reason: String) {
        let nothing = self.rewards.outcomes(&Map::new(), None);
        match self.live.get(&sample).map(|live| live.at) {
            Some(At::Opening) if !self.live[&sample].is_queued => self.no_longer_unopened(sample.tag),
            Some(At::Sampling) => drop(self.inner.cancel(sample.tag, Some(sample.index))),
            _ => {}
        }
        self.end(sample, end, nothing, Some(reason));
    }

    fn end(&mut self, sample: Sample, end: EpisodeEnd, rewards: Vec<RewardOutcome>, failure: Option<String>) {
        let Some(ended) = self.take_out(sample, end, rewards, failure) else { return };
        if let Some(group) = self.groups.get_mut(&sample.tag) {
            group.held_back.push(ended);
        }
        self.rate_when_over(sample.tag);
        self.tell(sample.tag);
    }

    /// Tells what has ended in a group, unless it may still be dropped. Forgets the group when it is over.
    fn tell(&mut self, number: u64) {
        let Some(group) = self.groups.get_mut(&number) else { return };
        let is_over = group.live == 0;
        if !is_over && self.patience.verdict(&group.pace, group.dropped) == Verdict::DrawAgain {
            return;
        }
        for (sequence, conversed) in mem::take(&mut group.held_back) {
            self.ended.insert((conversed.tag, conversed.sample), conversed);
            self.outputs.push(Output::Ended { sequence, state: None });
        }
        if is_over {
            self.groups.remove(&number);
        }
    }

    /// Gives up what a conversation has, and returns what it has come to.
    fn take_out(
        &mut self,
        sample: Sample,
        end: EpisodeEnd,
        rewards: Vec<RewardOutcome>,
        failure: Option<String>,
    ) -> Option<(FinishedSequence, Conversed)> {
        let live = self.live.remove(&sample)?;
        self.hosts.close(sample);
        let group = self.groups.get_mut(&sample.tag)?;
        let (tag, is_drawn_again) = (group.request.tag, group.dropped > 0);
        group.live -= 1;
        let has_ended_well = !end.is_failure() && end != EpisodeEnd::Aborted;
        match (live.counted, has_ended_well) {
            (None, _) => group.pace.ended(live.age(Instant::now()).filter(|_| has_ended_well)),
            // It was in time, and its reward failed.
            (Some(time), false) => group.pace.has_failed(time),
            (Some(_), true) => {}
        }
        let conversed = live.end((tag, sample.index), end, (rewards, failure), self.inner.version());
        Some((sampled(&conversed), Conversed { is_drawn_again, ..conversed }))
    }

    fn count(&self, is_it: impl Fn(At) -> bool) -> usize {
        self.live.values().filter(|live| is_it(live.at)).count()
    }
}

/// All that the policy has sampled in a conversation, as one sequence.
pub fn sampled(conversed: &Conversed) -> FinishedSequence {
    let (mut token_ids, mut logprobs, mut versions) = (Vec::new(), Vec::new(), Vec::new());
    for segment in conversed.episode.segments() {
        if let Segment::Sampled { ids, logprobs: of_turn, versions: of_ids, .. } = segment {
            let begin = token_ids.len() as u32;
            versions.extend(of_ids.iter().map(|&(first, version)| (begin + first, version)));
            token_ids.extend_from_slice(ids);
            logprobs.extend_from_slice(of_turn);
        }
    }
    FinishedSequence {
        tag: conversed.tag,
        sample: conversed.sample,
        token_ids,
        logprobs,
        top_logprobs: Vec::new(),
        versions,
        routing: None,
        finish_reason: conversed.episode.finish_reason(),
        queue_seconds: 0.0,
        ttft_seconds: 0.0,
        total_seconds: conversed.exchange.seconds,
    }
}

impl Generate for Conversing {
    fn version(&self) -> PolicyVersion {
        self.inner.version()
    }

    /// Conversations that wait for their environments, or for the others of their group, take no slot.
    fn capacity(&self) -> usize {
        self.inner.capacity() + self.count(At::takes_no_slot).max(self.kept_states)
    }

    /// Conversations that have begun, also those that wait for their environments: new weights under `drain` wait for
    /// all of them. Those that wait for their group do not count, since it may wait for the weights.
    fn running(&self) -> usize {
        self.count(At::is_begun)
    }

    fn waiting(&self) -> usize {
        // Nobody is asked about what has ended and was not told.
        self.count(|at| !at.is_begun()) + self.outputs.len()
    }

    /// Refused: a conversation needs its row.
    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        let message = "completions are conversations here, and need the row of their prompt".into();
        Err(EngineError::Request { prompt: request.group.prompt_id.0, message })
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        self.listen()?;
        if !self.inner.is_idle() {
            for output in self.inner.advance()? {
                if let Output::Ended { sequence, state } = output {
                    self.turn_ended(&sequence, state);
                }
            }
        }
        Ok(mem::take(&mut self.outputs))
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        let numbers = self.groups.iter().filter(|(_, group)| group.request.tag == tag).map(|(number, _)| *number);
        let numbers: Vec<u64> = numbers.collect();
        let is_it = |live: &&Sample| numbers.contains(&live.tag) && sample.is_none_or(|index| index == live.index);
        let mut samples: Vec<Sample> = self.live.keys().filter(is_it).copied().collect();
        samples.sort_unstable_by_key(|sample| (sample.tag, sample.index));
        let mut cancelled = Vec::new();
        for sample in samples {
            self.inner.cancel(sample.tag, Some(sample.index));
            if self.live[&sample].at == At::Opening && !self.live[&sample].is_queued {
                self.no_longer_unopened(sample.tag);
            }
            let ended = self.take_out(sample, EpisodeEnd::Aborted, Vec::new(), None);
            cancelled.extend(
                ended.map(|(sequence, _)| FinishedSequence { finish_reason: FinishReason::Aborted, ..sequence }),
            );
        }
        for number in numbers {
            let Some(group) = self.groups.get_mut(&number) else { continue };
            let is_it = |(ended, _): &mut (FinishedSequence, _)| sample.is_none_or(|index| index == ended.sample);
            cancelled.extend(group.held_back.extract_if(.., is_it).map(|(ended, _)| ended));
            self.rate_when_over(number);
            self.tell(number);
        }
        cancelled
    }

    fn waits(&self) -> bool {
        let can_begin = self.admits && !self.first_turns.is_empty();
        let is_busy = can_begin || !self.inner.is_idle() || !self.outputs.is_empty() || !self.hosts.events().is_empty();
        !self.live.is_empty() && !is_busy && self.too_long().next().is_none()
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        self.inner.begin_swap(weights)
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        self.inner.try_swap()
    }

    /// First turns wait; turns of conversations that have begun do not, or these would never end.
    fn set_admission(&mut self, admit: bool) {
        self.admits = admit;
    }
}

impl PairGenerator for Conversing {
    fn begin_row(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        self.open(request.group, row.clone(), 0);
        Ok(())
    }

    fn begin_rest(&mut self, request: Request, row: &PromptRow) -> Result<(), EngineError> {
        self.begin_row(request, row)
    }

    fn take_conversation(&mut self, sequence: &FinishedSequence) -> Option<Conversed> {
        self.ended.remove(&(sequence.tag, sequence.sample))
    }

    fn is_here(&self) -> bool {
        self.inner.is_here()
    }

    fn fleet(&self) -> Option<shared::channel::FleetStatus> {
        self.inner.fleet()
    }

    fn close(&mut self) {
        self.inner.close();
    }

    fn handed_over(&mut self, group: &Placed) {
        self.inner.handed_over(group);
    }

    fn distrusted(&mut self) -> Vec<(PromptId, u32)> {
        self.inner.distrusted()
    }
}
