//! Whether the records of a run are whole; if not, the faults in words.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    RunDir,
    files::journal::{self, Found, Skipped},
    metrics::MetricRecord,
    run::{ledger::LedgerLine, notices},
};

/// The faults in the metrics and the ledger of a run that has made `completed` steps, in words. A run that branched off
/// begins with a later step than 1: the first one in any of its journals.
#[must_use]
pub fn of_steps(metrics: &Found, ledger: &Found, logged: Option<u64>, completed: u64) -> Vec<String> {
    let firsts = [metrics.steps.first(), ledger.steps.first(), logged];
    let Some(first) = firsts.into_iter().flatten().min() else { return Vec::new() };
    let of = |found: &Found, name: &str| found.in_words(name, first..=completed);
    of(metrics, "metrics.jsonl").into_iter().chain(of(ledger, "ledger.jsonl")).collect()
}

/// Reads all journals of a run, and returns their faults in words. It writes nothing.
///
/// # Errors
/// A file that cannot be read, by name.
pub fn examine(run_dir: &RunDir) -> io::Result<Vec<String>> {
    let (mut metrics, mut ledger) = (Found::default(), Found::default());
    metrics.skipped = journal::for_each::<MetricRecord>(&run_dir.metrics(), |record| metrics.steps.add(&record))?;
    ledger.skipped = journal::for_each::<LedgerLine>(&run_dir.ledger(), |line| match line {
        // Groups in flight when the run ended belong to a step that was not made.
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
    let in_words =
        |(path, skipped): &(PathBuf, Skipped)| (!skipped.is_empty()).then(|| format!("{}: {skipped}", name(path)));
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
