//! What a recorded server says in both revisions, sessions that end, servers that are programs, and the package.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Mcp, reply};
use crate::{
    lines::{Call, Peer, Reply, serve},
    testing::{Answered, Asked, http, json as read, python, recording, server},
};

const REVISION: &str = "mcp-protocol-version";
const STATELESS: &str = "2026-07-28";

/// A server of the package.
const PACKAGE: &str = r#"
import sys
from mcp.server import MCPServer

server = MCPServer("calc")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool(name="größe")
def size() -> str:
    """Says."""
    return "big"


@server.tool()
def fail(text: str) -> str:
    """Fails."""
    raise ValueError(text)


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"#;

/// A server that says what another one has said to the same requests.
struct Server {
    lines: Vec<Value>,
    /// Whether it knows the revision without sessions.
    is_stateless: bool,
    /// Whether it forgets the session at the next call.
    forgets: AtomicBool,
    /// Whether a client has opened the stream of the session.
    is_heard: AtomicBool,
}

impl Server {
    async fn start(is_stateless: bool) -> (String, Arc<Self>) {
        let lines = recording("mcp_http.jsonl");
        let server =
            Arc::new(Self { lines, is_stateless, forgets: AtomicBool::default(), is_heard: AtomicBool::default() });
        let serving = Arc::clone(&server);
        let address = http(move |asked| serving.answer(asked)).await;
        (format!("http://{address}/mcp"), server)
    }

    fn answer(&self, asked: &Asked) -> Answered {
        let refusal = |message: &str| {
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": message}}).to_string()
        };
        assert_eq!(asked.path, "/mcp");
        assert_eq!(asked.header("accept"), Some("application/json, text/event-stream"));
        if asked.method == "GET" {
            let names = [REVISION, "mcp-session-id"];
            let line = self.lines.iter().find(|line| line["http"] == "GET" && has_headers(line, asked, &names));
            let line = line.unwrap_or_else(|| panic!("nobody has asked {asked:?}"));
            self.is_heard.store(true, Ordering::SeqCst);
            return answered(line, String::new());
        }
        let sent: Value = serde_json::from_str(&asked.body).unwrap();
        if sent["method"] == "tools/call" && self.forgets.swap(false, Ordering::SeqCst) {
            return (404, Vec::new(), refusal("Session not found"));
        }
        if !self.is_stateless && asked.header(REVISION) == Some(STATELESS) {
            return (400, Vec::new(), refusal("Bad Request: Missing session ID"));
        }
        let line = self.lines.iter().find(|line| is_same(line, asked, &sent));
        let line = line.unwrap_or_else(|| panic!("nobody has asked {asked:?}"));
        let recorded = read(&line["request"]);
        // An id is whatever the client has given.
        let body = line["body"].as_str().unwrap();
        let body = body.replace(&format!("\"id\":{}", recorded["id"]), &format!("\"id\":{}", sent["id"]));
        answered(line, body)
    }
}

/// A recorded answer with this body.
fn answered(line: &Value, body: String) -> Answered {
    let header = |(name, value): (&String, &Value)| (name.clone(), value.as_str().unwrap().to_owned());
    let headers = line["headers"].as_object().unwrap().iter().map(header).collect();
    (line["status"].as_u64().unwrap(), headers, body)
}

/// Whether the headers of these names are those of a recorded request.
fn has_headers(line: &Value, asked: &Asked, names: &[&str]) -> bool {
    let headers = line["request_headers"].as_object().unwrap();
    names.iter().all(|name| headers.get(*name).and_then(Value::as_str) == asked.header(name))
}

/// Whether a recorded request is this one: the method, the parameters without those about the client, and the headers.
fn is_same(line: &Value, asked: &Asked, sent: &Value) -> bool {
    if line["http"] != "POST" || line["status"].as_u64().is_none_or(|status| status >= 300) {
        return false;
    }
    let recorded = read(&line["request"]);
    let names = [REVISION, "mcp-session-id", "mcp-method", "mcp-name", "content-type"];
    has_headers(line, asked, &names) && recorded["method"] == sent["method"] && params(&recorded) == params(sent)
}

fn params(message: &Value) -> Value {
    let mut params = message["params"].clone();
    if let Value::Object(fields) = &mut params {
        fields.remove("clientInfo");
        if let Some(Value::Object(meta)) = fields.get_mut("_meta") {
            assert!(meta.remove("io.modelcontextprotocol/clientInfo").is_some_and(|about| about["name"].is_string()));
        }
        if fields.is_empty() {
            return Value::Null;
        }
    }
    params
}

async fn call(peer: &Mcp, name: &str, arguments: Value) -> Reply {
    let step = peer.step(&mut (), vec![Call { name: name.to_owned(), arguments }]).await.unwrap();
    assert!(step.reward.is_none() && !step.done);
    step.replies.into_iter().next().unwrap()
}

fn names(peer: &Mcp) -> Vec<&str> {
    peer.tools().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect()
}

fn said(text: &str) -> Reply {
    Reply { text: text.to_owned(), failed: false }
}

#[test]
fn a_result_is_read_as_its_texts() {
    let text = |text: &str| json!({"type": "text", "text": text});
    for (result, expected) in [
        (json!({"content": [text("5")], "isError": false}), said("5")),
        (json!({"content": [text("a"), text("b")]}), said("a\nb")),
        (json!({"content": [text("no")], "isError": true}), Reply::failed("no")),
        (json!({"content": [], "structuredContent": {"a": 1}}), said(r#"{"a":1}"#)),
        (json!({"content": []}), said("")),
        (json!({"content": [{"type": "image", "data": ""}]}), Reply::failed("the tool returned what is no text")),
    ] {
        assert_eq!(reply(&result), expected, "{result}");
    }
    assert!(reply(&json!({"resultType": "input_required"})).failed);
    for (result, words) in [
        (json!({}), "the result of the tool has no `content`"),
        (json!({"content": null, "structuredContent": {"a": 1}}), "the result of the tool has no `content`"),
        (json!({"content": "5"}), "the result of the tool has a `content` that is no list"),
    ] {
        assert_eq!(reply(&result), Reply::failed(words), "{result}");
    }
}

/// A server without sessions, with tools of these names. Each says the header that names it.
async fn stateless(names: &'static [&'static str]) -> String {
    let address = http(move |asked| {
        let sent: Value = serde_json::from_str(&asked.body).unwrap();
        let result = match sent["method"].as_str() {
            Some("server/discover") => json!({"supportedVersions": [STATELESS]}),
            Some("tools/list") => {
                let tool = |name: &&str| json!({"name": name, "inputSchema": {"type": "object"}});
                json!({"tools": names.iter().map(tool).collect::<Vec<_>>()})
            }
            _ => json!({"content": [{"type": "text", "text": asked.header("mcp-name")}]}),
        };
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        (200, headers, json!({"jsonrpc": "2.0", "id": sent["id"], "result": result}).to_string())
    });
    format!("http://{}/mcp", address.await)
}

#[tokio::test]
async fn a_name_of_any_characters_reaches_a_server_without_sessions_in_a_header() {
    let peer = Mcp::meet(&stateless(&["add", "größe"]).await).await.unwrap();
    assert_eq!(call(&peer, "add", json!({})).await, said("add"));
    assert_eq!(call(&peer, "größe", json!({})).await, said("=?base64?Z3LDtsOfZQ==?="));
}

#[tokio::test]
async fn a_server_without_tools_is_refused() {
    let server = stateless(&[]).await;
    let error = Mcp::meet(&server).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{server} lists no tools")), "{error}");
}

/// A server without sessions with one list of tools after another, which answers a call by its headers for arguments
/// and refuses one without them.
async fn marking(lists: Vec<Value>) -> String {
    let asked_for = AtomicUsize::new(0);
    let address = http(move |asked| {
        let sent: Value = serde_json::from_str(&asked.body).unwrap();
        let of_arguments = || asked.headers.iter().filter(|(name, _)| name.starts_with("mcp-param-"));
        let result = match sent["method"].as_str() {
            Some("server/discover") => json!({"supportedVersions": [STATELESS]}),
            Some("tools/list") => {
                let at = asked_for.fetch_add(1, Ordering::SeqCst).min(lists.len() - 1);
                json!({"tools": lists[at]})
            }
            _ if of_arguments().count() == 0 => Value::Null,
            _ => {
                let lines: Vec<String> = of_arguments().map(|(name, value)| format!("{name}: {value}")).collect();
                json!({"content": [{"type": "text", "text": lines.join("\n")}]})
            }
        };
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if result.is_null() {
            let error = json!({"code": -32020, "message": "Header mismatch"});
            return (400, headers, json!({"jsonrpc": "2.0", "id": sent["id"], "error": error}).to_string());
        }
        (200, headers, json!({"jsonrpc": "2.0", "id": sent["id"], "result": result}).to_string())
    });
    format!("http://{}/mcp", address.await)
}

/// A tool with an argument whose schema is this.
fn with_argument(name: &str, schema: &Value) -> Value {
    json!({"name": name, "inputSchema": {"type": "object", "properties": {"region": schema}}})
}

#[tokio::test]
async fn marked_arguments_reach_a_server_without_sessions_in_headers() {
    let marked = json!({"type": "string", "x-mcp-header": "Region"});
    let wrong = json!({"type": "number", "x-mcp-header": "Region"});
    let lists = json!([with_argument("query", &marked), with_argument("wrong", &wrong)]);
    let peer = Mcp::meet(&marking(vec![lists]).await).await.unwrap();
    assert_eq!(names(&peer), ["query"]);
    let left_out = "the tool wrong is left out: `x-mcp-header` \"Region\" marks what is no text, whole number or truth";
    assert!(peer.remarks().len() == 1 && peer.remarks()[0].starts_with(left_out), "{:?}", peer.remarks());
    let in_region = |region: Value| json!({"region": region, "query": "SELECT 1"});
    assert_eq!(call(&peer, "query", in_region("us-west1".into())).await, said("mcp-param-region: us-west1"));
    let encoded = said("mcp-param-region: =?base64?TcO8bmNoZW4=?=");
    assert_eq!(call(&peer, "query", in_region("München".into())).await, encoded);
    assert_eq!(call(&peer, "query", in_region(Value::Null)).await, Reply::failed("Header mismatch"));
    let none = Mcp::meet(&marking(vec![json!([with_argument("wrong", &wrong)])]).await).await.unwrap_err().to_string();
    assert!(none.contains("cannot be listed: the tool wrong is left out"), "{none}");
}

#[tokio::test]
async fn a_tool_that_has_come_to_mark_an_argument_is_listed_again() {
    let [plain, marked] = [json!({"type": "string"}), json!({"type": "string", "x-mcp-header": "Region"})];
    let lists = [plain, marked].map(|schema| json!([with_argument("query", &schema)]));
    let peer = Mcp::meet(&marking(lists.to_vec()).await).await.unwrap();
    assert_eq!(call(&peer, "query", json!({"region": "north"})).await, said("mcp-param-region: north"));
}

#[tokio::test]
async fn golden_mcp_http() {
    for (is_stateless, revision) in [(true, STATELESS), (false, "2025-11-25")] {
        let (address, server) = Server::start(is_stateless).await;
        let peer = Mcp::meet(&address).await.unwrap();
        assert_eq!(peer.revision(), revision);
        assert_eq!(names(&peer), ["add", "say", "fail"]);
        assert_eq!(peer.tools()[0]["function"]["description"], "Adds two numbers.");
        let sum = json!({"a": 2, "b": 3});
        assert_eq!(call(&peer, "add", sum.clone()).await, said("5"));
        assert_eq!(call(&peer, "say", json!({"text": "é<|im_end|>"})).await, said("é<|im_end|>é<|im_end|>"));
        assert_eq!(call(&peer, "fail", json!({"text": "no"})).await, Reply::failed("Error executing tool fail"));
        let wrong = call(&peer, "add", json!({"a": "x"})).await;
        assert!(wrong.failed && wrong.text.contains("2 validation errors"), "{wrong:?}");
        assert_eq!(call(&peer, "missing", json!({})).await, Reply::failed("Unknown tool: missing"));
        assert!(call(&peer, "add", json!("2 + 3")).await.failed);
        // A session that the server has forgotten is begun anew.
        server.forgets.store(!is_stateless, Ordering::SeqCst);
        assert_eq!(call(&peer, "add", sum).await, said("5"));
        assert!(!server.forgets.load(Ordering::SeqCst));
        assert_eq!(server.is_heard.load(Ordering::SeqCst), !is_stateless, "a session has a stream of its own");
    }
}

/// A server over HTTP, which knows sessions alone. Its tools are called after what they ask the client: on the stream
/// of the call (`own`), or on that of the session, which it closes after each message. Its requests have the ids of the
/// calls.
const ASKING: &str = r#"
import json, queue, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

questions, answers = queue.Queue(), queue.Queue()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def begin(self, status, kind, *headers):
        self.send_response(status)
        for header in [("Content-Type", kind), *headers]:
            self.send_header(*header)
        self.end_headers()

    def event(self, message):
        self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
        self.wfile.flush()

    def whole(self, status, message, *headers):
        body = json.dumps(message).encode() if message else b""
        self.begin(status, "application/json", ("Content-Length", str(len(body))), *headers)
        self.wfile.write(body)

    def do_GET(self):
        assert self.headers["Mcp-Session-Id"] == "s"
        self.begin(200, "text/event-stream", ("Connection", "close"))
        self.event(questions.get())

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number, method = message.get("id"), message.get("method")

        def result(**fields):
            return {"jsonrpc": "2.0", "id": number, "result": fields}

        if method == "initialize":
            about = result(protocolVersion="2025-06-18", capabilities={}, serverInfo={"name": "s", "version": "1"})
            self.whole(200, about, ("Mcp-Session-Id", "s"))
        elif self.headers["Mcp-Session-Id"] != "s":
            self.whole(400, None)
        elif method is None:
            self.whole(202, None)
            answers.put(message)
        elif method == "tools/list":
            schema = {"type": "object"}
            self.whole(200, result(tools=[{"name": name, "inputSchema": schema} for name in ("ping", "roots/list")]))
        elif method == "tools/call":
            asked = {"jsonrpc": "2.0", "id": number, "method": message["params"]["name"]}
            self.begin(200, "text/event-stream", ("Connection", "close"))
            if message["params"]["arguments"]["own"]:
                self.event(asked)
            else:
                questions.put(asked)
            answer = answers.get(timeout=20)
            text = json.dumps(answer["result"] if "result" in answer else answer["error"]["code"])
            self.event(result(content=[{"type": "text", "text": text}]))
        else:
            self.whole(202, None)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

#[tokio::test]
async fn what_a_server_asks_in_a_session_over_http_is_answered_on_each_stream() {
    let (_server, port) = server(Path::new("python3"), ASKING);
    let peer = Mcp::meet(&format!("http://127.0.0.1:{port}/mcp")).await.unwrap();
    assert_eq!(peer.revision(), "2025-06-18");
    for own in [true, false] {
        for (asked, answer) in [("ping", "{}"), ("roots/list", "-32601")] {
            assert_eq!(call(&peer, asked, json!({"own": own})).await, said(answer), "{asked}, {own}");
        }
    }
}

/// A server on its standard input and output, which knows sessions alone, asks for a sign of life before it answers a
/// call, answers the tool `half` with half a character, and ends at the tool `end`.
const PROGRAM: &str = r#"
import json, sys

def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        say(id=number, result={"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s"}})
    elif method == "tools/list":
        page = message["params"].get("cursor")
        tool = {"name": "second" if page else "first", "inputSchema": {"type": "object"}}
        say(id=number, result={"tools": [tool], **({} if page else {"nextCursor": "2"})})
    elif method == "tools/call" and message["params"]["name"] == "end":
        sys.exit("no more\nthan this")
    elif method == "tools/call" and message["params"]["name"] == "half":
        say(id=number, result={"content": [{"type": "text", "text": "\ud800"}]})
    elif method == "tools/call":
        say(id="p", method="ping")
        pong = json.loads(sys.stdin.readline())
        say(id=number, result={"content": [{"type": "text", "text": json.dumps(pong["result"])}]})
    elif number is not None:
        say(id=number, error={"code": -32601, "message": f"no {method}"})
"#;

#[tokio::test]
async fn a_program_is_a_server_too_and_its_end_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.py");
    std::fs::write(&file, PROGRAM).unwrap();
    let peer = Mcp::meet(&format!("exec python3 {}", file.display())).await.unwrap();
    assert_eq!(peer.revision(), "2025-06-18");
    assert_eq!(names(&peer), ["first", "second"], "page by page");
    assert_eq!(call(&peer, "first", Value::Null).await, said("{}"));
    let half = peer.step(&mut (), vec![Call { name: "half".into(), arguments: json!({}) }]).await.unwrap_err();
    assert!(half.starts_with("the server's answer is no JSON (") && half.contains("\"id\": "), "{half}");
    assert_eq!(peer.gone().await, None);
    let ended = peer.step(&mut (), vec![Call { name: "end".into(), arguments: json!({}) }]).await;
    let words = "the program of the server has ended (exit status: 1)\nno more\nthan this".to_owned();
    assert_eq!(ended, Err(words.clone()));
    let again = peer.step(&mut (), vec![Call { name: "first".into(), arguments: json!({}) }]).await;
    assert_eq!((again, peer.gone().await), (Err(words.clone()), Some(words.clone())));
    // The bridge ends with the same words, so that the sampler starts another one.
    let (line, lines) = mpsc::unbounded_channel();
    line.send("a request".to_owned()).unwrap();
    let served = serve(Arc::new(peer), lines, mpsc::unbounded_channel().0).await;
    assert_eq!(served.unwrap_err().to_string(), words);
}

#[tokio::test]
async fn what_is_no_server_of_mcp_is_named() {
    for (server, words) in [
        ("http://127.0.0.1:1/mcp", "no server of MCP answers at http://127.0.0.1:1/mcp: "),
        ("https://127.0.0.1/mcp", "the bridge speaks no TLS"),
        ("exit 1", "no server of MCP answers at exit 1: the program of the server has ended (exit status: 1)"),
        ("kill -9 $$", "the program of the server has ended (signal: 9 (SIGKILL))"),
        ("nosuchprogram", "the program of the server has ended (exit status: 127)\n"),
        ("nosuchprogram", "nosuchprogram: not found"),
        ("exec >&- 2>&-; exec sleep 99", "the program of the server answers no more"),
        ("HTTP://127.0.0.1:1/mcp", "no server of MCP answers at HTTP://127.0.0.1:1/mcp: error sending request"),
        ("HttpS://127.0.0.1/mcp", "the bridge speaks no TLS"),
        ("ftp://x", "no server of MCP answers at ftp://x: the bridge does not speak `ftp`; write http://HOST:PORT/"),
        ("./no-server http://127.0.0.1:1", "the program of the server has ended (exit status: 127)"),
    ] {
        let error = Mcp::meet(server).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test]
async fn last_words_are_the_last_lines_however_long_they_are() {
    let program = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23; do echo $i >&2; done; exit 4";
    let error = Mcp::meet(program).await.unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!((lines.len(), lines[1], lines[20]), (21, "4", "23"), "{error}");
    assert!(lines[0].ends_with("the program of the server has ended (exit status: 4)"), "{error}");
}

#[tokio::test]
async fn a_server_of_the_package_mcp_has_tools_over_http_and_as_a_program() {
    let test = "a_server_of_the_package_mcp_has_tools_over_http_and_as_a_program";
    let Some(python) = python("TANDEM_MCP_PYTHON", "mcp.server.mcpserver") else {
        return harness::skipped(test, "no Python here has mcp 2 (TANDEM_MCP_PYTHON)");
    };
    let (_server, port) = server(&python, PACKAGE);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("server.py");
    std::fs::write(&file, PACKAGE).unwrap();
    let line = format!("exec {} {} stdio", python.display(), file.display());
    for server in [format!("http://127.0.0.1:{port}/mcp"), line] {
        let peer = Mcp::meet(&server).await.unwrap();
        assert_eq!(peer.revision(), STATELESS, "{server}");
        assert_eq!(peer.tools()[0]["function"]["parameters"]["required"], json!(["a", "b"]));
        assert_eq!(call(&peer, "add", json!({"a": 2, "b": 3})).await, said("5"), "{server}");
        assert_eq!(call(&peer, "größe", json!({})).await, said("big"), "{server}");
        for (name, arguments) in [("fail", json!({"text": "no"})), ("add", json!({"a": "x"})), ("missing", json!({}))] {
            assert!(call(&peer, name, arguments).await.failed, "{server}: {name}");
        }
    }
}
