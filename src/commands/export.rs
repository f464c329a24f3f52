//! `tandem export`: a Hugging Face directory to ONNX, and a published version back to a Hugging Face directory.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Subcommand, ValueEnum};
use exporters::ExportOptions;
use shared::{
    Dtype, ModelDir,
    files::output_dir,
    model::manifest::{DATA_FILE, MANIFEST_FILE, MODEL_FILE},
};
use shared_hub::locate_model;

use crate::terminal::output;

/// Flags of `tandem export`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(flatten)]
    to_onnx: Option<ToOnnx>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Args)]
struct ToOnnx {
    /// Hugging Face directory with config.json and model.safetensors (or its shards).
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Folder to write; an earlier export in it is replaced, any other content refused.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Element type of weights, activations and KV cache; logits are always fp32.
    #[arg(long, value_enum, default_value_t = DtypeArg::Fp32)]
    dtype: DtypeArg,
    /// Longest sequence (prompt and completion) the graph can run.
    ///
    /// Default: the model's max_position_embeddings, at most 32768.
    #[arg(long, value_name = "N")]
    max_positions: Option<usize>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Writes a published version of the weights back as a Hugging Face directory that transformers loads.
    ToHf(ToHf),
}

#[derive(Debug, clap::Args)]
struct ToHf {
    /// Hugging Face directory the version comes from: its configuration and tokenizer are taken along.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Export or version folder, such as RUN_DIR/weights/v000030.
    #[arg(long, value_name = "DIR")]
    version_dir: PathBuf,
    /// Folder to write; it must be new or empty.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeArg {
    /// 32-bit floats.
    Fp32,
    /// 16-bit IEEE floats.
    Fp16,
}

impl From<DtypeArg> for Dtype {
    fn from(value: DtypeArg) -> Self {
        match value {
            DtypeArg::Fp32 => Self::Fp32,
            DtypeArg::Fp16 => Self::Fp16,
        }
    }
}

/// Runs `tandem export`; a message on stdout names the files that it wrote.
pub fn run(args: &Args) -> Result<ExitCode> {
    match (&args.command, &args.to_onnx) {
        (Some(Command::ToHf(args)), _) => to_hf(args)?,
        (None, Some(args)) => to_onnx(args)?,
        (None, None) => unreachable!("clap asks for --model and --out without a subcommand"),
    }
    Ok(ExitCode::SUCCESS)
}

fn to_onnx(args: &ToOnnx) -> Result<()> {
    output_dir::check(&args.out, &[MODEL_FILE, DATA_FILE, MANIFEST_FILE]).context("--out")?;
    let model = ModelDir::open(locate_model(&args.model)?)?;
    let options = ExportOptions { dtype: args.dtype.into(), max_positions: args.max_positions };
    let manifest = exporters::export(&model, &args.out, &options)
        .with_context(|| format!("cannot export {} to {}", args.model.display(), args.out.display()))?;
    output::print(format_args!(
        "exported {} parameters ({:.1} MiB) to {}, sequences up to {} tokens",
        model.config().parameter_count(),
        manifest.data_length as f64 / f64::from(1 << 20),
        args.out.display(),
        options.positions(model.config())?
    ));
    Ok(())
}

fn to_hf(args: &ToHf) -> Result<()> {
    output_dir::check(&args.out, &[]).context("--out")?;
    let model = ModelDir::open(locate_model(&args.model)?)?;
    exporters::version_to_hf(&model, &args.version_dir, &args.out)
        .with_context(|| format!("cannot write {} to {}", args.version_dir.display(), args.out.display()))?;
    output::print(format_args!("wrote {} parameters to {}", model.config().parameter_count(), args.out.display()));
    Ok(())
}
