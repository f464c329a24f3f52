"""TRL's trainer over Tandem's two processes."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from tandem_rl import _callbacks, _data, _peft, _places, _progress, _rewards
from tandem_rl._process import Launcher
from tandem_rl._programs import TandemError, error_in
from tandem_rl.config import GRPOConfig, Translation, flags
from tandem_rl.run import Run, records

# How long to wait for a request before the run is looked at again, in seconds.
_PATIENCE = 0.1
# The exit status of a run that Ctrl-C has ended in order.
_INTERRUPTED = 130
# What most names of an evaluation begin with; those of shares of right answers, such as `avg@1`, do not.
_EVAL = re.compile(r"^eval_")
# Files of a checkpoint that are the model. The others are for going on with the run.
_MODEL_FILES = re.compile(
    r"(model.*\.safetensors(\.index\.json)?|adapter_(config\.json|model\.safetensors)|config\.json"
    r"|generation_config\.json|chat_template\..*|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*"
    r"|merges\.txt|.*\.model)"
)


class TrainOutput(NamedTuple):
    """The end of a training: steps of the run, mean loss of all steps, and figures by TRL's names."""

    global_step: int
    training_loss: float
    metrics: Dict[str, Any]


class TrainerState:
    """The state of a run, by the names of transformers. A step is a generation batch with all updates on it."""

    def __init__(self) -> None:
        self.global_step = 0
        self.max_steps = 0
        self.epoch: Optional[float] = None
        #: Records of steps and evaluations with the names of TRL, and one about the whole training at the end.
        self.log_history: List[Dict[str, Any]] = []
        self.best_global_step: Optional[int] = None
        self.best_metric: Optional[float] = None
        self.best_model_checkpoint: Optional[str] = None
        self.is_local_process_zero = True
        self.is_world_process_zero = True


class GRPOTrainer:
    """Trains a model with GRPO, or with another method that Tandem has, in two processes that Tandem starts.

    The arguments are those of TRL 1.16, in its order.

    Args:
        model: folder of a model, or its name on the Hugging Face Hub.
        reward_funcs: a reward function or a list of them. A callable is called in this process, in the thread that
            trains, with TRL's arguments. A text is an entry as docs/rewards.md has them (`"accuracy"`,
            `"my_rewards.py:style"`), or the folder or name of a reward model.
        args: arguments of the run; without them, `output_dir` is `MODEL-GRPO`, as in TRL.
        train_dataset: a `datasets.Dataset` or another table that writes Parquet, a list of rows, or a path or name.
        eval_dataset: the same, for `eval_steps` and `evaluate`.
        processing_class: the model's own tokenizer, whose chat template is used; Tandem reads the tokenizer itself.
        callbacks: callbacks of transformers, told of what has happened: `on_train_begin`, `on_step_end`, `on_log`,
            `on_evaluate`, `on_save`, `on_train_end`.
        peft_config: a `LoraConfig`, as an object or a mapping.

    Raises:
        TypeError: an argument of a kind that Tandem does not take, with the way out.
        ValueError: a value that cannot be taken over, and the arguments of TRL that Tandem has no part for.
    """

    def __init__(
        self,
        model: Union[str, os.PathLike],
        reward_funcs: Union[None, str, Callable, Sequence[Union[str, Callable]]] = None,
        args: Optional[GRPOConfig] = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: Optional[List[Any]] = None,
        optimizers: Any = (None, None),
        quantization_config: Any = None,
        peft_config: Any = None,
        tools: Any = None,
        rollout_func: Any = None,
        environment_factory: Any = None,
    ):
        self.model = _model(model)
        if args is None:
            args = GRPOConfig(output_dir=f"{self.model.rstrip('/').split('/')[-1]}-GRPO")
        if not isinstance(args, GRPOConfig):
            kind = f"{type(args).__module__}.{type(args).__name__}"
            raise TypeError(f"`args` is {kind}: import GRPOConfig from tandem_rl")
        if reward_processing_classes is not None:
            raise TypeError("`reward_processing_classes`: a reward model has its tokenizer in its folder")
        self.args = args
        self.state = TrainerState()
        self._more = _peft.arguments(peft_config)
        placed = {
            "tools": _places.tools(tools),
            "environment_factory": _places.environments(environment_factory),
        }
        self._more.update({name: value for name, value in placed.items() if value is not None})
        # The rules of the translation say why there are none.
        absent = {
            "rollout_func": rollout_func,
            "model_init_kwargs.quantization_config": quantization_config,
            "optim": next((each for each in optimizers if each is not None), None),
        }
        self._more.update({name: repr(value) for name, value in absent.items() if value is not None})
        args._with(self._more)
        self._entries, self._functions = _rewards.entries([] if reward_funcs is None else reward_funcs)
        self._datasets = {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
        self._template = _template(processing_class, self.model)
        self._callbacks = _callbacks.Callbacks(callbacks, args, self.state)
        self._callbacks.tell("on_init_end")

    @property
    def run(self) -> Run:
        """The files of the run, as soon as it has begun."""
        return Run(self.args.output_dir)

    def train(self, resume_from_checkpoint: Union[None, bool, str, os.PathLike] = None) -> TrainOutput:
        """Trains to the end of the run.

        Ctrl-C ends the run in order, with a checkpoint, and raises KeyboardInterrupt then; a second one ends it at
        once.

        Args:
            resume_from_checkpoint: True goes on from the newest checkpoint, a path from that one.

        Raises:
            TandemError: the run has failed, in the words of the program. If a reward function of this process raised,
                the exception is the cause.
        """
        translation = self.args._with(self._more)
        resume = translation.options.get("resume_from_checkpoint")
        if resume_from_checkpoint is not None:
            resume = {True: "latest", False: None}.get(resume_from_checkpoint, resume_from_checkpoint)
        if resume is None and self._has_run():
            # Else the inputs of that run would be written over, which it needs to go on.
            raise TandemError(
                f"`output_dir` {self.args.output_dir} already holds a run: train(resume_from_checkpoint=True) goes on "
                "with it, and another folder is for a new one"
            )
        options = self._options(translation, self._inputs)
        options["resume_from_checkpoint"] = resume
        with self._served(options) as server:
            for remark in translation.remarks:
                print(remark, file=sys.stderr)
            with Launcher("tandem", ["train", *flags(options)]) as launcher:
                session = _Session(self, launcher, server)
                return session.output(session.follow())

    def evaluate(self, eval_dataset: Any = None, metric_key_prefix: str = "eval") -> Dict[str, Any]:
        """Has the model answer the prompts of a dataset greedily, as the evaluations of a run do, and scores the
        answers. It is the model of the run where that has a checkpoint (as for `save_model`), else the one that the
        run begins with.

        The figures have the names of `eval.jsonl`, which are TRL's where TRL has them, and those of transformers about
        time. They are added to `state.log_history`.

        Args:
            eval_dataset: a dataset as for the trainer; without one, that of the trainer.
            metric_key_prefix: what stands before the names, `eval` without it.

        Raises:
            ValueError: there is no dataset.
            TandemError: the evaluation has failed, in the words of the program. If a reward function of this process
                raised, the exception is the cause.
        """
        # The inputs of the run stay as they are: it may be resumed.
        inputs = self._inputs / "evaluate"
        options = self._options(self.args._with(self._more), inputs)
        if eval_dataset is not None:
            options["eval_dataset"] = _data.located("eval_dataset", eval_dataset, inputs)
        if options.get("eval_dataset") is None:
            raise ValueError("Trainer: evaluation requires an eval_dataset: give one here or to the trainer")
        options["model"] = self._trained() or self.model
        begin = time.monotonic()
        with self._served(options) as server, Launcher("rollout", ["evaluate", *flags(options)]) as evaluation:
            while not evaluation.has_ended():
                _wait(server, _PATIENCE)
                _say(evaluation)
            _say(evaluation)
            if evaluation.status != 0:
                raise _failure(evaluation, "the evaluation") from (server and server.raised)
            figures = json.loads(evaluation.printed[-1])["model"]
        seconds = time.monotonic() - begin
        figures["eval_runtime"] = round(seconds, 4)
        figures["eval_samples_per_second"] = round(figures["eval_prompts"] / seconds, 3)
        metrics = {_EVAL.sub(f"{metric_key_prefix}_", name): value for name, value in figures.items()}
        metrics["epoch"] = self.state.epoch
        self.state.log_history.append({**metrics, "step": self.state.global_step})
        self._callbacks.tell("on_log", logs=dict(metrics))
        self._callbacks.tell("on_evaluate", metrics=dict(metrics))
        return metrics

    @property
    def _inputs(self) -> Path:
        """The folder of what is in memory and has to be files."""
        return Path(os.path.abspath(f"{self.args.output_dir}.inputs"))

    def _options(self, translation: Translation, inputs: Path) -> Dict[str, Any]:
        """The options of the run, without its reward functions. Datasets and template in memory become files of
        `inputs`."""
        options = dict(translation.options, model=self.model, output_dir=self.args.output_dir)
        for argument, dataset in self._datasets.items():
            option = {"train_dataset": "dataset"}.get(argument, argument)
            located = _data.located(argument, dataset, inputs)
            # The option takes several paths, so a comma of a path that is a text would divide it.
            is_path = option == "dataset" and isinstance(located, str) and os.path.exists(located)
            options[option] = ([located] if is_path else located) or options.get(option)
        if self._template is not None:
            options["chat_template"] = _written(inputs / "chat_template.jinja", self._template)
        return options

    @contextlib.contextmanager
    def _served(self, options: Dict[str, Any]) -> Iterator[Optional[_rewards.RewardServer]]:
        """Puts the reward functions into options, and serves those of this process."""
        server = _rewards.RewardServer(self._functions, self._inputs, self.state) if self._functions else None
        try:
            if self._entries:
                places = [server.entry(e) if server and isinstance(e, _rewards.Served) else e for e in self._entries]
                options["reward_funcs"] = places
            yield server
        finally:
            if server is not None:
                server.close()

    def _has_run(self) -> bool:
        """Whether `output_dir` has the records or a checkpoint of a run."""
        folder = Path(self.args.output_dir)
        return (folder / "metrics.jsonl").is_file() or any(folder.glob("checkpoint-*"))

    def _trained(self) -> Optional[Path]:
        """The model of the run, where there is a run that has one."""
        has_run = (Path(self.args.output_dir) / "config.toml").is_file()
        return self.run.model if has_run else None

    def save_model(self, output_dir: Union[None, str, os.PathLike] = None) -> None:
        """Copies the model of the run with its tokenizer: the best checkpoint with `load_best_model_at_end`, else the
        newest. A run with an adapter has the adapter.

        Args:
            output_dir: the folder; `output_dir` of the run without one, as in TRL.

        Raises:
            ValueError: the run has no checkpoint yet.
        """
        model = self.run.model
        if model is None:
            raise ValueError(f"{self.args.output_dir} has no checkpoint yet")
        target = Path(output_dir if output_dir is not None else self.args.output_dir)
        target.mkdir(parents=True, exist_ok=True)
        for path in sorted(model.iterdir()):
            if path.is_file() and _MODEL_FILES.fullmatch(path.name):
                partial = target / f"{path.name}.partial"
                shutil.copyfile(path, partial)
                os.replace(partial, target / path.name)

    def push_to_hub(self, *arguments: Any, **more: Any) -> None:
        """Is refused: a run uploads nothing, and `tandem push` sends its model.

        Raises:
            NotImplementedError: always, with the command.
        """
        folder = self.args.output_dir
        raise NotImplementedError(
            f"push_to_hub: nothing is uploaded from here; `tandem push --model {folder} --repo OWNER/NAME` sends the "
            "model of the run with a model card, to a private repository unless it has --public"
        )


def _model(model: Any) -> str:
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    raise TypeError(
        f"`model` is {type(model).__name__}: Tandem reads models from folders. Save it with its tokenizer, "
        "model.save_pretrained(DIR) and tokenizer.save_pretrained(DIR), and give model=DIR"
    )


def _template(tokenizer: Any, model: str) -> Optional[str]:
    """The chat template of the model's tokenizer, as the caller has it.

    Raises:
        ValueError: the tokenizer is that of another model.
    """
    if tokenizer is None:
        return None
    name = getattr(tokenizer, "name_or_path", None)
    way_out = "Save it into the folder of the model, tokenizer.save_pretrained(DIR)"
    if name and os.path.realpath(str(name)) != os.path.realpath(model):
        raise ValueError(f"`processing_class` is the tokenizer of {name}: Tandem reads that of the model. {way_out}")
    here, there = getattr(tokenizer, "eos_token", None), _eos_token(model)
    if isinstance(here, str) and there is not None and here != there:
        raise ValueError(
            f"`processing_class` ends completions with {here!r}, and the files of the model with {there!r}: Tandem "
            f"reads the files. {way_out}"
        )
    template = getattr(tokenizer, "chat_template", None)
    return template if isinstance(template, str) else None


def _eos_token(model: str) -> Optional[str]:
    """The token that ends completions, in the words of a folder; None where it is not said there."""
    try:
        config = json.loads((Path(model) / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = config.get("eos_token") if isinstance(config, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _written(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return os.fspath(path)


def _wait(server: Optional[_rewards.RewardServer], patience: float) -> None:
    """Waits, and meanwhile answers for the reward functions of this process."""
    if server is not None:
        server.serve(patience)
    else:
        time.sleep(patience)


def _say(launcher: Launcher) -> None:
    """Shows what a program has said since the last call. An error is told by the exception."""
    for line in launcher.new_lines():
        if not line.startswith("error: "):
            print(line, file=sys.stderr, flush=True)


def _failure(launcher: Launcher, name: str) -> TandemError:
    """What a program has failed at, in its own words."""
    said = error_in("\n".join(launcher.said)) or "\n".join(launcher.said[-3:])
    return TandemError(_in_python(said) or f"{name} ended with the status {launcher.status}")


class _Session:
    """A running training: its launcher, its rewards, and what its records say."""

    def __init__(self, trainer: GRPOTrainer, launcher: Launcher, server: Optional[_rewards.RewardServer]):
        self._trainer, self._launcher, self._server = trainer, launcher, server
        self._callbacks = trainer._callbacks
        self._callbacks.control.should_training_stop = False
        self._folder = Path(trainer.args.output_dir)
        self._shown = _progress.progress(bool(trainer.args.disable_tqdm))
        self._begin = time.monotonic()
        self._sizes: Any = None
        self._last = {"metrics.jsonl": 0, "eval.jsonl": 0}
        for name in self._last:
            known = records(self._folder / name)
            self._last[name] = known[-1]["step"] if known else 0
        self._saved = self._checkpoints()
        #: Why the run was asked to end before its time.
        self._reason: Optional[BaseException] = None
        self._stopped = False

    def follow(self) -> Optional[BaseException]:
        """Serves the run until it has ended. Returns why it was ended before its time, if it was."""
        self._callbacks_guarded("on_train_begin")
        while True:
            try:
                if self._launcher.has_ended():
                    break
                self._turn()
            except KeyboardInterrupt as interrupt:
                self._end_early(interrupt)
            except Exception as error:
                self._end_early(error)
        self._turn(0.0)
        self._shown.close()
        return self._reason

    def _end_early(self, reason: BaseException) -> None:
        self._reason = self._reason or reason
        # Only a second Ctrl-C is meant to end the run at once.
        if isinstance(reason, KeyboardInterrupt) or not self._stopped:
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        self._launcher.stop()

    def _turn(self, patience: float = _PATIENCE) -> None:
        _wait(self._server, patience)
        for line in self._launcher.new_lines():
            # An error is told by the exception.
            if not line.startswith("error: "):
                self._shown.say(_in_python(line))
        self._read()
        if self._callbacks.control.should_training_stop and not self._stopped:
            self._stop()

    def _callbacks_guarded(self, event: str, **more: Any) -> None:
        """Tells of an event; an exception of a callback ends the run first."""
        try:
            self._callbacks.tell(event, **more)
        except Exception as error:
            if self._reason is None:
                self._end_early(error)

    def _read(self) -> None:
        """Takes what the records have that they did not have before."""
        sizes = [path.stat().st_size if path.exists() else 0 for path in map(self._folder.joinpath, self._last)]
        if sizes == self._sizes:
            return
        self._sizes = sizes
        steps, evaluations = (records(self._folder / name) for name in self._last)
        state = self._trainer.state
        state.log_history = sorted([*steps, *evaluations], key=lambda record: record["step"])
        if steps:
            state.global_step, state.max_steps = steps[-1]["step"], steps[-1].get("total_steps", 0)
            state.epoch = steps[-1].get("epoch")
        # After a restart, steps are made again.
        for name, found in zip(self._last, (steps, evaluations)):
            self._last[name] = min(self._last[name], found[-1]["step"] if found else 0)
        for record in steps:
            if record["step"] > self._last["metrics.jsonl"]:
                self._shown.step(record)
                self._callbacks_guarded("on_step_end")
                self._callbacks_guarded("on_log", logs=dict(record))
                self._last["metrics.jsonl"] = record["step"]
        for record in evaluations:
            if record["step"] > self._last["eval.jsonl"]:
                self._callbacks_guarded("on_evaluate", metrics=dict(record))
                self._last["eval.jsonl"] = record["step"]
        saved = self._checkpoints()
        if saved - self._saved:
            self._callbacks_guarded("on_save")
        self._saved = saved

    def _checkpoints(self) -> set:
        return set(self._folder.glob("checkpoint-*"))

    def output(self, reason: Optional[BaseException]) -> TrainOutput:
        """The end of the training, or the exception that it ended with."""
        launcher, state = self._launcher, self._trainer.state
        self._sizes = None
        self._read()
        best = Run(self._folder).best_record if (self._folder / "config.toml").is_file() else {}
        if best:
            state.best_global_step, state.best_metric = best["step"], best["value"]
            state.best_model_checkpoint = os.fspath(self._folder / f"checkpoint-{best['step']}")
        in_order = launcher.status == 0 or (self._stopped and launcher.status == _INTERRUPTED)
        if not in_order:
            raise _failure(launcher, "`tandem train`") from (reason or (self._server and self._server.raised))
        if reason is not None:
            raise reason
        losses = [record["loss"] for record in state.log_history if isinstance(record.get("loss"), (int, float))]
        loss = sum(losses) / len(losses) if losses else math.nan
        seconds = time.monotonic() - self._begin
        metrics = {"train_runtime": round(seconds, 4), "train_loss": loss, "epoch": state.epoch}
        metrics.update(_summary(launcher.printed))
        state.log_history.append({**metrics, "step": state.global_step})
        self._callbacks.tell("on_train_end")
        return TrainOutput(state.global_step, loss, metrics)


def _summary(printed: List[str]) -> Mapping[str, Any]:
    """The figures on the launcher's last line."""
    try:
        said = json.loads(printed[-1])
    except (IndexError, ValueError):
        return {}
    return {key: said[key] for key in ("reward_first", "reward_last", "tokens_per_s", "report") if key in said}


def _in_python(text: str) -> str:
    """The launcher's way out, as a call of this class."""
    text = text.replace("add --resume_from_checkpoint latest", "call train(resume_from_checkpoint=True)")
    return text.replace(
        "tandem train with the same options and --resume_from_checkpoint latest", "train(resume_from_checkpoint=True)"
    )
