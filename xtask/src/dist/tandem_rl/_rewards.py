"""Reward functions of this process, called for a run.

Tandem scores in processes of its own. For a function of this process they run a stub, which passes each request on over
a Unix socket; `RewardServer` answers it in the thread that trains. So closures, globals and the state of a notebook are
what the function sees, and it is called as in TRL: one call at a time, in the main thread.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import keyword
import os
import selectors
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from tandem_rl import _host

_STUB = Path(__file__).with_name("_stub.py")
# Most bytes that are taken from a socket at once.
_PIECE = 1 << 16


class Served(str):
    """The name of a function of this process, in the place of an entry."""


def entries(reward_funcs: Any) -> Tuple[List[str], Dict[str, Callable]]:
    """The entries of `reward_funcs` as docs/rewards.md has them, with `Served` for functions of this process, and these
    functions by name.

    Raises:
        TypeError: something that is no function with a name.
    """
    found: List[str] = []
    functions: Dict[str, Callable] = {}
    several = reward_funcs if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
    for index, reward in enumerate(several):
        if isinstance(reward, (str, os.PathLike)):
            found.append(_entry(os.fspath(reward)))
            continue
        name = _unique(_name(index, reward), functions)
        functions[name] = reward
        found.append(Served(name))
    return found, functions


def _entry(text: str) -> str:
    """TRL's names of reward models are entries of that kind here; every other text is an entry already."""
    if ":" not in text and not text.endswith(".py") and ("/" in text or os.path.isdir(text)):
        return f"model:path={text}"
    return text


def _name(index: int, reward: Any) -> str:
    place = f"reward_funcs[{index}]"
    if hasattr(reward, "save_pretrained"):
        raise TypeError(
            f"{place} is a model in memory: save it with its tokenizer (save_pretrained(DIR)), and give the folder"
        )
    if not callable(reward):
        raise TypeError(f"{place} is {type(reward).__name__}, and no function, name or path")
    name = getattr(reward, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        kind = "a lambda" if name == "<lambda>" else type(reward).__name__
        raise TypeError(
            f"{place} is {kind} without a name for the metrics: write it with `def`, or give it a `__name__`"
        )
    return name


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique


class _Function(_host.Caller):
    """A function with what it is called with, in this process."""

    def __init__(self, function: Callable, state: Any):
        super().__init__(function)
        self.state = state
        #: The last exception of the function.
        self.raised: Optional[BaseException] = None

    def arguments(self, request: Mapping[str, Any], completions: Sequence[Any]) -> Dict[str, Any]:
        arguments = super().arguments(request, completions)
        if self.named is None or "trainer_state" in self.named:
            arguments["trainer_state"] = self.state
        return arguments

    def awaited(self, result: Any) -> Any:
        # A notebook has a loop in this thread, which cannot be entered again.
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, daemon=True).start()

        async def finished() -> Any:
            return await result

        return asyncio.run_coroutine_threadsafe(finished(), self.loop).result()

    def failure(self, error: BaseException) -> Dict[str, str]:
        # Ctrl-C is for the trainer, wherever it hits.
        if isinstance(error, KeyboardInterrupt):
            raise error
        self.raised = error
        return super().failure(error)

    def close(self) -> None:
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)


class RewardServer:
    """Answers requests for the functions of this process. `serve` has to be called again and again.

    Args:
        functions: functions by name.
        folder: where the stub lies, beside the run; no other trainer may be at work with it.
        state: what functions get as `trainer_state`.
    """

    def __init__(self, functions: Mapping[str, Callable], folder: Path, state: Any):
        self._functions = {name: _Function(function, state) for name, function in functions.items()}
        self._stub = write_stub(functions, folder)
        # The path of a socket is short, and only this user may enter the folder.
        self._folder = tempfile.mkdtemp(prefix="tandem-rl-")
        address = os.path.join(self._folder, "rewards")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        (folder / "rewards.address").write_text(address)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, bytearray())

    def entry(self, name: str) -> str:
        """The entry of `reward_funcs` for a function."""
        return f"{os.fspath(self._stub)}".replace(":", "\\:") + f":{name}"

    @property
    def raised(self) -> Optional[BaseException]:
        """An exception of a function, if one has raised any."""
        return next((function.raised for function in self._functions.values() if function.raised), None)

    def serve(self, seconds: float) -> None:
        """Answers the requests that are there, or come within so many seconds."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                self._selector.register(connection, selectors.EVENT_READ, bytearray())
            else:
                self._read(key.fileobj, key.data)

    def _read(self, connection: Any, pending: bytearray) -> None:
        try:
            piece = connection.recv(_PIECE)
        except OSError:
            piece = b""
        if not piece:
            return self._forget(connection)
        pending += piece
        # A stub waits for the answer before it asks again.
        if not pending.endswith(b"\n"):
            return None
        asked = json.loads(bytes(pending))
        pending.clear()
        # Without an answer if Ctrl-C ends the function: the run is about to end, and nothing has failed.
        return self._answer(connection, self._fields(asked["function"], asked["request"]))

    def _fields(self, name: str, request: Mapping[str, Any]) -> Dict[str, Any]:
        fields = self._functions[name].answer(request)
        # What a function of this process may do is bounded by nothing that Tandem could name as the reason.
        entries = [{**entry, "contained": False} if isinstance(entry, dict) else entry for entry in fields["scores"]]
        return {**fields, "scores": entries}

    def _answer(self, connection: Any, answer: Mapping[str, Any]) -> None:
        try:
            connection.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            # The sampler no longer waits: the call took longer than `reward_timeout`.
            self._forget(connection)

    def _forget(self, connection: Any) -> None:
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Ends the service. Stubs that are still there find nobody."""
        for key in list(self._selector.get_map().values()):
            self._forget(key.fileobj)
        self._selector.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for function in self._functions.values():
            function.close()


def write_stub(functions: Mapping[str, Callable], folder: Path) -> Path:
    """Writes the file that Tandem starts the functions from. It has their sources too, so that a run that is resumed
    with other functions says so."""
    lines = [_STUB.read_text(encoding="utf-8")]
    for name, function in functions.items():
        lines.append(f"\n{name} = _Served({name!r})\n")
        try:
            source = inspect.getsource(function)
        except (OSError, TypeError):
            continue
        lines.extend(f"# {line}".rstrip() + "\n" for line in source.splitlines())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rewards.py"
    partial = path.with_suffix(".partial")
    partial.write_text("".join(lines), encoding="utf-8")
    os.replace(partial, path)
    return path
