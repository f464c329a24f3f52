//! Which group is made next, which is handed over next, and which is kept: the sampler's half of the hand-over contract,
//! without engine, channel or clock.
//!
//! A group's identity, (step, index), and its dataset position follow from the learner's status alone, so a plan can be
//! thrown away and built again from the next status: that is all a restarted sampler does.

use std::{collections::BTreeMap, sync::Arc};

use shared::{GroupId, PolicyVersion, RolloutGroup, Step, channel::LearnerStatus};

/// Sizes that a plan works with.
#[derive(Debug, Clone, Copy)]
pub struct PlanOptions {
    /// Groups of one step.
    pub groups_per_step: u32,
    /// How many versions older than its step a group's weights may be; 0 = exactly the step's version.
    pub max_staleness: u64,
    /// Finished groups that may wait for the learner before no new ones are begun.
    pub max_unsent: usize,
    /// Bytes of groups that are kept although the learner has trained on them, for the case that it falls back to a
    /// checkpoint. What does not fit is made again in that case.
    pub kept_bytes: usize,
}

/// A group to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// Its place in the run.
    pub id: GroupId,
    /// Its position in the endless sequence of prompts, from 0.
    pub position: u64,
}

#[derive(Debug)]
enum State {
    /// In the engine, or being scored.
    InWork,
    /// Finished, to be handed over.
    Unsent(Arc<RolloutGroup>),
    /// With the thread that sends.
    Sending(Arc<RolloutGroup>),
    /// In the channel or at the learner.
    Sent(Arc<RolloutGroup>),
}

/// The groups of a run as the sampler sees them.
#[derive(Debug)]
pub struct Plan {
    options: PlanOptions,
    learner: Option<LearnerStatus>,
    groups: BTreeMap<GroupId, State>,
    kept_bytes: usize,
}

impl Plan {
    /// An empty plan: nothing is admitted before the first status of the learner.
    #[must_use]
    pub fn new(options: PlanOptions) -> Self {
        Self { options, learner: None, groups: BTreeMap::new(), kept_bytes: 0 }
    }

    /// The learner's newest status.
    #[must_use]
    pub fn learner(&self) -> Option<&LearnerStatus> {
        self.learner.as_ref()
    }

    /// Takes the learner's newest status. After a restart of the learner every group that is not known to have reached
    /// the new process is handed over again; groups of durable steps are dropped.
    pub fn observe(&mut self, status: LearnerStatus) {
        let restarted = self.learner.as_ref().is_some_and(|old| old.incarnation != status.incarnation);
        for (id, state) in &mut self.groups {
            let arrived = received(&status, *id);
            match state {
                // One that is being sent right now reaches the new process: its place in the channel came first.
                State::Sent(group) if restarted && !arrived => *state = State::Unsent(group.clone()),
                State::Unsent(group) if arrived => *state = State::Sent(group.clone()),
                _ => {}
            }
        }
        let durable = GroupId { step: status.durable_step, index: 0 };
        let kept = self.groups.split_off(&durable);
        for (id, state) in std::mem::replace(&mut self.groups, kept) {
            match state {
                State::InWork => drop(self.groups.insert(id, state)),
                State::Unsent(group) | State::Sending(group) | State::Sent(group) => self.release(&group),
            }
        }
        self.learner = Some(status);
        self.fit();
    }

    /// The next group to begin with weights of the given version, if one may be begun. It counts as in work until
    /// [`Plan::finish`] or [`Plan::give_up`].
    pub fn admit(&mut self, version: PolicyVersion) -> Option<Admission> {
        let admission = self.next(version)?;
        self.groups.insert(admission.id, State::InWork);
        Some(admission)
    }

    fn next(&self, version: PolicyVersion) -> Option<Admission> {
        // Weights that the learner does not have come from before its restart: nothing new is made from them.
        let status = self.learner.as_ref().filter(|s| !s.finished && version <= s.version)?;
        let first = status.step.0.max(version.0);
        let end = (version.0 + self.options.max_staleness + 1).min(status.total_steps);
        (first..end)
            .flat_map(|step| (0..self.options.groups_per_step).map(move |index| GroupId { step: Step(step), index }))
            .find(|id| !self.groups.contains_key(id) && !received(status, *id))
            // The step that the learner waits for is never held up, or both would wait for each other.
            .filter(|id| id.step == status.step || self.unsent() < self.options.max_unsent)
            .map(|id| Admission { id, position: self.position(status, id) })
    }

    fn position(&self, status: &LearnerStatus, id: GroupId) -> u64 {
        let steps = id.step.0 - status.step.0;
        status.cursor + steps * u64::from(self.options.groups_per_step) + u64::from(id.index)
    }

    /// A group in work is complete and waits to be handed over.
    pub fn finish(&mut self, group: RolloutGroup) {
        let id = group.id;
        let Some(state) = self.groups.get_mut(&id) else {
            return;
        };
        if self.learner.as_ref().is_some_and(|s| id.step < s.durable_step) {
            self.groups.remove(&id);
            return;
        }
        self.kept_bytes += size(&group);
        *state = State::Unsent(Arc::new(group));
        self.fit();
    }

    /// A group in work will not be completed: it is admitted again later.
    pub fn give_up(&mut self, id: GroupId) {
        if matches!(self.groups.get(&id), Some(State::InWork)) {
            self.groups.remove(&id);
        }
    }

    /// The next group to hand over; it counts as being sent until [`Plan::sent`].
    ///
    /// Groups go in order of their ids. One made from weights that the learner does not have (again) waits until it has
    /// them.
    pub fn send(&mut self) -> Option<Arc<RolloutGroup>> {
        let status = self.learner.as_ref()?;
        let first = GroupId { step: status.step, index: 0 };
        let state = self
            .groups
            .range_mut(first..)
            .map(|(_, state)| state)
            .find(|state| matches!(state, State::Unsent(group) if group.policy_version <= status.version))?;
        let State::Unsent(group) = state else {
            return None;
        };
        let group = group.clone();
        *state = State::Sending(group.clone());
        Some(group)
    }

    /// The channel has taken a group.
    pub fn sent(&mut self, id: GroupId) {
        if let Some(state) = self.groups.get_mut(&id)
            && let State::Sending(group) = state
        {
            *state = State::Sent(group.clone());
        }
        self.fit();
    }

    /// Finished groups that the learner could take and has not.
    #[must_use]
    pub fn unsent(&self) -> usize {
        let Some(status) = &self.learner else {
            return 0;
        };
        let first = GroupId { step: status.step, index: 0 };
        self.groups
            .range(first..)
            .filter(|(_, state)| match state {
                State::Unsent(group) | State::Sending(group) => group.policy_version <= status.version,
                State::InWork | State::Sent(_) => false,
            })
            .count()
    }

    /// Bytes of all finished groups that are held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.kept_bytes
    }

    fn release(&mut self, group: &RolloutGroup) {
        self.kept_bytes -= size(group);
    }

    /// Drops groups that were trained on, the oldest first, until the rest fits.
    fn fit(&mut self) {
        let Some(step) = self.learner.as_ref().map(|s| s.step) else {
            return;
        };
        while self.kept_bytes > self.options.kept_bytes {
            let trained =
                |(id, state): &(&GroupId, &State)| id.step < step && matches!(state, State::Sent(_) | State::Unsent(_));
            let Some(id) = self.groups.iter().find(trained).map(|(id, _)| *id) else {
                return;
            };
            if let Some(State::Sent(group) | State::Unsent(group)) = self.groups.remove(&id) {
                self.release(&group);
            }
        }
    }
}

fn received(status: &LearnerStatus, id: GroupId) -> bool {
    id.step == status.step && status.received.binary_search(&id.index).is_ok()
}

/// Memory of a group, near enough for a budget.
fn size(group: &RolloutGroup) -> usize {
    let completions: usize = group
        .completions
        .iter()
        .map(|c| {
            size_of_val(c)
                + c.text.len()
                + size_of_val(c.token_ids.as_slice())
                + size_of_val(c.logprobs.as_slice())
                + size_of_val(c.rewards.as_slice())
        })
        .sum();
    size_of_val(group) + group.prompt_text.len() + size_of_val(group.prompt_ids.as_slice()) + completions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use shared::PromptId;

    use super::*;

    const OPTIONS: PlanOptions =
        PlanOptions { groups_per_step: 2, max_staleness: 0, max_unsent: 4, kept_bytes: 1 << 20 };

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
            id: admission.id,
            prompt_id: PromptId(admission.position),
            epoch: 0,
            prompt_ids: vec![1; 100],
            prompt_text: String::new(),
            completions: Vec::new(),
            reward_names: Vec::new(),
            policy_version: PolicyVersion(version),
            cursor: admission.position + 1,
            generation_seconds: 0.0,
        }
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
        plan.give_up(first.id);
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
        in_work: Vec<(Admission, u64)>,
        sending: Option<Arc<RolloutGroup>>,
        queue: Vec<RolloutGroup>,
        arrived: BTreeMap<GroupId, RolloutGroup>,
        learner: LearnerStatus,
    }

    const TOTAL: u64 = 6;

    impl World {
        fn new(options: PlanOptions) -> Self {
            let learner = LearnerStatus { incarnation: 1, total_steps: TOTAL, ..LearnerStatus::default() };
            Self {
                options,
                plan: Plan::new(options),
                loaded: 0,
                in_work: Vec::new(),
                sending: None,
                queue: Vec::new(),
                arrived: BTreeMap::new(),
                learner,
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
                12 => self.plan.observe(self.status()),
                13 => self.follow(),
                14 if event < 64 => self.kill_sampler(),
                15 if event < 64 => self.kill_learner(),
                _ => self.plan.observe(self.status()),
            }
        }

        fn admit(&mut self) {
            let Some(admission) = self.plan.admit(PolicyVersion(self.loaded)) else {
                return;
            };
            let step = admission.id.step.0;
            assert!(self.loaded <= step && step - self.loaded <= self.options.max_staleness, "staleness bound");
            assert!(step < TOTAL);
            let per_step = u64::from(self.options.groups_per_step);
            assert_eq!(admission.position, step * per_step + u64::from(admission.id.index));
            assert!(self.in_work.iter().all(|(other, _)| other.id != admission.id), "made twice at once");
            self.in_work.push((admission, self.loaded));
        }

        fn complete(&mut self, which: usize) {
            if !self.in_work.is_empty() {
                let (admission, version) = self.in_work.remove(which % self.in_work.len());
                self.plan.finish(group(admission, version));
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
                assert_eq!(group.cursor - 1, group.prompt_id.0);
                if group.id.step >= self.learner.step {
                    self.arrived.entry(group.id).or_insert(group);
                }
            }
        }

        fn train(&mut self) {
            let step = self.learner.step;
            let complete = self.arrived.keys().filter(|id| id.step == step).count() as u32;
            if self.learner.finished || complete < self.options.groups_per_step {
                return;
            }
            for (_, group) in self.arrived.iter().filter(|(id, _)| id.step == step) {
                assert!(step.0 - group.policy_version.0 <= self.options.max_staleness, "stale group trained on");
            }
            self.arrived = self.arrived.split_off(&GroupId { step: step.next(), index: 0 });
            self.learner.step = step.next();
            self.learner.version = PolicyVersion(step.0 + 1);
            self.learner.cursor += u64::from(self.options.groups_per_step);
            if step.0 % 3 == 1 {
                self.learner.durable_step = step.next();
            }
            self.learner.finished = self.learner.step.0 == TOTAL;
        }

        /// The sampler takes over the version that the learner has, once nothing is in work.
        fn follow(&mut self) {
            if self.in_work.is_empty() {
                self.loaded = self.plan.learner().map_or(self.loaded, |s| s.version.0);
            }
        }

        fn kill_sampler(&mut self) {
            self.plan = Plan::new(self.options);
            self.in_work.clear();
            self.sending = None;
            self.plan.observe(self.status());
            self.loaded = self.learner.version.0;
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
            let mut world = World::new(PlanOptions { groups_per_step, max_staleness, max_unsent, kept_bytes });
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
}
