//! The engine and its loop.

use std::{path::Path, time::Instant};

use shared::{Dtype, FinishReason, ModelConfig, ModelDir, PolicyVersion};

use super::{
    EngineError,
    backend::{Abilities, Backend, Prefill, PrefillLimits},
    check::{check_options, positions_of},
    draft::{Drafter, Drafts},
    gate,
    genai::{GenAiFolder, backend::FolderBackend},
    history::History,
    memory::{available_memory, plan_memory},
    open::open,
    packed::{AdapterLoader, LoadedAdapter},
    profile::{Profile, Stopwatch},
    runtime,
    scheduler::Scheduler,
    sequence::{self, DecodeRow, Limits, Sequence, Wish},
    session::{dtype_of, read_manifest},
    state::{HeldStates, State},
    storage::{LogitsBuffer, logits_buffer, rows_of},
    swap::{PendingSwap, manifest_of},
    types::{EngineOptions, FinishedSequence, GivenLogprob, Kernels, Output, Request, SwapReport, WeightSource},
};
use crate::{
    sampling::SamplingThreads,
    trace::{self, Event},
};

/// Continuous batching over one model.
pub struct Engine {
    config: ModelConfig,
    options: EngineOptions,
    limits: Limits,
    backend: Box<dyn Backend>,
    abilities: Abilities,
    /// Element type of the weights on disk.
    dtype: Dtype,
    version: PolicyVersion,
    scheduler: Scheduler,
    sampling: SamplingThreads,
    /// With speculative decoding.
    drafter: Option<Drafter>,
    drafts: Drafts,
    /// `[rows of a step, vocab]`.
    logits: LogitsBuffer,
    /// `[prompts of a call, vocab]`: what follows the prompts that samples start from.
    prefix_logits: LogitsBuffer,
    /// Tokens of the next prompt that were computed already, beside those that are held for what it goes on from.
    prefilled: usize,
    held: HeldStates,
    pending: Option<PendingSwap>,
    /// Adapters are loaded for the weights in use.
    keeps_weights: bool,
    profile: Profile,
}

impl Engine {
    /// Opens the weights and reserves the memory of every slot, after the memory plan was found to fit (it is logged).
    ///
    /// # Errors
    /// Options out of range, weights that do not belong to the model, a plan that does not fit, or an error of ONNX
    /// Runtime.
    pub fn new(weights: WeightSource, model: &ModelDir, options: EngineOptions) -> Result<Self, EngineError> {
        // Before anything else of ONNX Runtime is used: not even an error of its own can be made without the library.
        runtime::environment()?;
        let config = model.config().clone();
        let manifest = read_manifest(&weights, &config)?;
        check_options(&options, &config, &manifest)?;
        let dtype = dtype_of(&manifest);
        let plan = plan_memory(&config, dtype, &options, available_memory(&options)?)?;
        tracing::info!(
            max_num_seqs = options.max_num_seqs,
            max_model_len = options.max_model_len,
            "memory plan: {plan}"
        );

        let backend = open(&weights, &config, &manifest, &options)?;
        Self::over(backend, weights.version, dtype, model, options)
    }

    /// An engine over a folder for ONNX Runtime GenAI, one sequence at a time, whose weights stay.
    ///
    /// # Errors
    /// Options out of range, or those of [`GenAiFolder::open`].
    pub fn of_folder(
        folder: &Path,
        model: &ModelDir,
        threads: usize,
        max_model_len: usize,
    ) -> Result<Self, EngineError> {
        let backend = Box::new(FolderBackend::new(GenAiFolder::open(folder, threads)?));
        let options = EngineOptions { threads, kernels: Kernels::Stock, ..EngineOptions::new(1, max_model_len) };
        Self::over(backend, PolicyVersion(0), Dtype::Fp32, model, options)
    }

    fn over(
        backend: Box<dyn Backend>,
        version: PolicyVersion,
        dtype: Dtype,
        model: &ModelDir,
        options: EngineOptions,
    ) -> Result<Self, EngineError> {
        let (config, abilities) = (model.config().clone(), backend.abilities());
        let sampling = SamplingThreads::new(options.threads)
            .map_err(|e| EngineError::Options(format!("cannot start {} sampling threads: {e}", options.threads)))?;
        Ok(Self {
            limits: Limits {
                eos_token_ids: model.generation().eos_token_ids.clone(),
                max_model_len: options.max_model_len,
            },
            version,
            scheduler: Scheduler::new(options.max_num_seqs),
            sampling,
            drafter: (options.speculative_tokens > 0).then(|| Drafter::new(options.speculative_tokens, options.rows())),
            drafts: Drafts::default(),
            logits: logits_buffer(options.rows() * config.vocab_size, options.device)?,
            prefix_logits: logits_buffer(abilities.prefill.prompts * config.vocab_size, options.device)?,
            prefilled: 0,
            held: HeldStates::default(),
            pending: None,
            keeps_weights: false,
            profile: Profile::default(),
            backend,
            abilities,
            dtype,
            config,
            options,
        })
    }

    /// Queues a group; its samples start as slots become free.
    ///
    /// # Errors
    /// Those of [`Request::check`] and [`Request::check_growth`].
    pub fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        self.begin_with(request, None)
    }

    /// As [`Engine::begin`], with an adapter on the weights in use: tokens and log-probs have the bits of the merged
    /// model. Sequences with several adapters, and with none, run together.
    ///
    /// # Errors
    /// Those of [`Request::check`]; an adapter that another engine's loader has made, or one where the request goes on
    /// from a state or is to leave one.
    pub fn begin_with(&mut self, request: Request, adapter: Option<LoadedAdapter>) -> Result<(), EngineError> {
        self.sweep();
        let group = request.check(self.config.vocab_size, self.options.max_model_len)?;
        request.check_growth(&group, &self.config, self.options.max_model_len)?;
        self.check_adapter(adapter.as_ref())?;
        if adapter.is_some() && (request.keep || request.from.is_some()) {
            let message = "with an adapter, completions neither go on from states nor leave any".into();
            return Err(EngineError::Request { prompt: group.prompt_id.0, message });
        }
        let wish = Wish::of(&request);
        let known = || request.from.as_ref().and_then(State::history);
        let history = self.drafter.as_ref().map(|_| History::shared(&group.prompt_ids, known()));
        let from = request.from.filter(|_| self.backend.paged().is_some());
        let cached = from.as_ref().map_or(0, |state| self.held.tokens_of(state));
        self.scheduler.push(group, wish, from, cached, history, adapter);
        Ok(())
    }

    fn check_adapter(&self, adapter: Option<&LoadedAdapter>) -> Result<(), EngineError> {
        if adapter.is_none_or(|adapter| self.backend.takes(adapter)) {
            return Ok(());
        }
        Err(EngineError::Options("the adapter was loaded for other weights than those in use".into()))
    }

    /// What loads adapters for the weights in use. From now on, these stay.
    ///
    /// # Errors
    /// With the stock kernels, where weights are being loaded, or where those in use are an adapter themselves.
    pub fn adapter_loader(&mut self) -> Result<AdapterLoader, EngineError> {
        let loader = self.backend.adapter_loader(&self.config).filter(|_| self.pending.is_none());
        let none = || {
            EngineError::Options(
                "adapters beside the weights in use need the packed kernels, and weights that are no adapter and stay"
                    .into(),
            )
        };
        let loader = loader.ok_or_else(none)?;
        self.keeps_weights = true;
        Ok(loader)
    }

    /// One step: waiting samples start in free slots (their prompts are prefilled first, up to `max_num_batched_tokens`
    /// prompt tokens; a longer prompt in pieces while sequences run, or as a whole with the stock kernels), then every
    /// running sequence gets one more token.
    ///
    /// # Errors
    /// When ONNX Runtime fails or logits are not finite. The engine is then of no further use.
    pub fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        let mut watch = Stopwatch::start();
        self.sweep();
        let mut outputs = Vec::new();
        self.admit(&mut watch, &mut outputs)?;
        if self.scheduler.running() > 0 {
            self.decode(&mut watch, &mut outputs)?;
        }
        self.profile.scheduling += watch.lap();
        let kv_bytes = self.backend.kv_bytes_in_use();
        watch.all_laps(Event::Step { running: self.running(), waiting: self.waiting(), kv_bytes });
        Ok(outputs)
    }

    /// Whether nothing runs and nothing waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running() + self.waiting() == 0
    }

    /// Sequences in slots.
    #[must_use]
    pub fn running(&self) -> usize {
        self.scheduler.running()
    }

    /// Sequences that have not started.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    /// The version of the weights in use.
    #[must_use]
    pub fn version(&self) -> PolicyVersion {
        self.version
    }

    /// The options the engine was made with.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Whether waiting sequences may start (they may at first). Running ones are not touched.
    pub fn set_admission(&mut self, admit: bool) {
        self.scheduler.set_admission(admit);
    }

    /// Ends everything that runs or waits with [`shared::FinishReason::Aborted`]; sequences that had begun are returned
    /// with their tokens so far, waiting ones without any. Prompts that were computed for them keep their memory until
    /// the next ones are.
    pub fn abort_all(&mut self) -> Vec<FinishedSequence> {
        for slot in 0..self.scheduler.slots().len() {
            if self.scheduler.slots()[slot].is_some() {
                self.backend.release(slot);
            }
        }
        self.prefilled = 0;
        self.scheduler.abort_all(&self.limits)
    }

    /// Ends one completion of the groups with a tag, or all of them, with [`shared::FinishReason::Aborted`] and their
    /// tokens so far. Slots and memory are free at once; nothing else changes.
    pub fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        let cancelled = self.scheduler.cancel(tag, sample, &self.limits);
        cancelled.slots.iter().for_each(|&slot| self.backend.release(slot));
        if let Some(paged) = self.backend.paged() {
            cancelled.prefixes.iter().for_each(|&prompt| paged.give_up(prompt));
            if cancelled.first && self.prefilled > 0 {
                self.prefilled = 0;
                paged.give_up(0);
            }
        }
        self.sweep();
        cancelled.sequences
    }

    /// States whose keys and values are held.
    #[must_use]
    pub fn held_states(&mut self) -> usize {
        self.sweep();
        self.held.len()
    }

    /// Bytes of keys, values and recurrent states in use, those that are held for states included.
    #[must_use]
    pub fn kv_bytes_in_use(&mut self) -> u64 {
        self.sweep();
        self.backend.kv_bytes_in_use()
    }

    /// Frees what was held for states that nobody has any more.
    fn sweep(&mut self) {
        if let Some(paged) = self.backend.paged() {
            self.held.sweep(|number| paged.drop_held(number));
        }
    }

    /// Log-probs (temperature 1, without penalties) of a completion after a prompt, whoever has made it. What runs goes
    /// on after.
    ///
    /// # Errors
    /// Tokens outside the vocabulary, or none; those of the graph.
    pub fn score(&mut self, prompt_ids: &[u32], completion_ids: &[u32]) -> Result<Vec<f64>, EngineError> {
        let given = self.given_logprobs(prompt_ids, completion_ids, 0, None)?;
        Ok(given.into_iter().map(|given| given.logprob).collect())
    }

    /// As [`Engine::score`], each with the `top` likeliest tokens in the same place, and of the model with an adapter.
    ///
    /// # Errors
    /// As [`Engine::score`]; an adapter as in [`Engine::begin_with`].
    pub fn given_logprobs(
        &mut self,
        prompt_ids: &[u32],
        completion_ids: &[u32],
        top: usize,
        adapter: Option<&LoadedAdapter>,
    ) -> Result<Vec<GivenLogprob>, EngineError> {
        self.check_adapter(adapter)?;
        let vocab = self.config.vocab_size;
        let tokens = [prompt_ids, completion_ids].concat();
        if prompt_ids.is_empty() || completion_ids.is_empty() || tokens.iter().any(|&token| token as usize >= vocab) {
            return Err(EngineError::Options(
                "a prompt and a completion of tokens of the vocabulary are needed".into(),
            ));
        }
        let (backend, config) = (&mut self.backend, &self.config);
        let scored = completion_ids.len();
        gate::given_logprobs(completion_ids, top, |each| backend.score(config, &tokens, scored, adapter, each))
    }

    /// Time and work so far.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// Starts the profile anew.
    pub fn reset_profile(&mut self) {
        self.profile = Profile::default();
    }

    /// The kernels in use: those of the options, or the stock ones where the packed ones do not apply.
    #[must_use]
    pub fn kernels(&self) -> Kernels {
        self.abilities.kernels
    }

    /// What multiplies in the linear layers: the instruction set of the packed kernels (`amx-int8`, `amx-bf16`,
    /// `amx-bf16x3`, `avx512-bf16`, `avx512-vnni`, `avx512`, `avx2`, `plain`), or `onnxruntime`.
    #[must_use]
    pub fn instruction_set(&self) -> &'static str {
        self.abilities.instruction_set
    }

    /// Loads and probes new weights on a side thread; stepping goes on meanwhile.
    ///
    /// # Errors
    /// When a swap is pending already, when there is an [`Engine::adapter_loader`], or when the folder does not hold
    /// that version of this model.
    pub fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        if self.keeps_weights {
            let message = "adapters are loaded for the weights in use, which stay".into();
            return Err(EngineError::Swap { version: weights.version, message });
        }
        if let Some(pending) = &self.pending {
            let message = format!("v{} is being loaded already", pending.version);
            return Err(EngineError::Swap { version: weights.version, message });
        }
        let manifest = manifest_of(&weights, &self.config)?;
        if dtype_of(&manifest) != self.dtype {
            let message = "the element type is not that of the weights in use".into();
            return Err(EngineError::Weights { path: weights.dir.display().to_string(), message });
        }
        let (rows, needed) = (positions_of(&manifest, &self.config), self.options.max_model_len);
        if rows < needed {
            let message =
                format!("{} was exported for {rows} positions, and max_model_len is {needed}", weights.dir.display());
            return Err(EngineError::Swap { version: weights.version, message });
        }
        let version = weights.version;
        let load = self.backend.load(weights, self.config.clone(), manifest);
        self.pending = Some(PendingSwap::begin(version, load)?);
        Ok(())
    }

    /// Switches to the new weights if they are ready, without waiting. Running sequences go on under the new weights
    /// with the keys and values they have, or after these were computed again ([`EngineOptions::recompute`]); a caller
    /// that wants them to finish first pauses the admission and calls this when nothing runs. Samples that start later
    /// get a prompt prefilled with the new weights, and nothing is held for states any more.
    ///
    /// # Errors
    /// When the new weights could not be loaded, or are refused; the old weights stay in use.
    pub fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        let Some(pending) = self.pending.take_if(|pending| pending.is_ready()) else { return Ok(None) };
        let stalled = Instant::now();
        let (version, begun) = (pending.version, pending.begun);
        let gate = pending.join()?;
        if self.options.recompute {
            self.scheduler.send_back().into_iter().for_each(|slot| self.backend.release(slot));
        }
        self.backend.install();
        self.version = version;
        self.held.clear();
        self.scheduler.forget_prefixes();
        self.scheduler.slots().iter_mut().flatten().for_each(Sequence::mix);
        self.prefilled = 0;
        trace::span(stalled, Instant::now(), Event::SwapWeights { version: version.0 });
        let report = SwapReport {
            version,
            seconds: begun.elapsed().as_secs_f64(),
            stall_seconds: stalled.elapsed().as_secs_f64(),
            gate_seconds: gate.as_secs_f64(),
        };
        tracing::debug!(%version, seconds = report.seconds, stall_seconds = report.stall_seconds, "weights swapped");
        Ok(Some(report))
    }

    fn admit(&mut self, watch: &mut Stopwatch, outputs: &mut Vec<Output>) -> Result<(), EngineError> {
        let whole = self.options.max_num_batched_tokens;
        let mut budget = whole;
        loop {
            self.start_samples(watch, outputs)?;
            let limits = self.abilities.prefill;
            let mut prompts = self.scheduler.prompts_to_prefill(limits, budget);
            if prompts == 0 && budget == whole {
                // The next one is longer than that. Where it cannot be cut, it goes through as a whole.
                prompts = self.scheduler.prompts_to_prefill(PrefillLimits { prompts: 1, ..limits }, usize::MAX);
                let is_cut = self.scheduler.running() > 0 && self.backend.paged().is_some();
                if prompts == 1 && is_cut && self.scheduler.tokens(1) - self.prefilled > whole {
                    return self.prefill(1, Some(whole), watch);
                }
            }
            if prompts == 0 {
                return Ok(());
            }
            budget = budget.saturating_sub(self.scheduler.tokens_to_prefill(limits, prompts) - self.prefilled);
            self.prefill(prompts, None, watch)?;
        }
    }

    /// Computes all that is left of the prompts of the first waiting groups, or a piece of so many tokens of the first
    /// alone.
    fn prefill(&mut self, prompts: usize, piece: Option<usize>, watch: &mut Stopwatch) -> Result<(), EngineError> {
        self.scheduler.admit(prompts);
        self.profile.scheduling += watch.lap();
        let mut waiting: Vec<Prefill<'_>> = self.scheduler.prompts(prompts).collect();
        waiting[0].computed = self.prefilled;
        let left = self.scheduler.tokens(prompts) - self.prefilled;
        let (tokens, complete, cost) = match (piece, self.backend.paged()) {
            (Some(piece), Some(paged)) => (piece, 0, paged.prefill_piece(waiting[0], piece)?),
            _ => {
                let logits = rows_of(&mut self.prefix_logits, prompts, self.config.vocab_size);
                (left, prompts, self.backend.prefill(&waiting, logits)?)
            }
        };
        self.profile.add_nodes(cost);
        self.profile.prefill += watch.lap_of(Event::Prefill { tokens });
        self.profile.prefills += complete as u64;
        self.profile.prefill_tokens += tokens as u64;
        self.prefilled = if complete == 0 { self.prefilled + tokens } else { 0 };
        self.scheduler.prefixes_are_ready(complete);
        Ok(())
    }

    /// Starts samples of the prompts in prefix slots until they have none left or the slots are full.
    fn start_samples(&mut self, watch: &mut Stopwatch, outputs: &mut Vec<Output>) -> Result<(), EngineError> {
        let vocab = self.config.vocab_size;
        loop {
            self.profile.scheduling += watch.lap();
            // Slots of samples that have just started, and the prefix slots of their prompts.
            let mut started = Vec::new();
            while let Some((slot, prefix)) = self.scheduler.start_next(&self.limits) {
                self.backend.start(slot, prefix)?;
                if self.scheduler.next_prefix() != Some(prefix)
                    && let Some(paged) = self.backend.paged()
                {
                    paged.all_started(prefix);
                }
                started.push((slot, prefix));
            }
            if started.is_empty() {
                return Ok(());
            }
            self.profile.kv_copy += watch.lap_of(Event::KvCopy);
            // Free slots are filled from the first on.
            let prompt_of = |slot: usize| {
                let index = started.binary_search_by_key(&slot, |&(slot, _)| slot).ok()?;
                Some(started[index].1)
            };
            let logits = rows_of(&mut self.prefix_logits, self.abilities.prefill.prompts, vocab);
            sequence::draw(self.scheduler.slots(), &prompt_of, logits.view(), &mut self.sampling);
            self.profile.sampling += watch.lap_of(Event::Sample { rows: started.len() });
            for (slot, _) in started {
                self.accept(slot, outputs)?;
            }
        }
    }

    fn decode(&mut self, watch: &mut Stopwatch, outputs: &mut Vec<Output>) -> Result<(), EngineError> {
        self.profile.scheduling += watch.lap();
        let backend = &mut self.backend;
        self.scheduler.compact(|from, to, used| backend.moved(from, to, used))?;
        self.profile.kv_copy += watch.lap_of(Event::KvCopy);

        let rows = self.scheduler.running();
        let decode_rows: Vec<DecodeRow> = self.scheduler.dense().map(|sequence| sequence.decode_row()).collect();
        if let Some(drafter) = &mut self.drafter {
            drafter.draft(self.scheduler.slots(), &mut self.drafts);
        }
        let computed = rows + self.drafts.len();
        let logits = rows_of(&mut self.logits, computed, self.config.vocab_size);
        self.profile.scheduling += watch.lap();
        let cost = self.backend.decode(&decode_rows, &self.drafts, logits)?;
        let attended = |(slot, row): (usize, &DecodeRow)| -> u64 {
            (0..=self.drafts.of(slot).len()).map(|ahead| (row.position + 1 + ahead) as u64).sum()
        };
        let positions = decode_rows.iter().enumerate().map(attended).sum();
        let time = watch.lap_of(Event::Decode { rows: computed, positions });
        if let Some(drafter) = &mut self.drafter {
            drafter.took(computed, time);
        }
        self.profile.decode += time;
        self.profile.decode_steps += 1;
        self.profile.decode_tokens += rows as u64;
        self.profile.drafted_tokens += self.drafts.len() as u64;
        self.profile.add_nodes(cost);
        self.profile.add_kv(positions, cost.kv_bytes_read, self.backend.kv_bytes_in_use());
        self.draw(rows, watch, outputs)?;
        if let Some(levers) = self.backend.levers() {
            levers.count(&mut self.profile);
        }
        Ok(())
    }

    /// Draws from the logits of a step: once for every sequence, and again for those whose draw was their next draft.
    fn draw(&mut self, rows: usize, watch: &mut Stopwatch, outputs: &mut Vec<Output>) -> Result<(), EngineError> {
        // Slots whose next token can be drawn from the logits there are.
        let mut live = vec![true; rows];
        for round in 0.. {
            let drafts = &self.drafts;
            let row_of = |slot: usize| live[slot].then(|| drafts.first_row(slot) + round);
            let mut logits = rows_of(&mut self.logits, rows + drafts.len(), self.config.vocab_size);
            let (slots, drawn) = (self.scheduler.slots(), live.iter().filter(|&&live| live).count());
            let is_drawn = match self.backend.levers() {
                Some(levers) => levers.draw(slots, logits.view_mut(), &mut self.sampling)?,
                None => false,
            };
            if !is_drawn {
                sequence::draw(slots, &row_of, logits.view(), &mut self.sampling);
                self.profile.whole_rows += drawn as u64;
            }
            self.profile.sampling += watch.lap_of(Event::Sample { rows: drawn });
            for (slot, live) in live.iter_mut().enumerate().filter(|(_, live)| **live) {
                let newest = self.accept(slot, outputs)?;
                *live = newest.is_some() && newest == self.drafts.of(slot).get(round).copied();
                self.profile.accepted_tokens += u64::from(*live);
                self.profile.decode_tokens += u64::from(*live);
            }
            if !live.contains(&true) {
                break;
            }
        }
        Ok(())
    }

    /// Takes the token that a sequence has drawn; returns it if the sequence goes on. One whose constraint cannot go on
    /// ends without a state.
    fn accept(&mut self, slot: usize, outputs: &mut Vec<Output>) -> Result<Option<u32>, EngineError> {
        let sequence = self.scheduler.sequence(slot);
        let ended = sequence.accept(self.version, &self.limits)?;
        if ended == Some(FinishReason::Aborted) {
            let sequence = self.scheduler.release(slot).finish(FinishReason::Aborted);
            self.backend.release(slot);
            outputs.push(Output::Ended { sequence, state: None });
            return Ok(None);
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.learn(sequence);
        }
        outputs.extend(sequence.streamed());
        if let Some(reason) = ended {
            let sequence = self.scheduler.release(slot);
            let routing = self.backend.routing(slot, sequence.cached()).map(Box::new);
            let state = self.leave(slot, &sequence);
            let sequence = FinishedSequence { routing, ..sequence.finish(reason) };
            outputs.push(Output::Ended { sequence, state });
            return Ok(None);
        }
        Ok(self.scheduler.sequence(slot).newest())
    }

    /// Frees the slot of a sequence that has ended. Its keys and values are held where it leaves a state, if there is
    /// room for them and the weights in use have computed all.
    fn leave(&mut self, slot: usize, sequence: &Sequence) -> Option<State> {
        let Some(state) = sequence.state() else {
            self.backend.release(slot);
            return None;
        };
        self.sweep();
        let is_held = sequence.is_pure() && self.make_room_for_a_state();
        let Some(paged) = self.backend.paged().filter(|_| is_held) else {
            self.backend.release(slot);
            return Some(state);
        };
        let held = self.held.add();
        let state = state.with(Some(held));
        paged.hold(slot, sequence.cached(), state.held().expect("it was just given some"));
        Some(state)
    }

    /// Whether a further state can be held. Where there are as many as there may be, the one that has waited longest is
    /// dropped. Those that a request goes on from stay: they are about to be used.
    fn make_room_for_a_state(&mut self) -> bool {
        if self.held.len() < self.options.kept_states {
            return true;
        }
        let in_use = self.scheduler.held();
        let Some(dropped) = self.held.drop_longest_waiting(|number| in_use.contains(&number)) else { return false };
        if let Some(paged) = self.backend.paged() {
            paged.drop_held(dropped);
        }
        self.held.len() < self.options.kept_states
    }
}
