//! A server of OpenEnv: <https://github.com/huggingface/OpenEnv>.
//!
//! An episode is a socket at `/ws`; requests over HTTP have no episode there. The action of an environment is one tool,
//! whose parameters `/schema` describes. An environment with tools of MCP lists them by the action `list_tools`. A
//! server that has no place makes an episode wait. What is wrong with an action is a reply to the policy. All other
//! errors, and a lost socket, are failures of the episode.

mod places;
mod socket;
#[cfg(test)]
mod tests;
mod text;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::{
    MAX_MESSAGE, http_client,
    lines::{Call, Peer, Queued, Reply, Step},
};
use places::Places;
use socket::Socket;

/// What a server says of a place that it does not have.
const FULL: &str = "CAPACITY_REACHED";

/// Errors about an action, which the policy hears of.
const OF_ACTION: [&str; 2] = ["VALIDATION_ERROR", "EXECUTION_ERROR"];

/// A column that a server does not get: the policy has the prompt.
const PROMPT: &str = "prompt";

/// Which reward an episode has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Return {
    /// The sum of all rewards, that of `reset` too.
    Sum,
    /// The last reward.
    Last,
}

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address of another kind.
    #[error("{0} is no address of a server: write ws://HOST:PORT or http://HOST:PORT (without TLS)")]
    Address(String),
    /// No answer.
    #[error("{address} does not answer: {reason}")]
    Silent {
        /// What was asked.
        address: String,
        /// Why not.
        reason: String,
    },
    /// An answer of another kind.
    #[error("{address} does not describe an environment of OpenEnv: {reason}")]
    Other {
        /// What was asked.
        address: String,
        /// What is wrong.
        reason: String,
    },
}

/// A server.
#[derive(Debug)]
pub struct OpenEnv {
    socket: String,
    places: Arc<Places>,
    returns: Return,
    /// Whether its actions are calls of tools.
    has_tools: bool,
    tools: Vec<Value>,
}

/// An episode on a server.
#[derive(Debug)]
pub struct Episode {
    /// Its socket; none once the episode is over.
    open: Option<Socket>,
    /// The reward of `reset`, until a turn has taken it along: the answer to `open` has no place for one.
    first: Option<f64>,
    last: Option<f64>,
}

/// What a server answers.
enum Answer {
    Observation(Value),
    /// An action was wrong.
    Wrong(String),
}

impl OpenEnv {
    /// Asks a server what it has.
    ///
    /// # Errors
    /// A server that does not answer, or is of another kind.
    pub async fn meet(address: &str, returns: Return) -> Result<Self, StartError> {
        let host = address.strip_prefix("ws://").or_else(|| address.strip_prefix("http://"));
        let host = host.ok_or_else(|| StartError::Address(address.to_owned()))?;
        let host = host.trim_end_matches('/').trim_end_matches("/ws");
        let schema_at = format!("http://{host}/schema");
        let schema = fetch(&schema_at).await?;
        let action = &schema["action"];
        let has_tools = ["tool_name", "arguments"].iter().all(|name| !action["properties"][*name].is_null());
        let (socket, places) = (format!("ws://{host}/ws"), Arc::default());
        let mut server = Self { socket, places, returns, has_tools, tools: Vec::new() };
        let other = |reason: String| StartError::Other { address: schema_at.clone(), reason };
        server.tools = if has_tools {
            server.list().await.map_err(other)?
        } else {
            vec![text::action(action).ok_or_else(|| other("there is no schema of its action".to_owned()))?]
        };
        Ok(server)
    }

    /// JSON schemas of its tools.
    #[must_use]
    pub fn tools(&self) -> &[Value] {
        &self.tools
    }

    /// The tools of an environment whose actions are calls.
    async fn list(&self) -> Result<Vec<Value>, String> {
        let (mut socket, _) = self.begin(Map::new(), Arc::new(|| {})).await?;
        let listed = answer(socket.ask(step(json!({"type": "list_tools"}))).await?)?;
        let tools = match &listed {
            Answer::Observation(data) => text::listed(&data["observation"]),
            Answer::Wrong(_) => None,
        };
        tools.ok_or_else(|| "it does not list its tools".to_owned())
    }

    /// A socket with an episode that has begun, and its first observation.
    async fn begin(&self, row: Map<String, Value>, queued: Queued) -> Result<(Socket, Value), String> {
        loop {
            let place = self.places.take(&*queued).await;
            let mut socket = Socket::connect(&self.socket, place).await?;
            let said = socket.ask(json!({"type": "reset", "data": row})).await?;
            if said["type"] == "error" && said["data"]["code"] == FULL {
                let all = said["data"]["max_sessions"].as_u64().and_then(|all| usize::try_from(all).ok());
                drop(socket);
                self.places.refused(all, &*queued).await;
                continue;
            }
            return match answer(said)? {
                Answer::Observation(data) => Ok((socket, data)),
                Answer::Wrong(reason) => Err(format!("`reset` failed: {reason}")),
            };
        }
    }

    /// The answer to one call.
    async fn act(&self, episode: &mut Episode, call: Call) -> Result<(Reply, Option<f64>), String> {
        let Some(socket) = &mut episode.open else {
            return Ok((Reply::failed("the episode is over"), None));
        };
        if !matches!(call.arguments, Value::Object(_) | Value::Null) {
            return Ok((Reply::failed("the arguments are no object"), None));
        }
        let arguments = if call.arguments.is_null() { json!({}) } else { call.arguments };
        let action = match self.has_tools {
            true => json!({"type": "call_tool", "tool_name": call.name, "arguments": arguments}),
            false => arguments,
        };
        let data = match answer(socket.ask(step(action)).await?)? {
            Answer::Observation(data) => data,
            Answer::Wrong(reason) => return Ok((Reply::failed(reason), None)),
        };
        let reply = match self.has_tools {
            true => text::of_tool(&data["observation"]),
            false => Reply { text: text::of_observation(&data["observation"]).unwrap_or_default(), failed: false },
        };
        let (reward, done) = text::outcome(&data)?;
        episode.last = reward.or(episode.last);
        if done {
            // The server would go on. Its place is free for another episode.
            episode.open = None;
        }
        Ok((reply, reward))
    }
}

impl Peer for OpenEnv {
    type Episode = Episode;

    async fn open(&self, mut row: Map<String, Value>, queued: Queued) -> Result<(Episode, Option<String>), String> {
        row.shift_remove(PROMPT);
        let (socket, data) = self.begin(row, queued).await?;
        let text = text::of_observation(&data["observation"]).map(|text| format!("\n{text}"));
        let (reward, done) = text::outcome(&data)?;
        let open = (!done).then_some(socket);
        Ok((Episode { open, first: reward, last: reward }, text))
    }

    async fn step(&self, episode: &mut Episode, calls: Vec<Call>) -> Result<Step, String> {
        let mut step = Step::default();
        if self.returns == Return::Sum {
            step.reward = episode.first.take();
        }
        for call in calls {
            let (reply, reward) = self.act(episode, call).await?;
            step.replies.push(reply);
            if self.returns == Return::Sum {
                step.reward = reward.map(|reward| step.reward.unwrap_or(0.0) + reward).or(step.reward);
            }
        }
        step.done = episode.open.is_none();
        Ok(step)
    }

    fn score(&self, episode: &Episode) -> Option<f64> {
        match self.returns {
            Return::Sum => episode.first,
            Return::Last => episode.last,
        }
    }

    async fn close(&self, episode: Episode) {
        drop(episode);
    }
}

fn step(action: Value) -> Value {
    json!({"type": "step", "data": action})
}

/// Sorts what a server has said.
fn answer(said: Value) -> Result<Answer, String> {
    let data = &said["data"];
    match said["type"].as_str() {
        Some("observation") if data.is_object() => Ok(Answer::Observation(data.clone())),
        Some("observation") => Err("the server's answer has no `data`".to_owned()),
        Some("error") => {
            let (code, reason) = (data["code"].as_str().unwrap_or("an error"), text::of_error(data));
            if OF_ACTION.contains(&code) { Ok(Answer::Wrong(reason)) } else { Err(format!("{code}: {reason}")) }
        }
        _ => Err("the server sent a message of another kind".to_owned()),
    }
}

/// A JSON document.
async fn fetch(address: &str) -> Result<Value, StartError> {
    let silent = |reason: String| StartError::Silent { address: address.to_owned(), reason };
    let other = |reason: &str| StartError::Other { address: address.to_owned(), reason: reason.to_owned() };
    let client = http_client().map_err(silent)?;
    let answer = client.get(address).send().await.and_then(reqwest::Response::error_for_status);
    let mut answer = answer.map_err(|error| silent(error.without_url().to_string()))?;
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(|error| silent(error.without_url().to_string()))? {
        body.extend_from_slice(&part);
        if body.len() > MAX_MESSAGE {
            return Err(other("it is longer than 4 MiB"));
        }
    }
    serde_json::from_slice(&body).map_err(|_| other("it is no JSON"))
}
