//! `rollout bench`.

/// Flags of `rollout bench`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the subcommand.
///
/// # Errors
/// With context for the user.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("in work")
}
