//! `rollout bench`: generation measured on its own.

mod account;
mod compare;
pub(super) mod measure;
mod processor;
mod report;
pub(super) mod workload;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use exporters::ensure_export;
use rollout_kernels::limits::Limits;
use serde_json::{Map, Value};
use shared::{
    Dtype, ModelDir, PolicyVersion,
    config::Device,
    process::{
        command_line::{UNOPTIMISED, tell_warnings},
        pace::Waiting,
    },
};
use shared_hub::locate_model;

use self::{
    account::{Account, Work},
    measure::{Measurement, peak_memory, reset_peak_memory},
    workload::Workload,
};
use super::{
    flags::{BatchingFlags, TraceFlags},
    print,
};
use crate::engine::{Engine, EngineOptions, WeightSource, export_options};

/// Flags of `rollout bench`. Prompts are random tokens; completions are drawn from the full distribution at
/// temperature 1 and go on past end-of-sequence tokens, so the work does not depend on the weights.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Hugging Face model directory; without a tokenizer is fine
    #[arg(long, env = "TANDEM_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// Number of prompts: more make the figures firmer and take longer
    #[arg(long, value_name = "P", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_prompts: u32,
    /// Completions per prompt, which is prefilled once for all of them: more share more of the work
    #[arg(long, value_name = "G", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// Tokens of each prompt: longer ones shift time from decoding to prefill and attention
    #[arg(long, value_name = "L", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_length: u32,
    /// Tokens of each completion: all end together, the best case for batching; --lengths-file shows the usual one
    /// [default: 128, or what the model has room for]
    #[arg(long, value_name = "N", conflicts_with = "lengths_file", value_parser = clap::value_parser!(u32).range(1..))]
    pub completion_length: Option<u32>,
    /// A file with the length of every completion, one per line, in the order of prompts and, within a prompt, of
    /// its completions: ragged lengths as training has them
    #[arg(long, value_name = "FILE")]
    pub lengths_file: Option<PathBuf>,
    /// Measure the same work this many times and take the median: more even out what else runs on the machine, and take
    /// as much longer
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeat: u32,
    /// Measure at each of these values of --max-num-seqs (separated by commas) instead of one, which takes as many
    /// times longer
    #[arg(long, value_name = "SIZES", value_delimiter = ',', num_args = 0..=1,
          default_missing_value = "1,2,4,8,16,32,64", conflicts_with = "max_num_seqs")]
    pub sweep: Option<Vec<usize>>,
    /// Element type of weights and KV cache: fp16 halves the memory and rounds more, and needs --device cuda to be
    /// faster [default: fp32 on the CPU, fp16 elsewhere]
    #[arg(long, value_name = "DTYPE", value_parser = parse_dtype)]
    pub dtype: Option<Dtype>,
    /// Seed of prompts and sampling: the same seed is the same work
    #[arg(long, env = "TANDEM_SEED", value_name = "N", default_value_t = 42)]
    pub seed: u64,
    /// Then load the weights again beside those in use, twice, as training does with every version, and report the
    /// second time, with and without the first token that waits for it: needs memory for both
    #[arg(long)]
    pub swap: bool,
    /// Run this command in turns with itself under these flags (A B A B …, --repeat rounds), each time in a process of
    /// its own, and report medians and ratios instead: "--kernels stock", "--max-num-seqs 16 --threads 1". Takes twice
    /// the time and loads the model anew for every run; in return, both see the same changes of the machine's mood
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, conflicts_with_all = ["sweep", "trace"])]
    pub compare: Option<String>,
    /// As --compare, with another build of this program in the second place (and the flags of --compare, if given)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["sweep", "trace"])]
    pub compare_binary: Option<PathBuf>,
    /// Let idle threads sleep between operators, as on cores shared with the learner: slower on cores of its own
    #[arg(long)]
    pub no_spinning: bool,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
    /// The timeline.
    #[command(flatten)]
    pub trace: TraceFlags,
}

/// Runs the subcommand: tables on stderr, then one line of JSON (an array with `--sweep`) on stdout.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    tell_warnings(cfg!(debug_assertions).then_some(UNOPTIMISED));
    if args.compare.is_some() || args.compare_binary.is_some() {
        // The words after the name of the subcommand.
        return compare::run(args, &text(shared::process::command_line::words().into_iter().skip(2))?);
    }
    let model = ModelDir::open(locate_model(&args.model)?).context("--model")?;
    let workload = args.workload(&model)?;
    let options = args.options(&model, &workload)?;
    let dtype = args.dtype.unwrap_or_else(|| options.device.export_dtype());
    args.trace.start()?;
    let weights = WeightSource { dir: export(&model, dtype, options.max_model_len)?, version: PolicyVersion(0) };

    let mut measured = Vec::new();
    for max_num_seqs in args.sizes(&model, dtype, &options, workload.sequences())? {
        let options = EngineOptions { max_num_seqs, ..options.clone() };
        reset_peak_memory();
        let mut engine = Engine::new(weights.clone(), &model, options.clone())?;
        workload.warm_up(&mut engine)?;
        let repeats = (0..args.repeat)
            .map(|_| Measurement::take(&mut engine, &workload, Duration::MAX))
            .collect::<Result<_, _>>()?;
        let measurement = Measurement::median(repeats);
        shared::tell!("{max_num_seqs} sequences at once: {:.1} tokens/s", measurement.tokens_per_s());
        let mut record = report::record(&measurement, &workload, &engine, dtype, peak_memory());
        if args.swap {
            let (report, first_token_seconds) = measure::swap(&mut engine, &weights, &workload)?;
            shared::tell!(
                "new weights in use after {:.3} s, their first token after {first_token_seconds:.3} s, no step for \
                 {:.1} ms",
                report.seconds,
                1e3 * report.stall_seconds
            );
            record.insert("swap_seconds".into(), report.seconds.into());
            record.insert("swap_stall_seconds".into(), report.stall_seconds.into());
            record.insert("swap_first_token_seconds".into(), first_token_seconds.into());
        }
        let work = Work::of(model.config(), dtype, &options);
        measured.push((Account { measurement, work, max_num_seqs, kernels: engine.kernels(), limits: None }, record));
    }
    args.trace.write()?;

    // Afterwards, so that its memory does not count as the engine's.
    if options.device == Device::Cpu {
        let limits = Limits::measure(options.threads, options.format()).context("limits of this machine")?;
        measured.iter_mut().for_each(|(account, _)| account.limits = Some(limits));
    }
    shared::tell!("{}", report::RATES);
    measured.iter().for_each(|(account, _)| shared::tell!("{}", report::rates(account)));
    shared::tell!("{}", report::SHARES);
    measured.iter().for_each(|(account, _)| shared::tell!("{}", report::shares(account)));
    if let Some(Limits { gemm, read_bandwidth }) = measured.first().and_then(|(account, _)| account.limits) {
        shared::tell!("limits of this machine: {:.0} GFLOP/s, {:.1} GB/s", gemm / 1e9, read_bandwidth / 1e9);
    }

    let record =
        |(account, record): (Account, Map<String, Value>)| record.into_iter().chain(account.fields()).collect();
    let mut records: Vec<Value> = measured.into_iter().map(record).collect();
    match records.pop() {
        Some(record) if args.sweep.is_none() => print(&record),
        last => print(&Value::Array(records.into_iter().chain(last).collect())),
    }
}

/// The folder of the exported model, whose graph takes `max_model_len` positions.
///
/// # Errors
/// A model that cannot be exported, or a folder that cannot be written.
pub fn export(model: &ModelDir, dtype: Dtype, max_model_len: usize) -> anyhow::Result<PathBuf> {
    let _waiting = Waiting::new("exporting the model, once");
    ensure_export(model, &export_options(dtype, max_model_len))
        .with_context(|| format!("the model {}", model.path().display()))
}

/// Words of a command line as texts.
fn text(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<Vec<String>> {
    let words = words.into_iter().map(OsString::into_string);
    words.collect::<Result<_, _>>().map_err(|word| anyhow::anyhow!("{}: is not valid text", word.display()))
}

impl Args {
    fn workload(&self, model: &ModelDir) -> anyhow::Result<Workload> {
        let sequences = workload::completions(self.num_prompts as usize, self.num_generations)?;
        let lengths = match (&self.completion_length, &self.lengths_file) {
            (Some(length), _) => vec![*length; sequences],
            (None, Some(path)) => workload::read_lengths(path, sequences)?,
            (None, None) => vec![workload::usual_length(self.prompt_length, model.config()); sequences],
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
        let Some(sizes) = &self.sweep else {
            let mut options = options.clone();
            self.batching.fit(&mut options, model, dtype)?;
            return Ok(vec![options.max_num_seqs]);
        };
        ensure!(!sizes.contains(&0), "--sweep sizes must be at least 1");
        let useful: Vec<usize> = sizes.iter().copied().filter(|&n| n <= sequences).collect();
        ensure!(!useful.is_empty(), "every size of --sweep is above the {sequences} sequences of the workload");
        Ok(useful)
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
