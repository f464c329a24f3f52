//! The plan without dynamic sampling, case by case; [`super::world_tests`] has every order of events.

use shared::{FinishReason, PromptId, generation::testing};

use super::*;

const OPTIONS: PlanOptions =
    PlanOptions { groups_per_step: 2, max_staleness: 0, max_unsent: 4, kept_bytes: 1 << 20, dynamic_sampling: None };

fn status(incarnation: u64, step: u64, durable: u64) -> LearnerStatus {
    LearnerStatus {
        incarnation,
        version: PolicyVersion(step),
        step: Step(step),
        cursor: step * 2,
        next_cursor: step * 2,
        durable_step: Step(durable),
        total_steps: 10,
        ..LearnerStatus::default()
    }
}

fn id(step: u64, index: u32) -> GroupId {
    GroupId { step: Step(step), index }
}

fn group(position: u64, version: u64) -> Scored {
    let prompt_ids = vec![1; 100];
    let group = Group { prompt_id: PromptId(position), prompt_ids, ..testing::group(position, Vec::new()) };
    Scored { group, policy_version: PolicyVersion(version) }
}

/// Without staleness, remade versions equal the old ones to the last bit. With it they differ, and everything that was
/// made with the lost ones is thrown away, wherever it is.
#[test]
fn groups_of_versions_that_the_learner_has_lost_are_made_again() {
    let mut plan = Plan::new(PlanOptions { max_staleness: 1, max_unsent: 9, ..OPTIONS });
    plan.observe(status(1, 4, 4));
    let make = |plan: &mut Plan, version| {
        let position = plan.admit(PolicyVersion(version)).unwrap();
        plan.finish(group(position, version));
        position
    };
    assert_eq!([make(&mut plan, 4), make(&mut plan, 4), make(&mut plan, 4)], [8, 9, 10]);
    assert_eq!(send_all(&mut plan), [id(4, 0), id(4, 1), id(5, 0)]);
    assert_eq!(plan.observe(status(1, 5, 4)), None);
    assert_eq!(make(&mut plan, 5), 11);
    let sending = plan.send().unwrap();
    let (partly, whole) = (plan.admit(PolicyVersion(5)).unwrap(), plan.admit(PolicyVersion(5)).unwrap());
    assert_eq!((partly, whole), (12, 13));

    assert_eq!(plan.observe(status(2, 4, 4)), Some(PolicyVersion(4)));
    assert_eq!(send_all(&mut plan), [id(4, 0), id(4, 1), id(5, 0)], "those of version 4 are good");
    plan.sent(sending.id);
    // Work in progress turns out, when it is finished, to be of the lost version, in part or altogether.
    let mut mixed = group(partly, 4);
    let episode = testing::episode(vec![1; 2], &[(0, 4), (1, 5)], FinishReason::Stop);
    mixed.group.completions = vec![shared::Completion { episode, ..testing::completion(0, Vec::new()) }];
    plan.finish(mixed);
    plan.finish(group(whole, 5));
    assert_eq!(make_all(&mut plan, 4), [id(5, 1)]);
    plan.observe(status(2, 5, 4));
    assert_eq!(make_all(&mut plan, 5), [id(6, 0), id(6, 1)], "made again with the new version 5");
}

/// A roll-back after step 4 to the weights of version 2: groups that were sampled from versions 3 and 4 are made again.
#[test]
fn what_was_sampled_from_versions_that_were_given_up_is_made_again() {
    let mut plan = Plan::new(PlanOptions { max_staleness: 3, ..OPTIONS });
    plan.observe(status(1, 4, 4));
    let made = make_all(&mut plan, 4);
    assert!(made.contains(&id(5, 0)) && made.contains(&id(5, 1)), "{made:?}");
    let given_up = Some((PolicyVersion(2), PolicyVersion(4)));
    plan.observe(LearnerStatus { given_up, ..status(2, 5, 5) });
    assert_eq!(plan.kept_bytes, 0);
    let again = make_all(&mut plan, 5);
    assert!(again.starts_with(&[id(5, 0), id(5, 1)]), "{again:?}");

    let mut kept = Plan::new(PlanOptions { max_staleness: 3, ..OPTIONS });
    kept.observe(status(1, 4, 4));
    make_all(&mut kept, 2);
    kept.observe(LearnerStatus { given_up, ..status(2, 5, 5) });
    assert!(kept.kept_bytes > 0, "versions before those are not given up");
}

/// Makes and hands over every group that may be made.
fn make_all(plan: &mut Plan, version: u64) -> Vec<GroupId> {
    while let Some(position) = plan.admit(PolicyVersion(version)) {
        plan.finish(group(position, version));
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
    assert_eq!(plan.admit(PolicyVersion(3)), Some(6));
    assert_eq!(plan.admit(PolicyVersion(3)), Some(7));
    assert_eq!(plan.admit(PolicyVersion(3)), None, "the next step waits for the next version");
}

#[test]
fn a_new_sampler_leaves_out_what_has_arrived_and_ends_with_the_run() {
    let mut plan = Plan::new(OPTIONS);
    plan.observe(LearnerStatus { received: vec![0], next_cursor: 19, ..status(1, 9, 9) });
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
    assert_eq!(plan.kept_bytes, 0, "durable steps are not kept");
}

#[test]
fn groups_ahead_of_the_step_wait_for_a_slow_learner() {
    let mut plan = Plan::new(PlanOptions { max_staleness: 9, max_unsent: 3, ..OPTIONS });
    plan.observe(status(1, 0, 0));
    let mut made = 0;
    while let Some(position) = plan.admit(PolicyVersion(0)) {
        plan.finish(group(position, 0));
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
    let scored = group(0, 0);
    let one = size_placed(&Placed { id: id(0, 0), scored, dropped: Vec::new(), filler: false });
    let mut plan = Plan::new(PlanOptions { kept_bytes: one * 3, ..OPTIONS });
    for step in 0..4 {
        plan.observe(status(1, step, 0));
        make_all(&mut plan, step);
        assert!(plan.kept_bytes <= one * 3);
    }
    plan.observe(status(2, 0, 0));
    assert_eq!(make_all(&mut plan, 0), [id(0, 0), id(0, 1)], "made again");
    let mut tight = Plan::new(PlanOptions { kept_bytes: 0, ..OPTIONS });
    tight.observe(status(1, 0, 0));
    assert_eq!(make_all(&mut tight, 0).len(), 2, "what the learner still needs is held at any rate");
    assert_eq!(tight.kept_bytes, one * 2);
}

#[test]
fn groups_take_their_places_in_order_whichever_is_finished_first() {
    let mut plan = Plan::new(OPTIONS);
    plan.observe(status(1, 3, 3));
    let (first, second) = (plan.admit(PolicyVersion(3)).unwrap(), plan.admit(PolicyVersion(3)).unwrap());
    plan.finish(group(second, 3));
    assert!(send_all(&mut plan).is_empty());
    plan.finish(group(first, 3));
    assert_eq!(send_all(&mut plan), [id(3, 0), id(3, 1)]);
    assert_eq!(plan.placed[&id(3, 1)].group.prompt_id.0, second);
    assert!(plan.placed.values().all(|placed| !placed.group.filler && placed.group.dropped.is_empty()));
}
