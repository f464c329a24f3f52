//! Dynamic sampling under every order of events: batches are full, nothing usable is lost, and whoever dies, a
//! synchronous run goes on with the same groups.

use proptest::prelude::*;
use shared::{Completion, Contrast, PromptId, RewardOutcome, config::RewardFailure, rng, testing};

use super::*;

const ATTEMPTS: u32 = 3;
const TOTAL: u64 = 6;

fn options(groups_per_step: u32, max_staleness: u64) -> PlanOptions {
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

/// Which (position, version) are usable.
#[derive(Debug, Clone, Copy)]
struct Prompts {
    seed: u64,
    /// Of 100.
    flat: u64,
}

impl Prompts {
    fn usable(self, position: u64, version: u64) -> bool {
        rng::hash(&[self.seed, position, version]) % 100 >= self.flat
    }

    fn group(self, admission: Admission, version: u64) -> RolloutGroup {
        let usable = self.usable(admission.position, version);
        let completion = |sample: u32| Completion {
            versions: vec![(0, PolicyVersion(version))],
            rewards: vec![RewardOutcome::Score(if usable { f64::from(sample) } else { 0.5 })],
            ..testing::completion(sample, vec![1; 5])
        };
        RolloutGroup {
            prompt_id: PromptId(admission.position),
            prompt_ids: vec![1; 20],
            reward_names: vec![("a".into(), 1.0)],
            policy_version: PolicyVersion(version),
            cursor: admission.position + 1,
            ..testing::group(admission.id, (0..2).map(completion).collect())
        }
    }

    /// The batch of a step as it is defined: prompt after prompt, each with the version of the step.
    fn batch(self, options: PlanOptions, step: u64, cursor: u64) -> Vec<Taken> {
        let size = u64::from(options.groups_per_step);
        let end = cursor + size * u64::from(ATTEMPTS);
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

/// What a batch says about one of its groups.
#[derive(Debug, PartialEq)]
struct Taken {
    position: u64,
    filler: bool,
    dropped: Vec<u64>,
}

impl From<&RolloutGroup> for Taken {
    fn from(group: &RolloutGroup) -> Self {
        Self {
            position: group.prompt_id.0,
            filler: group.filler,
            dropped: group.dropped.iter().map(|dropped| dropped.prompt_id.0).collect(),
        }
    }
}

/// A learner and a sampler around a plan, which may both die.
struct World {
    options: PlanOptions,
    prompts: Prompts,
    plan: Plan,
    loaded: u64,
    /// What the loaded weights really are; see `tags`.
    loaded_tag: u64,
    in_work: Vec<(Admission, u64, u64)>,
    begun: u64,
    sending: Option<Arc<RolloutGroup>>,
    queue: Vec<RolloutGroup>,
    arrived: BTreeMap<GroupId, RolloutGroup>,
    learner: LearnerStatus,
    /// The loaded weights are to be replaced before anything is begun.
    outdated: bool,
    /// Versions made, lost ones included.
    made: u64,
    /// A number for each version that the learner has: one that is made again is not what it was.
    tags: Vec<u64>,
    /// Cursor at which each step began.
    cursors: Vec<u64>,
    fillers: usize,
    stale: usize,
    deaths: usize,
}

impl World {
    fn new(options: PlanOptions, prompts: Prompts) -> Self {
        Self {
            options,
            prompts,
            plan: Plan::new(options),
            loaded: 0,
            loaded_tag: 0,
            in_work: Vec::new(),
            begun: 0,
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
        }
    }

    fn chain(&self) -> Vec<&RolloutGroup> {
        let mut cursor = self.learner.cursor;
        let mut chain = Vec::new();
        for (index, (_, group)) in (0..).zip(self.arrived.range(GroupId { step: self.learner.step, index: 0 }..)) {
            if group.id != (GroupId { step: self.learner.step, index }) || group.begin() != cursor {
                break;
            }
            cursor = group.cursor;
            chain.push(group);
        }
        chain
    }

    fn status(&self) -> LearnerStatus {
        let chain = self.chain();
        LearnerStatus {
            received: chain.iter().map(|group| group.id.index).collect(),
            next_cursor: chain.last().map_or(self.learner.cursor, |group| group.cursor),
            ..self.learner.clone()
        }
    }

    fn happen(&mut self, event: u8) {
        match event % 16 {
            0..=3 => self.admit(),
            4..=6 => self.complete(event as usize / 16),
            7 | 8 => self.send(),
            9 | 10 => self.receive(),
            11 => self.train(),
            12 => self.observe(),
            13 => self.follow(),
            14 if event < 64 => self.kill_sampler(),
            15 if event < 64 => self.kill_learner(),
            _ => self.observe(),
        }
    }

    fn observe(&mut self) {
        let newest = self.plan.observe(self.status());
        self.outdated |= newest.is_some_and(|newest| self.loaded > newest.0);
    }

    fn admit(&mut self) {
        if self.outdated {
            return;
        }
        if let Some(admission) = self.plan.admit(PolicyVersion(self.loaded)) {
            assert!(self.in_work.iter().all(|(other, ..)| other.position != admission.position), "made twice at once");
            self.in_work.push((admission, self.loaded, self.loaded_tag));
            self.begun += 1;
        }
    }

    fn complete(&mut self, which: usize) {
        if !self.in_work.is_empty() {
            let (admission, version, tag) = self.in_work.remove(which % self.in_work.len());
            let group = self.prompts.group(admission, version);
            self.plan.finish(RolloutGroup { generation_seconds: tag as f64, ..group });
        }
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
        if self.options.max_staleness > 0 && group.policy_version > self.learner.version {
            return;
        }
        let counted = self.chain().iter().any(|known| known.id == group.id);
        if group.id.step >= self.learner.step && !counted {
            self.arrived.insert(group.id, group);
        }
    }

    fn train(&mut self) {
        if self.plan.learner().is_none_or(|known| known.incarnation != self.learner.incarnation) {
            // The status comes many times while a step is trained.
            self.observe();
        }
        let step = self.learner.step;
        let chain: Vec<RolloutGroup> = self.chain().into_iter().cloned().collect();
        if self.learner.finished || chain.len() < self.options.groups_per_step as usize {
            return;
        }
        for group in &chain {
            let age = step.0.checked_sub(group.policy_version.0).expect("no version is newer than its step");
            assert!(age <= self.options.max_staleness, "stale group trained on");
            if self.options.max_staleness > 0 {
                let tag = self.tags[group.policy_version.0 as usize];
                assert_eq!(group.generation_seconds, tag as f64, "made with lost weights");
            }
            let usable = self.prompts.usable(group.prompt_id.0, group.policy_version.0);
            assert_eq!(group.filler, !usable);
        }
        let cursor = chain.last().unwrap().cursor;
        if self.deaths == 0 {
            assert!(cursor - self.learner.cursor <= u64::from(self.options.groups_per_step * ATTEMPTS), "budget");
        }
        if self.options.max_staleness == 0 {
            let found: Vec<Taken> = chain.iter().map(Taken::from).collect();
            assert_eq!(found, self.prompts.batch(self.options, step.0, self.learner.cursor));
        }
        self.fillers += chain.iter().filter(|group| group.filler).count();
        self.stale += chain.iter().flat_map(|group| &group.dropped).filter(|dropped| dropped.stale).count();
        self.arrived = self.arrived.split_off(&GroupId { step: step.next(), index: 0 });
        self.learner.step = step.next();
        self.learner.version = PolicyVersion(step.0 + 1);
        self.made += 1;
        self.tags.push(self.made);
        self.learner.cursor = cursor;
        self.cursors.truncate(step.0 as usize + 1);
        self.cursors.push(cursor);
        if step.0 % 3 == 1 {
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

    fn kill_sampler(&mut self) {
        self.deaths += 1;
        self.plan = Plan::new(self.options);
        self.in_work.clear();
        self.sending = None;
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

    /// Left in peace, the pair comes to its end.
    fn end(&mut self) -> bool {
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
        flat in 0..=100u64,
        seed in any::<u64>(),
        kept in 0..6usize,
        events in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let kept_bytes = kept * 600;
        let mut world =
            World::new(PlanOptions { kept_bytes, ..options(groups_per_step, max_staleness) }, Prompts { seed, flat });
        for event in events {
            world.happen(event);
        }
        prop_assert!(world.end(), "stuck at {:?} with {:?}", world.status(), world.plan);
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

#[test]
fn the_engine_stays_busy_while_failures_are_replaced() {
    let prompts = Prompts { seed: 1, flat: 60 };
    let generous = DynamicSampling { max_attempts: 20, contrast: Contrast::Total, failure: RewardFailure::Exclude };
    let mut world = World::new(PlanOptions { dynamic_sampling: Some(generous), ..options(4, 0) }, prompts);
    world.happen(12);
    for _ in 0..4 {
        world.admit();
    }
    assert_eq!(world.plan.admit(PolicyVersion(0)), None, "as many as the step needs");
    // Every failure leads to one replacement, a usable group to none, whatever is still in work.
    while let Some((admission, version, _)) = world.in_work.pop() {
        world.plan.finish(prompts.group(admission, version));
        let before = world.in_work.len();
        world.admit();
        let replaced = world.in_work.len() - before;
        assert_eq!(replaced, usize::from(!prompts.usable(admission.position, 0)), "{admission:?}");
    }
    assert_eq!(world.plan.unsent(), 4);
}

#[test]
fn hopeless_prompts_fill_the_batch_when_the_budget_is_spent() {
    let prompts = Prompts { seed: 1, flat: 100 };
    let mut world = World::new(options(2, 0), prompts);
    assert!(world.end());
    assert_eq!(world.fillers, 2 * TOTAL as usize);
    assert_eq!(world.learner.cursor, TOTAL * 2 * u64::from(ATTEMPTS));
    let batch = prompts.batch(options(2, 0), 0, 0);
    assert_eq!(batch[0], Taken { position: 4, filler: true, dropped: vec![0, 1, 2, 3] });
    assert_eq!(batch[1], Taken { position: 5, filler: true, dropped: Vec::new() });
}

#[test]
fn usable_groups_made_ahead_are_carried_to_the_next_step() {
    let mut world = World::new(options(2, 1), Prompts { seed: 3, flat: 0 });
    world.happen(12);
    while let Some(admission) = world.plan.admit(PolicyVersion(0)) {
        world.plan.finish(world.prompts.group(admission, 0));
        while let Some(group) = world.plan.send() {
            world.plan.sent(group.id);
            world.arrived.insert(group.id, (*group).clone());
        }
    }
    assert_eq!(world.arrived.len(), 4, "two steps' worth, of version 0");
    world.train();
    world.plan.observe(world.status());
    assert_eq!(world.status().received, [0, 1], "the second step is there already");
    world.loaded = 1;
    world.admit();
    assert_eq!(world.in_work[0].0, Admission { id: GroupId { step: Step(2), index: 0 }, position: 4 });
}

#[test]
fn a_new_sampler_goes_on_behind_what_has_arrived_in_a_row() {
    let prompts = Prompts { seed: 5, flat: 50 };
    let batch = prompts.batch(options(4, 0), 0, 0);
    let mut world = World::new(options(4, 0), prompts);
    world.happen(12);
    while world.arrived.len() < 2 {
        for event in [0, 4, 7, 7, 9] {
            world.happen(event);
        }
    }
    world.kill_sampler();
    let admission = world.plan.admit(PolicyVersion(0)).unwrap();
    assert_eq!(admission.position, batch[1].position + 1);
    assert_eq!(admission.id, GroupId { step: Step(0), index: 2 });
}
