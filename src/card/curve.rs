//! The rewards of a run as a table of a few rows.

use shared::{
    config::{TrainConfig, rewards},
    metrics::{self, Key, MetricRecord},
};

use super::{
    markdown::{cell, number, table},
    place,
};

/// Most rows.
const ROWS: usize = 10;
/// Most reward functions that have a column.
const FUNCTIONS: usize = 6;

/// The table; nothing without a step.
pub fn text(config: &TrainConfig, steps: &[MetricRecord]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let names = rewards::names(&config.reward_funcs);
    // One function of weight 1 is the reward itself.
    let shown = if names.len() > 1 { names.len().min(FUNCTIONS) } else { 0 };
    let mut columns: Vec<(String, Key)> = vec![("reward".into(), metrics::REWARD.into())];
    for name in &names[..shown] {
        columns.push((cell(&place::of_reward(name)), metrics::REWARDS_MEAN.of(name)));
    }
    columns.push(("mean length".into(), metrics::COMPLETIONS_MEAN_LENGTH.into()));
    let rows: Vec<Vec<String>> = parts(steps.len()).map(|part| row(&steps[part], &columns)).collect();
    let head: Vec<String> =
        std::iter::once("steps".to_owned()).chain(columns.iter().map(|(name, _)| name.clone())).collect();
    format!("\n### Rewards\n\nMeans over the steps of each row.\n\n{}", table(&head, &rows))
}

/// As many parts as there are rows, all of nearly the same length.
fn parts(length: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let rows = length.min(ROWS);
    (0..rows).map(move |row| row * length / rows..(row + 1) * length / rows)
}

fn row(steps: &[MetricRecord], columns: &[(String, Key)]) -> Vec<String> {
    let step = |record: &MetricRecord| record.get(metrics::STEP).unwrap_or(0.0) as u64;
    let (first, last) = (step(&steps[0]), step(&steps[steps.len() - 1]));
    let mut cells = vec![if first == last { first.to_string() } else { format!("{first}–{last}") }];
    for (_, key) in columns {
        let values: Vec<f64> = steps.iter().filter_map(|record| record.get(key.clone())).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        cells.push(if values.is_empty() { "–".to_owned() } else { number(mean) });
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(rewards: &[f64]) -> Vec<MetricRecord> {
        let record = |(step, reward): (u64, &f64)| {
            let mut record = MetricRecord::default();
            record.count(metrics::STEP, step).set(metrics::REWARD, *reward);
            record.set(metrics::REWARDS_MEAN.of("b"), 2.0 * reward);
            record
        };
        (1..).zip(rewards).map(record).collect()
    }

    #[test]
    fn rows_are_means_of_neighbouring_steps() {
        let one = TrainConfig { reward_funcs: vec!["accuracy".into()], ..TrainConfig::default() };
        let text_of = |config: &TrainConfig, rewards: &[f64]| text(config, &steps(rewards));
        assert_eq!(text_of(&one, &[]), "");
        let short = text_of(&one, &[0.5, 1.0]);
        assert!(short.contains("| steps | reward | mean length |\n|---|---|---|\n| 1 | 0.5 | – |\n| 2 | 1 | – |\n"));
        let rewards: Vec<f64> = (1..=25).map(f64::from).collect();
        let long = text_of(&one, &rewards);
        assert_eq!(long.lines().filter(|line| line.starts_with("| ")).count(), 11, "{long}");
        assert!(long.contains("| 1–2 | 1.5 | – |\n") && long.contains("| 23–25 | 24 | – |\n"), "{long}");
        let two = TrainConfig { reward_funcs: vec!["a".into(), "b".into()], ..TrainConfig::default() };
        assert!(text_of(&two, &[0.5]).contains("| steps | reward | a | b | mean length |"));
        assert!(text_of(&two, &[0.5]).contains("| 1 | 0.5 | – | 1 | – |"));
    }

    #[test]
    fn every_step_is_in_one_row() {
        for length in 1..40 {
            let all: Vec<usize> = parts(length).flatten().collect();
            assert_eq!(all, (0..length).collect::<Vec<_>>());
            assert!(parts(length).all(|part| !part.is_empty()) && parts(length).count() <= ROWS);
        }
    }
}
