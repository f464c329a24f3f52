//! The page of all methods, `docs/losses.md`, and the runs that show each of them, made of the descriptions.

use std::fmt::{Display, Write};

use serde_json::{Value, json};

use super::CreditUnit;
use crate::config::{AdvantageEstimator, Choice, KlEstimator, LossType, TrainConfig};

const HEAD: &str = "\
# Losses and advantages

<!-- Written by `cargo xtask docs` from shared/src/methods. Do not edit. -->

Every loss (`loss_type`), advantage estimator (`advantage_estimator`) and KL estimator (`kl_estimator`): what it is, which
options it reads, what it counts and where it comes from. [configuration.md](configuration.md) describes the options,
[metrics.md](metrics.md) the metrics, and [methods.md](methods.md) shows what each method does to a small task.
[extending.md](extending.md) says how to add one.
";

/// The page as Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    table(
        &mut page,
        "Losses",
        "The ratio is that of the policy's probability to the old policy's. An option that another loss has is without \
         effect, and a run says so.",
        &["`loss_type`", "name", "what it is", "ratio of a", "reduction", "its options", "counts", "source"],
        LossType::ALL.iter().copied().map(|loss| {
            let spec = loss.spec();
            let metrics: Vec<&str> = spec.metrics.iter().map(|metric| metric.mean.key).collect();
            let fixed = if spec.reduction_can_change { "" } else { ", fixed" };
            vec![
                code(&[loss]),
                spec.title.into(),
                spec.about.into(),
                spec.ratio.about().into(),
                format!("{}{fixed}", spec.reduction.about()),
                code(spec.options),
                code(&metrics),
                spec.source.into(),
            ]
        }),
    );
    table(
        &mut page,
        "Advantage estimators",
        "",
        &["`advantage_estimator`", "name", "what it is", "advantage of a", "`scale_rewards`", "its options", "source"],
        AdvantageEstimator::ALL.iter().copied().map(|estimator| {
            let spec = estimator.spec();
            let unit = match spec.unit {
                CreditUnit::Completion => "completion",
                CreditUnit::Step => "step",
                CreditUnit::Token => "token",
            };
            vec![
                code(&[estimator]),
                spec.title.into(),
                spec.about.into(),
                unit.into(),
                code(spec.scales),
                code(spec.options),
                spec.source.into(),
            ]
        }),
    );
    table(
        &mut page,
        "KL estimators",
        "With d = reference log-prob − log-prob.",
        &["`kl_estimator`", "estimate", "source"],
        KlEstimator::ALL.iter().copied().map(|estimator| {
            let spec = estimator.spec();
            vec![code(&[estimator]), spec.formula.into(), spec.source.into()]
        }),
    );
    page
}

/// What `cargo xtask methods` trains to show each loss and estimator: name, description and options of a run.
#[must_use]
pub fn recipes() -> Value {
    let of = |title: &str, about: &str, choice: String, recipe: &[&str]| {
        let options: Vec<String> = [choice].into_iter().chain(recipe.iter().map(|o| format!("--{o}"))).collect();
        json!({ "name": title, "about": about, "options": options })
    };
    let losses = LossType::ALL.iter().copied().map(|loss| {
        let spec = loss.spec();
        of(spec.title, spec.about, format!("--loss_type={loss}"), spec.recipe)
    });
    // The default estimator is that of all the losses.
    let others = AdvantageEstimator::ALL
        .iter()
        .copied()
        .filter(|&estimator| estimator != TrainConfig::default().advantage_estimator);
    let estimators = others.map(|estimator| {
        let spec = estimator.spec();
        of(spec.title, spec.about, format!("--advantage_estimator={estimator}"), spec.recipe)
    });
    losses.chain(estimators).collect()
}

fn table(page: &mut String, title: &str, intro: &str, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = heads.iter().map(|&head| head.to_owned()).collect();
    write!(page, "\n## {title}\n\n{intro}").expect("writing to a String");
    page.push_str(if intro.is_empty() { "" } else { "\n\n" });
    page.push_str(&line(&heads));
    writeln!(page, "|{}", "---|".repeat(heads.len())).expect("writing to a String");
    for row in rows {
        page.push_str(&line(&row));
    }
}

/// Words in code style, or a dash where there are none.
fn code(words: &[impl Display]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    if words.is_empty() { "–".into() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        config::{OPTIONS, layers},
        metrics,
    };

    /// Each loss and estimator, with the options that usually go with it, is a configuration that is valid and has nothing
    /// to remark on that concerns the method.
    #[test]
    fn every_recipe_is_a_valid_run() {
        let recipes = recipes();
        let recipes = recipes.as_array().unwrap();
        assert_eq!(recipes.len(), LossType::ALL.len() + AdvantageEstimator::ALL.len() - 1);
        let names: BTreeSet<&str> = recipes.iter().map(|recipe| recipe["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), recipes.len(), "two recipes have one name");
        for recipe in recipes {
            let options = recipe["options"].as_array().unwrap().iter().map(|option| option.as_str().unwrap());
            let pairs = options.map(|option| option.trim_start_matches("--").split_once('=').unwrap());
            let mut overrides: Vec<(String, String)> = pairs.map(|(key, value)| (key.into(), value.into())).collect();
            overrides.extend(
                [("model", "m"), ("dataset", "d"), ("reward_funcs", "format")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned())),
            );
            let config = layers::load(None, &overrides).unwrap();
            config.validate().unwrap_or_else(|error| panic!("{recipe}: {error}"));
            assert_eq!(config.options_without_effect(), Vec::<&str>::new(), "{recipe}");
        }
    }

    /// The catalogue says with which losses a metric is recorded; those are the ones that count it.
    #[test]
    fn a_metric_names_the_losses_that_record_it() {
        for metric in metrics::POLICY.metrics {
            let Some(named) = metric.when.and_then(|when| when.strip_prefix("`loss_type` ")) else { continue };
            let named: BTreeSet<&str> = named.split([',', ' ']).filter(|word| !["", "or"].contains(word)).collect();
            let counts = |loss: &LossType| {
                let counted = loss.spec().metrics.iter();
                counted.flat_map(|m| [Some(m.mean), m.smallest, m.largest]).flatten().any(|m| m.key == metric.key)
            };
            let counting: Vec<String> =
                LossType::ALL.iter().copied().filter(counts).map(|loss| loss.to_string()).collect();
            assert_eq!(named, counting.iter().map(String::as_str).collect(), "{}", metric.key);
        }
    }

    #[test]
    fn a_description_names_options_that_exist() {
        let of_losses = LossType::ALL.iter().copied().flat_map(|loss| {
            let spec = loss.spec();
            assert!(!spec.title.is_empty() && !spec.about.is_empty() && !spec.source.is_empty(), "{loss:?}");
            spec.options.iter().chain(spec.required.iter().map(|(key, _)| key))
        });
        let of_estimators = AdvantageEstimator::ALL.iter().copied().flat_map(|estimator| {
            let spec = estimator.spec();
            assert!(!spec.title.is_empty() && !spec.about.is_empty() && !spec.source.is_empty(), "{estimator:?}");
            spec.options
        });
        for key in of_losses.chain(of_estimators) {
            assert!(OPTIONS.iter().any(|option| option.key == *key), "{key}");
        }
    }
}
