//! What goes into the engine and what comes out. The engine sees token ids only.

use std::{sync::Arc, thread};

use rollout_kernels::element::{Format, KvFormat};
use shared::{
    FinishReason, ModelConfig, PolicyVersion, PromptId, Routing, SamplingParams, TokenLogprob,
    config::{Device, KvDtype, RolloutDtype, RouterReplay, TrainConfig, WeightSwap},
    generation::rng,
    run::memory_plan::kept_numbers,
};
pub use shared::{
    channel::weights::{SwapReport, WeightSource},
    config::Kernels,
};

use super::{
    EngineError,
    constraint::Constrained,
    state::{Past, State},
};
pub use crate::sampling::TopLogprob;

/// Sizes and resources of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Where the graph runs.
    pub device: Device,
    /// What computes it.
    pub kernels: Kernels,
    /// What the linear layers compute in.
    pub rollout_dtype: RolloutDtype,
    /// What keys and values are stored as.
    pub kv_dtype: KvDtype,
    /// Threads of the graph, and of the drawing of tokens.
    pub threads: usize,
    /// Sequences decoded at once (vLLM `max_num_seqs`).
    pub max_num_seqs: usize,
    /// Prompt tokens prefilled between two decode steps (vLLM `max_num_batched_tokens`). With [`Kernels::Packed`] a
    /// longer prompt is computed in pieces while sequences run; otherwise at least one prompt goes through, however
    /// long.
    pub max_num_batched_tokens: usize,
    /// Prompts prefilled in one call of the graph, padded to the longest of them (with [`Kernels::Stock`]): fewer
    /// calls, but a place in the KV cache for each.
    pub prefill_batch: usize,
    /// Longest prompt plus completion (vLLM `max_model_len`).
    pub max_model_len: usize,
    /// Most drafts of a sequence in one step (vLLM `num_speculative_tokens`); 0 = no speculative decoding. For
    /// [`Kernels::Packed`].
    pub speculative_tokens: usize,
    /// Logits of a row that are fetched to draw a token, where they stay on the device that computed them (with
    /// [`Kernels::Stock`]); a row that needs more is fetched whole. 0 fetches all logits of every row.
    pub candidates: usize,
    /// Whether decode steps are recorded as CUDA graphs and replayed (with [`Kernels::Stock`]): a launch instead of
    /// hundreds, but steps run in batches of a few sizes, padded, with attention laid out for the longest sequences,
    /// and each size is recorded anew for every version of the weights. No other thread of the process may use the
    /// device while a size is used for the first time; those of the engine do not. On the CPU, where there is nothing
    /// to record, it only pads.
    pub cuda_graphs: bool,
    /// Whether idle graph threads spin for a moment between operators: faster on cores of their own, slower on cores
    /// shared with another busy process (the learner).
    pub spinning: bool,
    /// Whether new weights will be swapped in: the memory plan then counts a second set.
    pub hot_swap: bool,
    /// Whether weights must be what the learner published: the tensors by their hashes and norms, and the log-probs of
    /// the canaries that lie beside them.
    pub conformity_gate: bool,
    /// Numbers of the matrices that no version changes, where versions are adapters: the plan counts no second set of
    /// them.
    pub kept: u64,
    /// Bytes that it may take, where somebody has planned it; otherwise it looks at what is free.
    pub memory: Option<u64>,
    /// States whose keys and values are held at once, each of which takes the memory of one more sequence (with
    /// [`Kernels::Packed`]). Beyond that the one that has waited longest is dropped, and what goes on from it is
    /// computed anew, to the same bits.
    pub kept_states: usize,
    /// Whether the context of running sequences is computed again when other weights come into use (a run's
    /// `weight_swap` is `recompute`). Otherwise they go on with the keys and values they have.
    pub recompute: bool,
    /// Whether completions of a model with experts tell which ones were chosen (with [`Kernels::Packed`]): a run's
    /// `router_replay` is not disabled.
    pub keep_routing: bool,
}

/// Most tokens of a place that are told beside the drawn one (vLLM `max_logprobs`).
pub const MOST_TOP_LOGPROBS: u32 = 20;

/// Rows of a step beyond which no drafts are added to the newest tokens of the sequences.
const DRAFT_ROWS: usize = 32;

impl EngineOptions {
    /// What a run does without being told, on one thread and for weights that stay.
    #[must_use]
    pub fn new(max_num_seqs: usize, max_model_len: usize) -> Self {
        Self::computing(&TrainConfig::default(), max_num_seqs, max_model_len)
    }

    /// As a configuration says, on one thread and for weights that stay.
    #[must_use]
    pub fn computing(config: &TrainConfig, max_num_seqs: usize, max_model_len: usize) -> Self {
        Self {
            device: config.rollout_device,
            kernels: config.rollout_kernels,
            rollout_dtype: config.rollout_dtype,
            kv_dtype: config.kv_dtype,
            threads: 1,
            max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            prefill_batch: config.rollout_prefill_batch,
            max_model_len,
            speculative_tokens: config.speculative_tokens,
            candidates: config.rollout_candidates,
            cuda_graphs: config.rollout_cuda_graphs,
            spinning: false,
            hot_swap: false,
            conformity_gate: config.conformity_gate,
            kept: 0,
            memory: None,
            kept_states: 0,
            recompute: false,
            keep_routing: false,
        }
    }

    /// What a run's options say, for sequences of at most `max_model_len` tokens. Without `max_num_seqs`, as many at
    /// once as a step has completions; [`EngineOptions::fit`] then lowers that to what the memory has room for.
    #[must_use]
    pub fn of(config: &TrainConfig, model: &ModelConfig, max_model_len: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads: config.threads(cores).0,
            // In a synchronous run the learner waits while the sampler works, and the cores are free.
            spinning: config.max_staleness == 0,
            hot_swap: true,
            kept: kept_numbers(config, model),
            kept_states: config.kept_states(config.sequences_wanted()),
            recompute: config.weight_swap == WeightSwap::Recompute,
            keep_routing: config.router_replay != RouterReplay::Disabled,
            ..Self::computing(config, config.sequences_wanted(), max_model_len)
        }
    }

    /// What the packed kernels compute linear layers in.
    #[must_use]
    pub fn format(&self) -> Format {
        match self.rollout_dtype {
            RolloutDtype::Auto => Format::Fp32,
            RolloutDtype::Int8 => Format::Int8,
            RolloutDtype::Int4 => Format::Int4,
            RolloutDtype::Bf16 => Format::Bf16,
            RolloutDtype::Bf16Dot => Format::Bf16Dot,
            RolloutDtype::Bf16x3 => Format::Bf16x3,
        }
    }

    /// What the packed kernels store keys and values as.
    #[must_use]
    pub fn kv_format(&self) -> KvFormat {
        match self.kv_dtype {
            KvDtype::Auto => KvFormat::Fp32,
            KvDtype::Int8 => KvFormat::Int8,
            KvDtype::Bf16 => KvFormat::Bf16,
        }
    }

    /// Most rows of a decode step.
    pub(super) fn rows(&self) -> usize {
        let drafted = self.max_num_seqs.saturating_mul(self.speculative_tokens.saturating_add(1));
        self.max_num_seqs.max(drafted.min(DRAFT_ROWS))
    }

    /// Places in the KV cache: those of the running sequences, and of the prompts that samples are started from.
    pub(super) fn slots(&self) -> usize {
        self.max_num_seqs.saturating_add(self.prefill_batch)
    }
}

/// Looks for a stop string in the tokens of one completion.
pub trait StopCriterion: Send {
    /// Takes the next token; true ends the completion (the token is kept).
    fn push(&mut self, token: u32) -> bool;
}

/// One prompt to be completed several times.
#[derive(Clone)]
pub struct GroupRequest {
    /// The caller's name for the group; comes back with every sequence.
    pub tag: u64,
    /// Key of the randomness.
    pub prompt_id: PromptId,
    /// Key of the randomness: the epoch of the dataset.
    pub epoch: u32,
    /// The prompt.
    pub prompt_ids: Arc<[u32]>,
    /// Indices of the completions within their group, ascending; keys of the randomness.
    pub samples: Arc<[u32]>,
    /// How tokens are drawn.
    pub sampling: Arc<SamplingParams>,
    /// Own completion lengths by the index of the sample, for benchmarks with ragged lengths; wins over
    /// `max_completion_length`.
    pub lengths: Option<Arc<[u32]>>,
    /// Makes a criterion for each completion; absent without stop strings.
    pub stop_criterion: Option<Arc<dyn Fn() -> Box<dyn StopCriterion> + Send + Sync>>,
    /// What the completions may be; absent where they may be anything.
    pub constraint: Option<Constrained>,
}

/// What a generator is asked for.
#[derive(Clone)]
pub struct Request {
    /// The prompt and its completions; after a state, the ids that come next, of which there may be none.
    pub group: GroupRequest,
    /// What the prompt goes on from. Tokens are drawn by numbers of their own, so prompt, epoch and sample may be those
    /// of the completion before; several requests after one state need different samples.
    pub from: Option<State>,
    /// Whether tokens are wanted as they come.
    pub stream: bool,
    /// Whether completions leave states to go on from.
    pub keep: bool,
    /// The likeliest tokens of each place that are wanted with their log-probs (OpenAI `top_logprobs`), at most
    /// [`MOST_TOP_LOGPROBS`].
    pub top_logprobs: u32,
}

impl From<GroupRequest> for Request {
    /// Whole completions of a prompt, and nothing else.
    fn from(group: GroupRequest) -> Self {
        Self { group, from: None, stream: false, keep: false, top_logprobs: 0 }
    }
}

impl Request {
    /// The same as a group with the whole context for a prompt.
    #[must_use]
    pub fn whole(&self) -> GroupRequest {
        let Some(state) = &self.from else { return self.group.clone() };
        let seed = rng::hash(&[self.group.sampling.seed, state.past().drawn]);
        GroupRequest {
            prompt_ids: [state.ids(), &self.group.prompt_ids].concat().into(),
            sampling: Arc::new(SamplingParams { seed, ..(*self.group.sampling).clone() }),
            ..self.group.clone()
        }
    }

    /// [`Request::whole`], if a model of `vocab_size` tokens can complete it within `max_model_len`. Whoever generates
    /// takes nothing else.
    ///
    /// # Errors
    /// When the prompt is empty, leaves no room for a token or holds an id outside the vocabulary, or the numbers of
    /// the request make no sense.
    pub fn check(&self, vocab_size: usize, max_model_len: usize) -> Result<GroupRequest, EngineError> {
        let whole = self.whole();
        let prompt = whole.prompt_id.0;
        let refuse = |message: String| Err(EngineError::Request { prompt, message });
        let length = whole.prompt_ids.len();
        if length == 0 {
            return refuse("the prompt has no tokens".into());
        }
        if length >= max_model_len {
            let room = format!("{length} tokens leave no room for a completion within max_model_len ({max_model_len})");
            return refuse(room);
        }
        if let Some(id) = whole.prompt_ids.iter().find(|&&id| id as usize >= vocab_size) {
            return refuse(format!("token {id} is not in the vocabulary of {vocab_size} tokens"));
        }
        let Some(&last) = whole.samples.last() else {
            return refuse("at least one completion must be wanted".into());
        };
        if let Some(lengths) = &whole.lengths
            && (lengths.len() <= last as usize || lengths.contains(&0))
        {
            return refuse("lengths must be one positive number per completion".into());
        }
        if self.top_logprobs > MOST_TOP_LOGPROBS {
            return refuse(format!("top_logprobs is at most {MOST_TOP_LOGPROBS}"));
        }
        match whole.sampling.validate() {
            Ok(()) => Ok(whole),
            Err(message) => refuse(message),
        }
    }

    /// Refuses completions that may grow across the original length of a model with longrope: all positions of a longer
    /// sequence are turned otherwise. `whole` is [`Request::whole`].
    ///
    /// # Errors
    /// When a completion may end beyond that length, and did not begin there.
    pub fn check_growth(
        &self,
        whole: &GroupRequest,
        model: &ModelConfig,
        max_model_len: usize,
    ) -> Result<(), EngineError> {
        let Some(original) = model.original_length() else { return Ok(()) };
        let begin = self.from.as_ref().map_or(whole.prompt_ids.len(), |state| state.ids().len());
        let own = whole.lengths.as_ref().and_then(|lengths| lengths.iter().max());
        let most = own.copied().unwrap_or(whole.sampling.max_completion_length) as usize;
        let end = (whole.prompt_ids.len() + most).min(max_model_len);
        if begin > original || end <= original {
            return Ok(());
        }
        let message = format!(
            "from {begin} tokens it may grow to {end}, across the {original} of the model's original length, where \
             longrope turns every position otherwise; let max_model_len be {original}, lower the completion's length, \
             or begin beyond {original} tokens"
        );
        Err(EngineError::Request { prompt: whole.prompt_id.0, message })
    }

    /// What comes of a completion that somebody has made as a whole. `whole` is [`Request::whole`], which is built once
    /// for all completions of a request.
    #[must_use]
    pub fn outputs(&self, whole: &GroupRequest, sequence: FinishedSequence) -> Vec<Output> {
        let (tag, sample) = (sequence.tag, sequence.sample);
        let tokens = sequence.token_ids.iter().zip(&sequence.logprobs).enumerate().filter(|_| self.stream);
        let token = |(at, (&id, &logprob)): (usize, (&u32, &TokenLogprob))| {
            let top = sequence.top_logprobs.get(at).cloned().unwrap_or_default();
            Output::Token { tag, sample, id, logprob, top }
        };
        let mut outputs: Vec<Output> = tokens.map(token).collect();
        let state = self.keep.then(|| State::after(whole, self.past(), &sequence.token_ids));
        outputs.push(Output::Ended { sequence, state });
        outputs
    }

    /// How the prompt of [`Request::whole`] came to be.
    pub(crate) fn past(&self) -> Past {
        self.from.as_ref().map_or_else(|| Past::of(&self.group), State::past)
    }
}

/// What comes of a step.
#[derive(Debug, Clone)]
pub enum Output {
    /// A token of a completion, of a request that wants them as they come.
    Token {
        /// The group's tag.
        tag: u64,
        /// Index within the group.
        sample: u32,
        /// The token.
        id: u32,
        /// Its log-probs.
        logprob: TokenLogprob,
        /// The likeliest tokens in its place, the likeliest first, as many as were wanted.
        top: Vec<TopLogprob>,
    },
    /// A completion has ended.
    Ended {
        /// The completion.
        sequence: FinishedSequence,
        /// What it leaves to go on from, where that is wanted.
        state: Option<State>,
    },
}

impl Output {
    /// The completion that has ended with it.
    #[must_use]
    pub fn ended(self) -> Option<FinishedSequence> {
        match self {
            Self::Token { .. } => None,
            Self::Ended { sequence, .. } => Some(sequence),
        }
    }
}

/// The log-prob of a token that was given, under the full distribution at temperature 1.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenLogprob {
    /// Of the token.
    pub logprob: f64,
    /// The tokens that would have been likeliest in its place, the likeliest first, as many as were wanted; of equal
    /// ones, those with the lowest ids.
    pub top: Vec<TopLogprob>,
}

/// A completion that has ended.
#[derive(Debug, Clone)]
pub struct FinishedSequence {
    /// The group's tag.
    pub tag: u64,
    /// Index within the group.
    pub sample: u32,
    /// Sampled tokens; the end-of-sequence token, if one came, is the last.
    pub token_ids: Vec<u32>,
    /// One entry per token.
    pub logprobs: Vec<TokenLogprob>,
    /// The likeliest tokens in the place of each token; empty if they were not wanted.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    /// Runs of weight versions, `(first token index, version)`.
    pub versions: Vec<(u32, PolicyVersion)>,
    /// The experts that were chosen, where the engine keeps them.
    pub routing: Option<Box<Routing>>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seconds in the queue until the group was admitted.
    pub queue_seconds: f64,
    /// Seconds from admission of the group, when its prompt or the first piece of it began to be computed, to the first
    /// token; the time before that in the queue is not counted.
    pub ttft_seconds: f64,
    /// Seconds from admission of the group to the last token.
    pub total_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::{super::testing::group, *};

    /// A completion with other log-probs for each token.
    fn made(tag: u64, sample: u32, token_ids: &[u32]) -> FinishedSequence {
        let logprob = |&id: &u32| TokenLogprob { logprob: -(id as f32), ..TokenLogprob::default() };
        FinishedSequence {
            tag,
            sample,
            token_ids: token_ids.to_vec(),
            logprobs: token_ids.iter().map(logprob).collect(),
            top_logprobs: token_ids.iter().map(|&token| vec![TopLogprob { token, logprob: -0.5 }]).collect(),
            versions: vec![(0, PolicyVersion(0))],
            routing: None,
            finish_reason: FinishReason::Stop,
            queue_seconds: 0.0,
            ttft_seconds: 0.0,
            total_seconds: 0.0,
        }
    }

    #[test]
    fn of_a_whole_completion_come_its_tokens_and_then_its_end() {
        for (stream, keep) in [(false, false), (true, false), (false, true), (true, true)] {
            let what = format!("stream {stream}, keep {keep}");
            let request = Request { stream, keep, ..group(3, 2).into() };
            let mut outputs = request.outputs(&request.whole(), made(3, 1, &[7, 9, 8]));
            let Some(Output::Ended { sequence, state }) = outputs.pop() else { panic!("{what}: the end is the last") };
            let token = |output: Output| match output {
                Output::Token { tag, sample, id, logprob, top } => {
                    assert_eq!(top, [TopLogprob { token: id, logprob: -0.5 }]);
                    (tag, sample, id, logprob.logprob)
                }
                Output::Ended { .. } => panic!("{what}: it ends once"),
            };
            let tokens: Vec<_> = outputs.into_iter().map(token).collect();
            let expected = if stream { vec![(3, 1, 7, -7.0), (3, 1, 9, -9.0), (3, 1, 8, -8.0)] } else { Vec::new() };
            assert_eq!(tokens, expected, "{what}");
            assert_eq!((sequence.tag, sequence.sample, sequence.token_ids), (3, 1, vec![7, 9, 8]), "{what}");
            assert_eq!(sequence.logprobs.len(), 3, "{what}");
            assert_eq!(state.map(|state| state.ids().to_vec()), keep.then(|| vec![1, 2, 7, 9, 8]), "{what}");
        }
    }

    #[test]
    fn what_cannot_be_completed_is_refused_by_the_name_of_its_prompt() {
        let check = |group: GroupRequest| Request::from(group).check(50, 8).map_err(|error| error.to_string());
        assert_eq!(check(group(7, 2)).unwrap().prompt_ids[..], [1, 2]);
        assert_eq!(check(GroupRequest { prompt_ids: [49; 7].into(), ..group(7, 1) }).unwrap().samples[..], [0]);
        let prompt = |ids: &[u32]| GroupRequest { prompt_ids: ids.into(), ..group(7, 1) };
        let lengths = |lengths: &[u32]| GroupRequest { lengths: Some(lengths.into()), ..group(7, 2) };
        let sampling = SamplingParams { top_p: 0.0, ..SamplingParams::default() };
        for (refused, part) in [
            (prompt(&[]), "the prompt has no tokens"),
            (prompt(&[1; 8]), "8 tokens leave no room for a completion within max_model_len (8)"),
            (prompt(&[1, 50]), "token 50 is not in the vocabulary of 50 tokens"),
            (group(7, 0), "at least one completion must be wanted"),
            (lengths(&[3]), "lengths must be one positive number per completion"),
            (lengths(&[3, 0]), "lengths must be one positive number per completion"),
            (GroupRequest { sampling: sampling.into(), ..group(7, 1) }, "top_p"),
        ] {
            let error = check(refused).map(drop).unwrap_err();
            assert!(error.starts_with("prompt 7: ") && error.contains(part), "{error}");
        }
        let many = Request { top_logprobs: 21, ..group(7, 1).into() }.check(50, 8).map(drop).unwrap_err().to_string();
        assert!(many.contains("top_logprobs is at most 20"), "{many}");
        // Of a prompt after a state the whole context counts.
        let state = State::after(&group(0, 1), Past { prompt: 2, drawn: 0 }, &[3; 4]);
        let error = Request { from: Some(state), ..group(7, 1).into() }.check(50, 8).map(drop).unwrap_err();
        assert!(error.to_string().contains("8 tokens leave no room"), "{error}");
    }

    #[test]
    fn what_goes_on_from_a_state_leaves_one_with_all_that_came_before() {
        let leave = |request: &Request, token_ids: &[u32]| {
            let tag = request.group.tag;
            match request.outputs(&request.whole(), made(tag, 0, token_ids)).pop() {
                Some(Output::Ended { state: Some(state), .. }) => state,
                _ => panic!("it leaves a state"),
            }
        };
        let first = leave(&Request { keep: true, ..group(0, 1).into() }, &[7, 9, 8]);
        let next = Request { from: Some(first), keep: true, ..group(1, 1).into() };
        assert_eq!(next.whole().prompt_ids[..], [1, 2, 7, 9, 8, 1, 2]);
        assert_ne!(next.whole().sampling.seed, next.group.sampling.seed, "tokens are drawn by numbers of their own");
        let last = leave(&next, &[5]);
        assert_eq!(last.ids(), [1, 2, 7, 9, 8, 1, 2, 5]);
        assert_eq!(last.past(), Past { prompt: 2, drawn: 4 });
    }
}
