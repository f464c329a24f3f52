//! Runs with tools and environments, as a user writes them in Python: conversations of several turns, whose sampled
//! tokens alone are trained on.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use harness::{
    bench::Running,
    binary,
    cli::{self, Finished},
    processes::{children, signal},
    tiny_model::{CHARACTERS, Qwen2, SMALL, write_conversation_tokenizer},
    training::json_lines,
};
use serde_json::{Value, json};
use shared::metrics::catalogue;

const TOOLS: &str = r#"
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: One.
        b: Two.
    """
    return a + b
"#;

const RAISING: &str = r#"
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: One.
        b: Two.
    """
    raise ValueError("no sums today")
"#;

/// The first call in a process takes long.
const SLOW: &str = r#"
import itertools, time

CALLS = itertools.count()


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: One.
        b: Two.
    """
    time.sleep(8 if next(CALLS) == 0 else 0)
    return a + b
"#;

/// An environment with the same tool.
pub const ENVIRONMENT: &str = r#"
class Sums:
    def reset(self, answer, prompt, **row):
        assert prompt[-1]["content"] == "2+3?"
        self.answer, self.seen = answer, []
        return " Go."

    def add(self, a: int, b: int) -> int:
        """Adds.

        Args:
            a: One.
            b: Two.
        """
        self.seen.append(a + b)
        return a + b

    async def get_reward(self):
        return float(self.answer in self.seen) + 0.25 * len(self.seen)


class Broken(Sums):
    def get_reward(self):
        raise RuntimeError("the judge is out")
"#;

const REWARDS: &str = r#"
def short(completions, completion_ids, owner_masks, prompts, **kwargs):
    for messages, ids, owners, prompt in zip(completions, completion_ids, owner_masks, prompts):
        assert messages[0]["role"] == "assistant" and messages[-1]["role"] in ("assistant", "tool")
        assert len(ids) == len(owners) and set(owners) <= {0, 1} and owners[0] == 1
        assert prompt[-1]["role"] == "user"
    return [-0.01 * sum(owners) for owners in owner_masks]
"#;

/// A folder with a model that calls `add`.
pub struct Bench {
    dir: tempfile::TempDir,
}

/// The model after its warm start; it is made once for all tests.
static WARM: LazyLock<Bench> = LazyLock::new(|| Bench::warmed("tools = [\"my_tools.py:add\"]", &[]));

impl Bench {
    fn empty() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        let row = json!({"prompt": [{"role": "user", "content": "2+3?"}], "answer": 5});
        bench.write("prompts.jsonl", &format!("{row}\n").repeat(8));
        for (name, text) in [("my_tools.py", TOOLS), ("my_env.py", ENVIRONMENT), ("my_rewards.py", REWARDS)] {
            bench.write(name, text);
        }
        bench
    }

    /// A folder with further files, and with a model that has learned to call `add` from prompts as a run with these
    /// tools makes them.
    pub fn warmed(tools: &str, files: &[(&str, &str)]) -> Self {
        let bench = Self::empty();
        files.iter().for_each(|(name, text)| bench.write(name, text));
        let model = Qwen2 { vocab_size: CHARACTERS + 1, ..SMALL };
        model.write(&bench.path("random"), 5);
        write_conversation_tokenizer(&bench.path("random"));
        let first = bench.train("random", "first", &format!("{tools}\nmax_steps = 1\n"));
        assert!(matches!(first.status.code(), Some(0 | 4)), "{}", first.stderr);
        let rows = json_lines(&bench.path("first/completions/step-1.jsonl"));
        let prompt = rows[0]["prompt"].as_str().unwrap();
        assert!(prompt.contains("\"name\": \"add\"") && prompt.contains("Adds."), "{prompt}");
        let completion = [
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call><|im_end|>\n",
            "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n",
            "<|im_start|>assistant\nIt is 5.<|im_end|>",
        ]
        .concat();
        let row = |prompt: &str| json!({"prompt": prompt, "completion": completion}).to_string();
        bench.write("sft.jsonl", &[row(prompt), row(&prompt.replace("2+3?", "2+3? Go."))].join("\n"));
        let mut sft = Command::new(binary("learner"));
        sft.current_dir(bench.dir.path()).args(["sft", "--model", "random", "--data", "sft.jsonl"]);
        sft.args(["--output", "model", "--max-steps", "120", "--batch-size", "2", "--learning-rate", "5e-3"]);
        let _ = cli::finish(sft).success();
        bench
    }

    /// A folder of its own with the warm model.
    pub fn new() -> Self {
        let bench = Self::empty();
        std::os::unix::fs::symlink(WARM.path("model"), bench.path("model")).unwrap();
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn command(&self, model: &str, run: &str, more: &str) -> Command {
        self.write(
            &format!("{run}.toml"),
            &format!(
                "model = {model:?}\ndataset = \"prompts.jsonl\"\noutput_dir = {run:?}\n\
                 reward_funcs = [\"my_rewards.py:short\"]\nnum_generations = 4\nper_device_train_batch_size = 8\n\
                 max_completion_length = 240\nlearning_rate = 1e-4\nrehearse_rewards = false\n{more}"
            ),
        );
        let mut command = Command::new(binary("tandem"));
        command.current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        command.arg("train").arg(format!("{run}.toml"));
        command
    }

    pub fn train(&self, model: &str, run: &str, more: &str) -> Finished {
        cli::finish(self.command(model, run, more))
    }

    pub fn metrics(&self, run: &str) -> Vec<Value> {
        json_lines(&self.path(run).join("metrics.jsonl"))
    }

    pub fn completions(&self, run: &str, step: u64) -> Vec<Value> {
        json_lines(&self.path(run).join(format!("completions/step-{step}.jsonl")))
    }
}

pub fn number(record: &Value, key: &str) -> f64 {
    record[key].as_f64().unwrap_or_else(|| panic!("no `{key}` in {record}"))
}

/// Checks that what a completion says of its tokens fits together, and returns its calls.
pub fn assert_owned(row: &Value) -> u64 {
    let of = |owner: &str| -> u64 {
        let runs = row["owners"].as_array().unwrap().iter().filter(|run| run[0] == owner);
        runs.map(|run| run[1].as_u64().unwrap()).sum()
    };
    assert_eq!(of("sampled"), row["tokens"].as_u64().unwrap(), "{row}");
    assert_eq!(of("given"), row["given_tokens"].as_u64().unwrap_or(0), "{row}");
    let messages = row["messages"].as_array().unwrap();
    let replies = messages.iter().filter(|message| message["role"] == "tool").count() as u64;
    let (calls, turns) = (row["calls"].as_u64().unwrap(), row["turns"].as_u64().unwrap());
    assert!(replies <= calls && turns >= 1, "{row}");
    assert_eq!(messages[0]["role"], "assistant", "{row}");
    calls
}

#[test]
fn a_run_with_a_python_tool_trains_on_sampled_tokens_alone() {
    let bench = Bench::new();
    let _ = bench.train("model", "run", "tools = [\"my_tools.py:add\"]\nmax_steps = 3\n").success();
    let metrics = bench.metrics("run");
    assert_eq!(metrics.len(), 3);
    let section = catalogue::SECTIONS.iter().find(|section| section.title == "Tools and environments").unwrap();
    for metric in section.metrics {
        let is_of = |key: &String| match metric.key.split_once('{') {
            Some((begin, _)) => key.starts_with(begin),
            None => key == metric.key,
        };
        assert!(metrics[0].as_object().unwrap().keys().any(is_of), "no {} in {}", metric.key, metrics[0]);
    }
    for record in &metrics {
        let mismatch = number(record, "mismatch_kl");
        assert!(mismatch < 1e-9, "log-probs of sampler and learner differ: {mismatch:e}");
        assert!(number(record, "sampling/sampling_logp_difference/max") < 1e-4);
        assert!(number(record, "tools/call_frequency") > 0.1, "{record}");
        assert!(number(record, "turns/max") >= 2.0 && number(record, "turns/given_share") > 0.1, "{record}");
        assert!(number(record, "rewards/short/mean") < 0.0, "{record}");
        assert!(number(record, "grad_norm") > 0.0, "{record}");
    }
    let mut calls = 0;
    for step in 1..=3 {
        let rows = bench.completions("run", step);
        assert_eq!(rows.len(), 8);
        calls += rows.iter().map(assert_owned).sum::<u64>();
        assert!(rows.iter().all(|row| row["state"] == "trained"), "{rows:?}");
    }
    assert!(calls > 5, "{calls}");
    let explained = cli::run("rollout", [Path::new("explain"), &bench.path("run"), Path::new("1.0.0")]).success();
    assert!(explained.stdout.contains("\npolicy:\n") && explained.stdout.contains("conversation: "), "{explained:?}");
}

/// Sampler and learner overlap: new weights wait for conversations that have begun, or come between two of their turns.
/// All versions are equal at this learning rate, so the learner must find the log-probs that were sampled, whatever
/// became of keys and values meanwhile.
#[test]
fn conversations_go_on_while_the_learner_trains() {
    let bench = Bench::new();
    for swap in ["drain", "recompute", "continue"] {
        let more = format!("tools = [\"my_tools.py:add\"]\nmax_steps = 4\nmax_staleness = 1\nweight_swap = {swap:?}\n");
        let mut command = bench.command("model", swap, &more);
        command.args(["--learning_rate", "1e-20"]);
        let finished = cli::finish(command);
        assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
        let metrics = bench.metrics(swap);
        assert_eq!(metrics.len(), 4);
        for record in &metrics {
            assert!(number(record, "mismatch_kl") < 1e-9, "{swap}: {record}");
            assert!(number(record, "sampling/sampling_logp_difference/max") < 1e-4, "{swap}: {record}");
        }
        let rows: Vec<Value> = (1..=4).flat_map(|step| bench.completions(swap, step)).collect();
        assert!(rows.iter().map(assert_owned).sum::<u64>() > 5, "{rows:?}");
        assert!(rows.iter().all(|row| row["state"] == "trained"), "{rows:?}");
    }
}

#[test]
fn an_environment_gives_its_reward_in_a_column_of_its_own() {
    let bench = Bench::new();
    let more = "environment_factory = \"my_env.py:Sums\"\nmax_steps = 3\neval_dataset = \"prompts.jsonl\"\n\
                eval_steps = 3\n";
    let _ = bench.train("model", "run", more).success();
    for record in bench.metrics("run") {
        assert!(number(&record, "mismatch_kl") < 1e-9, "{record}");
        assert!(number(&record, "rewards/Sums/mean") > 0.1, "{record}");
        assert_eq!(number(&record, "environment/failed"), 0.0);
    }
    for row in bench.completions("run", 1) {
        let calls = assert_owned(&row) as f64;
        let of_class = number(&row["rewards"], "Sums");
        assert!(of_class == 0.25 * calls || of_class == 0.25 * calls + 1.0, "{row}");
        assert!((number(&row, "reward") - of_class - number(&row["rewards"], "short")).abs() < 1e-9, "{row}");
        assert_eq!(row["opening"], " Go.");
    }
    let evaluated = json_lines(&bench.path("run/eval.jsonl"));
    assert!(evaluated.iter().all(|record| record["eval_rewards/Sums/mean"].is_number()), "{evaluated:?}");
    // The reward of an environment is enough.
    let alone = "environment_factory = \"my_env.py:Sums\"\nmax_steps = 1\nreward_funcs = []\n";
    let mut command = bench.command("model", "alone", "");
    let file = fs::read_to_string(bench.path("alone.toml")).unwrap();
    let without: String =
        file.lines().filter(|line| !line.starts_with("reward_funcs")).map(|l| format!("{l}\n")).collect();
    bench.write("alone.toml", &format!("{without}{alone}"));
    command.args(["--max_steps", "1"]);
    let finished = cli::finish(command);
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
}

#[test]
fn what_a_tool_raises_is_a_reply_and_a_broken_file_ends_the_start() {
    let bench = Bench::new();
    bench.write("my_tools.py", RAISING);
    let _ = bench.train("model", "run", "tools = [\"my_tools.py:add\"]\nmax_steps = 1\n");
    let metrics = bench.metrics("run");
    assert_eq!(number(&metrics[0], "tools/failure_frequency"), 1.0, "{}", metrics[0]);
    let rows = bench.completions("run", 1);
    let told = rows.iter().flat_map(|row| row["messages"].as_array().unwrap());
    assert!(told.clone().any(|message| message["content"] == "{'error': 'no sums today'}"), "{rows:?}");
    for (name, text, words) in [
        ("syntax.py", "def add(a: int) -> int\n    return a\n", &["syntax.py", "line 1"][..]),
        ("hints.py", "def add(a):\n    '''Adds.'''\n    return a\n", &["hints.py", "add"]),
        ("other.py", "def sub(a: int) -> int:\n    '''Less.\n\n    Args:\n        a: One.\n    '''\n", &["`add`"]),
    ] {
        bench.write(name, text);
        let refused = bench.train("model", "refused", &format!("tools = [\"{name}:add\"]\nmax_steps = 1\n"));
        let line = refused.refusal();
        assert!(words.iter().all(|word| refused.stderr.contains(word)), "{name}: {line} {}", refused.stderr);
        assert!(!bench.path("refused").exists(), "{name}: nothing was started");
    }
}

#[test]
fn an_environment_that_fails_gives_no_reward_and_the_run_says_why() {
    let bench = Bench::new();
    let more = "environment_factory = \"my_env.py:Broken\"\nmax_steps = 2\n";
    let finished = bench.train("model", "run", more);
    assert!(!finished.status.success());
    assert!(finished.stderr.contains("the judge is out"), "{}", finished.stderr);
    let goes_on = format!("{more}reward_failure_stops = false\nreward_failure = \"zero\"\n");
    let finished = bench.train("model", "on", &goes_on);
    assert_eq!(finished.status.code(), Some(4), "nothing is learned: {}", finished.stderr);
    let rows = bench.completions("on", 1);
    assert!(rows.iter().all(|row| row["state"] == "environment_failed" && row["reward"].is_null()), "{rows:?}");
    assert!(rows.iter().all(|row| row["failure"].as_str().is_some_and(|why| why.contains("the judge is out"))));
    assert_eq!(number(&bench.metrics("on")[0], "environment/failed"), 8.0);
}

#[test]
fn slow_conversations_are_left_out_or_drawn_again_as_the_options_say() {
    let bench = Bench::new();
    bench.write("my_tools.py", SLOW);
    let of = |run: &str, more: &str| {
        let more = format!("tools = [\"my_tools.py:add\"]\nmax_steps = 1\n{more}");
        let finished = bench.train("model", run, &more);
        assert!(matches!(finished.status.code(), Some(0 | 4)), "{}", finished.stderr);
        let count = |key: &str| number(&bench.metrics(run)[0], key);
        let counts = ["environment/late", "environment/stragglers", "environment/drawn_again"].map(count);
        let rows = bench.completions(run, 1);
        assert!(rows.iter().all(|row| row["reward"].is_null() == (row["state"] != "trained")), "{rows:?}");
        let ledger = fs::read_to_string(bench.path(run).join("ledger.jsonl")).unwrap();
        (counts, rows.iter().filter_map(|row| row["failure"].as_str()).map(str::to_owned).collect::<Vec<_>>(), ledger)
    };
    let (counts, failures, ledger) = of("left_out", "stragglers = \"train_rest\"\nstraggler_after = 4.0\n");
    assert!(counts[1] >= 1.0 && counts[0] == 0.0 && counts[2] == 0.0, "{counts:?}");
    assert!(
        failures.iter().all(|why| why.contains("`straggler_after`")) && ledger.contains("\"straggler\""),
        "{ledger}"
    );
    let (counts, failures, ledger) = of("drawn_again", "stragglers = \"drop\"\nstraggler_after = 4.0\n");
    assert!(counts[2] >= 1.0 && counts[..2] == [0.0; 2] && failures.is_empty(), "{counts:?} {failures:?}");
    assert!(ledger.contains("\"drawn_again\""), "{ledger}");
    let (counts, failures, ledger) = of("late", "episode_timeout = 3.0\n");
    assert!(counts[0] >= 1.0 && counts[1..] == [0.0; 2], "{counts:?}");
    let is_told = failures.iter().all(|why| why.contains("`episode_timeout`"));
    assert!(is_told && ledger.contains("\"environment_failed\""), "{failures:?} {ledger}");
}

#[test]
fn a_killed_sampler_goes_on_to_the_same_bytes() {
    const STEPS: u64 = 8;
    let more = format!("environment_factory = \"my_env.py:Sums\"\nmax_steps = {STEPS}\nsave_steps = 3\n");
    let bench = Bench::new();
    let weights = |run: &str| fs::read(bench.path(run).join(format!("checkpoint-{STEPS}/weights.data"))).unwrap();
    let _ = bench.train("model", "undisturbed", &more).success();
    let mut command = bench.command("model", "killed", &more);
    command.stdout(std::process::Stdio::null()).stderr(fs::File::create(bench.path("stderr")).unwrap());
    let mut run = Running::of(command.spawn().unwrap());
    for step in [2, 5] {
        let begun = Instant::now();
        let steps = || fs::read_to_string(bench.path("killed/metrics.jsonl")).map_or(0, |text| text.lines().count());
        while steps() < step {
            assert!(begun.elapsed() < Duration::from_secs(300), "step {step} does not come");
            thread::sleep(Duration::from_millis(2));
        }
        for sampler in children(run.id(), "rollout") {
            signal(sampler, "KILL");
        }
    }
    assert!(run.wait().unwrap().success(), "{}", fs::read_to_string(bench.path("stderr")).unwrap());
    assert!(fs::read_to_string(bench.path("stderr")).unwrap().contains("the sampler ended"));
    assert!(weights("killed") == weights("undisturbed"), "the weights differ");
    for step in 1..=STEPS {
        assert_eq!(bench.completions("killed", step), bench.completions("undisturbed", step), "step {step}");
    }
}
