"""The programs of the package: where they are, and what they answer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict

_BIN = Path(__file__).resolve().parent / "bin"


class TandemError(RuntimeError):
    """What a program of Tandem refused or failed at, in its own words."""


def binary(name: str) -> Path:
    """The path of a program of this package: `tandem`, `rollout`, `learner`, `rollout-fleet`, `rollout-serve`,
    `rollout-bridge`.

    The commands of the package let reward functions run in the interpreter that has the package; a program that is
    started by its path takes `python3`, unless `reward_python` or the variable TANDEM_REWARD_PYTHON names another one.
    The sources of the package have no programs beside them, and take those of PATH.

    Raises:
        ValueError: the package has no such program.
    """
    path = _BIN / name
    if path.is_file():
        return path
    found = None if _BIN.is_dir() else shutil.which(name)
    if found is None:
        raise ValueError(f"tandem_rl has no program {name!r}")
    return Path(found)


def environment() -> Dict[str, str]:
    """The environment of programs: reward functions run in this interpreter, unless another one is named."""
    variables = dict(os.environ)
    if sys.executable:
        variables.setdefault("TANDEM_REWARD_PYTHON", sys.executable)
    return variables


def ask(*words: str) -> str:
    """What `tandem` with these words prints.

    Raises:
        TandemError: it refused.
    """
    asked = subprocess.run(
        [str(binary("tandem")), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    if asked.returncode != 0:
        raise TandemError(error_in(asked.stderr.decode(errors="replace")) or f"`tandem {words[0]}` failed")
    return asked.stdout.decode()


def error_in(text: str) -> str:
    """The error in the last words of a program, with the list of obstacles before it; empty if there is none."""
    lines = text.rstrip().splitlines()
    begins = [at for at, line in enumerate(lines) if line.startswith("error: ")]
    if not begins:
        return ""
    last = first = begins[-1]
    while first > 0 and lines[first - 1].startswith("- "):
        first -= 1
    return "\n".join([lines[last][len("error: ") :], *lines[last + 1 :], *lines[first:last]])
