"""What a run has written, as tables."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Optional, Union

from tandem_rl import _toml

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_COMPLETIONS = re.compile(r"step-(\d+)\.jsonl")


class Run:
    """The files of a run (docs/runs.md), also while it goes on. Every call reads them anew.

    Tables are DataFrames if pandas is installed, else lists of dictionaries; `pandas=False` asks for the lists.

    Args:
        path: folder of the run, `output_dir`.

    Raises:
        ValueError: the folder holds no run.
    """

    def __init__(self, path: Union[str, os.PathLike]):
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            raise ValueError(f"{self.path} holds no run: it has no config.toml")

    def __repr__(self) -> str:
        return f"Run({os.fspath(self.path)!r})"

    @property
    def config(self) -> Dict[str, Any]:
        """Every option as it was resolved."""
        return _toml.loads((self.path / "config.toml").read_text(encoding="utf-8"))

    def metrics(self, pandas: Optional[bool] = None) -> Any:
        """A row for each step (docs/metrics.md)."""
        return _table(records(self.path / "metrics.jsonl"), pandas)

    def evaluations(self, pandas: Optional[bool] = None) -> Any:
        """A row for each evaluation, with `eval_steps`."""
        return _table(records(self.path / "eval.jsonl"), pandas)

    def completions(self, step: Optional[int] = None, pandas: Optional[bool] = None) -> Any:
        """A row for each completion of a step, or of all steps: prompt, completion, rewards, advantage, state.

        Raises:
            ValueError: the run has no completions of that step.
        """
        numbered = _numbered(self.path / "completions", _COMPLETIONS)
        if step is not None and step not in numbered:
            raise ValueError(f"{self.path} has no completions of step {step}")
        wanted = [step] if step is not None else sorted(numbered)
        return _table([row for each in wanted for row in _rows(numbered[each])], pandas)

    @property
    def checkpoints(self) -> List[Path]:
        """The folders of the checkpoints, by their steps."""
        numbered = checkpoints(self.path)
        return [numbered[step] for step in sorted(numbered)]

    @property
    def best(self) -> Optional[Path]:
        """The best checkpoint that the run has recorded, with `metric_for_best_model`."""
        step = self.best_record.get("step")
        return next((path for path in self.checkpoints if path.name == f"checkpoint-{step}"), None)

    @property
    def best_record(self) -> Dict[str, Any]:
        """Step, metric and value of the best checkpoint; empty without one."""
        return best_record(self.path)

    @property
    def model(self) -> Optional[Path]:
        """The checkpoint that is the model of the run: the best with `load_best_model_at_end`, else the newest."""
        chosen = self.path / "model"
        if chosen.is_dir():
            return chosen
        return self.checkpoints[-1] if self.checkpoints else None


def checkpoints(folder: Path) -> Dict[int, Path]:
    """The folders of the checkpoints of a run, by their steps."""
    return _numbered(folder, _CHECKPOINT)


def best_record(folder: Path) -> Dict[str, Any]:
    """Step, metric and value of the best checkpoint of a run; empty without one."""
    try:
        return json.loads((folder / "best.json").read_text())
    except FileNotFoundError:
        return {}


def records(path: Path) -> List[Dict[str, Any]]:
    """The records of a file by their steps. A step that was made again after a crash counts once, as it was last."""
    by_step = {row["step"]: row for row in _rows(path) if isinstance(row.get("step"), int)}
    return [by_step[step] for step in sorted(by_step)]


def _rows(path: Path) -> List[Dict[str, Any]]:
    """The whole lines of a file. The last one may just be written, and one that is damaged is passed over."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _numbered(folder: Path, pattern: Any) -> Dict[int, Path]:
    entries = folder.iterdir() if folder.is_dir() else iter(())
    found = [(pattern.fullmatch(path.name), path) for path in entries]
    return {int(match[1]): path for match, path in found if match}


def _table(rows: List[Dict[str, Any]], pandas: Optional[bool]) -> Any:
    if pandas is False:
        return rows
    try:
        import pandas as library
    except ImportError:
        if pandas:
            raise
        return rows
    return library.DataFrame(rows)
