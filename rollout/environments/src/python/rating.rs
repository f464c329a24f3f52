//! What reward functions that ask for `environments` say of the conversations of a group.

use std::{sync::Arc, time::Duration};

use rollout_rewards::{
    RewardInput,
    program::{group, outcomes},
};
use serde_json::{Map, json};
use shared::{Logged, RewardOutcome};

use crate::{
    Failure, Sample,
    process::{Host, Hosts},
};

/// What the raters of a run say of a conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rating {
    /// One outcome for each rater, in their order.
    pub outcomes: Vec<RewardOutcome>,
    /// What the raters have logged of the whole group; the rating of its first conversation alone has it.
    pub logged: Logged,
}

/// Has each rater say something of open conversations of a group, in the order of the completions of `input`. A rater
/// has so much time (`limit`) for the group.
pub async fn rate(hosts: &Hosts, samples: &[Sample], input: &RewardInput, limit: Duration) -> Vec<Rating> {
    let mut ratings = vec![Rating::default(); samples.len()];
    for function in hosts.raters() {
        let (found, logged) = asked(hosts, function, samples, input, limit).await;
        ratings.iter_mut().zip(found).for_each(|(rating, outcome)| rating.outcomes.push(outcome));
        if let Some(first) = ratings.first_mut() {
            first.logged.extend(logged);
        }
    }
    ratings
}

/// The outcomes of a rater. Conversations whose process is gone have none: their environments are gone too.
async fn asked(
    hosts: &Hosts,
    function: &str,
    samples: &[Sample],
    input: &RewardInput,
    limit: Duration,
) -> (Vec<RewardOutcome>, Logged) {
    let gone = || RewardOutcome::Failed(format!("{function}: the environment of the conversation is gone"));
    let mut all: Vec<RewardOutcome> = samples.iter().map(|_| gone()).collect();
    let places = hosts.places(samples);
    let Some(host) = places.iter().flatten().map(|(host, _)| host).find(|host| !host.is_over()) else {
        return (all, Logged::default());
    };
    let is_there = |place: &Option<(Arc<Host>, u64)>| {
        place.as_ref().filter(|(other, _)| Arc::ptr_eq(other, host)).map(|(_, episode)| *episode)
    };
    let there: Vec<(usize, u64)> = places.iter().enumerate().filter_map(|(at, p)| Some((at, is_there(p)?))).collect();
    let completions = there.iter().map(|(at, _)| input.completions[*at].clone()).collect();
    let input = RewardInput { completions, ..input.clone() };
    let episodes: Vec<u64> = there.iter().map(|(_, episode)| *episode).collect();
    let fields = Map::from_iter([
        ("function".to_owned(), function.into()),
        ("episodes".to_owned(), json!(episodes)),
        ("group".to_owned(), group(&input).into()),
        ("seconds".to_owned(), limit.as_secs_f64().into()),
    ]);
    let failed = |failure: Failure| (vec![RewardOutcome::Failed(failure.of(function).to_string()); there.len()], None);
    let (found, logged) = match host.ask((0, "rate"), fields, None).await {
        Ok(fields) => match outcomes(&fields.to_string(), &input, (function, host.containment())) {
            Ok((found, logged)) => (found, Some(logged)),
            Err(reason) => failed(Failure::Broken { environment: String::new(), reason, traceback: None }),
        },
        Err(failure) => {
            failure.words().iter().for_each(|line| tracing::warn!("`{function}`: {line}"));
            failed(failure)
        }
    };
    let places: Vec<usize> = there.iter().map(|(at, _)| samples[*at].index as usize).collect();
    there.iter().zip(found).for_each(|((at, _), outcome)| all[*at] = outcome);
    (all, logged.unwrap_or_default().at(&places))
}
