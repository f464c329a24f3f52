//! Runs whose samples are episodes on a server of the package `verifiers`, the real one.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    cli::{self, Finished},
    skipped,
    tiny_model::{CHARACTERS, Qwen2, SMALL, write_conversation_tokenizer},
    training::json_lines,
};
use serde_json::Value;

/// A taskset whose tasks say in their answers how they go, the rows of it, and its server.
const TASKSET: &str = r#"
import asyncio, json, os, sys
import openai
import verifiers.v1 as vf
from verifiers.v1.serve import serve_env

__all__ = ["Letters", "Ask"]


class LettersData(vf.TaskData):
    answer: str


class Letter(vf.Task[LettersData]):
    @vf.reward(weight=2.0)
    async def letters(self, task, trace) -> float:
        if task.answer == "raise":
            raise ValueError("no such answer")
        return float(sum(letter.isalpha() for letter in trace.last_reply or ""))

    @vf.reward
    async def short(self, trace) -> float:
        return -0.5


class Letters(vf.Taskset[Letter]):
    def load(self):
        for answer in ["a", "raise"]:
            yield Letter(LettersData(prompt=answer + "?", answer=answer), self.config.task)


class Ask(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **more):
        if data.answer == "hang":
            await asyncio.sleep(1000)
        client = openai.AsyncOpenAI(base_url=endpoint, api_key=secret)
        prompt = data.prompt if isinstance(data.prompt, str) else data.prompt[0].content
        messages = [{"role": "user", "content": prompt}]
        for turn in range(2):
            answer = await client.chat.completions.create(model=ctx.model, messages=messages, max_tokens=16)
            messages += [answer.choices[0].message, {"role": "user", "content": "And now?"}]
            if data.answer == "die":
                os._exit(1)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


if __name__ == "__main__" and sys.argv[1] == "rows":
    for task in vf.load_taskset(vf.TasksetConfig(id="letters-v1")):
        print(json.dumps(task.data.model_dump(mode="json", exclude_defaults=True)))
elif __name__ == "__main__":
    env = {"taskset": {"id": "letters-v1"}, "agent": {"runtime": {"type": "subprocess"}}}
    serve_env(config=vf.resolve_env_config(env), max_workers=1, address=f"tcp://127.0.0.1:{sys.argv[1]}")
"#;

struct Bench {
    dir: tempfile::TempDir,
    python: PathBuf,
    port: u16,
}

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    fn new(test: &str) -> Option<Self> {
        let python = env::var_os("TANDEM_VERIFIERS_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
        let mut import = Command::new(&python);
        import.args(["-c", "import verifiers.v1"]).stdout(Stdio::null()).stderr(Stdio::null());
        if !import.status().is_ok_and(|status| status.success()) {
            skipped(test, "no Python here has verifiers (TANDEM_VERIFIERS_PYTHON)");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let bench = Self { dir: tempfile::tempdir().unwrap(), python, port };
        Qwen2 { vocab_size: CHARACTERS + 1, ..SMALL }.write(&bench.path("model"), 5);
        write_conversation_tokenizer(&bench.path("model"));
        fs::write(bench.path("letters_v1.py"), TASKSET).unwrap();
        Some(bench)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn taskset(&self, argument: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.path("letters_v1.py")).arg(argument).env("HOME", self.dir.path());
        command
    }

    /// Starts the server, and waits until it listens.
    fn serve(&self) -> Server {
        let mut server = Server(self.taskset(&self.port.to_string()).spawn().unwrap());
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(server.0.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn train(&self, run: &str, rows: &str, more: &str) -> Finished {
        fs::write(self.path("rows.jsonl"), rows).unwrap();
        let text = format!(
            "model = \"model\"\ndataset = \"rows.jsonl\"\noutput_dir = {run:?}\nmax_completion_length = 120\n\
             agent = \"verifiers:tcp://127.0.0.1:{}\"\nnum_generations = 4\nlearning_rate = 1e-4\n\
             shuffle_dataset = false\nreward_failure_stops = false\nper_device_train_batch_size = 4\n{more}",
            self.port
        );
        fs::write(self.path("run.toml"), text).unwrap();
        let mut command = Command::new(binary("tandem"));
        command.current_dir(self.dir.path()).env("TANDEM_CACHE_DIR", self.path("cache"));
        command.args(["train", "run.toml"]);
        cli::finish(command)
    }

    fn rows(&self, run: &str, step: u64) -> Vec<Value> {
        json_lines(&self.path(run).join(format!("completions/step-{step}.jsonl")))
    }

    fn log(&self, run: &str) -> String {
        fs::read_to_string(self.path(run).join("logs/rollout.log")).unwrap_or_default()
    }
}

/// A row with the answer that says how its episodes go.
fn row(answer: &str) -> String {
    format!("{{\"prompt\": [{{\"role\": \"user\", \"content\": \"{answer}?\"}}], \"answer\": \"{answer}\"}}\n")
}

#[test]
fn a_taskset_of_verifiers_trains_and_its_error_is_a_failure_and_no_reward_of_0() {
    let Some(bench) = Bench::new("a_taskset_of_verifiers_trains") else { return };
    let _server = bench.serve();
    let rows = bench.taskset("rows").output().unwrap();
    assert!(rows.status.success(), "{}", String::from_utf8_lossy(&rows.stderr));
    let rows = String::from_utf8(rows.stdout).unwrap();
    assert_eq!(rows.lines().count(), 2, "{rows}");
    let finished = bench.train("run", &rows, "max_steps = 2\n");
    let log = bench.log("run");
    // A tiny model need not become better.
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}\n{log}", finished.stderr);
    let metrics = json_lines(&bench.path("run").join("metrics.jsonl"));
    let failed: f64 = metrics.iter().map(|record| record["environment/failed"].as_f64().unwrap()).sum();
    assert_eq!(failed, 4.0, "{log}");
    let mut scored = 0;
    for row in (1..=2).flat_map(|step| bench.rows("run", step)) {
        if row["prompt"].as_str().unwrap().contains("raise") {
            let reason = row["failure"].as_str().unwrap_or_else(|| panic!("no failure in {row}"));
            assert!(reason.contains("TaskError") && reason.contains("no such answer"), "{reason}");
            assert!(row["rewards"]["agent"].is_null(), "{row}");
        } else {
            // Without special tokens, as the server is told.
            let last = row["completion"].as_str().unwrap().rsplit("assistant\n").next().unwrap();
            let letters = last.chars().filter(|letter| letter.is_alphabetic()).count();
            assert_eq!(row["rewards"]["agent"].as_f64().unwrap(), 2.0 * letters as f64 - 0.5, "{row}");
            scored += 1;
        }
    }
    assert_eq!(scored, 4);
    assert!(metrics.iter().any(|record| record["grad_norm"].as_f64().unwrap() > 0.0), "it learns");
    assert!(log.contains("verifiers: 4 episodes with a reward; 4 failed, 0 late"), "{log}");
}

#[test]
fn a_server_of_verifiers_that_hangs_or_dies_costs_its_episodes_alone() {
    let Some(bench) = Bench::new("a_server_of_verifiers_that_hangs_or_dies") else { return };
    let server = bench.serve();
    let again = || (0..2).map(|_| row("a")).collect::<String>();
    let finished = bench.train("late", &(row("hang") + &again()), "max_steps = 2\nagent_timeout = 20\n");
    let log = bench.log("late");
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}\n{log}", finished.stderr);
    assert!(log.contains("the episode of verifiers has not ended within 20 s (`agent_timeout`)"), "{log}");
    assert!(log.contains("4 episodes with a reward; 0 failed, 4 late"), "{log}");
    drop(server);

    // It ends itself in the first step, and is started again while the run looks for it.
    let mut server = bench.serve();
    let finished = thread::scope(|scope| {
        let run = scope.spawn(|| bench.train("lost", &(row("die") + &again()), "max_steps = 2\n"));
        let begun = Instant::now();
        while server.0.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(120) && !run.is_finished(), "{}", bench.log("lost"));
            thread::sleep(Duration::from_millis(20));
        }
        let _again = bench.serve();
        run.join().unwrap()
    });
    let log = bench.log("lost");
    assert!(matches!(finished.status.code(), Some(0 | 4)), "{}\n{log}", finished.stderr);
    assert!(log.contains(&format!("the server of verifiers at tcp://127.0.0.1:{} is gone: ", bench.port)), "{log}");
    assert!(log.contains("is there again"), "{log}");
    assert!(log.contains("4 episodes with a reward; 4 failed, 0 late"), "{log}");
}
