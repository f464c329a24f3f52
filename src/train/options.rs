//! The options of a run as arguments of clap: for `--help`, shells and the manual page. The command line itself is read
//! by [`CommandLine`](super::CommandLine).

use clap::{
    Arg, ArgAction, Command, ValueHint,
    builder::{PossibleValue, PossibleValuesParser, StyledStr},
};
use shared::config::{OPTIONS, OptionSpec, ValueKind};

/// The options in `--help`: for each one a sentence, and its default.
pub fn every_option() -> StyledStr {
    let template = "Every key of run.toml is an option, written with underscores or dashes; options win over the \
        file.\n\
                    --dry-run makes every check, prints the resolved configuration and does nothing else.\n\
                    --chaos seed=7,kill=0.02,stop=0.01,disk=0.01 brings faults on purpose (docs/recovering.md).\n\
                    docs/configuration.md describes the options in full.\n\n{all-args}";
    let mut options = Command::new("options").disable_help_flag(true).help_template(template);
    options = options.args(OPTIONS.iter().map(in_a_sentence));
    options.render_help()
}

/// `tandem train` with an argument for each option, for shells and the manual page.
pub fn described(train: &Command) -> Command {
    let file = Arg::new("file")
        .value_name("RUN.toml")
        .value_hint(ValueHint::FilePath)
        .help("The configuration file; a .yaml, .json or .sh file of TRL, verl or RLinf is translated on the way");
    let dry_run = Arg::new("dry-run")
        .long("dry-run")
        .action(ArgAction::SetTrue)
        .help("Make every check, print the resolved configuration and do nothing else");
    let chaos = Arg::new("chaos")
        .long("chaos")
        .value_name("FAULTS")
        .help("Bring faults on purpose, as seed=7,kill=0.02,stop=0.01,disk=0.01 (docs/recovering.md)");
    Command::new("train")
        .about(train.get_about().cloned().unwrap_or_default())
        .long_about(train.get_long_about().cloned().unwrap_or_default())
        .override_usage("tandem train [RUN.toml] [--key value]... [--dry-run]")
        .args([file, dry_run, chaos])
        .args(OPTIONS.iter().map(in_full))
}

/// An option with a sentence and its default.
fn in_a_sentence(option: &OptionSpec) -> Arg {
    let default = option.default_text().filter(|text| text != "[]").or(option.absent.map(str::to_owned));
    let default = default.map_or_else(String::new, |default| format!(" [default: {default}]"));
    let flag = Arg::new(option.key).long(option.key).value_name(option.kind.words());
    flag.help(format!("{}{default}", option.summary())).help_heading(option.section)
}

/// An option with everything that is declared of it: the values of a choice, and its whole meaning.
fn in_full(option: &OptionSpec) -> Arg {
    let default = match (option.default_text(), option.absent) {
        (_, Some(meaning)) => format!("Absent by default: {meaning}."),
        (Some(text), None) if text != "[]" => format!("Default: {text}."),
        (Some(_), None) => "Empty by default.".to_owned(),
        (None, None) => "It must be given, here or in the file.".to_owned(),
    };
    let flag = in_a_sentence(option).long_help(format!("{} {default}", option.doc));
    match option.kind {
        // A flag without a value is `true`.
        ValueKind::Flag => flag.num_args(0..=1).value_parser(["true", "false"]),
        ValueKind::Choice(values) => {
            let values = values.iter().map(|value| PossibleValue::new(value.word).help(value.doc));
            flag.value_parser(PossibleValuesParser::new(values)).value_name("value")
        }
        ValueKind::Path | ValueKind::Paths => flag.value_hint(ValueHint::AnyPath),
        _ => flag,
    }
}

#[cfg(test)]
mod tests {
    use shared::config::{TrainConfig, layers};

    use super::*;

    #[test]
    fn the_help_has_every_option_with_its_default() {
        let help = every_option().to_string();
        let defaults: toml::Table = layers::to_toml(&TrainConfig::default()).parse().unwrap();
        // Up to the next option, in one line whatever the width.
        let said = |key: &str| {
            let (_, rest) = help.split_once(&format!("--{key} <")).unwrap_or_else(|| panic!("{key}: {help}"));
            let end = rest.find("\n      --").unwrap_or(rest.len());
            rest[..end].split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for option in OPTIONS {
            let text = said(option.key);
            let begin: Vec<&str> = option.doc.split_whitespace().take(3).collect();
            let begin = begin.join(" ");
            assert!(text.contains(begin.trim_end_matches('.')), "{}: {text}", option.key);
            let shown = match defaults.get(option.key) {
                None => option.absent.map(str::to_owned),
                Some(toml::Value::Array(list)) if list.is_empty() => option.absent.map(str::to_owned),
                Some(toml::Value::String(text)) => Some(text.clone()),
                Some(toml::Value::Float(number)) => Some(number.to_string()),
                Some(value) => Some(value.to_string()),
            };
            let number = |text: &str| text.trim_matches('"').parse::<f64>().ok();
            let (_, default) = text.rsplit_once("[default: ").unwrap_or_default();
            let default = default.split_once(']').map_or("", |(default, _)| default);
            let same = |shown: &str| default == shown || number(default).is_some_and(|n| Some(n) == number(shown));
            assert!(shown.as_deref().is_none_or(same), "{}: `{default}` is not {shown:?}: {text}", option.key);
        }
        for text in [
            "\nGeneration:\n",
            "--dataset <path or list of paths>",
            "Hugging Face model",
            "[default: 8]",
            "[default: off]",
        ] {
            assert!(help.contains(text), "{text}: {help}");
        }
    }

    #[test]
    fn shells_and_the_manual_page_get_every_option_with_its_values() {
        let command = described(&Command::new("train").about("a"));
        for option in OPTIONS {
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option.key)).expect(option.key);
            let help = arg.get_long_help().unwrap().to_string();
            assert!(help.starts_with(option.doc) && arg.get_help_heading() == Some(option.section), "{help}");
            if let ValueKind::Choice(values) = option.kind {
                let offered: Vec<String> =
                    arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
                assert_eq!(offered, values.iter().map(|value| value.word).collect::<Vec<_>>(), "{}", option.key);
            }
        }
        let line = ["train", "run.toml", "--learning_rate", "1e-6", "--shuffle_dataset", "--dry-run"];
        assert!(command.clone().try_get_matches_from(line).is_ok());
        assert!(command.try_get_matches_from(["train", "--loss_type", "grppo"]).is_err());
    }
}
