//! The answer of a script, and the verdict on it.

use std::process::Output;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::checks::{Check, Figure};

/// The result of a check.
#[derive(Debug)]
pub struct Outcome {
    /// The check.
    pub check: &'static Check,
    /// The cases that were compared, in the words of the script; empty without an answer.
    pub cases: String,
    /// Its figures, in the order of the list; empty unless all were measured. A figure that is no number is none.
    pub values: Vec<Option<f64>>,
    /// Whether it passed.
    pub verdict: Verdict,
}

/// How a check ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every figure is within its bound.
    Passed,
    /// A figure is not, or there is no answer; the reason.
    Failed(String),
}

impl Outcome {
    /// Reads the answer of a finished script.
    pub fn of(check: &'static Check, output: &Output) -> Self {
        let outcome = answer(output).and_then(|answer| Self::with_figures(check, &answer));
        outcome.unwrap_or_else(|error| {
            let verdict = Verdict::Failed(format!("{error:#}"));
            Self { check, cases: String::new(), values: Vec::new(), verdict }
        })
    }

    fn with_figures(check: &'static Check, answer: &Value) -> Result<Self> {
        let figures = answer["figures"].as_object().with_context(|| format!("{answer} has no figures"))?;
        let cases = answer["cases"].as_str().with_context(|| format!("{answer} does not say what was looked at"))?;
        if let Some(key) = figures.keys().find(|key| check.figures.iter().all(|figure| figure.key != *key)) {
            bail!("the script has a figure `{key}` that the list of checks has not");
        }
        let value = |figure: &Figure| {
            let value =
                figures.get(figure.key).with_context(|| format!("the script has no figure `{}`", figure.key))?;
            ensure!(value.is_null() || value.is_number(), "`{}` is {value}", figure.key);
            Ok(value.as_f64())
        };
        let values: Vec<Option<f64>> = check.figures.iter().map(value).collect::<Result<_>>()?;
        let beyond = check.figures.iter().zip(&values).filter(|(figure, value)| !is_within(**value, figure.bound));
        let beyond: Vec<&str> = beyond.map(|(figure, _)| figure.about).collect();
        let verdict = match beyond.is_empty() {
            true => Verdict::Passed,
            false => Verdict::Failed(format!("beyond the bound: {}", beyond.join(", "))),
        };
        Ok(Self { check, cases: cases.to_owned(), values, verdict })
    }

    /// The whole outcome in a line.
    pub fn line(&self) -> String {
        let figures = self.check.figures.iter().zip(&self.values);
        let figures = figures.map(|(figure, value)| {
            format!("; {} {} (bound {})", figure.about, number(*value), number(Some(figure.bound)))
        });
        let name = self.check.name;
        match &self.verdict {
            Verdict::Passed => format!("{name}: passed: {}{}", self.cases, figures.collect::<String>()),
            Verdict::Failed(reason) => format!("{name}: FAILED: {reason}{}", figures.collect::<String>()),
        }
    }
}

/// A figure that is no number is within no bound.
fn is_within(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| (0.0..=bound).contains(&value))
}

/// A figure as it is printed.
pub fn number(value: Option<f64>) -> String {
    match value {
        None => "not a number".to_owned(),
        Some(value) if value.fract() == 0.0 && value < 1e6 => format!("{value:.0}"),
        // A bound is a power of ten, which has one digit.
        Some(value) => format!("{value:.1e}").replace(".0e", "e"),
    }
}

/// The JSON on the last line of a script that succeeded.
fn answer(output: &Output) -> Result<Value> {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.trim_end().lines().last().unwrap_or_default().to_owned()
    };
    if !output.status.success() {
        bail!("the script ended with {}: {}", output.status, last(&output.stderr));
    }
    let line = last(&output.stdout);
    serde_json::from_str(&line).with_context(|| format!("`{line}` is no answer"))
}
