//! `rollout generate`: complete prompts.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
};

use anyhow::ensure;
use shared::{FinishReason, SamplingParams};

use super::{
    complete::{GenerationFlags, Task, Watch},
    flags::PromptFlags,
    printed::{Out, ReaderGone, Rows, Texts},
    progress::rate,
    prompts::{Given, Prompts, STDIN},
    rows,
};

/// Flags of `rollout generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model and how prompts are made for it.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// The prompts.
    #[command(flatten)]
    pub asked: AskedFlags,
    /// Leave the texts of --prompt as they are; without it, they are user messages where the model has a chat template
    #[arg(long, requires = "prompt", conflicts_with = "system_prompt")]
    pub raw: bool,
    /// Write the completions to a file instead of stdout: JSONL, one row per completion, ordered by prompt and sample;
    /// written whole at the end
    #[arg(long, env = "TANDEM_OUTPUT", value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,
    /// Print rows of JSON with token ids and log-probs, as --output has them, instead of text
    #[arg(long)]
    pub json: bool,
    /// Completions per prompt: time grows with them, but the prompt is prefilled once for all
    #[arg(long, env = "TANDEM_NUM_GENERATIONS", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// How they are made and scored.
    #[command(flatten)]
    pub generation: GenerationFlags,
}

/// Where the prompts are.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct AskedFlags {
    /// A prompt; may be given several times. `-` reads one from stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// Prompts: a file or folder in any format of docs/data.md, with rows of `prompt` (a text or messages),
    /// `prompt_ids`, GSM8K's `question` and `answer`, or countdown's `nums` and `target`. `-` reads rows of JSONL from
    /// stdin
    #[arg(long, env = "TANDEM_PROMPTS", value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

impl AskedFlags {
    /// The prompts. Those of stdin are read now.
    fn prompts(&self, raw: bool) -> anyhow::Result<Prompts<'_>> {
        Ok(match &self.prompts {
            None => Prompts::Given(Given::texts(&self.prompt, raw)?),
            Some(path) if path.as_os_str() == STDIN => Prompts::Given(Given::lines_of_stdin()?),
            Some(path) => Prompts::Dataset(path, "train"),
        })
    }
}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    match complete(args) {
        Err(error) if error.is::<ReaderGone>() => Ok(()),
        ended => ended,
    }
}

fn complete(args: &Args) -> anyhow::Result<()> {
    let sampling = args.generation.sampling.params(SamplingParams::default().temperature)?;
    let functions = args.generation.rewards.functions()?;
    ensure!(
        functions.is_empty() || args.json || args.output.is_some(),
        "--reward-funcs: rewards are in the rows of completions; add --json or --output FILE"
    );
    match (&args.output, &args.asked.prompts) {
        (Some(output), Some(prompts)) => rows::check_output(output, "--prompts", prompts)?,
        (Some(output), None) => rows::check_writable("--output", output)?,
        (None, _) => {}
    }
    let prompts = args.asked.prompts(args.raw)?;
    let model = args.prompt.model()?;
    if !args.raw && !args.asked.prompt.is_empty() {
        args.prompt.rows.template.tell_of_system_prompt(&model);
    }
    let stdout = || Out::new(io::stdout(), io::stdout().is_terminal());
    let mut watch: Option<Box<dyn Watch>> = match (&args.output, args.json) {
        (Some(_), _) => None,
        (None, true) => Some(Box::new(Rows::new(io::stdout()))),
        (None, false) => Some(Box::new(Texts::new(stdout(), args.num_generations, &sampling.stop))),
    };
    let completed = args.generation.complete(
        &model,
        &args.prompt.rows,
        &prompts,
        Task {
            functions,
            sampling,
            num_generations: args.num_generations,
            correct_at: None,
            keep: None,
            watch: watch.as_mut().map(|watch| watch.as_mut() as &mut dyn Watch),
        },
    )?;
    if let Some(output) = &args.output {
        rows::write(output, &completed.groups)?;
    }
    for failure in rows::failures(&completed.groups) {
        shared::tell!("warning: {failure}");
    }
    let completions = || completed.groups.iter().flat_map(|group| &group.completions);
    let cut = completions().filter(|completion| completion.finish_reason() == FinishReason::Length).count();
    let cut = match (cut, &args.output) {
        (0, _) | (_, Some(_)) => String::new(),
        (cut, None) => format!(", {cut} cut off at the longest length (--max-completion-length)"),
    };
    let written = args.output.as_ref().map(|path| format!(", written to {}", path.display())).unwrap_or_default();
    shared::tell!(
        "{} completions of {} prompts, {} tokens in {:.2} s ({:.0} tokens/s){cut}{written}",
        completions().count(),
        completed.groups.len(),
        completed.tokens,
        completed.seconds,
        rate(completed.tokens, completed.seconds),
    );
    Ok(())
}
