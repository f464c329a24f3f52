//! What all programs have in common at the terminal: the spelling of options, and messages about errors.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Command, FromArgMatches};
use shared_bounds::{OneLine, Shown};

/// The command line of this process with its options spelt as clap knows them.
#[must_use]
pub fn words() -> Vec<OsString> {
    with_dashes(env::args_os())
}

/// Reads the command line of this process, or ends the process as clap does. Usage lines of all errors name the command
/// that was asked for: clap's own `parse` names the program alone where a flag is refused after clap has read it.
#[must_use]
pub fn read<T: FromArgMatches>(command: Command) -> T {
    read_from(command, words()).unwrap_or_else(|error| error.exit())
}

fn read_from<T: FromArgMatches>(mut command: Command, words: Vec<OsString>) -> Result<T, clap::Error> {
    // The commands that clap has read know by which name this process was started.
    let mut matches = command.try_get_matches_from_mut(words)?;
    let name = matches.subcommand_name().unwrap_or_default().to_owned();
    T::from_arg_matches_mut(&mut matches).map_err(|error| match command.find_subcommand_mut(&name) {
        Some(asked) => error.format(asked),
        None => error.format(&mut command),
    })
}

/// Spells options with dashes: `--max_steps 3` is `--max-steps 3`, as keys of a configuration are options too. Text
/// behind `=`, words that are no options, and words behind a bare `--` stay as they are.
pub fn with_dashes(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut only_values = false;
    let spell = |word: OsString| {
        only_values |= word == "--";
        if only_values { word } else { spell(&word).unwrap_or(word) }
    };
    words.into_iter().map(spell).collect()
}

fn spell(word: &OsStr) -> Option<OsString> {
    let option = word.to_str()?.strip_prefix("--")?;
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let name = is_name.then(|| name.replace('_', "-"))?;
    Some(value.map_or_else(|| format!("--{name}"), |value| format!("--{name}={value}")).into())
}

/// Tells the user something, on stderr, with control characters escaped. The reader of the output may be gone and the
/// disk may be full: `eprintln!` would panic then, so messages that cannot be written are dropped.
pub fn tell(lines: impl Display) {
    let _ = writeln!(io::stderr(), "{}", Shown(lines));
}

/// Tells the user about oddities that end nothing, in a line each.
pub fn tell_warnings(lines: impl IntoIterator<Item = impl Display>) {
    lines.into_iter().for_each(|line| tell(format_args!("warning: {line}")));
}

/// What measurements of a program say that was built for tests.
pub const UNOPTIMISED: &str = "this program was built without optimisation, so its rates mean nothing: build it with \
                               `cargo build --release`";

/// Tells the user why the program ends, in one line, whatever the error quotes, and ends it with one of the codes in
/// [`crate::process::exit`].
pub fn fail(error: impl Display, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {:#}", OneLine(error));
    ExitCode::from(code)
}

/// [`tell`](crate::process::command_line::tell) with the arguments of `format!`, in place of `eprintln!`.
#[macro_export]
macro_rules! tell {
    ($($words:tt)*) => { $crate::process::command_line::tell(format_args!($($words)*)) };
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, ArgMatches, error::ErrorKind};

    use super::*;

    /// What refuses a flag that clap has read.
    #[derive(Debug)]
    struct Late;

    impl FromArgMatches for Late {
        fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
            match matches.subcommand() {
                Some((_, flags)) if flags.get_flag("json") => {
                    Err(clap::Error::raw(ErrorKind::ArgumentConflict, "'--json' cannot be here"))
                }
                _ => Ok(Self),
            }
        }

        fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
            Ok(())
        }
    }

    #[test]
    fn an_error_names_the_command_that_was_asked_for() {
        let read = |line: &str| {
            let json = Arg::new("json").long("json").action(ArgAction::SetTrue);
            let command = Command::new("rollout").subcommand(Command::new("generate").arg(json));
            read_from::<Late>(command, line.split(' ').map(OsString::from).collect())
        };
        assert!(read("/usr/bin/tandem generate").is_ok());
        for (line, words) in [("generate --json", "'--json' cannot be here"), ("generate --jsn", "'--jsn'")] {
            for program in ["tandem", "rollout"] {
                let error = read(&format!("/usr/bin/{program} {line}")).unwrap_err().to_string();
                assert!(error.contains(words) && error.contains(&format!("Usage: {program} generate")), "{error}");
            }
        }
    }

    #[test]
    fn options_are_spelt_with_dashes_and_nothing_else_is() {
        let words = |line: &str| line.split('|').map(OsString::from).collect::<Vec<_>>();
        for (given, read) in [
            ("--max_steps|3", "--max-steps|3"),
            ("--output_dir=my_runs/a_b", "--output-dir=my_runs/a_b"),
            ("my_file|-a_b|--|--a_b", "my_file|-a_b|--|--a_b"),
            ("--compare|--kv_dtype int8", "--compare|--kv_dtype int8"),
            ("--_x|---a_b|--ä_b", "--_x|---a_b|--ä_b"),
        ] {
            assert_eq!(with_dashes(words(given)), words(read), "{given}");
        }
    }
}
