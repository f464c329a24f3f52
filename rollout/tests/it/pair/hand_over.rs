//! Which groups the learner gets, whoever is killed and however far the sampler is ahead.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use shared::{Placed, channel::LearnerEnd, config::WeightSwap};

use super::support::{Run, STUCK, assert_same, synchronous_run};

#[test]
fn a_synchronous_run_is_the_same_whatever_the_batch_size_and_whoever_is_killed() {
    let plain = synchronous_run(|_| {});
    assert_eq!(plain.len(), 15);
    for (id, group) in &plain {
        assert_eq!(group.policy_version.0, id.step.0);
        assert!(group.completions.iter().all(|c| c.episode.versions().eq([(0, group.policy_version)])));
    }
    let texts: BTreeSet<&str> = plain.values().flat_map(|g| &g.completions).map(|c| c.text.as_str()).collect();
    assert!(texts.len() > 30, "completions differ between prompts, samples and versions");
    let prompts: BTreeSet<u64> = plain.values().take(10).map(|g| g.prompt_id.0).collect();
    assert_eq!(prompts.len(), 10, "an epoch takes every prompt once");

    assert_same(&plain, &synchronous_run(|config| config.max_num_seqs = Some(1)));
    let other = synchronous_run(|config| {
        config.max_num_seqs = Some(7);
        config.rollout_threads = Some(2);
    });
    assert_same(&plain, &other);

    let run = Run::new(|_| {});
    let mut sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    for step in 0..3 {
        learner.train(step);
        learner.receive(step as usize);
        sampler.kill();
        sampler = run.sampler();
    }
    learner.train(5);
    assert_same(&plain, &learner.dismiss(sampler));
    assert_eq!(run.litter(), Vec::<PathBuf>::new());
}

#[test]
fn a_restarted_learner_gets_the_kept_groups_again() {
    let run = Run::new(|_| {});
    let sampler = run.sampler();
    let mut first = run.learner(1, 0);
    first.train(3);
    first.receive(2);
    let groups = first.groups;
    drop(first.end);
    let mut second = run.learner(2, 1);
    second.train(5);
    // Before it heard that this is another learner, the sampler may have held a group ready for whoever takes it.
    assert!(second.repeats <= 1, "{} groups came twice", second.repeats);
    let again = second.dismiss(sampler);
    assert!(again.len() == 12 && again.keys().all(|id| id.step.0 >= 1), "step 0 is durable");
    let kept: Vec<_> = groups.iter().filter(|(id, _)| id.step.0 >= 1).collect();
    assert!(kept.len() >= 8, "two steps, and two groups of the next one");
    for (id, group) in kept {
        // The time is the very same, so the group was kept and not made again.
        assert_eq!(again.get(id), Some(group));
    }
}

#[test]
fn groups_ahead_of_the_learner_stay_within_the_staleness_bound() {
    for weight_swap in [WeightSwap::Drain, WeightSwap::Recompute, WeightSwap::Continue] {
        let run = Run::new(|config| {
            config.max_staleness = 2;
            config.weight_swap = weight_swap;
            config.max_steps = Some(8);
            config.max_completion_length = 60;
        });
        let sampler = run.sampler();
        let mut learner = run.learner(1, 0);
        learner.train(4);
        // The sampler works ahead while the learner is busy, but no further than it may.
        thread::sleep(Duration::from_millis(300));
        learner.train(6);
        drop(learner.end);
        // Back to step 4: versions go down and come again.
        let mut restarted = run.learner(2, 4);
        restarted.train(8);
        let groups = restarted.dismiss(sampler);
        let ahead = groups.values().filter(|g| g.policy_version.0 < g.id.step.0).count();
        assert!(ahead > 0, "nothing was made ahead");
        if weight_swap == WeightSwap::Drain {
            let whole = |g: &Placed| g.completions.iter().all(|c| c.episode.versions().count() == 1);
            assert!(groups.values().all(whole), "a sequence finishes on the weights it began with");
        }
    }
}

/// The learner computes with the sampler's cores for as long as this says so.
#[test]
fn the_sampler_says_when_it_waits_and_when_it_works_again() {
    let run = Run::new(|config| {
        config.max_staleness = 1;
        // Long enough to be seen at work.
        config.max_completion_length = 600;
    });
    let sampler = run.sampler();
    let mut learner = run.learner(1, 0);
    let mut worked = 0;
    for step in 1..=4 {
        let begin = Instant::now();
        // Nothing is published meanwhile, so the sampler comes to its bound.
        loop {
            learner.speak();
            learner.take_next(Duration::from_millis(1));
            match learner.end.sampler_status().unwrap() {
                Some(status) if status.waiting => break,
                Some(_) => worked += 1,
                None => assert!(begin.elapsed() < STUCK, "the sampler has nothing to do and does not say so"),
            }
        }
        learner.train(step);
    }
    assert!(worked > 0, "it never said that it worked");
    learner.train(5);
    learner.dismiss(sampler);
}
