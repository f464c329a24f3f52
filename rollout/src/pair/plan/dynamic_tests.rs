//! Dynamic sampling, case by case.

use shared::{Contrast, config::RewardFailure};

use super::{
    world_tests::{ATTEMPTS, Making, Prompts, TOTAL, Taken, World, options},
    *,
};

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
    while let Some(Making { position, version, .. }) = world.in_work.pop() {
        world.plan.finish(prompts.group(position, version));
        let before = world.in_work.len();
        world.admit();
        let replaced = world.in_work.len() - before;
        assert_eq!(replaced, usize::from(!prompts.usable(position, 0)), "{position}");
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
    let prompts = Prompts { seed: 3, flat: 0 };
    let mut world = World::new(options(2, 1), prompts);
    world.happen(12);
    while let Some(position) = world.plan.admit(PolicyVersion(0)) {
        world.plan.finish(prompts.group(position, 0));
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
    assert_eq!(world.in_work[0].position, 4);
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
    assert_eq!(world.plan.admit(PolicyVersion(0)), Some(batch[1].position + 1));
}
