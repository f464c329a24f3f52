//! The lines between sampler and bridge.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};

/// The version of the lines.
pub const PROTOCOL: u64 = 1;

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// Whatever the policy wrote, mostly an object.
    pub arguments: Value,
}

/// A reply to a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// Its text.
    pub text: String,
    /// Whether the call went wrong.
    pub failed: bool,
}

impl Reply {
    /// The reply to a call that went wrong.
    #[must_use]
    pub fn failed(reason: impl Into<String>) -> Self {
        Self { text: reason.into(), failed: true }
    }
}

/// The answer to a turn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Step {
    /// A reply for each call.
    pub replies: Vec<Reply>,
    /// A reward for the turn.
    pub reward: Option<f64>,
    /// Whether the episode is over.
    pub done: bool,
}

/// Hears that an episode waits for a place.
pub type Queued = Arc<dyn Fn() + Send + Sync>;

/// What is on the other side. An error is a failure of the episode: its first line says why, and further lines are the
/// last words of a program.
pub trait Peer: Send + Sync + 'static {
    /// An episode that has begun.
    type Episode: Send;

    /// Begins an episode for a row, with a text for the prompt. While it waits for a place, it calls
    /// `queued` every second or so.
    fn open(
        &self,
        row: Map<String, Value>,
        queued: Queued,
    ) -> impl Future<Output = Result<(Self::Episode, Option<String>), String>> + Send;

    /// Runs the calls of a turn.
    fn step(&self, episode: &mut Self::Episode, calls: Vec<Call>) -> impl Future<Output = Result<Step, String>> + Send;

    /// The reward of the whole episode, beside those of its turns.
    fn score(&self, episode: &Self::Episode) -> Option<f64>;

    /// Ends an episode.
    fn close(&self, episode: Self::Episode) -> impl Future<Output = ()> + Send;

    /// Why it is of no more use, if it is of none. Then the bridge ends, and the sampler starts another one.
    fn gone(&self) -> impl Future<Output = Option<String>> + Send {
        std::future::ready(None)
    }
}

/// The first line of a bridge whose server has these tools.
#[must_use]
pub fn greeting(rewards: bool, tools: &[Value]) -> Value {
    json!({"protocol": PROTOCOL, "rewards": rewards, "tools": tools})
}

/// A tool in the form that chat templates take.
#[must_use]
pub fn tool(name: &str, description: &str, parameters: &Map<String, Value>) -> Value {
    let function = json!({"name": name, "description": description, "parameters": parameters});
    json!({"type": "function", "function": function})
}

/// A request of the sampler.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    id: u64,
    episode: u64,
    wanted: String,
    fields: Map<String, Value>,
}

impl Request {
    fn read(line: &str) -> Option<Self> {
        let Value::Object(fields) = serde_json::from_str(line).ok()? else { return None };
        let number = |name: &str| fields.get(name).and_then(Value::as_u64);
        let (id, episode, wanted) = (number("id")?, number("episode")?, fields.get("do")?.as_str()?.to_owned());
        Some(Self { id, episode, wanted, fields })
    }

    fn calls(&self) -> Vec<Call> {
        let call = |call: &Value| Call {
            name: call["name"].as_str().unwrap_or_default().to_owned(),
            arguments: call["arguments"].clone(),
        };
        self.fields.get("calls").and_then(Value::as_array).into_iter().flatten().map(call).collect()
    }

    fn row(&self) -> Map<String, Value> {
        self.fields.get("row").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    fn answer(&self, fields: Map<String, Value>) -> Value {
        let id = ("id".to_owned(), Value::from(self.id));
        std::iter::once(id).chain(fields).collect()
    }
}

/// The lines of a reader, which a thread of its own reads.
pub fn read(input: impl BufRead + Send + 'static) -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in input.lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// A writer that many episodes share; each line is flushed. A sampler that is gone is told by the end of the input.
pub fn write(output: impl Write + Send + 'static) -> mpsc::UnboundedSender<Value> {
    let (sender, mut values) = mpsc::unbounded_channel::<Value>();
    thread::spawn(move || {
        let mut output = output;
        while let Some(value) = values.blocking_recv() {
            if writeln!(output, "{value}").and_then(|()| output.flush()).is_err() {
                return;
            }
        }
    });
    sender
}

/// How long episodes may take to end once there are no more requests.
const ENDING: Duration = Duration::from_secs(1);

/// Serves requests until there are no more, or the server is gone.
///
/// # Errors
/// When the server is gone.
pub async fn serve<P: Peer>(
    peer: Arc<P>,
    mut lines: mpsc::UnboundedReceiver<String>,
    answers: mpsc::UnboundedSender<Value>,
) -> anyhow::Result<()> {
    let mut episodes: HashMap<u64, (mpsc::UnboundedSender<Request>, oneshot::Sender<()>)> = HashMap::new();
    let mut tasks = JoinSet::new();
    while let Some(line) = lines.recv().await {
        if let Some(reason) = peer.gone().await {
            anyhow::bail!(reason);
        }
        let Some(request) = Request::read(&line) else { continue };
        match request.wanted.as_str() {
            "open" => {
                let (orders, taken) = mpsc::unbounded_channel();
                let (open, closed) = oneshot::channel();
                episodes.insert(request.episode, (orders, open));
                tasks.spawn(live(Arc::clone(&peer), request, taken, closed, answers.clone()));
            }
            "step" | "score" => match episodes.get(&request.episode) {
                // An episode that has failed takes no more.
                Some((orders, _)) if orders.send(request.clone()).is_ok() => {}
                _ => say(&answers, &request, refused("there is no such episode")),
            },
            wanted => {
                if wanted == "close" {
                    episodes.remove(&request.episode);
                }
                say(&answers, &request, Map::new());
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    drop(episodes);
    let _ = timeout(ENDING, tasks.join_all()).await;
    Ok(())
}

/// An episode from its beginning until it is closed or fails.
async fn live<P: Peer>(
    peer: Arc<P>,
    open: Request,
    mut orders: mpsc::UnboundedReceiver<Request>,
    mut closed: oneshot::Receiver<()>,
    answers: mpsc::UnboundedSender<Value>,
) {
    let queued: Queued = {
        let (answers, line) = (answers.clone(), json!({"id": open.id, "queued": true}));
        Arc::new(move || drop(answers.send(line.clone())))
    };
    let opened = tokio::select! {
        biased;
        _ = &mut closed => return say(&answers, &open, refused(CLOSED)),
        opened = peer.open(open.row(), queued) => opened,
    };
    let mut episode = match opened {
        Ok((episode, text)) => {
            say(&answers, &open, Map::from_iter([("text".to_owned(), text.into())]));
            episode
        }
        Err(reason) => return say(&answers, &open, refused(&reason)),
    };
    while let Some(request) = orders.recv().await {
        let fields = tokio::select! {
            biased;
            _ = &mut closed => {
                say(&answers, &request, refused(CLOSED));
                break;
            }
            fields = answered(&*peer, &mut episode, &request) => fields,
        };
        let has_failed = fields.contains_key("error");
        say(&answers, &request, fields);
        if has_failed {
            break;
        }
    }
    peer.close(episode).await;
}

const CLOSED: &str = "the episode was closed meanwhile";

async fn answered<P: Peer>(peer: &P, episode: &mut P::Episode, request: &Request) -> Map<String, Value> {
    if request.wanted == "score" {
        return Map::from_iter([("reward".to_owned(), peer.score(episode).into())]);
    }
    match peer.step(episode, request.calls()).await {
        Ok(Step { replies, reward, done }) => {
            let reply = |reply: &Reply| json!({"content": reply.text, "failed": reply.failed});
            let replies: Vec<Value> = replies.iter().map(reply).collect();
            let fields = [("replies", replies.into()), ("reward", reward.into()), ("done", done.into())];
            fields.map(|(name, value): (_, Value)| (name.to_owned(), value)).into_iter().collect()
        }
        Err(reason) => refused(&reason),
    }
}

/// The fields of an answer for an error: its first line, and the others as what the sampler shows below.
#[must_use]
pub fn refused(error: &str) -> Map<String, Value> {
    let (reason, words) = error.split_once('\n').map_or((error, None), |(reason, words)| (reason, Some(words)));
    let words = words.map(|words| ("traceback".to_owned(), words.into()));
    std::iter::once(("error".to_owned(), reason.into())).chain(words).collect()
}

fn say(answers: &mpsc::UnboundedSender<Value>, request: &Request, fields: Map<String, Value>) {
    let _ = answers.send(request.answer(fields));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Episodes whose row says how they go.
    struct Script;

    impl Peer for Script {
        type Episode = f64;

        async fn open(&self, row: Map<String, Value>, queued: Queued) -> Result<(f64, Option<String>), String> {
            match row.get("how").and_then(Value::as_str) {
                Some("fail") => Err("no sea".to_owned()),
                Some("wait") => {
                    queued();
                    std::future::pending().await
                }
                how => Ok((0.5, how.map(str::to_owned))),
            }
        }

        async fn step(&self, episode: &mut f64, calls: Vec<Call>) -> Result<Step, String> {
            if calls.iter().any(|call| call.name == "break") {
                return Err("broken\nlast\nwords".to_owned());
            }
            *episode += 1.0;
            let reply = |call: Call| Reply { text: call.arguments.to_string(), failed: call.name == "wrong" };
            Ok(Step { replies: calls.into_iter().map(reply).collect(), reward: None, done: false })
        }

        fn score(&self, episode: &f64) -> Option<f64> {
            Some(*episode)
        }

        async fn close(&self, _: f64) {}
    }

    /// The answers to lines, by their numbers.
    async fn answers(lines: &[Value], many: usize) -> Vec<Value> {
        let (line, taken) = mpsc::unbounded_channel();
        let (sender, mut answers) = mpsc::unbounded_channel();
        let serving = tokio::spawn(serve(Arc::new(Script), taken, sender));
        lines.iter().for_each(|said| line.send(said.to_string()).unwrap());
        let mut found = Vec::new();
        for _ in 0..many {
            found.push(answers.recv().await.unwrap());
        }
        drop(line);
        serving.await.unwrap().unwrap();
        found.sort_by_key(|answer| answer["id"].as_u64());
        found
    }

    #[tokio::test]
    async fn an_episode_is_opened_stepped_through_scored_and_closed() {
        let call = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments});
        let calls = json!([call("right", json!({"a": 1})), call("wrong", Value::Null)]);
        let lines = [
            json!({"id": 1, "episode": 7, "do": "open", "row": {"how": "Hello."}}),
            json!({"id": 2, "episode": 7, "do": "step", "calls": calls}),
            json!({"id": 3, "episode": 7, "do": "score"}),
            json!({"id": 4, "episode": 0, "do": "ping"}),
            json!({"id": 5, "episode": 8, "do": "step", "calls": []}),
            json!("no request"),
        ];
        let replies = json!([{"content": "{\"a\":1}", "failed": false}, {"content": "null", "failed": true}]);
        let expected = [
            json!({"id": 1, "text": "Hello."}),
            json!({"id": 2, "replies": replies, "reward": null, "done": false}),
            json!({"id": 3, "reward": 1.5}),
            json!({"id": 4}),
            json!({"id": 5, "error": "there is no such episode"}),
        ];
        assert_eq!(answers(&lines, 5).await, expected);
    }

    #[tokio::test]
    async fn each_request_is_answered_also_those_of_an_episode_that_failed_or_was_closed() {
        let lines = [
            json!({"id": 1, "episode": 1, "do": "open", "row": {"how": "fail"}}),
            json!({"id": 2, "episode": 2, "do": "open", "row": {}}),
            json!({"id": 3, "episode": 2, "do": "step", "calls": [{"name": "break"}]}),
        ];
        let found = answers(&lines, 3).await;
        assert_eq!(found[0], json!({"id": 1, "error": "no sea"}));
        let broken = json!({"id": 3, "error": "broken", "traceback": "last\nwords"});
        assert_eq!((&found[1], &found[2]), (&json!({"id": 2, "text": null}), &broken));
    }

    #[tokio::test]
    async fn an_episode_that_waits_says_so_and_can_be_closed() {
        let (line, lines) = mpsc::unbounded_channel();
        let (sender, mut answers) = mpsc::unbounded_channel();
        tokio::spawn(serve(Arc::new(Script), lines, sender));
        line.send(json!({"id": 1, "episode": 1, "do": "open", "row": {"how": "wait"}}).to_string()).unwrap();
        assert_eq!(answers.recv().await, Some(json!({"id": 1, "queued": true})));
        line.send(json!({"id": 2, "episode": 1, "do": "close"}).to_string()).unwrap();
        let mut rest = [answers.recv().await.unwrap(), answers.recv().await.unwrap()];
        rest.sort_by_key(|answer| answer["id"].as_u64());
        assert_eq!(rest, [json!({"id": 1, "error": CLOSED}), json!({"id": 2})]);
    }
}
