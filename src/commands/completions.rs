//! `tandem completions`: what a shell completes of a command line.

use std::{io, process::ExitCode};

use anyhow::Result;
use clap::ValueEnum;
use clap_complete::generate;

use super::{
    described::{self, Commands},
    halves::Delegated,
};
use crate::{programs::binaries, terminal::output};

/// Flags of `tandem completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell that completes.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    /// `tandem completions bash > ~/.local/share/bash-completion/completions/tandem`.
    Bash,
    /// `tandem completions zsh > DIR/_tandem`, with DIR in `fpath`.
    Zsh,
    /// `tandem completions fish > ~/.config/fish/completions/tandem.fish`.
    Fish,
}

/// Runs `tandem completions`.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Nobody completes flags of a command that cannot run, and a shell may ask whenever it starts.
    let commands = described::commands(|program| binaries::find(program).is_ok());
    output::print(script(args.shell, commands)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// The script of a shell: all commands, with the flags that are known.
fn script(shell: Shell, Commands { tandem, by_name }: Commands) -> io::Result<String> {
    let (mut command, mut script) = (tandem.subcommands(by_name.into_iter().map(Delegated::by_name)), Vec::new());
    let name = "tandem";
    match shell {
        Shell::Bash => generate(clap_complete::Shell::Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(clap_complete::Shell::Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(clap_complete::Shell::Fish, &mut command, name, &mut script),
    }
    String::from_utf8(script).map_err(io::Error::other)
}
