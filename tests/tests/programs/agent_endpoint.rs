//! Runs with `agent`: programs of a user that ask the policy over HTTP, whose answers are trained on.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use harness::{
    binary,
    cli::{self, Finished},
    skipped,
    tiny_model::{CHARACTERS, Qwen2, SMALL, write_conversation_tokenizer},
    training::json_lines,
};
use serde_json::{Value, json};

/// A Python that has OpenAI's client.
fn python() -> Option<PathBuf> {
    let named = env::var_os("TANDEM_OPENAI_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let mut import = Command::new(&named);
    import.args(["-c", "import openai"]).stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success()).then_some(named)
}

/// An agent of two turns, the second one as a stream; more letters are better.
const AGENT: &str = r#"
import json, sys, openai
row = json.loads(sys.stdin.readline())
client = openai.OpenAI()
messages = list(row["prompt"])
first = client.chat.completions.create(model="policy", messages=messages, max_tokens=24, logprobs=True,
                                       extra_body={"return_token_ids": True})
message = first.choices[0].message
assert len(first.choices[0].logprobs.content) == len(first.choices[0].token_ids) > 0
messages += [message, {"role": "user", "content": "And now?"}]
said = ""
stream = client.chat.completions.create(model="policy", messages=messages, max_tokens=24, stream=True,
                                        extra_body={"return_token_ids": True})
for chunk in stream:
    ids = getattr(chunk, "prompt_token_ids", None)
    if ids:
        begin = first.prompt_token_ids + first.choices[0].token_ids
        assert ids[:len(begin)] == begin, "what was sampled is not tokenised again"
    for choice in chunk.choices:
        said += choice.delta.content or ""
print("letters:")
print(sum(letter.isalpha() for letter in (message.content or "") + said))
"#;

/// A planner and a solver that ask at the same time, and one of them again in another way: three conversations of one
/// sample, in whatever order their requests come.
const PARALLEL: &str = r#"
import json, random, sys, threading, time, openai
row = json.loads(sys.stdin.readline())
client = openai.OpenAI()
said = {}

def ask(messages):
    time.sleep(random.random() / 10)
    return client.chat.completions.create(model="policy", messages=messages, max_tokens=16).choices[0].message

def plan():
    first = ask(row["prompt"])
    said["plan"] = first.content or ""
    for further in ["How?", "Why?"]:
        said[further] = ask([*row["prompt"], first, {"role": "user", "content": further}]).content or ""

def solve():
    said["solve"] = ask([{"role": "system", "content": "Solve."}, *row["prompt"]]).content or ""

threads = [threading.Thread(target=work) for work in (plan, solve)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(said) == 4
print(sum(letter.isalpha() for text in said.values() for letter in text))
"#;

/// An agent that does as its prompt says.
const MODES: &str = r#"
import json, os, sys, time, urllib.error, urllib.request
row = json.loads(sys.stdin.readline())
mode = row["prompt"][0]["content"]
base, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]

root = base.removesuffix("/v1")

def ask(path, body, key=key, more={}):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key, **more}
    request = urllib.request.Request(root + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

def chat(more={}, messages=row["prompt"], key=key):
    return ask("/v1/chat/completions", {"messages": messages, "max_tokens": 8, **more}, key)

if mode == "silent":
    sys.exit(0)
if mode != "ids":
    status, answer = chat({"temperature": 0.5})
    assert status == 200, answer
if mode == "crash":
    raise ValueError("no more")
if mode == "hang":
    time.sleep(1000)
if mode == "flood":
    os.execvp("yes", ["yes"])
if mode == "post":
    assert ask("/reward", {"reward": 0.75})[0] == 200
    assert ask("/reward", {"reward": 1.0})[0] == 409
    print(5)
if mode == "ids":
    tokens = ask("/tokenize", {"model": "policy", "messages": row["prompt"]})[1]["tokens"]
    params = {"max_tokens": 6, "logprobs": 1}
    for turn in range(3):
        status, answer = ask("/inference/v1/generate", {"token_ids": tokens, "sampling_params": params})
        assert status == 200, answer
        choice = answer["choices"][0]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) and choice["index"] == 0
        tokens += choice["token_ids"] + [10, 11]
if mode == "many":
    for number in range(8):
        assert chat(messages=[{"role": "user", "content": "y" * 100 + str(number)}])[0] == 200
if mode == "checks":
    assert chat(key="of-nobody")[0] == 401
    assert chat({"n": 2})[1]["error"]["param"] == "n"
    assert chat({"response_format": {"type": "json_object"}})[0] == 400
    assert ask("/v1/completions", {"prompt": "a"})[0] == 404
    long = [{"role": "user", "content": "x" * 5000}]
    status, answer = chat(messages=long)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), answer
    status, answer = chat(messages=[{"role": "user", "content": "other"}])
    assert status == 200, answer
    # A conversation of its own, although another one began with the same messages.
    messages, session = list(row["prompt"]), {"X-Session-ID": "second"}
    for turn in range(2):
        status, answer = ask("/v1/chat/completions", {"messages": messages, "max_tokens": 8}, more=session)
        assert status == 200, answer
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "More."}]
"#;

/// An agent of three turns; more letters are better.
const TURNS: &str = r#"
import json, os, sys, urllib.request
messages = list(json.loads(sys.stdin.readline())["prompt"])
headers = {"Content-Type": "application/json", "x-api-key": os.environ["OPENAI_API_KEY"]}
said = ""
for turn in range(3):
    body = json.dumps({"messages": messages, "max_tokens": 20}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    said += message["content"] or ""
    messages += [message, {"role": "user", "content": "More."}]
print(sum(letter.isalpha() for letter in said))
"#;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(rows: &[&str]) -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        Qwen2 { vocab_size: CHARACTERS + 1, ..SMALL }.write(&bench.path("model"), 5);
        write_conversation_tokenizer(&bench.path("model"));
        let row = |text: &&str| json!({ "prompt": [{ "role": "user", "content": text }] }).to_string() + "\n";
        fs::write(bench.path("prompts.jsonl"), rows.iter().map(row).collect::<String>()).unwrap();
        for (name, text) in [("agent.py", AGENT), ("parallel.py", PARALLEL), ("modes.py", MODES), ("turns.py", TURNS)] {
            fs::write(bench.path(name), text).unwrap();
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn train(&self, agent: &str, more: &str) -> Finished {
        self.train_as("run", agent, &format!("learning_rate = 1e-4\n{more}"))
    }

    fn train_as(&self, run: &str, agent: &str, more: &str) -> Finished {
        fs::write(
            self.path("run.toml"),
            format!(
                "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = {run:?}\nagent = {agent:?}\n\
                 max_completion_length = 200\n{more}"
            ),
        )
        .unwrap();
        let mut command = Command::new(binary("tandem"));
        command.current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        command.args(["train", "run.toml"]);
        cli::finish(command)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("run/logs/rollout.log")).unwrap_or_default()
    }
}

#[test]
fn an_agent_with_the_client_of_openai_trains_the_policy_on_what_it_sampled() {
    let Some(python) = python() else {
        return skipped("an_agent_with_the_client_of_openai_trains", "no Python here has openai");
    };
    let bench = Bench::new(&["2+3?"; 8]);
    let agent = format!("{} agent.py", python.display());
    let finished = bench.train(&agent, "num_generations = 4\nper_device_train_batch_size = 8\nmax_steps = 3\n");
    assert!(finished.status.success(), "{}\n{}", finished.stderr, bench.log());
    let metrics = json_lines(&bench.path("run/metrics.jsonl"));
    assert_eq!(metrics.len(), 3);
    for record in &metrics {
        let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"));
        assert!(number("mismatch_kl") < 1e-9, "{record}");
        assert!(number("sampling/sampling_logp_difference/max") < 1e-4, "{record}");
        assert!(number("rewards/agent/mean") > 0.0 && number("grad_norm") > 0.0, "{record}");
        assert!(number("turns/max") == 2.0 && number("environment/failed") == 0.0, "{record}");
    }
    for row in json_lines(&bench.path("run/completions/step-1.jsonl")) {
        assert_eq!((&row["state"], &row["turns"]), (&json!("trained"), &json!(2)), "{row}");
        let roles: Vec<&Value> = row["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["assistant", "user", "assistant"], "{row}");
    }
}

/// Branches are trajectories of one sample: all of their tokens are trained on, a sample counts once in its group, and
/// it does not matter which branch is asked for first.
#[test]
fn an_agent_with_two_conversations_at_once_trains_the_policy_on_both() {
    let Some(python) = python() else {
        return skipped("an_agent_with_two_conversations_at_once", "no Python here has openai");
    };
    let bench = Bench::new(&["2+3?"; 8]);
    let agent = format!("{} parallel.py", python.display());
    let more = "learning_rate = 1e-4\nnum_generations = 4\nper_device_train_batch_size = 8\nmax_steps = 3\n\
                max_model_len = 700\n";
    let weights = ["run", "again"].map(|run| {
        let finished = bench.train_as(run, &agent, more);
        assert!(finished.status.success(), "{}\n{}", finished.stderr, bench.log());
        fs::read(bench.path(run).join("checkpoint-3/model.safetensors")).unwrap()
    });
    assert!(weights[0] == weights[1], "the order of the requests changes nothing");
    for record in json_lines(&bench.path("run/metrics.jsonl")) {
        let number = |key: &str| record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"));
        assert!(number("mismatch_kl") < 1e-9, "{record}");
        assert!(number("sampling/sampling_logp_difference/max") < 1e-4, "{record}");
        assert!(number("grad_norm") > 0.0 && number("environment/failed") == 0.0, "{record}");
        assert_eq!((number("endpoint/branches"), number("endpoint/overridden")), (16.0, 0.0), "{record}");
        assert_eq!((number("turns/max"), number("turns/mean")), (4.0, 4.0), "{record}");
    }
    let rows = json_lines(&bench.path("run/completions/step-1.jsonl"));
    assert_eq!(rows.len(), 8, "a sample is one completion of its group");
    for row in rows {
        assert_eq!(
            (&row["state"], &row["branches"], &row["turns"]),
            (&json!("trained"), &json!(2), &json!(4)),
            "{row}"
        );
        let sampled = row["owners"].as_array().unwrap().iter().filter(|run| run[0] == "sampled");
        assert_eq!(sampled.map(|run| run[1].as_u64().unwrap()).sum::<u64>(), row["tokens"].as_u64().unwrap(), "{row}");
    }
}

#[test]
fn an_agent_that_fails_has_no_reward_and_each_way_of_success_has_its_own() {
    let bench = Bench::new(&["silent", "crash", "hang", "flood", "post", "checks", "ids", "many"]);
    let more = "num_generations = 2\nper_device_train_batch_size = 16\nmax_steps = 1\nagent_timeout = 8\n\
                max_concurrent_agents = 5\nshuffle_dataset = false\n";
    let finished = bench.train("python3 modes.py", more);
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}\n{}", finished.stderr, bench.log());
    let rows = json_lines(&bench.path("run/completions/step-1.jsonl"));
    assert_eq!(rows.len(), 16, "{rows:?}");
    for row in &rows {
        let is_of = |mode: &&str| row["prompt"].as_str().unwrap().contains(*mode);
        let modes = ["silent", "crash", "hang", "flood", "post", "checks", "ids", "many"];
        let mode = modes.into_iter().find(|mode| is_of(mode)).unwrap();
        let (reward, end) = match mode {
            "post" => (json!(0.75), None),
            "checks" | "ids" => (json!(1.0), None),
            "silent" | "crash" | "many" => (Value::Null, Some("environment_failed")),
            _ => (Value::Null, Some("deadline")),
        };
        assert_eq!(row["rewards"]["agent"], reward, "{mode}: {row}\n{}", bench.log());
        if mode == "ids" {
            assert_eq!((&row["turns"], &row["given_tokens"]), (&json!(3), &json!(4)), "{row}");
        }
        if mode == "checks" {
            assert_eq!((&row["branches"], &row["turns"]), (&json!(2), &json!(4)), "{row}");
            let [of_each, all] = ["branch_messages", "messages"].map(|key| row[key].as_array().unwrap());
            let counted: u64 = of_each.iter().filter_map(Value::as_u64).sum();
            assert_eq!((of_each.len(), counted), (3, all.len() as u64), "{row}");
        }
        if let Some(end) = end {
            assert_eq!(row["end"], end, "{mode}: {row}");
        }
    }
    let log = bench.log();
    for words in [
        "ended without success (exit status: 1): ValueError: no more",
        "has not ended within 8 s (`agent_timeout`)",
        "the agent had no answer of the policy",
        "values of sampling of its own",
        "the 9 conversations of the agent have",
    ] {
        assert!(log.contains(words), "no `{words}` in {log}");
    }
}

#[test]
fn a_synchronous_run_with_agents_repeats_and_in_others_agents_go_on_while_the_learner_trains() {
    let bench = Bench::new(&["2+3?"; 8]);
    let agent = "python3 turns.py";
    let steps = "num_generations = 4\nper_device_train_batch_size = 8\nmax_steps = 3\n";
    let weights = ["first", "second"].map(|run| {
        let finished = bench.train_as(run, agent, &format!("learning_rate = 1e-4\n{steps}"));
        assert!(finished.status.success(), "{}", finished.stderr);
        fs::read(bench.path(run).join("checkpoint-3/model.safetensors")).unwrap()
    });
    assert_eq!(weights[0], weights[1]);
    assert_ne!(weights[0], fs::read(bench.path("model/model.safetensors")).unwrap());
    // All versions are equal at this learning rate, so the learner must find the log-probs that were sampled.
    for swap in ["drain", "continue"] {
        let more = format!("learning_rate = 1e-20\nmax_staleness = 1\nweight_swap = {swap:?}\n{steps}");
        let finished = bench.train_as(swap, agent, &more);
        assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
        let metrics = json_lines(&bench.path(swap).join("metrics.jsonl"));
        assert_eq!(metrics.len(), 3);
        for record in &metrics {
            assert!(record["mismatch_kl"].as_f64().is_some_and(|kl| kl < 1e-9), "{swap}: {record}");
            assert_eq!(record["turns/max"], 3.0, "{swap}: {record}");
            assert_eq!(record["environment/failed"], 0.0, "{swap}: {record}");
        }
    }
}
