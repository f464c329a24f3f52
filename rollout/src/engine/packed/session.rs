//! A session over the rewritten graph.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ndarray::{Array2, ArrayViewMut2};
use ort::{memory::AllocationDevice, session::Session, value::TensorElementType};
use rollout_kernels::{
    element::Format,
    experts::ExpertMemory,
    pages::{PageShape, Pages},
    simd::Isa,
    spans::Spans,
    states::States,
};
use shared::{ModelConfig, Routing};

use super::{
    super::{
        EngineError,
        backend::{Cost, EachRow},
        binding::{Bindings, TensorMemory},
        session::{SessionOptions, alone, builder},
        storage::FloatMemory,
    },
    adapted::{LoadedAdapter, Share},
    cache::{PoolShapes, state_shape},
    choices::Choices,
    graph,
    operators::{self, SharedState, State},
    page_shape, start_threads,
    weights::{Kept, PackedWeights},
};

/// How long an idle thread looks for the next operator. That covers the gap between two operators, not the sampling
/// between two steps, when the cores are wanted.
const SPIN: Duration = Duration::from_micros(100);

/// How a packed session is made.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct PackedOptions {
    pub session: SessionOptions,
    pub pages: PoolShapes,
    /// Recurrent states, in the models that have them.
    pub states: usize,
    pub format: Format,
    /// Whether choices of experts are kept for [`PackedSession::choices`].
    pub keeps_choices: bool,
}

impl PackedOptions {
    /// Options of a session that scores sequences of so many positions, one after the other.
    pub fn to_score(self, config: &ModelConfig, positions: usize) -> Self {
        let pages = page_shape(config, 1, positions, self.pages.format);
        Self { pages, states: 1, keeps_choices: false, ..self }
    }
}

/// A session whose weights and cache lie outside the graph.
pub(in super::super) struct PackedSession {
    session: Session,
    bindings: Bindings,
    state: SharedState,
    pub config: ModelConfig,
}

impl PackedSession {
    pub fn new(weights: Arc<PackedWeights>, config: &ModelConfig, options: PackedOptions) -> Result<Self, EngineError> {
        let spin = if options.session.spinning { SPIN } else { Duration::ZERO };
        let threads = start_threads(options.session.threads, spin)?;
        let no_memory = |e| EngineError::Options(format!("no memory for the keys and values: {e}"));
        let [usual, wide] = options.pages.pools.map(Pages::new);
        let pages = [usual.map_err(no_memory)?, wide.map_err(no_memory)?];
        let states = States::new(state_shape(config, options.states))
            .map_err(|e| EngineError::Options(format!("no memory for the recurrent states: {e}")))?;
        let state = Arc::new(Mutex::new(State {
            weights,
            pages,
            states,
            spans: Spans::default(),
            shares: Vec::new(),
            last_tokens: Vec::new(),
            heads: config.num_attention_heads,
            isa: Isa::detect(),
            threads,
            scratch: Vec::new(),
            experts: ExpertMemory::default(),
            choices: if options.keeps_choices { Choices::new(config, options.pages.pages) } else { None },
            cost: Cost::default(),
        }));
        let failed = || EngineError::runtime("cannot load the graph of packed operators");
        // All work is that of the pool.
        let session = builder(SessionOptions { threads: 1, ..options.session })
            .and_then(|b| Ok(b.with_operators(operators::domain(&state)?)?))
            .and_then(|mut b| alone(|| b.commit_from_memory(&graph::rewritten(config))))
            .map_err(failed())?;
        let bindings = Bindings::new(&session, AllocationDevice::CPU).map_err(failed())?;
        Ok(Self { session, bindings, state, config: config.clone() })
    }

    /// Runs `ids`, one sequence after the other as `fill` adds them to the spans, and with the adapters of `shares`.
    /// `logits` (`[rows, vocab]`) receives the rows of the tokens that `fill` names.
    pub fn run(
        &mut self,
        ids: &[i64],
        shares: Vec<Share>,
        logits: ArrayViewMut2<'_, f32>,
        fill: impl FnOnce(&mut Spans, &mut Vec<usize>),
    ) -> Result<(), EngineError> {
        {
            let mut state = operators::lock(&self.state);
            let State { spans, last_tokens, shares: of_run, .. } = &mut *state;
            spans.clear();
            last_tokens.clear();
            fill(spans, last_tokens);
            spans.cut(self.config.group_size());
            assert_eq!(spans.tokens(), ids.len(), "one place in the spans for each token");
            assert_eq!(shares.iter().map(|share| share.tokens).sum::<usize>(), ids.len(), "each token has its weights");
            *of_run = shares;
            assert_eq!(
                logits.dim(),
                (last_tokens.len(), self.config.vocab_size),
                "one row of logits for each row asked for"
            );
        }
        let data = ids.as_ptr().cast_mut().cast();
        let input = TensorMemory::new(data, &[ids.len()], TensorElementType::Int64, false);
        let shape = [logits.nrows(), self.config.vocab_size];
        let output = FloatMemory::of(logits).tensor(&shape);
        // SAFETY: ids and logits are borrowed until this function returns, and both names are bound anew before every
        // run.
        let run = unsafe {
            self.bindings
                .bind_input(c"input_ids", &input)
                .and_then(|()| self.bindings.bind_output(c"logits", &output))
                .map_err(EngineError::runtime("cannot bind the graph's inputs"))
                .and_then(|()| self.bindings.run(&mut self.session, None))
        };
        // Nobody may want an adapter any more that was computed with.
        operators::lock(&self.state).shares.clear();
        run
    }

    /// Copies a page of keys and values over another one.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let mut state = operators::lock(&self.state);
        state.pages.iter_mut().for_each(|pool| pool.copy(from, to));
        if let Some(choices) = &mut state.choices {
            choices.copy(from, to);
        }
    }

    /// The choices of experts in the first positions of several lists of pages, if they are kept.
    pub fn choices<'a>(&self, parts: impl IntoIterator<Item = (&'a [u32], usize)>) -> Option<Routing> {
        let (state, mut routing) = (operators::lock(&self.state), Routing::default());
        let choices = state.choices.as_ref()?;
        parts.into_iter().for_each(|(pages, positions)| choices.add_to(&mut routing, pages, positions));
        Some(routing)
    }

    /// Copies a recurrent state over another one.
    pub fn copy_state(&mut self, from: u32, to: u32) {
        operators::lock(&self.state).states.copy(from, to);
    }

    /// Recurrent states that the last run read and wrote.
    pub fn states_read(&self) -> usize {
        operators::lock(&self.state).spans.states()
    }

    /// Pages of keys and values that the last run looked at: its own, and those of a prompt once for its neighbours.
    pub fn pages_read(&self) -> usize {
        operators::lock(&self.state).spans.pages().len()
    }

    /// What the next version may have in common with the one in use.
    pub fn kept(&self) -> Option<Arc<Kept>> {
        operators::lock(&self.state).weights.kept()
    }

    /// The weights in use.
    pub fn weights(&self) -> Arc<PackedWeights> {
        Arc::clone(&operators::lock(&self.state).weights)
    }

    /// Takes other weights into use and returns those before.
    pub fn exchange(&mut self, weights: Arc<PackedWeights>) -> Arc<PackedWeights> {
        std::mem::replace(&mut operators::lock(&self.state).weights, weights)
    }

    /// Time of the nodes since the last call.
    pub fn take_cost(&mut self) -> Cost {
        std::mem::take(&mut operators::lock(&self.state).cost)
    }

    /// Gives `each` the logits (`[vocab]`) of the positions before each of the last `scored` of some tokens. For a
    /// session of its own.
    pub fn score(
        &mut self,
        tokens: &[u32],
        scored: usize,
        adapter: Option<&LoadedAdapter>,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        // A long sequence goes through in pieces: activations and logits would take memory that nobody has planned.
        const PIECE: usize = 256;
        let fed: Vec<i64> = tokens[..tokens.len() - 1].iter().map(|&t| i64::from(t)).collect();
        let pages: Vec<u32> = (0..PageShape::pages_for(fed.len()) as u32).collect();
        let (rotary_begin, has_state) = (self.config.rotary_begin(tokens.len()), self.config.has_states());
        let (before, last) = fed.split_at(fed.len() - scored);
        let (unscored, scored) = (before.chunks(PIECE).map(|piece| (piece, 0)), last.chunks(PIECE));
        let mut computed = 0;
        for (piece, rows) in unscored.chain(scored.map(|piece| (piece, piece.len()))) {
            let mut logits = Array2::from_elem((rows, self.config.vocab_size), f32::NAN);
            let share = Share { adapter: adapter.cloned(), tokens: piece.len() };
            self.run(piece, vec![share], logits.view_mut(), |spans, wanted| {
                spans.push(&[], 0, &pages, computed, piece.len());
                spans.rotary_from(rotary_begin);
                if has_state {
                    spans.state_in(0);
                }
                wanted.extend(0..rows);
            })?;
            logits.rows().into_iter().for_each(|row| each(row.to_slice().expect("a row of logits is contiguous")));
            computed += piece.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use exporters::{ExportOptions, export};
    use rollout_kernels::{element::KvFormat, pages::PAGE};
    use shared::{ModelDir, PolicyVersion, config::Device};

    use super::{super::weights::Provided, *};
    use crate::engine::{WeightSource, packed::page_shape, session::read_manifest};

    #[test]
    fn a_panic_of_a_kernel_is_an_error_of_the_run_and_the_next_run_is_as_ever() {
        let model = ModelDir::open(harness::golden_dir().join("models/llama")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let source = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
        export(&model, &source.dir, &ExportOptions::default()).unwrap();
        let (config, manifest) = (model.config(), read_manifest(&source, model.config()).unwrap());
        let weights = PackedWeights::load(&source, config, &manifest, Format::Fp32, Provided::default(), 1).unwrap();
        let session =
            SessionOptions { device: Device::Cpu, threads: 2, spinning: false, hot_swap: false, cuda_graphs: false };
        let options = PackedOptions {
            session,
            pages: page_shape(config, 1, PAGE, KvFormat::Fp32),
            states: 1,
            format: Format::Fp32,
            keeps_choices: false,
        };
        let mut session = PackedSession::new(Arc::new(weights), config, options).unwrap();
        let mut logits = Array2::zeros((1, config.vocab_size));
        // A sequence without a page to store its key in.
        let error = session
            .run(&[1], vec![Share { adapter: None, tokens: 1 }], logits.view_mut(), |spans, last| {
                spans.push(&[], 0, &[], 0, 1);
                last.push(0);
            })
            .unwrap_err()
            .to_string();
        assert!(error.contains("a packed kernel panicked"), "{error}");
        session.score(&[0, 1, 2], 1, None, &mut |_| ()).unwrap();
    }
}
