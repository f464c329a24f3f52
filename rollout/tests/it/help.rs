//! The help says of every flag not only what it does, but also what one pays for it.

use clap::{Args, Command};
use rollout::commands::{bench, chat, compare, eval, generate, rewards, run, tune};

/// Flags that only say where something is or how it is to be read: there is nothing to weigh.
const NOTHING_TO_WEIGH: [&str; 29] = [
    "answer-column",
    "chat-template",
    "chat-template-kwargs",
    "compare-binary",
    "correct-at",
    "dataset",
    "dataset-config",
    "help",
    "json",
    "judge-api-key-env",
    "lengths-file",
    "model",
    "output",
    "prompt-column",
    "prompts",
    "raw",
    "reward-funcs",
    "reward-env",
    "reward-python",
    "reward-writable",
    "run-dir",
    "run-id",
    "seed",
    "seed-b",
    "split",
    "stop",
    "system-prompt",
    "version",
    "without-tools",
];

/// Words that compare: more of one thing, less of another.
const COMPARING: [&str; 22] = [
    "more",
    "less",
    "fewer",
    "longer",
    "shorter",
    "faster",
    "slower",
    "takes",
    "take",
    "costs",
    "cost",
    "time",
    "memory",
    "needs",
    "loses",
    "safer",
    "cut",
    "halves",
    "kinder",
    "best case",
    "tail",
    "sure",
];

fn commands() -> Vec<Command> {
    vec![
        bench::Args::augment_args(Command::new("bench")),
        chat::Args::augment_args(Command::new("chat")),
        compare::Args::augment_args(Command::new("compare")),
        eval::Args::augment_args(Command::new("eval")),
        generate::Args::augment_args(Command::new("generate")),
        rewards::Args::augment_args(Command::new("rewards")),
        run::Args::augment_args(Command::new("run")),
        tune::Args::augment_args(Command::new("tune")),
    ]
}

#[test]
fn every_flag_says_what_it_trades() {
    let mut seen = 0;
    for command in commands() {
        for flag in command.get_arguments().filter(|argument| !argument.is_positional()) {
            let name = flag.get_long().expect("flags have long names");
            let help = flag.get_long_help().or(flag.get_help()).map(ToString::to_string).unwrap_or_default();
            assert!(help.len() > 20, "{} --{name}: `{help}` does not say what it does", command.get_name());
            let weighs = COMPARING.iter().any(|word| help.contains(word));
            assert!(
                weighs || NOTHING_TO_WEIGH.contains(&name),
                "{} --{name}: `{help}` does not say what one pays for it",
                command.get_name()
            );
            seen += 1;
        }
    }
    assert!(seen > 60, "only {seen} flags");
}
