//! `tandem merge`: a LoRA adapter and its base as one Hugging Face directory.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, ensure};
use shared::{ModelDir, files::output_dir};

use super::remove_leftovers;
use crate::terminal::output;

/// Flags of `tandem merge`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// PEFT directory, such as RUN_DIR/checkpoint-30 of a run with `use_peft`.
    #[arg(value_name = "ADAPTER_DIR")]
    adapter: PathBuf,
    /// Folder to write; it must be new or empty.
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Hugging Face directory of the base, where it is not where `adapter_config.json` says.
    #[arg(long, value_name = "DIR")]
    base: Option<PathBuf>,
}

/// Runs `tandem merge`; a message on stdout names the files that it wrote.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Args { adapter, out, base } = args;
    output_dir::check(out, &[]).context("OUT")?;
    remove_leftovers(out);
    let model = match base {
        Some(base) => ModelDir::open_adapter(adapter, base)?,
        None => ModelDir::open(adapter)?,
    };
    ensure!(model.adapter().is_some(), "{}: no adapter_config.json: nothing is to be merged", adapter.display());
    exporters::merge(&model, out)
        .with_context(|| format!("cannot merge {} into {}", adapter.display(), out.display()))?;
    output::print(format_args!("merged {} parameters into {}", model.config().parameter_count(), out.display()));
    Ok(ExitCode::SUCCESS)
}
