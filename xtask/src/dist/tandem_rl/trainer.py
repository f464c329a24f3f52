"""TRL's trainer over Tandem's two processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from tandem_rl import _callbacks, _data, _inputs, _peft, _places, _rewards
from tandem_rl._process import Launcher
from tandem_rl._programs import TandemError
from tandem_rl._session import PATIENCE, Session, TrainerState, TrainOutput, failure, say, wait
from tandem_rl.config import GRPOConfig, Translation, flags
from tandem_rl.run import Run

# What most names of an evaluation begin with; those of shares of right answers, such as `avg@1`, do not.
_EVAL = re.compile(r"^eval_")
# Files of a checkpoint that are the model. The others are for going on with the run.
_MODEL_FILES = re.compile(
    r"(model.*\.safetensors(\.index\.json)?|adapter_(config\.json|model\.safetensors)|config\.json"
    r"|generation_config\.json|chat_template\..*|tokenizer.*|special_tokens_map\.json|added_tokens\.json|vocab\..*"
    r"|merges\.txt|.*\.model)"
)


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
        with self._placed(translation, self._inputs, self._datasets) as (options, server):
            options["resume_from_checkpoint"] = resume
            for remark in translation.remarks:
                print(remark, file=sys.stderr)
            with Launcher("tandem", ["train", *flags(options)]) as launcher:
                session = Session(self, launcher, server)
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
        translation = self.args._with(self._more)
        datasets = dict(self._datasets)
        if eval_dataset is not None:
            datasets["eval_dataset"] = eval_dataset
        if datasets["eval_dataset"] is None and translation.options.get("eval_dataset") is None:
            raise ValueError("Trainer: evaluation requires an eval_dataset: give one here or to the trainer")
        begin = time.monotonic()
        with self._placed(translation, inputs, datasets) as (options, server):
            options["model"] = self._trained() or self.model
            with Launcher("rollout", ["evaluate", *flags(options)]) as evaluation:
                while not evaluation.has_ended():
                    wait(server, PATIENCE)
                    say(evaluation)
                say(evaluation)
                if evaluation.status != 0:
                    raise failure(evaluation, "the evaluation") from (server and server.raised)
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

    @contextlib.contextmanager
    def _placed(
        self, translation: Translation, inputs: Path, datasets: Mapping[str, Any]
    ) -> Iterator[Tuple[Dict[str, Any], Optional[_rewards.RewardServer]]]:
        """The options of the run, and the service of its reward functions. What is in memory becomes files of `inputs`,
        once no other trainer is at work with them."""
        in_memory = [*map(_data.is_in_memory, datasets.values()), self._template is not None, bool(self._functions)]
        with _inputs.held(inputs) if any(in_memory) else contextlib.nullcontext():
            options = self._options(translation, inputs, datasets)
            with self._served(options, inputs) as server:
                yield options, server

    def _options(self, translation: Translation, inputs: Path, datasets: Mapping[str, Any]) -> Dict[str, Any]:
        """The options of the run, without its reward functions. Datasets and template in memory become files of
        `inputs`."""
        options = dict(translation.options, model=self.model, output_dir=self.args.output_dir)
        for argument, dataset in datasets.items():
            option = {"train_dataset": "dataset"}.get(argument, argument)
            located = _data.located(argument, dataset, inputs)
            # The option takes several paths, so a comma of a path that is a text would divide it.
            is_path = option == "dataset" and isinstance(located, str) and os.path.exists(located)
            options[option] = ([located] if is_path else located) or options.get(option)
        if self._template is not None:
            options["chat_template"] = _written(inputs / "chat_template.jinja", self._template)
        return options

    @contextlib.contextmanager
    def _served(self, options: Dict[str, Any], inputs: Path) -> Iterator[Optional[_rewards.RewardServer]]:
        """Puts the reward functions into options, and serves those of this process, with a stub in `inputs`."""
        server = _rewards.RewardServer(self._functions, inputs, self.state) if self._functions else None
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
