//! What the user sees while the pair works: a bar on a terminal, plain lines elsewhere.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use shared::{
    RunDir,
    config::TrainConfig,
    memory::{Kills, Shortage},
    metrics::{self, MetricRecord},
    prompts::LongPrompts,
};
use shared_bounds::Shown;

use crate::{notices::Board, output, signals, summary, supervise::Watch, tail::Tail};

/// Follows the metrics and shows them.
pub struct Progress {
    tail: Tail,
    board: Board,
    bar: Option<ProgressBar>,
    total: u64,
    every: u64,
    shown: u64,
    /// Processes that had been killed for lack of memory when that was last asked.
    memory_kills: Kills,
    /// Where the sampler tells of prompts that are too long, until that is said.
    long_prompts: Option<PathBuf>,
    /// Both halves work at once, so that it matters how long each waits.
    overlaps: bool,
}

impl Progress {
    /// Looks at what the run directory already holds.
    pub fn new(config: &TrainConfig, dir: &RunDir) -> Self {
        let mut tail = Tail::new(dir.metrics());
        tail.poll();
        let total = config.max_steps.unwrap_or(0);
        let shown = tail.steps();
        let bar = io::stderr().is_terminal().then(|| bar(total, shown));
        let memory_kills = Kills::now();
        Self {
            tail,
            board: Board::new(dir.notices()),
            bar,
            total,
            every: config.logging_steps.max(1),
            shown,
            memory_kills,
            long_prompts: Some(dir.prompts()),
            overlaps: config.max_staleness > 0,
        }
    }

    /// Completed steps.
    pub fn steps(&self) -> u64 {
        self.tail.steps()
    }

    /// One line on what begins.
    pub fn announce(&mut self, config: &TrainConfig) {
        let from = if self.shown > 0 { format!(" from step {}", self.shown) } else { String::new() };
        self.say(&format!(
            "training {} for {} steps of {} completions{from}; run directory {}",
            config.model.display(),
            self.total,
            config.completions_per_step(),
            config.output_dir.display()
        ));
    }

    /// Says once which prompts the model does not get.
    fn tell_of_long_prompts(&mut self) {
        let Some(path) = self.long_prompts.take_if(|path| path.exists()) else { return };
        LongPrompts::read(&path).iter().for_each(|prompts| self.say(&format!("warning: {prompts}")));
    }

    /// Leaves the display in its last state.
    pub fn finish(&mut self) {
        self.tick();
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }

    fn show(&mut self) {
        let records = self.tail.records();
        let steps = self.tail.steps();
        if let Some(bar) = &self.bar {
            bar.set_position(steps);
            bar.set_message(figures(records, self.overlaps));
            self.shown = steps;
            return;
        }
        // After a restart from an earlier checkpoint the steps go back, and are shown again as they are made again.
        self.shown = self.shown.min(steps);
        let from = records.partition_point(|r| r.get(metrics::STEP).is_some_and(|s| s as u64 <= self.shown));
        let lines: Vec<String> = (from..records.len())
            .filter(|i| {
                let step = records[*i].get(metrics::STEP).unwrap_or(0.0) as u64;
                step.is_multiple_of(self.every) || step == self.total
            })
            .map(|i| plain_line(&records[..=i], self.total, self.overlaps))
            .collect();
        self.shown = steps;
        lines.iter().for_each(output::tell);
    }
}

impl Watch for Progress {
    fn tick(&mut self) -> u64 {
        self.tell_of_long_prompts();
        self.tail.poll();
        if self.tail.steps() != self.shown {
            self.show();
        }
        for notice in self.board.news() {
            self.say(&format!("notice: {notice}"));
        }
        if let Some(bar) = &self.bar {
            bar.tick();
        }
        self.tail.steps()
    }

    fn interrupts(&mut self) -> usize {
        signals::requests()
    }

    fn memory_ran_out(&mut self) -> Option<Shortage> {
        let kills = Kills::now();
        kills.since(std::mem::replace(&mut self.memory_kills, kills))
    }

    fn say(&mut self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(Shown(line).to_string()),
            None => output::tell(line),
        }
    }
}

fn bar(total: u64, done: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:24.cyan/blue} {pos}/{len}  {elapsed} < {eta}  {msg}")
        .expect("the template is valid")
        .progress_chars("━╸─");
    bar.set_style(style);
    // Steps of an earlier session say nothing about the speed of this one.
    bar.set_position(done);
    bar.reset_eta();
    bar
}

/// `step 12/100  reward 1.30  …  ETA 1m 05s`.
fn plain_line(records: &[MetricRecord], total: u64, overlaps: bool) -> String {
    let step = records.last().and_then(|r| r.get(metrics::STEP)).unwrap_or(0.0) as u64;
    let eta = summary::recent(records, metrics::STEP_TIME, 20)
        .map(|seconds| Duration::from_secs_f64((seconds * total.saturating_sub(step) as f64).max(0.0)))
        .map(|left| format!("  ETA {}", indicatif::HumanDuration(left)));
    format!("step {step}/{total}  {}{}", figures(records, overlaps), eta.unwrap_or_default())
}

/// The newest figures in a fixed order; those that a run does not have are left out.
fn figures(records: &[MetricRecord], overlaps: bool) -> String {
    let Some(record) = records.last() else {
        return String::new();
    };
    let mut parts = Vec::new();
    let mut push = |name: &str, value: Option<String>| parts.extend(value.map(|v| format!("{name} {v}")));
    push("reward", record.get(metrics::REWARD).map(|v| format!("{v:.3}")));
    for (name, value) in record.family(metrics::REWARDS_MEAN) {
        push(name, value.map(|v| format!("{v:.3}")));
    }
    push("length", record.get(metrics::COMPLETIONS_MEAN_LENGTH).map(|v| format!("{v:.1}")));
    push("mismatch_kl", record.get(metrics::MISMATCH_KL).map(|v| format!("{v:.1e}")));
    push(
        "tokens/s",
        summary::tokens_per_second(&records[records.len().saturating_sub(5)..], 0).map(|v| format!("{v:.0}")),
    );
    for (name, metric) in [("learner", metrics::PERF_IDLE_SHARE), ("sampler", metrics::ROLLOUT_IDLE_SHARE)] {
        let idle = record.get(metric).filter(|_| overlaps).map(|share| format!("idle {name} {:.0} %", 100.0 * share));
        parts.extend(idle);
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> MetricRecord {
        let mut record = MetricRecord::default();
        record.count(metrics::STEP, step).set(metrics::REWARD, 1.25).set(metrics::STEP_TIME, 2.0);
        record.set(metrics::MISMATCH_KL, 3e-13).set(metrics::PERF_IDLE_SHARE, 0.25);
        record
    }

    #[test]
    fn a_plain_line_has_what_the_record_has_and_the_time_left() {
        let line = plain_line(&[record(1), record(2)], 12, false);
        assert_eq!(line, "step 2/12  reward 1.250  mismatch_kl 3.0e-13  ETA 20 seconds");
        let line = plain_line(&[record(2)], 2, true);
        assert_eq!(line, "step 2/2  reward 1.250  mismatch_kl 3.0e-13  idle learner 25 %  ETA 0 seconds");
    }

    #[test]
    fn figures_that_are_missing_are_left_out() {
        assert_eq!(figures(&[], true), "");
        assert_eq!(figures(&[MetricRecord::default()], true), "");
    }
}
