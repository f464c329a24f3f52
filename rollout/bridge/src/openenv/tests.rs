//! What a recorded server says, what a server does wrong, and a server of the package.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Map, Value, json};
use tokio::{
    io::BufReader,
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

use super::{OpenEnv, Return};
use crate::{
    lines::{Call, Peer, Queued, Reply, Step},
    testing::{answer, asked, json as read, python, recording, server},
};

/// An environment of the package.
const PACKAGE: &str = r#"
import sys
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
import uvicorn


class Guess(Action):
    number: int


class Answer(Observation):
    text: str = ""


class Numbers(Environment):
    def reset(self, seed=None, episode_id=None, secret=0, **row):
        self.secret = secret
        return Answer(text="Between 0 and 100.")

    def step(self, action, **more):
        if action.number > 100:
            raise ValueError("above 100")
        found = action.number == self.secret
        return Answer(text="found" if found else "no", reward=float(found), done=found)

    @property
    def state(self):
        return State()


uvicorn.run(create_fastapi_app(Numbers, Guess, Answer), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"#;

/// A server that says what another one has said to the same messages.
struct Server {
    schema: Value,
    /// Each message with its answer.
    pairs: Vec<(Value, Value)>,
    /// What it says to whom it has no place for.
    full: Value,
    places: usize,
    live: AtomicUsize,
}

impl Server {
    /// Plays a recording, with further pairs.
    fn of(file: &str, schema: Option<Value>, more: Vec<(Value, Value)>, places: usize) -> Arc<Self> {
        let lines = recording(file);
        let recorded = lines.iter().find(|line| line["path"] == "/schema").map(|line| line["body"].clone());
        let frames = lines.iter().filter(|line| line["conn"].is_number());
        let frames: Vec<(Option<&str>, &Value)> = frames.map(|line| (line["send"].as_str(), &line["recv"])).collect();
        let mut pairs = more;
        for two in frames.windows(2) {
            let [(Some(sent), _), (_, said)] = two else { continue };
            if let Ok(sent) = serde_json::from_str(sent)
                && said.is_string()
            {
                pairs.push((sent, read(said)));
            }
        }
        let is_full = |said: &&&Value| said.as_str().is_some_and(|said| said.contains("CAPACITY_REACHED"));
        let full = frames.iter().map(|(_, said)| said).find(is_full).map_or(Value::Null, |said| read(said));
        Arc::new(Self { schema: schema.or(recorded).unwrap(), pairs, full, places, live: AtomicUsize::new(0) })
    }

    /// The address of the server.
    async fn start(self: &Arc<Self>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Arc::clone(self);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(Arc::clone(&server).serve(stream));
            }
        });
        format!("ws://{address}")
    }

    async fn serve(self: Arc<Self>, stream: TcpStream) {
        let mut begin = [0; 8];
        while stream.peek(&mut begin).await.unwrap() < begin.len() {}
        if &begin == b"GET /sch" {
            let mut stream = BufReader::new(stream);
            assert_eq!(asked(&mut stream).await.unwrap().unwrap().path, "/schema");
            answer(&mut stream, (200, &[], &self.schema.to_string())).await.unwrap();
            return;
        }
        let mut socket = accept_async(stream).await.unwrap();
        if self.live.fetch_add(1, Ordering::SeqCst) >= self.places {
            socket.send(Message::text(self.full.to_string())).await.unwrap();
        } else {
            self.play(&mut socket).await;
        }
        let _ = socket.close(None).await;
        let _ = timeout(Duration::from_secs(1), async { while let Some(Ok(_)) = socket.next().await {} }).await;
        self.live.fetch_sub(1, Ordering::SeqCst);
    }

    async fn play(&self, socket: &mut WebSocketStream<TcpStream>) {
        while let Some(Ok(message)) = socket.next().await {
            let Message::Text(text) = message else { continue };
            let sent: Value = serde_json::from_str(&text).unwrap();
            if sent["type"] == "close" || sent["data"]["number"] == "lose" {
                return;
            }
            let said = self.pairs.iter().find(|(known, _)| *known == sent);
            let said = said.unwrap_or_else(|| panic!("nobody has sent {sent}"));
            socket.send(Message::text(said.1.to_string())).await.unwrap();
        }
    }
}

fn row(row: Value) -> Map<String, Value> {
    row.as_object().unwrap().clone()
}

fn call(name: &str, arguments: Value) -> Call {
    Call { name: name.to_owned(), arguments }
}

fn guess(number: Value) -> Vec<Call> {
    vec![call("guess", json!({"number": number}))]
}

fn nobody() -> Queued {
    Arc::new(|| panic!("there is a place"))
}

fn said(text: &str) -> Reply {
    Reply { text: text.to_owned(), failed: false }
}

fn one(reply: Reply, reward: Option<f64>, done: bool) -> Result<Step, String> {
    Ok(Step { replies: vec![reply], reward, done })
}

/// A reset that the server answers with an error.
fn failing(code: &str) -> (Value, Value) {
    let error = json!({"type": "error", "data": {"message": "no sea", "code": code}});
    (json!({"type": "reset", "data": {"code": code}}), error)
}

#[tokio::test]
async fn golden_openenv_ws() {
    let codes = ["SESSION_ERROR", "FACTORY_ERROR", "EXECUTION_ERROR"];
    let server = Server::of("openenv_ws.jsonl", None, codes.map(failing).to_vec(), 9);
    let peer = OpenEnv::meet(&server.start().await, Return::Sum).await.unwrap();
    let number = json!({"description": "The number tried", "type": "integer"});
    let parameters = json!({"additionalProperties": false, "properties": {"number": number}, "required": ["number"],
                            "type": "object"});
    let function = json!({"name": "guess", "description": "Acts in the environment.", "parameters": parameters});
    assert_eq!(peer.tools(), [json!({"type": "function", "function": function})]);
    let columns = json!({"seed": 7, "episode_id": "row-12/3", "secret": 63, "unknown": [1, null], "prompt": []});
    let (mut episode, text) = peer.open(row(columns), nobody()).await.unwrap();
    assert_eq!(text.as_deref(), Some("\nBetween 0 and 100 – wähle!"));
    assert_eq!(peer.step(&mut episode, guess(50.into())).await, one(said("higher"), Some(0.0), false));
    assert_eq!(peer.step(&mut episode, guess(75.into())).await, one(said("lower"), Some(0.0), false));
    // What is wrong with an action is a reply, and the episode goes on.
    let wrong = "Invalid message: number: Input should be a valid integer, unable to parse string as an integer";
    let turn = [guess("many".into()), guess(101.into()), vec![call("guess", json!([5]))], guess(50.into())].concat();
    let step = peer.step(&mut episode, turn).await.unwrap();
    let failed = [wrong, "above 100", "the arguments are no object"].map(Reply::failed);
    assert_eq!(step.replies, [&failed[..], &[said("higher")]].concat());
    assert_eq!((step.reward, step.done, peer.score(&episode)), (Some(0.0), false, None));
    // An episode that is over is over, though the server would go on.
    let (mut found, _) = peer.open(row(json!({"episode_id": "again", "secret": 5})), nobody()).await.unwrap();
    assert_eq!(peer.step(&mut found, guess(5.into())).await, one(said("found"), Some(1.0), true));
    assert_eq!(peer.step(&mut found, guess(5.into())).await, one(Reply::failed("the episode is over"), None, true));
    for code in codes {
        let failure = peer.open(row(json!({"code": code})), nobody()).await.unwrap_err();
        assert!(failure.ends_with("no sea") && (failure.contains(code) || failure.contains("`reset`")), "{failure}");
    }
    let lost = peer.step(&mut episode, guess("lose".into())).await;
    assert_eq!(lost, Err("the server has closed the socket".to_owned()));
}

#[tokio::test]
async fn the_last_reward_may_be_that_of_the_episode() {
    let server = Server::of("openenv_ws.jsonl", None, Vec::new(), 9);
    let peer = OpenEnv::meet(&server.start().await, Return::Last).await.unwrap();
    let (mut episode, _) = peer.open(row(json!({"episode_id": "again", "secret": 5})), nobody()).await.unwrap();
    assert_eq!(peer.step(&mut episode, guess(5.into())).await, one(said("found"), None, true));
    assert_eq!(peer.score(&episode), Some(1.0));
}

/// A reset whose column `case` gets this answer.
fn reset(case: &str, answer: Value) -> (Value, Value) {
    (json!({"type": "reset", "data": {"case": case}}), answer)
}

/// An action whose number gets this answer.
fn acted(number: u64, answer: Value) -> (Value, Value) {
    (json!({"type": "step", "data": {"number": number}}), answer)
}

fn observed(data: Value) -> Value {
    json!({"type": "observation", "data": data})
}

#[tokio::test]
async fn the_reward_of_reset_counts_with_the_first_turn_or_alone() {
    let begun = |done: bool| observed(json!({"observation": {}, "reward": 0.25, "done": done}));
    let pairs = vec![
        reset("begun", begun(false)),
        reset("over", begun(true)),
        acted(1, observed(json!({"observation": "a", "reward": 0.5, "done": false}))),
        acted(2, observed(json!({"observation": "a", "reward": null, "done": false}))),
    ];
    let server = Server::of("openenv_ws.jsonl", None, pairs, 9);
    let address = server.start().await;
    for (returns, rewards, scores) in [
        (Return::Sum, [Some(0.75), Some(0.5), Some(0.25)], [Some(0.25), None, None, None]),
        (Return::Last, [None; 3], [Some(0.25), Some(0.5), Some(0.5), Some(0.25)]),
    ] {
        let peer = OpenEnv::meet(&address, returns).await.unwrap();
        let open = async |case: &str| peer.open(row(json!({"case": case})), nobody()).await.unwrap().0;
        let mut episode = open("begun").await;
        let mut found = vec![peer.score(&episode)];
        for reward in &rewards[..2] {
            assert_eq!(peer.step(&mut episode, guess(1.into())).await, one(said("a"), *reward, false));
            found.push(peer.score(&episode));
        }
        let mut over = open("over").await;
        let ended = peer.step(&mut over, guess(1.into())).await;
        assert_eq!(ended, one(Reply::failed("the episode is over"), rewards[2], true));
        found.push(peer.score(&over));
        assert_eq!(found, scores, "{returns:?}");
        let mut silent = open("begun").await;
        assert_eq!(peer.step(&mut silent, guess(2.into())).await, one(said("a"), rewards[2], false));
    }
}

#[tokio::test]
async fn an_answer_with_wrong_fields_is_a_failure_with_the_reason() {
    let wrong = [
        (json!({"observation": {}, "reward": "1.0"}), r#"the server's reward is "1.0""#),
        (json!({"observation": {}, "done": "true"}), r#"the server's `done` is "true", neither true nor false"#),
        (Value::Null, "the server's answer has no `data`"),
    ];
    let mut pairs = vec![reset("begun", observed(json!({"observation": {}})))];
    for (number, (data, _)) in wrong.iter().enumerate() {
        pairs.push(reset(&number.to_string(), observed(data.clone())));
        pairs.push(acted(number as u64, observed(data.clone())));
    }
    let server = Server::of("openenv_ws.jsonl", None, pairs, 9);
    let peer = OpenEnv::meet(&server.start().await, Return::Sum).await.unwrap();
    for (number, (_, reason)) in wrong.iter().enumerate() {
        let opened = peer.open(row(json!({"case": number.to_string()})), nobody()).await;
        assert_eq!(opened.unwrap_err(), *reason);
        let (mut episode, _) = peer.open(row(json!({"case": "begun"})), nobody()).await.unwrap();
        assert_eq!(peer.step(&mut episode, guess(number.into())).await, Err((*reason).to_owned()));
    }
}

#[tokio::test]
async fn golden_openenv_mcp() {
    let properties = json!({"type": {}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}});
    let schema = json!({"action": {"title": "CallToolAction", "properties": properties}});
    let ready = json!({"observation": {"metadata": {"ready": true}}, "reward": null, "done": false});
    let more = vec![(json!({"type": "reset", "data": {}}), json!({"type": "observation", "data": ready}))];
    let server = Server::of("openenv_mcp.jsonl", Some(schema), more, 9);
    let peer = OpenEnv::meet(&server.start().await, Return::Sum).await.unwrap();
    let names: Vec<_> = peer.tools().iter().map(|tool| tool["function"]["name"].clone()).collect();
    assert_eq!(names, ["add", "fail"]);
    assert_eq!(peer.tools()[0]["function"]["parameters"]["required"], json!(["a", "b"]));
    let (mut episode, text) = peer.open(row(json!({"episode_id": "m1"})), nobody()).await.unwrap();
    assert_eq!(text, None);
    for (name, arguments, reply) in [
        ("add", json!({"a": 20, "b": 22}), said("42")),
        ("missing", json!({}), Reply::failed("Unknown tool: 'missing'")),
        ("fail", json!({"text": "no"}), Reply::failed("Error calling tool 'fail': no")),
    ] {
        assert_eq!(peer.step(&mut episode, vec![call(name, arguments)]).await, one(reply, None, false));
    }
}

#[tokio::test]
async fn whoever_finds_no_place_waits_for_one_and_never_fails() {
    let reset = json!({"type": "reset", "data": {}});
    let begun = json!({"type": "observation", "data": {"observation": {}, "reward": null, "done": false}});
    let server = Server::of("openenv_ws.jsonl", None, vec![(reset, begun)], 1);
    let peer = Arc::new(OpenEnv::meet(&server.start().await, Return::Sum).await.unwrap());
    let waits = Arc::new(AtomicUsize::new(0));
    let queued: Queued = {
        let waits = Arc::clone(&waits);
        Arc::new(move || {
            waits.fetch_add(1, Ordering::SeqCst);
        })
    };
    let (first, _) = peer.open(Map::new(), nobody()).await.unwrap();
    let other = || {
        let (peer, queued) = (Arc::clone(&peer), Arc::clone(&queued));
        tokio::spawn(async move {
            let (episode, _) = peer.open(Map::new(), queued).await.unwrap();
            peer.close(episode).await;
        })
    };
    let others = [other(), other(), other()];
    sleep(Duration::from_millis(1500)).await;
    assert!(others.iter().all(|other| !other.is_finished()));
    assert!(waits.load(Ordering::SeqCst) >= 3, "each has said that it waits");
    peer.close(first).await;
    for other in others {
        timeout(Duration::from_secs(20), other).await.expect("its turn comes").unwrap();
    }
}

#[tokio::test]
async fn what_is_no_server_of_openenv_is_named() {
    let meet = async |address: &str| OpenEnv::meet(address, Return::Sum).await.unwrap_err().to_string();
    assert!(meet("https://host").await.contains("write ws://HOST:PORT"));
    let silent = meet("ws://127.0.0.1:1").await;
    assert!(silent.starts_with("http://127.0.0.1:1/schema does not answer: "), "{silent}");
    let server = Server::of("openenv_ws.jsonl", Some(json!({"other": 1})), Vec::new(), 1);
    let other = meet(&server.start().await).await;
    assert!(other.contains("does not describe an environment of OpenEnv: there is no schema"), "{other}");
}

#[tokio::test]
async fn a_server_of_the_package_openenv_is_an_environment() {
    let test = "a_server_of_the_package_openenv_is_an_environment";
    let Some(python) = python("TANDEM_OPENENV_PYTHON", "openenv.core.env_server") else {
        return harness::skipped(test, "no Python here has openenv (TANDEM_OPENENV_PYTHON)");
    };
    let (_server, port) = server(&python, PACKAGE);
    let peer = OpenEnv::meet(&format!("http://127.0.0.1:{port}"), Return::Sum).await.unwrap();
    assert_eq!(peer.tools()[0]["function"]["name"], "guess");
    let waits: Queued = Arc::new(|| {});
    let opened = peer.open(row(json!({"prompt": "p", "secret": 7})), Arc::clone(&waits)).await;
    let (mut episode, text) = opened.unwrap();
    assert_eq!(text.as_deref(), Some("\nBetween 0 and 100."));
    assert_eq!(peer.step(&mut episode, guess(3.into())).await, one(said("no"), Some(0.0), false));
    for wrong in [json!("many"), json!(101), json!(null)] {
        let step = peer.step(&mut episode, guess(wrong)).await.unwrap();
        assert!(step.replies[0].failed && !step.done && step.reward.is_none(), "{step:?}");
    }
    // The server has one place, which is taken.
    let second = timeout(Duration::from_millis(500), peer.open(Map::new(), Arc::clone(&waits))).await;
    assert!(second.is_err());
    assert_eq!(peer.step(&mut episode, guess(7.into())).await, one(said("found"), Some(1.0), true));
    let second = timeout(Duration::from_secs(20), peer.open(Map::new(), waits)).await;
    assert!(second.expect("the place is free again").is_ok());
}
