//! Reward functions and environments that fail: which they are, how often and why.

use shared::{
    Completion, EpisodeEnd, Placed, RewardOutcome, RunDir,
    config::{RAISE_MAX_MODEL_LEN, RewardsOn, TrainConfig},
};

use crate::error::LearnerError;

/// Most letters of a reason that are shown; a traceback is in the sampler's log as a whole.
const SHOWN: usize = 300;

/// Who failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// A reward function, by its name.
    Function(String),
    /// Environments of conversations. Reward functions are not asked about these.
    Environments,
}

/// What a step has heard of a reward function that failed on some of its completions, or of environments that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failures {
    /// Who failed.
    pub who: Who,
    /// Completions on which it failed.
    pub failed: usize,
    /// Completions that it was asked about, or that are conversations.
    pub asked: usize,
    /// Why it failed the last time, on one line.
    pub reason: String,
    /// Conversations among those that failed for want of room, and not by a fault of an environment or agent.
    pub without_room: usize,
}

impl Failures {
    /// Whether it has failed on every completion.
    #[must_use]
    pub fn everywhere(&self) -> bool {
        self.failed == self.asked
    }

    /// Whether all that failed did so for want of room.
    #[must_use]
    pub fn wants_room(&self) -> bool {
        self.failed > 0 && self.without_room == self.failed
    }

    /// Says in the log of a step that it has failed.
    pub fn warn(&self, step: u64) {
        let Self { who, failed, asked, reason, .. } = self;
        match who {
            Who::Function(name) => tracing::warn!(
                "step {step}: reward function `{name}` failed on {failed} of {asked} completions, the last: {reason}"
            ),
            Who::Environments if self.wants_room() => {
                tracing::warn!("step {step}: {failed} of {asked} conversations failed, the last: {reason}");
            }
            Who::Environments => tracing::warn!(
                "step {step}: the environments of {failed} of {asked} conversations failed, the last: {reason}"
            ),
        }
    }

    /// Why a run ends with a step in which it has failed on everything.
    #[must_use]
    pub fn error(&self, step: u64, config: &TrainConfig, run_dir: &RunDir) -> LearnerError {
        let Self { who, asked, reason, .. } = self;
        let log = match config.rewards_on {
            RewardsOn::Run => run_dir.log("rollout").display().to_string(),
            RewardsOn::Workers => "the log of the worker that called it".to_owned(),
        };
        LearnerError::Reward(match who {
            Who::Function(name) => format!(
                "reward function `{name}` failed on all {asked} completions of step {step}, the last: {reason}; what \
                 it printed is in {log}; correct it, or set `reward_failure_stops` to false to train without it"
            ),
            Who::Environments if self.wants_room() => format!(
                "all {asked} conversations of step {step} failed, the last: {reason}. More is in {log}. To train \
                 without these conversations, set `reward_failure_stops` to false"
            ),
            Who::Environments if config.verifiers().is_some() => format!(
                "the episodes of verifiers of all {asked} completions of step {step} failed, the last: {reason}; more \
                 is in {log} and in the log of the server; correct its environment, or set `reward_failure_stops` to \
                 false to train without these completions"
            ),
            Who::Environments if config.agent.is_some() => format!(
                "the agents of all {asked} completions of step {step} failed, the last: {reason}; what they printed is \
                 in {log}; correct `agent`, or set `reward_failure_stops` to false to train without these completions"
            ),
            Who::Environments => format!(
                "the environments of all {asked} conversations of step {step} failed, the last: {reason}; what they \
                 printed is in {log}; correct `environment_factory` or `tools`, or the columns of the dataset that \
                 they read, or set `reward_failure_stops` to false to train without these conversations"
            ),
        })
    }
}

/// Who failed on any completion of a step: environments, then functions in the order in which they are configured.
#[must_use]
pub fn of(groups: &[Placed]) -> Vec<Failures> {
    let completions: Vec<&Completion> = groups.iter().flat_map(|group| &group.completions).collect();
    // A straggler has lost a race, and no environment has failed.
    let exchanges = completions.iter().filter_map(|completion| completion.exchange.as_ref());
    let exchanges = exchanges.filter(|one| one.end != EpisodeEnd::Straggler);
    let lost = exchanges.clone().filter_map(|one| one.reason());
    let environments = Failures {
        who: Who::Environments,
        failed: lost.clone().count(),
        asked: exchanges.count(),
        reason: lost.clone().next_back().map(one_line).unwrap_or_default(),
        without_room: lost.filter(|reason| reason.contains(RAISE_MAX_MODEL_LEN)).count(),
    };
    let names = groups.first().map_or(&[][..], |group| &group.reward_names);
    let outcomes = |function: usize| {
        let scored = completions.iter().filter(|completion| !completion.environment_failed());
        scored.filter_map(move |completion| completion.rewards.get(function))
    };
    let of_function = |(function, (name, _)): (usize, &(String, f64))| {
        let reason = |outcome: &RewardOutcome| match outcome {
            RewardOutcome::Failed(reason) => Some(one_line(reason)),
            _ => None,
        };
        Some(Failures {
            who: Who::Function(name.clone()),
            failed: outcomes(function).filter(|outcome| outcome.has_failed()).count(),
            asked: outcomes(function).count(),
            reason: outcomes(function).filter_map(reason).next_back()?,
            without_room: 0,
        })
    };
    let functions = names.iter().enumerate().filter_map(of_function);
    Some(environments).filter(|found| found.failed > 0).into_iter().chain(functions).collect()
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
    use shared::{Exchange, Group, GroupId, generation::testing};

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

    fn function(name: &str) -> Who {
        Who::Function(name.to_owned())
    }

    #[test]
    fn a_conversation_without_its_environment_is_no_failure_of_a_function() {
        let lost = |sample, reason: Option<&str>| {
            let end = if reason.is_some() { EpisodeEnd::EnvironmentFailed } else { EpisodeEnd::Stop };
            let exchange = Exchange { failure: reason.map(str::to_owned), ..Exchange::new(&[], end) };
            let outcome = reason.map_or(RewardOutcome::Score(1.0), |reason| RewardOutcome::Failed(reason.to_owned()));
            Completion {
                rewards: vec![outcome],
                exchange: Some(Box::new(exchange)),
                ..testing::completion(sample, vec![1])
            }
        };
        let group = |completions| {
            let group = Group { reward_names: vec![("judge".into(), 1.0)], ..testing::group(0, completions) };
            testing::placed(GroupId::default(), group)
        };
        let environments = |failed, reason: &str| {
            let reason = reason.to_owned();
            Failures { who: Who::Environments, failed, asked: 2, reason, without_room: 0 }
        };
        assert_eq!(of(&[group(vec![lost(0, Some("no maze")), lost(1, None)])]), [environments(1, "no maze")]);
        let all = of(&[group(vec![lost(0, Some("no maze")), lost(1, Some("late"))])]);
        assert_eq!(all, [environments(2, "late")]);
        assert!(all[0].everywhere());
        let error = all[0].error(3, &TrainConfig::default(), &RunDir::new("run")).to_string();
        assert!(error.contains("environments of all 2 conversations of step 3 failed, the last: late"), "{error}");
        let reason = format!("no room: {RAISE_MAX_MODEL_LEN}");
        let of_both = |first: &str| of(&[group(vec![lost(0, Some(first)), lost(1, Some(&reason))])]).remove(0);
        assert!(!of_both("no maze").wants_room(), "an environment is at fault as well");
        let crowded = of_both(&reason);
        for agent in [None, Some("./agent")] {
            let config = TrainConfig { agent: agent.map(str::to_owned), ..TrainConfig::default() };
            let error = crowded.error(3, &config, &RunDir::new("run")).to_string();
            assert!(error.contains(&format!("all 2 conversations of step 3 failed, the last: {reason}")), "{error}");
            assert!(!error.contains("correct"), "nothing is wrong with environment and agent: {error}");
            assert!(error.ends_with("conversations, set `reward_failure_stops` to false"), "{error}");
        }
        for (agent, expected) in
            [("./agent", "the agents of all 2"), ("verifiers:tcp://localhost:1", "the episodes of")]
        {
            let config = TrainConfig { agent: Some(agent.into()), ..TrainConfig::default() };
            let error = all[0].error(3, &config, &RunDir::new("run")).to_string();
            assert!(error.contains(expected) && error.contains("of step 3 failed, the last: late"), "{error}");
        }
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
        let judge = Failures { who: function("judge"), failed: 3, asked: 3, reason: "c at d".into(), without_room: 0 };
        let format = Failures { who: function("format"), failed: 1, asked: 3, reason: "late".into(), without_room: 0 };
        assert_eq!(found, [judge, format]);
        assert!(found[0].everywhere() && !found[1].everywhere());
        let found = of(&[group(&[[failed("a"), Score(0.0)], [NotApplicable, Score(0.0)]])]);
        assert!(found.len() == 1 && !found[0].everywhere());
        assert_eq!(of(&[group(&[[Score(0.0), NotApplicable]])]), []);
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[group(&[[failed(&"é".repeat(400)), Score(0.0)]])])[0].reason, format!("{} …", "é".repeat(300)));
    }
}
