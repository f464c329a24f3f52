"""A program as a child of this process: `tandem train`, or an evaluation."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any, List, Optional

from tandem_rl._programs import binary, environment

# Has the kernel end the program in order when this process is gone, even by `kill -9`.
_TETHER = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit('the process that trains has gone')\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class Launcher:
    """A running program, with its lines as they come. Ctrl-C in the terminal does not reach it by itself."""

    def __init__(self, program: str, words: List[str]):
        command = [os.fspath(binary(program)), *words]
        if sys.executable:
            command = [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *command]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
        self._lines: "queue.Queue[Optional[str]]" = queue.Queue()
        #: Lines on stderr so far.
        self.said: List[str] = []
        #: Lines on stdout, whole at the end.
        self.printed: List[str] = []
        self._readers = [
            threading.Thread(target=self._follow, args=(self._child.stderr, self._lines.put), daemon=True),
            threading.Thread(target=self._follow, args=(self._child.stdout, self.printed.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> "Launcher":
        return self

    def __exit__(self, *_: Any) -> None:
        """Leaves no program behind that nobody follows."""
        if self._child.poll() is None:
            self.stop()
            self._child.wait()

    @staticmethod
    def _follow(stream: Any, take: Any) -> None:
        for line in stream:
            take(line.decode(errors="replace").rstrip("\n"))

    def new_lines(self) -> List[str]:
        """The lines since the last call."""
        found = []
        while True:
            try:
                found.append(self._lines.get_nowait())
            except queue.Empty:
                self.said += found
                return found

    def has_ended(self) -> bool:
        """Whether it has ended, and all that it said is there."""
        if self._child.poll() is None:
            return False
        for reader in self._readers:
            reader.join(1.0)
        return True

    @property
    def status(self) -> Optional[int]:
        """Its exit status; negative for a signal."""
        return self._child.returncode

    def stop(self) -> None:
        """Asks it to end in order, a run with a checkpoint; a second time, to end at once."""
        self._child.send_signal(signal.SIGINT)
