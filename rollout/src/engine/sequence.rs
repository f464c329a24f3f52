//! A completion in the making.

use std::{sync::Arc, time::Instant};

use ndarray::ArrayView2;
use shared::{FinishReason, PolicyVersion, SamplingParams, TokenLogprob, generation::rng};

use super::{
    EngineError,
    constraint::Constraint,
    history::SharedHistory,
    state::{Past, State},
    types::{FinishedSequence, GroupRequest, Output, Request, StopCriterion},
};
use crate::sampling::{
    Draw, RowError, SamplingThreads, Scratch, SeenTokens, TopLogprob, sample_allowed_and_top, sample_row_and_top,
};

/// One row of a decode step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DecodeRow {
    /// The newest token, whose keys and values are not in the cache yet.
    pub token: u32,
    /// Its position: the number of tokens in the cache.
    pub position: usize,
}

/// Limits that are the same for every sequence of an engine.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Longest prompt plus completion.
    pub max_model_len: usize,
}

/// What is wanted of a completion beside its tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// Its tokens as they come.
    pub stream: bool,
    /// A state to go on from.
    pub keep: bool,
    /// How its prompt came to be.
    pub past: Past,
    /// The likeliest tokens of each place.
    pub top_logprobs: usize,
}

impl Wish {
    /// What a request says of each of its completions.
    pub fn of(request: &Request) -> Self {
        let Request { stream, keep, top_logprobs, .. } = *request;
        Self { stream, keep, past: request.past(), top_logprobs: top_logprobs as usize }
    }
}

/// A completion in a slot.
pub(super) struct Sequence {
    request: Arc<GroupRequest>,
    sample: u32,
    /// Tokens after which the completion ends in any case.
    limit: usize,
    token_ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    /// Where they are wanted, the likeliest tokens in the place of each token.
    top_logprobs: Vec<Vec<TopLogprob>>,
    versions: Vec<(u32, PolicyVersion)>,
    seen: SeenTokens,
    stop_criterion: Option<Box<dyn StopCriterion>>,
    /// From its first draw on, if the request has one.
    constraint: Option<Box<dyn Constraint>>,
    /// With speculative decoding, what the group has written.
    history: Option<SharedHistory>,
    wish: Wish,
    /// Keys and values were computed with several versions of the weights.
    is_mixed: bool,
    arrived: Instant,
    admitted: Instant,
    first_token: Option<Instant>,
    drawn: Option<Result<Draw, RowError>>,
    /// The likeliest tokens in the place of the drawn one.
    top: Vec<TopLogprob>,
}

impl Sequence {
    /// A sample of a group that was queued and whose prompt began to be computed at these times. Without a history,
    /// nothing is drafted for it.
    pub fn new(
        request: &Arc<GroupRequest>,
        wish: Wish,
        sample: u32,
        [arrived, admitted]: [Instant; 2],
        limits: &Limits,
        history: Option<&SharedHistory>,
    ) -> Self {
        let own = request.lengths.as_ref().map(|lengths| lengths[sample as usize]);
        let limit = own.unwrap_or(request.sampling.max_completion_length) as usize;
        let limit = limit.min(limits.max_model_len - request.prompt_ids.len());
        let seen = match request.sampling.penalised() {
            true => SeenTokens::new(&request.prompt_ids),
            false => SeenTokens::default(),
        };
        Self {
            sample,
            limit,
            token_ids: Vec::with_capacity(limit.min(512)),
            logprobs: Vec::with_capacity(limit.min(512)),
            top_logprobs: Vec::new(),
            versions: Vec::new(),
            seen,
            stop_criterion: request.stop_criterion.as_ref().map(|make| make()),
            constraint: None,
            history: history.cloned(),
            wish,
            is_mixed: false,
            arrived,
            admitted,
            first_token: None,
            drawn: None,
            top: Vec::new(),
            request: Arc::clone(request),
        }
    }

    /// Whether it is this completion of a group, or one of all.
    pub fn is(&self, tag: u64, sample: Option<u32>) -> bool {
        self.request.tag == tag && sample.is_none_or(|sample| sample == self.sample)
    }

    /// The newest token, if they are wanted as they come.
    pub fn streamed(&self) -> Option<Output> {
        let id = self.newest().filter(|_| self.wish.stream)?;
        let logprob = *self.logprobs.last().expect("a token has its log-probs");
        let top = self.top_logprobs.last().cloned().unwrap_or_default();
        Some(Output::Token { tag: self.request.tag, sample: self.sample, id, logprob, top })
    }

    /// What it leaves to go on from, if that is wanted.
    pub fn state(&self) -> Option<State> {
        let state = || State::after(&self.request, self.wish.past, &self.token_ids).with_history(self.history.clone());
        self.wish.keep.then(state)
    }

    /// All its ids as a prompt of its one sample, and what is wanted of it: it goes on from there after these were
    /// computed again.
    pub fn context(&self) -> (GroupRequest, Wish) {
        let prompt_ids = [&self.request.prompt_ids, &self.token_ids[..]].concat().into();
        (GroupRequest { prompt_ids, samples: [self.sample].into(), ..(*self.request).clone() }, self.wish)
    }

    /// Other weights are in use from now on.
    pub fn mix(&mut self) {
        self.is_mixed = true;
    }

    /// Whether its keys and values are those that the weights in use would compute.
    pub fn is_pure(&self) -> bool {
        !self.is_mixed
    }

    /// What the group has written, with speculative decoding.
    pub fn history(&self) -> Option<&SharedHistory> {
        self.history.as_ref()
    }

    /// Puts the last `most` tokens of prompt and completion into `out`.
    pub fn tail(&self, most: usize, out: &mut Vec<u32>) {
        let own = &self.token_ids[self.token_ids.len().saturating_sub(most)..];
        let prompt = &self.request.prompt_ids;
        out.clear();
        out.extend_from_slice(&prompt[prompt.len().saturating_sub(most - own.len())..]);
        out.extend_from_slice(own);
    }

    /// Tokens that may still come; at least one while the completion has not ended.
    pub fn remaining(&self) -> usize {
        self.limit - self.token_ids.len()
    }

    /// The newest token.
    pub fn newest(&self) -> Option<u32> {
        self.token_ids.last().copied()
    }

    /// Tokens whose keys and values are in the cache: all but the newest.
    pub fn cached(&self) -> usize {
        self.request.prompt_ids.len() + self.token_ids.len() - 1
    }

    /// The row of the next decode batch.
    pub fn decode_row(&self) -> DecodeRow {
        let token = *self.token_ids.last().expect("a sequence in a slot has its first token");
        DecodeRow { token, position: self.cached() }
    }

    /// How the next token is to be drawn, and the number in (0, 1) that decides it.
    pub fn next_draw(&self) -> (&SamplingParams, f64) {
        let params: &SamplingParams = &self.request.sampling;
        let uniform = rng::token_uniform(
            params.seed,
            self.request.epoch,
            self.request.prompt_id.0,
            self.sample,
            self.token_ids.len() as u32,
        );
        (params, uniform)
    }

    /// Draws the next token from a row of logits; [`Sequence::accept`] then takes it. Reads nothing but the sequence
    /// itself, so sequences may be drawn in any order and on any thread.
    pub fn draw(&mut self, logits: &[f32], scratch: &mut Scratch) {
        if self.is_constrained() {
            self.draw_allowed(logits, scratch);
            return;
        }
        let (params, uniform) = self.next_draw();
        let drawn = sample_row_and_top(logits, params, &self.seen, uniform, self.wish.top_logprobs, scratch);
        self.take_drawn(Some(drawn));
    }

    fn take_drawn(&mut self, drawn: Option<Result<(Draw, Vec<TopLogprob>), RowError>>) {
        self.drawn = drawn.map(|drawn| {
            let (draw, top) = drawn?;
            self.top = top;
            Ok(draw)
        });
    }

    /// As [`Sequence::draw`], of the tokens that the constraint allows. Nothing is drawn where it allows none.
    fn draw_allowed(&mut self, logits: &[f32], scratch: &mut Scratch) {
        let request = Arc::clone(&self.request);
        let Some(constrained) = &request.constraint else { return };
        let (_, uniform) = self.next_draw();
        let constraint = self.constraint.get_or_insert_with(|| constrained.begin());
        match constraint.allowed() {
            Ok(allowed) => {
                let (params, top) = (&request.sampling, self.wish.top_logprobs);
                let drawn = sample_allowed_and_top(logits, allowed, params, &self.seen, uniform, top, scratch);
                self.take_drawn(drawn.transpose());
            }
            Err(reason) => constrained.fail(reason),
        }
        if self.drawn.is_none() {
            constrained.fail("it allows no token of the model in this place".into());
        }
    }

    /// Whether a constraint says which tokens may come.
    pub fn is_constrained(&self) -> bool {
        self.request.constraint.is_some()
    }

    /// Whether the next token can be drawn from a whole row of logits alone.
    pub fn needs_whole_row(&self) -> bool {
        self.is_constrained() || self.wish.top_logprobs > 0
    }

    /// The next token as it was drawn elsewhere by [`Sequence::next_draw`].
    pub fn set_drawn(&mut self, drawn: Result<Draw, RowError>) {
        self.drawn = Some(drawn);
    }

    /// Whether a token was drawn that [`Sequence::accept`] has not taken.
    pub fn is_drawn(&self) -> bool {
        self.drawn.is_some()
    }

    /// Takes the drawn token; says why the completion ends with it, if it does. It is
    /// [`Aborted`](FinishReason::Aborted) where its constraint cannot go on.
    pub fn accept(&mut self, version: PolicyVersion, limits: &Limits) -> Result<Option<FinishReason>, EngineError> {
        let Some(drawn) = self.drawn.take() else {
            assert!(self.is_constrained(), "a token was drawn before it is taken");
            return Ok(Some(FinishReason::Aborted));
        };
        let (prompt, sample) = (self.request.prompt_id.0, self.sample);
        let Draw { token, logprob } = drawn.map_err(|reason| EngineError::Row { prompt, sample, version, reason })?;
        if self.versions.last().is_none_or(|&(_, last)| last != version) {
            self.versions.push((self.token_ids.len() as u32, version));
        }
        if self.request.sampling.penalised() {
            self.seen.insert(token);
        }
        self.token_ids.push(token);
        self.logprobs.push(logprob);
        if self.wish.top_logprobs > 0 {
            self.top_logprobs.push(std::mem::take(&mut self.top));
        }
        self.first_token.get_or_insert_with(Instant::now);

        let ends = !self.request.sampling.ignore_eos && limits.eos_token_ids.contains(&token);
        let stopped = self.stop_criterion.as_mut().is_some_and(|criterion| criterion.push(token));
        let stopped = stopped || ends;
        Ok(match self.is_complete(token) {
            None => Some(FinishReason::Aborted),
            Some(complete) if complete || stopped => Some(FinishReason::Stop),
            Some(_) => (self.token_ids.len() >= self.limit).then_some(FinishReason::Length),
        })
    }

    /// Tells the constraint of the newest token. Returns whether nothing can come after it; none if the constraint
    /// cannot go on.
    fn is_complete(&mut self, token: u32) -> Option<bool> {
        let Some(constraint) = &mut self.constraint else { return Some(false) };
        let pushed = constraint.push(token);
        let constrained = self.request.constraint.as_ref().expect("the constraint comes from the request");
        pushed.map_err(|reason| constrained.fail(reason)).ok()
    }

    /// The result.
    pub fn finish(self, finish_reason: FinishReason) -> FinishedSequence {
        let since = |t: Instant| t.duration_since(self.admitted).as_secs_f64();
        FinishedSequence {
            tag: self.request.tag,
            sample: self.sample,
            token_ids: self.token_ids,
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            versions: self.versions,
            routing: None,
            finish_reason,
            queue_seconds: self.admitted.saturating_duration_since(self.arrived).as_secs_f64(),
            ttft_seconds: self.first_token.map_or(0.0, since),
            total_seconds: since(Instant::now()),
        }
    }
}

/// Draws a token for the sequence of each slot for which `row_of` names a row of `logits`.
pub(super) fn draw(
    slots: &mut [Option<Sequence>],
    row_of: &(dyn Fn(usize) -> Option<usize> + Sync),
    logits: ArrayView2<'_, f32>,
    threads: &mut SamplingThreads,
) {
    threads.for_each(logits.ncols(), slots, |slot, sequence, scratch| {
        if let (Some(sequence), Some(row)) = (sequence, row_of(slot)) {
            sequence.draw(logits.row(row).to_slice().expect("a row of logits is contiguous"), scratch);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::PromptId;

    impl Sequence {
        /// Its prompt and its index within the group.
        pub fn identity(&self) -> (u64, u32) {
            (self.request.prompt_id.0, self.sample)
        }
    }

    struct Nth(u32);

    impl StopCriterion for Nth {
        fn push(&mut self, _: u32) -> bool {
            self.0 -= 1;
            self.0 == 0
        }
    }

    fn request(sampling: SamplingParams) -> GroupRequest {
        GroupRequest {
            tag: 1,
            prompt_id: PromptId(3),
            epoch: 0,
            prompt_ids: Arc::from([1, 2, 3]),
            samples: Arc::from([0, 1]),
            sampling: Arc::new(sampling),
            lengths: None,
            stop_criterion: None,
            constraint: None,
        }
    }

    /// Runs a sequence over logits whose arg-max at position `t` is `t`.
    fn run(request: GroupRequest, max_model_len: usize) -> (Vec<u32>, FinishReason) {
        let limits = Limits { eos_token_ids: vec![4, 9], max_model_len };
        let wish = Wish::of(&request.clone().into());
        let mut sequence = Sequence::new(&Arc::new(request), wish, 1, [Instant::now(); 2], &limits, None);
        for t in 0.. {
            let mut logits = vec![0.0; 64];
            logits[t] = 1.0;
            sequence.draw(&logits, &mut Scratch::default());
            if let Some(reason) = sequence.accept(PolicyVersion(t as u64 / 2), &limits).unwrap() {
                let finished = sequence.finish(reason);
                let runs: Vec<_> = (0..finished.token_ids.len().div_ceil(2))
                    .map(|i| (2 * i as u32, PolicyVersion(i as u64)))
                    .collect();
                assert_eq!(finished.versions, runs);
                assert_eq!(finished.logprobs.len(), finished.token_ids.len());
                return (finished.token_ids, reason);
            }
        }
        unreachable!()
    }

    #[test]
    fn completions_end_where_they_should() {
        let greedy = || SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        assert_eq!(run(request(greedy()), 100), (vec![0, 1, 2, 3, 4], FinishReason::Stop));
        let short = SamplingParams { max_completion_length: 3, ..greedy() };
        assert_eq!(run(request(short), 100), (vec![0, 1, 2], FinishReason::Length));
        assert_eq!(run(request(greedy()), 5), (vec![0, 1], FinishReason::Length));
        let past = SamplingParams { ignore_eos: true, max_completion_length: 12, ..greedy() };
        assert_eq!(run(request(past), 100).0.len(), 12);
        let watched = GroupRequest { stop_criterion: Some(Arc::new(|| Box::new(Nth(2)))), ..request(greedy()) };
        assert_eq!(run(watched, 100), (vec![0, 1], FinishReason::Stop));
        let own = GroupRequest { lengths: Some(Arc::from([1, 4])), ..request(greedy()) };
        assert_eq!(run(own, 100), (vec![0, 1, 2, 3], FinishReason::Length));
    }
}
