"""What the calling process shows of a run: a bar of tqdm where that is installed, else the lines of `tandem train`."""

from __future__ import annotations

import re
import sys
from typing import Any, Mapping, Optional

# The launcher's line about a step, which the bar has instead.
_STEP = re.compile(r"step \d+/\d+ ")


class Lines:
    """Shows every line."""

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def step(self, record: Mapping[str, Any]) -> None:
        """A record of `metrics.jsonl`; the launcher says the same in a line."""

    def close(self) -> None:
        """Nothing is left to show."""


class Bar:
    """A bar along the steps, which begins with the first of them, and every other line above it."""

    def __init__(self, tqdm: Any):
        self._tqdm = tqdm
        self._bar: Optional[Any] = None

    def say(self, line: str) -> None:
        if _STEP.match(line):
            return
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.write(line, file=sys.stderr)

    def step(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        if self._bar is None:
            self._bar = self._tqdm(total=record.get("total_steps"), initial=step - 1, unit="step")
        shown = {key: record.get(key) for key in ("reward", "loss") if isinstance(record.get(key), (int, float))}
        self._bar.set_postfix({key: f"{value:.4g}" for key, value in shown.items()}, refresh=False)
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def progress(disabled: bool) -> Any:
    """A bar, unless it is not wanted or tqdm is not installed."""
    if not disabled:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            pass
        else:
            return Bar(tqdm)
    return Lines()
