//! `learner score`: a reward model's scores of given completions.

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::json;
use shared::{
    Head, ModelDir,
    files::atomic,
    run::memory_plan::{LearnerSizes, Workload},
};
use shared_hub::locate_model;

use super::{ComputeArgs, word};
use crate::{
    model::{LoadOptions, load_scorer},
    reward_model::{Level, Reader, score},
};

/// Flags of `learner score`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Reward model's directory.
    #[arg(long)]
    pub model: PathBuf,
    /// JSONL rows with `prompt` and `completion` as text, or `prompt_ids` and `completion_ids` or `token_ids`.
    #[arg(long)]
    pub input: PathBuf,
    /// JSONL rows with `scores`, one for each end.
    #[arg(long)]
    pub output: PathBuf,
    /// Where completions are scored: outcome (at the last token), or steps (at the token indexes in `ends`).
    #[arg(long, default_value = "outcome", value_parser = word::<Level>)]
    pub level: Level,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Writes the scores; the last line on stdout is a JSON summary.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let device = args.compute.open()?;
    let model = ModelDir::open(locate_model(&args.model)?)?;
    let Head::Score { .. } = model.config().head else {
        bail!(
            "--model {} is a language model; a reward model is a ...ForSequenceClassification (`architectures` in \
             config.json) with score.weight, as `tandem reward-model` makes it",
            args.model.display()
        );
    };
    let scorer = load_scorer(&model, LoadOptions { device, trainable: false, ..LoadOptions::default() })
        .with_context(|| format!("the model {} cannot be loaded", args.model.display()))?;
    let answers = Reader::new(&model, args.level, None)?.answers(&args.input)?;
    let longest = answers.iter().map(|answer| answer.tokens.len()).max().unwrap_or(1);
    let budget =
        args.compute.budget(&LearnerSizes::evaluated(scorer.config()), &Workload::apart(longest, answers.len()))?;
    let found = score(&scorer, &answers, budget as usize)?;
    let lines: String = found.rows().map(|scores| json!({"scores": scores}).to_string() + "\n").collect();
    atomic::write_output(&args.output, lines.as_bytes())?;
    println!("{}", json!({"rows": found.len()}));
    Ok(())
}
