"""Callbacks of transformers' Trainer, told of a run in processes of its own.

The calling process learns of a step from the records of the run, when the step is over. So there are the events that
follow something, and none before or within a step.
"""

from __future__ import annotations

import inspect
from typing import Any, List, Optional

_TOLD = {"on_init_end", "on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_save", "on_train_end"}


class TrainerControl:
    """What a callback asks for. `should_training_stop` ends the run in order, within a step or two."""

    def __init__(self) -> None:
        self.should_training_stop = False
        self.should_epoch_stop = False
        self.should_save = False
        self.should_evaluate = False
        self.should_log = False


class Callbacks:
    """The callbacks of a trainer.

    Raises:
        TypeError: a callback for an event that nobody tells.
    """

    def __init__(self, callbacks: Optional[List[Any]], args: Any, state: Any):
        self._all = [callback() if inspect.isclass(callback) else callback for callback in callbacks or []]
        self._args, self._state = args, state
        self.control = TrainerControl()
        for callback in self._all:
            _check(callback)

    def tell(self, event: str, **more: Any) -> None:
        """Calls the event's method of every callback that has one."""
        for callback in self._all:
            method = getattr(callback, event, None)
            if method is not None:
                self.control = method(self._args, self._state, self.control, **more) or self.control


def _check(callback: Any) -> None:
    name = type(callback).__name__
    if name == "EarlyStoppingCallback":
        raise TypeError("EarlyStoppingCallback: `early_stopping_patience` and `early_stopping_threshold` are arguments")
    own = [each for each in type(callback).__mro__ if not each.__module__.startswith("transformers.")]
    events = {event for each in own for event in vars(each) if event.startswith("on_")}
    unknown = sorted(events - _TOLD)
    if unknown:
        told = ", ".join(sorted(_TOLD))
        raise TypeError(f"{name}.{unknown[0]}: nobody tells of this event; these are told of: {told}")
