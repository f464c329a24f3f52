//! The evaluations of a run as a table.

use shared::{
    config::TrainConfig,
    metrics::{self, Family, MetricRecord},
};

use super::{
    markdown::{number, table},
    place::Place,
};

/// Shares of right answers, each with the ends of its interval.
const SHARES: [(&str, &Family, &Family, &Family); 3] = [
    ("avg", metrics::AVG, metrics::AVG_CI95_LOW, metrics::AVG_CI95_HIGH),
    ("pass", metrics::PASS, metrics::PASS_CI95_LOW, metrics::PASS_CI95_HIGH),
    ("maj", metrics::MAJ, metrics::MAJ_CI95_LOW, metrics::MAJ_CI95_HIGH),
];

/// The table; nothing without an evaluation. `step` is that of the model.
pub fn text(config: &TrainConfig, evaluations: &[MetricRecord], step: Option<u64>) -> String {
    let rows = chosen(evaluations);
    let Some(newest) = rows.last() else { return String::new() };
    let shares: Vec<(String, String, String, String)> = SHARES
        .into_iter()
        .flat_map(|(word, share, low, high)| {
            // With k = 1 all three are the same.
            let ks = newest.family(share).filter(|(k, _)| word == "avg" || *k != "1").map(|(k, _)| k.to_owned());
            let key = |family: &Family, k: &str| family.of(k).as_str().to_owned();
            ks.map(|k| (format!("{word}@{k}"), key(share, &k), key(low, &k), key(high, &k))).collect::<Vec<_>>()
        })
        .collect();
    let mut head = vec!["step".to_owned()];
    head.extend(shares.iter().map(|(name, ..)| name.clone()));
    head.extend(["reward", "mean length", "prompts"].map(str::to_owned));
    let value = |record: &MetricRecord, key: &str| record.values().get(key).and_then(serde_json::Value::as_f64);
    let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|record| {
            let at = record.get(metrics::STEP).unwrap_or(0.0) as u64;
            let mut cells = vec![match at {
                0 => "0 (before training)".to_owned(),
                at if step == Some(at) => format!("**{at}** (this model)"),
                at => at.to_string(),
            }];
            for (_, share, low, high) in &shares {
                let interval = value(record, low).zip(value(record, high));
                let interval = interval.map(|(low, high)| format!(" ({}–{})", number(low), number(high)));
                cells.push(shown(value(record, share)) + &interval.unwrap_or_default());
            }
            cells.push(shown(record.get(metrics::EVAL_REWARD)));
            cells.push(shown(record.get(metrics::EVAL_COMPLETIONS_MEAN_LENGTH)));
            cells.push(shown(record.get(metrics::EVAL_PROMPTS)));
            cells
        })
        .collect();
    let on = config.eval_dataset.as_deref().map(|path| format!(" on {}", Place::of(path).in_markdown("datasets/")));
    format!(
        "\n## Evaluation\n\nGreedy completions{}, during the run; in brackets, 95 % intervals.\n\n{}",
        on.unwrap_or_default(),
        table(&head, &rows)
    )
}

/// The first evaluation, the best by the share of right answers or else by the reward, and the last one, in this order
/// and each once.
fn chosen(evaluations: &[MetricRecord]) -> Vec<&MetricRecord> {
    let judged = |record: &MetricRecord| record.get(metrics::EVAL_ACCURACY).or(record.get(metrics::EVAL_REWARD));
    let mut best: Option<usize> = None;
    for (at, record) in evaluations.iter().enumerate() {
        let value = judged(record).unwrap_or(f64::NEG_INFINITY);
        if best.is_none_or(|best| value > judged(&evaluations[best]).unwrap_or(f64::NEG_INFINITY)) {
            best = Some(at);
        }
    }
    let mut places: Vec<usize> = best.into_iter().chain([0, evaluations.len().saturating_sub(1)]).collect();
    places.sort_unstable();
    places.dedup();
    places.iter().filter_map(|at| evaluations.get(*at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64, share: f64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.count(metrics::STEP, step).set(metrics::AVG.of(1), share).set(metrics::PASS.of(1), share);
        record.set(metrics::AVG_CI95_LOW.of(1), share - 0.1).set(metrics::AVG_CI95_HIGH.of(1), share + 0.1);
        record.set(metrics::EVAL_ACCURACY, share).set(metrics::EVAL_REWARD, share).count(metrics::EVAL_PROMPTS, 100);
        record
    }

    #[test]
    fn first_best_and_last_are_shown_and_the_models_own_is_marked() {
        let config = TrainConfig { eval_dataset: Some("/users/me/test.jsonl".into()), ..TrainConfig::default() };
        assert_eq!(text(&config, &[], None), "");
        let list: Vec<MetricRecord> =
            [(0, 0.25), (2, 0.75), (4, 0.5), (6, 0.625)].map(|(step, share)| record(step, share)).into();
        let table = text(&config, &list, Some(6));
        for line in [
            "| step | avg@1 | reward | mean length | prompts |",
            "| 0 (before training) | 0.25 (0.15–0.35) | 0.25 | – | 100 |",
            "| 2 | 0.75 (0.65–0.85) | 0.75 | – | 100 |",
            "| **6** (this model) | 0.625 (0.525–0.725) | 0.625 | – | 100 |",
        ] {
            assert!(table.lines().any(|known| known == line), "{line}: {table}");
        }
        assert!(!table.contains("| 4 |") && table.contains("on `test.jsonl`") && !table.contains("/users"), "{table}");
    }
}
