//! The same conversation six ways: a tool that is built in, a class in Python as TRL takes it, an agent with the client
//! of OpenAI, a server of OpenEnv, a server of MCP and a server of verifiers. Peers are the real packages.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    cli::{self, Finished},
    skipped,
    tiny_model::{CHARACTERS, CONVERSATION_TEMPLATE, Qwen2, SMALL, write_conversation_tokenizer},
    training::json_lines,
};
use serde_json::{Value, json};

/// A class in Python with the tool of `builtin:calculator`.
const CLASS: &str = r#"
class Calculator:
    def reset(self, **row):
        return None

    def calculate(self, expression: str) -> str:
        """Computes the exact value of an arithmetic expression.

        Args:
            expression: Numbers joined by + - * / // ** and parentheses, such as (12 + 7) * 3.

        Returns:
            The value.
        """
        return str(eval(expression, {"__builtins__": {}}))
"#;

/// An agent that holds the conversation itself.
const AGENT: &str = r#"
import json, sys, openai

PROPERTIES = {"expression": {"type": "string"}}
FUNCTION = {"name": "calculate", "description": "Computes the exact value of an arithmetic expression.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["expression"]}}
row = json.loads(sys.stdin.readline())
client = openai.OpenAI()
messages = list(row["prompt"])
while True:
    try:
        answer = client.chat.completions.create(model="policy", messages=messages,
                                                tools=[{"type": "function", "function": FUNCTION}])
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error
        break
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        value = str(eval(json.loads(call.function.arguments)["expression"], {"__builtins__": {}}))
        messages.append({"role": "tool", "tool_call_id": call.id, "name": "calculate", "content": value})
print(0)
"#;

/// An environment of the package `openenv`.
const OPENENV: &str = r#"
import sys
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
import uvicorn


class Calculate(Action):
    """Computes the exact value of an arithmetic expression."""
    expression: str


class Value(Observation):
    text: str | None = None


class Calculator(Environment):
    def reset(self, seed=None, episode_id=None, **row):
        return Value()

    def step(self, action, **more):
        return Value(text=str(eval(action.expression, {"__builtins__": {}})))

    @property
    def state(self):
        return State()


uvicorn.run(create_fastapi_app(Calculator, Calculate, Value), host="127.0.0.1", port=int(sys.argv[1]),
            log_level="error")
"#;

/// A server of the package `mcp`.
const MCP: &str = r#"
from mcp.server import MCPServer

server = MCPServer("calculator")


@server.tool()
def calculate(expression: str) -> str:
    """Computes the exact value of an arithmetic expression."""
    return str(eval(expression, {"__builtins__": {}}))


server.run("stdio")
"#;

/// A taskset of the package `verifiers` with a harness that holds the conversation, and its server.
const VERIFIERS: &str = r#"
import json, sys
import openai
import verifiers.v1 as vf
from verifiers.v1.serve import serve_env

__all__ = ["Sums", "Loop"]

PROPERTIES = {"expression": {"type": "string"}}
FUNCTION = {"name": "calculate", "description": "Computes the exact value of an arithmetic expression.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": ["expression"]}}


class Sum(vf.Task[vf.TaskData]):
    @vf.reward
    async def nothing(self, trace) -> float:
        return 0.0


class Sums(vf.Taskset[Sum]):
    def load(self):
        return []


class Loop(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **more):
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret)
        messages = [message.model_dump() for message in data.prompt]
        while True:
            try:
                answer = await client.chat.completions.create(model=ctx.model, messages=messages,
                                                              tools=[{"type": "function", "function": FUNCTION}])
            except openai.BadRequestError as error:
                assert "context_length_exceeded" in str(error), error
                break
            message = answer.choices[0].message
            messages.append(message)
            for call in message.tool_calls or []:
                value = str(eval(json.loads(call.function.arguments)["expression"], {"__builtins__": {}}))
                messages.append({"role": "tool", "tool_call_id": call.id, "name": "calculate", "content": value})
            if not message.tool_calls:
                break
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


if __name__ == "__main__":
    env = {"taskset": {"id": "calculator-v1"}, "agent": {"runtime": {"type": "subprocess"}}}
    serve_env(config=vf.resolve_env_config(env), max_workers=1, address=f"tcp://127.0.0.1:{sys.argv[1]}")
"#;

const REWARD: &str = r#"
def long(completions, owner_masks, **kwargs):
    return [float(sum(owners)) for owners in owner_masks]
"#;

/// A Python that can import a module.
fn python(variable: &str, module: &str) -> Option<PathBuf> {
    let named = env::var_os(variable).map_or_else(|| "python3".into(), PathBuf::from);
    let mut import = Command::new(&named);
    import.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success()).then_some(named)
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program on a free port, and waits until it listens there. It writes to the folder of the program.
fn serve(python: &Path, program: &Path) -> (Server, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = Command::new(python);
    command.arg(program).arg(port.to_string()).env("HOME", program.parent().unwrap());
    let mut server = Server(command.spawn().unwrap());
    let begun = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(server.0.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(20));
    }
    (server, port)
}

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    /// A folder with a model that has learned to call the calculator, and to say its value in several ways. Its
    /// template writes of a tool what all six ways know: a peer does not know what a tool returns.
    fn warmed() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        let row = json!({"prompt": [{"role": "user", "content": "2+3?"}]});
        for (name, text) in [
            ("prompts.jsonl", &*format!("{row}\n").repeat(8)),
            ("my_env.py", CLASS),
            ("agent.py", AGENT),
            ("calculator_server.py", OPENENV),
            ("mcp_server.py", MCP),
            ("calculator_v1.py", VERIFIERS),
            ("my_rewards.py", REWARD),
        ] {
            fs::write(bench.path(name), text).unwrap();
        }
        Qwen2 { vocab_size: CHARACTERS + 1, ..SMALL }.write(&bench.path("random"), 5);
        write_conversation_tokenizer(&bench.path("random"));
        let known = "{{ tool.function.name }}: {{ tool.function.description }}\
                     {% for name in tool.function.parameters.properties %} {{ name }}{% endfor %}";
        let template = CONVERSATION_TEMPLATE.replace("{{ tool | tojson }}", known);
        assert_ne!(template, CONVERSATION_TEMPLATE);
        fs::write(bench.path("random/chat_template.jinja"), template).unwrap();
        let first = bench.train("random", "first", "tools = [\"builtin:calculator\"]", 1);
        assert!(matches!(first.status.code(), Some(0 | 4)), "{}", first.stderr);
        let prompt = &json_lines(&bench.path("first/completions/step-1.jsonl"))[0]["prompt"];
        let row = |last: &str| {
            let call = "<tool_call>\n{\"name\": \"calculate\", \"arguments\": {\"expression\": \"2+3\"}}\n</tool_call>";
            let reply = "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
            let completion = format!("{call}<|im_end|>\n{reply}{last}<|im_end|>");
            json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
        };
        let rows: String = ["5.", "It is 5.", "The sum of 2 and 3 is 5.", "Five: 5"].into_iter().map(row).collect();
        fs::write(bench.path("sft.jsonl"), rows).unwrap();
        let mut sft = Command::new(binary("learner"));
        sft.current_dir(bench.dir.path()).args(["sft", "--model", "random", "--data", "sft.jsonl"]);
        sft.args(["--output", "model", "--max-steps", "200", "--batch-size", "4", "--learning-rate", "5e-3"]);
        let _ = cli::finish(sft).success();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn train(&self, model: &str, run: &str, more: &str, steps: u64) -> Finished {
        let text = format!(
            "model = {model:?}\ndataset = \"prompts.jsonl\"\noutput_dir = {run:?}\nmax_steps = {steps}\n\
             reward_funcs = [\"my_rewards.py:long\"]\nnum_generations = 4\nper_device_train_batch_size = 8\n\
             max_completion_length = 240\nmax_model_len = 500\nlearning_rate = 1e-4\nrehearse_rewards = false\n{more}\n"
        );
        fs::write(self.path(&format!("{run}.toml")), text).unwrap();
        let mut command = Command::new(binary("tandem"));
        command.current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        command.arg("train").arg(format!("{run}.toml"));
        cli::finish(command)
    }

    /// All tokens of a run's completions with their owners and the sampler's log-probs.
    fn tokens(&self, run: &str) -> Vec<Value> {
        let of_step = |step: u64| json_lines(&self.path(run).join(format!("completions/tokens-{step}.jsonl")));
        let figures = |row: Value| json!([row["group"], row["sample"], row["tokens"], row["owner"], row["sampler"]]);
        (1..=STEPS).flat_map(of_step).map(figures).collect()
    }
}

const STEPS: u64 = 3;

#[test]
fn the_same_conversation_six_ways_makes_the_same_tokens_and_the_same_weights() {
    let bench = Bench::warmed();
    let mut ways = vec![
        ("builtin", "tools = [\"builtin:calculator\"]".to_owned()),
        ("class", "environment_factory = \"my_env.py:Calculator\"".to_owned()),
    ];
    if let Some(python) = python("TANDEM_OPENAI_PYTHON", "openai") {
        ways.push(("agent", format!("agent = \"{} agent.py\"", python.display())));
    } else {
        skipped("the_same_conversation_six_ways: agent", "no Python here has openai");
    }
    let served =
        python("TANDEM_OPENENV_PYTHON", "openenv").map(|python| serve(&python, &bench.path("calculator_server.py")));
    if let Some((_, port)) = &served {
        ways.push(("openenv", format!("environment_factory = \"openenv:ws://127.0.0.1:{port}\"")));
    } else {
        skipped("the_same_conversation_six_ways: openenv", "no Python here has openenv");
    }
    if let Some(python) = python("TANDEM_MCP_PYTHON", "mcp.server") {
        let program = bench.path("mcp_server.py");
        ways.push(("mcp", format!("tools = [\"mcp:{} {}\"]", python.display(), program.display())));
    } else {
        skipped("the_same_conversation_six_ways: mcp", "no Python here has mcp");
    }
    let played =
        python("TANDEM_VERIFIERS_PYTHON", "verifiers.v1").map(|python| serve(&python, &bench.path("calculator_v1.py")));
    if let Some((_, port)) = &played {
        ways.push(("verifiers", format!("agent = \"verifiers:tcp://127.0.0.1:{port}\"")));
    } else {
        skipped("the_same_conversation_six_ways: verifiers", "no Python here has verifiers");
    }
    let weights = |run: &str| fs::read(bench.path(run).join(format!("checkpoint-{STEPS}/model.safetensors"))).unwrap();
    for (run, more) in &ways {
        let finished = bench.train("model", run, more, STEPS);
        let log = fs::read_to_string(bench.path(run).join("logs/rollout.log")).unwrap_or_default();
        assert!(finished.status.success(), "{run}: {}\n{log}", finished.stderr);
        for record in json_lines(&bench.path(run).join("metrics.jsonl")) {
            let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"));
            assert!(number("mismatch_kl") < 1e-9 && number("tools/call_frequency") > 0.5, "{run}: {record}");
            assert_eq!(number("environment/failed") + number("environment/late"), 0.0, "{run}: {record}");
            assert!(number("grad_norm") > 0.0, "{run}: {record}");
        }
        let (found, expected) = (bench.tokens(run), bench.tokens("builtin"));
        assert_eq!(found.len(), 8 * STEPS as usize);
        assert!(found.iter().any(|row| row[3].as_array().unwrap().contains(&json!(0))), "{run}: {found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{run}");
        }
        assert!(weights(run) == weights("builtin"), "{run}: the weights differ");
    }
    assert!(weights("builtin") != fs::read(bench.path("model/model.safetensors")).unwrap(), "it has learned");
}
