//! `rollout generate`: complete the prompts of a file.

use std::path::PathBuf;

use shared::SamplingParams;

use super::{
    complete::{GenerationFlags, Task},
    flags::PromptFlags,
    progress::rate,
    rows,
};

/// Flags of `rollout generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model and how prompts are made for it.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// Prompts: a file or folder in any format of docs/data.md, with rows of `prompt` (a text or messages),
    /// `prompt_ids`, GSM8K's `question` and `answer`, or countdown's `nums` and `target`
    #[arg(long, env = "TANDEM_PROMPTS", value_name = "FILE")]
    pub prompts: PathBuf,
    /// Where the completions go: JSONL, one row per completion, ordered by prompt and sample; written whole at the end
    #[arg(long, env = "TANDEM_OUTPUT", value_name = "FILE")]
    pub output: PathBuf,
    /// Completions per prompt: time grows with them, but the prompt is prefilled once for all
    #[arg(long, env = "TANDEM_NUM_GENERATIONS", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// How they are made and scored.
    #[command(flatten)]
    pub generation: GenerationFlags,
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sampling = args.generation.sampling.params(SamplingParams::default().temperature)?;
    let functions = args.generation.rewards.functions()?;
    rows::check_output(&args.output, "--prompts", &args.prompts)?;
    let model = args.prompt.model()?;
    let completed = args.generation.complete(
        &model,
        &args.prompt.rows,
        (&args.prompts, "train"),
        Task { functions, sampling, num_generations: args.num_generations, correct_at: None, keep: None },
    )?;
    rows::write(&args.output, &completed.groups)?;
    for failure in rows::failures(&completed.groups) {
        shared::tell!("warning: {failure}");
    }
    shared::tell!(
        "{} completions of {} prompts, {} tokens in {:.2} s ({:.0} tokens/s), written to {}",
        completed.groups.len() * args.num_generations as usize,
        completed.groups.len(),
        completed.tokens,
        completed.seconds,
        rate(completed.tokens, completed.seconds),
        args.output.display()
    );
    Ok(())
}
