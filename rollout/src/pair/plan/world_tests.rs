//! The plan under every order of events, with dynamic sampling and without: batches are full, nothing usable is lost,
//! and whoever dies, a synchronous run goes on with the same groups.

use proptest::prelude::*;
use shared::{
    Completion, Contrast, FinishReason, PromptId, Provenance, RewardOutcome,
    config::RewardFailure,
    generation::{rng, testing},
};

use super::*;
use crate::pair::in_flight::{Kept, is_whole};

/// Completions of a group.
const GENERATIONS: u32 = 2;

pub(super) const ATTEMPTS: u32 = 3;
pub(super) const TOTAL: u64 = 6;

pub(super) fn options(groups_per_step: u32, max_staleness: u64) -> PlanOptions {
    PlanOptions {
        groups_per_step,
        max_staleness,
        max_unsent: groups_per_step as usize,
        kept_bytes: 1 << 20,
        dynamic_sampling: Some(DynamicSampling {
            max_attempts: ATTEMPTS,
            contrast: Contrast::Total,
            failure: RewardFailure::Exclude,
        }),
    }
}

/// Without dynamic sampling.
fn plain(groups_per_step: u32, max_staleness: u64) -> PlanOptions {
    PlanOptions { dynamic_sampling: None, ..options(groups_per_step, max_staleness) }
}

/// Which (position, version) are usable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompts {
    pub seed: u64,
    /// How many of 100 are not usable.
    pub flat: u64,
}

impl Prompts {
    pub(super) fn usable(self, position: u64, version: u64) -> bool {
        rng::hash(&[self.seed, position, version]) % 100 >= self.flat
    }

    pub(super) fn group(self, position: u64, version: u64) -> Scored {
        let usable = self.usable(position, version);
        let completion = |sample: u32| Completion {
            episode: testing::episode(vec![1; 5], &[(0, version)], FinishReason::Stop),
            text: version.to_string(),
            rewards: vec![RewardOutcome::Score(if usable { f64::from(sample) } else { 0.5 })],
            ..testing::completion(sample, Vec::new())
        };
        let group = Group {
            prompt_id: PromptId(position),
            prompt_ids: vec![1; 20],
            reward_names: vec![("a".into(), 1.0)],
            ..testing::group(position, (0..GENERATIONS).map(completion).collect())
        };
        group.into()
    }

    /// The batch of a step as it is defined: prompt after prompt, each with the version of the step.
    pub(super) fn batch(self, options: PlanOptions, step: u64, cursor: u64) -> Vec<Taken> {
        let size = u64::from(options.groups_per_step);
        let end = cursor + size * attempts(options);
        let (mut batch, mut dropped) = (Vec::new(), Vec::new());
        for position in cursor..end {
            let open = size - batch.len() as u64;
            let usable = self.usable(position, step);
            if open == 0 {
                break;
            } else if usable || end - position == open {
                batch.push(Taken { position, filler: !usable, dropped: std::mem::take(&mut dropped) });
            } else {
                dropped.push(position);
            }
        }
        batch
    }
}

/// How many times its groups a step may use up in positions.
fn attempts(options: PlanOptions) -> u64 {
    options.dynamic_sampling.map_or(1, |sampling| sampling.max_attempts.into())
}

/// A batch's record of one of its groups.
#[derive(Debug, PartialEq)]
pub(super) struct Taken {
    pub position: u64,
    pub filler: bool,
    pub dropped: Vec<u64>,
}

impl From<&Placed> for Taken {
    fn from(group: &Placed) -> Self {
        Self {
            position: group.prompt_id.0,
            filler: group.filler,
            dropped: group.dropped.iter().map(|dropped| dropped.prompt_id.0).collect(),
        }
    }
}

/// A group that is being sampled.
pub(super) struct Making {
    pub position: u64,
    pub version: u64,
    /// The number of these very weights; see `World::tags`.
    tag: u64,
    /// Completions that were kept.
    kept: Vec<Completion>,
}

impl Making {
    /// The group, with the completions that were kept and `others` further ones.
    fn group(&self, prompts: Prompts, others: usize) -> Group {
        let mut group = prompts.group(self.position, self.version).group;
        group.completions.iter_mut().for_each(|completion| completion.text = self.tag.to_string());
        group.completions.retain(|completion| self.kept.iter().all(|kept| kept.sample != completion.sample));
        group.completions.truncate(others);
        group.completions.extend(self.kept.iter().cloned());
        group.completions.sort_by_key(|completion| completion.sample);
        group
    }
}

/// A learner and a sampler around a plan, which may both die.
pub(super) struct World {
    options: PlanOptions,
    prompts: Prompts,
    pub plan: Plan,
    pub loaded: u64,
    /// The number of the loaded weights; see `tags`.
    loaded_tag: u64,
    pub in_work: Vec<Making>,
    pub begun: u64,
    /// Completions that were carried over and trained on.
    carried_over: u64,
    /// The groups that were in flight and have not been taken up.
    kept: Kept,
    /// The groups in flight of the newest checkpoint.
    saved: Option<Vec<Group>>,
    sending: Option<Arc<Placed>>,
    queue: Vec<Placed>,
    pub arrived: BTreeMap<GroupId, Placed>,
    pub learner: LearnerStatus,
    /// The loaded weights are to be replaced before anything is begun.
    outdated: bool,
    /// Versions made, lost ones included.
    made: u64,
    /// A number for the weights of each version that the learner has: a version that is made again gets another one.
    tags: Vec<u64>,
    /// Cursor at which each step began.
    cursors: Vec<u64>,
    pub fillers: usize,
    pub stale: usize,
    deaths: usize,
    /// Steps between two versions.
    pub publish_every: u64,
}

impl World {
    pub(super) fn new(options: PlanOptions, prompts: Prompts) -> Self {
        Self {
            options,
            prompts,
            plan: Plan::new(options),
            loaded: 0,
            loaded_tag: 0,
            in_work: Vec::new(),
            begun: 0,
            carried_over: 0,
            kept: Kept::default(),
            saved: None,
            sending: None,
            queue: Vec::new(),
            arrived: BTreeMap::new(),
            learner: LearnerStatus { incarnation: 1, total_steps: TOTAL, ..LearnerStatus::default() },
            outdated: false,
            made: 0,
            tags: vec![0],
            cursors: vec![0],
            fillers: 0,
            stale: 0,
            deaths: 0,
            publish_every: 1,
        }
    }

    fn chain(&self) -> Vec<&Placed> {
        let mut cursor = self.learner.cursor;
        let mut chain = Vec::new();
        for (index, (_, group)) in (0..).zip(self.arrived.range(GroupId { step: self.learner.step, index: 0 }..)) {
            if group.id != (GroupId { step: self.learner.step, index }) || group.begin() != cursor {
                break;
            }
            cursor = group.cursor();
            chain.push(group);
        }
        chain
    }

    pub(super) fn status(&self) -> LearnerStatus {
        let chain = self.chain();
        LearnerStatus {
            received: chain.iter().map(|group| group.id.index).collect(),
            next_cursor: chain.last().map_or(self.learner.cursor, |group| group.cursor()),
            ..self.learner.clone()
        }
    }

    pub(super) fn happen(&mut self, event: u8) {
        match event % 16 {
            0..=3 => self.admit(),
            4..=6 => self.complete(event as usize / 16),
            7 | 8 => self.send(),
            9 | 10 => self.receive(),
            11 => self.train(),
            12 => self.observe(),
            13 => self.follow(),
            14 if event < 64 => self.kill_sampler(),
            14 if event < 128 => self.kill_both(),
            15 if event < 64 => self.kill_learner(),
            _ => self.observe(),
        }
    }

    fn observe(&mut self) {
        let newest = self.plan.observe(self.status());
        if let Some(newest) = newest {
            self.outdated |= self.loaded > newest.0;
            self.kept.forget(newest);
        }
    }

    pub(super) fn admit(&mut self) {
        if self.outdated {
            return;
        }
        let Some(position) = self.plan.admit(PolicyVersion(self.loaded)) else {
            return;
        };
        assert!(self.in_work.iter().all(|other| other.position != position), "made twice at once");
        self.begun += 1;
        match self.kept.take(position, self.plan.oldest()) {
            Some(kept) if is_whole(&kept, GENERATIONS) => self.plan.finish(kept.into()),
            kept => {
                let kept = kept.map(|kept| kept.completions).unwrap_or_default();
                self.in_work.push(Making { position, version: self.loaded, tag: self.loaded_tag, kept });
            }
        }
    }

    fn complete(&mut self, which: usize) {
        if !self.in_work.is_empty() {
            let making = self.in_work.remove(which % self.in_work.len());
            self.plan.finish(making.group(self.prompts, GENERATIONS as usize).into());
        }
    }

    /// The groups that the step loop writes for a checkpoint. Of groups in the making, one completion is finished.
    fn in_flight(&mut self) -> Vec<Group> {
        self.kept.release(self.learner.cursor);
        let in_the_making = self.in_work.iter().filter_map(|making| {
            let newest = self.plan.counts(making.position)?;
            let mut group = making.group(self.prompts, 1);
            group.completions.retain(|completion| completion.episode.newest() <= Some(newest));
            Some(group)
        });
        let kept = self.kept.groups().cloned();
        let all: Vec<Group> = self.plan.untrained().cloned().chain(in_the_making).chain(kept).collect();
        let mut positions: Vec<u64> = all.iter().map(|group| group.position).collect();
        positions.sort_unstable();
        assert!(positions.windows(2).all(|pair| pair[0] < pair[1]), "a position is there twice");
        all
    }

    fn send(&mut self) {
        match self.sending.take() {
            None => self.sending = self.plan.send(),
            Some(group) if self.queue.len() < 3 => {
                self.plan.sent(group.id);
                self.queue.push((*group).clone());
            }
            waiting => self.sending = waiting,
        }
    }

    fn receive(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        let group = self.queue.remove(0);
        // As the learner's collector: completions that were carried over are older than the others of their group.
        if self.options.max_staleness > 0 && newer_than(&group, PolicyVersion(self.learner.step.0)) {
            return;
        }
        let counted = self.chain().iter().any(|known| known.id == group.id);
        if group.id.step >= self.learner.step && !counted {
            self.arrived.insert(group.id, group);
        }
    }

    pub(super) fn train(&mut self) {
        if self.plan.learner().is_none_or(|known| known.incarnation != self.learner.incarnation) {
            // The status comes many times while a step is trained.
            self.observe();
        }
        let step = self.learner.step;
        let chain: Vec<Placed> = self.chain().into_iter().cloned().collect();
        if self.learner.finished || chain.len() < self.options.groups_per_step as usize {
            return;
        }
        for group in &chain {
            let age = step.0.checked_sub(group.policy_version.0).expect("no version is newer than its step");
            assert!(age <= self.options.max_staleness, "stale group trained on");
            for completion in group.completions.iter().filter(|_| self.options.max_staleness > 0) {
                let tag = self.tags[completion.episode.newest().unwrap().0 as usize];
                assert_eq!(completion.text, tag.to_string(), "made with lost weights");
                self.carried_over += u64::from(completion.provenance == Provenance::CarriedOver);
            }
            assert_eq!(group.completions.len(), GENERATIONS as usize);
            assert_eq!(group.filler, !group.has_contrast(Contrast::Total, RewardFailure::Exclude));
        }
        let cursor = chain.last().unwrap().cursor();
        if self.deaths == 0 {
            let budget = u64::from(self.options.groups_per_step) * attempts(self.options);
            assert!(cursor - self.learner.cursor <= budget, "budget");
        }
        if self.options.max_staleness == 0 {
            let found: Vec<Taken> = chain.iter().map(Taken::from).collect();
            assert_eq!(found, self.prompts.batch(self.options, step.0, self.learner.cursor));
        }
        self.fillers += chain.iter().filter(|group| group.filler).count();
        self.stale += chain.iter().flat_map(|group| &group.dropped).filter(|dropped| dropped.stale).count();
        self.arrived = self.arrived.split_off(&GroupId { step: step.next(), index: 0 });
        self.learner.step = step.next();
        if step.next().0.is_multiple_of(self.publish_every) || step.next().0 == TOTAL {
            self.learner.version = PolicyVersion(step.0 + 1);
        }
        self.made += 1;
        self.tags.push(self.made);
        self.learner.cursor = cursor;
        self.cursors.truncate(step.0 as usize + 1);
        self.cursors.push(cursor);
        if step.0 % 3 == 1 {
            if self.options.max_staleness > 0 {
                self.observe();
                self.saved = Some(self.in_flight());
            }
            self.learner.durable_step = step.next();
        }
        self.learner.finished = self.learner.step.0 == TOTAL;
    }

    fn follow(&mut self) {
        let target = self.plan.learner().map_or(self.loaded, |s| s.version.0);
        let Some(tag) = self.tags.get(target as usize).filter(|_| self.in_work.is_empty()) else {
            return;
        };
        (self.loaded, self.loaded_tag, self.outdated) = (target, *tag, false);
    }

    pub(super) fn kill_sampler(&mut self) {
        self.deaths += 1;
        self.plan = Plan::new(self.options);
        self.in_work.clear();
        self.sending = None;
        self.kept = Kept::new(self.saved.clone().unwrap_or_default(), &self.learner, GENERATIONS);
        self.observe();
        self.loaded = self.learner.version.0;
        self.loaded_tag = self.tags[self.loaded as usize];
        self.outdated = false;
    }

    fn kill_learner(&mut self) {
        if self.learner.finished {
            return;
        }
        self.deaths += 1;
        let step = self.learner.durable_step;
        self.queue.clear();
        self.arrived.clear();
        self.learner.incarnation += 1;
        self.learner.step = step;
        self.learner.version = PolicyVersion(step.0);
        self.tags.truncate(step.0 as usize + 1);
        self.learner.cursor = self.cursors[step.0 as usize];
    }

    fn kill_both(&mut self) {
        self.kill_learner();
        self.kill_sampler();
    }

    /// Without further deaths, the pair comes to its end.
    pub(super) fn end(&mut self) -> bool {
        for _ in 0..4000 {
            if self.learner.finished {
                break;
            }
            for event in [12, 13, 0, 4, 7, 9, 7, 9, 11] {
                self.happen(event);
            }
        }
        self.learner.finished
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_batch_is_full_whoever_dies(
        max_staleness in 0..4u64,
        groups_per_step in 1..5u32,
        max_unsent in 1..6usize,
        flat in 0..=100u64,
        dynamic in any::<bool>(),
        seed in any::<u64>(),
        kept in 0..6usize,
        between in 0..4u64,
        events in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let sizes = if dynamic { options } else { plain };
        let options = PlanOptions { kept_bytes: kept * 600, max_unsent, ..sizes(groups_per_step, max_staleness) };
        let mut world = World::new(options, Prompts { seed, flat: if dynamic { flat } else { 0 } });
        world.publish_every = 1 + between.min(max_staleness);
        for event in events {
            world.happen(event);
        }
        prop_assert!(world.end(), "stuck at {:?} with {:?}", world.status(), world.plan);
    }

    #[test]
    fn what_was_in_flight_is_not_made_again(
        max_staleness in 1..4u64,
        groups_per_step in 1..5u32,
        flat in 0..60u64,
        dynamic in any::<bool>(),
        seed in any::<u64>(),
        events in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let sizes = if dynamic { options } else { plain };
        let mut world =
            World::new(sizes(groups_per_step, max_staleness), Prompts { seed, flat: if dynamic { flat } else { 0 } });
        while world.learner.durable_step.0 == 0 {
            for event in events.iter().chain(&[12, 13, 0, 4, 7, 9, 11]) {
                // Nobody dies.
                if world.learner.durable_step.0 == 0 && event % 16 < 14 {
                    world.happen(*event);
                }
            }
        }
        let saved: Vec<Group> = world.saved.clone().unwrap();
        world.kill_both();
        while world.learner.step.0 < 4 {
            for event in [12, 13, 0, 4, 7, 9, 7, 9, 11] {
                world.happen(event);
            }
        }
        let is_useful =
            |group: &&Group| {
            let oldest = group.completions.iter().filter_map(|completion| completion.episode.oldest()).min();
            group.position < world.cursors[4] && oldest.unwrap_or_default().0 + max_staleness >= 4
        };
        let useful: u64 = saved.iter().filter(is_useful).map(|group| group.completions.len() as u64).sum();
        prop_assert!(dynamic || world.carried_over >= useful, "{} of {useful}", world.carried_over);
        let all = (world.cursors[4] - world.cursors[2]) * u64::from(GENERATIONS);
        prop_assert!(dynamic || world.carried_over <= all);
    }

    #[test]
    fn nothing_is_begun_in_vain_and_every_failure_is_replaced(
        groups_per_step in 1..6u32,
        max_staleness in 0..3u64,
        flat in 0..=100u64,
        seed in any::<u64>(),
        order in prop::collection::vec(any::<u8>(), 300),
    ) {
        let mut world = World::new(options(groups_per_step, max_staleness), Prompts { seed, flat });
        for event in order {
            // Everything happens that can, but nobody dies.
            world.happen(event - event % 16 + [0, 4, 7, 9, 11, 12, 13, 0][usize::from(event % 8)]);
        }
        prop_assert!(world.end());
        if world.fillers == 0 {
            prop_assert_eq!(world.stale, 0, "work ahead is not too old when its step comes");
        }
        if max_staleness == 0 {
            prop_assert_eq!(world.begun, world.learner.cursor, "every prompt begun is used or dropped");
        }
    }
}
