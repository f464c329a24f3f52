//! The work of every trial: a step of the run that is to be tuned.

use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use shared::{ModelDir, generation::rng::Stream};

use super::{
    super::{
        bench::workload::{Workload, completions, lengths_of, random_prompts},
        flags::BatchingFlags,
        prompts::Prompts,
    },
    Args,
};
use crate::engine::EngineOptions;

/// A step and its bounds.
pub(super) struct Task {
    pub workload: Workload,
    /// The first group alone, for the warm-up.
    pub first_group: Workload,
    /// Longest prompt plus completion of the whole run.
    pub longest: usize,
    /// Whether the prompts are those of the run.
    pub real_prompts: bool,
    /// Where prompts and lengths came from, for the file.
    pub source: String,
}

impl Task {
    pub fn new(args: &Args, model: &ModelDir) -> anyhow::Result<Self> {
        completions(args.num_prompts as usize, args.num_generations)?;
        let (prompts, longest_prompt) = prompts(args, model)?;
        let sequences = prompts.len() * args.num_generations as usize;
        let lengths = lengths(args, sequences)?;
        let longest_length = lengths.iter().max().copied().unwrap_or(0);
        let limit = args.max_completion_length.unwrap_or(longest_length);
        ensure!(
            longest_length <= limit,
            "--max-completion-length {limit} is below the longest completion ({longest_length})"
        );
        let origin = |path: &Option<std::path::PathBuf>| path.as_ref().map(|p| p.display().to_string());
        let source = format!(
            "{} prompts ({}), {} completions each, {}",
            prompts.len(),
            origin(&args.dataset).unwrap_or_else(|| format!("{} random tokens", args.prompt_length)),
            args.num_generations,
            origin(&args.lengths_file).map_or_else(
                || format!("{longest_length} tokens"),
                |path| format!(
                    "{:.0} tokens on average, {longest_length} at most ({path})",
                    f64::from(lengths.iter().sum::<u32>()) / lengths.len() as f64
                )
            ),
        );
        let group = args.num_generations as usize;
        let work = |prompts: &[Arc<[u32]>], lengths: &[u32]| Workload {
            num_generations: args.num_generations,
            prompts: prompts.to_vec(),
            lengths: lengths.to_vec(),
            seed: args.seed,
        };
        Ok(Self {
            first_group: work(&prompts[..1], &lengths[..group]),
            workload: work(&prompts, &lengths),
            longest: longest_prompt + limit as usize,
            real_prompts: args.dataset.is_some(),
            source,
        })
    }

    /// Engine options with the flags that were given, and defaults for what will be tried.
    pub fn options(&self, batching: &BatchingFlags, model: &ModelDir) -> anyhow::Result<EngineOptions> {
        let limit = model.config().max_position_embeddings;
        ensure!(
            self.longest <= limit || batching.max_model_len.is_some(),
            "prompt and completion take up to {} tokens, the model's limit is {limit}; lower \
             --completion-length or --prompt-length (of rows: --max-completion-length or --max-prompt-length)",
            self.longest
        );
        let mut options = batching.engine_options(self.workload.sequences(), self.longest, limit)?;
        ensure!(
            self.workload.longest() <= options.max_model_len,
            "--max-model-len is below the {} tokens of the longest row",
            self.workload.longest()
        );
        // Room for the next version, as in training.
        options.hot_swap = true;
        Ok(options)
    }

    /// Tokens of all prompts of the step.
    pub fn prompt_tokens(&self) -> u64 {
        self.workload.prompts.iter().map(|prompt| prompt.len() as u64).sum()
    }

    /// Tokens of all completions of the step.
    pub fn completion_tokens(&self) -> u64 {
        self.workload.lengths.iter().map(|&n| u64::from(n)).sum()
    }
}

/// Prompts of a step, and the length of the longest of the run.
fn prompts(args: &Args, model: &ModelDir) -> anyhow::Result<(Vec<Arc<[u32]>>, usize)> {
    let wanted = args.num_prompts as usize;
    let Some(path) = &args.dataset else {
        let length = args.prompt_length as usize;
        return Ok((random_prompts(wanted, length, model.config().vocab_size, args.seed), length));
    };
    let tokenizer = args.prompt.rows.tokenizer(model)?;
    let dataset = args.prompt.rows.dataset(&Prompts::Dataset(path, "train"), &tokenizer).context("--dataset")?;
    let rows = dataset.rows();
    // A small dataset is gone through again, as a run does.
    let at = |i: usize| if rows.len() < wanted { i % rows.len() } else { i * rows.len() / wanted };
    Ok(((0..wanted).map(|i| rows[at(i)].prompt_ids.clone()).collect(), dataset.longest_prompt()))
}

/// One length for each completion of the step.
fn lengths(args: &Args, sequences: usize) -> anyhow::Result<Vec<u32>> {
    let path = match (&args.completion_length, &args.lengths_file) {
        (Some(length), _) => return Ok(vec![*length; sequences]),
        (None, Some(path)) => path,
        (None, None) => bail!("one of --completion-length and --lengths-file is needed"),
    };
    let found = lengths_of(path)?;
    Ok(draw(&found, sequences, args.seed))
}

/// As many lengths as wanted, each of the `found` ones as often as the others (give or take one), in a seeded order.
fn draw(found: &[u32], wanted: usize, seed: u64) -> Vec<u32> {
    let mut stream = Stream::new(&[seed, wanted as u64]);
    let mut drawn = Vec::with_capacity(wanted);
    while drawn.len() < wanted {
        let mut rest = found.to_vec();
        while drawn.len() < wanted && !rest.is_empty() {
            drawn.push(rest.swap_remove(stream.below(rest.len() as u64) as usize));
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_drawn_as_often_as_the_others_in_an_order_of_the_seed() {
        let found: Vec<u32> = (1..=50).collect();
        let drawn = draw(&found, 100, 7);
        let mut sorted = drawn.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, found.iter().flat_map(|&n| [n, n]).collect::<Vec<_>>());
        assert_eq!(drawn, draw(&found, 100, 7));
        assert_ne!(drawn, draw(&found, 100, 8));
        assert_eq!(draw(&[9], 3, 1), [9, 9, 9]);
        assert_eq!(draw(&found, 10, 1).len(), 10);
    }
}
