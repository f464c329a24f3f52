//! Prints `docs/losses.md`, the page of all methods, made of their descriptions; `cargo xtask docs` writes it. With the
//! argument `recipes`, the runs of `cargo xtask methods`, which show each of them.

use std::fmt::{Display, Write};

use serde_json::{Value, json};
use shared::{
    config::{AdvantageEstimator, Choice, KlEstimator, LossType, TrainConfig},
    methods::{CreditUnit, Ratio},
};

const HEAD: &str = "\
# Losses and advantages

<!-- Written by `cargo xtask docs` from shared/src/methods. Do not edit. -->

Every loss (`loss_type`), advantage estimator (`advantage_estimator`) and KL estimator (`kl_estimator`): its
formula in words, the options that it reads, the metrics that it counts and its source.
[configuration.md](configuration.md) describes the options, [metrics.md](metrics.md) the metrics, and
[methods.md](methods.md) shows what each method does to a small task. [extending.md](extending.md) says how to add one.
";

fn main() {
    if std::env::args().nth(1).as_deref() == Some("recipes") {
        println!("{}", recipes());
    } else {
        print!("{}", page());
    }
}

/// The page as Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    table(
        &mut page,
        "Losses",
        "The ratio is that of the policy's probability to the old policy's. An option of another loss has no \
         effect, and a run says so.",
        &["`loss_type`", "name", "what it is", "ratio of a", "reduction", "its options", "counts", "source"],
        LossType::ALL.iter().copied().map(|loss| {
            let spec = loss.spec();
            let metrics: Vec<&str> = spec.metrics.iter().map(|metric| metric.mean.key).collect();
            let fixed = if spec.reduction_can_change { "" } else { ", fixed" };
            let ratio = match spec.ratio {
                Ratio::Chosen => "`importance_sampling_level`",
                Ratio::OfToken => "token",
                Ratio::OfCompletion => "completion",
            };
            vec![
                code(&[loss]),
                spec.title.into(),
                spec.about.into(),
                ratio.into(),
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
        "With d = reference log-prob − log-prob. In the loss, the estimate is multiplied with what makes its expected \
         gradient that of KL(policy‖reference), on policy and off it; the ratio is that of the token, with \
         `importance_sampling_level` sequence too. `use_bias_correction_kl` false leaves the factor out, and true is \
         TRL's form, for k1 and k3 only: the ratio that the policy term has. In the reward (`use_kl_in_reward`) \
         nothing is multiplied, and k1 and k1+ alone have that gradient. `tests/golden/kl_bias_correction.json` has \
         exact expectations.",
        &["`kl_estimator`", "estimate", "in the loss, times", "right in the reward", "source"],
        KlEstimator::ALL.iter().copied().map(|estimator| {
            let spec = estimator.spec();
            let in_reward = if spec.right_in_reward { "yes" } else { "no" };
            vec![
                code(&[estimator]),
                spec.formula.into(),
                spec.correction.about().into(),
                in_reward.into(),
                spec.source.into(),
            ]
        }),
    );
    page
}

/// What `cargo xtask methods` trains to show each loss and estimator: name, description and options of a run.
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
