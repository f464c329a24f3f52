//! The results of a sweep: a line for each run, and settings compared over their seeds.

use std::fmt::Write as _;

use serde::Serialize;
use shared::metrics::Figure;
use shared_statistics::{CONFIDENCE, Paired, holm, mean, paired};

use super::{grid, grid::Setting, row::Row};

/// The option whose values are repetitions of a setting.
const SEED: &str = "seed";

/// Fewest seeds that both settings must have for a verdict: two may differ by luck in any direction.
const LEAST_SEEDS: usize = 3;

/// Figures that are sums over reward functions and environments, and the options that say of which.
const SUMS: [&str; 2] = ["reward", "eval_reward"];
const OF_SUMS: [&str; 3] = ["reward_funcs", "reward_weights", "environment_factory"];
/// A figure of the first reward function.
const OF_FIRST: &str = "eval_accuracy";

/// Runs that differ in nothing but their seed.
#[derive(Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The values but for the seed, as words.
    pub setting: String,
    /// Runs that have a figure.
    pub runs: usize,
    /// Mean of their figures.
    pub mean: Option<f64>,
    /// The difference from the first setting, over the seeds that both have; none for the first setting itself, for
    /// fewer than three seeds, and for figures of another scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
    /// The option that makes the figure another one than that of the first setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_scale: Option<&'static str>,
}

/// How a setting differs from the first one.
#[derive(Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Seeds that both settings have a figure for.
    pub seeds: usize,
    /// Mean of the differences.
    pub difference: f64,
    /// Its 95 % interval: Student's t, paired by seed.
    pub interval: [f64; 2],
    /// The p-value of a two-sided paired t-test, corrected by Holm's method for the number of settings.
    pub p_value: f64,
    /// `better`, `worse` or `no difference`.
    pub verdict: &'static str,
}

/// The runs of a setting that have a figure.
struct Group {
    /// The values but for the seed.
    setting: Setting,
    /// Seed and figure of each run.
    figures: Vec<(String, f64)>,
}

/// Compares the settings with the first one by a figure. `greater_is_better` says which direction is `better`.
pub fn compare(settings: &[Setting], rows: &[Row], figure: &str, greater_is_better: bool) -> Vec<Compared> {
    let mut groups: Vec<Group> = Vec::new();
    for (of_run, row) in settings.iter().zip(rows) {
        let (seed, setting): (Setting, Setting) = of_run.iter().cloned().partition(|(key, _)| *key == SEED);
        let at = groups.iter().position(|group| group.setting == setting).unwrap_or_else(|| {
            groups.push(Group { setting, figures: Vec::new() });
            groups.len() - 1
        });
        let seed = seed.into_iter().next().map(|(_, value)| value).unwrap_or_default();
        groups[at].figures.extend(row.figure().map(|figure| (seed, figure)));
    }
    let Some((first, of_first)) = groups.first().map(|group| (group.figures.clone(), group.setting.clone())) else {
        return Vec::new();
    };
    let other_scale = |setting: &Setting| {
        let differs = |((key, value), (_, of_first)): (&(&'static str, String), &(&str, String))| {
            let of_sum = SUMS.contains(&figure) && OF_SUMS.contains(key);
            let of_accuracy = figure == OF_FIRST && *key == "reward_funcs" && first_of(value) != first_of(of_first);
            (value != of_first && (of_sum || of_accuracy)).then_some(*key)
        };
        setting.iter().zip(&of_first).find_map(differs)
    };
    let tested = |figures: &[(String, f64)]| -> Option<(usize, Paired)> {
        let of_first = |seed: &str| first.iter().find(|(other, _)| other == seed).map(|(_, figure)| *figure);
        let differences: Vec<f64> =
            figures.iter().filter_map(|(seed, figure)| Some(figure - of_first(seed)?)).collect();
        paired(&differences).filter(|_| differences.len() >= LEAST_SEEDS).map(|found| (differences.len(), found))
    };
    let tests: Vec<Option<(usize, Paired)>> = (groups.iter().enumerate())
        .map(|(at, group)| (at > 0 && other_scale(&group.setting).is_none()).then(|| tested(&group.figures)).flatten())
        .collect();
    let p_values: Vec<f64> = tests.iter().flatten().map(|(_, found)| found.p_value).collect();
    let mut corrected = holm(&p_values).into_iter();
    let verdict = |difference: f64, p_value: f64| match p_value <= 1.0 - CONFIDENCE {
        false => "no difference",
        true if (difference > 0.0) == greater_is_better => "better",
        true => "worse",
    };
    let described = groups.into_iter().zip(tests).map(|(Group { setting, figures }, test)| Compared {
        setting: grid::words(&setting),
        other_scale: other_scale(&setting),
        runs: figures.len(),
        mean: (!figures.is_empty()).then(|| mean(figures.iter().map(|(_, figure)| *figure))),
        difference: test.map(|(seeds, Paired { difference, interval, .. })| {
            let p_value = corrected.next().expect("a corrected value for each test");
            Difference { seeds, difference, interval, p_value, verdict: verdict(difference, p_value) }
        }),
    });
    described.collect()
}

/// The first entry of a list as the command line has it, or the whole of another value.
fn first_of(value: &str) -> &str {
    value.trim_start_matches('[').split([',', ']']).next().unwrap_or(value).trim()
}

/// Both tables as text; `figure` names the figure that is compared.
pub fn text(settings: &[Setting], rows: &[Row], compared: &[Compared], figure: &str) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.4}", Figure(value)));
    let mut cells =
        vec![["run", "state", "steps", "reward, first", "reward, last", figure, "seconds"].map(str::to_owned)];
    for (setting, row) in settings.iter().zip(rows) {
        cells.push([
            grid::words(setting),
            row.state.words().to_owned(),
            row.steps.to_string(),
            number(row.reward_first),
            number(row.reward_last),
            number(row.figure()),
            format!("{:.0}", row.seconds),
        ]);
    }
    let mut text = aligned(&cells);
    for row in rows {
        if let Some(error) = &row.error {
            let _ = writeln!(text, "{}: {error}", row.name);
        }
    }
    if compared.len() > 1 {
        let head = ["setting", "runs", "mean", "less the first", "95 % interval", "p (Holm)", "verdict"];
        let mut cells = vec![head.map(str::to_owned)];
        for (at, group) in compared.iter().enumerate() {
            let (difference, interval, p_value, verdict) = match &group.difference {
                Some(found) => (
                    format!("{:+.4}", Figure(found.difference)),
                    format!("{:+.4} to {:+.4}", Figure(found.interval[0]), Figure(found.interval[1])),
                    format!("{:.3}", found.p_value),
                    found.verdict.to_owned(),
                ),
                None if at == 0 => ("-".into(), "-".into(), "-".into(), "the first".into()),
                None if group.other_scale.is_some() => {
                    ("-".into(), "-".into(), "-".into(), "none: another reward".into())
                }
                None => ("-".into(), "-".into(), "-".into(), format!("none below {LEAST_SEEDS} seeds")),
            };
            cells.push([
                group.setting.clone(),
                group.runs.to_string(),
                number(group.mean),
                difference,
                interval,
                p_value,
                verdict,
            ]);
        }
        let _ = write!(text, "\n{}", aligned(&cells));
        if let Some(option) = compared.iter().find_map(|group| group.other_scale) {
            let _ = writeln!(
                text,
                "`{option}` makes `{figure}` another figure in some settings, which are not compared by it: let \
                 `metric_for_best_model` be a metric that all have, such as eval_rewards/NAME/mean, or eval_accuracy \
                 where the first function is the same"
            );
        }
    }
    text
}

/// Columns that are as wide as their widest cell; the first one begins at the left, the others end at the right.
fn aligned<const N: usize>(cells: &[[String; N]]) -> String {
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for row in cells {
        let mut line = format!("{:<1$}", row[0], width(0));
        for (column, cell) in row.iter().enumerate().skip(1) {
            let _ = write!(line, "  {cell:>0$}", width(column));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::*;
    use crate::sweep::row::State;

    fn sweep(figures: &[(&str, &str, f64)]) -> (Vec<Setting>, Vec<Row>) {
        let setting =
            |(beta, seed, _): &(&str, &str, f64)| vec![("beta", (*beta).to_owned()), ("seed", (*seed).to_owned())];
        let row = |(_, _, figure): &(&str, &str, f64)| Row {
            name: "name".into(),
            setting: Table::new(),
            state: if figure.is_nan() { State::Failed } else { State::Finished },
            error: figure.is_nan().then(|| "no memory".to_owned()),
            steps: 3,
            reward_first: Some(0.0),
            reward_last: Some(*figure),
            best: None,
            has_metric: false,
            seconds: 1.0,
        };
        (figures.iter().map(setting).collect(), figures.iter().map(row).collect())
    }

    #[test]
    fn settings_are_compared_with_the_first_one_over_the_seeds_that_both_have() {
        let figures = [
            ("0", "1", 0.1),
            ("0", "2", 0.2),
            ("0", "3", 0.3),
            ("0", "4", f64::NAN),
            ("0.1", "1", 0.6),
            ("0.1", "2", 0.71),
            ("0.1", "3", 0.79),
            ("0.1", "4", 0.5),
            ("0.2", "1", 0.1),
            ("0.2", "2", 0.25),
            ("0.2", "3", 0.25),
            ("0.2", "4", 0.5),
        ];
        let (settings, rows) = sweep(&figures);
        let found = compare(&settings, &rows, "reward", true);
        assert_eq!(found.iter().map(|group| group.runs).collect::<Vec<_>>(), [3, 4, 4]);
        assert!(found[0].difference.is_none());
        let better = found[1].difference.as_ref().unwrap();
        assert_eq!((better.seeds, better.verdict), (3, "better"));
        assert!((better.difference - 0.5).abs() < 1e-12);
        // Twice the p-value of the test alone, since there are two tests.
        let alone = paired(&[0.5, 0.51, 0.49]).unwrap().p_value;
        assert!((better.p_value - 2.0 * alone).abs() < 1e-9, "{}", better.p_value);
        assert_eq!(found[2].difference.as_ref().unwrap().verdict, "no difference");
        let (settings, rows) = sweep(&figures);
        assert_eq!(compare(&settings, &rows, "reward", false)[1].difference.as_ref().unwrap().verdict, "worse");
        let text = text(&settings, &rows, &found, "reward");
        assert!(text.contains("name: no memory") && text.contains("+0.5000") && text.contains("the first"), "{text}");
    }

    #[test]
    fn two_seeds_give_no_verdict() {
        let (settings, rows) = sweep(&[("0", "1", 0.1), ("0", "2", 0.2), ("0.1", "1", 0.9), ("0.1", "2", 1.0)]);
        let found = compare(&settings, &rows, "reward", true);
        assert!(found.iter().all(|group| group.difference.is_none()));
        assert!(text(&settings, &rows, &found, "reward").contains("none below 3 seeds"));
    }

    #[test]
    fn sums_of_other_rewards_are_not_compared() {
        let (mut settings, rows) = sweep(&[
            ("a", "1", 0.1),
            ("a", "2", 0.2),
            ("a", "3", 0.3),
            ("b", "1", 0.6),
            ("b", "2", 0.71),
            ("b", "3", 0.79),
        ]);
        for key in ["reward_funcs", "reward_weights", "environment_factory"] {
            settings.iter_mut().for_each(|setting| setting[0].0 = key);
            let found = compare(&settings, &rows, "reward", true);
            assert_eq!((found[1].other_scale, found[1].difference.is_none()), (Some(key), true));
            let text = text(&settings, &rows, &found, "reward");
            assert!(text.contains("none: another reward") && text.contains("such as eval_rewards/NAME/mean"), "{text}");
            let found = compare(&settings, &rows, "eval_rewards/a/mean", true);
            assert_eq!(found[1].difference.as_ref().unwrap().verdict, "better");
        }
        let accuracy = |settings: &[Setting]| compare(settings, &rows, "eval_accuracy", true)[1].other_scale;
        settings.iter_mut().for_each(|setting| setting[0].0 = "reward_funcs");
        assert_eq!(accuracy(&settings), Some("reward_funcs"));
        for (at, setting) in settings.iter_mut().enumerate() {
            setting[0].1 = if at < 3 { "[\"a\"]" } else { "[\"a\", \"b\"]" }.to_owned();
        }
        assert_eq!(accuracy(&settings), None, "the first function is the same");
    }

    #[test]
    fn figures_of_extreme_size_leave_the_columns_narrow() {
        let figures = ["0", "0.1"].map(|setting| ["1", "2", "3"].map(|seed| (setting, seed, 1e300)));
        let (settings, rows) = sweep(&figures.concat());
        let text = text(&settings, &rows, &compare(&settings, &rows, "reward", true), "reward");
        assert!(text.contains("1.0000e300") && text.lines().all(|line| line.len() < 200), "{text}");
    }
}
