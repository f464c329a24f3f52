//! Completing every prompt of a dataset: what `generate` and `eval` have in common.

use std::{iter, time::Instant};

use anyhow::{Context, ensure};
use exporters::{DEFAULT_MAX_POSITIONS, ExportOptions, ensure_export};
use shared::{GroupId, ModelDir, PolicyVersion, RolloutGroup, SamplingParams, Step};

use super::{flags::BatchingFlags, progress::Progress};
use crate::{
    assembly::{Assembly, Scoring},
    data::{Dataset, Tokenizer},
    engine::{Engine, EngineOptions, WeightSource, auto_max_num_seqs, available_memory},
    trace::{self, Event},
};

/// Every completion of a dataset.
pub struct Completed {
    /// One group per row, in order.
    pub groups: Vec<RolloutGroup>,
    /// Sampled tokens.
    pub tokens: u64,
    /// Seconds of generation; export and start of the engine are not counted.
    pub seconds: f64,
}

/// What is to be completed, and how.
pub struct Generation<'a> {
    /// The prompts.
    pub dataset: &'a Dataset,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Completions per prompt.
    pub num_generations: u32,
}

impl Generation<'_> {
    /// Exports the model if need be and starts an engine that fits.
    ///
    /// # Errors
    /// A model that cannot be exported, flags out of range, a prompt that is too long, too little memory.
    pub fn engine(&self, model: &ModelDir, batching: &BatchingFlags) -> anyhow::Result<Engine> {
        let sequences = self.dataset.len() * self.num_generations as usize;
        let longest = self.dataset.longest_prompt() + self.sampling.max_completion_length as usize;
        let mut options = batching.engine_options(sequences, longest, model.config().max_position_embeddings)?;
        self.check_lengths(&options)?;
        if batching.max_num_seqs.is_none() {
            options.max_num_seqs = auto_max_num_seqs(
                model.config(),
                options.device.export_dtype(),
                &options,
                options.max_num_seqs,
                available_memory(options.device)?,
            )?;
        }
        let positions = (options.max_model_len > DEFAULT_MAX_POSITIONS).then_some(options.max_model_len);
        let export = ExportOptions { dtype: options.device.export_dtype(), max_positions: positions };
        let dir = ensure_export(model, &export).with_context(|| format!("--model {}", model.path().display()))?;
        Ok(Engine::new(WeightSource { dir, version: PolicyVersion(0) }, model, options)?)
    }

    fn check_lengths(&self, options: &EngineOptions) -> anyhow::Result<()> {
        for row in self.dataset.rows() {
            ensure!(
                row.prompt_ids.len() < options.max_model_len,
                "{}: prompt {} has {} tokens, which leaves no room for a completion in a maximum of {}; raise \
                 --max-model-len (within the model's limit) or set --max-prompt-length",
                self.dataset.path().display(),
                row.prompt_id,
                row.prompt_ids.len(),
                options.max_model_len
            );
        }
        Ok(())
    }

    /// Generates, and scores beside it.
    ///
    /// # Errors
    /// What the engine reports.
    pub fn complete(&self, engine: &mut Engine, scoring: Option<Scoring>) -> anyhow::Result<Completed> {
        let rows = self.dataset.rows();
        let mut assembly = Assembly::new(self.tokenizer.clone(), self.sampling.clone(), self.num_generations, scoring);
        for (row, index) in rows.iter().zip(0..) {
            let id = GroupId { step: Step(0), index };
            engine
                .add_group(assembly.begin(id, row, 0, 0))
                .with_context(|| format!("{}: prompt {}", self.dataset.path().display(), row.prompt_id))?;
        }
        let begin = Instant::now();
        let mut progress = Progress::new(rows.len() * self.num_generations as usize);
        let mut groups = Vec::with_capacity(rows.len());
        while !engine.is_idle() {
            for sequence in engine.step()? {
                progress.completed(sequence.token_ids.len());
                assembly.add(sequence)?;
            }
            progress.tick();
            groups.extend(iter::from_fn(|| assembly.finished()));
        }
        let seconds = progress.seconds();
        progress.finish();
        let tokens = progress.tokens();
        groups.extend(iter::from_fn(|| assembly.wait()));
        ensure!(groups.len() == rows.len(), "the engine stopped with {} groups missing", rows.len() - groups.len());
        groups.sort_unstable_by_key(|group| group.id);
        trace::span(begin, Instant::now(), Event::Generate { tokens });
        Ok(Completed { groups, tokens, seconds })
    }
}
