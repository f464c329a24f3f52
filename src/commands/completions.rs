//! `tandem completions`: what a shell completes of a command line.

use std::{io, process::ExitCode};

use anyhow::Result;
use clap::ValueEnum;
use clap_complete::generate;

use crate::terminal::output;

/// Flags of `tandem completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that completes.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    /// `source <(tandem completions bash)`.
    Bash,
    /// `tandem completions zsh > DIR/_tandem`, with DIR in `fpath`.
    Zsh,
    /// `tandem completions fish > ~/.config/fish/completions/tandem.fish`.
    Fish,
}

/// Runs `tandem completions`.
pub fn run(args: &Args) -> Result<ExitCode> {
    output::print(script(args.shell)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// The script of a shell: all commands, with the flags of our own.
fn script(shell: Shell) -> io::Result<String> {
    let (mut command, mut script) = (crate::own_commands().subcommands(crate::of_halves()), Vec::new());
    let name = "tandem";
    match shell {
        Shell::Bash => generate(clap_complete::Shell::Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(clap_complete::Shell::Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(clap_complete::Shell::Fish, &mut command, name, &mut script),
    }
    String::from_utf8(script).map_err(io::Error::other)
}
