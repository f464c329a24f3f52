//! Defaults, then the file, then the command line; unknown keys are refused with the nearest known one, all at once.

mod text;

use std::{
    collections::HashSet,
    env,
    path::{self, Path},
};

use shared_bounds::read_text;
use toml::{Table, Value};

use super::{
    ConfigError, EnvironmentFactory, OPTIONS, OptionSpec, TrainConfig, ValueKind, elsewhere, environments::BUILT_IN,
    hub, option, schedule, shares,
};

/// Options of the command line in the order given: pairs of key and value, with keys spelt as in `run.toml`.
pub type Overrides = Vec<(String, String)>;

/// Most bytes of a file of options.
pub const MOST_BYTES: u64 = 1 << 20;

const COMMAND_LINE: &str = "command line";

/// Splits the free-form part of a command line (`--key value` or `--key=value`) into overrides. Dashes in keys stand
/// for underscores; a yes-or-no option without a value is `true`.
///
/// # Errors
/// A word that is no `--key`, an unknown key, or an option without a value.
pub fn parse_overrides(words: &[String]) -> Result<Overrides, ConfigError> {
    let (mut list, mut unknown) = (Overrides::new(), Vec::new());
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else {
            return Err(ConfigError::Value(format!(
                "unexpected `{word}`: options are written --key value, behind the file if there is one"
            )));
        };
        let (key, value) = match flag.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (flag, words.next_if(|next| !next.starts_with("--")).cloned()),
        };
        let option = match known(&key.replace('-', "_"), COMMAND_LINE) {
            Ok(option) => option,
            Err(problem) => {
                unknown.push(problem);
                continue;
            }
        };
        let value = match value {
            Some(value) => value,
            None if option.kind == ValueKind::Flag => "true".to_owned(),
            None => return Err(ConfigError::Value(format!("`--{}` needs a value", option.key))),
        };
        list.push((option.key.to_owned(), value));
    }
    all(unknown)?;
    Ok(list)
}

/// Loads a run's configuration. Relative paths in the file start from the file's folder, those on the command line from
/// the working directory. `none` removes an optional value.
///
/// # Errors
/// A [`ConfigError`] that names the file or option, in one line.
pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    merged(file.map_or_else(|| Ok(Table::new()), read_file)?, overrides)
}

/// Reads a configuration from the text of a file; `overrides` win over it.
///
/// # Errors
/// As [`load`].
pub fn parse(text: &str, file: &Path, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    merged(values_of(text, file)?, overrides)
}

fn merged(mut values: Table, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    for (key, text) in overrides {
        let option = known(key, COMMAND_LINE)?;
        let value = located(option, option.kind.parse(text), Path::new(""));
        put(&mut values, option, value, text, COMMAND_LINE)?;
    }
    Ok(shares::told_apart(values).try_into().expect("each value was accepted by itself"))
}

/// Checks one value in the form of the command line; the error does not say where it stands.
///
/// # Errors
/// The values that the option takes.
pub fn check(key: &str, text: &str) -> Result<(), String> {
    let option = known(key, COMMAND_LINE).map_err(|error| error.to_string())?;
    let value = located(option, option.kind.parse(text), Path::new(""));
    if option.absent.is_some() && is_none(&value) {
        return Ok(());
    }
    accepted(option, value, text).map(drop)
}

/// An option and its value in the form of the command line, of a value that stands in a file of `folder`: a path there
/// is relative to the folder.
///
/// # Errors
/// An unknown key, which `origin` places, and a value that the option does not take.
pub fn in_words(
    key: &str,
    value: Value,
    folder: &Path,
    origin: &str,
) -> Result<(&'static OptionSpec, String), ConfigError> {
    let option = known(key, origin)?;
    let text = match located(option, value, folder) {
        Value::String(text) => text,
        value => value.to_string(),
    };
    check(option.key, &text).map_err(|wrong| ConfigError::Value(format!("`{}` ({origin}) {wrong}", option.key)))?;
    Ok((option, text))
}

/// The interpreter of reward functions in Python, where neither a file nor a command line names one (`reward_python`).
pub const PYTHON_VARIABLE: &str = "TANDEM_REWARD_PYTHON";

/// As [`load`], for what a user names: reward functions and the interpreter that the file names are found from its
/// folder on, those of the command line and [`PYTHON_VARIABLE`] from the working directory on.
///
/// # Errors
/// As [`load`].
pub fn load_named(file: Option<&Path>, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    load_in(named_interpreter(), file, overrides)
}

/// As [`load_named`], of a text that stands for the file.
///
/// # Errors
/// As [`load`].
pub fn parse_named(text: &str, file: &Path, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    named(named_interpreter(), values_of(text, file)?, Some(file), overrides)
}

/// [`load_named`] where that is the value of [`PYTHON_VARIABLE`].
fn load_in(python: Option<String>, file: Option<&Path>, overrides: &Overrides) -> Result<TrainConfig, ConfigError> {
    named(python, file.map_or_else(|| Ok(Table::new()), read_file)?, file, overrides)
}

fn named(
    python: Option<String>,
    values: Table,
    file: Option<&Path>,
    overrides: &Overrides,
) -> Result<TrainConfig, ConfigError> {
    let mut overrides = overrides.clone();
    if !values.contains_key("reward_python") {
        add_interpreter(python, &mut overrides);
    }
    let mut config = merged(values, &overrides)?;
    let in_file = |option: &str| !overrides.iter().any(|(key, _)| key == option);
    let folder = file.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    if config.reward_python.contains('/') {
        let folder = config.reward_dir.as_deref().or(folder).filter(|_| in_file("reward_python"));
        let python = folder.unwrap_or(Path::new("")).join(&config.reward_python);
        // The programs that start it may work in another folder.
        config.reward_python = path::absolute(&python).unwrap_or(python).display().to_string();
    }
    let is_code = |entry: &String| !is_built_in(entry);
    let classes = config.environment_factory.iter().flat_map(EnvironmentFactory::classes);
    let names_code = [
        ("reward_funcs", config.reward_funcs.iter().any(is_code)),
        ("tools", config.tools.iter().any(is_code)),
        ("environment_factory", classes.into_iter().any(|(_, class)| !is_built_in(class))),
        ("agent", config.agent.is_some()),
    ];
    if names_code.iter().any(|(option, is_given)| *is_given && in_file(option)) && config.reward_dir.is_none() {
        config.reward_dir = folder.map(Path::to_owned);
    }
    Ok(config)
}

/// Whether an entry of the options for code names something of the program's own, which lies in no folder.
#[must_use]
pub fn is_built_in(entry: &str) -> bool {
    entry.starts_with(BUILT_IN) || entry.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// The interpreter that [`PYTHON_VARIABLE`] names, a path in full.
#[must_use]
pub fn named_interpreter() -> Option<String> {
    let python = env::var(PYTHON_VARIABLE).ok().filter(|python| !python.is_empty())?;
    let is_path = python.contains('/');
    let full = path::absolute(&python).ok().filter(|_| is_path).map(|full| full.display().to_string());
    Some(full.unwrap_or(python))
}

/// Adds an interpreter to options that name none.
pub fn add_interpreter(python: Option<String>, overrides: &mut Overrides) {
    let is_named = overrides.iter().any(|(key, _)| key == "reward_python");
    if let Some(python) = python.filter(|_| !is_named) {
        overrides.push(("reward_python".to_owned(), python));
    }
}

/// Separates the configuration file of a command line, which comes first, from the options.
#[must_use]
pub fn file_and_options(words: &[String]) -> (Option<&Path>, &[String]) {
    match words.split_first() {
        Some((first, rest)) if !first.starts_with('-') => (Some(Path::new(first)), rest),
        _ => (None, words),
    }
}

/// The configuration as `run.toml` text; [`load`] reads the same values back.
#[must_use]
pub fn to_toml(config: &TrainConfig) -> String {
    toml::to_string(config).expect("a flat structure of numbers, texts and lists is valid TOML")
}

fn read_file(path: &Path) -> Result<Table, ConfigError> {
    let fail = |message: String| ConfigError::File { path: path.display().to_string(), message };
    values_of(&read_text(path, MOST_BYTES).map_err(|e| fail(text::unreadable(path, &e)))?, path)
}

/// A file's values by the keys of their options, with paths made relative to the working directory.
fn values_of(text: &str, path: &Path) -> Result<Table, ConfigError> {
    let file = path.display().to_string();
    let fail = |message: String| ConfigError::File { path: file.clone(), message };
    let lines = text::parse(text, path).map_err(fail)?;
    let (mut values, mut seen, mut problems) = (Table::new(), HashSet::new(), Vec::new());
    for text::Line { number, key: spelling, mut value } in lines {
        let origin = format!("{file}, line {number}");
        let option = match known(&spelling, &origin) {
            Ok(option) => option,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        if !seen.insert(option.key) {
            problems.push(fail(format!("line {number}: `{}` is given twice, once under another spelling", option.key)));
            continue;
        }
        value = located(option, value, path.parent().unwrap_or(Path::new("")));
        let given = value.to_string();
        problems.extend(put(&mut values, option, value, &given, &origin).err());
    }
    all(problems)?;
    Ok(values)
}

/// Fails with all problems, if there are any.
fn all(mut problems: Vec<ConfigError>) -> Result<(), ConfigError> {
    match problems.len() {
        0 => Ok(()),
        1 => Err(problems.remove(0)),
        _ => Err(ConfigError::Several(problems)),
    }
}

/// Inserts a value, if it has its option's type; `none` removes an optional one.
fn put(values: &mut Table, option: &OptionSpec, value: Value, given: &str, origin: &str) -> Result<(), ConfigError> {
    if option.absent.is_some() && is_none(&value) {
        values.remove(option.key);
        return Ok(());
    }
    let value = accepted(option, value, given)
        .map_err(|wrong| ConfigError::Value(format!("`{}` ({origin}) {wrong}", option.key)))?;
    values.insert(option.key.to_owned(), value);
    Ok(())
}

/// A value of its option's type, or a share of steps if the option takes shares.
fn accepted(option: &OptionSpec, value: Value, given: &str) -> Result<Value, String> {
    if let Some(path) = of_the_shell(option, &value) {
        return Err(format!("must be written out: `~` is a shell's word for a folder of the user's, got {path}"));
    }
    let value = without_point(option, value);
    let alone = Table::from_iter([(option.key.to_owned(), value)]);
    if shares::share(option, &alone[option.key]).is_some() || alone.clone().try_into::<TrainConfig>().is_ok() {
        return Ok(alone[option.key].clone());
    }
    let given = given.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = match (end_of(option, &alone[option.key]), option.share) {
        (Some(end), _) => end,
        (None, Some(_)) => "a whole number of steps, or a share of all steps below 1".to_owned(),
        (None, None) => option.kind.wanted(),
    };
    let schedule = if option.key == "lr_scheduler_type" { alone[option.key].as_str() } else { None };
    let reason = schedule.and_then(schedule::not_here).map(|reason| format!(": {reason}")).unwrap_or_default();
    Err(format!("must be {wanted}, got {given}{reason}"))
}

/// Least whole number above those of TOML.
const ABOVE: f64 = 9_223_372_036_854_775_808.0;

/// The end of an option's range, in words, for a whole number that is above all numbers of the option's type. TOML has
/// none above those of 64 bits with a sign, so on the command line they stay texts.
fn end_of(option: &OptionSpec, value: &Value) -> Option<String> {
    let is_whole = match value {
        Value::Integer(number) => *number >= 0,
        Value::Float(number) => *number > 0.0 && number.fract() == 0.0,
        Value::String(text) => {
            let digits = text.replace('_', "");
            digits.chars().all(|c| c.is_ascii_digit()) && digits.parse().is_ok_and(|number: f64| number >= ABOVE)
        }
        _ => false,
    };
    let most = option.most.filter(|_| is_whole)?;
    Some(option.bounds.high.map_or_else(|| format!("at most {most}"), |_| option.bounds.to_string()))
}

/// A path through a folder that is called `~`: only an unquoted word of a shell stands for the user's folder.
fn of_the_shell<'a>(option: &OptionSpec, value: &'a Value) -> Option<&'a str> {
    match value {
        Value::Array(list) => list.iter().find_map(|each| of_the_shell(option, each)),
        Value::String(path) if matches!(option.kind, ValueKind::Path | ValueKind::Paths) => {
            Path::new(path).iter().any(|part| part == "~").then_some(path)
        }
        _ => None,
    }
}

/// A whole number without its decimal point or exponent, where the option is one: `1e3` is 1000. Other values stay as
/// they are.
fn without_point(option: &OptionSpec, value: Value) -> Value {
    match value {
        Value::Float(number)
            if option.kind == ValueKind::Whole && number.fract() == 0.0 && (-ABOVE..ABOVE).contains(&number) =>
        {
            Value::Integer(number as i64)
        }
        value => value,
    }
}

/// Whether a value is the word `none`; on the command line it may stand in a list.
fn is_none(value: &Value) -> bool {
    match value {
        Value::Array(list) => matches!(list.as_slice(), [only] if is_none(only)),
        value => value.as_str() == Some("none"),
    }
}

/// Least similarity of a key that is suggested: one letter in four may be wrong.
const NEAR: f64 = 0.75;

/// The option that a spelling stands for; an unknown one is refused with the nearest key.
fn known(spelling: &str, origin: &str) -> Result<&'static OptionSpec, ConfigError> {
    option(spelling).ok_or_else(|| {
        let likeness = |option: &OptionSpec| strsim::normalized_damerau_levenshtein(option.key, spelling);
        let near = OPTIONS.iter().map(|option| (likeness(option), option.key));
        let nearest = near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness >= NEAR);
        let meant = elsewhere::meant(spelling).or(nearest.map(|(_, key)| key));
        let suggestion = meant.map(str::to_owned);
        ConfigError::UnknownKey { key: spelling.to_owned(), origin: origin.to_owned(), suggestion }
    })
}

/// The value, with its paths relative to `folder` resolved, and with names on the Hub marked as such.
fn located(option: &OptionSpec, value: Value, folder: &Path) -> Value {
    if !matches!(option.kind, ValueKind::Path | ValueKind::Paths) {
        return value;
    }
    match value {
        Value::Array(paths) => Value::Array(paths.into_iter().map(|path| located(option, path, folder)).collect()),
        Value::String(text) if !text.is_empty() && text != "none" => {
            let name = if option.on_hub { hub::on_hub(&text, folder) } else { None };
            Value::String(name.unwrap_or_else(|| folder.join(text).display().to_string()))
        }
        value => value,
    }
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
