//! Progress of a generation: a bar on a terminal, a line now and then otherwise.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use shared::process::pace::Pace;

/// Counts completions, prompts and tokens.
pub struct Progress {
    is_shown: bool,
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    prompts: usize,
    prompts_done: usize,
    /// Sum over the prompts that could be judged, and their number.
    accuracy: (f64, usize),
    tokens: u64,
    started: Instant,
    /// Paces the lines where stderr is no terminal.
    pace: Pace,
}

impl Progress {
    /// Starts the clock for the `total` completions that are still to be made, of `prompts` in all. Nothing is shown
    /// where something else is written to the terminal.
    pub fn new(total: usize, prompts: usize, is_shown: bool) -> Self {
        let started = Instant::now();
        let bar = (is_shown && std::io::stderr().is_terminal()).then(|| {
            let style = "{bar:40} {pos}/{len} completions, {msg}, {elapsed} elapsed, {eta} left";
            let style = ProgressStyle::with_template(style).expect("a valid template");
            let bar = ProgressBar::new(total as u64).with_style(style).with_message("no completion yet");
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        Self {
            is_shown,
            bar,
            total,
            done: 0,
            prompts,
            prompts_done: 0,
            accuracy: (0.0, 0),
            tokens: 0,
            started,
            pace: Pace::default(),
        }
    }

    /// Counts a completion of `tokens` tokens that has ended.
    pub fn completed(&mut self, tokens: usize) {
        self.done += 1;
        self.tokens += tokens as u64;
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}, {:.0} tokens/s", self.prompts_so_far(), rate(self.tokens, self.seconds())));
            bar.inc(1);
        }
    }

    /// Counts a prompt whose completions are all scored, also one of a session before. `accuracy` is the share of right
    /// completions, if they are judged.
    pub fn prompt(&mut self, accuracy: Option<f64>) {
        self.prompts_done += 1;
        if let Some(accuracy) = accuracy {
            self.accuracy = (self.accuracy.0 + accuracy, self.accuracy.1 + 1);
        }
    }

    /// `120/300 prompts, accuracy 0.575 so far`.
    fn prompts_so_far(&self) -> String {
        let accuracy = match self.accuracy {
            (_, 0) => String::new(),
            (sum, judged) => format!(", accuracy {:.3} so far", sum / judged as f64),
        };
        format!("{}/{} prompts{accuracy}", self.prompts_done, self.prompts)
    }

    /// Writes a line when it is time to, whether or not a completion has ended.
    pub fn tick(&mut self) {
        if self.is_shown && self.bar.is_none() && self.pace.is_due() {
            let seconds = self.seconds();
            let left = match self.done {
                0 => String::new(),
                done => format!(", about {:.0} s left", seconds * (self.total - done) as f64 / done as f64),
            };
            let prompts = self.prompts_so_far();
            shared::tell!("{}/{} completions, {prompts}, after {seconds:.0} s{left}", self.done, self.total);
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Removes the bar; returns the tokens of all completions.
    pub fn finish(self) -> u64 {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.tokens
    }
}

/// Tokens per second, 0 where no time has passed.
pub fn rate(tokens: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_is_of_prompts_that_could_be_judged() {
        let mut progress = Progress::new(40, 10, false);
        assert_eq!(progress.prompts_so_far(), "0/10 prompts");
        [Some(1.0), None, Some(0.25)].into_iter().for_each(|accuracy| progress.prompt(accuracy));
        assert_eq!(progress.prompts_so_far(), "3/10 prompts, accuracy 0.625 so far");
    }
}
