//! All commands of `tandem` with their flags, for shells and manual pages. Other programs carry out many of them, and
//! are asked what these take. Only `tandem completions` and `tandem man` ask.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Child, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::Command;
use shared::process::described::{Described, WORD};

use super::halves::{COMMANDS, Delegated};
use crate::{
    programs::{binaries, describe},
    terminal::output,
};

/// All commands.
pub struct Commands {
    /// `tandem` with the commands whose flags are known.
    pub tandem: Command,
    /// The commands of programs that could not be asked.
    pub by_name: Vec<&'static Delegated>,
}

/// The answers of programs, by their names.
type Answers = BTreeMap<&'static str, Result<Vec<Command>>>;

/// All commands, as the programs say. A line on stderr names commands whose flags are not known, and the reason, for
/// each program of which `tells` is true.
pub fn commands(tells: impl Fn(&str) -> bool) -> Commands {
    let programs: BTreeSet<&'static str> = COMMANDS.iter().map(|command| command.program).collect();
    // All of them are started before the first answer is waited for: a learner loads libtorch first.
    let asked: Vec<_> = programs.into_iter().map(|program| (program, ask(program))).collect();
    let asked = asked.into_iter();
    let answers: Answers =
        asked.map(|(program, child)| (program, child.and_then(|child| answer(program, child)))).collect();
    let commands = joined(&answers);
    for (_, line) in unknown(&commands.by_name, &answers).into_iter().filter(|(program, _)| tells(program)) {
        output::tell(format_args!("warning: {line}"));
    }
    commands
}

/// Our own commands and those in the answers, in the order of help.
pub(super) fn joined(answers: &Answers) -> Commands {
    let (mut tandem, mut by_name) = (crate::own_commands(), Vec::new());
    for command in COMMANDS {
        let theirs = answers.get(command.program).and_then(|answer| answer.as_ref().ok());
        match theirs.into_iter().flatten().find(|theirs| theirs.get_name() == command.name) {
            Some(known) => tandem = tandem.subcommand(known.clone()),
            None => by_name.push(command),
        }
    }
    Commands { tandem, by_name }
}

/// A line for each program of which commands are known by name alone.
fn unknown(by_name: &[&Delegated], answers: &Answers) -> Vec<(&'static str, String)> {
    let line = |(program, answer): (&&'static str, &Result<Vec<Command>>)| {
        let theirs = by_name.iter().filter(|command| command.program == *program);
        let names: Vec<String> = theirs.map(|command| format!("`tandem {}`", command.name)).collect();
        let reason = match answer {
            Ok(_) => format!("`{program}` is of another build and does not know all of them"),
            Err(error) => format!("{error:#}"),
        };
        let told = || format!("the flags of {} are not known: {reason}", names.join(", "));
        (!names.is_empty()).then(|| (*program, told()))
    };
    answers.iter().filter_map(line).collect()
}

/// Starts a program, to be asked for its commands.
fn ask(program: &str) -> Result<Child> {
    let path = binaries::find(program)?;
    let mut command = binaries::command(&path);
    command.arg(WORD).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("cannot start {}", path.display()))
}

/// The commands that a program says it has.
fn answer(program: &str, child: Child) -> Result<Vec<Command>> {
    let said = child.wait_with_output().with_context(|| format!("cannot wait for `{program}`"))?;
    if !said.status.success() {
        let log = String::from_utf8_lossy(&said.stderr);
        let reason = log.lines().rev().find_map(|line| line.strip_prefix("error: ")).map(str::to_owned);
        bail!("`{program} {WORD}` fails: {}", reason.unwrap_or_else(|| describe(said.status)));
    }
    let described: Described =
        serde_json::from_slice(&said.stdout).with_context(|| format!("what `{program} {WORD}` says cannot be read"))?;
    Ok(described.into_commands())
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use clap::Arg;

    use super::*;

    #[test]
    fn commands_of_programs_that_answer_are_known_in_full_and_others_by_name() {
        let serve = Command::new("serve").arg(Arg::new("max_num_seqs").long("max-num-seqs"));
        let answers = Answers::from([
            (binaries::SERVE, Ok(vec![Command::new("run"), serve])),
            (binaries::FLEET, Err(anyhow!("it is not there"))),
            ("learner", Ok(Vec::new())),
        ]);
        let Commands { tandem, by_name } = joined(&answers);
        let known = tandem.find_subcommand("serve").unwrap();
        assert!(known.get_arguments().any(|arg| arg.get_long() == Some("max-num-seqs")));
        assert!(tandem.find_subcommand("train").is_some() && tandem.find_subcommand("run").is_none());
        let mut names: Vec<&str> = by_name.iter().map(|command| command.name).collect();
        names.extend(tandem.get_subcommands().map(Command::get_name));
        names.sort_unstable();
        let all = crate::command_line();
        let mut expected: Vec<&str> = all.get_subcommands().map(Command::get_name).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);
        let lines: Vec<String> = unknown(&by_name, &answers).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("the flags of `tandem sft`, `tandem reward-model`, "), "{lines:?}");
        assert_eq!(lines[1], "the flags of `tandem worker` are not known: it is not there");
    }
}
