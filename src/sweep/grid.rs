//! The values that a sweep varies, and all combinations of them.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use shared::config::{OPTIONS, OptionSpec, ValueKind, layers, schema::OF_ONE_RUN};
use toml::{Table, Value};

use crate::train;

/// Header of the table in `run.toml`.
const HEADER: &str = "[sweep]";

/// Most runs of a sweep: beyond it, a list was hardly meant.
const MOST_RUNS: usize = 1000;

/// Longest part of a run's name that a value has.
const NAME_LENGTH: usize = 40;

/// An option with several values.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The option.
    pub option: &'static OptionSpec,
    /// Its values, as the command line has them.
    pub values: Vec<String>,
}

/// One value for each axis, in the order of the axes.
pub type Setting = Vec<(&'static str, String)>;

/// The text of a `run.toml` without its table `[sweep]`, whose lines become blank so that all others keep their
/// numbers; and that table.
///
/// # Errors
/// A table that is no TOML.
pub fn split(text: &str, file: &Path) -> Result<(String, Table)> {
    let (mut rest, mut own, mut inside) = (String::new(), String::new(), false);
    for line in text.lines() {
        let begins = line.trim_start().starts_with('[') && line.split('#').next().is_some_and(is_header);
        if begins {
            inside = line.split('#').next().unwrap_or_default().trim() == HEADER;
        }
        let (taken, blank) = if inside { (&mut own, &mut rest) } else { (&mut rest, &mut own) };
        taken.push_str(line);
        taken.push('\n');
        blank.push('\n');
    }
    let mut table: Table = own.parse().with_context(|| format!("{}: {HEADER}", file.display()))?;
    let sweep = match table.remove("sweep") {
        Some(Value::Table(sweep)) => sweep,
        _ => Table::new(),
    };
    Ok((rest, sweep))
}

/// Whether a line begins a table, and no line of a list that spans several.
fn is_header(line: &str) -> bool {
    let word = line.trim().trim_start_matches('[').trim_end_matches(']');
    line.trim().ends_with(']')
        && !word.is_empty()
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// The axes of the table of a file, then those of the command line, and the overrides that have one value. An option of
/// the command line wins over the table.
///
/// A comma separates values where the option takes one number, word or path. In other options a comma belongs to the
/// value; the table varies these.
///
/// # Errors
/// An entry that is no list, or a value that its option does not take.
pub fn axes(
    table: Table,
    file: Option<&Path>,
    overrides: &layers::Overrides,
) -> Result<(Vec<Axis>, layers::Overrides)> {
    let (mut axes, mut single) = (Vec::<Axis>::new(), layers::Overrides::new());
    let folder = file.and_then(Path::parent).unwrap_or(Path::new(""));
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let origin = format!("{HEADER} in {}", file.unwrap_or(Path::new("run.toml")).display());
    for (key, value) in table {
        let Value::Array(values) = value else { bail!("`{key}` ({origin}) must be a list of values, got {value}") };
        let mut axis: Option<Axis> = None;
        for value in values {
            let (option, text) = layers::in_words(&key, value, folder, &origin).map_err(train::explained)?;
            axis.get_or_insert(Axis { option, values: Vec::new() }).values.push(text);
        }
        let axis = axis.with_context(|| format!("`{key}` ({origin}) is an empty list"))?;
        if axis.option.key == "reward_funcs" && !overrides.iter().any(|(key, _)| key == "reward_dir") {
            // As for the functions that the file names outside the table.
            single.push(("reward_dir".to_owned(), std::path::absolute(here)?.display().to_string()));
        }
        axes.push(axis);
    }
    for (key, text) in overrides {
        let option = OPTIONS.iter().find(|option| option.key == key).context("overrides have known keys")?;
        let values: Vec<String> = match option.kind {
            ValueKind::Flag | ValueKind::Whole | ValueKind::Number | ValueKind::Path | ValueKind::Choice(_) => {
                text.split(',').map(|value| value.trim().to_owned()).collect()
            }
            ValueKind::Text
            | ValueKind::Paths
            | ValueKind::Texts
            | ValueKind::Numbers
            | ValueKind::Table
            | ValueKind::TextOrTable => vec![text.clone()],
        };
        for value in &values {
            layers::check(option.key, value).map_err(|wrong| anyhow::anyhow!("`{key}` (command line) {wrong}"))?;
        }
        axes.retain(|axis| axis.option.key != option.key);
        single.retain(|(single, _)| single != key);
        if values.len() == 1 {
            single.push((key.clone(), text.clone()));
        } else {
            axes.push(Axis { option, values });
        }
    }
    axes.iter().try_for_each(check)?;
    Ok((axes, single))
}

/// Refuses values that would make the same run twice, and options that belong to a run and not to a comparison of runs.
fn check(axis: &Axis) -> Result<()> {
    let Axis { option, values } = axis;
    ensure!(
        !OF_ONE_RUN.contains(&option.key),
        "`{}` cannot be varied: each run has a folder of its own in `output_dir`, and goes on by itself",
        option.key
    );
    let twice = values.iter().enumerate().find(|(at, value)| values[..*at].contains(value));
    twice.map_or(Ok(()), |(_, value)| bail!("`{}` has the value {value} twice", option.key))
}

/// All combinations; the last axis varies fastest.
///
/// # Errors
/// No axis at all, or too many combinations.
pub fn combinations(axes: &[Axis]) -> Result<Vec<Setting>> {
    ensure!(
        !axes.is_empty(),
        "nothing varies: give an option several values (--learning_rate 1e-6,1e-5 --seed 1,2,3), or lists in a table \
         {HEADER} of the run.toml"
    );
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    ensure!(
        count.is_some_and(|count| count <= MOST_RUNS),
        "these lists make more than {MOST_RUNS} runs: {}",
        axes.iter()
            .map(|axis| format!("{} of `{}`", axis.values.len(), axis.option.key))
            .collect::<Vec<_>>()
            .join(" × ")
    );
    let mut settings = vec![Setting::new()];
    for axis in axes {
        let with = |setting: &Setting, value: &String| {
            let mut setting = setting.clone();
            setting.push((axis.option.key, value.clone()));
            setting
        };
        settings = settings.iter().flat_map(|setting| axis.values.iter().map(|value| with(setting, value))).collect();
    }
    Ok(settings)
}

/// `learning_rate 1e-5, seed 2`.
pub fn words(setting: &[(&'static str, String)]) -> String {
    setting.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
}

/// The values of a setting that may name code, or what it is made of: all but numbers.
pub fn names_code(setting: &[(&'static str, String)]) -> Setting {
    let is_number = |key: &str| {
        let option = OPTIONS.iter().find(|option| option.key == key);
        option.is_some_and(|option| matches!(option.kind, ValueKind::Whole | ValueKind::Number | ValueKind::Numbers))
    };
    setting.iter().filter(|(key, _)| !is_number(key)).cloned().collect()
}

/// Names of the folders of all settings, each one different: `learning_rate-1e-5_seed-2`.
pub fn names(settings: &[Setting]) -> Vec<String> {
    let part = |(key, value): &(&str, String)| {
        // Of paths, the end says most.
        let short: String = value.chars().skip(value.chars().count().saturating_sub(NAME_LENGTH)).collect();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._+-".contains(c) { c } else { '-' };
        format!("{key}-{}", short.chars().map(plain).collect::<String>().trim_matches('-'))
    };
    let mut names: Vec<String> = Vec::new();
    for setting in settings {
        let name = setting.iter().map(part).collect::<Vec<_>>().join("_");
        let alike = names.iter().filter(|other| **other == name || other.starts_with(&format!("{name}~"))).count();
        names.push(if alike == 0 { name } else { format!("{name}~{}", alike + 1) });
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(list: &[(&str, &str)]) -> layers::Overrides {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    type Lists = Vec<(&'static str, Vec<String>)>;

    fn found(table: &str, list: &[(&str, &str)]) -> Result<(Lists, layers::Overrides)> {
        let (axes, single) = axes(table.parse().unwrap(), Some(Path::new("dir/run.toml")), &overrides(list))?;
        Ok((axes.into_iter().map(|axis| (axis.option.key, axis.values)).collect(), single))
    }

    #[test]
    fn the_table_is_taken_out_of_the_file_and_all_other_lines_keep_their_numbers() {
        let text = "seed = 1\n[sweep] # varied\nbeta = [0.0,\n  0.1]\n[reward_env]\nA = \"b\"\n";
        let (rest, table) = split(text, Path::new("run.toml")).unwrap();
        assert_eq!(rest, "seed = 1\n\n\n\n[reward_env]\nA = \"b\"\n");
        assert_eq!(table["beta"].as_array().map(Vec::len), Some(2));
        let (rest, table) = split("reward_funcs = [\n[1],\n]\n", Path::new("run.toml")).unwrap();
        assert_eq!((rest.as_str(), table.len()), ("reward_funcs = [\n[1],\n]\n", 0));
        let error = split("[sweep]\nbeta = [\n", Path::new("run.toml")).unwrap_err();
        assert!(format!("{error:#}").starts_with("run.toml: [sweep]"), "{error:#}");
    }

    #[test]
    fn commas_separate_values_of_options_that_take_one_and_the_command_line_wins() {
        let table = "learning_rate = [1e-6, 1e-5]\nbeta = [0.0, 0.1]\nmodel = [\"a\", \"/b\"]";
        let list = [("seed", "1, 2"), ("beta", "0.2"), ("reward_funcs", "format,length"), ("system_prompt", "a, b")];
        let (axes, single) = found(table, &list).unwrap();
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        let learning_rates = values_of(&axes, "learning_rate");
        assert_eq!(learning_rates.iter().map(|text| text.parse::<f64>().unwrap()).collect::<Vec<_>>(), [1e-6, 1e-5]);
        assert_eq!(values_of(&axes, "model"), list(&["dir/a", "/b"]), "as all paths of the file");
        assert_eq!(values_of(&axes, "seed"), list(&["1", "2"]));
        assert_eq!(axes.len(), 3);
        let expected = [("beta", "0.2"), ("reward_funcs", "format,length"), ("system_prompt", "a, b")];
        assert_eq!(single, overrides(&expected));
    }

    fn values_of(axes: &[(&'static str, Vec<String>)], key: &str) -> Vec<String> {
        axes.iter().find(|(of, _)| *of == key).map(|(_, values)| values.clone()).unwrap_or_default()
    }

    #[test]
    fn runs_that_differ_in_numbers_name_the_same_code() {
        let setting: Setting = [("seed", "1"), ("reward_funcs", "[\"a\"]"), ("beta", "0.1"), ("loss_type", "grpo")]
            .map(|(key, value)| (key, value.to_owned()))
            .to_vec();
        assert_eq!(words(&names_code(&setting)), "reward_funcs [\"a\"], loss_type grpo");
    }

    #[test]
    fn what_makes_no_sweep_is_refused_by_name() {
        for (table, list, said) in [
            ("beta = 0.1", &[][..], "`beta` ([sweep] in dir/run.toml) must be a list"),
            ("beta = []", &[], "`beta` ([sweep] in dir/run.toml) is an empty list"),
            ("beta = [\"a\"]", &[], "`beta` ([sweep] in dir/run.toml) must be a number"),
            ("betta = [0.1]", &[], "`beta`"),
            ("", &[("seed", "1,1")], "`seed` has the value 1 twice"),
            ("", &[("seed", "1,x")], "`seed` (command line) must be a whole number"),
            ("", &[("output_dir", "a,b")], "`output_dir` cannot be varied"),
        ] {
            let error = format!("{:#}", found(table, list).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
        assert!(combinations(&[]).unwrap_err().to_string().contains("nothing varies"));
        let (axes, _) = axes(
            Table::new(),
            None,
            &overrides(&[("seed", &(0..1001).map(|n| n.to_string()).collect::<Vec<_>>().join(","))]),
        )
        .unwrap();
        assert!(combinations(&axes).unwrap_err().to_string().contains("1001 of `seed`"));
    }

    #[test]
    fn every_combination_is_made_once_and_has_a_name_of_its_own() {
        let (axes, _) = axes(Table::new(), None, &overrides(&[("beta", "0,0.1"), ("model", "a/b,a:b")])).unwrap();
        let settings = combinations(&axes).unwrap();
        assert_eq!(words(&settings[1]), "beta 0, model a:b");
        assert_eq!(
            names(&settings),
            ["beta-0_model-a-b", "beta-0_model-a-b~2", "beta-0.1_model-a-b", "beta-0.1_model-a-b~2"]
        );
    }
}
