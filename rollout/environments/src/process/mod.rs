//! Environments in processes that are asked by lines: the user's interpreter with functions and classes, or a program.
//!
//! A process holds thousands of episodes, and answers requests in any order. docs/environments-protocol.md describes
//! the lines. The conversations of a group share a process. Containment, limits, folder and log are those of rewards.

mod answer;
mod host;
mod hosts;

use std::sync::Arc;

use serde_json::{Map, Value, json};

pub use answer::Greeting;
pub use host::{FirstLine, Host, Invocation, Manner, Queued};
pub use hosts::Hosts;

use crate::{
    Failure,
    environment::{BoxFuture, Environment, Opening, Sample, Step, Turn},
};
use answer::Unusable;
use hosts::Seat;

/// An environment in a process.
pub struct Hosted {
    hosts: Arc<Hosts>,
    sample: Sample,
    role: Role,
    /// Hears once that it waits for a place.
    queued: Option<Queued>,
    /// Its place in a process, once it has begun.
    seat: Option<Seat>,
    /// Whether a turn was given a reward.
    is_rewarded: bool,
}

/// Which of the environments of a process it is.
#[derive(Debug, Clone)]
pub struct Role {
    /// The name that chooses it.
    pub key: Option<String>,
    /// Its entry, for messages.
    pub entry: String,
    /// Whether it may give a reward at the end.
    pub rewards: bool,
    /// Whether its reward is the sum of those of its turns and of its end, as a program's is. A sum of none is 0.
    pub is_summed: bool,
}

impl Hosted {
    /// An environment for a conversation.
    pub fn new(hosts: Arc<Hosts>, sample: Sample, role: Role, queued: Queued) -> Self {
        Self { hosts, sample, role, queued: Some(queued), seat: None, is_rewarded: false }
    }

    /// Asks for something about its episode.
    async fn ask<T>(
        &mut self,
        wanted: &'static str,
        fields: Value,
        read: impl FnOnce(&Value) -> Result<T, Unusable> + Send,
    ) -> Result<T, Failure> {
        let queued = if wanted == "open" { self.queued.take() } else { None };
        let of_entry = |failure: Failure| failure.of(&self.role.entry);
        let Some(Seat { host, episode, .. }) = &self.seat else {
            return Err(of_entry(Unusable::from("it was asked before it began").failure()));
        };
        let fields = if let Value::Object(fields) = fields { fields } else { Map::new() };
        let answer = host.ask((*episode, wanted), fields, queued).await.map_err(of_entry)?;
        read(&answer).map_err(|unusable| of_entry(unusable.failure()))
    }
}

impl Environment for Hosted {
    fn init(&mut self, row: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
        let fields = json!({"environment": self.role.key, "row": row});
        Box::pin(async move {
            self.seat = Some(self.hosts.enter(self.sample).map_err(|failure| failure.of(&self.role.entry))?);
            self.ask("open", fields, answer::opening).await
        })
    }

    fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
        let call = |call: &shared_chat::turn::ToolCall| json!({"name": call.name, "arguments": call.arguments});
        let calls: Vec<Value> = turn.calls.iter().map(call).collect();
        let fields = json!({"calls": calls, "text": turn.text});
        Box::pin(async move {
            let step = self.ask("step", fields, |answer| answer::step(answer, &turn.calls)).await?;
            self.is_rewarded |= step.reward.is_some();
            Ok(step)
        })
    }

    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
        Box::pin(async move {
            if !self.role.rewards {
                return Ok(None);
            }
            let reward = self.ask("score", Value::Null, answer::reward).await?;
            let is_none_in_all = self.role.is_summed && !self.is_rewarded;
            Ok(reward.or(is_none_in_all.then_some(0.0)))
        })
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.hosts.leave(seat);
        }
    }
}
