//! What conversations that are over have earned: by raters, which see the whole group, and by their environments.

use std::time::Instant;

use rollout_environments::Sample;
use shared::EpisodeEnd;

use super::Conversing;
use crate::turns::live::At;

impl Conversing {
    /// A conversation is over. Where there are raters, they see all conversations of the group, before any environment
    /// is asked for its reward (TRL).
    pub(super) fn over(&mut self, sample: Sample, end: EpisodeEnd) {
        if let (Some(live), Some(group)) = (self.live.get_mut(&sample), self.groups.get_mut(&sample.tag)) {
            // The others of its group are measured by its time, which does not count the wait for its reward.
            live.counted = live.age(Instant::now());
            live.counted.into_iter().for_each(|time| group.pace.ended(Some(time)));
            live.go(At::Over(end));
        }
        if self.rewards.raters() == 0 {
            self.ask_for_reward(sample, end);
        } else {
            self.rate_when_over(sample.tag);
        }
    }

    /// Has the conversations of a group rated, once all that go on are over.
    pub(super) fn rate_when_over(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number).filter(|_| self.rewards.raters() > 0) else { return };
        let samples = group.request.samples.iter().map(|&index| Sample { tag: number, index });
        let samples: Vec<Sample> = samples.filter(|sample| self.live.contains_key(sample)).collect();
        if samples.is_empty() || !samples.iter().all(|sample| matches!(self.live[sample].at, At::Over(_))) {
            return;
        }
        let completions: Vec<_> =
            samples.iter().map(|sample| self.live[sample].seen(&group.prompt.tokenizer)).collect();
        let input = group.prompt.reward_input(completions);
        for sample in &samples {
            let live = self.live.get_mut(sample).expect("it was just looked at");
            if let At::Over(end) = live.at {
                live.go(At::Rating(end));
            }
        }
        self.hosts.rate(samples, input);
    }

    /// Asks the environment of a conversation that is over for the reward, where it may have one.
    pub(super) fn ask_for_reward(&mut self, sample: Sample, end: EpisodeEnd) {
        if self.rewards.is_empty() {
            return self.scored(sample, end, None);
        }
        if let Some(live) = self.live.get_mut(&sample) {
            live.go(At::Scoring(end));
            self.hosts.score(sample);
        }
    }

    pub(super) fn scored(&mut self, sample: Sample, end: EpisodeEnd, reward: Option<f64>) {
        let Some(live) = self.live.get_mut(&sample) else { return };
        let outcomes = self.rewards.outcomes(&self.groups[&sample.tag].row, live.reward(reward));
        self.end(sample, end, outcomes, None);
    }
}
