//! The steps of a journal, and words for missing ones.

use std::ops::RangeInclusive;

use super::{Entry, Skipped};

/// Most gaps that are named; further ones are counted.
const NAMED: usize = 5;

/// The steps of a journal as ranges without a gap, in the order of its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steps(Vec<RangeInclusive<u64>>);

impl Steps {
    /// Notes the step of an entry.
    pub fn add(&mut self, entry: &impl Entry) {
        entry.step().into_iter().for_each(|step| self.note(step));
    }

    /// Notes a step.
    pub fn note(&mut self, step: u64) {
        match self.0.last_mut() {
            Some(last) if last.contains(&step) => {}
            Some(last) if *last.end() + 1 == step => *last = *last.start()..=step,
            _ => self.0.push(step..=step),
        }
    }

    /// The first step.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        self.0.iter().map(|run| *run.start()).min()
    }

    /// The last step.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.0.iter().map(|run| *run.end()).max()
    }

    /// The steps of a range that are missing.
    #[must_use]
    pub fn missing(&self, wanted: RangeInclusive<u64>) -> Vec<RangeInclusive<u64>> {
        let mut runs = self.0.clone();
        runs.sort_by_key(|run| *run.start());
        let (mut next, end) = wanted.into_inner();
        let mut missing = Vec::new();
        for run in runs {
            if next < *run.start() && next <= end {
                missing.push(next..=end.min(run.start() - 1));
            }
            next = next.max(run.end() + 1);
        }
        if next <= end {
            missing.push(next..=end);
        }
        missing
    }
}

/// The lines and steps found in a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Lines that were left out.
    pub skipped: Skipped,
    /// Steps of the other lines.
    pub steps: Steps,
}

impl Found {
    /// `metrics.jsonl: 1 damaged line, steps 3 to 5 are missing`; none if nothing is missing.
    #[must_use]
    pub fn in_words(&self, name: &str, wanted: RangeInclusive<u64>) -> Option<String> {
        let skipped = (!self.skipped.is_empty()).then(|| self.skipped.to_string());
        let missing = missing_in_words(&self.steps.missing(wanted));
        let parts: Vec<String> = skipped.into_iter().chain(missing).collect();
        (!parts.is_empty()).then(|| format!("{name}: {}", parts.join(", ")))
    }
}

fn missing_in_words(missing: &[RangeInclusive<u64>]) -> Option<String> {
    let named: Vec<String> = missing
        .iter()
        .take(NAMED)
        .map(|run| match run.clone().into_inner() {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first} to {last}"),
        })
        .collect();
    let more = missing.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more stretches") } else { String::new() };
    let steps: u64 = missing.iter().map(|run| run.end() - run.start() + 1).sum();
    match steps {
        0 => None,
        1 => Some(format!("step {} is missing", named[0])),
        _ => Some(format!("steps {}{more} are missing", named.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(list: &[u64]) -> Steps {
        let mut steps = Steps::default();
        list.iter().for_each(|step| steps.note(*step));
        steps
    }

    #[test]
    fn steps_that_are_not_there_are_found_in_whatever_order_the_others_come() {
        let found = steps(&[2, 3, 3, 4, 8, 6]);
        assert_eq!((found.first(), found.last()), (Some(2), Some(8)));
        assert_eq!(found.missing(1..=9), [1..=1, 5..=5, 7..=7, 9..=9]);
        assert_eq!(found.missing(2..=4), []);
        assert_eq!(steps(&[]).missing(1..=3), [1..=3]);
        assert_eq!(steps(&[7]).missing(1..=3), [1..=3]);
        let in_words = |list: &[u64], last| Found { steps: steps(list), ..Found::default() }.in_words("m", 1..=last);
        assert_eq!(in_words(&[1, 2], 2), None);
        assert_eq!(in_words(&[1, 3], 3).unwrap(), "m: step 2 is missing");
        assert_eq!(in_words(&[3], 5).unwrap(), "m: steps 1 to 2, 4 to 5 are missing");
        let every_other: Vec<u64> = (1..=8).map(|n| 2 * n).collect();
        assert_eq!(in_words(&every_other, 16).unwrap(), "m: steps 1, 3, 5, 7, 9 and 3 more stretches are missing");
    }
}
