//! `learner reward-model`: a scorer that ranks completions as given pairs do.

use std::path::PathBuf;

use anyhow::Context;
use shared::{
    ModelDir,
    metrics::Figure,
    run::memory_plan::{LearnerSizes, Workload},
};
use shared_hub::locate_model;

use super::{ComputeArgs, above_zero, below_one, check_output, check_room, not_negative, word};
use crate::{
    model::{LoadOptions, load_scorer},
    optimizer::AdamWOptions,
    reward_model::{Level, Options, Reader, train},
};

/// Flags of `learner reward-model`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model directory to start from: a language model, under a head that starts at 0, or a reward model.
    #[arg(long)]
    pub model: PathBuf,
    /// Rows with `prompt`, `chosen` and `rejected` as text, or `prompt_ids`, `chosen_ids` and `rejected_ids`, and
    /// `margin` if they have one, in any format of docs/data.md.
    #[arg(long)]
    pub pairs: PathBuf,
    /// Pairs of earlier rounds, of which some are mixed in.
    #[arg(long)]
    pub history: Option<PathBuf>,
    /// Share of earlier pairs in what is trained on.
    #[arg(long, default_value_t = 0.1)]
    pub history_share: f64,
    /// Model directory to write; it must be new or empty.
    #[arg(long)]
    pub output: PathBuf,
    /// Where completions are scored: outcome (at the last token), or steps (mean over the token indexes in
    /// `chosen_ends` and `rejected_ends`, counted within the completion).
    #[arg(long, default_value = "outcome", value_parser = word::<Level>)]
    pub level: Level,
    /// Passes over the pairs.
    #[arg(long, default_value_t = 1.0)]
    pub epochs: f64,
    /// Peak learning rate; it falls to 0 linearly.
    #[arg(long, default_value_t = 1e-5)]
    pub learning_rate: f64,
    /// Pairs per update.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// Keep at most this many tokens of prompt and completion, from the end.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_length: Option<u32>,
    /// Seed of the order of the pairs and the choice of earlier ones.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Trains and writes the model; the last line on stdout is a JSON summary.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    check_output(&args.output, &args.model)?;
    below_one("--history-share", args.history_share)?;
    above_zero("--epochs", args.epochs)?;
    not_negative("--learning-rate", args.learning_rate)?;
    let device = args.compute.open()?;
    let model = ModelDir::open(locate_model(&args.model)?)?;
    check_room(&args.output, &model)?;
    let scorer = load_scorer(&model, LoadOptions { device, ..LoadOptions::default() })
        .with_context(|| format!("the model {} cannot be loaded", args.model.display()))?;
    let reader = Reader::new(&model, args.level, args.max_length.map(|length| length as usize))?;
    let pairs = reader.pairs(&args.pairs)?;
    let history = args.history.as_ref().map(|path| reader.pairs(path)).transpose()?.unwrap_or_default();
    let answers = pairs.iter().chain(&history).flat_map(|pair| [&pair.chosen, &pair.rejected]);
    let longest = answers.map(|answer| answer.tokens.len()).max().unwrap_or(1);
    let work = Workload::apart(longest, 2 * args.batch_size as usize);
    let sizes = LearnerSizes { trained: true, ..LearnerSizes::evaluated(scorer.config()) };
    let options = Options {
        epochs: args.epochs,
        batch_size: args.batch_size as usize,
        history_share: args.history_share,
        micro_batch_tokens: args.compute.budget(&sizes, &work)? as usize,
        learning_rate: args.learning_rate,
        optimizer: AdamWOptions::default(),
        seed: args.seed,
    };
    tracing::info!("{} pairs, {} earlier ones to draw from", pairs.len(), history.len());
    let summary = train(&scorer, &pairs, &history, &options, &mut |progress| {
        tracing::info!(
            "update {}/{}: loss {:.4}, grad norm {:.3}",
            progress.update,
            progress.updates,
            Figure(progress.loss),
            Figure(progress.grad_norm)
        );
    })?;
    tracing::info!("accuracy {:.3} before, {:.3} after", summary.accuracy_before, summary.accuracy_after);
    let parameters = scorer.weights().trained();
    exporters::write_hf_scorer(&model, &args.output, &mut |name| Ok(parameters.read_f32(name)?.into()))
        .with_context(|| format!("the model cannot be written to {}", args.output.display()))?;
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}
