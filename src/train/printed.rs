//! Completions that are printed while a run goes on.

use shared::{RunDir, config::TrainConfig, metrics::Figure};
use shared_bounds::Shown;
use unicode_width::UnicodeWidthChar;

use super::progress::short;
use crate::records::samples::{self, MOST_AWAITED, Sample};

/// Columns of the narrowest terminal that a line must fit.
const COLUMNS: usize = 80;
/// Columns to the left of prompt and completion, for their labels.
const MARGIN: usize = 12;
/// Lines of a prompt that are shown, from its end: the beginning is often the same for all.
const PROMPT_LINES: usize = 3;
/// Lines of a completion that are shown from its beginning, and as many from its end.
const COMPLETION_LINES: usize = 3;

/// Finds the steps whose completions should be printed, and waits for the completions.
#[derive(Debug)]
pub struct Printed {
    run: RunDir,
    /// Completions of a step; 0 = none.
    count: usize,
    every: u64,
    total: u64,
    /// Steps up to this one have been printed, or will not be.
    known: u64,
    /// The newest step to print, whose completions may not be written yet.
    due: Option<u64>,
}

impl Printed {
    /// For a run that has made `steps` steps, of which none is printed.
    pub fn new(config: &TrainConfig, run: RunDir, steps: u64) -> Self {
        Self {
            run,
            count: config.num_completions_to_print as usize,
            every: config.logging_steps.max(1),
            total: config.max_steps.unwrap_or(0),
            known: steps,
            due: None,
        }
    }

    /// The text to print now that `steps` steps are made.
    pub fn poll(&mut self, steps: u64) -> Option<String> {
        // After a restart from an earlier checkpoint, steps are made and printed again.
        self.known = self.known.min(steps);
        self.due = self.due.filter(|due| *due <= steps);
        let newest = if steps == self.total { steps } else { steps - steps % self.every };
        if self.count > 0 && newest > self.known {
            self.due = Some(newest);
        }
        self.known = steps;
        let step = self.due?;
        let samples = samples::read(&self.run.step_completions(step));
        if samples.is_some() || steps > step + MOST_AWAITED {
            self.due = None;
        }
        text(step, &samples?, self.count)
    }
}

/// `count` completions from the best to the worst, with equal distances in rank.
fn text(step: u64, samples: &[Sample], count: usize) -> Option<String> {
    let ranked = samples::ranked(samples);
    let last = ranked.len().checked_sub(1)?;
    let mut ranks: Vec<usize> = (0..count).map(|i| i * last / count.saturating_sub(1).max(1)).collect();
    ranks.dedup();
    let blocks = ranks.into_iter().map(|rank| block(step, rank, ranked[rank], ranked.len()));
    Some(blocks.collect::<Vec<_>>().join("\n"))
}

fn block(step: u64, rank: usize, sample: &Sample, of: usize) -> String {
    let which = match rank {
        0 => "best".to_owned(),
        rank if rank + 1 == of => "worst".to_owned(),
        rank => format!("number {}", rank + 1),
    };
    let score = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.3}", Figure(value)));
    let functions: Vec<String> =
        sample.rewards.iter().map(|(name, value)| format!("{} {}", short(name), score(*value))).collect();
    let head = format!("step {step}, {which} of {of}: reward {} ({})", score(sample.reward), functions.join(", "));
    let mut lines = excerpt(&head, COLUMNS, 0, PROMPT_LINES);
    let mut part = |name: &str, text: &str, first: usize, last: usize| {
        for (i, line) in excerpt(text, COLUMNS - MARGIN, first, last).iter().enumerate() {
            let name = if i == 0 { name } else { "" };
            lines.push(format!("{name:<MARGIN$}{line}").trim_end().to_owned());
        }
    };
    part("  prompt", &sample.prompt, 0, PROMPT_LINES);
    part("  answer", &sample.completion, COMPLETION_LINES, COMPLETION_LINES);
    lines.join("\n")
}

/// The first and the last lines of a text of unknown origin, none wider than `columns`.
fn excerpt(text: &str, columns: usize, first: usize, last: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in Shown(text.trim_end()).to_string().replace('\t', "    ").split('\n') {
        let (mut row, mut width) = (String::new(), 0);
        for c in line.chars() {
            // Characters without width count as well, or one line could hold any number of accents.
            let wide = c.width().unwrap_or(1).max(1);
            if width + wide > columns {
                lines.push(std::mem::take(&mut row));
                width = 0;
            }
            row.push(c);
            width += wide;
        }
        lines.push(row);
    }
    if lines.len() > first + last + 1 {
        lines.splice(first..lines.len() - last, ["[…]".to_owned()]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;

    fn sample(completion: &str, reward: Option<f64>) -> Sample {
        let rewards = BTreeMap::from([("my.py:f".to_owned(), reward), ("length".to_owned(), None)]);
        Sample { prompt: "1+2=".into(), completion: completion.into(), rewards, reward, tokens: 1.0 }
    }

    #[test]
    fn the_best_the_worst_and_those_between_are_shown() {
        let samples = [0.5, 2.0, 0.0, 1.0, 1.5].map(|reward| sample(&format!("c{reward}"), Some(reward)));
        let of = |count| text(7, &samples, count).unwrap();
        assert_eq!(of(1), "step 7, best of 5: reward 2.000 (length -, f 2.000)\n  prompt    1+2=\n  answer    c2");
        let heads = |count| {
            of(count).lines().filter(|line| line.starts_with("step")).map(|l| l[8..12].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(heads(3), ["best", "numb", "wors"]);
        assert!(of(3).contains("number 3 of 5: reward 1.000"), "{}", of(3));
        assert_eq!(heads(99).len(), 5, "none is shown twice");
        assert_eq!(text(7, &[sample("c", None)], 3), None);
        let extreme = text(7, &[sample("c", Some(1e300))], 1).unwrap();
        assert!(extreme.starts_with("step 7, best of 1: reward 1.000e300 (length -, f 1.000e300)\n"), "{extreme}");
    }

    #[test]
    fn nothing_in_a_text_leaves_its_lines_or_acts_on_the_terminal() {
        let evil = format!("\x1b[2J\r{}\n\tb\n\n\u{202e}{}語", "語".repeat(50), "e\u{301}".repeat(5_000));
        let sample = Sample { prompt: evil.clone(), ..sample(&evil, Some(1.0)) };
        let block = block(1, 0, &sample, 1);
        assert!(block.contains("answer    \\u{1b}[2J\\r語") && block.contains("[…]"), "{block}");
        assert!(block.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}')), "{block:?}");
        let lines: Vec<&str> = block.lines().collect();
        assert_eq!(lines.len(), 1 + (PROMPT_LINES + 1) + (2 * COMPLETION_LINES + 1));
        for line in lines {
            let width: usize = line.chars().map(|c| c.width().unwrap_or(1)).sum();
            assert!(width <= COLUMNS && line.chars().count() <= COLUMNS, "{width}: {line}");
        }
    }

    #[test]
    fn completions_are_printed_at_their_steps_once_they_are_written() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        dir.create().unwrap();
        let write = |step: u64| {
            let line = r#"{"prompt":"p","completion":"c","rewards":{},"reward":1.0,"tokens":1}"#;
            fs::write(dir.step_completions(step), line).unwrap();
        };
        let config = TrainConfig {
            num_completions_to_print: 3,
            logging_steps: 10,
            max_steps: Some(33),
            ..TrainConfig::default()
        };
        let mut printed = Printed::new(&config, dir.clone(), 0);
        let mut step_at = |steps| printed.poll(steps).map(|text| text[5..7].to_owned());
        (1..=9).for_each(write);
        assert_eq!(step_at(9), None);
        assert_eq!(step_at(10), None, "they are not written yet");
        write(10);
        assert_eq!((step_at(11), step_at(11)), (Some("10".to_owned()), None));
        assert_eq!(step_at(20), None);
        assert_eq!(step_at(25), None);
        write(20);
        assert_eq!(step_at(26), None, "they were waited for long enough");
        (30..=33).for_each(write);
        assert_eq!(step_at(31).as_deref(), Some("30"));
        assert_eq!(step_at(33).as_deref(), Some("33"));
        assert_eq!(step_at(19), None);
        assert_eq!(step_at(20).as_deref(), Some("20"), "it is made again");
        let off = TrainConfig { num_completions_to_print: 0, ..config };
        assert_eq!(Printed::new(&off, dir.clone(), 0).poll(10), None);
    }
}
