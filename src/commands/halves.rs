//! The commands that the two halves, the fleet's program and the endpoint's carry out. `tandem generate …` becomes
//! `rollout generate …` in the same process, so that signals, exit code and output are those of the half, and its help
//! and errors speak of `tandem generate`.

use std::{
    convert::Infallible,
    env,
    ffi::OsString,
    fs::File,
    io::{Seek, Write},
    os::unix::process::CommandExt,
};

use anyhow::{Context, Result};
use shared::config::layers;

use crate::{
    import_config,
    programs::binaries,
    train::{CommandLine, make_absolute},
};

/// The flag of `check-rewards` that may stand before the file as well as behind it.
const JSON: &str = "--json";

/// Flags of `generate` that the endpoint's program alone can follow, as it alone knows grammars.
const GRAMMARS: [&str; 3] = ["--regex", "--json-schema", "--grammar"];

/// A command of one of the halves.
pub struct Delegated {
    /// Its name, in the half as here.
    pub name: &'static str,
    /// Its purpose: in the half's own words, for the list of commands.
    pub about: &'static str,
    /// The program: a half, the fleet's or the endpoint's.
    pub program: &'static str,
}

const fn rollout(name: &'static str, about: &'static str) -> Delegated {
    Delegated { name, about, program: "rollout" }
}

const fn fleet(name: &'static str, about: &'static str) -> Delegated {
    Delegated { name, about, program: binaries::FLEET }
}

const fn endpoint(name: &'static str, about: &'static str) -> Delegated {
    Delegated { name, about, program: binaries::SERVE }
}

const fn learner(name: &'static str, about: &'static str) -> Delegated {
    Delegated { name, about, program: "learner" }
}

/// All of them. Two commands of the halves are missing: `run`, which only `tandem train` calls, and `learner bench`,
/// whose name is taken.
pub const COMMANDS: &[Delegated] = &[
    rollout("generate", "Complete prompts, given as texts or by a file"),
    rollout("chat", "Talk with a model in the terminal"),
    fleet("worker", "Sample for a run on another host"),
    endpoint("serve", "Answer requests over HTTP in OpenAI's forms"),
    rollout("eval", "Score a model on a dataset: avg@k, pass@k and maj@k"),
    rollout("compare", "Say whether one model does better than another beyond chance"),
    rollout("explain", "What became of a completion of a run, and why"),
    rollout("rewards", "List the reward functions"),
    rollout("check-rewards", "Try the reward functions of a run on sample completions"),
    rollout("bench", "Measure generation: prefill, decode, latencies, time by phase"),
    rollout("tune", "Find the batching flags that suit a model and this machine"),
    learner("sft", "Supervised warm start on prompt/completion rows"),
    learner("reward-model", "Train a reward model on pairs of completions"),
    learner("score", "Scores of given completions by a reward model"),
    learner("replay", "Train a kept step of a run again, with any method, and compare"),
    learner("logprobs", "Log-probs of given completions"),
    learner("init", "Write random weights into a model directory that has none"),
];

/// The command that the words name, if a half carries it out, and the words behind its name. The version is that of
/// this program, and the command keeps the name by which it was called.
pub fn delegated(words: &[OsString]) -> Option<(&'static Delegated, Vec<OsString>)> {
    let find = |name: &OsString| COMMANDS.iter().find(|command| name == command.name);
    match words {
        [help, name, ..] if help == "help" => Some((find(name)?, vec!["--help".into()])),
        [_, version] if version == "--version" || version == "-V" => None,
        [name, words @ ..] => Some((find(name)?, words.to_vec())),
        [] => None,
    }
}

/// The flag among the words that asks for a grammar.
fn grammar_flag(words: &[OsString]) -> Option<&'static str> {
    let mut named = words.iter().filter_map(|word| word.to_str()).filter_map(|word| word.split('=').next());
    named.find_map(|word| GRAMMARS.into_iter().find(|flag| *flag == word))
}

impl Delegated {
    /// What clap knows of it without asking its program: no flags.
    pub fn by_name(&self) -> clap::Command {
        clap::Command::new(self.name).about(self.about)
    }

    /// Becomes the half: replaces this process.
    ///
    /// # Errors
    /// A file of another system that cannot be translated, or a half that is not beside this program or does not start.
    pub fn become_half(&self, words: Vec<OsString>) -> Result<Infallible> {
        let grammar = grammar_flag(&words).filter(|_| self.name == "generate");
        let program = match (self.program, grammar) {
            (_, Some(flag)) => binaries::find_for(binaries::SERVE, flag)?,
            (program @ (binaries::FLEET | binaries::SERVE), None) => {
                binaries::find_for(program, &format!("`tandem {}`", self.name))?
            }
            (program, None) => binaries::find(program)?,
        };
        let mut command = binaries::command_alone(&program);
        command.arg0(env::args_os().next().unwrap_or_else(|| "tandem".into())).arg(self.name);
        match self.translated(&words)? {
            Some(file) => {
                let json = words.iter().filter(|word| *word == JSON);
                command.args(json).arg("/dev/stdin").stdin(file);
            }
            None => _ = command.args(words),
        }
        Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
    }

    /// The configuration in a file of TRL, verl or RLinf, with the options behind it, for a command with the arguments
    /// of `tandem train`.
    fn translated(&self, words: &[OsString]) -> Result<Option<File>> {
        if self.name != "check-rewards" {
            return Ok(None);
        }
        let texts = words.iter().filter(|word| *word != JSON).map(|word| word.clone().into_string());
        let Ok(texts) = texts.collect::<Result<Vec<_>, _>>() else { return Ok(None) };
        if !layers::file_and_options(&texts).0.is_some_and(import_config::is_foreign) {
            return Ok(None);
        }
        let mut config = CommandLine::parse(&texts)?.config()?;
        // The half would look for relative paths beside the file that it reads.
        make_absolute(&mut config)?;
        let mut file = tempfile::tempfile().context("temporary file for the configuration")?;
        file.write_all(layers::to_toml(&config).as_bytes()).context("temporary file for the configuration")?;
        file.rewind().context("temporary file for the configuration")?;
        Ok(Some(file))
    }
}
