//! A whole endpoint for tests, with a generator without a model behind it, and a client.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use harness::tiny_model::{ModelFolder, write_tokenizer};
use rollout::{
    data::Tokenizer,
    engine::{
        Constraint, EngineError, FinishedSequence, GivenLogprob, GroupRequest, LoadedAdapter, Output, Request,
        StopCriterion, SwapReport, TopLogprob, WeightSource,
    },
    generate::{Generate, drive},
};
use rollout_constraint::Grammars;
use serde_json::Value;
use shared::{FinishReason, ModelDir, PolicyVersion, TokenLogprob};
use tokio::sync::Notify;

use crate::{
    answer::TokenNames,
    desk::{self, Serve},
    metrics::Metrics,
    models::Models,
    routes::{App, Fresh, Limits, router, workers},
    server::{self, Bounds},
};

/// Longest prompt plus completion, unless a test has another.
pub const MAX_MODEL_LEN: usize = 100;

/// A template that writes `role: content`, with calls in the format of Qwen, and what tools there are.
pub const TEMPLATE: &str = "{% for message in messages %}{{ message.role[:1] }}:{{ message.content }}{% for call in \
                            message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor \
                            %}{{ '\\n' }}{% endfor %}{% for tool in tools or [] %}{{ (tool.function or tool).name \
                            }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}";

/// The parrot alone.
pub fn models() -> Models {
    Models::new("parrot", None)
}

/// A tokenizer with a token for each letter, and [`TEMPLATE`].
pub fn tokenizer() -> Tokenizer {
    with_template(TEMPLATE)
}

/// The tokenizer with another template.
pub fn with_template(template: &str) -> Tokenizer {
    let folder = ModelFolder::new();
    write_tokenizer(&folder.path("model"));
    std::fs::write(folder.path("model/chat_template.jinja"), template).unwrap();
    Tokenizer::open(&ModelDir::open(folder.path("model")).unwrap()).unwrap()
}

/// Repeats its prompt, a token of every running sequence in a step: the first completion from the first token on, the
/// second from the second token on, and so forth. A full stop ends a completion.
struct Parrot {
    capacity: usize,
    /// Time that a step takes.
    pace: Duration,
    full_stop: u32,
    question_mark: u32,
    waiting: VecDeque<Line>,
    running: Vec<Line>,
    seen: Arc<Mutex<Seen>>,
}

/// What a generator has seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Groups that were begun.
    pub begun: Vec<(u64, u32)>,
    /// Sequences that were cancelled, by the number of their tokens.
    pub cancelled: Vec<usize>,
}

struct Line {
    group: GroupRequest,
    top_logprobs: u32,
    sequence: FinishedSequence,
    stop: Option<Box<dyn StopCriterion>>,
    constraint: Option<Box<dyn Constraint>>,
    /// Nothing can come any more.
    is_complete: bool,
}

impl Line {
    fn new(group: &GroupRequest, sample: u32, top_logprobs: u32) -> Self {
        let sequence = FinishedSequence {
            tag: group.tag,
            sample,
            token_ids: Vec::new(),
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            versions: Vec::new(),
            routing: None,
            finish_reason: FinishReason::Stop,
            queue_seconds: 0.0,
            ttft_seconds: 0.0,
            total_seconds: 0.0,
        };
        let stop = group.stop_criterion.as_ref().map(|make| make());
        let constraint = group.constraint.as_ref().map(|constraint| constraint.begin());
        Self { group: group.clone(), top_logprobs, sequence, stop, constraint, is_complete: false }
    }

    /// Whether a constraint lets a token come. If not, the completion is given up.
    fn allows(&mut self, id: u32) -> bool {
        let Some(constraint) = &mut self.constraint else { return true };
        let allowed = constraint.allowed().is_ok_and(|allowed| allowed[id as usize / 32] >> (id % 32) & 1 == 1);
        let pushed = if allowed { constraint.push(id).ok() } else { None };
        self.is_complete = pushed == Some(true);
        if pushed.is_none() {
            let constraint = self.group.constraint.as_ref().expect("the request has one");
            constraint.fail("it does not allow what the parrot says".into());
        }
        pushed.is_some()
    }

    fn ends(&mut self, id: u32, full_stop: u32) -> Option<FinishReason> {
        if id == full_stop || self.is_complete || self.stop.as_mut().is_some_and(|stop| stop.push(id)) {
            return Some(FinishReason::Stop);
        }
        let length = self.sequence.token_ids.len() as u32;
        (length >= self.group.sampling.max_completion_length).then_some(FinishReason::Length)
    }
}

/// Tokens from this one downwards, each less likely than the one before.
fn likeliest(first: u32, logprob: f64, count: u32) -> Vec<TopLogprob> {
    (0..count.min(first + 1))
        .map(|at| TopLogprob { token: first - at, logprob: logprob - 0.125 * f64::from(at) })
        .collect()
}

impl Generate for Parrot {
    fn version(&self) -> PolicyVersion {
        PolicyVersion(0)
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn running(&self) -> usize {
        self.running.len()
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn begin(&mut self, request: Request) -> Result<(), EngineError> {
        let group = request.group;
        self.seen.lock().unwrap().begun.push((group.sampling.seed, group.samples.len() as u32));
        let top = request.top_logprobs;
        self.waiting.extend(group.samples.iter().map(|&sample| Line::new(&group, sample, top)));
        Ok(())
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        thread::sleep(self.pace);
        while self.running.len() < self.capacity {
            let Some(line) = self.waiting.pop_front() else { break };
            self.running.push(line);
        }
        let (mut outputs, mut going) = (Vec::new(), Vec::new());
        for mut line in self.running.drain(..) {
            let prompt = &line.group.prompt_ids;
            let at = line.sequence.token_ids.len() + line.sequence.sample as usize;
            let id = prompt[at % prompt.len()];
            if !line.allows(id) {
                let sequence = FinishedSequence { finish_reason: FinishReason::Aborted, ..line.sequence };
                outputs.push(Output::Ended { sequence, state: None });
                continue;
            }
            let logprob = TokenLogprob { logprob: -0.5, logprob_at_temperature: -0.25, ..TokenLogprob::default() };
            line.sequence.token_ids.push(id);
            line.sequence.logprobs.push(logprob);
            // At temperature 0 the likeliest is drawn, and else the second.
            let (first, best) = if line.group.sampling.greedy() { (id, -0.5) } else { (id + 1, -0.125) };
            let top = likeliest(first, best, line.top_logprobs);
            if line.top_logprobs > 0 {
                line.sequence.top_logprobs.push(top.clone());
            }
            let (tag, sample) = (line.sequence.tag, line.sequence.sample);
            outputs.push(Output::Token { tag, sample, id, logprob, top });
            match line.ends(id, self.full_stop) {
                None => going.push(line),
                Some(finish_reason) => {
                    let sequence = FinishedSequence { finish_reason, ..line.sequence };
                    outputs.push(Output::Ended { sequence, state: None });
                }
            }
        }
        self.running = going;
        Ok(outputs)
    }

    fn cancel(&mut self, tag: u64, _: Option<u32>) -> Vec<FinishedSequence> {
        let mut cancelled: Vec<Line> = self.running.extract_if(.., |line| line.sequence.tag == tag).collect();
        let (gone, waiting) = self.waiting.drain(..).partition(|line| line.sequence.tag == tag);
        self.waiting = waiting;
        cancelled.extend::<VecDeque<Line>>(gone);
        let mut seen = self.seen.lock().unwrap();
        seen.cancelled.extend(cancelled.iter().map(|line| line.sequence.token_ids.len()));
        cancelled.into_iter().map(|line| line.sequence).collect()
    }

    fn begin_swap(&mut self, _: WeightSource) -> Result<(), EngineError> {
        unreachable!("nobody has other weights")
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        Ok(None)
    }

    fn set_admission(&mut self, _: bool) {}
}

impl Serve for Parrot {
    fn begin_with(&mut self, request: Request, _: Option<LoadedAdapter>) -> Result<(), EngineError> {
        self.begin(request)
    }

    /// Each token has a log-prob of its place, and its follower is likelier. A question mark has none.
    fn score(&mut self, ids: &[u32], top: u32, _: Option<&LoadedAdapter>) -> Result<Vec<GivenLogprob>, EngineError> {
        let given = |(at, &id): (usize, &u32)| GivenLogprob {
            logprob: if id == self.question_mark { f64::NAN } else { -1.0 - at as f64 },
            top: likeliest(id + 1, -0.5, top),
        };
        Ok(ids[1..].iter().enumerate().map(given).collect())
    }
}

/// How an endpoint is made.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Sequences at once.
    pub capacity: usize,
    /// Time of a step.
    pub pace: Duration,
    /// Prompts that may wait.
    pub queue: usize,
    /// Most bytes of a body.
    pub body: usize,
    /// Time for a request.
    pub time: Duration,
    /// The API key.
    pub key: Option<&'static str>,
    /// Most connections.
    pub connections: usize,
    /// Time at the end.
    pub grace: Duration,
    /// Longest prompt plus completion.
    pub max_model_len: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            capacity: 4,
            pace: Duration::ZERO,
            queue: 64,
            body: 1 << 20,
            time: Duration::from_secs(60),
            key: None,
            connections: 4096,
            grace: Duration::from_secs(30),
            max_model_len: MAX_MODEL_LEN,
        }
    }
}

/// An endpoint, which ends with the test.
pub struct Endpoint {
    /// Where it is.
    pub address: SocketAddr,
    /// What its generator has seen.
    pub seen: Arc<Mutex<Seen>>,
    over: Arc<Notify>,
    threads: Vec<JoinHandle<()>>,
}

impl Endpoint {
    /// Starts one.
    pub fn start(setup: Setup) -> Self {
        Self::with_tokenizer(setup, tokenizer())
    }

    /// Starts one with another tokenizer.
    pub fn with_tokenizer(setup: Setup, tokenizer: Tokenizer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (metrics, seen) = (Arc::new(Metrics::default()), Arc::<Mutex<Seen>>::default());
        let (service, mut desk) = desk::open(setup.queue, Arc::clone(&metrics));
        let token = |text: &str| *tokenizer.encode(text, false).unwrap().last().unwrap();
        let mut parrot = Parrot {
            capacity: setup.capacity,
            pace: setup.pace,
            full_stop: token("."),
            question_mark: token("?"),
            waiting: VecDeque::new(),
            running: Vec::new(),
            seen: Arc::clone(&seen),
        };
        let folder = ModelFolder::new();
        let grammars = Grammars::new(&tokenizer, &ModelDir::open(folder.path("model")).unwrap());
        let app = App {
            models: models(),
            names: Arc::new(TokenNames::new(&tokenizer)),
            grammars,
            tokenizer,
            max_model_len: setup.max_model_len,
            service: service.clone(),
            metrics,
            key: setup.key.map(str::to_owned),
            agents: None,
            limits: Limits { body: setup.body, time: setup.time },
            fresh: Fresh::new().unwrap(),
            workers: workers(),
        };
        let (app, over) = (router(Arc::new(app)), Arc::new(Notify::new()));
        let bounds = Bounds { connections: setup.connections, grace: setup.grace };
        let until = Arc::clone(&over);
        let server = thread::spawn(move || {
            server::serve(listener, &app, bounds, &until).unwrap();
            service.stop();
        });
        let engine = thread::spawn(move || drive(&mut parrot, &mut desk).unwrap());
        Self { address, seen, over, threads: vec![server, engine] }
    }

    /// Asks for the end and waits for it.
    pub fn end(mut self) {
        self.over.notify_one();
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }

    /// Asks for the end.
    pub fn begin_end(&self) {
        self.over.notify_one();
    }

    /// A connection with a request on it.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: \
             close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        stream
    }

    /// The answer to a request.
    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        Answer::read(self.send(method, path, headers, body))
    }

    /// The answer to a body of JSON.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "", &body.to_string())
    }

    /// Waits until the generator has seen something.
    pub fn wait_until(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let begun = Instant::now();
        while !is(&self.seen.lock().unwrap()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {:?}", self.seen.lock().unwrap());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.over.notify_one();
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers.
    pub head: String,
    /// Its body.
    pub text: String,
}

impl Answer {
    /// Reads one to its end.
    pub fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let answer = String::from_utf8(bytes).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
        let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Self { status, head: head.to_ascii_lowercase(), text: if is_chunked { whole(body) } else { body.into() } }
    }

    /// Its JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The chunks of a stream that has ended as it should.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{self:?}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The events of a stream.
    pub fn events(&self) -> Vec<String> {
        assert!(self.head.contains("text/event-stream"), "{self:?}");
        self.text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
    }

    /// The status and the `param` and `code` of an error in OpenAI's form.
    pub fn refusal(&self) -> (u16, Option<String>, Option<String>) {
        let json = self.json();
        let error = &json["error"];
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{self:?}");
        assert!(error["type"].is_string(), "{self:?}");
        let text = |name: &str| error[name].as_str().map(str::to_owned);
        (self.status, text("param"), text("code"))
    }
}

/// A body that came in chunks, as far as it came.
fn whole(mut body: &str) -> String {
    let mut all = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        let Some(chunk) = rest.get(..length).filter(|chunk| !chunk.is_empty()) else { break };
        all.push_str(chunk);
        body = rest[length..].trim_start_matches("\r\n");
    }
    all
}
