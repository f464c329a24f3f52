//! `tandem schema`: the JSON schema of `run.toml`.

use std::process::ExitCode;

use anyhow::Result;
use shared::config::schema;

use crate::terminal::output;

/// Flags of `tandem schema`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `tandem schema`.
pub fn run(_args: &Args) -> Result<ExitCode> {
    output::print(schema::text().trim_end());
    Ok(ExitCode::SUCCESS)
}
