//! Levers: what a device may do in a decode step in another way than the published graph does by itself.
//!
//! A lever is meant to make decode steps faster, and no GPU has judged one yet. So each stands in a folder of its own
//! and is off unless an option asks for it. All of them hang on the stock backend by one trait, [`Lever`], and share
//! the memory that logits are written to. To drop a lever, delete its folder and its lines in [`Levers::wanted`].

use ndarray::ArrayViewMut2;
use shared::ModelConfig;

use super::{candidates::Candidates, captured::CapturedSteps};
use crate::{
    engine::{
        EngineError, EngineOptions, Profile,
        sequence::Sequence,
        session::SessionOptions,
        stock::{batch::Batch, graph::GraphSession, slots::Slots},
        storage::Storage,
    },
    sampling::SamplingThreads,
};

/// A decode step of the stock backend, on the slots from 0 on.
pub(in crate::engine) struct DecodeStep<'a> {
    pub session: &'a mut GraphSession,
    /// A row for each slot.
    pub batch: &'a mut Batch,
    pub slots: &'a mut Slots,
    /// Whether another version is being loaded, or waits to be installed.
    pub is_loading: bool,
}

/// Where something else may be done with a decode step. Whatever a lever leaves out is done as it is without levers.
pub(in crate::engine) trait Lever {
    /// Runs a step, with logits in the first rows of `logits` (`[max_num_seqs, vocab]`); whether it did.
    fn run(&mut self, _step: &mut DecodeStep<'_>, _logits: &mut Storage) -> Result<bool, EngineError> {
        Ok(false)
    }

    /// Whether it draws tokens from logits that stay on the device: [`Lever::draw`].
    fn draws(&self) -> bool {
        false
    }

    /// Draws the next token of the sequence of every slot from `logits`, one row for each. Rows that are needed whole
    /// are fetched to their places in `whole` (`[rows, vocab]`).
    fn draw(
        &mut self,
        _logits: &mut Storage,
        _slots: &mut [Option<Sequence>],
        _whole: ArrayViewMut2<'_, f32>,
        _threads: &mut SamplingThreads,
    ) -> Result<(), EngineError> {
        unreachable!("a lever that draws nothing is not asked to");
    }

    /// Other weights are in use. Returns whether this thread has to free those before.
    fn weights_changed(&mut self) -> bool {
        false
    }

    /// Adds what it has done since the last call.
    fn count(&mut self, profile: &mut Profile);
}

/// The levers that are on.
pub(in crate::engine) struct Levers {
    /// `[max_num_seqs, vocab]`, in memory of the device that never moves.
    logits: Storage,
    all: Vec<Box<dyn Lever>>,
}

impl Levers {
    /// Those that the options ask for; absent where none is on.
    pub fn wanted(config: &ModelConfig, options: &EngineOptions) -> Result<Option<Self>, EngineError> {
        let EngineOptions { max_num_seqs, max_model_len, device, candidates, cuda_graphs, .. } = *options;
        let (vocab, session) = (config.vocab_size, SessionOptions::of(options));
        let mut all: Vec<Box<dyn Lever>> = Vec::new();
        if candidates > 0
            && let Some(candidates) = Candidates::new(max_num_seqs, vocab, candidates, session)?
        {
            all.push(Box::new(candidates));
        }
        if cuda_graphs {
            all.push(Box::new(CapturedSteps::new(max_num_seqs, max_model_len, vocab, device)?));
        }
        if all.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { logits: Storage::new(max_num_seqs * vocab * size_of::<f32>(), device)?, all }))
    }

    /// Runs a step. Its logits come to `logits` (`[rows, vocab]`), unless a lever draws where they are.
    pub fn run(&mut self, mut step: DecodeStep<'_>, logits: ArrayViewMut2<'_, f32>) -> Result<(), EngineError> {
        let Self { logits: on_device, all } = self;
        on_device.settle()?;
        let mut has_run = false;
        for lever in all.iter_mut() {
            has_run = has_run || lever.run(&mut step, on_device)?;
        }
        if !has_run {
            let DecodeStep { session, batch, slots, .. } = step;
            session.run(&batch.inputs(), slots, 0, on_device.floats(logits.len()), None)?;
        }
        if !all.iter().any(|lever| lever.draws()) {
            on_device.read(0, logits.into_slice().expect("arrays of logits are contiguous"))?;
        }
        Ok(())
    }

    /// Draws a token for the sequence of every slot, if a lever does that; whether one did.
    pub fn draw(
        &mut self,
        slots: &mut [Option<Sequence>],
        whole: ArrayViewMut2<'_, f32>,
        threads: &mut SamplingThreads,
    ) -> Result<bool, EngineError> {
        let Some(lever) = self.all.iter_mut().find(|lever| lever.draws()) else { return Ok(false) };
        lever.draw(&mut self.logits, slots, whole, threads)?;
        Ok(true)
    }

    /// As [`Lever::weights_changed`], of all.
    pub fn weights_changed(&mut self) -> bool {
        let mut frees = false;
        // Every lever has to know, so none is skipped once another has answered.
        for lever in &mut self.all {
            frees |= lever.weights_changed();
        }
        frees
    }

    /// As [`Lever::count`], of all.
    pub fn count(&mut self, profile: &mut Profile) {
        self.all.iter_mut().for_each(|lever| lever.count(profile));
    }
}
