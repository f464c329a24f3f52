//! A generator without a model: it writes what a script says.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Instant,
};

use shared::{FinishReason, PolicyVersion, TokenLogprob};

use super::{Generate, PairGenerator};
use crate::engine::{EngineError, FinishedSequence, GroupRequest, Output, Request, SwapReport, WeightSource};

/// What it writes after a prompt, by the prompt and the index of the completion.
pub type Script = fn(&[u32], u32) -> Vec<u32>;

/// What it was asked for.
#[derive(Default)]
pub struct Heard {
    pub begun: Vec<Request>,
    pub cancelled: Vec<(u64, Option<u32>)>,
}

/// Writes one token of every running sequence in a step, `capacity` sequences at a time.
pub struct Scripted {
    script: Script,
    capacity: usize,
    version: PolicyVersion,
    pending: Option<PolicyVersion>,
    waiting: VecDeque<Line>,
    running: Vec<Line>,
    closed: bool,
    /// What comes of the next swap in place of the version.
    pub trouble: Option<EngineError>,
    /// Steps so far.
    pub steps: usize,
    /// When the last of them began.
    pub advanced: Option<Instant>,
    /// Also for whoever has given it away.
    pub heard: Arc<Mutex<Heard>>,
    /// Whether its sequences are given up when they end.
    pub aborts: bool,
}

/// A sequence, and what is still to be written of it.
struct Line {
    request: Request,
    /// All that comes before it.
    whole: GroupRequest,
    sequence: FinishedSequence,
    rest: VecDeque<u32>,
}

impl Scripted {
    /// With room for `capacity` sequences.
    pub fn new(capacity: usize, script: Script) -> Self {
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self {
            script,
            capacity,
            version: PolicyVersion(0),
            pending: None,
            waiting,
            running,
            closed: false,
            trouble: None,
            steps: 0,
            advanced: None,
            heard: Arc::default(),
            aborts: false,
        }
    }

    fn line(&self, request: &Request, sample: u32) -> Line {
        let whole = request.whole();
        let most = whole.sampling.max_completion_length as usize;
        let mut rest = (self.script)(&whole.prompt_ids, sample);
        let finish_reason = match rest.len() > most {
            _ if self.aborts => FinishReason::Aborted,
            true => FinishReason::Length,
            false => FinishReason::Stop,
        };
        rest.truncate(most);
        let sequence = FinishedSequence {
            tag: whole.tag,
            sample,
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            versions: Vec::new(),
            routing: None,
            finish_reason,
            queue_seconds: 0.0,
            ttft_seconds: 0.0,
            total_seconds: 0.0,
        };
        Line { request: request.clone(), whole, sequence, rest: rest.into() }
    }
}

impl Generate for Scripted {
    fn version(&self) -> PolicyVersion {
        self.version
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn running(&self) -> usize {
        self.running.len()
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        self.heard.lock().unwrap().begun.push(request.clone());
        let samples = request.group.samples.iter();
        let lines: Vec<Line> = samples.map(|&sample| self.line(&request, sample)).collect();
        self.waiting.extend(lines);
        Ok(())
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        self.advanced = Some(Instant::now());
        self.steps += 1;
        while !self.closed && self.running.len() < self.capacity {
            let Some(line) = self.waiting.pop_front() else { break };
            self.running.push(line);
        }
        let version = self.version;
        let mut outputs = Vec::new();
        for line in &mut self.running {
            let Line { request, sequence, rest, .. } = line;
            let id = rest.pop_front().expect("a script has a token for every sequence");
            if sequence.versions.last().is_none_or(|(_, last)| *last != version) {
                sequence.versions.push((sequence.token_ids.len() as u32, version));
            }
            sequence.token_ids.push(id);
            let logprob = TokenLogprob { logprob: -1.0, ..TokenLogprob::default() };
            sequence.logprobs.push(logprob);
            if request.stream {
                let (tag, sample, top) = (sequence.tag, sequence.sample, Vec::new());
                outputs.push(Output::Token { tag, sample, id, logprob, top });
            }
        }
        for line in self.running.extract_if(.., |line| line.rest.is_empty()) {
            // Its tokens have been told.
            let request = Request { stream: false, ..line.request };
            outputs.extend(request.outputs(&line.whole, line.sequence));
        }
        Ok(outputs)
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        self.heard.lock().unwrap().cancelled.push((tag, sample));
        let is_it =
            |line: &mut Line| line.sequence.tag == tag && sample.is_none_or(|sample| sample == line.sequence.sample);
        let mut cancelled: Vec<Line> = self.running.extract_if(.., is_it).collect();
        let (ended, waiting): (VecDeque<Line>, VecDeque<Line>) = self
            .waiting
            .drain(..)
            .partition(|line| line.sequence.tag == tag && sample.is_none_or(|s| s == line.sequence.sample));
        self.waiting = waiting;
        cancelled.extend(ended);
        let aborted = |line: Line| FinishedSequence { finish_reason: FinishReason::Aborted, ..line.sequence };
        cancelled.into_iter().map(aborted).collect()
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        self.pending = Some(weights.version);
        Ok(())
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        let Some(version) = self.pending.take() else { return Ok(None) };
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        self.version = version;
        Ok(Some(SwapReport { version, seconds: 0.0, stall_seconds: 0.0, gate_seconds: 0.0 }))
    }

    fn set_admission(&mut self, admit: bool) {
        self.closed = !admit;
    }
}

impl PairGenerator for Scripted {}
