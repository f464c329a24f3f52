//! The ledger of a run: the fate of every prompt and of every completion that was made for it. The learner writes it,
//! step by step; `tandem explain` reads it.
//!
//! Each *position* in the endless order of the dataset's prompts is used up exactly once: by a group in a step's batch,
//! or by a group that dynamic sampling made before it and dropped. So the positions of a step follow those of the step
//! before without a gap, and each completion has one state.

mod file;
mod tokens;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::declare::choices;

pub use file::{LedgerFile, events, read};
pub use tokens::TokenRecord;

choices! {
    /// The fate of a completion.
    LedgerState {
        /// It was in the loss of an update that was made. With an advantage of 0, it counted in the divisor and had no
        /// policy gradient.
        Trained = "trained",
        /// It counted for the baseline of its group and was left out of the loss, since it was cut off
        /// (`mask_truncated_completions`).
        Truncated = "truncated",
        /// The correction for the mismatch between sampler and learner gave all of its tokens the weight 0.
        OffPolicy = "off_policy",
        /// The policy had moved away from it: `off_policy_mask_threshold` left it out of the policy term of every pass.
        OffPolicyMasked = "off_policy_masked",
        /// All of its tokens were of low entropy: `top_entropy_quantile` left them out of the policy term of every
        /// pass.
        LowEntropy = "low_entropy",
        /// `early_stop_imp_ratio` left out its minibatch in every pass.
        EarlyStopped = "early_stopped",
        /// Only the critic learnt from it (`critic_warmup_steps`).
        CriticWarmup = "critic_warmup",
        /// A reward function failed on it (`reward_failure` exclude), or the functions that did not fail had no score
        /// for it.
        RewardFailed = "reward_failed",
        /// Its environment failed, or it took too long, so it has no reward.
        EnvironmentFailed = "environment_failed",
        /// It took much longer than others of its group, and was left out (`stragglers` train_rest).
        Straggler = "straggler",
        /// Every reward function abstained (TRL's None): it has no reward, and its advantage is 0.
        Abstained = "abstained",
        /// Its group was sampled from weights that were older than `max_staleness` allows.
        Stale = "stale",
        /// Dynamic sampling replaced its group, which had no contrast.
        NoContrast = "no_contrast",
        /// All of its updates were left out: by the guard, or because loss or gradient was not finite.
        StepSkipped = "step_skipped",
        /// It was trained, and a roll-back gave up the result.
        RolledBack = "rolled_back",
        /// The sampler gave it up.
        Aborted = "aborted",
        /// It was finished or begun when the run ended before its step.
        InFlight = "in_flight",
    }
}

/// A line of `ledger.jsonl` about a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LedgerGroup {
    /// Number of the step, counted from 1.
    pub step: u64,
    /// Index within the step's batch; none for a group that dynamic sampling dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Its place in the endless order of prompts.
    pub position: u64,
    /// Row of the dataset.
    pub prompt_id: u64,
    /// Pass over the dataset, from 0.
    pub epoch: u32,
    /// State of each completion, by its index in the group.
    pub states: Vec<LedgerState>,
    /// Dynamic sampling put it into the batch without contrast, since its attempts were used up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filler: bool,
}

impl LedgerGroup {
    /// Whether the run ended before the step that would have used it.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        !self.states.is_empty() && self.states.iter().all(|state| *state == LedgerState::InFlight)
    }
}

/// Completions of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completions {
    /// The group's place in the endless order of prompts.
    pub position: u64,
    /// Its index within the step's batch, if it is in the batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// Indices of the completions in the group, ascending.
    pub samples: Vec<u32>,
}

/// An event that concerns steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LedgerEvent {
    /// A process resumed from the checkpoint after `step`. Later steps that had been made were made again, under the
    /// same ids.
    Resumed,
    /// A roll-back gave up the steps from `from` to the event's.
    RolledBack {
        /// The first step whose result was given up.
        from: u64,
    },
    /// Completions of a group of the step survived in the checkpoint that the run resumed from, when both processes
    /// died.
    CarriedOver(Completions),
    /// Completions of a group of the step had been begun when that checkpoint was written, and were made again, under
    /// the same ids.
    MadeAgain(Completions),
    /// Completions of a group of the step were drawn again: the first ones were dropped for their stragglers.
    DrawnAgain(Completions),
}

/// A line of `ledger.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LedgerLine {
    /// A group.
    Group(LedgerGroup),
    /// An event after `step`.
    Event {
        /// Completed steps.
        step: u64,
        /// The event.
        event: LedgerEvent,
    },
}

impl LedgerLine {
    /// The step that it belongs to.
    #[must_use]
    pub fn step(&self) -> u64 {
        match self {
            Self::Group(group) => group.step,
            Self::Event { step, .. } => *step,
        }
    }
}

/// Checks that the groups of a step use up these positions, each one once, and that each group has states for
/// `num_generations` completions.
///
/// # Errors
/// The discrepancy, in words.
pub fn check_balance(groups: &[LedgerGroup], used_up: Range<u64>, num_generations: usize) -> Result<(), String> {
    let mut positions: Vec<u64> = groups.iter().map(|group| group.position).collect();
    positions.sort_unstable();
    if !positions.iter().copied().eq(used_up.clone()) {
        let Range { start, end } = used_up;
        return Err(format!(
            "the prompts from {start} to before {end} were used up, and its groups are of {positions:?}"
        ));
    }
    match groups.iter().find(|group| group.states.len() != num_generations) {
        None => Ok(()),
        Some(group) => Err(format!(
            "the group at {} has {} completions instead of {num_generations}",
            group.position,
            group.states.len()
        )),
    }
}

/// The states of a group as they are after all events: completions given up by a roll-back are not trained any more.
#[must_use]
pub fn states_now(group: &LedgerGroup, lines: &[LedgerLine]) -> Vec<LedgerState> {
    let given_up = lines.iter().any(|line| match line {
        LedgerLine::Event { step, event: LedgerEvent::RolledBack { from } } => (*from..=*step).contains(&group.step),
        _ => false,
    });
    let now = |state: &LedgerState| match state {
        LedgerState::Trained if given_up => LedgerState::RolledBack,
        state => *state,
    };
    group.states.iter().map(now).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(step: u64, position: u64) -> LedgerGroup {
        LedgerGroup {
            step,
            group: Some(0),
            position,
            prompt_id: position % 3,
            epoch: 0,
            states: vec![LedgerState::Trained, LedgerState::Truncated],
            filler: false,
        }
    }

    #[test]
    fn every_prompt_is_used_up_once_and_every_completion_has_a_state() {
        let groups = [group(4, 11), group(4, 10)];
        assert_eq!(check_balance(&groups, 10..12, 2), Ok(()));
        assert!(check_balance(&groups, 10..13, 2).unwrap_err().contains("from 10 to before 13"));
        assert!(check_balance(&[group(4, 10), group(4, 10)], 10..12, 2).is_err());
        assert!(check_balance(&groups, 10..12, 3).unwrap_err().contains("has 2 completions instead of 3"));
    }

    #[test]
    fn what_a_roll_back_gave_up_is_no_longer_trained() {
        let lines = [LedgerLine::Event { step: 6, event: LedgerEvent::RolledBack { from: 5 } }];
        let states = |step| states_now(&group(step, 1), &lines)[0];
        assert_eq!([4, 5, 6, 7].map(states), {
            use LedgerState::{RolledBack, Trained};
            [Trained, RolledBack, RolledBack, Trained]
        });
        assert_eq!(states_now(&group(5, 1), &lines)[1], LedgerState::Truncated);
    }

    #[test]
    fn lines_are_read_as_written() {
        let completions = |group| Completions { position: 10, group, samples: vec![0, 3] };
        let lines = [
            LedgerLine::Event { step: 5, event: LedgerEvent::CarriedOver(completions(Some(1))) },
            LedgerLine::Event { step: 5, event: LedgerEvent::MadeAgain(completions(None)) },
            LedgerLine::Event { step: 5, event: LedgerEvent::DrawnAgain(completions(Some(2))) },
            LedgerLine::Group(LedgerGroup { group: None, filler: true, ..group(4, 10) }),
            LedgerLine::Event { step: 4, event: LedgerEvent::RolledBack { from: 3 } },
            LedgerLine::Event { step: 4, event: LedgerEvent::Resumed },
        ];
        for line in lines {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<LedgerLine>(&text).unwrap(), line, "{text}");
        }
    }
}
