//! Conversations that take too long.

use std::{sync::Arc, time::Instant};

use rollout_environments::Sample;
use shared::{EpisodeEnd, SamplingParams};

use super::{Begun, Conversing};
use crate::{
    engine::GroupRequest,
    turns::{
        live::At,
        patience::{Verdict, seed_of_next_draw},
    },
};

impl Conversing {
    /// Conversations that take too long, and why they are to end. Where their group waits for its stragglers, these are
    /// not among them.
    pub(super) fn too_long(&self) -> impl Iterator<Item = (Sample, EpisodeEnd)> {
        let now = Instant::now();
        let live = self.live.iter().filter(|_| self.patience.is_bounded());
        // What is over and was counted for its group has been in time, however long the others, the raters and its
        // environment take.
        let live = live.filter(|(_, live)| live.counted.is_none());
        live.filter_map(move |(sample, live)| {
            let age = live.age(now)?;
            if self.patience.episode.is_some_and(|most| age >= most) {
                return Some((*sample, EpisodeEnd::Deadline));
            }
            let Begun { pace, dropped, .. } = self.groups.get(&sample.tag)?;
            let is_straggler = self.patience.bound(pace).is_some_and(|most| age > most);
            let is_awaited = self.patience.verdict(pace, *dropped) == Verdict::Wait;
            (is_straggler && !is_awaited).then_some((*sample, EpisodeEnd::Straggler))
        })
    }

    /// Ends conversations that take too long, or drops their groups.
    pub(super) fn look_at_the_time(&mut self) {
        let mut too_long: Vec<(Sample, EpisodeEnd)> = self.too_long().collect();
        too_long.sort_unstable_by_key(|(sample, _)| (sample.tag, sample.index));
        for (sample, end) in too_long {
            let Some(Begun { pace, dropped, .. }) = self.groups.get(&sample.tag) else { continue };
            if end == EpisodeEnd::Deadline {
                let most = self.patience.episode.unwrap_or_default().as_secs_f64();
                let reason = format!("the conversation takes longer than {most} s (`episode_timeout`)");
                self.give_up(sample, end, reason);
            } else if self.patience.verdict(pace, *dropped) == Verdict::DrawAgain {
                self.draw_again(sample.tag);
            } else {
                let times = self.patience.straggler_after;
                let reason = format!(
                    "the conversation takes more than {times} times as long as the first half of its group \
                     (`straggler_after`)"
                );
                self.give_up(sample, end, reason);
            }
        }
    }

    /// Drops a group, and begins another one of its prompt.
    fn draw_again(&mut self, number: u64) {
        let Some(Begun { request, prompt, dropped, .. }) = self.groups.remove(&number) else { return };
        let id = request.prompt_id.0;
        tracing::warn!("the conversations of prompt {id} are dropped for a straggler, and drawn again");
        for (sample, live) in self.live.extract_if(|sample, _| sample.tag == number) {
            if live.at == At::Sampling {
                self.inner.cancel(sample.tag, Some(sample.index));
            }
            self.hosts.close(sample);
        }
        let seed = seed_of_next_draw(request.sampling.seed);
        let sampling = Arc::new(SamplingParams { seed, ..(*request.sampling).clone() });
        self.open(GroupRequest { sampling, ..request }, prompt, dropped + 1);
    }
}
