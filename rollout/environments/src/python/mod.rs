//! Tools and environments in Python as TRL takes them, in processes of the user's interpreter.
//!
//! A process holds thousands of instances ([`host.py`](host.py) describes the lines that go in and out). The
//! conversations of a group share one, so that a rater, a reward function that asks for `environments`, sees all their
//! instances. Containment, limits, interpreter and log are those of rewards.

mod answer;
mod host;
mod hosts;
mod rating;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use shared::config::rewards::PythonPlace;

pub use answer::Greeting;
pub use hosts::Hosts;
pub use rating::{Rating, rate};

use crate::{
    Failure,
    environment::{BoxFuture, Environment, Opening, Sample, Step, Turn},
};
use hosts::Seat;

/// A function or a class that an entry names.
#[derive(Debug, Clone)]
pub struct Named {
    /// The entry.
    pub entry: String,
    /// Where it is.
    pub place: PythonPlace,
    /// Its name there.
    pub name: String,
}

/// All that a process imports.
#[derive(Debug, Default)]
pub struct InPython<'a> {
    /// Functions.
    pub tools: Vec<&'a Named>,
    /// Classes, each with the name that chooses it.
    pub classes: Vec<(Option<&'a str>, &'a Named)>,
    /// Reward functions that ask for environments.
    pub raters: Vec<&'a Named>,
}

/// An environment in a process.
pub struct PythonEnvironment {
    hosts: Arc<Hosts>,
    sample: Sample,
    /// The name that chooses its class.
    key: Option<String>,
    /// Its entry, for messages.
    entry: String,
    /// Its place in a process, once it has begun.
    seat: Option<Seat>,
}

impl PythonEnvironment {
    /// An environment for a conversation.
    pub fn new(hosts: Arc<Hosts>, sample: Sample, key: Option<String>, entry: String) -> Self {
        Self { hosts, sample, key, entry, seat: None }
    }

    /// Asks for something about its episode.
    fn ask<T>(
        &self,
        mut request: Value,
        read: fn(Value) -> Result<T, String>,
    ) -> impl Future<Output = Result<T, Failure>> {
        let asked = self.seat.as_ref().map(|seat| {
            request["episode"] = seat.episode.into();
            seat.host.ask(request)
        });
        async move {
            let broken = |reason: String| Failure::Broken { environment: String::new(), reason, traceback: None };
            let answer = match asked {
                Some(asked) => asked.await,
                None => Err(broken("it was asked before it began".to_owned())),
            };
            answer.and_then(|answer| read(answer).map_err(broken)).map_err(|failure| failure.of(&self.entry))
        }
    }
}

impl Environment for PythonEnvironment {
    fn init(&mut self, row: &Map<String, Value>) -> BoxFuture<'_, Result<Opening, Failure>> {
        let request = json!({"do": "open", "environment": self.key, "row": row});
        Box::pin(async move {
            self.seat = Some(self.hosts.enter(self.sample).map_err(|failure| failure.of(&self.entry))?);
            self.ask(request, answer::opening).await
        })
    }

    fn step(&mut self, turn: Turn) -> BoxFuture<'_, Result<Step, Failure>> {
        let call = |call: &shared_chat::turn::ToolCall| json!({"name": call.name, "arguments": call.arguments});
        let calls: Vec<Value> = turn.calls.iter().map(call).collect();
        let many = calls.len();
        Box::pin(async move {
            let step = self.ask(json!({"do": "step", "calls": calls, "text": turn.text}), answer::step).await?;
            if step.replies.len() == many {
                return Ok(step);
            }
            let reason = format!("answered {} replies to {many} calls", step.replies.len());
            Err(Failure::Broken { environment: self.entry.clone(), reason, traceback: None })
        })
    }

    fn score(&mut self) -> BoxFuture<'_, Result<Option<f64>, Failure>> {
        Box::pin(self.ask(json!({"do": "score"}), answer::reward))
    }
}

impl Drop for PythonEnvironment {
    fn drop(&mut self) {
        if let Some(seat) = self.seat.take() {
            self.hosts.leave(seat);
        }
    }
}
