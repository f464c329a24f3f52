//! The seam before environments.

use std::sync::Arc;

use crossbeam::channel::Receiver;
use rollout_environments::{Environments, Event, Sample, Turn};
use rollout_rewards::RewardInput;
use serde_json::{Map, Value};

/// Whatever runs the environments of conversations: processes, or a script in a test. Each request is answered by one
/// event for each of its samples. Nothing here waits.
pub trait Hosts: Send {
    /// Opens the environment of a sample for a row.
    fn open(&mut self, sample: Sample, row: Arc<Map<String, Value>>);

    /// Runs the calls of a turn.
    fn step(&mut self, sample: Sample, turn: Turn);

    /// Has the raters say something of conversations of a group that are over, in the order of their completions.
    fn rate(&mut self, samples: Vec<Sample>, input: RewardInput);

    /// Asks for the reward of the whole episode.
    fn score(&mut self, sample: Sample);

    /// Gives the environment of a sample back. What it still answers counts no more.
    fn close(&mut self, sample: Sample);

    /// The answers.
    fn events(&self) -> &Receiver<(Sample, Event)>;
}

impl Hosts for Environments {
    fn open(&mut self, sample: Sample, row: Arc<Map<String, Value>>) {
        Self::open(self, sample, row);
    }

    fn step(&mut self, sample: Sample, turn: Turn) {
        Self::step(self, sample, turn);
    }

    fn rate(&mut self, samples: Vec<Sample>, input: RewardInput) {
        Self::rate(self, samples, input);
    }

    fn score(&mut self, sample: Sample) {
        Self::score(self, sample);
    }

    fn close(&mut self, sample: Sample) {
        Self::close(self, sample);
    }

    fn events(&self) -> &Receiver<(Sample, Event)> {
        Self::events(self)
    }
}
