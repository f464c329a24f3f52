//! What conversations ask their generator and their environments for.

use super::*;

const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>";

fn opened(text: Option<&str>) -> Event {
    Event::Opened(Opening { text: text.map(str::to_owned) })
}

/// Lets a test open environments.
fn unopened(sample: Sample, asked: &Asked) -> Option<Event> {
    if matches!(asked, Asked::Open(_)) { None } else { adding(sample, asked) }
}

/// Groups and samples of the requests so far.
fn begun(world: &World) -> Vec<(u64, Vec<u32>)> {
    let heard = world.heard.lock().unwrap();
    heard.begun.iter().map(|asked| (asked.group.tag, asked.group.samples.to_vec())).collect()
}

#[test]
fn first_turns_wait_for_all_environments_of_their_group_and_for_room() {
    let mut world = world(2, unopened);
    world.generator.begin_row(request(0, 2).into(), &row()).unwrap();
    world.generator.begin_row(request(1, 2).into(), &row()).unwrap();
    world.sender.send((Sample { tag: 0, index: 1 }, opened(None))).unwrap();
    assert!(world.run(3).is_empty() && begun(&world).is_empty(), "one is not open");
    for (tag, index) in [(0, 0), (1, 1), (1, 0)] {
        world.sender.send((Sample { tag, index }, opened(None))).unwrap();
    }
    world.run(1);
    assert_eq!(begun(&world), [(0, vec![0, 1])], "in their order, and as many as there is room for");
    assert_eq!(world.run(600).len(), 4);
    assert_eq!(begun(&world)[1], (0, vec![0]), "the next turn of a conversation that has begun");
    assert!(begun(&world).contains(&(1, vec![0, 1])));
}

#[test]
fn samples_with_other_words_are_other_requests() {
    let mut world = world(8, unopened);
    world.generator.begin_row(request(0, 3).into(), &row()).unwrap();
    for (index, words) in [(0, " Left."), (2, " Left."), (1, " Right.")] {
        world.sender.send((Sample { tag: 0, index }, opened(Some(words)))).unwrap();
    }
    world.run(1);
    assert_eq!(begun(&world), [(0, vec![0, 2]), (0, vec![1])]);
    let prompts: Vec<String> =
        world.heard.lock().unwrap().begun.iter().map(|asked| text(&asked.group.prompt_ids)).collect();
    assert!(prompts[0].contains("2+3? Left.") && prompts[1].contains("2+3? Right."), "{prompts:?}");
}

#[test]
fn a_turn_goes_on_from_the_state_of_the_last_one_with_what_is_left() {
    let mut world = world(8, adding);
    world.generator.begin_row(request(0, 2).into(), &row()).unwrap();
    let ended = world.run(400);
    let heard = world.heard.lock().unwrap();
    let calls = ids(&format!("{CALL}<|im_end|>")).len();
    let reply = ended[0].1.episode.segments().nth(1).map(|given| match given {
        Segment::Given { ids, .. } => ids.to_vec(),
        Segment::Sampled { .. } => panic!("a reply is given"),
    });
    let reply = reply.unwrap();
    assert!(heard.begun.iter().all(|asked| asked.keep), "every turn leaves a state");
    assert_eq!(heard.begun.len(), 1 + 3, "one prompt, and three turns after calls");
    for asked in &heard.begun[1..] {
        let state = asked.from.as_ref().expect("it goes on from the turn before");
        assert_eq!(asked.group.prompt_ids[..], reply, "with the reply alone");
        let used = state.ids().len() - row().prompt_ids.len() + reply.len();
        assert_eq!(asked.group.sampling.max_completion_length as usize, 400 - used);
    }
    assert_eq!(heard.begun[1].from.as_ref().unwrap().ids().len(), row().prompt_ids.len() + calls);
    for (index, (sequence, conversed)) in ended.iter().enumerate() {
        assert_eq!(conversed.exchange.recomputed as usize, index + 1, "a script holds nothing");
        let begins: Vec<u32> = (0..index as u32 + 2).map(|turn| turn * calls as u32).collect();
        assert_eq!(sequence.versions.iter().map(|(begin, _)| *begin).collect::<Vec<_>>(), begins);
    }
}

#[test]
fn the_last_turn_has_the_room_that_the_model_leaves() {
    let used = row().prompt_ids.len() + ids(&format!("{CALL}<|im_end|>")).len() + ids_of_reply().len();
    let mut full = world_of(8, adding, dialogue(400, used));
    full.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    assert_eq!(full.run(400)[0].1.exchange.end, EpisodeEnd::ReplyTooLong, "nothing could follow");
    let mut tight = world_of(8, adding, dialogue(400, used + 2));
    tight.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    let (_, ended) = tight.run(400).remove(0);
    assert_eq!(tight.heard.lock().unwrap().begun[1].group.sampling.max_completion_length, 2);
    assert_eq!((ended.exchange.end, ended.episode.finish_reason()), (EpisodeEnd::Length, FinishReason::Length));
}

/// The ids that are given for the reply of `add`.
fn ids_of_reply() -> Vec<u32> {
    let mut world = world(8, adding);
    world.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    world.run(400);
    let heard = world.heard.lock().unwrap();
    heard.begun[1].group.prompt_ids.to_vec()
}

/// Two calls in the first turn.
fn calling_twice(context: &[u32], _: u32) -> Vec<u32> {
    match text(context).contains("</tool_response>") {
        true => ids("Done.<|im_end|>"),
        false => ids(&format!("{CALL}\n{CALL}<|im_end|>")),
    }
}

#[test]
fn all_calls_of_a_turn_are_run_and_counted() {
    let mut world = world_with(Scripted::new(8, calling_twice), adding, dialogue(400, 9999), 0);
    world.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    let (_, ended) = world.run(400).remove(0);
    assert_eq!((ended.exchange.calls, ended.exchange.failed_calls), (2, 0));
    assert_eq!(world.asked(|asked| matches!(asked, Asked::Step(turn) if turn.calls.len() == 2)), 1);
    assert_eq!(ended.exchange.messages.values().len(), 4, "two turns and two replies");
}

#[test]
fn what_the_generator_gives_up_has_no_reward_and_nobody_is_asked_for_one() {
    let mut inner = Scripted::new(8, script);
    inner.aborts = true;
    let mut world = world_with(inner, adding, dialogue(400, 9999), 0);
    world.generator.begin_row(request(0, 3).into(), &row()).unwrap();
    let ended = world.run(400);
    assert_eq!(ended.len(), 3);
    for (_, conversed) in ended {
        assert_eq!(
            (conversed.exchange.end, &conversed.exchange.rewards[..]),
            (EpisodeEnd::Aborted, &[RewardOutcome::NotApplicable][..])
        );
    }
    assert_eq!(world.asked(|asked| matches!(asked, Asked::Score | Asked::Step(_))), 0);
}

#[test]
fn an_environment_that_is_done_ends_the_conversation_with_its_rewards_together() {
    let mut world = world(8, |sample, asked| match asked {
        Asked::Step(turn) => {
            let done = sample.tag == 1;
            Some(Event::Stepped(Step { reward: Some(0.25), done, ..step(turn, "5") }))
        }
        Asked::Score if sample.tag == 2 => Some(Event::Scored(None)),
        _ => adding(sample, asked),
    });
    for tag in 0..3 {
        world.generator.begin_row(request(tag, 2).into(), &row()).unwrap();
    }
    let ended = world.run(600);
    let of = |at: usize| (ended[at].1.exchange.calls, ended[at].1.exchange.rewards[0].in_total().score().unwrap());
    assert_eq!([of(0), of(1)], [(1, 0.75), (2, 1.0)], "rewards of steps, and that of the end");
    assert_eq!([of(2), of(3)], [(1, 0.75), (1, 0.75)], "done after a step");
    assert_eq!([of(4), of(5)], [(1, 0.25), (2, 0.5)], "no reward at the end");
    let conversed = &ended[3].1;
    assert_eq!((conversed.exchange.end, conversed.episode.turns()), (EpisodeEnd::Stop, 1));
}

#[test]
fn a_group_goes_on_without_a_sample_that_was_cancelled_before_it_began() {
    let mut world = world(8, unopened);
    world.generator.begin_row(request(5, 2).into(), &row()).unwrap();
    assert_eq!(world.generator.cancel(5, Some(0)).len(), 1);
    world.sender.send((Sample { tag: 0, index: 1 }, opened(None))).unwrap();
    world.run(1);
    assert_eq!(begun(&world), [(0, vec![1])]);
    // One that is open, and whose turn has not begun.
    world.generator.set_admission(false);
    world.generator.begin_row(request(6, 2).into(), &row()).unwrap();
    (0..2).for_each(|index| world.sender.send((Sample { tag: 1, index }, opened(None))).unwrap());
    world.run(1);
    assert_eq!(world.generator.cancel(6, Some(1)).len(), 1);
    world.generator.set_admission(true);
    world.run(1);
    assert_eq!(begun(&world).last(), Some(&(1, vec![0])));
    // One whose turn is being sampled.
    assert_eq!(world.generator.cancel(6, Some(0)).len(), 1);
    assert_eq!(world.heard.lock().unwrap().cancelled.last(), Some(&(1, Some(0))));
}

#[test]
fn an_answer_out_of_turn_is_a_failure() {
    let mut world = world(8, |sample, asked| match asked {
        Asked::Step(_) => Some(Event::Scored(Some(9.0))),
        _ => adding(sample, asked),
    });
    world.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    let (_, ended) = world.run(400).remove(0);
    assert_eq!(ended.exchange.end, EpisodeEnd::EnvironmentFailed);
    assert_eq!(ended.exchange.reason(), Some("the environment answered out of turn"));
    assert_eq!(ended.exchange.rewards, [RewardOutcome::NotApplicable]);
}

#[test]
fn an_environment_that_fails_before_the_first_turn_leaves_a_completion_without_tokens() {
    let mut world = world(8, unopened);
    world.generator.set_admission(false);
    world.generator.begin_row(request(0, 1).into(), &row()).unwrap();
    let sample = Sample { tag: 0, index: 0 };
    world.sender.send((sample, opened(None))).unwrap();
    world.run(1);
    world.sender.send((sample, Event::Failed(broken()))).unwrap();
    let (_, ended) = world.run(2).remove(0);
    assert_eq!((ended.episode.token_ids().len(), ended.episode.oldest().map(|version| version.0)), (0, Some(0)));
    assert!(ended.prompt_ids.is_some());
}

#[test]
fn first_words_that_leave_no_room_are_the_end_of_the_conversation() {
    let most = row().prompt_ids.len() + 20;
    let mut world = world_of(8, unopened, dialogue(400, most));
    world.generator.begin_row(request(0, 2).into(), &row()).unwrap();
    for (index, words) in [(0, "x".repeat(30)), (1, String::new())] {
        world.sender.send((Sample { tag: 0, index }, opened(Some(&words)))).unwrap();
    }
    let ended = world.run(400);
    assert_eq!(ended[0].1.exchange.end, EpisodeEnd::EnvironmentFailed);
    let reason = ended[0].1.exchange.reason().unwrap();
    for words in ["leave no room within `max_model_len`", "raise `max_model_len`"] {
        assert!(reason.contains(words), "{reason}");
    }
    assert!(ended[1].1.episode.sampled() > 0, "the other one goes on");
    assert_eq!(begun(&world)[0], (0, vec![1]));
}
