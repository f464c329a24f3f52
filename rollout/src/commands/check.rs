//! `rollout check`: what a run would be refused for, for `tandem train --dry-run`.

use std::{io::Read, path::Path};

use anyhow::Context;
use shared::config::layers;

use super::check_rewards::leave_nothing_behind;
use crate::pair::check;

/// Flags of `rollout check`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Reads a resolved configuration from stdin; the answer on stdout is a JSON list of problems in words.
///
/// # Errors
/// A configuration that cannot be read.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    leave_nothing_behind()?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("stdin")?;
    let config = layers::parse(&text, Path::new("stdin"), &Vec::new())?;
    super::print(&check::problems(&config).into())
}
