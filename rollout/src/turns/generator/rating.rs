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
        if self.rewards.raters() == 0 {
            return self.ask_for_reward(sample, end);
        }
        if let (Some(live), Some(group)) = (self.live.get_mut(&sample), self.groups.get_mut(&sample.tag)) {
            live.go(At::Over(end));
            // The others of its group are measured by its time, which does not count the wait for them.
            group.pace.ended(live.age(Instant::now()));
            live.is_counted = true;
        }
        self.rate_when_over(sample.tag);
    }

    /// Has the conversations of a group rated, once all that go on are over.
    pub(super) fn rate_when_over(&mut self, number: u64) {
        let Some(group) = self.groups.get(&number) else { return };
        let tokenizer = &group.prompt.tokenizer;
        let (mut samples, mut completions) = (Vec::new(), Vec::new());
        for &index in group.request.samples.iter() {
            let sample = Sample { tag: number, index };
            let Some(live) = self.live.get(&sample) else { continue };
            let At::Over(end) = live.at else { return };
            let Some(seen) = live.seen(tokenizer) else { return };
            samples.push((sample, end));
            completions.push(seen);
        }
        let input = group.prompt.reward_input(completions);
        for (sample, end) in &samples {
            self.live.get_mut(sample).expect("it was just looked at").go(At::Rating(*end));
        }
        if !samples.is_empty() {
            self.hosts.rate(samples.into_iter().map(|(sample, _)| sample).collect(), input);
        }
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
