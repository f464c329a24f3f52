//! `tandem export`: a model in a format that other programs open, and a published version back to a Hugging Face
//! directory.

mod effect;
mod rows;
mod runtime;
mod verified;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use clap::{Subcommand, ValueEnum};
use exporters::{ExportOptions, genai::Precision, gguf::GgufType};
use shared::{
    Dtype, ModelDir,
    files::output_dir,
    model::manifest::{DATA_FILE, MANIFEST_FILE, MODEL_FILE},
};
use shared_hub::{NamedModel, locate_model};

use super::remove_leftovers;
use crate::terminal::output;

/// Flags of `tandem export`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(flatten)]
    to_format: Option<ToFormat>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Args)]
struct ToFormat {
    /// Model directory, name on the Hub, LoRA adapter (which is merged), run (its best checkpoint if it has recorded
    /// one, else its newest, else its last published version), or published version.
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Format to write.
    #[arg(long, value_enum, default_value_t = Format::Onnx)]
    format: Format,
    /// Folder to write, or with `gguf` the file. With `onnx`, an earlier export in the folder is replaced; anything
    /// else that is there is refused.
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Element type of weights; with `onnx`, of activations and KV cache too, while logits are always fp32.
    #[arg(long, value_enum, default_value_t = DtypeArg::Fp32)]
    dtype: DtypeArg,
    /// Longest sequence (prompt and completion) that the graph can run; for `onnx` and `genai`.
    ///
    /// Default: the model's max_position_embeddings, at most 32768.
    #[arg(long, value_name = "N")]
    max_positions: Option<usize>,
    /// Dataset on whose rows the export is compared with the model; not for `onnx`.
    ///
    /// Default: completions of the run that the model belongs to, else fixed pseudo-random tokens.
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    /// Prompts of the run that the model belongs to, which model and export answer greedily: the difference in the
    /// run's rewards is printed, and decides nothing. 0 leaves this out; not for `onnx`.
    ///
    /// Default: 64, of the run's eval_dataset if it has one, else of its dataset.
    #[arg(long, value_name = "N")]
    eval_rows: Option<usize>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// ONNX Runtime: a folder with model.onnx, weights.data and manifest.json.
    Onnx,
    /// Hugging Face directory with model.safetensors, configuration, tokenizer and chat template.
    Safetensors,
    /// One file for llama.cpp, Ollama and LM Studio.
    Gguf,
    /// Folder for ONNX Runtime GenAI.
    Genai,
}

impl Format {
    fn name(self) -> &'static str {
        match self {
            Self::Onnx => "onnx",
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
            Self::Genai => "genai",
        }
    }

    /// The types that its weights may have.
    fn dtypes(self) -> &'static [DtypeArg] {
        use DtypeArg::{Bf16, Fp16, Fp32, Int4, Int8, Q4_0, Q8_0};
        match self {
            Self::Onnx => &[Fp32, Fp16],
            Self::Safetensors => &[Fp32, Fp16, Bf16],
            Self::Gguf => &[Fp32, Fp16, Bf16, Q8_0, Q4_0],
            Self::Genai => &[Fp32, Fp16, Int8, Int4],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DtypeArg {
    /// 32-bit floats.
    Fp32,
    /// 16-bit IEEE floats.
    Fp16,
    /// 16-bit floats with the range of fp32; for `safetensors` and `gguf`.
    Bf16,
    /// 8 bits in blocks of 32 with a scale; for `gguf`.
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits in blocks of 32 with a scale; for `gguf`.
    #[value(name = "q4_0")]
    Q4_0,
    /// 8 bits in blocks of 32 with a scale; for `genai`.
    Int8,
    /// 4 bits in blocks of 32 with a scale, embedding and head 8 bits; for `genai`.
    Int4,
}

impl DtypeArg {
    fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// The type of floats, if it is one.
    fn float(self) -> Option<Dtype> {
        match self {
            Self::Fp32 => Some(Dtype::Fp32),
            Self::Fp16 => Some(Dtype::Fp16),
            Self::Bf16 => Some(Dtype::Bf16),
            Self::Q8_0 | Self::Q4_0 | Self::Int8 | Self::Int4 => None,
        }
    }

    fn gguf(self) -> Option<GgufType> {
        match self {
            Self::Fp32 => Some(GgufType::F32),
            Self::Fp16 => Some(GgufType::F16),
            Self::Bf16 => Some(GgufType::Bf16),
            Self::Q8_0 => Some(GgufType::Q8_0),
            Self::Q4_0 => Some(GgufType::Q4_0),
            Self::Int8 | Self::Int4 => None,
        }
    }

    fn genai(self) -> Option<Precision> {
        match self {
            Self::Fp32 => Some(Precision::Fp32),
            Self::Fp16 => Some(Precision::Fp16),
            Self::Int8 => Some(Precision::Int8),
            Self::Int4 => Some(Precision::Int4),
            Self::Bf16 | Self::Q8_0 | Self::Q4_0 => None,
        }
    }
}

/// Runs `tandem export`; a message on stdout names the files that it wrote.
pub fn run(args: &Args) -> Result<ExitCode> {
    match (&args.command, &args.to_format) {
        (Some(Command::ToHf(args)), _) => to_hf(args)?,
        (None, Some(args)) => to_format(args)?,
        (None, None) => unreachable!("clap asks for --model and --out without a subcommand"),
    }
    Ok(ExitCode::SUCCESS)
}

fn to_format(args: &ToFormat) -> Result<()> {
    let ToFormat { format, dtype, .. } = *args;
    let has = format.dtypes();
    if !has.contains(&dtype) {
        let names: Vec<&str> = has.iter().map(|dtype| dtype.name()).collect();
        anyhow::bail!("--dtype {}: {} has {}", dtype.name(), format.name(), names.join(", "));
    }
    remove_leftovers(&args.out);
    if format == Format::Onnx {
        ensure!(args.rows.is_none(), "--rows: an export to onnx is compared on no rows; leave it out");
        ensure!(args.eval_rows.is_none(), "--eval-rows: an export to onnx is not evaluated; leave it out");
        return to_onnx(args);
    }
    let is_limited = format == Format::Genai || args.max_positions.is_none();
    ensure!(is_limited, "--max-positions: {} has no such limit; leave it out", format.name());
    verified::export(args)
}

fn to_onnx(args: &ToFormat) -> Result<()> {
    output_dir::check(&args.out, &[MODEL_FILE, DATA_FILE, MANIFEST_FILE]).context("--out")?;
    let named = NamedModel::find(&args.model)?;
    named.tell_choice();
    ensure!(!named.is_version(), "{}: a published version is an ONNX model already", named.folder().display());
    let model = named.dir();
    let dtype = args.dtype.float().expect("ONNX has types of floats alone");
    let options = ExportOptions { dtype, max_positions: args.max_positions, base: None };
    let manifest = exporters::export(model, &args.out, &options)
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
    remove_leftovers(&args.out);
    let model = ModelDir::open(locate_model(&args.model)?)?;
    exporters::version_to_hf(&model, &args.version_dir, &args.out)
        .with_context(|| format!("cannot write {} to {}", args.version_dir.display(), args.out.display()))?;
    output::print(format_args!("wrote {} parameters to {}", model.config().parameter_count(), args.out.display()));
    Ok(())
}
