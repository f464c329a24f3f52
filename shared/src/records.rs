//! Whether the records of a run are whole, and in words what is not.

use std::{io, ops::RangeInclusive, path::Path};

use crate::{
    RunDir,
    journal::{self, Entry, Skipped},
    ledger::LedgerLine,
    metrics::MetricRecord,
    notices,
};

/// Gaps that are named; of more, their number.
const NAMED: usize = 5;

/// The steps that a journal has, as runs without a gap, in the order of its lines.
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

    /// The steps of a range that are not there.
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

/// What was found in a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Lines that were left out.
    pub skipped: Skipped,
    /// Steps of the others.
    pub steps: Steps,
}

impl Found {
    /// `metrics.jsonl: 1 damaged line, steps 3 to 5 are missing`; nothing where nothing is wrong.
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

/// What is wrong with the metrics and the ledger of a run that has made `completed` steps, in words. A run that branched off
/// begins with a later step than 1: the first that any of its journals has.
#[must_use]
pub fn of_steps(metrics: &Found, ledger: &Found, logged: Option<u64>, completed: u64) -> Vec<String> {
    let firsts = [metrics.steps.first(), ledger.steps.first(), logged];
    let Some(first) = firsts.into_iter().flatten().min() else { return Vec::new() };
    let of = |found: &Found, name: &str| found.in_words(name, first..=completed);
    of(metrics, "metrics.jsonl").into_iter().chain(of(ledger, "ledger.jsonl")).collect()
}

/// Reads all journals of a run, and says in words what is wrong with them. Nothing is written.
///
/// # Errors
/// A file that cannot be read, by name.
pub fn examine(run_dir: &RunDir) -> io::Result<Vec<String>> {
    let (mut metrics, mut ledger) = (Found::default(), Found::default());
    metrics.skipped = journal::for_each::<MetricRecord>(&run_dir.metrics(), |record| metrics.steps.add(&record))?;
    ledger.skipped = journal::for_each::<LedgerLine>(&run_dir.ledger(), |line| match line {
        // What was in flight when the run ended is of a step that was not made.
        LedgerLine::Group(group) if !group.is_in_flight() => ledger.steps.note(group.step),
        _ => (),
    })?;
    let logged = run_dir.logged_steps()?.first().copied();
    let completed = metrics.steps.last().max(ledger.steps.last()).unwrap_or(0);
    let mut found = of_steps(&metrics, &ledger, logged, completed);
    let of_evaluations = journal::for_each::<MetricRecord>(&run_dir.eval(), drop)?;
    let (_, of_notices) = notices::read_all(&run_dir.notices())?;
    let comparisons = journal::for_each::<serde_json::Map<_, _>>(&run_dir.comparisons(), drop)?;
    let others =
        [(run_dir.eval(), of_evaluations), (run_dir.notices(), of_notices), (run_dir.comparisons(), comparisons)];
    let in_words = |(path, skipped): &(std::path::PathBuf, Skipped)| {
        (!skipped.is_empty()).then(|| format!("{}: {skipped}", name(path)))
    };
    found.extend(others.iter().filter_map(in_words));
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    #[test]
    fn each_journal_that_is_damaged_or_gone_is_named_with_what_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        let group = |step: u64| {
            format!("{{\"step\":{step},\"group\":0,\"position\":1,\"prompt_id\":1,\"epoch\":0,\"states\":[]}}\n")
        };
        let metric = |step: u64| format!("{{\"step\":{step}}}\n");
        let write = |skip: u64| {
            let all = (4..=6).filter(|step| *step != skip);
            fs::write(run.metrics(), all.map(metric).collect::<String>()).unwrap();
            fs::write(run.ledger(), (4..=6).map(group).collect::<String>()).unwrap();
        };
        write(0);
        assert_eq!(examine(&run).unwrap(), [""; 0], "a run that has branched off begins later");
        write(5);
        assert_eq!(examine(&run).unwrap(), ["metrics.jsonl: step 5 is missing"]);
        fs::remove_file(run.metrics()).unwrap();
        assert_eq!(examine(&run).unwrap(), ["metrics.jsonl: steps 4 to 6 are missing"]);
        write(4);
        fs::write(run.ledger(), group(4) + "{\"step\":5,\"event\":\"fallen\"}\n" + &group(6)).unwrap();
        for (path, text) in [(run.eval(), "{\n"), (run.notices(), "{\"kind\":"), (run.comparisons(), "nothing\n{}\n")] {
            fs::write(path, text).unwrap();
        }
        let expected = [
            "metrics.jsonl: step 4 is missing",
            "ledger.jsonl: 1 line of a kind that this version does not know, step 5 is missing",
            "eval.jsonl: 1 damaged line",
            "notices.jsonl: 1 damaged line",
            "comparisons.jsonl: 1 damaged line",
        ];
        assert_eq!(examine(&run).unwrap(), expected);
    }
}
