//! The catalogue is complete and says what its page promises.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    config::OPTIONS,
    metrics::{CHARTS, MetricRecord},
};

#[test]
fn a_constant_is_called_as_its_key() {
    let lists = [
        agents::NAMES,
        completions::NAMES,
        credit::NAMES,
        dynamic_sampling::NAMES,
        evaluation::NAMES,
        fleet::NAMES,
        mismatch::NAMES,
        optimisation::NAMES,
        policy::NAMES,
        rewards::NAMES,
        run::NAMES,
        time::NAMES,
        turns::NAMES,
    ];
    assert_eq!(lists.concat().len(), all().count());
    for (name, key) in lists.concat() {
        let fixed = key.split(['{', '}']).step_by(2).collect::<Vec<_>>().concat();
        let words: Vec<&str> = fixed.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        assert_eq!(name, words.join("_").to_uppercase());
    }
}

#[test]
fn no_key_is_declared_twice() {
    for metric in all() {
        assert_eq!(all().filter(|other| other.name_in(metric.key).is_some()).count(), 1, "{}", metric.key);
    }
}

#[test]
fn every_metric_says_what_it_is_and_what_is_normal() {
    for metric in all() {
        assert!(metric.text.trim().split("\n\n").count() == 2, "{}: {:?}", metric.key, metric.text);
        assert!(metric.text.trim().ends_with('.'), "{}", metric.key);
        let known = [
            "TRL",
            "verl",
            "prime-rl",
            "Hugging Face",
            "lm-evaluation-harness",
            "Megatron-LM",
            "Wang et al.",
            "Tandem",
        ];
        assert!(known.iter().any(|source| metric.source.starts_with(source)), "{}: {}", metric.key, metric.source);
    }
}

/// Words in backquotes are options, metrics or files: nothing that the page refers to has been renamed.
#[test]
fn what_a_text_refers_to_exists() {
    let others = [
        "eval.jsonl",
        "logs/rollout.log",
        "null",
        "objective/kl",
        "policy/approxkl_avg",
        "sample/dropped_stale_total",
        "old_logprobs − logprobs",
        "1 − var(R − V) / var(R)",
        "returns",
        "values",
        "advantages",
        "perf/…",
        "rollout/…",
        "eval_",
        "tandem eval",
        "tandem worker",
        "--correct-at",
    ];
    let options: BTreeSet<&str> = OPTIONS.iter().map(|option| option.key).collect();
    let check = |text: &str, allow_others: bool, at: &str| {
        for word in text.split('`').skip(1).step_by(2) {
            let metric = find(word).is_some();
            let known = options.contains(word) || allow_others && (metric || others.contains(&word));
            assert!(known, "{at} refers to `{word}`");
        }
    };
    for metric in all() {
        check(metric.text, true, metric.key);
        check(metric.when.unwrap_or_default(), false, metric.key);
    }
    SECTIONS.iter().for_each(|section| check(section.intro, true, section.title));
}

#[test]
fn every_chart_has_curves_of_different_names() {
    let mut curves: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (chart, label) in all().filter_map(|metric| metric.chart) {
        curves.entry(chart.title).or_default().push(label);
    }
    assert_eq!(curves.keys().copied().collect::<BTreeSet<_>>(), CHARTS.iter().map(|chart| chart.title).collect());
    for (chart, labels) in curves {
        assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), labels.len(), "{chart}");
    }
}

#[test]
fn a_family_knows_its_own() {
    assert_eq!(REWARDS_MEAN.of("a/mean").as_str(), "rewards/a/mean/mean");
    assert_eq!(REWARDS_MEAN.metric().name_in("rewards/a/mean/mean"), Some("a/mean"));
    for other in ["rewards/a/std", "rewards//mean", "eval_rewards/a/mean", "reward"] {
        assert_eq!(REWARDS_MEAN.metric().name_in(other), None, "{other}");
    }
    assert_eq!(find("rewards/a b/failed").unwrap().key, "rewards/{name}/failed");
    assert!(find("reward").is_some() && find("rewards").is_none());
    let mut record = MetricRecord::default();
    record.set(REWARD, 3.0).set(REWARDS_MEAN.of("b"), f64::NAN).set(REWARDS_MEAN.of("a"), 1.0);
    assert_eq!(record.family(REWARDS_MEAN).collect::<Vec<_>>(), [("b", None), ("a", Some(1.0))]);
}
