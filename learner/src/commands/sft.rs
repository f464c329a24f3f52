//! `learner sft`: a supervised warm start.

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use shared::{
    config::{JsonTable, LrSchedulerType, TrainConfig},
    metrics::Figure,
    run::memory_plan::Workload,
};

use super::{
    ComputeArgs, TrainingArgs, above_zero, below_one, check_output, check_room, load_or_initialise, not_negative,
};
use crate::{
    optimizer::AdamWOptions,
    schedule::Schedule,
    sft::{Encoder, Options, train, updates_of_epoch},
};

/// Flags of `learner sft`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model directory to start from.
    #[arg(long)]
    pub model: PathBuf,
    /// Rows with `prompt` and `completion` as texts or lists of messages, `messages`, or `prompt_ids` and
    /// `completion_ids`, in any format of docs/data.md.
    #[arg(long)]
    pub data: PathBuf,
    /// Model directory to write; it must be new or empty.
    #[arg(long)]
    pub output: PathBuf,
    /// Passes over the data. The last update of each has the rows that are left. --max-steps wins.
    #[arg(long, default_value_t = 1.0)]
    pub epochs: f64,
    /// Optimiser updates, each of --batch-size rows: passes follow each other without a border.
    #[arg(long)]
    pub max_steps: Option<u64>,
    /// Rows per update.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_size: u32,
    /// Peak learning rate.
    #[arg(long, default_value_t = 2e-5)]
    pub learning_rate: f64,
    /// Schedule, as the option of a run: linear, cosine, constant_with_warmup and the others of docs/configuration.md.
    #[arg(long, default_value = "linear")]
    pub lr_scheduler_type: LrSchedulerType,
    /// Settings of the schedule, as in {"min_lr_rate": 0.1}.
    #[arg(long)]
    pub lr_scheduler_kwargs: Option<JsonTable>,
    /// Updates of linear warm-up; a number below 1 is a share of all updates.
    #[arg(long, default_value_t = 0.0, value_name = "N")]
    pub warmup_steps: f64,
    /// Decoupled weight decay on matrices.
    #[arg(long, default_value_t = 0.0)]
    pub weight_decay: f64,
    /// AdamW β₂.
    #[arg(long, default_value_t = 0.999)]
    pub adam_beta2: f64,
    /// Largest global gradient norm; 0 = no clipping.
    #[arg(long, default_value_t = 1.0)]
    pub max_grad_norm: f64,
    /// Keep at most this many tokens of prompt and completion, from the beginning. TRL `max_length`.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    pub max_length: Option<u32>,
    /// Seed of the order of the rows.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Do not append the end-of-sequence token to completion texts that lack it.
    #[arg(long)]
    pub no_append_eos: bool,
    /// Start from random weights with this seed when the model directory has none.
    #[arg(long)]
    pub init_seed: Option<u64>,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Trains and writes the model; the last line on stdout is a JSON summary.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    check_output(&args.output, &args.model)?;
    above_zero("--epochs", args.epochs)?;
    not_negative("--learning-rate", args.learning_rate)?;
    not_negative("--weight-decay", args.weight_decay)?;
    below_one("--adam-beta2", args.adam_beta2)?;
    not_negative("--max-grad-norm", args.max_grad_norm)?;
    not_negative("--warmup-steps", args.warmup_steps)?;
    if args.max_steps == Some(0) {
        bail!("--max-steps must be at least 1");
    }
    let scheduled = TrainConfig {
        learning_rate: args.learning_rate,
        lr_scheduler_type: args.lr_scheduler_type,
        lr_scheduler_kwargs: args.lr_scheduler_kwargs.clone(),
        ..TrainConfig::default()
    };
    scheduled.schedule_settings()?;
    let is_share_or_whole = args.warmup_steps < 1.0 || args.warmup_steps.fract() == 0.0;
    ensure!(is_share_or_whole, "--warmup-steps must be a whole number, or below 1 as a share of all updates");
    let device = args.compute.open()?;
    let (model, policy) = load_or_initialise(&args.model, args.init_seed, args.training.load_options(device))?;
    check_room(&args.output, &model)?;
    let max_length = args.max_length.map(|length| length as usize);
    let examples = Encoder::new(&model, !args.no_append_eos, max_length)?.read(&args.data)?;
    let batch_size = args.batch_size as usize;
    let of_epoch = updates_of_epoch(examples.len(), batch_size);
    let steps = args.max_steps.unwrap_or_else(|| ((args.epochs * of_epoch as f64).ceil() as u64).max(1));
    let warmup_steps =
        if args.warmup_steps < 1.0 { (args.warmup_steps * steps as f64).ceil() } else { args.warmup_steps };
    let scheduled = TrainConfig { warmup_steps: warmup_steps as u64, ..scheduled };
    scheduled.warmup_remark(Some(steps)).iter().for_each(|remark| tracing::warn!("{remark}"));
    let longest = examples.iter().map(|e| e.prompt.len() + e.completion.len()).max().unwrap_or(1);
    let work = Workload::apart(longest, batch_size);
    let options = Options {
        steps,
        batch_size,
        by_epochs: args.max_steps.is_none(),
        micro_batch_tokens: args.compute.budget(&args.training.sizes(model.config()), &work)? as usize,
        schedule: Schedule::from_config(&scheduled, steps),
        optimizer: AdamWOptions {
            betas: (0.9, args.adam_beta2),
            weight_decay: args.weight_decay,
            max_grad_norm: args.max_grad_norm,
            ..AdamWOptions::default()
        },
        seed: args.seed,
    };
    let at_most = if options.by_epochs { "at most " } else { "" };
    tracing::info!("{} rows, {steps} updates of {at_most}{batch_size} rows", examples.len());
    let summary = train(&policy, &examples, &options, &mut |progress| {
        tracing::info!(
            "step {}/{steps}: loss {:.4}, grad norm {:.3}, {:.1} s",
            progress.update,
            Figure(progress.loss),
            Figure(progress.grad_norm),
            progress.seconds
        );
    })?;
    let parameters = policy.weights().trained();
    exporters::write_hf(&model, &args.output, &mut |name| Ok(parameters.read_f32(name)?.into()))
        .with_context(|| format!("the model cannot be written to {}", args.output.display()))?;
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}
