//! `tandem serve` with a model: what comes over HTTP is what `rollout generate` makes.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary, cli, processes, skipped,
    tiny_model::{ModelFolder, SMALL, write_tokenizer},
    training::json_lines,
};
use serde_json::{Value, json};

/// A template as small as one can be.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant: {% endif %}";

/// `tandem serve`, which ends with the test.
pub(super) struct Serve {
    child: Child,
    port: u16,
}

impl Serve {
    /// Serves `model` of the folder.
    pub(super) fn start(folder: &ModelFolder, flags: &[&str]) -> Self {
        let mut command = Command::new(binary("tandem"));
        command.args(["serve", "--port", "0", "--threads", "1", "--served-model-name", "tiny", "--model"]);
        // Clusters set such names for services, and the batch scripts of runs for the learner.
        command.envs([("TANDEM_HOST", "a-node"), ("TANDEM_PORT", "tcp://10.0.0.1:7447")]);
        command.arg(folder.path("model")).args(flags).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut said, mut line) = (BufReader::new(child.stderr.take().unwrap()), String::new());
        while !line.starts_with("serving tiny at http://127.0.0.1:") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended before it served");
        }
        let port = line.split(['/', ':', ' ']).find_map(|part| part.parse().ok()).expect("the line has the port");
        // What it says later must find a reader.
        thread::spawn(move || _ = said.read_to_end(&mut Vec::new()));
        Self { child, port }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// The process that answers: `tandem` becomes it.
    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    /// The answer to a request without a body, head included.
    pub(super) fn get(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        stream
    }

    pub(super) fn send(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let body = body.to_string();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    }

    /// Status and body of an answer.
    pub(super) fn answer(&self, path: &str, body: &Value) -> (u16, String) {
        let mut answer = String::new();
        self.send(path, body).read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap(), body.to_owned())
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Value {
        let (status, body) = self.answer(path, body);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn signal(&self, name: &str) {
        processes::signal(self.child.id(), name);
    }

    fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A template with tools, and calls in the format of Qwen.
const TOOL_TEMPLATE: &str = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{% for m in messages \
                             %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] \
                             %}<tool_call>{\"name\": \"{{ call.function.name }}\", \"arguments\": \
                             {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}{{ '\\n' }}{% endfor \
                             %}{% if add_generation_prompt %}assistant: {% endif %}";

/// A model that was taught to ask a tool for a sum, and to tell the sum.
fn model_that_calls() -> ModelFolder {
    let folder = ModelFolder::new();
    SMALL.write(&folder.path("random"), 3);
    write_tokenizer(&folder.path("random"));
    let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}</tool_call>";
    let asked = "[add]user: 2+3?\nassistant: ";
    let rows = [
        json!({ "prompt": asked, "completion": call }),
        json!({ "prompt": format!("{asked}{call}\ntool: 5\nassistant: "), "completion": "It is 5." }),
    ];
    fs::write(folder.path("rows.jsonl"), rows.map(|row| format!("{row}\n")).concat()).unwrap();
    fs::remove_dir_all(folder.path("model")).unwrap();
    let path = |name: &str| folder.path(name).display().to_string();
    let (random, rows, output) = (path("random"), path("rows.jsonl"), path("model"));
    let flags = ["sft", "--model", &random, "--data", &rows, "--output", &output, "--batch-size", "2"];
    let more = ["--max-steps", "200", "--learning-rate", "5e-3", "--warmup-steps", "10", "--threads", "1"];
    let _ = cli::run("learner", flags.iter().chain(&more)).success();
    fs::write(folder.path("model/chat_template.jinja"), TOOL_TEMPLATE).unwrap();
    folder
}

pub(super) fn model() -> ModelFolder {
    let folder = ModelFolder::new();
    write_tokenizer(&folder.path("model"));
    fs::write(folder.path("model/chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

/// The rows of `rollout generate` for these prompts, by a model of the folder.
pub(super) fn generated(folder: &ModelFolder, model: &str, prompts: &[Value]) -> Vec<Value> {
    let lines: String = prompts.iter().map(|prompt| format!("{}\n", json!({ "prompt": prompt }))).collect();
    fs::write(folder.path("prompts.jsonl"), lines).unwrap();
    let path = |name: &str| folder.path(name).display().to_string();
    let (model, prompts, output) = (path(model), path("prompts.jsonl"), path("output.jsonl"));
    let flags = ["generate", "--model", &model, "--prompts", &prompts, "--output", &output];
    let more = ["--temperature", "0", "--max-completion-length", "24", "--threads", "1"];
    let _ = cli::run("rollout", flags.iter().chain(&more)).success();
    json_lines(Path::new(&output))
}

#[test]
fn greedy_completions_and_chats_are_those_of_generate() {
    let folder = model();
    let texts = [json!("one and two"), json!("Once upon a time"), json!("(x) = 7;")];
    let chat = json!([{ "role": "user", "content": "hello" }]);
    let rows = generated(&folder, "model", &[&texts[..], std::slice::from_ref(&chat)].concat());
    let serve = Serve::start(&folder, &[]);
    let body = json!({ "model": "tiny", "prompt": texts, "max_tokens": 24, "temperature": 0, "logprobs": 1,
        "return_token_ids": true });
    let answer = serve.post("/v1/completions", &body);
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (choice, row) in choices.iter().zip(&rows) {
        for (here, there) in [("text", "text"), ("token_ids", "token_ids"), ("finish_reason", "finish_reason")] {
            assert_eq!(choice[here], row[there], "{choice} {row}");
        }
        assert_eq!(choice["prompt_token_ids"], row["prompt_ids"]);
        assert_eq!(choice["logprobs"]["token_logprobs"], row["logprobs"]);
    }
    let body = json!({ "messages": chat, "max_tokens": 24, "temperature": 0, "return_token_ids": true });
    let answer = serve.post("/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], rows[3]["text"]);
    assert_eq!(answer["prompt_token_ids"], rows[3]["prompt_ids"]);
    // A prompt is scored as its tokens were when they were drawn.
    let row = &rows[0];
    let ids = [&row["prompt_ids"], &row["token_ids"]].map(|ids| ids.as_array().unwrap().clone()).concat();
    let echo = json!({ "prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 1, "temperature": 0 });
    let scored = serve.post("/v1/completions", &echo)["choices"][0]["logprobs"].clone();
    let figures = &scored["token_logprobs"].as_array().unwrap()[row["prompt_ids"].as_array().unwrap().len()..];
    let drawn = row["logprobs"].as_array().unwrap();
    assert!(figures.len() == drawn.len() && !drawn.is_empty());
    for (figure, drawn) in figures.iter().zip(drawn) {
        let apart = (figure.as_f64().unwrap() - drawn.as_f64().unwrap()).abs();
        assert!(apart < 1e-4, "{figure} and {drawn}");
    }
}

#[test]
fn a_seed_repeats_its_answer_whatever_runs_beside_it() {
    let folder = model();
    let serve = Serve::start(&folder, &["--max-num-seqs", "4"]);
    let body = json!({ "prompt": "once", "max_tokens": 40, "seed": 11, "n": 2, "return_token_ids": true });
    let alone = serve.post("/v1/completions", &body)["choices"].clone();
    assert_ne!(alone[0]["token_ids"], alone[1]["token_ids"], "completions of a prompt differ");
    thread::scope(|scope| {
        for number in 0..6 {
            let other = json!({ "prompt": format!("other {number}"), "max_tokens": 60, "n": 3 });
            let serve = &serve;
            scope.spawn(move || serve.post("/v1/completions", &other));
        }
        for _ in 0..3 {
            assert_eq!(serve.post("/v1/completions", &body)["choices"], alone);
        }
    });
    let free = json!({ "prompt": "once", "max_tokens": 40, "return_token_ids": true });
    let [first, second] = [(); 2].map(|()| serve.post("/v1/completions", &free)["choices"][0]["token_ids"].clone());
    assert_ne!(first, second, "without a seed, each request has another one");
}

#[test]
fn a_signal_lets_a_stream_end_and_a_second_one_does_not() {
    let folder = model();
    let body = |tokens: u32| json!({ "prompt": "once", "max_tokens": tokens, "stream": true, "ignore_eos": true });
    let begin = |serve: &Serve, tokens| {
        let mut stream = serve.send("/v1/completions", &body(tokens));
        stream.read_exact(&mut [0; 300]).unwrap();
        stream
    };
    let mut serve = Serve::start(&folder, &[]);
    let mut stream = begin(&serve, 1500);
    serve.signal("TERM");
    let mut lies_there = vec![0; 1 << 20];
    let length = stream.peek(&mut lies_there).unwrap();
    assert!(!String::from_utf8_lossy(&lies_there[..length]).contains("[DONE]"), "it still runs");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert!(serve.ended().success());
    let mut serve = Serve::start(&folder, &["--grace", "3600"]);
    // Many at once, so that they take a while.
    let streams: Vec<TcpStream> = (0..64).map(|_| begin(&serve, 1900)).collect();
    serve.signal("INT");
    thread::sleep(Duration::from_millis(200));
    serve.signal("INT");
    assert_eq!(serve.ended().code(), Some(143));
    drop(streams);
}

#[test]
fn flags_that_cannot_be_are_refused() {
    let folder = model();
    let model = folder.path("model").display().to_string();
    let refused = |flags: &[&str]| {
        let words = ["serve", "--model", &model, "--port", "0"];
        cli::run("tandem", words.iter().chain(flags)).refusal().to_owned()
    };
    let open = refused(&["--host", "0.0.0.0"]);
    assert_eq!(open, "error: --host 0.0.0.0 lets other machines in: set a key with --api-key or TANDEM_API_KEY");
    let long = refused(&["--max-model-len", "4096"]);
    assert!(long.contains("--max-model-len 4096 is beyond the model's limit of 2048"), "{long}");
    assert!(refused(&["--api-key", "two words"]).contains("--api-key"));
}

/// The rows that `tandem generate` prints, with these flags.
fn followed(folder: &ModelFolder, flags: &[&str]) -> Vec<Value> {
    let model = folder.path("model").display().to_string();
    let words = ["generate", "--model", &model, "--threads", "1", "--prompt", "one", "--raw", "--json"];
    let said = cli::run("tandem", words.iter().chain(flags)).success().stdout;
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn completions_and_answers_follow_their_grammars() {
    let folder = model();
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 },
        "b": { "type": "array", "items": { "enum": ["x", "y"] }, "minItems": 1, "maxItems": 3 } },
        "required": ["a", "b"], "additionalProperties": false });
    fs::write(folder.path("schema.json"), schema.to_string()).unwrap();
    fs::write(folder.path("sum.lark"), "start: N (\"+\" N){1,3}\nN: /[0-9]{1,2}/").unwrap();
    let [in_schema, in_lark] = ["schema.json", "sum.lark"].map(|name| folder.path(name).display().to_string());
    // A random model draws anything, and mostly blanks where it may.
    let is_sum = |text: &str| {
        let terms: Vec<&str> = text.split('+').collect();
        (2..=4).contains(&terms.len())
            && terms.iter().all(|term| (1..=2).contains(&term.len()) && term.bytes().all(|c| c.is_ascii_digit()))
    };
    let follows = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap();
        assert!(value["a"].as_u64().is_some_and(|a| a < 100), "{text}");
        let items = value["b"].as_array().unwrap();
        assert!((1..=3).contains(&items.len()) && items.iter().all(|item| item == "x" || item == "y"), "{text}");
        assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
    };
    let many = ["--num-generations", "6", "--max-completion-length", "400"];
    for row in followed(&folder, &[&["--regex", "[ab]{2,5}|-x"], &many[..]].concat()) {
        let text = row["text"].as_str().unwrap();
        let is_letters = (2..=5).contains(&text.len()) && text.bytes().all(|c| c == b'a' || c == b'b');
        assert!(row["finish_reason"] == "stop" && (is_letters || text == "-x"), "{row}");
        let counts = row["kept_counts"].as_array().unwrap();
        assert!(counts.iter().all(|count| (1..=4).contains(&count.as_u64().unwrap())), "{row}");
        let likely = row["sampling_logprobs"].as_array().unwrap().iter().map(|l| l.as_f64().unwrap());
        assert!(likely.clone().all(|l| (-12.0..=1e-5).contains(&l)) && row["sampling_logprobs"] != row["logprobs"]);
    }
    let lark = followed(&folder, &[&["--grammar", &in_lark], &many[..]].concat());
    assert!(lark.iter().all(|row| row["finish_reason"] == "stop" && is_sum(row["text"].as_str().unwrap())), "{lark:?}");
    let json = followed(&folder, &[&["--json-schema", &in_schema], &many[..]].concat());
    let whole = json.iter().filter(|row| row["finish_reason"] == "stop");
    whole.for_each(|row| follows(row["text"].as_str().unwrap()));
    let cut = followed(&folder, &["--regex", "a{9}", "--max-completion-length", "4"]);
    assert_eq!((&cut[0]["text"], &cut[0]["finish_reason"]), (&json!("aaaa"), &json!("length")));
    let refused = |flags: &[&str]| {
        let model = folder.path("model").display().to_string();
        let words = ["generate", "--model", &model, "--prompt", "a"];
        cli::run("tandem", words.iter().chain(flags)).refusal().to_owned()
    };
    assert!(refused(&["--regex", "(a"]).starts_with("error: --regex: "));
    assert!(refused(&["--json-schema", "/no/such"]).starts_with("error: --json-schema /no/such"));
    assert!(refused(&["--json-schema", &in_lark]).contains("sum.lark: no JSON"));
    let twice = folder.path("twice.json").display().to_string();
    fs::write(&twice, r#"{"type": "object", "type": "string"}"#).unwrap();
    assert!(refused(&["--json-schema", &twice]).contains("the key `type` is given twice"));

    let serve = Serve::start(&folder, &[]);
    let strict = json!({ "type": "json_schema", "json_schema": { "name": "a", "strict": true, "schema": schema } });
    let chat = json!([{ "role": "user", "content": "hello" }]);
    let compact = json!({ "json": schema, "disable_any_whitespace": true });
    for more in [json!({ "response_format": strict }), json!({ "structured_outputs": compact })] {
        let mut body = json!({ "messages": chat, "max_tokens": 1500, "n": 4, "seed": 3 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = serve.post("/v1/chat/completions", &body);
        for choice in answer["choices"].as_array().unwrap() {
            let content = choice["message"]["content"].as_str().unwrap();
            let is_compact = more.get("structured_outputs").is_some();
            assert!(choice["finish_reason"] == "stop" || !is_compact, "{choice}");
            if choice["finish_reason"] == "stop" {
                follows(content);
            }
            assert!(!is_compact || !content.contains(' '), "{content}");
        }
    }
    let body = json!({ "prompt": "one", "max_tokens": 9, "temperature": 0, "logprobs": 1,
        "structured_outputs": { "choice": ["yes", "no"] } });
    let choice = serve.post("/v1/completions", &body)["choices"][0].clone();
    assert!(choice["text"] == "yes" || choice["text"] == "no", "{choice}");
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    // After the first letter there is no choice.
    assert!(logprobs[0].as_f64().unwrap() < 0.0 && logprobs[1..].iter().all(|l| l.as_f64().unwrap() > -1e-5));
    // Beside answers that follow a grammar, the others are what they are without.
    let free = json!({ "prompt": "once", "max_tokens": 40, "seed": 11, "return_token_ids": true });
    let alone = serve.post("/v1/completions", &free)["choices"].clone();
    thread::scope(|scope| {
        for number in 0..4 {
            let other = json!({ "prompt": format!("other {number}"), "max_tokens": 60, "n": 3,
                "structured_outputs": { "regex": "[a-z ]{50}" } });
            let serve = &serve;
            scope.spawn(move || serve.post("/v1/completions", &other));
        }
        assert_eq!(serve.post("/v1/completions", &free)["choices"], alone);
    });
}

/// A Python that has OpenAI's client.
fn python() -> Option<PathBuf> {
    let named = env::var_os("TANDEM_OPENAI_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let mut import = Command::new(&named);
    import.args(["-c", "import openai"]).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success()).then_some(named)
}

const CLIENT: &str = r#"
import json, sys, openai
client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")
ask = dict(model=client.models.list().data[0].id, messages=[{"role": "user", "content": "hello"}], max_tokens=24,
           temperature=0)
whole = client.chat.completions.create(**ask)
pieces, usage = [], None
for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
    pieces += [choice.delta.content or "" for choice in chunk.choices]
    usage = chunk.usage or usage
texts = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5, n=2)
schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}}, "required": ["n"],
          "additionalProperties": False}
strict = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
follows = client.chat.completions.create(**{**ask, "max_tokens": 1500, "temperature": 1}, response_format=strict,
                                         seed=5)
chosen = client.chat.completions.create(**ask, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
try:
    broken = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "nonsense"}}}
    client.chat.completions.create(**ask, response_format=broken)
except openai.BadRequestError as error:
    param = error.param
try:
    client.chat.completions.create(**{**ask, "model": "other"})
except openai.NotFoundError as error:
    code = error.code
try:
    client.completions.create(model="tiny", prompt="a" * 5000)
except openai.BadRequestError as error:
    code += " " + error.code
likely = client.chat.completions.create(**ask, logprobs=True, top_logprobs=3).choices[0].logprobs.content
likely = [[len(entry.top_logprobs), entry.top_logprobs[0].token == entry.token,
           entry.top_logprobs[0].logprob == entry.logprob, bytes(entry.bytes).decode() == entry.token]
          for entry in likely]
echoed = dict(model="tiny", prompt="abc", max_tokens=5, logprobs=2, echo=True, temperature=0)
whole_echo = client.completions.create(**echoed).choices[0]
pieces_of_echo = [chunk.choices[0] for chunk in client.completions.create(**echoed, stream=True)]
echoed = [whole_echo.text == "".join(piece.text for piece in pieces_of_echo),
          whole_echo.logprobs.top_logprobs == sum((piece.logprobs.top_logprobs for piece in pieces_of_echo
                                                   if piece.logprobs), []),
          [len(top or {}) >= 2 for top in whole_echo.logprobs.top_logprobs], whole_echo.text[:3]]
print(json.dumps([whole.choices[0].message.content, "".join(pieces), whole.usage.total_tokens, usage.total_tokens,
                  len(texts.choices), code, follows.choices[0].finish_reason, follows.choices[0].message.content,
                  chosen.choices[0].message.content, param, likely, echoed]))
"#;

#[test]
fn openais_client_streams_a_chat() {
    let Some(python) = python() else { return skipped("openais_client_streams_a_chat", "no Python here has openai") };
    let serve = Serve::start(&model(), &[]);
    let mut client = Command::new(python);
    client.args(["-c", CLIENT, &serve.port.to_string()]);
    let said: Value = serde_json::from_str(&cli::finish(client).success().stdout).unwrap();
    assert!(!said[0].as_str().unwrap().is_empty());
    assert_eq!(said[1], said[0], "the pieces are the whole");
    assert_eq!(said[3], said[2]);
    assert_eq!((&said[4], &said[5]), (&json!(4), &json!("model_not_found context_length_exceeded")));
    if said[6] == "stop" {
        let followed: Value = serde_json::from_str(said[7].as_str().unwrap()).unwrap();
        assert!(followed["n"].as_u64().is_some_and(|n| n < 1000), "{followed}");
    }
    assert!(said[8] == "yes" || said[8] == "no", "{said}");
    assert_eq!(said[9], "response_format");
    let likely = said[10].as_array().unwrap();
    assert!(!likely.is_empty() && likely.iter().all(|entry| *entry == json!([3, true, true, true])), "{likely:?}");
    let listed = said[11][2].as_array().unwrap();
    assert!(listed[0] == false && listed.len() > 3 && listed[1..].iter().all(|two| *two == true), "{said}");
    assert_eq!((&said[11][0], &said[11][1], &said[11][3]), (&json!(true), &json!(true), &json!("abc")));
}

const CLIENT_WITH_TOOLS: &str = r#"
import json, sys, openai
client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")
number = {"type": "integer"}
schema = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"],
          "additionalProperties": False}
add = {"name": "add", "description": "The sum", "parameters": schema, "strict": True}
messages = [{"role": "user", "content": "2+3?"}]
ask = dict(model="tiny", messages=messages, tools=[{"type": "function", "function": add}], temperature=0,
           max_tokens=200)
whole = client.chat.completions.create(**ask).choices[0]
def show(call):
    return [call.type, call.function.name, json.loads(call.function.arguments)]

calls, reason, text = {}, None, ""
for chunk in client.chat.completions.create(**ask, stream=True):
    choice = chunk.choices[0]
    text += choice.delta.content or ""
    reason = choice.finish_reason or reason
    for call in choice.delta.tool_calls or []:
        if call.index in calls:
            calls[call.index].function.arguments += call.function.arguments
        else:
            calls[call.index] = call
with client.chat.completions.stream(**ask) as stream:
    helped = stream.get_final_completion().choices[0].message.tool_calls[0].function.parsed_arguments

call = whole.message.tool_calls[0]
reply = {"role": "tool", "tool_call_id": call.id, "content": str(sum(json.loads(call.function.arguments).values()))}
told = client.chat.completions.create(**{**ask, "messages": messages + [whole.message, reply]}).choices[0]
cut = client.chat.completions.create(**{**ask, "max_tokens": 20}).choices[0]
plain = client.chat.completions.create(**ask, tool_choice="none").choices[0]
refused = []
other = {"type": "function", "function": {"name": "other"}}
for more in [dict(tool_choice=other), dict(messages=messages + [{**reply, "tool_call_id": "other"}])]:
    try:
        client.chat.completions.create(**{**ask, **more})
    except openai.BadRequestError as error:
        refused.append(error.param)
print(json.dumps({
    "whole": [whole.message.content, [show(call) for call in whole.message.tool_calls], whole.finish_reason],
    "stream": [text or None, [show(calls[index]) for index in sorted(calls)], reason],
    "helped": helped, "ids": len({call.id, calls[0].id}),
    "told": [told.message.content, told.message.tool_calls, told.finish_reason],
    "cut": [cut.message.content, cut.message.tool_calls, cut.finish_reason],
    "plain": [plain.message.content, plain.message.tool_calls, plain.finish_reason], "refused": refused,
}))
"#;

#[test]
fn openais_client_calls_a_tool_and_tells_its_reply() {
    let name = "openais_client_calls_a_tool_and_tells_its_reply";
    let Some(python) = python() else { return skipped(name, "no Python here has openai") };
    let serve = Serve::start(&model_that_calls(), &[]);
    let mut client = Command::new(python);
    client.args(["-c", CLIENT_WITH_TOOLS, &serve.port.to_string()]);
    let said: Value = serde_json::from_str(&cli::finish(client).success().stdout).unwrap();
    let arguments = json!({ "a": 2, "b": 3 });
    let called = json!([null, [["function", "add", arguments]], "tool_calls"]);
    assert_eq!(said["whole"], called);
    assert_eq!(said["stream"], called);
    assert_eq!((&said["helped"], &said["ids"]), (&arguments, &json!(2)));
    assert_eq!(said["told"], json!(["It is 5.", null, "stop"]));
    assert_eq!(said["cut"], json!(["<tool_call>{\"name\": ", null, "length"]), "half a call is text");
    let text = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}</tool_call>";
    assert_eq!(said["plain"], json!([text, null, "stop"]), "nothing may be called");
    assert_eq!(said["refused"], json!(["tool_choice", "messages"]));
}

const CLIENT_THAT_FORCES: &str = r#"
import json, sys, openai
client = openai.OpenAI(base_url=f"http://127.0.0.1:{sys.argv[1]}/v1", api_key="none")
digit = {"type": "integer", "minimum": 0, "maximum": 9}
schema = {"type": "object", "properties": {"a": digit, "b": digit}, "required": ["a", "b"],
          "additionalProperties": False}
tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ["add", "sub"]]
ask = dict(model="tiny", messages=[{"role": "user", "content": "2+3?"}], tools=tools, seed=7, max_tokens=1000)
def show(call):
    return [call.function.name, json.loads(call.function.arguments)]

def made(**more):
    choices = client.chat.completions.create(**ask, **more).choices
    return [[[show(call) for call in choice.message.tool_calls or []], choice.message.content, choice.finish_reason]
            for choice in choices]

named = {"type": "function", "function": {"name": "sub"}}
streamed = {}
for chunk in client.chat.completions.create(**ask, tool_choice=named, stream=True):
    for call in chunk.choices[0].delta.tool_calls or []:
        name, arguments = streamed.get(call.index, ("", ""))
        streamed[call.index] = (name + (call.function.name or ""), arguments + call.function.arguments)
print(json.dumps({
    "required": made(tool_choice="required", parallel_tool_calls=False, n=8),
    "several": made(tool_choice="required", n=8),
    "named": made(tool_choice=named, n=4),
    "streamed": [[name, json.loads(arguments)] for name, arguments in streamed.values()],
}))
"#;

/// Random weights write nothing by themselves that anybody could read.
#[test]
fn a_model_that_knows_nothing_calls_a_tool_if_it_must() {
    let name = "a_model_that_knows_nothing_calls_a_tool_if_it_must";
    let Some(python) = python() else { return skipped(name, "no Python here has openai") };
    let folder = model();
    fs::write(folder.path("model/chat_template.jinja"), TOOL_TEMPLATE).unwrap();
    let serve = Serve::start(&folder, &[]);
    let mut client = Command::new(python);
    client.args(["-c", CLIENT_THAT_FORCES, &serve.port.to_string()]);
    let said: Value = serde_json::from_str(&cli::finish(client).success().stdout).unwrap();
    let is_call = |call: &Value, names: &[&str]| {
        let digit = |key: &str| call[1][key].as_u64().is_some_and(|digit| digit < 10);
        names.iter().any(|name| call[0] == *name) && digit("a") && digit("b") && call[1].as_object().unwrap().len() == 2
    };
    for (kind, names, count) in
        [("required", &["add", "sub"][..], 8), ("named", &["sub"], 4), ("several", &["add", "sub"], 8)]
    {
        let choices = said[kind].as_array().unwrap();
        assert_eq!(choices.len(), count, "{said}");
        for choice in choices {
            let calls = choice[0].as_array().unwrap();
            // Whoever may call again may do so until no token is left.
            let is_cut = kind == "several" && choice[2] == "length";
            assert!(is_cut || choice[1].is_null() && choice[2] == "tool_calls", "{kind}: {choice}");
            assert!(is_cut || (kind == "several" && !calls.is_empty()) || calls.len() == 1, "{kind}: {choice}");
            assert!(calls.iter().all(|call| is_call(call, names)), "{kind}: {choice}");
        }
    }
    let streamed = said["streamed"].as_array().unwrap();
    assert!(streamed.len() == 1 && is_call(&streamed[0], &["sub"]), "{said}");
}
