//! `tandem --help`: the commands, grouped by purpose.

use std::fmt::Write as _;

use clap::Command;

/// Headings and the commands below them, each command once.
const GROUPS: &[(&str, &[&str])] = &[
    ("Train", &["new", "train", "sweep", "iterate", "sft", "reward-model", "demo"]),
    ("On other hosts", &["worker", "learner-rank"]),
    ("Ask a model", &["generate", "chat", "serve"]),
    ("Score", &["eval", "compare", "rewards", "check-rewards", "score", "logprobs"]),
    ("Look at a run", &["ui", "report", "explain", "replay"]),
    ("Models and configurations", &["export", "merge", "push", "init", "import-config", "schema"]),
    ("Machine and speed", &["doctor", "bench", "tune"]),
    ("Shell", &["completions", "man"]),
];

/// The same command line, whose help lists the commands in groups.
pub fn grouped(command: Command) -> Command {
    let mut list = String::new();
    for (heading, names) in GROUPS {
        let _ = writeln!(list, "\n{heading}:");
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let _ = writeln!(list, "  {name:<13}  {}", about.map(ToString::to_string).unwrap_or_default());
        }
    }
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{list}\nOptions:\n{{options}}\n\n\
         `tandem COMMAND --help` says more. The learner's own benchmark is `learner bench`.\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_listed_once_and_fits_a_terminal() {
        let listed = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect::<Vec<_>>();
        let mut known: Vec<String> = crate::command_line().get_subcommands().map(|c| c.get_name().to_owned()).collect();
        let mut sorted = listed.clone();
        sorted.sort_unstable();
        known.sort_unstable();
        assert_eq!(sorted, known);
        for line in crate::command_line().render_help().to_string().lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= 80 && line.trim().contains("  "), "{line}");
        }
    }
}
