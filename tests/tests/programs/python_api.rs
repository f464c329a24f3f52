//! `import tandem_rl`: TRL's trainer over the built programs, in scripts as users write them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use harness::{
    binary,
    cli::{self, Finished},
    skipped,
    tiny_model::{Qwen2, TINY},
    training::json_lines,
};
use serde_json::{Value, json};

/// The quick start of TRL's documentation.
const QUICKSTART: &str = "\
from datasets import load_dataset
from trl import GRPOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset(\"trl-lib/DeepMath-103K\", split=\"train\")

trainer = GRPOTrainer(
    model=\"Qwen/Qwen2.5-0.5B-Instruct\",
    reward_funcs=accuracy_reward,
    train_dataset=dataset,
)
trainer.train()
";
const MODEL: &str = "Qwen/Qwen2.5-0.5B-Instruct";
const DATASET: &str = "trl-lib/DeepMath-103K";

/// The head of all other scripts: rows, arguments, and a function that remembers its calls.
const HEAD: &str = r#"
import json
import os
import signal
import sys
import types
import tandem_rl
from tandem_rl import GRPOConfig, GRPOTrainer, Run

# A test runner may have had this signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
ROWS = [{"prompt": "1", "solution": "a"}, {"prompt": "2", "solution": "b"}]


def config(output_dir, **more):
    sizes = dict(per_device_train_batch_size=8, max_completion_length=8, learning_rate=1e-3, disable_tqdm=True)
    return GRPOConfig(output_dir, **{**sizes, **more})


calls = []


def longer(completions, solution, **kwargs):
    calls.append(set(solution))
    return [float(len(text)) for text in completions]
"#;

/// A folder with a tiny model and rows, at the places that [`QUICKSTART`] names.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let tokens = ["<eos>", "<unknown>", "\\boxed{1}", "\\boxed{2}", "1", "2"];
        Qwen2 { vocab_size: tokens.len(), ..TINY }.write(&folder.path(MODEL), 3);
        let vocab: serde_json::Map<String, Value> =
            tokens.iter().zip(0..).map(|(token, id)| ((*token).into(), json!(id))).collect();
        let special = |id: usize| {
            json!({"id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        };
        let split = json!({"type": "Split", "pattern": {"Regex": "\\\\boxed\\{[0-9]\\}|[\\s\\S]"},
            "behavior": "Isolated", "invert": false});
        let tokenizer = json!({"version": "1.0", "added_tokens": [special(0), special(1)], "pre_tokenizer": split,
            "decoder": {"type": "Fuse"}, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[1]}});
        let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
        let config = json!({"eos_token": tokens[0], "chat_template": template});
        let of_model = |name: &str| format!("{MODEL}/{name}");
        folder.write(&of_model("tokenizer.json"), &tokenizer.to_string());
        folder.write(&of_model("tokenizer_config.json"), &config.to_string());
        folder.write(&of_model("generation_config.json"), "{\"eos_token_id\": 0}");
        let rows: String = ["1", "2"]
            .map(|answer| {
                let prompt = json!([{"role": "user", "content": answer}]);
                json!({"prompt": prompt, "solution": format!("\\boxed{{{answer}}}")}).to_string() + "\n"
            })
            .concat();
        fs::create_dir_all(folder.path(DATASET)).unwrap();
        folder.write(&format!("{DATASET}/train.jsonl"), &rows);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The command that runs a script in the folder, with the sources of the package and the built programs.
    pub fn python(&self, python: &str, script: &str) -> Command {
        self.write("script.py", script);
        let programs = binary("tandem").parent().unwrap().to_owned();
        let _ = [binary("rollout"), binary("learner")];
        let before = env::var_os("PATH").unwrap_or_default();
        let places = env::join_paths([programs].into_iter().chain(env::split_paths(&before))).unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xtask/src/dist");
        let mut command = Command::new(python);
        command.arg("script.py").current_dir(self.0.path()).env("PATH", places).env("PYTHONPATH", sources);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("TANDEM_CACHE_DIR", self.path("cache"));
        command.env("HF_HOME", self.path("hf")).env("HF_HUB_OFFLINE", "1").env_remove("TANDEM_REWARD_PYTHON");
        command
    }

    /// Runs a script behind [`HEAD`] in the `python3` of the path.
    pub fn run(&self, script: &str) -> Finished {
        cli::finish(self.python("python3", &format!("{HEAD}{script}")))
    }
}

/// With `TANDEM_TRL_PYTHON`, or the `python3` of the path, if it can import TRL and what TRL's rewards need.
#[test]
fn the_quick_start_of_trl_trains_with_one_line_changed() {
    let named = env::var("TANDEM_TRL_PYTHON").ok();
    let python = named.clone().unwrap_or_else(|| "python3".into());
    let mut import = Command::new(&python);
    import.args(["-c", "import datasets, math_verify, pandas, trl.rewards"]);
    if !import.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        let why = "neither TANDEM_TRL_PYTHON nor python3 is a Python with TRL, datasets, math_verify and pandas";
        return skipped("the quick start of TRL", why);
    }
    let folder = Folder::new();
    let script = QUICKSTART.replace("from trl import GRPOTrainer", "from tandem_rl import GRPOTrainer");
    let changed = script.lines().zip(QUICKSTART.lines()).filter(|(ours, theirs)| ours != theirs).count();
    assert_eq!(changed, 1);
    let _ = cli::finish(folder.python(&python, &script)).success();
    let records = json_lines(&folder.path("Qwen2.5-0.5B-Instruct-GRPO/metrics.jsonl"));
    let right: f64 = records.iter().map(|record| record["rewards/accuracy_reward/mean"].as_f64().unwrap()).sum();
    // Two rows, eight completions of each, three epochs in steps of eight.
    assert!(records.len() == 6 && right > 0.0, "{} steps, {right}", records.len());

    let tables = "\
import pandas
from tandem_rl import Run

run = Run('Qwen2.5-0.5B-Instruct-GRPO')
metrics, completions = run.metrics(), run.completions(2)
assert isinstance(metrics, pandas.DataFrame) and list(metrics['step']) == [1, 2, 3, 4, 5, 6]
assert len(completions) == 8 and len(run.completions()) == 48 and set(completions['step']) == {2}
assert isinstance(run.metrics(pandas=False), list)
";
    let _ = cli::finish(folder.python(&python, tables)).success();
}

#[test]
fn a_function_of_the_script_has_its_state_and_the_run_goes_on_where_it_was() {
    let folder = Folder::new();
    let script = r#"
def factory(factor):
    async def scored(completions, trainer_state, log_extra, log_metric, **kwargs):
        steps.add(trainer_state.global_step)
        log_extra("length", [len(text) for text in completions])
        log_metric("factor", factor * factor)
        return [factor * len(text) for text in completions]

    return scored


class Stops:
    told = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.told.append(logs["step"])

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 2
        return control


steps = set()
args = config("run", max_steps=400, save_steps=1, reward_weights=[1.0, 0.5, 0.25, 0.1])
functions = [longer, factory(1), factory(-1), "length:target=3"]
trainer = GRPOTrainer(MODEL, functions, args, ROWS, callbacks=[Stops()])
output = trainer.train()
reached = output.global_step
assert 2 <= reached < 400 and Stops.told == list(range(1, reached + 1)), (reached, Stops.told)
assert calls and all(len(answers) == 1 for answers in calls) and 0 in steps and max(steps) >= 1, (calls, steps)
first = trainer.state.log_history[0]
means = {key.split("/")[1]: first[key] for key in first if key.startswith("rewards/") and key.endswith("/mean")}
assert first["logged/factor"] == 1.0, first
assert set(means) == {"longer", "scored", "scored_2", "length"} and means["scored"] == -means["scored_2"], means

before, again = len(calls), GRPOTrainer(MODEL, functions, config("run", max_steps=reached + 2,
    reward_weights=[1.0, 0.5, 0.25, 0.1]), ROWS)
output = again.train(resume_from_checkpoint=True)
assert output.global_step == reached + 2 and len(calls) > before
assert [record["step"] for record in again.state.log_history] == [*range(1, reached + 3), reached + 2]
run = Run("run")
assert run.config["reward_weights"] == [1.0, 0.5, 0.25, 0.1] and run.best is None
assert run.checkpoints[-1].name == f"checkpoint-{reached + 2}" and run.model == run.checkpoints[-1]
rows = run.completions(1, pandas=False)
assert {row["step"] for row in rows} == {1} and all(row["extra"]["length"] >= 0 for row in rows), rows[0]
again.save_model("saved")
try:
    again.push_to_hub("End of training")
except NotImplementedError as error:
    assert "`tandem push --model run --repo OWNER/NAME`" in str(error), error
else:
    raise AssertionError("nothing was pushed")
print(sorted(os.listdir("saved")))
"#;
    let finished = folder.run(script).success();
    let files = "['config.json', 'generation_config.json', 'model.safetensors', 'tokenizer.json', \
                 'tokenizer_config.json']";
    assert_eq!(finished.stdout.trim(), files);
    // Nothing but the number of steps is another option, and the functions are the same.
    let told = &finished.stderr;
    assert!(told.contains("`max_steps` 400 -> ") && !told.contains("`reward_funcs`"), "{told}");
}

/// However late the process hears of a step, callbacks see the state that transformers' have at its event.
#[test]
fn callbacks_see_the_step_and_the_best_checkpoint_of_their_event() {
    let folder = Folder::new();
    let script = r#"
class Told:
    def __init__(self):
        self.events, self.best = [], {}

    def note(self, name, state):
        self.events.append((name, state.global_step))
        self.best[name, state.global_step] = (state.best_metric, state.best_global_step, state.best_model_checkpoint)
        assert state.log_history[-1]["step"] == state.global_step <= state.max_steps == 5, state.log_history

    def on_step_end(self, args, state, control, **kwargs):
        self.note("step", state)

    def on_evaluate(self, args, state, control, **kwargs):
        self.note("evaluate", state)

    def on_save(self, args, state, control, **kwargs):
        self.note("save", state)
        assert os.path.isdir(f"{args.output_dir}/checkpoint-{state.global_step}")


def best_of(evaluations):
    best = (None, None, None)
    for record in evaluations:
        if best[0] is None or record["eval_reward"] > best[0]:
            best = (record["eval_reward"], record["step"], os.path.join("best", f"checkpoint-{record['step']}"))
    return best


told = Told()
sizes = dict(max_steps=5, save_steps=2)
GRPOTrainer(MODEL, longer, config("plain", **sizes), ROWS, callbacks=[told]).train()
saves = [step for name, step in told.events if name == "save"]
assert saves == [2, 4, 5] and [step for name, step in told.events if name == "step"] == [1, 2, 3, 4, 5], told.events
assert set(told.best.values()) == {(None, None, None)}, told.best

told = Told()
chosen = dict(eval_steps=2, metric_for_best_model="eval_reward", learning_rate=1e-2)
trainer = GRPOTrainer(MODEL, longer, config("best", **sizes, **chosen), ROWS, ROWS, callbacks=[told])
trainer.train()
of_one, of_two = ["step"], ["step", "evaluate", "save"]
expected = [(name, step) for step, names in enumerate([of_one, of_two, of_one, of_two, of_two], 1) for name in names]
assert told.events == expected, told.events
evaluations = [record for record in trainer.run.evaluations(pandas=False) if record["step"] > 0]
for (name, step), best in told.best.items():
    # An evaluation is told of before it counts.
    known = [record for record in evaluations if record["step"] <= (step if name == "save" else step - 1)]
    assert best == best_of(known), (name, step, best, evaluations)
assert trainer.state.best_metric == best_of(evaluations)[0]
"#;
    let _ = folder.run(script).success();
}

/// An evaluation on request has the figures of the run's own evaluation of the same model.
#[test]
fn evaluate_is_the_evaluation_of_a_run_before_and_after_it() {
    let folder = Folder::new();
    let script = r#"
def figures(record):
    return {name: value for name, value in record.items() if name in known and "_s" not in name}


def refusal(call):
    try:
        call()
    except (ValueError, tandem_rl.TandemError) as error:
        return error
    raise AssertionError("it was accepted")


told = []
told_of = type("Told", (), {"on_evaluate": lambda self, *_, metrics, **more: told.append(metrics)})
functions = [longer, "length:target=3"]
args = config("run", max_steps=8, eval_steps=8, learning_rate=1e-2)
trainer = GRPOTrainer(MODEL, functions, args, ROWS, ROWS, callbacks=[told_of])
before = trainer.evaluate()
assert trainer.state.log_history == [{**before, "step": 0}] and told == [before], trainer.state.log_history
assert before["eval_prompts"] == 2 and before["eval_runtime"] > 0, before
assert not os.path.exists("run") and calls, "the function of the script has scored"
trainer.train()
evaluated = trainer.run.evaluations(pandas=False)
known = set(evaluated[0]) - {"step"}
assert {"eval_reward", "eval_rewards/longer/mean", "eval_rewards/length/mean", "eval_completions/mean_length"} <= known
assert [record["step"] for record in evaluated] == [0, 8] and known <= set(before), (known, before)
assert evaluated[0]["eval_reward"] < evaluated[1]["eval_reward"], "the model is another one"
after = trainer.evaluate()
assert figures(before) == figures(evaluated[0]) and figures(after) == figures(evaluated[1]), (before, after, evaluated)
assert trainer.state.log_history[-1] == {**after, "step": 8}
rows = trainer.evaluate(ROWS[:1], metric_key_prefix="test")
assert rows["test_prompts"] == 1 and "test_rewards/longer/mean" in rows and "eval_reward" not in rows, rows
with open("run.inputs/eval_dataset.jsonl") as file:
    assert len(file.readlines()) == 2, "the rows of the run are as they were"

no_rows = refusal(lambda: GRPOTrainer(MODEL, longer, config("none"), ROWS).evaluate())
assert str(no_rows).startswith("Trainer: evaluation requires an eval_dataset"), no_rows


def broken(completions, **kwargs):
    raise KeyError("nothing")


failed = refusal(lambda: GRPOTrainer(MODEL, broken, config("none"), ROWS, ROWS).evaluate())
assert "no completion could be scored: reward function `broken` failed 2 times" in str(failed), failed
assert isinstance(failed.__cause__, KeyError), failed.__cause__
"#;
    let _ = folder.run(script).success();
    assert!(!folder.path("none").exists());
}

#[test]
fn a_function_that_raises_is_the_cause_of_the_error() {
    let folder = Folder::new();
    let script = r#"
def broken(completions, **kwargs):
    return [{"1": 1.0}[text + "?"] for text in completions]


def refused(completions, **kwargs):
    raise PermissionError("not allowed: permission denied")


try:
    GRPOTrainer(MODEL, refused, config("other"), ROWS).train()
except tandem_rl.TandemError as error:
    # Nothing contains a function of the script, so no option would help.
    assert "permission denied" in str(error) and "reward_writable" not in str(error), error
GRPOTrainer(MODEL, broken, config("run"), ROWS).train()
"#;
    let finished = folder.run(script);
    assert!(!finished.status.success(), "{}", finished.stderr);
    let told = &finished.stderr;
    for words in ["in broken", "KeyError: ", "direct cause", "TandemError: `reward_funcs`: `broken` failed on all"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!folder.path("run").exists(), "no reward of 0 was trained on");
}

/// A path may have a comma, and a second trainer may be meant for another folder.
#[test]
fn the_inputs_of_a_run_stay_when_another_start_into_its_folder_is_refused() {
    let folder = Folder::new();
    folder.write("my_tools.py", "def add(a: int, b: int) -> int:\n    \"\"\"Adds.\"\"\"\n    return a + b\n");
    let script = r#"
from my_tools import add

run = "lr=1e-3,beta=0"
GRPOTrainer(MODEL, longer, config(run, max_steps=1), train_dataset=ROWS).train()
rows = open(f"{run}.inputs/train_dataset.jsonl").read()
other = GRPOTrainer(MODEL, longer, config(run, max_steps=1), train_dataset=ROWS[:1])
other.evaluate(eval_dataset=ROWS)
try:
    other.train()
    raise AssertionError("it was accepted")
except tandem_rl.TandemError as error:
    print(error)
assert open(f"{run}.inputs/train_dataset.jsonl").read() == rows


def other(completions, **kwargs):
    return [0.0] * len(completions)


def inputs():
    names = ["train_dataset.jsonl", "rewards.py", "rewards.address"]
    return {name: open(f"live.inputs/{name}").read() for name in names}


class Second:
    refused = []

    def on_train_begin(self, *_, **kwargs):
        before = inputs()
        for function in (other, "length:target=3"):
            try:
                GRPOTrainer(MODEL, function, config("live", max_steps=1), ROWS[:1]).train()
            except tandem_rl.TandemError as error:
                self.refused.append(str(error))
        assert inputs() == before, "the first one needs them as they were"


live = GRPOTrainer(MODEL, longer, config("live", max_steps=1), ROWS, callbacks=[Second])
live.train()
assert len(Second.refused) == 2 and all("another trainer is at work with " in told for told in Second.refused), Second
before = inputs()
GRPOTrainer(MODEL, other, config("live", max_steps=1), ROWS).evaluate(eval_dataset=ROWS)
assert inputs() == before, "an evaluation has a folder of its own"
placed = GRPOTrainer(MODEL, longer, tools=[add, "builtin:calculator"], peft_config={"r": 4})._more
assert placed["tools"] == [os.path.abspath("my_tools.py") + ":add", "builtin:calculator"], placed
assert (placed["lora_r"], placed["lora_alpha"]) == (4, 8), placed
"#;
    let said = folder.run(script).success().stdout;
    assert!(said.contains("already holds a run: train(resume_from_checkpoint=True) goes on with it"), "{said}");
}

#[test]
fn an_interrupt_within_a_function_ends_the_run_with_a_checkpoint() {
    let folder = Folder::new();
    let script = r#"
interrupted = []


def interrupts(completions, trainer_state, **kwargs):
    # Several steps may be heard of at once, and a second interrupt would end the run without a checkpoint.
    if trainer_state.global_step >= 2 and not interrupted:
        interrupted.append(True)
        os.kill(os.getpid(), signal.SIGINT)
    return [float(len(text)) for text in completions]


trainer = GRPOTrainer(MODEL, interrupts, config("run", max_steps=400), ROWS)
try:
    trainer.train()
except KeyboardInterrupt:
    step = int(trainer.run.checkpoints[-1].name.split("-")[1])
    assert 2 <= step < 400 and trainer.state.global_step == step, step
    print("interrupted")
"#;
    let finished = folder.run(script).success();
    assert_eq!(finished.stdout.trim(), "interrupted");
    let told = &finished.stderr;
    let words = ["stopped in order at checkpoint-", "; train(resume_from_checkpoint=True) goes on"];
    assert!(words.iter().all(|words| told.contains(words)), "{told}");
}

#[test]
fn a_run_ends_in_order_when_the_process_that_trains_is_killed() {
    let folder = Folder::new();
    let script = format!("{HEAD}\nGRPOTrainer(MODEL, longer, config(\"run\", max_steps=100000), ROWS).train()\n");
    let mut command = folder.python("python3", &script);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < deadline, "{what} within two minutes");
            thread::sleep(Duration::from_millis(50));
        }
    };
    let records = folder.path("run/metrics.jsonl");
    wait_until("a step", &|| fs::metadata(&records).is_ok_and(|file| file.len() > 0));
    child.kill().unwrap();
    child.wait().unwrap();
    let log = folder.path("run/logs/learner.log");
    wait_until("an end in order", &|| {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("every completed step is in a checkpoint"))
    });
    // The launcher writes the report last.
    wait_until("a report", &|| folder.path("run/report.html").exists());
}
