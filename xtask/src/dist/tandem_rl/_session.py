"""A running training, followed from the process that has called it."""

from __future__ import annotations

import bisect
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from tandem_rl import _progress, _rewards
from tandem_rl._process import Launcher
from tandem_rl._programs import TandemError, error_in
from tandem_rl.run import best_record, checkpoints, records

# How long to wait for a request before the run is looked at again, in seconds.
PATIENCE = 0.1
# The exit status of a run that Ctrl-C has ended in order.
_INTERRUPTED = 130


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


def wait(server: Optional[_rewards.RewardServer], patience: float) -> None:
    """Waits, and meanwhile answers for the reward functions of this process."""
    if server is not None:
        server.serve(patience)
    else:
        time.sleep(patience)


def say(launcher: Launcher) -> None:
    """Shows what a program has said since the last call. An error is told by the exception."""
    for line in launcher.new_lines():
        if not line.startswith("error: "):
            print(line, file=sys.stderr, flush=True)


def failure(launcher: Launcher, name: str) -> TandemError:
    """What a program has failed at, in its own words."""
    said = error_in("\n".join(launcher.said)) or "\n".join(launcher.said[-3:])
    return TandemError(_in_python(said) or f"{name} ended with the status {launcher.status}")


# Events of a step, in the order of transformers.
_STEP, _EVALUATION, _SAVE = range(3)


class Known:
    """What the records of a run have."""

    def __init__(self, steps: List[Dict[str, Any]], evaluations: List[Dict[str, Any]]):
        #: Records of steps by their numbers.
        self.steps = {record["step"]: record for record in steps}
        self.newest: Optional[int] = steps[-1]["step"] if steps else None
        self._history = sorted([*steps, *evaluations], key=lambda record: record["step"])
        self._order = [record["step"] for record in self._history]

    def put_into(self, state: TrainerState, step: Optional[int] = None) -> None:
        """Makes the state that of a step, since callbacks are told of it when the run is further on; without a step,
        that of the newest."""
        end = len(self._history) if step is None else bisect.bisect_right(self._order, step)
        state.log_history = self._history[:end]
        step = self.newest if step is None else step
        if step is None:
            return
        record = self.steps.get(step, {})
        state.global_step = step
        state.max_steps = record.get("total_steps", state.max_steps)
        state.epoch = record.get("epoch", state.epoch)


class Session:
    """A running training: its launcher, its rewards, and what its records say."""

    def __init__(self, trainer: Any, launcher: Launcher, server: Optional[_rewards.RewardServer]):
        self._trainer, self._launcher, self._server = trainer, launcher, server
        self._callbacks = trainer._callbacks
        self._callbacks.control.should_training_stop = False
        self._folder = Path(trainer.args.output_dir)
        self._shown = _progress.progress(bool(trainer.args.disable_tqdm))
        self._begin = time.monotonic()
        self._chooses = trainer.args.metric_for_best_model is not None
        #: Sizes of the records, and checkpoints, when they were read last.
        self._seen: Any = None
        self._last = {"metrics.jsonl": 0, "eval.jsonl": 0}
        for name in self._last:
            known = records(self._folder / name)
            self._last[name] = known[-1]["step"] if known else 0
        #: Steps of the checkpoints that were told of, or were there before.
        self._saved = set(checkpoints(self._folder))
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

    def _turn(self, patience: float = PATIENCE) -> None:
        wait(self._server, patience)
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

    def _read(self, is_over: bool = False) -> None:
        """Takes what the records have that they did not have before, and tells of it in the order of the steps."""
        # A step is in the records before its checkpoint is there.
        saved = set(checkpoints(self._folder))
        sizes = [path.stat().st_size if path.exists() else 0 for path in map(self._folder.joinpath, self._last)]
        if (sizes, saved) == self._seen and not is_over:
            return
        self._seen = (sizes, saved)
        steps, evaluations = (records(self._folder / name) for name in self._last)
        # After a restart, steps are made again.
        for name, found in zip(self._last, (steps, evaluations)):
            self._last[name] = min(self._last[name], found[-1]["step"] if found else 0)
        self._saved &= saved
        known = Known(steps, evaluations)
        told: List[Tuple[int, int, Optional[Dict[str, Any]]]] = []
        told += [(each["step"], _STEP, each) for each in steps if each["step"] > self._last["metrics.jsonl"]]
        told += [(each["step"], _EVALUATION, each) for each in evaluations if each["step"] > self._last["eval.jsonl"]]
        told += [(step, _SAVE, None) for step in saved - self._saved if self._is_told_of(step, known, is_over)]
        for step, kind, record in sorted(told, key=lambda each: each[:2]):
            known.put_into(self._trainer.state, step)
            # As in transformers, an evaluation makes a model the best once it was told of.
            self._see_best(step if kind == _SAVE else step - 1)
            if kind == _STEP:
                self._shown.step(record)
                self._callbacks_guarded("on_step_end")
                self._callbacks_guarded("on_log", logs=dict(record))
                self._last["metrics.jsonl"] = step
            elif kind == _EVALUATION:
                self._callbacks_guarded("on_evaluate", metrics=dict(record))
                self._last["eval.jsonl"] = step
            else:
                self._callbacks_guarded("on_save")
                self._saved.add(step)
        known.put_into(self._trainer.state)

    def _is_told_of(self, step: int, known: Known, is_over: bool) -> bool:
        """Whether a new checkpoint is one of this run's steps, and what its evaluation says of it is known: the learner
        looks at that before the next step."""
        is_open = self._chooses and not is_over and step == known.newest
        return step in known.steps and not is_open

    def _see_best(self, through: Optional[int]) -> None:
        """Takes the best checkpoint into the state, unless it is of a later step."""
        best, state = best_record(self._folder) if self._chooses else {}, self._trainer.state
        if best and (through is None or best["step"] <= through):
            state.best_global_step, state.best_metric = best["step"], best["value"]
            state.best_model_checkpoint = os.fspath(self._folder / f"checkpoint-{best['step']}")

    def output(self, reason: Optional[BaseException]) -> TrainOutput:
        """The end of the training, or the exception that it ended with."""
        launcher, state = self._launcher, self._trainer.state
        self._read(is_over=True)
        self._see_best(None)
        in_order = launcher.status == 0 or (self._stopped and launcher.status == _INTERRUPTED)
        if not in_order:
            raise failure(launcher, "`tandem train`") from (reason or (self._server and self._server.raised))
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
