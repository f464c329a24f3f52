//! Writes events while the two halves write their records.

use std::{collections::VecDeque, fs, io, path::PathBuf};

use shared::{
    RunDir,
    files::{atomic, journal},
    metrics::{Figure, MetricRecord, STEP},
};

use super::{
    file::{self, EventFile},
    histogram,
    proto::Value,
};
use crate::records::{
    samples::{self, MOST_AWAITED, Sample},
    tail::{KEPT, Tail, step_of},
};

/// Names of a step's metrics begin with this, as TRL's do.
const TRAIN: &str = "train/";
/// Names of an evaluation's metrics begin with this instead of `eval_`, as TRL's do.
const EVAL: &str = "eval/";
/// Names of values computed from completions begin with this.
const COMPLETIONS: &str = "completions/";
/// Steps of which texts are shown, over a whole run.
const STEPS_WITH_TEXTS: u64 = 100;
/// Files that share a bound, so that the oldest can be removed.
const FILES: u64 = 4;
/// Most characters of a prompt or a completion.
const MOST_TEXT: usize = 4_000;

/// Turns the records of a run into events, as they come.
#[derive(Debug)]
pub struct Follower {
    run: RunDir,
    /// Opened with the first event, so that a start that fails leaves no file.
    file: Option<EventFile>,
    /// Bytes that all files may take.
    limit: Option<u64>,
    /// Steps up to this one have events.
    step: u64,
    /// The newest records that have events.
    shown: VecDeque<MetricRecord>,
    /// The same for evaluations, which may include step 0.
    evaluated: Option<u64>,
    /// Steps whose completions are not there yet.
    awaited: VecDeque<u64>,
    /// Steps from one step with texts to the next.
    every: u64,
}

impl Follower {
    /// Follows a run that has made `steps` of its `total` steps. Adds the events that a killed launcher did not write.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn new(run: RunDir, steps: u64, total: u64) -> io::Result<Self> {
        let (mut step, mut completed, mut evaluated) = (0, 0, None);
        for path in file::files(run.root())? {
            for event in file::read(&path)? {
                let number = event.step.max(0) as u64;
                if event.session_log.is_some() {
                    let kept = number.saturating_sub(1);
                    (step, completed) = (step.min(kept), completed.min(kept));
                    evaluated = evaluated.map(|known: u64| known.min(kept));
                }
                let tags = event.summary.iter().flat_map(|summary| &summary.value).map(|value| &value.tag);
                for tag in tags {
                    if tag.starts_with(TRAIN) {
                        step = number;
                    } else if tag.starts_with(EVAL) {
                        evaluated = Some(number);
                    } else if tag.starts_with(COMPLETIONS) {
                        completed = number;
                    }
                }
            }
        }
        let step = step.min(steps);
        let evaluated = evaluated.map(|known| known.min(step));
        let every = total.div_ceil(STEPS_WITH_TEXTS).max(1);
        // Records that the last launcher has seen: the learner may cut some of them off before the first look.
        let mut tail = Tail::new(run.metrics());
        tail.poll();
        let shown = tail.records().iter().filter(|record| step_of(record) <= step).cloned().collect();
        let awaited = (completed + 1..=step).collect();
        Ok(Self { run, file: None, limit: None, step, shown, evaluated, awaited, every })
    }

    /// Removes the oldest files when all of them take more than so many bytes.
    pub fn with_limit(self, limit: Option<u64>) -> Self {
        Self { limit, ..self }
    }

    /// Adds values of a step, to a new file if the present one has its share of the bound.
    fn add(&mut self, step: u64, values: Vec<Value>) -> io::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let full = |file: &EventFile| self.limit.is_some_and(|limit| file.written() > limit / FILES);
        if self.file.as_ref().is_some_and(full) {
            self.file = None;
            self.remove_oldest()?;
        }
        if self.file.is_none() {
            self.file = Some(EventFile::create(self.run.root(), self.step + 1)?);
        }
        self.file.as_mut().expect("it was just made").add(step, values)
    }

    fn remove_oldest(&self) -> io::Result<()> {
        let files = file::files(self.run.root())?;
        let size = |path: &PathBuf| fs::symlink_metadata(path).map_or(0, |file| file.len());
        let mut total: u64 = files.iter().map(size).sum();
        // Room for the file that is about to begin.
        let most = self.limit.map_or(u64::MAX, |limit| limit - limit / FILES);
        for path in files {
            if total <= most {
                break;
            }
            total -= size(&path);
            atomic::remove_file(&path)?;
        }
        Ok(())
    }

    /// Writes the new events. `newest` are the newest records of the steps, `evaluations` those of evaluations.
    ///
    /// # Errors
    /// Any error of the file system; the file may then end in half an event, and nothing may be added to it.
    pub fn poll(&mut self, newest: &[MetricRecord], evaluations: &[MetricRecord]) -> io::Result<()> {
        let kept = self.kept(newest);
        if kept < self.step {
            self.step = kept;
            self.shown.retain(|record| step_of(record) <= kept);
            self.evaluated = self.evaluated.map(|known| known.min(kept));
            self.awaited.retain(|step| *step <= kept);
            self.file.as_mut().map_or(Ok(()), |file| file.restart(kept + 1))?;
        }
        if newest.first().is_some_and(|record| step_of(record) > self.step + 1) {
            let mut result = Ok(());
            journal::for_each::<MetricRecord>(&self.run.metrics(), |record| {
                if result.is_ok() {
                    result = self.add_step(&record);
                }
            })?;
            result?;
        }
        newest.iter().try_for_each(|record| self.add_step(record))?;
        self.add_completions()?;
        self.add_evaluations(evaluations)
    }

    /// The last step whose events still hold: a learner that restarts from a checkpoint or from the beginning cuts
    /// records off, and may already have made other records of the same steps.
    fn kept(&self, newest: &[MetricRecord]) -> u64 {
        let is_new = |record: &&MetricRecord| !self.shown.iter().any(|shown| shown == *record);
        let made_again = newest.iter().find(is_new).map(|record| step_of(record).saturating_sub(1));
        let last = newest.last().map_or(0, step_of);
        made_again.unwrap_or(last).min(self.step)
    }

    /// Adds a step, unless it has been added.
    fn add_step(&mut self, record: &MetricRecord) -> io::Result<()> {
        let step = step_of(record);
        if step > self.step {
            self.add(step, scalars(record, |key| format!("{TRAIN}{key}")))?;
            self.step = step;
            self.shown.push_back(record.clone());
            self.shown.drain(..self.shown.len().saturating_sub(KEPT));
            self.awaited.push_back(step);
        }
        Ok(())
    }

    fn add_completions(&mut self) -> io::Result<()> {
        while let Some(&step) = self.awaited.front() {
            let samples = match samples::read(&self.run.step_completions(step)) {
                Some(samples) => samples,
                None if self.awaited.len() as u64 <= MOST_AWAITED => break,
                None => Vec::new(),
            };
            self.awaited.pop_front();
            let with_texts = step == 1 || step.is_multiple_of(self.every);
            self.add(step, distributions(&samples, with_texts))?;
        }
        Ok(())
    }

    fn add_evaluations(&mut self, newest: &[MetricRecord]) -> io::Result<()> {
        // A restarted sampler cuts off evaluations of versions that will be made again.
        self.evaluated = newest.last().and_then(|record| self.evaluated.map(|known| known.min(step_of(record))));
        for record in newest {
            let step = step_of(record);
            if self.evaluated.is_none_or(|known| step > known) {
                let name = |key: &str| format!("{EVAL}{}", key.strip_prefix("eval_").unwrap_or(key));
                self.add(step, scalars(record, name))?;
                self.evaluated = Some(step);
            }
        }
        Ok(())
    }
}

/// A number for each finite value.
fn scalars(record: &MetricRecord, name: impl Fn(&str) -> String) -> Vec<Value> {
    let values = record.values().iter().filter(|(key, _)| *key != STEP.key);
    values.filter_map(|(key, value)| Some(Value::scalar(name(key), value.as_f64()?))).collect()
}

fn distributions(samples: &[Sample], with_texts: bool) -> Vec<Value> {
    let mut values = Vec::new();
    let mut push = |name: String, numbers: Vec<f64>| {
        values.extend(histogram::of(numbers).map(|histogram| Value::histogram(name, histogram)));
    };
    push(format!("{COMPLETIONS}rewards"), samples.iter().filter_map(|sample| sample.reward).collect());
    push(format!("{COMPLETIONS}lengths"), samples.iter().map(|sample| sample.tokens).collect());
    for name in samples.first().iter().flat_map(|sample| sample.rewards.keys()) {
        let scores = samples.iter().filter_map(|sample| sample.rewards.get(name).copied().flatten());
        push(format!("{COMPLETIONS}rewards/{name}"), scores.collect());
    }
    if with_texts {
        let ranked = samples::ranked(samples);
        let (best, worst) = (ranked.first(), ranked.last());
        let shown = [("best", best), ("worst", worst.filter(|_| ranked.len() > 1))];
        let texts = shown.into_iter().filter_map(|(which, sample)| Some(markdown(which, sample?))).collect::<Vec<_>>();
        if !texts.is_empty() {
            values.push(Value::texts(format!("{COMPLETIONS}samples"), texts));
        }
    }
    values
}

/// A completion as Markdown, with its own text escaped.
fn markdown(which: &str, sample: &Sample) -> String {
    let verbatim = |text: &str| -> String {
        let shown: String = text.chars().take(MOST_TEXT).collect();
        let more = if shown.len() < text.len() { " […]" } else { "" };
        // Every kind of line break counts here, or the line behind it would not be indented.
        let lines =
            shown.split(['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}']);
        lines.map(|line| format!("    {line}\n")).collect::<String>().trim_end().to_owned() + more
    };
    let reward = Figure(sample.reward.unwrap_or(f64::NAN));
    format!(
        "{which} completion of the step: reward {reward:.4}, {} tokens. Prompt:\n\n{}\n\nCompletion:\n\n{}\n",
        sample.tokens,
        verbatim(&sample.prompt),
        verbatim(&sample.completion)
    )
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use super::*;

    struct Run {
        folder: tempfile::TempDir,
        dir: RunDir,
    }

    impl Run {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let dir = RunDir::new(folder.path());
            dir.create().unwrap();
            Self { folder, dir }
        }

        fn complete(&self, step: u64) {
            let line = |reward: f64| {
                format!(
                    "{{\"prompt\":\"<b>\\n# \
                     p\",\"completion\":\"c{step}\",\"rewards\":{{\"f\":{reward}}},\"reward\":{reward},\"tokens\":7}}\n"
                )
            };
            fs::write(self.dir.step_completions(step), line(0.0) + &line(1.0) + "{\"torn").unwrap();
        }

        fn follow(&self, steps: u64) -> Follower {
            Follower::new(self.dir.clone(), steps, 100).unwrap()
        }

        /// Step and name of each value that TensorBoard keeps, in its order.
        fn kept(&self) -> Vec<(i64, String)> {
            let mut kept: Vec<(i64, String)> = Vec::new();
            for path in file::files(Path::new(self.folder.path())).unwrap() {
                for event in file::read(&path).unwrap() {
                    if event.session_log.is_some() {
                        kept.retain(|(step, _)| *step < event.step);
                    }
                    let values = event.summary.into_iter().flat_map(|summary| summary.value);
                    kept.extend(values.map(|value| (event.step, value.tag)));
                }
            }
            kept
        }

        fn steps(&self, tag: &str) -> Vec<i64> {
            self.kept().into_iter().filter(|(_, known)| known == tag).map(|(step, _)| step).collect()
        }
    }

    fn records(steps: std::ops::RangeInclusive<u64>) -> Vec<MetricRecord> {
        let record =
            |step| MetricRecord::from_line(format!("{{\"step\":{step},\"reward\":0.5,\"kl\":null}}").as_bytes());
        steps.map(|step| record(step).unwrap()).collect()
    }

    fn evaluations(steps: &[u64]) -> Vec<MetricRecord> {
        let record = |step| MetricRecord::from_line(format!("{{\"step\":{step},\"eval_accuracy\":0.5}}").as_bytes());
        steps.iter().map(|step| record(step).unwrap()).collect()
    }

    fn numbers(steps: std::ops::RangeInclusive<i64>) -> Vec<i64> {
        steps.collect()
    }

    #[test]
    fn steps_evaluations_and_completions_become_events_once() {
        let run = Run::new();
        let mut follower = run.follow(0);
        run.complete(1);
        follower.poll(&records(1..=2), &evaluations(&[0])).unwrap();
        follower.poll(&records(1..=2), &evaluations(&[0])).unwrap();
        run.complete(2);
        follower.poll(&records(1..=3), &evaluations(&[0, 2])).unwrap();
        assert_eq!(run.steps("train/reward"), [1, 2, 3]);
        assert_eq!(run.steps("eval/accuracy"), [0, 2]);
        for name in ["completions/rewards", "completions/lengths", "completions/rewards/f", "completions/samples"] {
            assert_eq!(run.steps(name), [1, 2], "{name}");
        }
        assert!(run.steps("train/kl").is_empty() && run.steps("train/step").is_empty());
    }

    /// The records are cut off and made again before they are looked at: the events show the newest records.
    #[test]
    fn steps_that_were_made_again_between_two_looks_are_shown_as_they_are_now() {
        let run = Run::new();
        let again =
            |step: u64| MetricRecord::from_line(format!("{{\"step\":{step},\"reward\":0.75}}").as_bytes()).unwrap();
        let mut follower = run.follow(0);
        follower.poll(&records(1..=5), &[]).unwrap();
        for made in [4..=4, 4..=5, 4..=6] {
            let newest: Vec<MetricRecord> = records(1..=3).into_iter().chain(made.map(again)).collect();
            follower.poll(&newest, &[]).unwrap();
            let steps = step_of(newest.last().unwrap()) as i64;
            assert_eq!(run.steps("train/reward"), numbers(1..=steps));
            assert_eq!(run.steps("train/kl"), [0; 0]);
            let restarts = file::files(run.dir.root())
                .unwrap()
                .iter()
                .flat_map(|path| file::read(path).unwrap().collect::<Vec<_>>())
                .filter(|event| event.session_log.is_some())
                .count();
            assert_eq!(restarts, 2, "the file begins, and step 4 is made again once");
        }
        let text: String = (records(1..=3).iter().chain(&[again(4)]))
            .map(|record| format!("{}\n", serde_json::to_string(record.values()).unwrap()))
            .collect();
        fs::write(run.dir.metrics(), text).unwrap();
        let mut resumed = run.follow(4);
        resumed.poll(&[records(1..=3), vec![again(4), again(5)]].concat(), &[]).unwrap();
        assert_eq!(run.steps("train/reward"), numbers(1..=5));
    }

    #[test]
    fn completions_that_never_come_are_not_waited_for() {
        let run = Run::new();
        let mut follower = run.follow(0);
        follower.poll(&records(1..=9), &[]).unwrap();
        run.complete(1);
        run.complete(9);
        follower.poll(&records(1..=9), &[]).unwrap();
        assert_eq!((run.steps("completions/rewards"), run.steps("train/reward")), (vec![], numbers(1..=9)));
        (6..9).for_each(|step| run.complete(step));
        follower.poll(&records(1..=9), &[]).unwrap();
        assert_eq!(run.steps("completions/rewards"), [6, 7, 8, 9]);
    }

    #[test]
    fn steps_that_are_made_again_replace_the_earlier_ones() {
        let run = Run::new();
        let mut follower = run.follow(0);
        follower.poll(&records(1..=6), &evaluations(&[0, 5])).unwrap();
        follower.poll(&records(1..=4), &evaluations(&[0])).unwrap();
        assert_eq!(run.steps("eval/accuracy"), [0]);
        follower.poll(&records(1..=5), &[]).unwrap();
        assert_eq!(run.steps("train/reward"), numbers(1..=5));
        follower.poll(&[], &[]).unwrap();
        follower.poll(&records(1..=5), &[]).unwrap();
        assert_eq!(run.steps("train/reward"), numbers(1..=5));
        let events = file::read(&file::files(run.dir.root()).unwrap()[0]).unwrap();
        assert_eq!(events.filter(|event| event.session_log.is_some()).count(), 3);
        // A launcher that resumes from a checkpoint.
        drop(follower);
        let mut follower = run.follow(3);
        follower.poll(&records(1..=4), &[]).unwrap();
        assert_eq!(run.steps("train/reward"), numbers(1..=4));
    }

    #[test]
    fn what_a_killed_launcher_has_missed_is_made_up_for() {
        let run = Run::new();
        run.follow(0).poll(&records(1..=2), &[]).unwrap();
        let lines: String = (1..=90).map(|step| format!("{{\"step\":{step},\"reward\":0.5}}\n")).collect();
        fs::write(run.dir.metrics(), lines).unwrap();
        [2, 87, 88, 89, 90].into_iter().for_each(|step| run.complete(step));
        run.follow(90).poll(&records(80..=90), &[]).unwrap();
        assert_eq!(run.steps("train/reward"), numbers(1..=90));
        assert_eq!(run.steps("completions/rewards"), [2, 87, 88, 89, 90]);
    }

    #[test]
    fn the_oldest_events_go_where_all_of_them_have_a_bound_and_a_start_without_a_step_leaves_none() {
        let run = Run::new();
        drop(run.follow(0));
        assert!(file::files(run.dir.root()).unwrap().is_empty());
        let bound = 4_000;
        let mut follower = run.follow(0).with_limit(Some(bound));
        (1..=200).for_each(|step| follower.poll(&records(step..=step), &[]).unwrap());
        let size = |path: &PathBuf| fs::metadata(path).unwrap().len();
        let taken: u64 = file::files(run.dir.root()).unwrap().iter().map(size).sum();
        assert!(taken <= bound + bound / FILES, "{taken}");
        let kept = run.steps("train/reward");
        assert!(kept.len() > 20 && kept[0] > 1, "{kept:?}");
        assert_eq!(kept, (kept[0]..=200).collect::<Vec<_>>(), "the newest stay, without a gap");
        drop(follower);
        run.follow(200).poll(&records(150..=201), &[]).unwrap();
        assert_eq!(run.steps("train/reward").last(), Some(&201));
    }

    #[test]
    fn nothing_in_a_text_is_markup() {
        let sample = Sample {
            prompt: "a\n# <b>\r*c*\u{2028}- d".into(),
            completion: "x".repeat(MOST_TEXT + 1),
            rewards: BTreeMap::new(),
            reward: Some(1.0),
            tokens: 3.0,
        };
        let text = markdown("best", &sample);
        assert!(text.contains("Prompt:\n\n    a\n    # <b>\n    *c*\n    - d\n\nCompletion:\n\n    xxx"), "{text}");
        assert!(text.ends_with("x […]\n"));
    }
}
