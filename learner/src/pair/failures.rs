//! Reward functions that fail: which they are, how often and why.

use shared::{
    Placed, RewardOutcome, RunDir,
    config::{RewardsOn, TrainConfig},
};

use crate::error::LearnerError;

/// Most letters of a reason that are shown; a traceback is in the sampler's log as a whole.
const SHOWN: usize = 300;

/// What a step has heard of one reward function that failed on some of its completions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failures {
    /// The function.
    pub name: String,
    /// Completions on which it failed.
    pub failed: usize,
    /// Completions that it was asked about.
    pub asked: usize,
    /// Why it failed the last time, on one line.
    pub reason: String,
}

impl Failures {
    /// Whether it has failed on every completion.
    #[must_use]
    pub fn everywhere(&self) -> bool {
        self.failed == self.asked
    }

    /// Says in the log of a step that it has failed.
    pub fn warn(&self, step: u64) {
        let Self { name, failed, asked, reason } = self;
        tracing::warn!(
            "step {step}: reward function `{name}` failed on {failed} of {asked} completions, the last: {reason}"
        );
    }

    /// Why a run ends with a step in which it has failed on everything.
    #[must_use]
    pub fn error(&self, step: u64, config: &TrainConfig, run_dir: &RunDir) -> LearnerError {
        let Self { name, asked, reason, .. } = self;
        let log = match config.rewards_on {
            RewardsOn::Run => run_dir.log("rollout").display().to_string(),
            RewardsOn::Workers => "the log of the worker that called it".to_owned(),
        };
        LearnerError::Reward(format!(
            "reward function `{name}` failed on all {asked} completions of step {step}, the last: {reason}; what it \
             printed is in {log}; correct it, or set `reward_failure_stops` to false to train without it"
        ))
    }
}

/// The functions that failed on any completion of a step, in the order in which they are configured.
#[must_use]
pub fn of(groups: &[Placed]) -> Vec<Failures> {
    let names = groups.first().map_or(&[][..], |group| &group.reward_names);
    let outcomes = |function: usize| {
        let completions = groups.iter().flat_map(|group| &group.completions);
        completions.filter_map(move |completion| completion.rewards.get(function))
    };
    let of_function = |(function, (name, _)): (usize, &(String, f64))| {
        let reason = |outcome: &RewardOutcome| match outcome {
            RewardOutcome::Failed(reason) => Some(one_line(reason)),
            _ => None,
        };
        Some(Failures {
            name: name.clone(),
            failed: outcomes(function).filter(|outcome| outcome.has_failed()).count(),
            asked: outcomes(function).count(),
            reason: outcomes(function).filter_map(reason).next_back()?,
        })
    };
    names.iter().enumerate().filter_map(of_function).collect()
}

fn one_line(reason: &str) -> String {
    let words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    match words.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} …", &words[..end]),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use shared::{Completion, Group, GroupId, generation::testing};

    use super::*;

    fn group(rewards: &[[RewardOutcome; 2]]) -> Placed {
        let completion = |(rewards, sample): (&[RewardOutcome; 2], u32)| Completion {
            rewards: rewards.to_vec(),
            ..testing::completion(sample, vec![1])
        };
        let reward_names = vec![("judge".into(), 1.0), ("format".into(), 1.0)];
        let group = Group { reward_names, ..testing::group(0, rewards.iter().zip(0..).map(completion).collect()) };
        testing::placed(GroupId::default(), group)
    }

    #[test]
    fn a_function_is_dead_when_it_failed_everywhere_and_not_when_it_abstained_somewhere() {
        use RewardOutcome::{Failed, NotApplicable, Score};
        let failed = |reason: &str| Failed(reason.to_owned());
        let dead = [
            group(&[[failed("a"), Score(0.0)], [failed("b"), failed("late")]]),
            group(&[[failed("c\n  at d"), Score(1.0)]]),
        ];
        let found = of(&dead);
        let judge = Failures { name: "judge".into(), failed: 3, asked: 3, reason: "c at d".into() };
        let format = Failures { name: "format".into(), failed: 1, asked: 3, reason: "late".into() };
        assert_eq!(found, [judge, format]);
        assert!(found[0].everywhere() && !found[1].everywhere());
        let found = of(&[group(&[[failed("a"), Score(0.0)], [NotApplicable, Score(0.0)]])]);
        assert!(found.len() == 1 && !found[0].everywhere());
        assert_eq!(of(&[group(&[[Score(0.0), NotApplicable]])]), []);
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[group(&[[failed(&"é".repeat(400)), Score(0.0)]])])[0].reason, format!("{} …", "é".repeat(300)));
    }
}
