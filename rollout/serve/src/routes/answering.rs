//! From a request in the engine to its answer, whole or as a stream.

use std::{
    collections::VecDeque,
    convert::Infallible,
    iter,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use axum::{
    Json,
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
};
use futures_util::stream;
use rollout::engine::{FinishedSequence, GivenLogprob, LoadedAdapter, State};
use serde_json::Value;
use shared::FinishReason;
use shared_http::{Busy, Connection};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::App;
use crate::{
    agent::Turn,
    answer::{Choice, Done, Entry, Piece, Shape, Usage},
    desk::{Event, Place, Ticket, Wish},
    error::ApiError,
    request::{completion::Prompt, sampling::Sampling, tools::Calling},
};

/// The end of a stream, as OpenAI has it.
const END: &str = "[DONE]";
/// Chunks that are made before the client has read those before them; one of them is the last word.
const AHEAD: usize = 64;

/// A request that was read.
pub struct Asked {
    /// How the answer is written.
    pub shape: Shape,
    /// The adapter that is asked, if one is.
    pub adapter: Option<LoadedAdapter>,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Whether the prompt goes before each completion.
    pub echo: bool,
    /// How calls are read, where tools may be called.
    pub calling: Option<Calling>,
    /// Inside a run, the turn of a sample that is asked for.
    pub turn: Option<Turn>,
}

impl Asked {
    /// Asks the engine, for prompts that completions are wanted of: all of them, or none.
    fn begin(&mut self, app: &App, place: Place, stream: bool) -> Result<Ticket, ApiError> {
        let wanted = self.prompts.iter().filter(|prompt| prompt.max_tokens > 0);
        let group = |prompt: &Prompt| {
            let group = self.sampling.group(&app.tokenizer, prompt, app.fresh.next());
            if let Some(turn) = &self.turn { turn.group(group) } else { group }
        };
        let groups = wanted.map(group).collect();
        let keep = self.turn.is_some();
        let from = self.turn.as_mut().and_then(Turn::take_state);
        let (top_logprobs, adapter) = (self.shape.top_logprobs, self.adapter.clone());
        app.service.begin(place, groups, Wish { stream, top_logprobs, adapter, from, keep })
    }

    /// The log-probs of the prompts that go before their completions, if they are wanted.
    async fn scores(&self, app: &App) -> Result<Vec<Vec<GivenLogprob>>, ApiError> {
        let mut given = Vec::new();
        for prompt in self.prompts.iter().filter(|_| self.echo && self.shape.logprobs) {
            let (ids, adapter) = (Arc::clone(&prompt.ids), self.adapter.clone());
            given.push(app.service.score(ids, self.shape.top_logprobs, adapter).await?);
            // A prompt that is to be completed is counted where that begins.
            if prompt.max_tokens == 0 {
                app.metrics.prompt_tokens.fetch_add(prompt.ids.len() as u64, Relaxed);
            }
        }
        Ok(given)
    }

    fn choice(&self, app: &App, prompt: &Prompt) -> Choice {
        let params = &self.sampling.params;
        let choice = Choice::new(&app.tokenizer, prompt.before(), &params.stop, params.greedy());
        // The tokens of an echo begin with those of the prompt.
        let before = if self.echo { &[] } else { prompt.before() };
        let choice = match self.shape.logprobs {
            true => choice.with_logprobs(before, self.shape.tokens_as_ids, &app.names),
            false => choice,
        };
        match &self.calling {
            None => choice,
            Some(calling) => choice.with_calls(calling.reader(), calling.parallel),
        }
    }

    /// The answer, whole or as a stream.
    ///
    /// # Errors
    /// A full queue, a prompt that the engine refuses, an engine that has ended, or an answer that takes too long.
    pub async fn answer(
        self,
        app: Arc<App>,
        place: Place,
        connection: Connection,
        streams: bool,
    ) -> Result<Response, ApiError> {
        if !streams {
            return app.in_time(self.whole(&app, place)).await;
        }
        let deadline = Instant::now() + app.limits.time;
        let given = app.in_time(self.scores(&app)).await?;
        self.stream(app, place, given, deadline, connection.busy())
    }

    async fn whole(mut self, app: &Arc<App>, place: Place) -> Result<Response, ApiError> {
        let given = self.scores(app).await?;
        let mut ticket = self.begin(app, place, false)?;
        let mut left = None;
        let mut ended: Vec<Vec<FinishedSequence>> = self.prompts.iter().map(|_| Vec::new()).collect();
        while let Some((prompt, event)) = ticket.next().await? {
            if let Event::Ended { sequence, state } = event {
                ended[prompt].push(sequence);
                left = state;
            }
        }
        app.apart(move |app| Ok(self.answered(app, &given, ended, left))).await
    }

    /// The answer with all choices: those of each prompt in order. `left` is the state that the turn of a sample has
    /// left.
    fn answered(
        &mut self,
        app: &App,
        given: &[Vec<GivenLogprob>],
        ended: Vec<Vec<FinishedSequence>>,
        left: Option<State>,
    ) -> Response {
        let sampled = self.turn.as_ref().and_then(|_| ended.first()?.first().cloned());
        let mut usage = Usage::default();
        let mut answered = Vec::new();
        for (at, (prompt, mut sequences)) in self.prompts.iter().zip(ended).enumerate() {
            usage.prompt += prompt.ids.len();
            sequences.sort_unstable_by_key(|sequence| sequence.sample);
            usage.completion += sequences.iter().map(|sequence| sequence.token_ids.len()).sum::<usize>();
            let given = given.get(at).map(Vec::as_slice);
            let choices = if prompt.max_tokens == 0 {
                (0..self.sampling.n).map(|_| self.done(app, prompt, given, None)).collect()
            } else {
                sequences.into_iter().map(|sequence| self.done(app, prompt, given, Some(sequence))).collect()
            };
            answered.push((Arc::clone(&prompt.ids), choices));
        }
        let said = answered.first().and_then(|(_, choices): &(_, Vec<Done>)| choices.first());
        if let (Some(turn), Some(sequence), Some(done)) = (&mut self.turn, sampled, said) {
            turn.ended(&sequence, left, &done.text, &done.calls);
        }
        Json(self.shape.whole(&answered, usage)).into_response()
    }

    /// A choice; without a sequence, of the prompt alone.
    fn done(
        &self,
        app: &App,
        prompt: &Prompt,
        given: Option<&[GivenLogprob]>,
        sequence: Option<FinishedSequence>,
    ) -> Done {
        let mut choice = self.choice(app, prompt);
        let mut text = if self.echo { prompt.text.clone() } else { String::new() };
        let mut entries: Vec<Entry> = given.map_or_else(Vec::new, |given| choice.prompt(&prompt.ids, given));
        let Some(sequence) = sequence else {
            let (ids, calls, finish_reason) = (Vec::new(), Vec::new(), FinishReason::Length);
            return Done { text, ids, entries, calls, finish_reason };
        };
        for (at, (&id, logprob)) in sequence.token_ids.iter().zip(&sequence.logprobs).enumerate() {
            let top = sequence.top_logprobs.get(at).map_or(&[][..], Vec::as_slice);
            let piece = choice.push(id, logprob, top);
            text.push_str(&piece.text);
            entries.extend(piece.entry);
        }
        let end = choice.end(sequence.finish_reason);
        end.complete(entries.last_mut());
        text.push_str(&end.text);
        Done { text, ids: sequence.token_ids, entries, calls: end.calls, finish_reason: sequence.finish_reason }
    }

    /// `busy` is kept until the end of the stream, though not beyond the time for an answer.
    fn stream(
        mut self,
        app: Arc<App>,
        place: Place,
        given: Vec<Vec<GivenLogprob>>,
        deadline: Instant,
        busy: Busy,
    ) -> Result<Response, ApiError> {
        let ticket = self.begin(&app, place, true)?;
        let n = self.sampling.n as usize;
        let each = self.prompts.iter().flat_map(|prompt| iter::repeat_n(prompt, n));
        let choices: Vec<Option<Choice>> = each.map(|prompt| Some(self.choice(&app, prompt))).collect();
        let prompt = self.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        let usage = Usage { prompt, completion: 0 };
        let opening = Opening { index: 0, prompts: self.prompts, echo: self.echo, given: given.into() };
        let (shape, ready, said) = (Arc::new(self.shape), VecDeque::new(), String::new());
        let (turn, is_over) = (self.turn, false);
        let held = choices.iter().map(|_| None).collect();
        let stream =
            Stream { app, shape, n, opening, ticket, choices, held, ready, usage, deadline, is_over, turn, said };
        let (sender, chunks) = mpsc::channel(AHEAD);
        tokio::spawn(stream.run(sender, busy));
        let events = stream::unfold(chunks, async |mut chunks| {
            let chunk: String = chunks.recv().await.flatten()?;
            Some((Ok::<_, Infallible>(sse::Event::default().data(chunk)), chunks))
        });
        Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
    }
}

/// The beginnings of the choices of a stream, which are made one by one as the client reads them: with `echo`, each has
/// the whole prompt.
struct Opening {
    /// The choice that begins next.
    index: usize,
    prompts: Vec<Prompt>,
    echo: bool,
    /// Log-probs of the prompts, where they are wanted.
    given: Arc<[Vec<GivenLogprob>]>,
}

/// A stream of chunks.
struct Stream {
    app: Arc<App>,
    shape: Arc<Shape>,
    /// Completions of each prompt.
    n: usize,
    opening: Opening,
    ticket: Ticket,
    /// Until they have ended.
    choices: Vec<Option<Choice>>,
    /// Of each choice, the last token with log-probs if the text ends within a character with it: should no other token
    /// come, it gets what is missing.
    held: Vec<Option<Piece>>,
    ready: VecDeque<String>,
    usage: Usage,
    deadline: Instant,
    is_over: bool,
    turn: Option<Turn>,
    /// The text of the turn so far.
    said: String,
}

impl Stream {
    /// Hands chunks on as the client reads them, and nothing at the end. A client that is gone, or that has not read
    /// when its time is over, keeps neither its place in the engine nor its connection.
    async fn run(mut self, chunks: mpsc::Sender<Option<String>>, busy: Busy) {
        let Ok(last_word) = chunks.clone().reserve_owned().await else { return };
        loop {
            let chunk = tokio::select! {
                chunk = self.next() => chunk,
                () = chunks.closed() => return,
            };
            let is_end = chunk.is_none();
            match timeout_at(self.deadline, chunks.send(chunk)).await {
                Ok(Ok(())) if is_end => break,
                Ok(Ok(())) => (),
                Ok(Err(_)) => return,
                Err(_) => {
                    let late = (!is_end).then(|| self.app.too_late().body().to_string());
                    last_word.send(late);
                    return;
                }
            }
        }
        let _ = timeout_at(self.deadline, chunks.closed()).await;
        drop(busy);
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if self.is_over || !self.ready.is_empty() {
                return self.ready.pop_front();
            }
            match self.open().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    self.is_over = true;
                    self.ready.push_back(error.body().to_string());
                    continue;
                }
            }
            let event = timeout_at(self.deadline, self.ticket.next()).await;
            match event.unwrap_or_else(|_| Err(self.app.too_late())) {
                Ok(Some((prompt, event))) => self.take(prompt, event),
                Ok(None) => {
                    self.is_over = true;
                    let usage = self.shape.usage(self.usage).map(|usage| usage.to_string());
                    self.ready.extend(usage.into_iter().chain([END.to_owned()]));
                }
                Err(error) => {
                    // The status has been sent: all that is left is to say so in the stream.
                    self.is_over = true;
                    self.ready.push_back(error.body().to_string());
                }
            }
        }
    }

    /// Begins the next choice; false if all have begun. One whose prompt is not to be completed ends at once.
    async fn open(&mut self) -> Result<bool, ApiError> {
        let index = self.opening.index;
        let Some(prompt) = self.opening.prompts.get(index / self.n) else { return Ok(false) };
        self.opening.index += 1;
        let ids = Arc::clone(&prompt.ids);
        let first = if self.opening.given.is_empty() {
            let echo = self.opening.echo.then_some((prompt.text.as_str(), &[][..]));
            self.shape.first(index, &ids, echo).map(|chunk| chunk.to_string())
        } else {
            // All tokens of a prompt, once more for each of its choices.
            let mut choice = self.choices[index].take().ok_or_else(|| ApiError::internal("a choice begins once"))?;
            let (text, shape) = (prompt.text.clone(), Arc::clone(&self.shape));
            let (given, at) = (Arc::clone(&self.opening.given), index / self.n);
            let opened = self.app.apart(move |_| {
                let entries = choice.prompt(&ids, &given[at]);
                let first = shape.first(index, &ids, Some((text.as_str(), entries.as_slice())));
                Ok((choice, first.map(|chunk| chunk.to_string())))
            });
            let (choice, first) = opened.await?;
            self.choices[index] = Some(choice);
            first
        };
        self.ready.extend(first);
        if self.opening.prompts[index / self.n].max_tokens == 0 {
            let last = self.shape.last(index, String::new(), &[], FinishReason::Length);
            self.ready.extend(last.iter().map(Value::to_string));
        }
        Ok(true)
    }

    /// The choice of a completion. The turn of a sample is the only one, whatever the index of the sample.
    fn index(&self, prompt: usize, sample: u32) -> usize {
        if self.turn.is_some() { 0 } else { prompt * self.n + sample as usize }
    }

    fn take(&mut self, prompt: usize, event: Event) {
        let chunks: Vec<Value> = match event {
            Event::Token { sample, id, logprob, top } => {
                self.usage.completion += 1;
                let index = self.index(prompt, sample);
                let piece = self.choices[index].as_mut().map(|choice| choice.push(id, &logprob, &top));
                if let (Some(_), Some(piece)) = (&self.turn, &piece) {
                    self.said.push_str(&piece.text);
                }
                let before = self.held[index].take();
                let (held, now) = match piece {
                    Some(piece) if piece.is_within_character(before.is_some()) => (Some(piece), None),
                    now => (None, now),
                };
                self.held[index] = held;
                let ready = before.into_iter().chain(now);
                ready.filter_map(|piece| self.shape.next(index, &piece, None)).collect()
            }
            Event::Ended { sequence, state } => {
                let index = self.index(prompt, sequence.sample);
                let end = self.choices[index].take().map(|choice| choice.end(sequence.finish_reason));
                let end = end.unwrap_or_default();
                if let Some(turn) = &mut self.turn {
                    self.said.push_str(&end.text);
                    turn.ended(&sequence, state, &self.said, &end.calls);
                }
                let mut held = self.held[index].take();
                end.complete(held.as_mut().and_then(|piece| piece.entry.as_mut()));
                let held = held.and_then(|piece| self.shape.next(index, &piece, None));
                let last = self.shape.last(index, end.text, &end.calls, sequence.finish_reason);
                held.into_iter().chain(last).collect()
            }
            Event::Refused(_) => Vec::new(),
        };
        self.ready.extend(chunks.iter().map(Value::to_string));
    }
}
