//! Runs with environments and tools that are served: by a program that reads and writes lines, and by servers.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::agents::{Bench, ENVIRONMENT, assert_owned, number};

/// What the example in the shell does, as a class.
fn class() -> String {
    ENVIRONMENT.replace(" + 0.25 * len(self.seen)", "")
}

/// Writes the example in the shell, with the words that the model knows.
fn write_example(bench: &Bench) {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/sums/sums.sh");
    let mut text = fs::read_to_string(example).unwrap();
    for (words, known) in
        [("Adds two numbers.", "Adds."), ("The first number.", "One."), ("The second number.", "Two.")]
    {
        assert!(text.contains(words), "{words}");
        text = text.replace(words, known);
    }
    bench.write("sums.sh", &text);
    fs::set_permissions(bench.path("sums.sh"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_program_and_a_class_that_say_the_same_make_the_same_weights() {
    const STEPS: u64 = 2;
    let bench = Bench::new();
    write_example(&bench);
    bench.write("my_env.py", &class());
    for (run, environment) in [("program", "command:./sums.sh"), ("class", "my_env.py:Sums")] {
        let more = format!("environment_factory = {environment:?}\nmax_steps = {STEPS}\n");
        let _ = bench.train("model", run, &more).success();
    }
    for record in bench.metrics("program") {
        assert!(number(&record, "mismatch_kl") < 1e-9, "{record}");
        assert!(number(&record, "rewards/command/mean") > 0.1, "{record}");
        assert!(number(&record, "tools/call_frequency") > 0.1, "{record}");
        assert_eq!((number(&record, "environment/failed"), number(&record, "environment/late")), (0.0, 0.0));
    }
    for step in 1..=STEPS {
        let (by_program, by_class) = (bench.completions("program", step), bench.completions("class", step));
        assert!(by_program.iter().map(assert_owned).sum::<u64>() > 2, "{by_program:?}");
        for (program, class) in by_program.iter().zip(&by_class) {
            assert_eq!((&program["messages"], &program["reward"]), (&class["messages"], &class["reward"]));
            assert_eq!(program["opening"], " Go.");
        }
    }
    let weights = |run: &str| fs::read(bench.path(run).join(format!("checkpoint-{STEPS}/weights.data"))).unwrap();
    assert!(weights("program") == weights("class"), "the weights differ");
}

#[test]
fn a_program_that_never_answers_costs_its_conversations_which_have_no_reward() {
    let bench = Bench::new();
    write_example(&bench);
    // It goes on without an answer to a turn.
    let text = fs::read_to_string(bench.path("sums.sh")).unwrap();
    let silent = text.replace("    step)\n", "    step) continue ;;\n    other)\n");
    assert_ne!(silent, text);
    bench.write("sums.sh", &silent);
    let more = "environment_factory = \"command:./sums.sh\"\nmax_steps = 1\nenvironment_timeout = 2\n\
                reward_failure_stops = false\n";
    let _ = bench.train("model", "run", more);
    let rows = bench.completions("run", 1);
    let late: Vec<_> = rows.iter().filter(|row| row["state"] == "environment_failed").collect();
    assert!(late.len() > 2 && late.iter().all(|row| row["reward"].is_null()), "{rows:?}");
    let words = "`step` has not answered within 2 s (`environment_timeout`)";
    assert!(late.iter().all(|row| row["failure"].as_str().is_some_and(|why| why.contains(words))), "{late:?}");
    assert_eq!(number(&bench.metrics("run")[0], "environment/late"), late.len() as f64);
}

/// A tool that is asked by lines, or by MCP.
const ADDER: &str = r#"
import json, sys

NUMBER = {"type": "integer"}
PROPERTIES = {"a": {**NUMBER, "description": "One."}, "b": {**NUMBER, "description": "Two."}}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": ["a", "b"]}


def say(**message):
    print(json.dumps(message), flush=True)


def add(arguments):
    try:
        return str(arguments["a"] + arguments["b"]), False
    except Exception:
        return "a and b must be numbers", True


def lines(request):
    if request["do"] != "step":
        return say(id=request["id"])
    replies = [add(call["arguments"]) for call in request["calls"]]
    say(id=request["id"], replies=[{"content": text, "failed": failed} for text, failed in replies])


def mcp(request):
    result = None
    if request["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "adder", "version": "1"}}
    elif request["method"] == "tools/list":
        result = {"tools": [{"name": "add", "description": "Adds.", "inputSchema": SCHEMA}]}
    elif request["method"] == "tools/call":
        text, failed = add(request["params"]["arguments"])
        result = {"content": [{"type": "text", "text": text}], "isError": failed}
    if result is not None:
        say(jsonrpc="2.0", id=request["id"], result=result)
    elif "id" in request:
        say(jsonrpc="2.0", id=request["id"], error={"code": -32601, "message": "Method not found"})


if sys.argv[1] == "lines":
    function = {"name": "add", "description": "Adds.", "parameters": SCHEMA}
    say(protocol=1, tools=[{"type": "function", "function": function}])
for line in sys.stdin:
    {"lines": lines, "mcp": mcp}[sys.argv[1]](json.loads(line))
"#;

#[test]
fn a_tool_by_lines_and_by_mcp_makes_the_same_weights() {
    let bench = Bench::warmed("tools = [\"command:python3 adder.py lines\"]", &[("adder.py", ADDER)]);
    for (run, tool) in [("lines", "command:python3 adder.py lines"), ("mcp", "mcp:python3 adder.py mcp")] {
        let _ = bench.train("model", run, &format!("tools = [{tool:?}]\nmax_steps = 2\n")).success();
    }
    let (by_lines, by_mcp) = (bench.completions("lines", 1), bench.completions("mcp", 1));
    assert!(by_lines.iter().map(assert_owned).sum::<u64>() > 2, "{by_lines:?}");
    for (lines, mcp) in by_lines.iter().zip(&by_mcp) {
        assert_eq!(lines["messages"], mcp["messages"]);
    }
    let weights = |run: &str| fs::read(bench.path(run).join("checkpoint-2/weights.data")).unwrap();
    assert!(weights("lines") == weights("mcp"), "the weights differ");
}
