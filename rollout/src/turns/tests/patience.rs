//! Conversations that take too long.

use std::{
    thread,
    time::{Duration, Instant},
};

use shared::config::Stragglers;

use super::{super::Patience, *};

fn bounded(world: World, patience: Patience) -> World {
    World { generator: world.generator.with_patience(patience), ..world }
}

fn stragglers(stragglers: Stragglers) -> Patience {
    Patience { stragglers, straggler_after: 20.0, ..Patience::default() }
}

impl World {
    /// What ends until nothing but waiting is left, and no time is up.
    fn run_out(&mut self, ends: usize) -> Vec<Conversed> {
        let (begun, mut ended) = (Instant::now(), Vec::new());
        while ended.len() < ends {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} of {ends} end", ended.len());
            if self.generator.waits() {
                thread::sleep(Duration::from_millis(1));
            } else {
                ended.extend(self.run(1).into_iter().map(|(_, conversed)| conversed));
            }
        }
        ended.sort_by_key(|conversed| (conversed.tag, conversed.sample));
        ended
    }

    /// Goes on until nothing but waiting is left. Nothing ends before that.
    fn run_until_it_waits(&mut self) {
        let begun = Instant::now();
        while !self.generator.waits() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it waits for its environments");
            assert!(self.run(1).is_empty(), "nothing ends");
        }
    }
}

fn ends(conversed: &[Conversed]) -> Vec<EpisodeEnd> {
    conversed.iter().map(|conversed| conversed.exchange.end).collect()
}

/// The tool of sample 0 never answers.
fn hanging(sample: Sample, asked: &Asked) -> Option<Event> {
    if sample.index == 0 && matches!(asked, Asked::Step(_)) { None } else { adding(sample, asked) }
}

/// It answers when the prompt is drawn for the second time.
fn hanging_once(sample: Sample, asked: &Asked) -> Option<Event> {
    if sample.tag == 0 { hanging(sample, asked) } else { adding(sample, asked) }
}

use EpisodeEnd::{Deadline, Stop, Straggler};

#[test]
fn a_conversation_that_takes_too_long_ends_without_a_reward() {
    let episode = Some(Duration::from_millis(300));
    let mut world = bounded(world(8, hanging), Patience { episode, ..Patience::default() });
    world.generator.begin_row(request(4, 3).into(), &row()).unwrap();
    assert_eq!(ends(&world.run_out(2)), [Stop, Stop]);
    assert!(world.generator.waits(), "its time is not up");
    let late = world.run_out(1);
    assert_eq!(ends(&late), [Deadline]);
    let exchange = &late[0].exchange;
    assert_eq!(exchange.reason(), Some("the conversation takes longer than 0.3 s (`episode_timeout`)"));
    assert!(exchange.seconds >= 0.3 && exchange.rewards == [RewardOutcome::NotApplicable]);
    assert_eq!(late[0].episode.sampled_spans().count(), 1, "what was sampled before is known");
    assert!(world.generator.is_idle() && world.asked(|asked| *asked == Asked::Close) == 3);
}

#[test]
fn the_rest_of_a_group_is_trained_on_without_its_straggler() {
    let mut world = bounded(world(8, hanging), stragglers(Stragglers::TrainRest));
    world.generator.begin_row(request(4, 4).into(), &row()).unwrap();
    let ended = world.run_out(4);
    assert_eq!(ends(&ended), [Straggler, Stop, Stop, Stop]);
    assert!(ended[0].exchange.reason().unwrap().contains("20 times as long as the first half"));
    assert_eq!(ended[0].exchange.rewards, [RewardOutcome::NotApplicable]);
    assert!(ended.iter().all(|conversed| !conversed.is_drawn_again));
    assert!(world.generator.is_idle());
}

#[test]
fn a_group_with_a_straggler_is_dropped_and_its_prompt_drawn_again() {
    // Of two samples, one is too few to train on.
    for (policy, samples) in [(Stragglers::Drop, 4), (Stragglers::TrainRest, 2)] {
        let mut world = bounded(world(8, hanging_once), stragglers(policy));
        world.generator.begin_row(request(4, samples).into(), &row()).unwrap();
        let ended = world.run_out(samples as usize);
        assert_eq!(ends(&ended), vec![Stop; samples as usize], "{policy}: those of the first draw are not told");
        assert!(ended.iter().all(|conversed| conversed.is_drawn_again && conversed.tag == 4));
        assert!(world.generator.is_idle() && world.run(5).is_empty());
        assert_eq!(world.asked(|asked| matches!(asked, Asked::Open(_))), 2 * samples as usize);
        assert_eq!(world.asked(|asked| *asked == Asked::Close), 2 * samples as usize, "each is given back once");
    }
}

#[test]
fn a_prompt_is_drawn_three_times_and_then_waited_for() {
    let mut world = bounded(world(8, hanging), stragglers(Stragglers::Drop));
    world.generator.begin_row(request(4, 3).into(), &row()).unwrap();
    let ended = world.run_out(2);
    assert_eq!(ended.iter().map(|conversed| conversed.sample).collect::<Vec<_>>(), [1, 2]);
    thread::sleep(Duration::from_millis(1200));
    assert!(world.generator.waits() && world.run(2).is_empty(), "nothing bounds the last one");
    let seeds: Vec<u64> = world.heard.lock().unwrap().begun.iter().map(|asked| asked.group.sampling.seed).collect();
    let firsts: std::collections::BTreeSet<u64> = seeds.iter().copied().collect();
    assert_eq!(firsts.len(), 3, "each draw has its own numbers: {seeds:?}");
    assert_eq!(world.asked(|asked| matches!(asked, Asked::Open(_))), 9);
    assert_eq!(world.generator.cancel(4, None).len(), 1);
    assert!(world.generator.is_idle());
}

#[test]
fn what_is_held_back_is_cancelled_with_its_group() {
    let mut world = bounded(world(8, hanging), Patience { straggler_after: 1e9, ..stragglers(Stragglers::Drop) });
    world.generator.begin_row(request(4, 3).into(), &row()).unwrap();
    assert!(world.run(400).is_empty(), "the group may still be dropped");
    world.generator.begin_row(request(5, 3).into(), &row()).unwrap();
    assert!(world.run(400).is_empty());
    assert_eq!(world.generator.cancel(5, Some(0)).len(), 1);
    assert!(!world.generator.waits(), "the others are to be told of");
    assert_eq!(ends(&world.run_out(2)), [Stop, Stop]);
    let cancelled = world.generator.cancel(4, None);
    let reasons: Vec<FinishReason> = cancelled.iter().map(|sequence| sequence.finish_reason).collect();
    assert_eq!(reasons, [FinishReason::Aborted, FinishReason::Stop, FinishReason::Stop]);
    assert!(world.generator.is_idle() && world.run(3).is_empty());
    assert_eq!(world.asked(|asked| *asked == Asked::Close), 6);
}

/// Of four, two fail and one ends well, so there is none to compare it with.
#[test]
fn what_has_failed_is_not_enough_to_train_on() {
    let mut world = bounded(
        world(8, |sample, asked| match (sample.tag, sample.index, asked) {
            (0, 0, Asked::Step(_)) => None,
            (0, 1 | 2, Asked::Open(_)) => Some(Event::Failed(broken())),
            _ => adding(sample, asked),
        }),
        stragglers(Stragglers::TrainRest),
    );
    world.generator.begin_row(request(4, 4).into(), &row()).unwrap();
    let ended = world.run_out(4);
    assert_eq!(ends(&ended), [Stop; 4]);
    assert!(ended.iter().all(|conversed| conversed.is_drawn_again));
}

#[test]
fn a_turn_that_is_being_sampled_is_cancelled_when_its_time_is_up() {
    let episode = Some(Duration::from_millis(1));
    let mut world = bounded(world(1, adding), Patience { episode, ..Patience::default() });
    world.generator.begin_row(request(4, 2).into(), &row()).unwrap();
    assert!(world.run(1).is_empty(), "their turns have just been asked for");
    thread::sleep(Duration::from_millis(20));
    assert_eq!(ends(&world.run_out(2)), [Deadline, Deadline]);
    assert_eq!(world.heard.lock().unwrap().cancelled, [(0, Some(0)), (0, Some(1))]);
}

/// Sample 0 is slower than the others, within the bound. What is over then waits for raters and for its environment
/// beyond the bound, which is not its own time.
#[test]
fn what_is_over_in_time_is_not_late_while_its_group_is_rated_and_rewarded() {
    let slow = |sample: Sample, asked: &Asked| match asked {
        Asked::Step(_) if sample.index == 0 => None,
        Asked::Score => None,
        _ => adding(sample, asked),
    };
    let episode = Some(Duration::from_millis(300));
    for patience in [Patience { episode, ..Patience::default() }, stragglers(Stragglers::Drop)] {
        let inner = Scripted::new(8, script);
        let mut world = bounded(world_with(inner, slow, dialogue(400, 9999), 1), patience);
        world.generator.begin_row(request(4, 3).into(), &row()).unwrap();
        world.run_until_it_waits();
        let (sample, turn) = (world.log.lock().unwrap().iter())
            .find_map(|(sample, asked)| match asked {
                Asked::Step(turn) if sample.index == 0 => Some((*sample, turn.clone())),
                _ => None,
            })
            .unwrap();
        world.sender.send((sample, Event::Stepped(step(&turn, "5")))).unwrap();
        world.run_until_it_waits();
        thread::sleep(Duration::from_millis(1100));
        assert!(world.run(5).is_empty() && world.generator.waits(), "nothing is late");
        for index in 0..3 {
            world.sender.send((Sample { index, ..sample }, Event::Scored(Some(1.0)))).unwrap();
        }
        assert_eq!(ends(&world.run_out(3)), [Stop, Stop, Stop]);
        assert_eq!(world.asked(|asked| matches!(asked, Asked::Open(_))), 3, "nothing is drawn again");
    }
}
