//! Completions that the model itself makes for a few rows, for the rehearsal of reward functions: a function may look
//! for something that only such completions have.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use exporters::ensure_export;
use rollout_rewards::{
    RewardCompletion,
    rehearsal::{Sample, Trial},
};
use shared::{Completion, ModelDir, PolicyVersion, config::TrainConfig, process::pace::Waiting};

use crate::{
    assembly::Assembly,
    data::{PromptRow, Tokenizer},
    engine::{Engine, EngineOptions, Output, WeightSource, export_options},
    generate::{self, Generate},
    structured_outputs,
};

/// Completions that are sampled at least, in whole groups of [`ROWS`] rows at most.
const SAMPLES: usize = 16;
const ROWS: usize = 4;

/// Sampling ends after this time, with the completions that are finished.
const ENOUGH: Duration = Duration::from_secs(20);

/// Samples groups of the first rows, as a run would in its first step.
///
/// # Errors
/// A model that cannot be opened or exported, too little memory, or no completion in time.
pub fn trials(
    rows: &[PromptRow],
    config: &TrainConfig,
    model: &ModelDir,
    tokenizer: &Tokenizer,
) -> anyhow::Result<Vec<Trial>> {
    let _waiting = Waiting::new("sampling a few completions from the model");
    let group = config.num_generations as usize;
    let limit = config.max_model_len.unwrap_or(usize::MAX).min(model.config().max_position_embeddings);
    let fits = |row: &&PromptRow| row.prompt_ids.len() < limit;
    let rows: Vec<&PromptRow> = rows.iter().filter(fits).take(SAMPLES.div_ceil(group).min(ROWS)).collect();
    let longest =
        rows.iter().map(|row| row.prompt_ids.len()).max().context("no prompt is short enough for the model")?;
    let mut engine =
        engine(config, model, limit.min(longest + config.max_completion_length as usize), rows.len() * group)?;
    let constraint = structured_outputs::of_run(config, model, tokenizer).context("`structured_outputs_regex`")?;
    let assembly = Assembly::new(tokenizer.clone(), config.sampling(), config.num_generations, None);
    let completions = sample(&mut engine, &rows, assembly.with_constraint(constraint))?;
    if completions.is_empty() {
        bail!("no completion was finished within {} s", ENOUGH.as_secs());
    }
    let trial = |(row, completions): (u64, Vec<Completion>)| {
        let seen = completions.iter().map(RewardCompletion::from);
        Trial { input: rows[row as usize].reward_input(seen), samples: vec![Sample::Model; completions.len()] }
    };
    Ok(completions.into_iter().map(trial).collect())
}

/// An engine for up to `sequences` completions at once, as memory allows.
fn engine(config: &TrainConfig, model: &ModelDir, max_model_len: usize, sequences: usize) -> anyhow::Result<Engine> {
    let dtype = config.rollout_device.export_dtype();
    let dir = ensure_export(model, &export_options(dtype, max_model_len))?;
    let of_run = EngineOptions::of(config, model.config(), max_model_len);
    let mut options = EngineOptions { max_num_seqs: sequences, spinning: true, hot_swap: false, kept: 0, ..of_run };
    options.fit(None, model.config(), dtype)?;
    Ok(Engine::new(WeightSource { dir, version: PolicyVersion(0) }, model, options)?)
}

/// The completions that are finished in time, by the index of their row.
fn sample(
    generator: &mut dyn Generate,
    rows: &[&PromptRow],
    mut assembly: Assembly,
) -> anyhow::Result<BTreeMap<u64, Vec<Completion>>> {
    for (row, position) in rows.iter().zip(0..) {
        generator.begin(assembly.begin(row, 0, position).into())?;
    }
    let begin = Instant::now();
    generate::finish(generator, |_, outputs| {
        for sequence in outputs.into_iter().filter_map(Output::ended) {
            assembly.add(sequence, Vec::new())?;
        }
        Ok(if begin.elapsed() < ENOUGH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    let mut groups: Vec<_> = assembly.in_the_making().cloned().collect();
    groups.retain(|group| !group.completions.is_empty());
    Ok(groups.into_iter().map(|group| (group.position, group.completions)).collect())
}
