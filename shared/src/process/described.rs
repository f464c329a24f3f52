//! How a program says which commands it has. `tandem man` and `tandem completions` are about the commands of all
//! programs, and each program knows its own alone: it is asked by one word, and answers with its command line as JSON.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::{
    Arg, ArgAction, ArgGroup, Command, ValueHint,
    builder::{PossibleValue, PossibleValuesParser, StyledStr},
};
use serde::{Deserialize, Serialize};

use super::{command_line, exit::ERROR};

/// The word that asks for the description, alone on the command line. It is no command, so no help lists it.
pub const WORD: &str = "describe-commands";

/// Describes the commands on stdout if the command line asks for that. Any other start makes no `command` for it.
pub fn run_if_asked(command: impl FnOnce() -> Command) -> Option<ExitCode> {
    let mut words = env::args_os().skip(1);
    if words.next()? != WORD || words.next().is_some() {
        return None;
    }
    let told = tell(&Described::of(command()));
    Some(told.map_or_else(|error| command_line::fail(error, ERROR), |()| ExitCode::SUCCESS))
}

fn tell(described: &Described) -> io::Result<()> {
    let text = serde_json::to_string(described)?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// A command and those below it, with all that pages and completions show. What is hidden is left out, and so is what
/// clap adds to every command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Described {
    name: String,
    about: Option<String>,
    long_about: Option<String>,
    usage: Option<String>,
    after_help: Option<String>,
    arguments: Vec<Argument>,
    /// Groups of which an argument must be given: the name of each, and its arguments.
    groups: Vec<(String, Vec<String>)>,
    commands: Vec<Described>,
}

/// A flag, or a value by its place.
#[derive(Debug, Serialize, Deserialize)]
struct Argument {
    id: String,
    long: Option<String>,
    short: Option<char>,
    aliases: Vec<String>,
    help: Option<String>,
    long_help: Option<String>,
    heading: Option<String>,
    value_names: Vec<String>,
    /// The fewest and the most values that it takes at once.
    count: (usize, usize),
    may_be_repeated: bool,
    is_required: bool,
    /// Whether a value follows `=` alone.
    needs_equals: bool,
    is_path: bool,
    /// The values of a choice, with their meanings.
    choices: Vec<(String, Option<String>)>,
    defaults: Vec<String>,
}

impl Described {
    /// The description of a command.
    #[must_use]
    pub fn of(mut command: Command) -> Self {
        command.build();
        Self::of_built(&command)
    }

    fn of_built(command: &Command) -> Self {
        let shown = command.get_arguments().filter(|argument| is_shown(argument));
        let arguments: Vec<Argument> = shown.map(Argument::of).collect();
        let members = |group: &ArgGroup| -> Vec<String> {
            let ids = group.get_args().map(ToString::to_string);
            ids.filter(|id| arguments.iter().any(|argument| argument.id == *id)).collect()
        };
        let groups = command.get_groups().filter(|group| group.is_required_set());
        let groups = groups.map(|group| (group.get_id().to_string(), members(group))).collect();
        // clap has a command `help` by itself.
        let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
        Self {
            name: command.get_name().to_owned(),
            about: text(command.get_about()),
            long_about: text(command.get_long_about()),
            usage: text(command.get_overridden_usage()),
            after_help: text(command.get_after_long_help().or_else(|| command.get_after_help())),
            commands: below.map(Self::of_built).collect(),
            arguments,
            groups,
        }
    }

    /// The commands below this one. They are for pages and completions: what stands in a value is not looked at.
    #[must_use]
    pub fn into_commands(self) -> Vec<Command> {
        self.commands.into_iter().map(Self::into_command).collect()
    }

    fn into_command(self) -> Command {
        let group = |(name, members): (String, Vec<String>)| {
            ArgGroup::new(kept(name)).args(members.into_iter().map(kept)).multiple(true).required(true)
        };
        Command::new(kept(self.name))
            .about(self.about.map(kept))
            .long_about(self.long_about.map(kept))
            .override_usage(self.usage.map(kept))
            .after_help(self.after_help.map(kept))
            .args(self.arguments.into_iter().map(Argument::into_arg))
            .groups(self.groups.into_iter().map(group))
            .subcommands(self.commands.into_iter().map(Self::into_command))
    }
}

impl Argument {
    /// The description of an argument whose command is built.
    fn of(arg: &Arg) -> Self {
        let count = arg.get_num_args().expect("a built command knows how many values an argument takes");
        let choices = arg.get_possible_values().into_iter().filter(|choice| !choice.is_hide_set());
        // A flag without a value has one too: `false`.
        let has_default = count.takes_values() && !arg.is_hide_default_value_set();
        let defaults = arg.get_default_values().iter().filter(|_| has_default);
        Self {
            id: arg.get_id().to_string(),
            long: arg.get_long().map(str::to_owned),
            short: arg.get_short(),
            aliases: arg.get_visible_aliases().unwrap_or_default().into_iter().map(str::to_owned).collect(),
            help: text(arg.get_help()),
            long_help: text(arg.get_long_help()),
            heading: arg.get_help_heading().map(str::to_owned),
            value_names: arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect(),
            count: (count.min_values(), count.max_values()),
            may_be_repeated: matches!(arg.get_action(), ArgAction::Append | ArgAction::Count),
            is_required: arg.is_required_set(),
            needs_equals: arg.is_require_equals_set(),
            is_path: arg.get_value_hint() == ValueHint::AnyPath,
            choices: choices.map(|choice| (choice.get_name().to_owned(), text(choice.get_help()))).collect(),
            defaults: defaults.map(|value| value.to_string_lossy().into_owned()).collect(),
        }
    }

    fn into_arg(self) -> Arg {
        let (fewest, most) = self.count;
        let arg = Arg::new(kept(self.id))
            .long(self.long.map(kept))
            .short(self.short)
            .visible_aliases(self.aliases.into_iter().map(kept))
            .help(self.help.map(kept))
            .long_help(self.long_help.map(kept))
            .help_heading(self.heading.map(kept))
            .required(self.is_required);
        if most == 0 {
            return arg.action(if self.may_be_repeated { ArgAction::Count } else { ArgAction::SetTrue });
        }
        let arg = arg
            .action(if self.may_be_repeated { ArgAction::Append } else { ArgAction::Set })
            .num_args(fewest..=most)
            .value_names(self.value_names.into_iter().map(kept))
            .default_values(self.defaults.into_iter().map(kept))
            .require_equals(self.needs_equals);
        let arg = if self.is_path { arg.value_hint(ValueHint::AnyPath) } else { arg };
        if self.choices.is_empty() {
            return arg;
        }
        let choices = self.choices.into_iter();
        let choices = choices.map(|(name, help)| PossibleValue::new(kept(name)).help(help.map(kept)));
        arg.value_parser(PossibleValuesParser::new(choices))
    }
}

/// Whether an argument is the command's own, and not hidden.
fn is_shown(arg: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    !arg.is_hide_set() && !matches!(arg.get_action(), Help | HelpLong | HelpShort | Version)
}

fn text(styled: Option<&StyledStr>) -> Option<String> {
    styled.map(ToString::to_string)
}

/// A text that lasts as long as the process: clap takes no other ones, and the commands that ask end soon.
fn kept(text: String) -> &'static str {
    text.leak()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate() -> Command {
        let prompts = ArgGroup::new("Prompts").args(["prompt", "prompts"]).multiple(true).required(true);
        Command::new("generate")
            .about("Complete prompts")
            .long_about("Complete prompts.\n\nOne \"at\" a time.")
            .args([
                Arg::new("file").value_name("RUN.toml").required(true).help("The run"),
                Arg::new("more").value_name("OPTIONS").num_args(0..),
                Arg::new("prompt").long("prompt").value_name("TEXT").help("A text").long_help("A text.\n\nOr `-`."),
                Arg::new("prompts").long("prompts").short('p').visible_alias("rows").value_name("FILE"),
                Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print rows"),
                Arg::new("stop").long("stop").value_name("TEXT").action(ArgAction::Append).help_heading("Sampling"),
                Arg::new("top_p").long("top-p").value_name("P").default_value("0.9").help_heading("Sampling"),
                Arg::new("network")
                    .long("network")
                    .value_name("BOOL")
                    .num_args(0..=1)
                    .require_equals(true)
                    .value_parser(["true", "false"]),
                Arg::new("device")
                    .long("device")
                    .value_parser([PossibleValue::new("cpu").help("Processors"), PossibleValue::new("cuda")])
                    .default_value("cpu"),
                Arg::new("secret").long("secret").hide(true),
            ])
            .group(prompts)
    }

    fn made_again(command: Command) -> Vec<Command> {
        let text = serde_json::to_string(&Described::of(command)).unwrap();
        assert!(!text.contains("secret") && !text.contains("\"help\",") && !text.contains("version"), "{text}");
        serde_json::from_str::<Described>(&text).unwrap().into_commands()
    }

    #[test]
    fn a_command_is_made_again_with_all_that_its_help_shows() {
        let usage = "tandem replay [--key value]...";
        let replay = Command::new("replay").override_usage(usage).after_help("Every option of run.toml.");
        let program = Command::new("rollout").version("1.0").propagate_version(true).subcommands([
            generate(),
            replay.clone(),
            Command::new("check-secret").hide(true),
        ]);
        let again = made_again(program);
        assert_eq!(again.len(), 2);
        for (mut again, mut first) in again.into_iter().zip([generate(), replay]) {
            assert_eq!(again.render_help().to_string(), first.render_help().to_string());
            assert_eq!(again.render_long_help().to_string(), first.render_long_help().to_string());
        }
    }

    #[test]
    fn paths_and_repeated_flags_are_known_to_shells() {
        let path = Arg::new("trace").long("trace").value_parser(clap::value_parser!(std::path::PathBuf));
        let loud = Arg::new("loud").long("loud").action(ArgAction::Count);
        let below = Command::new("bench").args([path, loud]);
        let mut again = made_again(Command::new("rollout").subcommand(below)).remove(0);
        again.build();
        let arg = |name: &str| again.get_arguments().find(|arg| arg.get_id() == name).unwrap();
        assert_eq!(arg("trace").get_value_hint(), ValueHint::AnyPath);
        assert!(matches!(arg("loud").get_action(), ArgAction::Count));
    }
}
