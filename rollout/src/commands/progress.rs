//! Progress of a generation: a bar on a terminal, a line now and then otherwise.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two lines when stderr is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Counts completions and tokens.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    tokens: u64,
    started: Instant,
    next_line: Instant,
}

impl Progress {
    /// Starts the clock for `total` completions.
    pub fn new(total: usize) -> Self {
        let started = Instant::now();
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{bar:40} {pos}/{len} completions, {msg}, {elapsed} elapsed, {eta} left";
            let style = ProgressStyle::with_template(style).expect("a valid template");
            let bar = ProgressBar::new(total as u64).with_style(style).with_message("no completion yet");
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        Self { bar, total, done: 0, tokens: 0, started, next_line: started + LINE_EVERY }
    }

    /// A completion of `tokens` tokens has ended.
    pub fn completed(&mut self, tokens: usize) {
        self.done += 1;
        self.tokens += tokens as u64;
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{:.0} tokens/s", rate(self.tokens, self.seconds())));
            bar.inc(1);
        }
    }

    /// Time has passed, whether or not a completion has ended.
    pub fn tick(&mut self) {
        if self.bar.is_none() && Instant::now() >= self.next_line {
            shared::tell!("{}/{} completions after {:.0} s", self.done, self.total, self.seconds());
            self.next_line = Instant::now() + LINE_EVERY;
        }
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Removes the bar; returns the tokens of all completions, and the seconds since the start.
    pub fn finish(self) -> (u64, f64) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        (self.tokens, self.seconds())
    }
}

/// Tokens per second, 0 where no time has passed.
pub fn rate(tokens: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}
