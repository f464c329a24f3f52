//! Completing every prompt of a dataset: what `generate` and `eval` have in common.

use std::{sync::Arc, time::Instant};

use anyhow::{Context, ensure};
use exporters::{DEFAULT_MAX_POSITIONS, ExportOptions, ensure_export};
use rollout_rewards::{RewardPool, ScoredGroup};
use shared::{FinishReason, ModelDir, PolicyVersion, RewardOutcome, SamplingParams, TokenLogprob};

use super::{flags::BatchingFlags, progress::Progress};
use crate::{
    data::{Dataset, Tokenizer},
    engine::{
        Engine, EngineOptions, FinishedSequence, GroupRequest, WeightSource, auto_max_num_seqs, available_memory,
    },
    trace::{self, Event},
};

/// One completion, decoded and scored.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Sampled tokens.
    pub token_ids: Vec<u32>,
    /// One entry per token.
    pub logprobs: Vec<TokenLogprob>,
    /// Decoded without special tokens.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// One outcome per reward function.
    pub rewards: Vec<RewardOutcome>,
}

/// Every completion of a dataset.
pub struct Completions {
    /// One list per row, with its samples in order.
    pub rows: Vec<Vec<Sample>>,
    /// Sampled tokens.
    pub tokens: u64,
    /// Seconds of generation; export and start of the engine are not counted.
    pub seconds: f64,
}

/// What is to be completed, and how.
pub struct Job<'a> {
    /// The prompts.
    pub dataset: &'a Dataset,
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Completions per prompt.
    pub num_generations: u32,
}

impl Job<'_> {
    /// Exports the model if need be and starts an engine that fits the job.
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
    pub fn complete(&self, engine: &mut Engine, rewards: Option<&mut RewardPool>) -> anyhow::Result<Completions> {
        let stop_criterion = self.tokenizer.stop_criterion(&self.sampling.stop);
        let sampling = Arc::new(self.sampling.clone());
        for (index, row) in self.dataset.rows().iter().enumerate() {
            engine
                .add_group(GroupRequest {
                    tag: index as u64,
                    prompt_id: row.prompt_id,
                    epoch: 0,
                    prompt_ids: row.prompt_ids.clone(),
                    num_generations: self.num_generations,
                    sampling: sampling.clone(),
                    lengths: None,
                    stop_criterion: stop_criterion.clone(),
                })
                .with_context(|| format!("{}: prompt {}", self.dataset.path().display(), row.prompt_id))?;
        }
        let begin = Instant::now();
        let mut collected = Collected::new(self, rewards);
        let mut progress = Progress::new(collected.missing);
        while !engine.is_idle() {
            for sequence in engine.step()? {
                progress.completed(sequence.token_ids.len());
                collected.add(sequence)?;
            }
            progress.tick();
            collected.receive();
        }
        let seconds = progress.seconds();
        progress.finish();
        let tokens = progress.tokens();
        let rows = collected.finish()?;
        trace::span(begin, Instant::now(), Event::Generate { tokens });
        Ok(Completions { rows, tokens, seconds })
    }
}

/// Completions as they come in, in any order.
struct Collected<'a> {
    job: &'a Job<'a>,
    rewards: Option<&'a mut RewardPool>,
    rows: Vec<Vec<Option<Sample>>>,
    missing: usize,
}

impl<'a> Collected<'a> {
    fn new(job: &'a Job<'a>, rewards: Option<&'a mut RewardPool>) -> Self {
        let row = vec![None; job.num_generations as usize];
        Self {
            job,
            rewards,
            rows: vec![row; job.dataset.len()],
            missing: job.dataset.len() * job.num_generations as usize,
        }
    }

    fn add(&mut self, sequence: FinishedSequence) -> anyhow::Result<()> {
        let text = self.job.tokenizer.decode(&sequence.token_ids)?;
        let row = &mut self.rows[sequence.tag as usize];
        row[sequence.sample as usize] = Some(Sample {
            token_ids: sequence.token_ids,
            logprobs: sequence.logprobs,
            text,
            finish_reason: sequence.finish_reason,
            rewards: Vec::new(),
        });
        self.missing -= 1;
        if let Some(pool) = &mut self.rewards
            && row.iter().all(Option::is_some)
        {
            let samples = row.iter().flatten().map(|s| (s.text.as_str(), s.token_ids.as_slice(), s.finish_reason));
            pool.submit(sequence.tag, self.job.dataset.rows()[sequence.tag as usize].reward_input(samples));
        }
        Ok(())
    }

    fn receive(&mut self) {
        while let Some(group) = self.rewards.as_mut().and_then(|pool| pool.try_recv()) {
            self.score(group);
        }
    }

    fn score(&mut self, group: ScoredGroup) {
        let samples = self.rows[group.tag as usize].iter_mut().flatten();
        for (sample, outcomes) in samples.zip(group.outcomes) {
            sample.rewards = outcomes;
        }
    }

    fn finish(mut self) -> anyhow::Result<Vec<Vec<Sample>>> {
        ensure!(self.missing == 0, "the engine stopped with {} completions missing", self.missing);
        while let Some(group) = self.rewards.as_mut().and_then(|pool| pool.recv()) {
            self.score(group);
        }
        Ok(self.rows.into_iter().map(|row| row.into_iter().flatten().collect()).collect())
    }
}
