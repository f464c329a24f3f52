//! The leases of a worker: those that wait, those of which completions are being made or scored, and what is answered.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use rollout::{
    data::Tokenizer,
    engine::{Constrained, Engine, FinishedSequence, GroupRequest},
};
use shared::{
    PolicyVersion,
    channel::fleet::{Lease, Report},
};

use crate::{messages::made, scores::Scorer, worker::Client};

/// All that a coordinator has leased to this worker.
pub struct Leases<'a> {
    client: &'a Client,
    tokenizer: Tokenizer,
    /// What the completions of the run may be.
    constraint: Option<Constrained>,
    /// Scores what is made, where the run wants that.
    scorer: Option<Scorer>,
    /// Leases that have not started, in the order in which they were given.
    waiting: VecDeque<Lease>,
    /// Completions still to be made of those that have.
    started: BTreeMap<u64, usize>,
}

impl<'a> Leases<'a> {
    /// No leases.
    #[must_use]
    pub fn new(
        client: &'a Client,
        tokenizer: Tokenizer,
        constraint: Option<Constrained>,
        scorer: Option<Scorer>,
    ) -> Self {
        Self { client, tokenizer, constraint, scorer, waiting: VecDeque::new(), started: BTreeMap::new() }
    }

    /// Forgets all of them: they are of a coordinator that is gone.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.started.clear();
        self.scorer.iter_mut().for_each(|scorer| scorer.retain(&[]));
    }

    /// Gives up what is not among the `wanted`, and takes what was granted.
    pub fn obey(&mut self, engine: &mut Engine, wanted: &[u64], granted: Vec<Lease>) {
        self.waiting.retain(|lease| wanted.contains(&lease.id));
        self.started.retain(|id, _| {
            let is_wanted = wanted.contains(id);
            if !is_wanted {
                // It has been given to others, or nobody wants it any more: its places are for what is wanted.
                engine.cancel(*id, None);
            }
            is_wanted
        });
        self.scorer.iter_mut().for_each(|scorer| scorer.retain(wanted));
        let known = self.held();
        self.waiting.extend(granted.into_iter().filter(|lease| !known.contains(&lease.id)));
        self.tell_held();
    }

    /// Starts leases that the version in use is for.
    pub fn begin(&mut self, engine: &mut Engine, in_use: PolicyVersion) -> anyhow::Result<()> {
        let (able, later): (VecDeque<Lease>, VecDeque<Lease>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|lease| lease.version <= in_use);
        self.waiting = later;
        for lease in able {
            self.started.insert(lease.id, lease.samples.len());
            self.scorer.iter_mut().try_for_each(|scorer| scorer.begin(&lease))?;
            let group = GroupRequest {
                tag: lease.id,
                prompt_id: lease.prompt_id,
                epoch: lease.epoch,
                prompt_ids: lease.prompt_ids.into(),
                samples: lease.samples.into(),
                stop_criterion: self.tokenizer.stop_criterion(&lease.sampling.stop),
                constraint: self.constraint.clone(),
                sampling: lease.sampling.into(),
                lengths: None,
            };
            engine.begin(group.into())?;
        }
        Ok(())
    }

    /// Answers with what came of a step that was begun at that time, in which so many tokens were made; what is to be
    /// scored first is answered later.
    pub fn answer(&mut self, finished: Vec<FinishedSequence>, tokens: u64, begun: Instant) -> anyhow::Result<()> {
        let mut sent = Vec::new();
        for sequence in finished {
            let lease = sequence.tag;
            // Of a lease that was taken back, what comes is not wanted.
            let Some(left) = self.started.get_mut(&lease) else { continue };
            *left -= 1;
            if *left == 0 {
                self.started.remove(&lease);
            }
            let made = made(lease, sequence);
            sent.extend(match &mut self.scorer {
                Some(scorer) => scorer.add(made)?,
                None => Some(made),
            });
        }
        let busy = begun.elapsed().as_secs_f64();
        let has_news = !sent.is_empty();
        if has_news || self.scoring() > 0 {
            self.tell_held();
        }
        let change = |report: &mut Report| {
            report.work.tokens += tokens;
            report.work.busy_s += busy;
            report.made.extend(sent);
        };
        if has_news {
            self.client.report(change)
        } else {
            self.client.update(change)
        }
        Ok(())
    }

    /// Answers with what has been scored.
    pub fn answer_scored(&mut self) {
        let scored = self.scorer.as_mut().map(Scorer::finished).unwrap_or_default();
        if scored.is_empty() {
            return;
        }
        self.tell_held();
        self.client.report(|report| {
            report.work.scored += scored.len() as u64;
            report.made.extend(scored);
        });
    }

    /// Leases whose completions are being scored.
    #[must_use]
    pub fn scoring(&self) -> u32 {
        self.scorer.as_ref().map_or(0, Scorer::scoring)
    }

    /// Leases of which there is something to do, ascending.
    fn held(&self) -> Vec<u64> {
        let begun = self.started.keys().copied().chain(self.scorer.iter().flat_map(Scorer::leases));
        let mut held: Vec<u64> = self.waiting.iter().map(|lease| lease.id).chain(begun).collect();
        held.sort_unstable();
        held.dedup();
        held
    }

    /// The next call says what is held.
    fn tell_held(&self) {
        let (held, scoring) = (self.held(), self.scoring());
        self.client.update(|report| (report.held, report.work.scoring) = (held, scoring));
    }
}
