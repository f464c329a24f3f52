//! What all programs have in common at the terminal: the spelling of options, and messages about errors.

use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
};

use shared_bounds::{OneLine, Shown};

/// The command line of this process with its options spelt as clap knows them.
#[must_use]
pub fn words() -> Vec<OsString> {
    with_dashes(env::args_os())
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
    use super::*;

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
