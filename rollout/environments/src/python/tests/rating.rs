//! Reward functions that ask for `environments`.

use std::time::Duration;

use rollout_rewards::{RewardCompletion, RewardInput};
use serde_json::json;
use shared::{FinishReason, Logged, RewardOutcome};

use crate::{
    Environments, Rating, Sample,
    testing::{Folder, nothing, row, sample},
};

const RATERS: &str = r#"
import asyncio
import os
import time


class Counter:
    def reset(self, start=0, **row):
        self.count, self.loop = start, None

    async def up(self) -> int:
        """Counts up."""
        self.loop = asyncio.get_running_loop()
        self.count += 1
        return self.count

    async def _read(self):
        assert self.loop in (None, asyncio.get_running_loop()), "another loop"
        return self.count

    def get_reward(self):
        return self.count


def counts(completions, environments, answer, log_metric, log_extra, **kwargs):
    log_metric("many", len(environments))
    log_extra("count", [one.count for one in environments])
    for one in environments:
        one.count += 100
    return [one.count + len(text) + right for one, text, right in zip(environments, completions, answer)]


async def reads(environments, **kwargs):
    return [await one._read() for one in environments]


def one_is_wrong(environments, **kwargs):
    return [1 / one.count for one in environments]


def hangs(environments, **kwargs):
    time.sleep(60)


def dies(environments, **kwargs):
    os._exit(3)


def without(completions, **kwargs):
    return [0.0 for _ in completions]
"#;

fn start(raters: &[&str]) -> (Folder, Environments) {
    let folder = Folder::with(RATERS);
    let environments = folder.start_with(&[], Some("Counter"), |sources| {
        sources.raters = raters.iter().map(|name| format!("e.py:{name}")).collect();
        sources.reward_timeout = Duration::from_secs(2);
        sources.host.processes = 2;
    });
    let environments = environments.unwrap();
    (folder, environments)
}

fn input(texts: &[&str]) -> RewardInput {
    let completion = |text: &&str| RewardCompletion::of_one_turn(*text, vec![1], FinishReason::Stop);
    RewardInput {
        completions: texts.iter().map(completion).collect(),
        columns: row(json!({"answer": 1000})),
        ..RewardInput::default()
    }
}

fn opened(environments: &Environments, starts: [u32; 2]) -> [Sample; 2] {
    let samples = [sample(1, 0), sample(1, 2)];
    for (sample, start) in samples.into_iter().zip(starts) {
        environments.opened(sample, json!({"start": start})).unwrap();
    }
    samples
}

fn reasons(ratings: &[Rating]) -> Vec<String> {
    let reason = |rating: &Rating| match &rating.outcomes[0] {
        RewardOutcome::Failed(reason) => reason.clone(),
        other => format!("{other:?}"),
    };
    ratings.iter().map(reason).collect()
}

#[test]
fn raters_see_the_live_environments_of_the_group_before_these_give_their_own_reward() {
    let (_folder, environments) = start(&["counts", "reads"]);
    let samples = opened(&environments, [10, 20]);
    assert_eq!(environments.said(samples[0], "up", nothing()), "11");
    let ratings = environments.rated(&samples, input(&["a", "bb"]));
    let score = RewardOutcome::Score;
    assert_eq!(ratings[0].outcomes, [score(1112.0), score(111.0)]);
    assert_eq!(ratings[1].outcomes, [score(1122.0), score(120.0)], "the `async` one runs on the loop of the methods");
    assert_eq!(Logged::means([&ratings[0].logged])["many"], 2.0);
    assert_eq!(ratings[1].logged, Logged::default(), "what is logged of a group counts once");
    let extra = |place: usize| ratings[0].logged.extra_of(place).map(|(_, note)| note.value()).collect::<Vec<_>>();
    assert_eq!(
        [extra(0), extra(1), extra(2)],
        [[json!(11)], [json!(null)], [json!(20)]],
        "in the place of each sample"
    );
    assert_eq!(environments.scored(samples[0]), Ok(Some(111.0)));
}

#[test]
fn a_rater_fails_for_the_conversation_that_it_raises_on() {
    let (_folder, environments) = start(&["one_is_wrong"]);
    let samples = opened(&environments, [0, 4]);
    let ratings = environments.rated(&samples, input(&["a", "b"]));
    let told = reasons(&ratings);
    assert!(told[0].contains("ZeroDivisionError") && told[0].contains("e.py, line"), "{told:?}");
    assert_eq!(ratings[1].outcomes, [RewardOutcome::Score(0.25)]);
    assert_eq!(environments.scored(samples[0]), Ok(Some(0.0)), "its environment is sound");
}

#[test]
fn a_rater_that_is_late_or_kills_its_process_gives_no_reward_and_others_go_on() {
    let (_folder, environments) = start(&["hangs"]);
    let samples = opened(&environments, [1, 2]);
    let told = reasons(&environments.rated(&samples, input(&["a", "b"])));
    assert!(told.iter().all(|reason| reason.contains("no answer within 2 s (`reward_timeout`)")), "{told:?}");
    environments.close(samples[0]);
    assert_eq!(environments.opened(sample(7, 0), nothing()), Ok(None));

    let (_folder, environments) = start(&["dies"]);
    let samples = opened(&environments, [1, 2]);
    let told = reasons(&environments.rated(&samples, input(&["a", "b"])));
    assert!(told.iter().all(|reason| reason.contains("e.py:dies: the process ended")), "{told:?}");
    assert!(environments.scored(samples[0]).is_err(), "the environment is gone with its process");
    assert!(reasons(&environments.rated(&samples, input(&["a", "b"])))[0].contains("is gone"));
    assert_eq!(environments.opened(sample(8, 0), nothing()), Ok(None));
}

#[test]
fn a_rater_needs_environments_in_python() {
    let folder = Folder::with(RATERS);
    let refused = folder.start_with(&[], None, |sources| {
        sources.environment_factory = Some("builtin:maze".parse().unwrap());
        sources.raters = vec!["e.py:counts".to_owned()];
    });
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("`e.py:counts`") && error.contains("`builtin:maze` is no class in Python"), "{error}");
}
