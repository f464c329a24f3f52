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
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
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

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// The command that runs a script in the folder, with the sources of the package and the built programs.
    fn python(&self, python: &str, script: &str) -> Command {
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
    fn run(&self, script: &str) -> Finished {
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

#[test]
fn arguments_that_would_mean_nothing_are_refused_by_name() {
    let folder = Folder::new();
    let script = r#"
def refusal(call):
    try:
        call()
    except (TypeError, ValueError, tandem_rl.TandemError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was accepted")


said = [
    refusal(lambda: GRPOConfig("run", learning_rte=1e-5)),
    refusal(lambda: GRPOConfig("run", loss_type="grop")),
    refusal(lambda: GRPOConfig("run", optim="sgd")),
    refusal(lambda: setattr(GRPOConfig("run"), "beta", "high")),
    refusal(lambda: GRPOTrainer(MODEL, lambda completions, **kwargs: [0.0] * len(completions), train_dataset=ROWS)),
    refusal(lambda: GRPOTrainer(object(), longer)),
    refusal(lambda: GRPOTrainer(MODEL, longer, tools=[print])),
    refusal(lambda: GRPOTrainer(MODEL, longer, environment_factory=type("Maze", (), {"__module__": "__main__"}))),
    refusal(lambda: GRPOTrainer(MODEL, longer, processing_class=types.SimpleNamespace(eos_token="1"))),
    refusal(lambda: GRPOTrainer(MODEL, longer, peft_config={"r": 8, "use_dora": True})),
    refusal(lambda: GRPOTrainer(MODEL, longer, train_dataset=iter(ROWS)).train()),
    refusal(lambda: GRPOTrainer("absent", longer, train_dataset=ROWS).train()),
    refusal(lambda: GRPOTrainer("absent", longer, train_dataset="no_rows").train()),
    refusal(lambda: GRPOConfig("run", data_seed={"a": 1})),
    refusal(lambda: GRPOTrainer(MODEL, longer, callbacks=[type("Early", (), {"on_step_begin": print})])),
]
print(json.dumps(said))
args = GRPOConfig("run", max_steps=4, num_iterations=2, use_vllm=True, optim="adamw_torch")
assert (args.max_steps, args.epsilon, args.num_generations) == (4, 0.2, 8) and "max_steps=4" in repr(args)
args.beta = 0.04
assert args.beta == 0.04 and args.to_dict()["beta"] == 0.04
"#;
    let finished = folder.run(script).success();
    let said: Vec<String> = serde_json::from_str(finished.stdout.trim()).unwrap();
    let expected = [
        "TypeError: GRPOConfig has no argument `learning_rte` (the nearest is `learning_rate`)",
        "ValueError: loss_type: `loss_type` must be one of grpo, ",
        "ValueError: optim: the optimiser is AdamW",
        "ValueError: beta: `beta` must be",
        "TypeError: reward_funcs[0] is a lambda without a name",
        "TypeError: `model` is object: Tandem reads models from folders",
        "ValueError: tools: `print` is in no file",
        "ValueError: environment_factory: `Maze` is in no file",
        "ValueError: `processing_class` ends completions with '1', and the files of the model with '<eos>'",
        "ValueError: use_dora: ",
        "TypeError: `train_dataset` is list_iterator",
        "TandemError: `model`: ",
        "TandemError: 2 problems keep the run from starting\n- `model`: ",
        "TypeError: `data_seed` of GRPOConfig takes no mapping",
        "TypeError: Early.on_step_begin: nobody tells of this event",
    ];
    assert_eq!(said.len(), expected.len());
    for (said, expected) in said.iter().zip(expected) {
        assert!(said.starts_with(expected), "{expected}: {said}");
    }
    assert!(said.iter().any(|said| said.contains("\n- `dataset`: ")), "{said:?}");
    assert!(!folder.path("run").exists());
}

/// Scripts of TRL take a `GRPOConfig` for a dataclass, and read arguments of it that they have not given.
#[test]
fn a_config_is_changed_copied_and_read_as_the_dataclass_of_trl_is() {
    let folder = Folder::new();
    let script = r#"
import copy
import dataclasses
from tandem_rl import _trl

args = GRPOConfig("run", max_steps=4, num_iterations=2, vllm_importance_sampling_clip_max=2.5, stop=["a"])
faster = dataclasses.replace(args, learning_rate=1e-5)
assert (faster.learning_rate, args.learning_rate) == (1e-5, 1e-6)
assert repr(faster) == repr(args)[:-1] + ", learning_rate=1e-05)", repr(faster)
assert faster._translation.options == {**args._translation.options, "learning_rate": 1e-5}
assert faster._translation.remarks == args._translation.remarks
assert dataclasses.replace(args) == args and args.__replace__(max_steps=6).max_steps == 6
renamed = dataclasses.replace(args, importance_sampling_clip_max=4.0, disable_tqdm=True, output_dir="other")
assert (renamed.importance_sampling_clip_max, renamed.disable_tqdm, renamed.output_dir) == (4.0, True, "other")
assert renamed._translation.options["importance_sampling_clip_max"] == 4.0 and not args.disable_tqdm
try:
    dataclasses.replace(args, learning_rte=1.0)
except TypeError as error:
    assert "`learning_rte` (the nearest is `learning_rate`)" in str(error), error
else:
    raise AssertionError("a name that nobody knows")

fields = {field.name: field for field in dataclasses.fields(args)}
assert dataclasses.is_dataclass(args) and {"output_dir", "max_staleness", "use_vllm", "disable_tqdm"} <= set(fields)
assert fields["epsilon"].default == 0.2 and "_source" not in fields
every = dataclasses.asdict(args)
assert set(every) == set(fields) and (every["max_steps"], every["stop"], every["eval_strategy"]) == (4, ["a"], "no")

for made in (copy.copy(args), copy.deepcopy(args)):
    assert made == args and made._translation.options == args._translation.options
    made.beta, made.disable_tqdm = 0.04, True
    assert (args.beta, args.disable_tqdm) == (0.0, False)
copy.deepcopy(args).stop.append("b")
assert args.stop == ["a"]

empty = GRPOConfig()
assert (empty.eval_strategy, empty.use_vllm, empty.output_dir, empty.optim) == \
    ("no", False, "runs/grpo", "adamw_torch_fused")
assert isinstance(empty.per_device_eval_batch_size, int) and empty.hub_model_id is None
empty.include_for_metrics.append("x")
empty.tools.append("x")
assert (empty.include_for_metrics, empty.tools) == ([], [])
for name in ("evl_strategy", "no_such_thing"):
    try:
        getattr(empty, name)
    except AttributeError as error:
        assert str(error).startswith(f"GRPOConfig has no argument `{name}` ("), error
    else:
        raise AssertionError(name)

# All of them are TRL's, and say nothing with TRL's values.
given = GRPOConfig("run", **_trl.DEFAULTS)
assert given._translation.options == {"output_dir": "run"} and given._translation.remarks == []
for name, default in _trl.DEFAULTS.items():
    try:
        GRPOConfig("run", **{name: "another"})
    except ValueError as error:
        assert str(error).startswith(f"{name}: "), error

# Those without an effect have none with their own keys either, and are named.
for name in ("accelerator_config", "liger_kernel_config", "transformers_continuous_batching_config"):
    (remark,) = GRPOConfig("run", **{name: {"a": True}})._translation.remarks
    assert remark.startswith(f"{name}.a: "), remark
(remark,) = GRPOConfig("run", generation_kwargs={"seed": 3})._translation.remarks
assert remark.startswith("generation_kwargs.seed has no effect: "), remark

# As in TRL, nothing is evaluated without a strategy; where none is given, the option stands for itself.
off = GRPOConfig("run", eval_strategy="no", eval_steps=3)._translation
assert off.options == {"output_dir": "run"}, off.options
assert any(line.startswith("eval_steps: ") for line in off.remarks), off.remarks
for more in ({}, {"eval_strategy": "steps"}):
    assert GRPOConfig("run", eval_steps=3, **more)._translation.options["eval_steps"] == 3
"#;
    let _ = folder.run(script).success();
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
fn values_of_rows_are_written_as_files_have_them_or_refused_by_row_and_column() {
    let folder = Folder::new();
    let script = r#"
import datetime
import decimal
from pathlib import Path
from tandem_rl import _data

# As arrays of numpy, and the missing value of pandas.
Array = type("Array", (), {"__init__": lambda self, *all: setattr(self, "all", [*all]), "tolist": lambda a: a.all})
NaTType = type("NaTType", (datetime.datetime,), {})
noon = datetime.datetime(2024, 5, 1, 14, 0, 0, 500000, datetime.timezone(datetime.timedelta(hours=2)))
numbers = [decimal.Decimal("72.50"), decimal.Decimal("0.1234567890123456789")]
row = {"a": Array("3"), "b": Array(Array(1), Array(2, 3)), "c": [noon, noon.date(), NaTType(1, 1, 1)], "d": numbers,
    "e": b"bytes", "f": {2, 1}}
with open(_data.located("train_dataset", [row], Path("taken")), encoding="utf-8") as file:
    print(file.read(), end="")
for value in [{1, "a"}, b"\xff", 1j, [float("nan")], "\ud83d", {"\ud83d": 1}]:
    try:
        _data.located("train_dataset", [{"x": 1}, {"x": value}], Path("refused"))
    except (TypeError, ValueError) as error:
        print(error)
assert os.listdir("refused") == []
assert GRPOConfig("run", reward_weights=Array(1.0)).reward_weights == [1.0]
"#;
    let finished = folder.run(script).success();
    let said: Vec<&str> = finished.stdout.lines().collect();
    let row = json!({"a": ["3"], "b": [[1], [2, 3]], "c": ["2024-05-01T12:00:00.500Z", "2024-05-01", null],
        "d": [72.5, "0.1234567890123456789"], "e": "bytes", "f": [1, 2]});
    assert_eq!(serde_json::from_str::<Value>(said[0]).unwrap(), row);
    let half = r"half of a character in the text '\ud83d', ";
    let reasons = ["a set whose", "bytes that are no UTF-8", "a value of the type", "a number that", half, half];
    assert_eq!(said.len(), 1 + reasons.len());
    for (said, reason) in said[1..].iter().zip(reasons) {
        assert!(said.starts_with(&format!("`train_dataset`: row 1, column `x` has {reason}")), "{said}");
    }
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

/// Python has no reader of TOML before 3.11, and the package brings one.
#[test]
fn every_option_is_read_from_toml_without_a_reader_of_python_s_own() {
    let folder = Folder::new();
    let all = cli::run("tandem", ["train", "--dry-run"]).success().stdout;
    let more = r##"
x = """
a\nb\"c""d"""
y = 'q\z'
z = { a = [1, -2.5e3, 1_000], "b c" = true }
l = [
  "x", # [
  'y',
]
w = "\u00e9\t#" # a remark
"##;
    folder.write("all.toml", &(all + more));
    let script = r#"
from tandem_rl import _toml

with open("all.toml") as file:
    read = _toml._loads(file.read())
expected = dict(x='a\nb"c""d', y="q\\z", z={"a": [1, -2500.0, 1000], "b c": True}, l=["x", "y"], w="é\t#")
assert expected.items() <= read.items(), {key: read.get(key) for key in expected}
for wrong in ["a", "a = ", "a = [1", "= 3", 'a = "x', "a = {b}", "a = [1 2]"]:
    try:
        _toml._loads(wrong)
    except ValueError:
        continue
    raise AssertionError(wrong)
del read["x"], read["y"], read["z"], read["l"], read["w"]
print(json.dumps(read))
"#;
    let finished = folder.run(script).success();
    let read: Value = serde_json::from_str(finished.stdout.trim()).unwrap();
    let text = fs::read_to_string(folder.path("all.toml")).unwrap();
    let mut expected: toml::Table = text.parse().unwrap();
    expected.retain(|key, _| !["x", "y", "z", "l", "w"].contains(&key));
    assert!(expected.len() > 100 && read == serde_json::to_value(expected).unwrap(), "{read}");
}
