//! The exchange of a policy with its tools and its environment: messages, calls, and the end of the episode.
//!
//! Tokens and their owners are in the [`Episode`](crate::Episode). An exchange has what the tokens do not tell.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{RewardOutcome, StepScore};
use crate::declare::choices;

choices! {
    /// Why an episode with tools or an environment ended.
    EpisodeEnd {
        /// A turn ended by itself and called no tool, or the environment was done.
        Stop = "stop",
        /// A turn was cut at `max_completion_length` or at the model's length.
        Length = "length",
        /// A turn called tools, and `max_tool_calling_iterations` was reached.
        TurnLimit = "turn_limit",
        /// A reply had no room within `max_completion_length` or the model's length, and was taken back.
        ReplyTooLong = "reply_too_long",
        /// The environment did not answer within `environment_timeout`, or the episode took longer than
        /// `episode_timeout`.
        Deadline = "deadline",
        /// The environment failed.
        EnvironmentFailed = "environment_failed",
        /// The sampler gave the episode up.
        Aborted = "aborted",
        /// It took much longer than others of its group (`straggler_after`).
        Straggler = "straggler",
    }
}

impl EpisodeEnd {
    /// Whether the environment or time is to blame. Such an episode has no reward, and is not trained on.
    #[must_use]
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Deadline | Self::EnvironmentFailed | Self::Straggler)
    }
}

/// Messages as JSON: a frame cannot hold values of any type. Those of several conversations are a list for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages(String);

impl Messages {
    /// The text of messages.
    ///
    /// # Panics
    /// Never: values of JSON have a text.
    #[must_use]
    pub fn of(messages: &[Value]) -> Self {
        Self(serde_json::to_string(messages).expect("values of JSON have a text"))
    }

    /// The text of the messages of conversations.
    ///
    /// # Panics
    /// Never: values of JSON have a text.
    #[must_use]
    pub fn of_each(conversations: &[Vec<Value>]) -> Self {
        match conversations {
            [] => Self::of(&[]),
            [one] => Self::of(one),
            several => Self(serde_json::to_string(several).expect("values of JSON have a text")),
        }
    }

    /// The messages, of one conversation after the other; none where the text is no such list.
    #[must_use]
    pub fn values(&self) -> Vec<Value> {
        self.of_conversations().into_iter().flatten().collect()
    }

    /// The messages of each conversation.
    #[must_use]
    pub fn of_conversations(&self) -> Vec<Vec<Value>> {
        let of_one = || vec![serde_json::from_str(&self.0).unwrap_or_default()];
        serde_json::from_str::<Vec<Vec<Value>>>(&self.0).ok().filter(|all| !all.is_empty()).unwrap_or_else(of_one)
    }
}

/// What an episode with tools or an environment has beside its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The messages of the completion, with the roles `assistant` and `tool`.
    pub messages: Messages,
    /// The text of the environment (TRL's `reset`), which is at the end of the prompt's last user message, or of its
    /// last message where none is the user's.
    pub opening: Option<String>,
    /// Why the episode ended.
    pub end: EpisodeEnd,
    /// Why the environment failed, where it did.
    pub failure: Option<String>,
    /// Calls of tools.
    pub calls: u32,
    /// Calls that failed; the policy read their errors as replies.
    pub failed_calls: u32,
    /// One outcome for each reward of an environment, behind those of the reward functions. Rewards by turn are
    /// [`Steps`](RewardOutcome::Steps) whose ends are numbers of turns, from 0; the reward at the end of the episode
    /// has the number of turns for its end. [`Completion::rewards`](crate::Completion::rewards) has their sum.
    pub rewards: Vec<RewardOutcome>,
    /// Requests that went on from a state whose keys and values had to be computed again.
    pub recomputed: u32,
    /// Seconds that the policy waited for its environment.
    pub waited_seconds: f64,
    /// Seconds from the opening of the environment to the end of the episode.
    pub seconds: f64,
    /// Requests of its agent whose values of sampling were replaced by the run's; none without an agent.
    pub overridden: Option<u32>,
}

impl Exchange {
    /// An exchange with these messages that ended in this way, of which nothing else is known.
    #[must_use]
    pub fn new(messages: &[Value], end: EpisodeEnd) -> Self {
        Self {
            messages: Messages::of(messages),
            opening: None,
            end,
            failure: None,
            calls: 0,
            failed_calls: 0,
            rewards: Vec::new(),
            recomputed: 0,
            waited_seconds: 0.0,
            seconds: 0.0,
            overridden: None,
        }
    }

    /// Rewards that the environment gave by turn, each with the number of the turn; the number of turns stands for the
    /// end. Empty where it gave one reward, or none.
    #[must_use]
    pub fn turn_rewards<'a>(&'a self) -> &'a [StepScore] {
        let by_turn = |outcome: &'a RewardOutcome| match outcome {
            RewardOutcome::Steps(turns) => Some(&turns[..]),
            _ => None,
        };
        self.rewards.iter().find_map(by_turn).unwrap_or_default()
    }

    /// The reason why the completion has no reward, where the environment failed.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.end.is_failure().then(|| self.failure.as_deref().unwrap_or("the environment failed"))
    }

    /// Memory that it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.messages.0.len() + self.opening.as_ref().map_or(0, String::len)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::declare::Choice;

    #[test]
    fn an_exchange_gives_its_messages_back_and_a_broken_one_has_none() {
        let messages = [json!({"role": "assistant", "content": "a"}), json!({"role": "tool", "content": "\u{e9}"})];
        let exchange = Exchange::new(&messages, EpisodeEnd::Stop);
        assert_eq!(exchange.messages.values(), messages);
        assert_eq!(exchange.reason(), None);
        assert_eq!(Messages("{".into()).values(), [] as [Value; 0]);
    }

    #[test]
    fn messages_of_several_conversations_stay_apart() {
        let [first, second] = [json!({"role": "assistant", "content": "a"}), json!({"role": "user", "content": "b"})];
        let all = vec![vec![first.clone()], vec![second.clone(), first.clone()], Vec::new()];
        let messages = Messages::of_each(&all);
        assert_eq!(messages.of_conversations(), all);
        assert_eq!(messages.values(), [first.clone(), second, first.clone()]);
        let alone = Messages::of_each(&all[..1]);
        assert_eq!(alone, Messages::of(&all[0]), "as before there were several");
        assert_eq!(alone.of_conversations(), all[..1]);
        assert_eq!(Messages::of_each(&[]).of_conversations(), [Vec::<Value>::new()]);
    }

    #[test]
    fn only_failure_and_time_take_the_reward() {
        let failures = EpisodeEnd::ALL.iter().filter(|end| end.is_failure()).copied().collect::<Vec<_>>();
        assert_eq!(failures, [EpisodeEnd::Deadline, EpisodeEnd::EnvironmentFailed, EpisodeEnd::Straggler]);
        let late = Exchange { failure: Some("late".into()), ..Exchange::new(&[], EpisodeEnd::Deadline) };
        assert_eq!(late.reason(), Some("late"));
    }
}
