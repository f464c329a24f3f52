//! An episode on a server of verifiers 0.4 (`verifiers.v1.serve`): the request for it, and what its answers come to.
//!
//! A server streams what changes in its traces (`delta`), and ends with a `reply` that has no traces any more. All of
//! it is msgpack. Tokens are recorded where the policy is asked, so of a trace only its rewards, its errors and its
//! standing are kept.

use std::collections::BTreeMap;

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::agent::Outcome;

/// Most traces of an episode.
const MAX_TRACES: usize = 256;
/// How deep lists and maps of an answer may lie within each other: each level takes a part of the thread's stack.
const MAX_DEPTH: usize = 100;
/// Most characters of a reason.
const MAX_REASON: usize = 4000;
/// The header that has the key of a sample: a key of verifiers is an environment variable of its server, the same for
/// all episodes.
const KEY_HEADER: &str = "X-Tandem-Sample";
/// The variable that the server takes for a key. It is not set, so the key is a word that no sample has.
const KEY_VARIABLE: &str = "TANDEM_SAMPLE_KEY";

/// Where and how an episode asks the policy.
#[derive(Debug, Clone)]
pub struct Policy {
    /// The endpoint, `http://127.0.0.1:PORT/v1`.
    pub base_url: String,
    /// The run's temperature.
    pub temperature: f32,
    /// The run's `top_p`.
    pub top_p: f32,
}

/// `RunRequest` of the package.
#[derive(Serialize)]
struct RunRequest<'a> {
    /// The row: the fields of the `TaskData` of its taskset.
    task_data: Map<String, Value>,
    client: Client<'a>,
    model: &'a str,
    sampling: Sampling,
}

/// `EvalClientConfig`: requests of a harness are passed on as they are, to be recorded as token ids at the endpoint.
#[derive(Serialize)]
struct Client<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    base_url: &'a str,
    api_key_var: &'a str,
    headers: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct Sampling {
    temperature: f32,
    top_p: f32,
}

/// The request for an episode with a row, a JSON object, whose sample has this key.
///
/// # Errors
/// A row that is no object.
pub fn request(row: &str, key: &str, policy: &Policy) -> Result<Vec<u8>, String> {
    let task_data = serde_json::from_str(row).map_err(|error| format!("the row is no task: {error}"))?;
    let Policy { ref base_url, temperature, top_p } = *policy;
    let request = RunRequest {
        task_data,
        client: Client {
            kind: "eval",
            base_url,
            api_key_var: KEY_VARIABLE,
            headers: BTreeMap::from([(KEY_HEADER, key)]),
        },
        model: "policy",
        sampling: Sampling { temperature, top_p },
    };
    rmp_serde::to_vec_named(&request).map_err(|error| format!("the row is no task: {error}"))
}

/// The request to abort an episode.
///
/// # Errors
/// None that can happen: it is a short text.
pub fn cancel(request_id: &str) -> Result<Vec<u8>, String> {
    rmp_serde::to_vec_named(&BTreeMap::from([("request_id", request_id)])).map_err(|error| error.to_string())
}

/// An answer that does not follow the protocol.
#[derive(Debug, Error)]
#[error("the server of verifiers has sent a {kind} that cannot be read, so it may be no verifiers 0.4: {error}")]
pub struct Unreadable {
    kind: &'static str,
    error: String,
}

fn read<T: DeserializeOwned>(kind: &'static str, bytes: &[u8]) -> Result<T, Unreadable> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
    deserializer.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut deserializer).map_err(|error| Unreadable { kind, error: error.to_string() })
}

/// Whether a server is well, by its answer to `health`.
///
/// # Errors
/// Bytes that are no answer.
pub fn is_well(reply: &[u8]) -> Result<bool, Unreadable> {
    read("reply", reply).map(|reply: Reply| reply.success)
}

/// What has changed in a trace. The server leaves out whatever has not.
#[derive(Deserialize)]
struct Delta {
    trace: String,
    /// A retry of the server has taken its place.
    #[serde(default)]
    discard: bool,
    #[serde(default)]
    nodes: Vec<IgnoredAny>,
    #[serde(default)]
    calls: Vec<IgnoredAny>,
    #[serde(default)]
    errors: Vec<Failure>,
    #[serde(default)]
    set: Changed,
}

#[derive(Default, Deserialize)]
struct Changed {
    agent: Option<Agent>,
    /// The time of one of its stages was over.
    is_timeout: Option<bool>,
    /// Why it has ended, as `scoring_timeout`.
    stop_condition: Option<String>,
    /// By the names of the reward functions. One that has not run yet has none.
    rewards: Option<BTreeMap<String, Option<Reward>>>,
}

#[derive(Deserialize)]
struct Reward {
    score: f64,
    weight: f64,
}

#[derive(Deserialize)]
struct Agent {
    name: String,
    trainable: bool,
    config: AgentConfig,
}

#[derive(Deserialize)]
struct AgentConfig {
    client: Option<AskedClient>,
}

#[derive(Deserialize)]
struct AskedClient {
    base_url: String,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(rename = "type")]
    kind: String,
    message: String,
    traceback: Option<String>,
}

impl Failure {
    fn text(&self) -> String {
        let Self { kind, message, traceback } = self;
        let traceback = traceback.iter().map(|lines| format!("\n{}", lines.trim_end())).collect::<String>();
        format!("{kind}: {message}{traceback}").chars().take(MAX_REASON).collect()
    }
}

/// The end of an episode, without its traces.
#[derive(Deserialize)]
struct Reply {
    success: bool,
    error: Option<String>,
    head: Option<Head>,
    #[serde(default)]
    traces: Vec<Summary>,
}

#[derive(Deserialize)]
struct Head {
    ok: bool,
    is_timeout: bool,
    errors: Vec<Failure>,
}

#[derive(Deserialize)]
struct Summary {
    id: String,
    nodes: usize,
    calls: usize,
}

/// A trace so far.
#[derive(Default)]
struct Trace {
    nodes: usize,
    calls: usize,
    /// Its last error.
    error: Option<String>,
    agent: Option<Agent>,
    is_timeout: bool,
    stop_condition: Option<String>,
    rewards: BTreeMap<String, Option<Reward>>,
}

impl Trace {
    fn is_trained(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.trainable)
    }

    /// Whether it is of an agent whose answers are not to be trained on, and that has had them at `base_url`.
    fn is_bystander(&self, base_url: &str) -> bool {
        let Some(Agent { trainable: false, config, .. }) = &self.agent else { return false };
        config.client.as_ref().is_some_and(|client| client.base_url == base_url)
    }

    /// Whether its agent may have had answers at `base_url`.
    fn has_asked(&self, base_url: &str) -> bool {
        let client = self.agent.as_ref().and_then(|agent| agent.config.client.as_ref());
        self.calls > 0 && client.is_none_or(|client| client.base_url == base_url)
    }

    /// The sum of its rewards. All of them are needed: a part of a sum is another number.
    fn reward(&self) -> Result<f64, Outcome> {
        let missing = self.rewards.iter().find(|(_, reward)| reward.is_none());
        match missing.map(|(name, _)| format!("has no value of its reward `{name}`")) {
            Some(reason) if self.is_timeout => {
                let why = self.stop_condition.as_deref().unwrap_or("timeout");
                return Err(Outcome::Late(format!("the episode of verifiers {reason}: {why}")));
            }
            Some(reason) => return Err(failed(reason)),
            None if self.rewards.is_empty() => {
                return Err(failed("has no reward: its task needs a method with `@vf.reward`".into()));
            }
            None => {}
        }
        let reward: f64 = self.rewards.values().flatten().map(|reward| reward.score * reward.weight).sum();
        if reward.is_finite() { Ok(reward) } else { Err(failed(format!("has the reward {reward}, which is none"))) }
    }
}

/// The failure of an episode that `reason` describes.
fn failed(reason: String) -> Outcome {
    Outcome::Failed(format!("the episode of verifiers {reason}"))
}

/// An episode so far.
#[derive(Default)]
pub struct Episode {
    traces: BTreeMap<String, Trace>,
    /// Those whose places retries of the server have taken.
    discarded: Vec<Trace>,
}

impl Episode {
    /// Takes a change.
    ///
    /// # Errors
    /// Bytes that are none, or more traces than an episode may have.
    pub fn take(&mut self, delta: &[u8]) -> Result<(), Unreadable> {
        let Delta { trace, discard, nodes, calls, errors, set } = read("delta", delta)?;
        if discard {
            self.discarded.extend(self.traces.remove(&trace));
            return Ok(());
        }
        if self.traces.len() + self.discarded.len() == MAX_TRACES && !self.traces.contains_key(&trace) {
            let error = format!("an episode has more than {MAX_TRACES} traces");
            return Err(Unreadable { kind: "delta", error });
        }
        let trace = self.traces.entry(trace).or_default();
        trace.nodes += nodes.len();
        trace.calls += calls.len();
        trace.error = errors.last().map(Failure::text).or(trace.error.take());
        trace.agent = set.agent.or(trace.agent.take());
        trace.is_timeout = set.is_timeout.unwrap_or(trace.is_timeout);
        let stop_condition = set.stop_condition.map(|text| text.chars().take(MAX_REASON).collect());
        trace.stop_condition = stop_condition.or(trace.stop_condition.take());
        if let Some(rewards) = set.rewards {
            trace.rewards = rewards;
        }
        Ok(())
    }

    /// How the episode has ended, by the reply to it. Its agents have asked the policy at `base_url`.
    #[must_use]
    pub fn end(self, reply: &[u8], base_url: &str) -> Outcome {
        match read("reply", reply) {
            Ok(reply) => self.judge(reply, base_url).unwrap_or_else(|outcome| outcome),
            Err(error) => Outcome::Failed(error.to_string()),
        }
    }

    fn judge(mut self, reply: Reply, base_url: &str) -> Result<Outcome, Outcome> {
        let head = match reply {
            Reply { success: true, head: Some(head), .. } => head,
            Reply { error, .. } => {
                let reason: String = error.unwrap_or_default().chars().take(MAX_REASON).collect();
                return Err(failed(format!("was refused by its server: {reason}")));
            }
        };
        let mut traces = Vec::new();
        for Summary { id, nodes, calls } in reply.traces {
            // As the package's own client does: a change that was lost may have had the reward.
            let trace = self.traces.remove(&id).filter(|trace| (trace.nodes, trace.calls) == (nodes, calls));
            traces.push(trace.ok_or_else(|| failed("has not arrived as a whole".into()))?);
        }
        if !head.ok {
            let of_traces = traces.iter().filter_map(|trace| trace.error.clone());
            let reason = head.errors.iter().map(Failure::text).chain(of_traces).next_back();
            let reason = reason.unwrap_or_else(|| "without a reason".into());
            let late = || Outcome::Late(format!("the episode of verifiers was too late: {reason}"));
            return Err(if head.is_timeout { late() } else { failed(format!("has failed: {reason}")) });
        }
        if self.discarded.iter().any(|trace| trace.has_asked(base_url)) {
            return Err(failed(
                "has been tried again by its server, whose first attempt has sampled tokens: leave `retries` of the \
                 environment off"
                    .into(),
            ));
        }
        if let Some(Trace { agent: Some(agent), .. }) = traces.iter().find(|trace| trace.is_bystander(base_url)) {
            return Err(failed(format!(
                "has an agent that is not trained and asks the policy (`{}`): give it a client of its own in the \
                 environment's configuration",
                agent.name
            )));
        }
        let trained: Vec<&Trace> = traces.iter().filter(|trace| trace.is_trained()).collect();
        let &[trace] = &trained[..] else {
            return Err(failed(format!("has {} agents that are trained, and must have one", trained.len())));
        };
        trace.reward().map(Outcome::Rewarded)
    }
}

#[cfg(test)]
mod tests {
    use harness::golden_dir;
    use serde_json::json;

    use super::*;

    const URL: &str = "http://127.0.0.1:8961/v1";

    fn packed(value: &Value) -> Vec<u8> {
        rmp_serde::to_vec_named(value).unwrap()
    }

    /// How an episode ends with these changes and this reply.
    fn ended(deltas: &[Value], reply: &Value) -> Outcome {
        let mut episode = Episode::default();
        deltas.iter().for_each(|delta| episode.take(&packed(delta)).unwrap());
        episode.end(&packed(reply), URL)
    }

    /// A trace of an agent with these rewards, as one change.
    fn trace(id: &str, trainable: bool, url: &str, rewards: Value) -> Value {
        let agent = json!({ "name": "solver", "trainable": trainable, "config": { "client": { "base_url": url } } });
        json!({ "trace": id, "nodes": [{}, {}], "calls": [1], "set": { "agent": agent, "rewards": rewards } })
    }

    /// A reply to an episode with these traces.
    fn reply(ok: bool, traces: &[&str]) -> Value {
        let traces: Vec<Value> = traces.iter().map(|id| json!({ "id": id, "nodes": 2, "calls": 1 })).collect();
        let head = json!({ "ok": ok, "is_timeout": false, "errors": [], "id": "e" });
        json!({ "success": true, "error": null, "head": head, "traces": traces })
    }

    /// A recorded episode: its request, and its end.
    fn recorded(id: &str) -> (Vec<u8>, Outcome) {
        let text = std::fs::read_to_string(golden_dir().join("wire/verifiers_zmq.jsonl")).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let bytes = |row: &Value| match row["payload_hex"].as_str() {
            Some(hex) => {
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
            }
            None => packed(&row["payload"]),
        };
        let (mut episode, mut request) = (Episode::default(), Vec::new());
        for row in rows {
            let kind = |way: &str| if row[way][0] == id { row[way][1].as_str() } else { None };
            match (kind("send"), kind("recv")) {
                (Some(_), _) => request = bytes(&row),
                (_, Some("delta")) => episode.take(&bytes(&row)).unwrap(),
                (_, Some("reply")) => return (request, episode.end(&bytes(&row), URL)),
                _ => {}
            }
        }
        panic!("no reply to {id}");
    }

    #[test]
    fn golden_verifiers_zmq() {
        let (asked, outcome) = recorded("r2");
        assert_eq!(outcome, Outcome::Rewarded(0.0));
        let policy = Policy { base_url: URL.into(), temperature: 1.0, top_p: 1.0 };
        let row = json!({ "idx": 0, "prompt": "What is 2 + 2?", "answer": "4" });
        let ours: Value = rmp_serde::from_slice(&request(&row.to_string(), "key", &policy).unwrap()).unwrap();
        let theirs: Value = rmp_serde::from_slice(&asked).unwrap();
        assert_eq!(ours["task_data"], theirs["task_data"]);
        assert_eq!(ours["client"]["base_url"], theirs["client"]["base_url"]);
        assert_eq!(
            (&ours["client"]["type"], &ours["client"]["headers"]),
            (&json!("eval"), &json!({ KEY_HEADER: "key" }))
        );
        assert_eq!(
            (&ours["model"], &ours["sampling"]),
            (&json!("policy"), &json!({ "temperature": 1.0, "top_p": 1.0 }))
        );
        for (id, reason) in [
            ("r5", "was refused by its server: ValidationError: 3 validation errors for RunRequest\nclient"),
            ("r6", "was refused by its server: ValidationError: 3 validation errors for SumsData\nprompt"),
            ("r7", "has failed: ProviderError: Connection error."),
        ] {
            let Outcome::Failed(found) = recorded(id).1 else { panic!("{id} has not failed") };
            assert!(found.starts_with(&format!("the episode of verifiers {reason}")), "{found}");
        }
    }

    #[test]
    fn a_reward_is_the_weighted_sum_of_those_of_the_trace() {
        let rewards = json!({ "right": { "score": 1.0, "weight": 0.5 }, "short": { "score": -0.25, "weight": 1 } });
        assert_eq!(ended(&[trace("a", true, URL, rewards)], &reply(true, &["a"])), Outcome::Rewarded(0.25));
        let judged = json!({ "right": { "score": 1.0, "weight": 1.0 } });
        let judge = trace("b", false, "http://elsewhere/v1", json!({ "own": { "score": 5.0, "weight": 1.0 } }));
        let both = [trace("a", true, URL, judged), judge];
        assert_eq!(ended(&both, &reply(true, &["a", "b"])), Outcome::Rewarded(1.0));
        // A retry of the server leaves out the first attempt, which nobody trains on if it has not asked the policy.
        for first in [trace("c", true, "http://elsewhere/v1", json!({})), json!({ "trace": "c", "nodes": [1] })] {
            let again = [first, json!({ "trace": "c", "discard": true }), both[0].clone()];
            assert_eq!(ended(&again, &reply(true, &["a"])), Outcome::Rewarded(1.0));
        }
    }

    #[test]
    fn whatever_is_no_reward_is_a_failure_with_its_reason() {
        let one = json!({ "right": { "score": 1.0, "weight": 1.0 } });
        let good = trace("a", true, URL, one.clone());
        let failing =
            json!({ "trace": "a", "errors": [{ "type": "TaskError", "message": "no key", "traceback": "line 3\n" }] });
        let infinite = json!({ "right": { "score": 1e308, "weight": 1e308 } });
        for (deltas, reply, reason) in [
            (vec![good.clone(), failing], reply(false, &["a"]), "has failed: TaskError: no key\nline 3"),
            (vec![good.clone()], reply(false, &["a"]), "has failed: without a reason"),
            (vec![good.clone()], reply(true, &["b"]), "has not arrived as a whole"),
            (vec![json!({ "trace": "a", "nodes": [1] })], reply(true, &["a"]), "has not arrived as a whole"),
            (vec![trace("a", true, URL, json!({}))], reply(true, &["a"]), "has no reward"),
            (
                vec![trace("a", true, URL, json!({ "right": { "score": 1.0, "weight": 1.0 }, "short": null }))],
                reply(true, &["a"]),
                "has no value of its reward `short`",
            ),
            (
                vec![trace("c", true, URL, one.clone()), json!({ "trace": "c", "discard": true }), good.clone()],
                reply(true, &["a"]),
                "has been tried again by its server",
            ),
            (vec![trace("a", true, URL, infinite)], reply(true, &["a"]), "has the reward inf"),
            (vec![trace("a", false, "other", one.clone())], reply(true, &["a"]), "has 0 agents that are trained"),
            (
                vec![good.clone(), trace("b", true, URL, one.clone())],
                reply(true, &["a", "b"]),
                "has 2 agents that are trained",
            ),
            (
                vec![good.clone(), trace("b", false, URL, one)],
                reply(true, &["a", "b"]),
                "has an agent that is not trained and asks the policy (`solver`)",
            ),
            (
                vec![good],
                json!({ "success": false, "error": "Cancelled: rollout aborted" }),
                "was refused by its server: Cancelled",
            ),
        ] {
            let Outcome::Failed(found) = ended(&deltas, &reply) else { panic!("no failure: {reason}") };
            assert!(found.starts_with(&format!("the episode of verifiers {reason}")), "{found}");
        }
        let mut late = reply(false, &[]);
        late["head"]["is_timeout"] = true.into();
        assert!(matches!(ended(&[], &late), Outcome::Late(_)));
        let mut unscored = trace("a", true, URL, json!({ "right": null }));
        (unscored["set"]["is_timeout"], unscored["set"]["stop_condition"]) = (true.into(), "scoring_timeout".into());
        let expected = "the episode of verifiers has no value of its reward `right`: scoring_timeout";
        assert_eq!(ended(&[unscored], &reply(true, &["a"])), Outcome::Late(expected.into()));
        let deep = Episode::default().end(&[&b"\x81\xa1x"[..], &[0x91; 100_000][..]].concat(), URL);
        assert!(matches!(&deep, Outcome::Failed(reason) if reason.contains("depth limit")), "{deep:?}");
        let unreadable = Episode::default().end(b"\xc1", URL);
        assert!(
            matches!(&unreadable, Outcome::Failed(reason) if reason.contains("may be no verifiers 0.4")),
            "{unreadable:?}"
        );
    }

    #[test]
    fn an_episode_has_a_bounded_number_of_traces_and_any_bytes_may_come() {
        let mut episode = Episode::default();
        let mut open = |at: usize| episode.take(&packed(&json!({ "trace": at.to_string() })));
        (0..MAX_TRACES).for_each(|at| open(at).unwrap());
        assert!(open(0).is_ok() && open(MAX_TRACES).is_err());
        let one = trace("a", true, URL, json!({ "right": { "score": 1.0, "weight": 1.0 } }));
        let seeds = [packed(&one), packed(&reply(true, &["a"])), cancel("1").unwrap()];
        harness::fuzz::explore("verifiers_answers", &seeds, |bytes| {
            let mut episode = Episode::default();
            episode.take(&seeds[0]).unwrap();
            let _ = episode.take(bytes);
            if let Outcome::Rewarded(reward) = episode.end(bytes, URL) {
                assert!(reward.is_finite());
            }
        });
    }
}
