"""The folder of what is in memory and has to be files for a run, and who is at work with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Iterator

from tandem_rl._programs import TandemError


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps other trainers out of a folder, which is made. A lock ends with its process.

    Raises:
        TandemError: another trainer is at work with it; nothing in it was touched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TandemError(
                f"another trainer is at work with {os.fspath(folder)}: wait for it, or take another output_dir"
            ) from None
        yield
