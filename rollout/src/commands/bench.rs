//! `rollout bench`: generation measured on its own.

mod measure;
mod workload;

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use exporters::{DEFAULT_MAX_POSITIONS, ExportOptions, ensure_export};
use serde_json::Value;
use shared::{Dtype, ModelDir, PolicyVersion};

use self::{
    measure::{Measurement, reset_peak_memory},
    workload::Workload,
};
use super::flags::BatchingFlags;
use crate::engine::{Engine, EngineOptions, WeightSource, auto_max_num_seqs, available_memory};

/// Flags of `rollout bench`. Prompts are random tokens; completions are drawn from the full distribution at
/// temperature 1 and go on past end-of-sequence tokens, so the work does not depend on the weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hugging Face model directory; without a tokenizer is fine
    #[arg(long, env = "TANDEM_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// Number of prompts
    #[arg(long, value_name = "P", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_prompts: u32,
    /// Completions per prompt; the prompt is prefilled once for all of them
    #[arg(long, value_name = "G", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// Tokens of each prompt
    #[arg(long, value_name = "L", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_length: u32,
    /// Tokens of each completion
    #[arg(long, value_name = "N", conflicts_with = "lengths_file", value_parser = clap::value_parser!(u32).range(1..))]
    pub completion_length: Option<u32>,
    /// A file with the length of every completion, one per line, in the order of prompts and, within a prompt, of
    /// its completions: ragged lengths as training has them
    #[arg(long, value_name = "FILE")]
    pub lengths_file: Option<PathBuf>,
    /// Measure the same work this many times and take the median
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Measure at each of these values of --max-num-seqs (separated by commas) instead of one
    #[arg(long, value_name = "SIZES", value_delimiter = ',', num_args = 0..=1,
          default_missing_value = "1,2,4,8,16,32,64", conflicts_with = "max_num_seqs")]
    pub sweep: Option<Vec<usize>>,
    /// Element type of weights and KV cache: fp16 needs --device cuda to pay [default: fp32 on the CPU, fp16 elsewhere]
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    pub dtype: Option<Dtype>,
    /// Seed of prompts and sampling
    #[arg(long, env = "TANDEM_SEED", value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Then load the weights again beside those in use, twice, as training does with every version, and report the second
    /// time: needs memory for both
    #[arg(long)]
    pub swap: bool,
    /// Let idle threads sleep between operators, as on cores shared with the learner: slower on cores of its own
    #[arg(long)]
    pub no_spinning: bool,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
}

/// Runs the subcommand: a table, then one line of JSON (an array with `--sweep`) on stdout.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = ModelDir::open(&args.model).context("--model")?;
    let workload = args.workload(&model)?;
    let options = args.options(&model, &workload)?;
    let dtype = args.dtype.unwrap_or_else(|| options.device.rollout_dtype());
    let positions = (options.max_model_len > DEFAULT_MAX_POSITIONS).then_some(options.max_model_len);
    let dir = ensure_export(&model, &ExportOptions { dtype, max_positions: positions })
        .with_context(|| format!("--model {}", model.path().display()))?;
    let weights = WeightSource { dir, version: PolicyVersion(0) };

    let sizes = args.sizes(&model, dtype, &options, workload.sequences())?;
    println!("{}", Measurement::TABLE_HEADER);
    let mut records = Vec::new();
    for max_num_seqs in sizes {
        let options = EngineOptions { max_num_seqs, ..options.clone() };
        reset_peak_memory();
        let mut engine = Engine::new(weights.clone(), &model, options.clone())?;
        workload.warm_up(&mut engine)?;
        let repeats = (0..args.repeat).map(|_| Measurement::take(&mut engine, &workload)).collect::<Result<_, _>>()?;
        let measurement = Measurement::median(repeats);
        println!("{}", measurement.table_row(max_num_seqs, engine.instruction_set()));
        let mut record = measurement.record(&workload, &options, dtype, engine.instruction_set());
        if args.swap {
            let report = measure::swap(&mut engine, &weights)?;
            record.insert("swap_seconds".into(), report.seconds.into());
            record.insert("swap_stall_seconds".into(), report.stall_seconds.into());
        }
        records.push(record);
    }
    match records.pop() {
        Some(record) if args.sweep.is_none() => println!("{}", Value::Object(record)),
        last => println!("{}", Value::Array(records.into_iter().chain(last).map(Value::Object).collect())),
    }
    Ok(())
}

impl Args {
    fn workload(&self, model: &ModelDir) -> anyhow::Result<Workload> {
        let sequences = self.num_prompts as usize * self.num_generations as usize;
        let lengths = match (&self.completion_length, &self.lengths_file) {
            (Some(length), _) => vec![*length; sequences],
            (None, Some(path)) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| format!("--lengths-file {}", path.display()))?;
                workload::parse_lengths(&text, sequences)
                    .with_context(|| format!("--lengths-file {}", path.display()))?
            }
            (None, None) => bail!("one of --completion-length and --lengths-file is needed"),
        };
        Ok(Workload {
            num_generations: self.num_generations,
            prompts: workload::random_prompts(
                self.num_prompts as usize,
                self.prompt_length as usize,
                model.config().vocab_size,
                self.seed,
            ),
            lengths,
            seed: self.seed,
        })
    }

    fn options(&self, model: &ModelDir, workload: &Workload) -> anyhow::Result<EngineOptions> {
        let limit = model.config().max_position_embeddings;
        let longest = workload.longest();
        ensure!(longest <= limit, "prompt and completion take {longest} tokens, the model's limit is {limit}");
        let mut options = self.batching.engine_options(workload.sequences(), longest, limit)?;
        ensure!(longest <= options.max_model_len, "--max-model-len is below the {longest} tokens of the longest row");
        options.spinning = !self.no_spinning;
        options.hot_swap = self.swap;
        Ok(options)
    }

    /// The values of `max_num_seqs` to measure at.
    fn sizes(
        &self,
        model: &ModelDir,
        dtype: Dtype,
        options: &EngineOptions,
        sequences: usize,
    ) -> anyhow::Result<Vec<usize>> {
        if let Some(sizes) = &self.sweep {
            ensure!(!sizes.contains(&0), "--sweep sizes must be at least 1");
            let useful: Vec<usize> = sizes.iter().copied().filter(|&n| n <= sequences).collect();
            ensure!(!useful.is_empty(), "every size of --sweep is above the {sequences} sequences of the workload");
            return Ok(useful);
        }
        if self.batching.max_num_seqs.is_some() {
            return Ok(vec![options.max_num_seqs]);
        }
        let available = available_memory(options.device)?;
        Ok(vec![auto_max_num_seqs(model.config(), dtype, options, options.max_num_seqs, available)?])
    }
}

/// An element type by its name in a manifest.
fn parse_dtype(name: &str) -> Result<Dtype, String> {
    match name {
        "fp32" => Ok(Dtype::Fp32),
        "fp16" => Ok(Dtype::Fp16),
        _ => Err(format!("unknown element type `{name}`; one of fp32, fp16")),
    }
}
