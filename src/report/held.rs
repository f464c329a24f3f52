//! The content of a report: the figures of a run, all of them, and samples of its completions.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use shared::RunDir;

use crate::view::{
    catalogue::{self, Chart},
    completions::{self, Step},
    curves::{self, Figures},
    overview::Overview,
    pairs::{self, Pair},
    run::{self, Notices, Settings},
    tokens,
    workers::{self, WorkersView},
};

/// Steps whose completions are held: the first, the last, and some between.
const STEPS: usize = 6;
/// Groups of each of these steps.
const GROUPS: usize = 8;
/// Completions of each step whose tokens are held too.
const OPENED: usize = 8;

/// The data of the page.
#[derive(Debug, Serialize)]
pub struct Held {
    charts: Vec<Chart>,
    /// The one run, in the form in which the page knows several.
    runs: [Run; 1],
}

impl Held {
    /// The name of the run.
    pub fn name(&self) -> &str {
        &self.runs[0].overview.name
    }
}

#[derive(Debug, Serialize)]
struct Run {
    overview: Overview,
    curves: Figures,
    notices: Notices,
    comparisons: Vec<Value>,
    workers: Option<WorkersView>,
    settings: Settings,
    pairs: Vec<Pair>,
    steps: BTreeMap<u64, Step>,
    /// By `step/position/sample`.
    samples: BTreeMap<String, Value>,
}

/// Reads a run.
///
/// # Errors
/// Files that cannot be read, by name.
pub fn of(dir: &RunDir) -> Result<Held> {
    let curves = Figures {
        generation: 0,
        steps: curves::read(&dir.metrics()).context("metrics.jsonl")?,
        evaluations: curves::read(&dir.eval()).context("eval.jsonl")?,
        // A report is small; it holds what its charts show.
        others: Vec::new(),
    };
    let (steps, samples) = samples(dir).context("completions")?;
    let run = Run {
        overview: Overview::of(dir),
        curves,
        notices: run::notices(dir)?,
        comparisons: run::comparisons(dir).context("comparisons.jsonl")?,
        workers: workers::of(dir),
        settings: run::settings(dir),
        pairs: pairs::pairs(dir).context("completions")?,
        steps,
        samples,
    };
    Ok(Held { charts: catalogue::charts(), runs: [run] })
}

fn samples(dir: &RunDir) -> Result<(BTreeMap<u64, Step>, BTreeMap<String, Value>)> {
    let (mut steps, mut samples) = (BTreeMap::new(), BTreeMap::new());
    let tokenizer = tokens::tokenizer(dir);
    for step in spread(&dir.logged_steps()?) {
        let Some(mut found) = completions::of_step(dir, step)? else { continue };
        found.keep_groups(GROUPS);
        let opened: Vec<(Option<u64>, u64, u64)> = found.ids().take(OPENED).collect();
        let of_batch: Vec<_> = opened.iter().filter_map(|&(group, _, sample)| Some((group?, sample))).collect();
        let places: Vec<_> = opened.iter().map(|&(_, position, sample)| (position, sample)).collect();
        let mut rows = completions::some(dir, tokenizer.as_ref(), step, &places)?;
        let mut tokens = tokens::some(dir, tokenizer.as_ref(), step, &of_batch)?;
        for (group, position, sample) in opened {
            let Some(row) = rows.remove(&(position, sample)) else { continue };
            let tokens = group.and_then(|group| tokens.remove(&(group, sample)));
            samples.insert(format!("{step}/{position}/{sample}"), json!({ "row": row, "tokens": tokens }));
        }
        steps.insert(step, found);
    }
    Ok((steps, samples))
}

/// The first, the last, and some between.
fn spread(steps: &[u64]) -> Vec<u64> {
    if steps.len() <= STEPS {
        return steps.to_vec();
    }
    (0..STEPS).map(|at| steps[at * (steps.len() - 1) / (STEPS - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_step_are_among_those_held() {
        let steps: Vec<u64> = (1..=100).collect();
        assert_eq!(spread(&steps), [1, 20, 40, 60, 80, 100]);
        assert_eq!(spread(&[3, 9]), [3, 9]);
        assert!(spread(&[]).is_empty());
    }
}
