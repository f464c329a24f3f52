//! `rollout tune`: which batching suits a model, a machine and a distribution of lengths.

mod learner;
mod proposal;
mod search;
mod work;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use shared::Dtype;

use self::{
    learner::{Halves, LearnerFlags},
    proposal::Proposal,
    search::Search,
    work::Task,
};
use super::{
    flags::{BatchingFlags, PromptFlags},
    print,
    rows::check_writable,
};

/// Flags of `rollout tune`. Batching flags that are given stay as they are; the others are tried.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model and how prompts are made for it.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// Where the proposal goes: TOML with keys of `run.toml`, to be appended to it, and what was measured as comments
    #[arg(long, env = "TANDEM_OUTPUT", value_name = "FILE", default_value = "tuned.toml")]
    pub output: PathBuf,
    /// The training prompts, of which a step's worth is taken at even distances: real lengths, for which they are all
    /// read; needs the model's tokenizer [default: random tokens, --prompt-length of them]
    #[arg(long, env = "TANDEM_DATASET", value_name = "FILE")]
    pub dataset: Option<PathBuf>,
    /// Tokens of each prompt, where no dataset is given: longer ones make prefill and the prompts' keys and values
    /// count more
    #[arg(long, value_name = "L", default_value_t = 64, conflicts_with = "dataset",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_length: u32,
    /// Tokens of each completion: quicker to say than --lengths-file, which finds better settings if lengths differ;
    /// longer ones take more memory
    #[arg(long, value_name = "N", conflicts_with = "lengths_file", value_parser = clap::value_parser!(u32).range(1..))]
    pub completion_length: Option<u32>,
    /// A file with lengths of completions, one per line, as an earlier run had them; drawn from by --seed for as many
    /// completions as a step has
    #[arg(long, value_name = "FILE")]
    pub lengths_file: Option<PathBuf>,
    /// Most tokens that a completion of the run may have: memory is reserved for it, and what is longer is cut off
    /// [default: the longest of the lengths]
    #[arg(long, env = "TANDEM_MAX_COMPLETION_LENGTH", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_completion_length: Option<u32>,
    /// Prompts of a step: as the run will have them, since more sequences fill larger batches
    #[arg(long, value_name = "P", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_prompts: u32,
    /// Completions per prompt: as the run will have them, since more of them share one prefill and its memory
    #[arg(long, env = "TANDEM_NUM_GENERATIONS", value_name = "G", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// Seconds that the search may take: with more, every setting is measured to its end and several times, with less,
    /// what is cut short is projected (`~` in the table)
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub time_budget: f64,
    /// Seed of prompts, lengths and sampling: the same seed measures the same work
    #[arg(long, env = "TANDEM_SEED", value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
    /// The other half.
    #[command(flatten)]
    pub learner: LearnerFlags,
}

/// Runs the subcommand: a table on stderr, the proposal as a file, one line of JSON on stdout.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let begin = Instant::now();
    ensure!(
        args.time_budget > 0.0 && Duration::try_from_secs_f64(args.time_budget).is_ok(),
        "--time-budget must be a number of seconds above 0, got {}",
        args.time_budget
    );
    args.learner.check(args)?;
    check_writable("--output", &args.output)?;
    require_own(&args.output)?;
    let model = args.prompt.model()?;
    let model = model.dir();
    let task = Task::new(args, model)?;
    let dtype: Dtype = args.batching.device.export_dtype();
    let options = task.options(&args.batching, model)?;
    let budget = Duration::from_secs_f64(args.time_budget);
    let mut search = Search::new(model, dtype, &task, options, begin + budget)?;
    let (usual, best) = search.run(&args.batching)?;
    let halves = Halves::measure(args, model, &task, &search, best.setting)?;
    let proposal = Proposal::new(&search, &task, &args.batching, [&usual, &best], begin.elapsed());
    let proposal = proposal.with_learner(halves.as_ref());
    shared::tell!("{}", proposal.table().trim_end());
    if let Some(words) = halves.as_ref().and_then(Halves::bf16) {
        shared::tell!("{words}");
    }
    proposal.write(&args.output)?;
    shared::tell!("written to {}: append it to run.toml, or give the flags{}", args.output.display(), proposal.flags());
    print(&proposal.record())
}

/// Refuses to replace a file that is not a proposal of an earlier search: a `run.toml`, most likely.
fn require_own(output: &Path) -> anyhow::Result<()> {
    if !output.is_file() {
        return Ok(());
    }
    let text = fs::read(output).with_context(|| format!("--output {}", output.display()))?;
    ensure!(
        text.is_empty() || text.starts_with(proposal::TITLE.as_bytes()),
        "--output {}: is there and no proposal of `tandem tune`; name another file, and append it to that one",
        output.display()
    );
    Ok(())
}
