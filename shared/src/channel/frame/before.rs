//! Groups in the layout of frame versions 8 and 9, which files of older builds hold: one struct for all states of a
//! group, whose completions have one turn.

use serde::Deserialize;

use crate::generation::{
    episode::{Episode, FinishReason, TokenLogprob},
    group::{Completion, Dropped, Group, Placed, Provenance, RewardOutcome, Scored},
    ids::{GroupId, PolicyVersion, PromptId},
};

/// A group in any state.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize, Clone))]
pub struct RolloutGroup {
    id: GroupId,
    prompt_id: PromptId,
    epoch: u32,
    prompt_ids: Vec<u32>,
    prompt_text: String,
    completions: Vec<OneTurn>,
    reward_names: Vec<(String, f64)>,
    policy_version: PolicyVersion,
    cursor: u64,
    dropped: Vec<DroppedGroup>,
    filler: bool,
    generation_seconds: f64,
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize, Clone))]
struct OneTurn {
    sample: u32,
    token_ids: Vec<u32>,
    logprobs: Vec<TokenLogprob>,
    versions: Vec<(u32, PolicyVersion)>,
    text: String,
    finish_reason: FinishReason,
    rewards: Vec<RewardOutcome>,
    provenance: Provenance,
}

/// Its mean reward and the number of its tokens follow from the completions.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize, Clone))]
struct DroppedGroup {
    prompt_id: PromptId,
    epoch: u32,
    prompt_text: String,
    completions: Vec<OneTurn>,
    _reward: Option<f64>,
    _tokens: u64,
    stale: bool,
}

impl From<OneTurn> for Completion {
    fn from(turn: OneTurn) -> Self {
        Self {
            sample: turn.sample,
            episode: Episode::of_one_turn(turn.token_ids, turn.logprobs, turn.versions, turn.finish_reason),
            text: turn.text,
            rewards: turn.rewards,
            provenance: turn.provenance,
            exchange: None,
            routing: None,
        }
    }
}

fn all(turns: Vec<OneTurn>) -> Vec<Completion> {
    turns.into_iter().map(Completion::from).collect()
}

impl From<RolloutGroup> for Group {
    fn from(before: RolloutGroup) -> Self {
        Self {
            // A group of an evaluation had no position, and its id counted rows.
            position: before.cursor.checked_sub(1).unwrap_or_else(|| before.id.index.into()),
            prompt_id: before.prompt_id,
            epoch: before.epoch,
            prompt_ids: before.prompt_ids,
            prompt_text: before.prompt_text,
            completions: all(before.completions),
            reward_names: before.reward_names,
            generation_seconds: before.generation_seconds,
            notes: Box::default(),
        }
    }
}

impl From<RolloutGroup> for Scored {
    fn from(before: RolloutGroup) -> Self {
        Self { policy_version: before.policy_version, group: before.into() }
    }
}

impl From<RolloutGroup> for Placed {
    fn from(mut before: RolloutGroup) -> Self {
        let dropped = std::mem::take(&mut before.dropped);
        let (id, filler) = (before.id, before.filler);
        let scored = Scored::from(before);
        let begin = scored.position.saturating_sub(dropped.len() as u64);
        let of = |(position, dropped): (u64, DroppedGroup)| Dropped {
            scored: Scored::from(Group {
                position,
                prompt_id: dropped.prompt_id,
                epoch: dropped.epoch,
                prompt_ids: Vec::new(),
                prompt_text: dropped.prompt_text,
                completions: all(dropped.completions),
                reward_names: scored.reward_names.clone(),
                generation_seconds: 0.0,
                notes: Box::default(),
            }),
            stale: dropped.stale,
        };
        Self { id, dropped: (begin..).zip(dropped).map(of).collect(), filler, scored }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::ids::Step;

    fn group(cursor: u64) -> RolloutGroup {
        RolloutGroup {
            id: GroupId { step: Step(0), index: 5 },
            prompt_id: PromptId(9),
            epoch: 0,
            prompt_ids: vec![1],
            prompt_text: String::new(),
            completions: Vec::new(),
            reward_names: Vec::new(),
            policy_version: PolicyVersion(0),
            cursor,
            dropped: Vec::new(),
            filler: false,
            generation_seconds: 0.0,
        }
    }

    #[test]
    fn a_group_of_an_evaluation_has_the_position_of_its_row() {
        assert_eq!([0, 3].map(|cursor| Scored::from(group(cursor)).position), [5, 2]);
    }

    #[test]
    fn what_was_dropped_keeps_its_completions_and_has_the_positions_before_the_group() {
        let turn = |sample, version| OneTurn {
            sample,
            token_ids: vec![sample, 7],
            logprobs: vec![TokenLogprob::default(); 2],
            versions: vec![(0, PolicyVersion(version))],
            text: format!("of {sample}"),
            finish_reason: FinishReason::Length,
            rewards: vec![RewardOutcome::Score(0.5)],
            provenance: Provenance::MadeAgain,
        };
        let dropped = |prompt: u64, completions| DroppedGroup {
            prompt_id: PromptId(prompt),
            epoch: 2,
            prompt_text: "p".into(),
            completions,
            _reward: Some(0.5),
            _tokens: 4,
            stale: prompt == 1,
        };
        let before = RolloutGroup {
            dropped: vec![dropped(1, vec![turn(0, 3), turn(1, 4)]), dropped(2, vec![turn(0, 5)])],
            completions: vec![turn(0, 6)],
            ..group(9)
        };
        let bytes = postcard::to_stdvec(&before).unwrap();
        let placed = Placed::from(postcard::from_bytes::<RolloutGroup>(&bytes).unwrap());
        assert_eq!((placed.position, placed.begin(), placed.completions.len()), (8, 6, 1));
        let found =
            |dropped: &Dropped| (dropped.position, dropped.prompt_id.0, dropped.policy_version.0, dropped.stale);
        assert_eq!(placed.dropped.iter().map(found).collect::<Vec<_>>(), [(6, 1, 3, true), (7, 2, 5, false)]);
        let second = &placed.dropped[0].completions[1];
        assert_eq!((second.sample, second.token_ids(), &*second.text), (1, &[1, 7][..], "of 1"));
        assert_eq!((second.finish_reason(), second.provenance), (FinishReason::Length, Provenance::MadeAgain));
        assert_eq!(second.rewards, [RewardOutcome::Score(0.5)]);
    }
}
