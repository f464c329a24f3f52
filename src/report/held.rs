//! What a report holds of a run: its figures whole, and samples of its completions.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use shared::RunDir;

use crate::view::{
    catalogue::{self, Chart},
    completions::{self, Step},
    curves::{self, Part},
    pairs::{self, Pair},
    run::{self, Notices, Overview, Setting},
    tokens,
};

/// Steps whose completions are held: the first, the last, and some between.
const STEPS: usize = 6;
/// Groups of each.
const GROUPS: usize = 8;
/// Completions of each step whose tokens are held too.
const OPENED: usize = 8;

/// The data of the page.
#[derive(Debug, Serialize)]
pub struct Held {
    charts: Vec<Chart>,
    /// One, in the shape in which the page knows several.
    runs: [Run; 1],
}

impl Held {
    /// What the run is called.
    pub fn name(&self) -> &str {
        &self.runs[0].overview.name
    }
}

#[derive(Debug, Serialize)]
struct Run {
    overview: Overview,
    curves: Curves,
    notices: Notices,
    comparisons: Vec<Value>,
    settings: Vec<Setting>,
    pairs: Vec<Pair>,
    steps: BTreeMap<u64, Step>,
    /// By `step/position/sample`.
    samples: BTreeMap<String, Value>,
}

#[derive(Debug, Serialize)]
struct Curves {
    generation: u64,
    steps: Part,
    evaluations: Part,
}

/// Reads a run.
///
/// # Errors
/// Files that cannot be read, by name.
pub fn of(dir: &RunDir) -> Result<Held> {
    let curves = Curves {
        generation: 0,
        steps: curves::read(&dir.metrics()).context("metrics.jsonl")?,
        evaluations: curves::read(&dir.eval()).context("eval.jsonl")?,
    };
    let (steps, samples) = samples(dir).context("completions")?;
    let run = Run {
        overview: Overview::of(dir),
        curves,
        notices: run::notices(dir)?,
        comparisons: run::comparisons(dir).context("comparisons.jsonl")?,
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
        for (group, position, sample) in found.ids().take(OPENED) {
            let Some(row) = completions::one(dir, step, position, sample)? else { continue };
            let tokens =
                group.map(|group| tokens::of(dir, tokenizer.as_ref(), step, group, sample)).transpose()?.flatten();
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
