//! Arguments and rows of `tandem_rl`: what is taken, named and refused.

use std::fs;

use harness::cli;
use serde_json::{Value, json};

use super::python_api::Folder;

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
