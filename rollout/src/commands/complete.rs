//! Completing every prompt of a dataset: what `generate`, `eval` and `compare` have in common.

use std::{iter, path::Path, time::Instant};

use anyhow::{Context, ensure};
use rollout_rewards::RewardFunction;
use shared::{GroupId, ModelDir, PolicyVersion, RolloutGroup, SamplingParams, Step};

use super::{
    bench::export,
    flags::{BatchingFlags, RewardFlags, RowFlags, SamplingFlags, TraceFlags},
    progress::Progress,
};
use crate::{
    assembly::{Assembly, Scoring},
    data::{Dataset, Tokenizer},
    engine::{Engine, WeightSource},
    trace::{self, Event},
};

/// Every completion of a dataset.
pub struct Completed {
    /// The prompts.
    pub dataset: Dataset,
    /// One group per row, in order.
    pub groups: Vec<RolloutGroup>,
    /// Sampled tokens.
    pub tokens: u64,
    /// Seconds of generation; export and start of the engine are not counted.
    pub seconds: f64,
}

/// Flags of the commands that complete a dataset.
#[derive(Debug, clap::Args)]
pub struct GenerationFlags {
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
    /// Reward functions.
    #[command(flatten)]
    pub rewards: RewardFlags,
    /// The timeline.
    #[command(flatten)]
    pub trace: TraceFlags,
}

impl GenerationFlags {
    /// Completes every prompt of a dataset (its path, and the split without --split) and has the functions score the completions.
    ///
    /// # Errors
    /// A model, tokenizer or dataset that cannot be used, flags out of range, too little memory, what the engine reports.
    pub fn complete(
        &self,
        model: &ModelDir,
        rows: &RowFlags,
        (dataset, split): (&Path, &str),
        functions: Vec<RewardFunction>,
        sampling: SamplingParams,
        num_generations: u32,
    ) -> anyhow::Result<Completed> {
        let tokenizer = Tokenizer::open(model)?;
        let dataset = rows.dataset(dataset, split, &tokenizer)?;
        let scoring = self.rewards.scoring(functions, &dataset, self.batching.threads()?)?;
        let mut generation = Generation { dataset, sampling, num_generations };
        self.trace.start()?;
        let mut engine = generation.engine(model, &self.batching)?;
        let completed = generation.complete(&mut engine, tokenizer, scoring)?;
        self.trace.write()?;
        Ok(completed)
    }
}

/// What is to be completed, and how.
struct Generation {
    dataset: Dataset,
    sampling: SamplingParams,
    num_generations: u32,
}

impl Generation {
    /// Exports the model if need be and starts an engine that fits.
    fn engine(&mut self, model: &ModelDir, batching: &BatchingFlags) -> anyhow::Result<Engine> {
        let sequences = self.dataset.len() * self.num_generations as usize;
        let longest = self.dataset.longest_prompt() + self.sampling.max_completion_length as usize;
        let mut options = batching.engine_options(sequences, longest, model.config().max_position_embeddings)?;
        let long = self.dataset.leave_out_long(options.max_model_len)?;
        if !long.is_empty() {
            shared::tell!("warning: {long}");
        }
        let dtype = options.device.export_dtype();
        batching.fit(&mut options, model, dtype)?;
        let dir = export(model, dtype, options.max_model_len)?;
        Ok(Engine::new(WeightSource { dir, version: PolicyVersion(0) }, model, options)?)
    }

    /// Generates, and scores beside it.
    fn complete(
        self,
        engine: &mut Engine,
        tokenizer: Tokenizer,
        scoring: Option<Scoring>,
    ) -> anyhow::Result<Completed> {
        let rows = self.dataset.rows();
        let mut assembly = Assembly::new(tokenizer, self.sampling.clone(), self.num_generations, scoring);
        for (row, index) in rows.iter().zip(0..) {
            let id = GroupId { step: Step(0), index };
            engine
                .add_group(assembly.begin(id, row, 0, 0))
                .with_context(|| format!("{}: prompt {}", self.dataset.name(), row.prompt_id))?;
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
        let (tokens, seconds) = progress.finish();
        groups.extend(iter::from_fn(|| assembly.wait()));
        ensure!(groups.len() == rows.len(), "the engine stopped with {} groups missing", rows.len() - groups.len());
        groups.sort_unstable_by_key(|group| group.id);
        trace::span(begin, Instant::now(), Event::Generate { tokens });
        Ok(Completed { dataset: self.dataset, groups, tokens, seconds })
    }
}
