//! The plan under every order of events, deaths of either process included.

use proptest::prelude::*;
use shared::{PromptId, testing};

use super::*;

const OPTIONS: PlanOptions =
    PlanOptions { groups_per_step: 2, max_staleness: 0, max_unsent: 4, kept_bytes: 1 << 20, dynamic_sampling: None };

fn status(incarnation: u64, step: u64, durable: u64) -> LearnerStatus {
    LearnerStatus {
        incarnation,
        version: PolicyVersion(step),
        step: Step(step),
        cursor: step * 2,
        durable_step: Step(durable),
        total_steps: 10,
        ..LearnerStatus::default()
    }
}

fn id(step: u64, index: u32) -> GroupId {
    GroupId { step: Step(step), index }
}

fn group(admission: Admission, version: u64) -> RolloutGroup {
    RolloutGroup {
        prompt_id: PromptId(admission.position),
        prompt_ids: vec![1; 100],
        policy_version: PolicyVersion(version),
        cursor: admission.position + 1,
        ..testing::group(admission.id, Vec::new())
    }
}

/// Without staleness, remade versions are the old ones to the last bit; with it they are not, and what was made with the
/// lost ones is thrown away, wherever it is.
#[test]
fn groups_of_versions_that_the_learner_has_lost_are_made_again() {
    let mut plan = Plan::new(PlanOptions { max_staleness: 1, max_unsent: 9, ..OPTIONS });
    plan.observe(status(1, 4, 4));
    let make = |plan: &mut Plan, version| {
        let admission = plan.admit(PolicyVersion(version)).unwrap();
        plan.finish(group(admission, version));
        admission.id
    };
    assert_eq!([make(&mut plan, 4), make(&mut plan, 4), make(&mut plan, 4)], [id(4, 0), id(4, 1), id(5, 0)]);
    assert_eq!(send_all(&mut plan).len(), 3);
    assert_eq!(plan.observe(status(1, 5, 4)), None);
    assert_eq!(make(&mut plan, 5), id(5, 1));
    let sending = plan.send().unwrap();
    let (partly, whole) = (plan.admit(PolicyVersion(5)).unwrap(), plan.admit(PolicyVersion(5)).unwrap());
    assert_eq!((partly.id, whole.id), (id(6, 0), id(6, 1)));

    assert_eq!(plan.observe(status(2, 4, 4)), Some(PolicyVersion(4)));
    assert_eq!(send_all(&mut plan), [id(4, 0), id(4, 1), id(5, 0)], "those of version 4 are good");
    plan.sent(sending.id);
    // What is in work turns out to be of the lost version when it is finished, in part or altogether.
    let mut mixed = group(partly, 4);
    mixed.completions = vec![shared::Completion {
        sample: 0,
        token_ids: vec![1; 2],
        logprobs: Vec::new(),
        versions: vec![(0, PolicyVersion(4)), (1, PolicyVersion(5))],
        text: String::new(),
        finish_reason: shared::FinishReason::Stop,
        rewards: Vec::new(),
    }];
    plan.finish(mixed);
    plan.finish(group(whole, 5));
    assert_eq!(make_all(&mut plan, 4), [id(5, 1)]);
    plan.observe(status(2, 5, 4));
    assert_eq!(make_all(&mut plan, 5), [id(6, 0), id(6, 1)], "made again with the new version 5");
}

/// Makes and hands over every group that may be made.
fn make_all(plan: &mut Plan, version: u64) -> Vec<GroupId> {
    while let Some(admission) = plan.admit(PolicyVersion(version)) {
        plan.finish(group(admission, version));
    }
    send_all(plan)
}

fn send_all(plan: &mut Plan) -> Vec<GroupId> {
    let mut sent = Vec::new();
    while let Some(group) = plan.send() {
        plan.sent(group.id);
        sent.push(group.id);
    }
    sent
}

#[test]
fn synchronous_steps_are_made_with_their_own_version_only() {
    let mut plan = Plan::new(OPTIONS);
    assert_eq!(plan.admit(PolicyVersion(0)), None, "no status, no group");
    plan.observe(status(1, 3, 0));
    assert_eq!(plan.admit(PolicyVersion(2)), None);
    assert_eq!(plan.admit(PolicyVersion(4)), None);
    assert_eq!(plan.admit(PolicyVersion(3)), Some(Admission { id: id(3, 0), position: 6 }));
    assert_eq!(plan.admit(PolicyVersion(3)), Some(Admission { id: id(3, 1), position: 7 }));
    assert_eq!(plan.admit(PolicyVersion(3)), None, "the next step waits for the next version");
}

#[test]
fn a_new_sampler_leaves_out_what_has_arrived_and_ends_with_the_run() {
    let mut plan = Plan::new(OPTIONS);
    plan.observe(LearnerStatus { received: vec![0], ..status(1, 9, 9) });
    assert_eq!(make_all(&mut plan, 9), [id(9, 1)]);
    plan.observe(status(1, 10, 10));
    assert_eq!(plan.admit(PolicyVersion(10)), None, "there is no step 10");
}

#[test]
fn a_restarted_learner_gets_kept_groups_again_as_their_versions_come() {
    let mut plan = Plan::new(OPTIONS);
    plan.observe(status(1, 0, 0));
    assert_eq!(make_all(&mut plan, 0), [id(0, 0), id(0, 1)]);
    plan.observe(status(1, 1, 0));
    assert_eq!(make_all(&mut plan, 1), [id(1, 0), id(1, 1)]);
    plan.observe(status(2, 0, 0));
    assert_eq!(make_all(&mut plan, 1), [id(0, 0), id(0, 1)], "the learner has no version 1 yet");
    plan.observe(status(2, 1, 0));
    assert_eq!(make_all(&mut plan, 1), [id(1, 0), id(1, 1)]);
    plan.observe(status(2, 2, 2));
    assert_eq!(plan.held_bytes(), 0, "durable steps are not kept");
}

#[test]
fn a_group_given_up_is_made_again() {
    let mut plan = Plan::new(OPTIONS);
    plan.observe(status(1, 0, 0));
    let first = plan.admit(PolicyVersion(0)).unwrap();
    assert_ne!(plan.admit(PolicyVersion(0)).unwrap(), first);
    plan.give_up(first);
    assert_eq!(plan.admit(PolicyVersion(0)), Some(first));
}

#[test]
fn groups_ahead_of_the_step_wait_for_a_slow_learner() {
    let mut plan = Plan::new(PlanOptions { max_staleness: 9, max_unsent: 3, ..OPTIONS });
    plan.observe(status(1, 0, 0));
    let mut made = 0;
    while let Some(admission) = plan.admit(PolicyVersion(0)) {
        plan.finish(group(admission, 0));
        made += 1;
    }
    assert_eq!(made, 3);
    let first = plan.send().unwrap();
    assert_eq!(plan.admit(PolicyVersion(0)), None, "being sent is not sent");
    plan.sent(first.id);
    assert!(plan.admit(PolicyVersion(0)).is_some());
}

#[test]
fn what_was_trained_on_is_dropped_when_memory_runs_out_and_nothing_else() {
    let one = size(&group(Admission { id: id(0, 0), position: 0 }, 0));
    let mut plan = Plan::new(PlanOptions { kept_bytes: one * 3, ..OPTIONS });
    for step in 0..4 {
        plan.observe(status(1, step, 0));
        make_all(&mut plan, step);
        assert!(plan.held_bytes() <= one * 3);
    }
    plan.observe(status(2, 0, 0));
    assert_eq!(make_all(&mut plan, 0), [id(0, 0), id(0, 1)], "made again");
    let mut tight = Plan::new(PlanOptions { kept_bytes: 0, ..OPTIONS });
    tight.observe(status(1, 0, 0));
    assert_eq!(make_all(&mut tight, 0).len(), 2, "what the learner still needs is held at any rate");
    assert_eq!(tight.held_bytes(), one * 2);
}

/// A learner that trains when a step is complete, saves now and then, and may die at any time; a sampler around a
/// plan that may die as well.
struct World {
    options: PlanOptions,
    plan: Plan,
    loaded: u64,
    /// What the loaded weights really are; see `tags`.
    loaded_tag: u64,
    in_work: Vec<(Admission, u64, u64)>,
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
}

const TOTAL: u64 = 6;

impl World {
    fn new(options: PlanOptions) -> Self {
        let learner = LearnerStatus { incarnation: 1, total_steps: TOTAL, ..LearnerStatus::default() };
        Self {
            options,
            plan: Plan::new(options),
            loaded: 0,
            loaded_tag: 0,
            in_work: Vec::new(),
            sending: None,
            queue: Vec::new(),
            arrived: BTreeMap::new(),
            learner,
            outdated: false,
            made: 0,
            tags: vec![0],
        }
    }

    fn status(&self) -> LearnerStatus {
        let of_step = self.arrived.keys().filter(|id| id.step == self.learner.step);
        LearnerStatus { received: of_step.map(|id| id.index).collect(), ..self.learner.clone() }
    }

    /// One event, chosen by a random number.
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
        let Some(admission) = self.plan.admit(PolicyVersion(self.loaded)) else {
            return;
        };
        let step = admission.id.step.0;
        assert!(self.loaded <= step && step - self.loaded <= self.options.max_staleness, "staleness bound");
        assert!(step < TOTAL);
        let per_step = u64::from(self.options.groups_per_step);
        assert_eq!(admission.position, step * per_step + u64::from(admission.id.index));
        assert!(self.in_work.iter().all(|(other, ..)| other.id != admission.id), "made twice at once");
        self.in_work.push((admission, self.loaded, self.loaded_tag));
    }

    fn complete(&mut self, which: usize) {
        if !self.in_work.is_empty() {
            let (admission, version, tag) = self.in_work.remove(which % self.in_work.len());
            self.plan.finish(RolloutGroup { generation_seconds: tag as f64, ..group(admission, version) });
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
        if !self.queue.is_empty() {
            let group = self.queue.remove(0);
            if self.options.max_staleness > 0 && group.policy_version > self.learner.version {
                return;
            }
            assert_eq!(group.cursor - 1, group.prompt_id.0);
            if group.id.step >= self.learner.step {
                self.arrived.entry(group.id).or_insert(group);
            }
        }
    }

    fn train(&mut self) {
        if self.plan.learner().is_none_or(|known| known.incarnation != self.learner.incarnation) {
            // The status comes many times while a step is trained.
            self.observe();
        }
        let step = self.learner.step;
        let complete = self.arrived.keys().filter(|id| id.step == step).count() as u32;
        if self.learner.finished || complete < self.options.groups_per_step {
            return;
        }
        for (_, group) in self.arrived.iter().filter(|(id, _)| id.step == step) {
            assert!(step.0 - group.policy_version.0 <= self.options.max_staleness, "stale group trained on");
            if self.options.max_staleness > 0 {
                let tag = self.tags[group.policy_version.0 as usize];
                assert_eq!(group.generation_seconds, tag as f64, "made with lost weights");
            }
        }
        self.arrived = self.arrived.split_off(&GroupId { step: step.next(), index: 0 });
        self.learner.step = step.next();
        self.learner.version = PolicyVersion(step.0 + 1);
        self.made += 1;
        self.tags.push(self.made);
        self.learner.cursor += u64::from(self.options.groups_per_step);
        if step.0 % 3 == 1 {
            self.learner.durable_step = step.next();
        }
        self.learner.finished = self.learner.step.0 == TOTAL;
    }

    /// The sampler takes over the version that the learner has, once nothing is in work.
    fn follow(&mut self) {
        let target = self.plan.learner().map_or(self.loaded, |s| s.version.0);
        let Some(tag) = self.tags.get(target as usize).filter(|_| self.in_work.is_empty()) else {
            return;
        };
        (self.loaded, self.loaded_tag, self.outdated) = (target, *tag, false);
    }

    fn kill_sampler(&mut self) {
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
        let step = self.learner.durable_step;
        self.queue.clear();
        self.arrived.clear();
        self.learner.incarnation += 1;
        self.learner.step = step;
        self.learner.version = PolicyVersion(step.0);
        self.tags.truncate(step.0 as usize + 1);
        self.learner.cursor = step.0 * u64::from(self.options.groups_per_step);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_step_completes_within_the_staleness_bound_whoever_dies(
        max_staleness in 0..4u64,
        groups_per_step in 1..5u32,
        max_unsent in 1..6usize,
        kept in 0..6usize,
        events in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let kept_bytes = kept * size(&group(Admission { id: id(0, 0), position: 0 }, 0));
        let mut world = World::new(PlanOptions { groups_per_step, max_staleness, max_unsent, kept_bytes, ..OPTIONS });
        for event in events {
            world.happen(event);
        }
        // Left in peace, the pair comes to its end.
        for _ in 0..2000 {
            if world.learner.finished {
                break;
            }
            for event in [12, 13, 0, 4, 7, 9, 7, 9, 11] {
                world.happen(event);
            }
        }
        prop_assert!(world.learner.finished, "stuck at {:?} with {:?}", world.status(), world.plan);
    }
}
