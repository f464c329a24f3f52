//! `rollout generate`: complete the prompts of a file.

use std::path::PathBuf;

use shared::SamplingParams;

use super::{
    complete::Generation,
    flags::{BatchingFlags, PromptFlags, RewardFlags, SamplingFlags, TraceFlags},
    progress::rate,
    rows,
};
use crate::data::Tokenizer;

/// Flags of `rollout generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model and how prompts are made for it.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// Prompts: JSONL rows with `prompt` (a text or messages), `prompt_ids`, GSM8K's `question` and `answer`, or
    /// countdown's `nums` and `target`
    #[arg(long, env = "TANDEM_PROMPTS", value_name = "FILE")]
    pub prompts: PathBuf,
    /// Where the completions go: JSONL, one row per completion, ordered by prompt and sample; written whole at the end
    #[arg(long, env = "TANDEM_OUTPUT", value_name = "FILE")]
    pub output: PathBuf,
    /// Completions per prompt: time grows with them, but the prompt is prefilled once for all
    #[arg(long, env = "TANDEM_NUM_GENERATIONS", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
    /// Reward functions to score the completions with.
    #[command(flatten)]
    pub rewards: RewardFlags,
    /// The timeline.
    #[command(flatten)]
    pub trace: TraceFlags,
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sampling = args.sampling.params(SamplingParams::default().temperature)?;
    let functions = args.rewards.functions()?;
    rows::check_writable("--output", &args.output)?;
    rows::require_other("--prompts", &args.prompts, "--output", &args.output)?;
    let model = args.prompt.model()?;
    let tokenizer = Tokenizer::open(&model)?;
    let dataset = args.prompt.dataset(&args.prompts, &tokenizer)?;
    let scoring = args.rewards.scoring(functions, &dataset, args.batching.threads()?)?;
    let generation =
        Generation { dataset: &dataset, tokenizer: &tokenizer, sampling, num_generations: args.num_generations };
    args.trace.start()?;
    let mut engine = generation.engine(&model, &args.batching)?;
    let completed = generation.complete(&mut engine, scoring)?;
    args.trace.write()?;
    rows::write(&args.output, &completed.groups)?;
    for failure in rows::failures(&completed.groups) {
        shared::tell!("warning: {failure}");
    }
    shared::tell!(
        "{} completions of {} prompts, {} tokens in {:.2} s ({:.0} tokens/s), written to {}",
        dataset.len() * args.num_generations as usize,
        dataset.len(),
        completed.tokens,
        completed.seconds,
        rate(completed.tokens, completed.seconds),
        args.output.display()
    );
    Ok(())
}
