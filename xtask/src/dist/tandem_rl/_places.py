"""Tools and environments of Python as Tandem takes them: by the file in which processes of their own find them."""

from __future__ import annotations

import inspect
from typing import Any, Mapping


def tools(value: Any) -> Any:
    """Functions and entries as a list of entries, `FILE:NAME`; None for none.

    Raises:
        ValueError: a function that no file has, or no function.
    """
    several = value if isinstance(value, (list, tuple)) else [value]
    return [_entry("tools", each) for each in several if each is not None] or None


def environments(value: Any) -> Any:
    """A class, or classes by their names, as entries; None for none.

    Raises:
        ValueError: a class that no file has, or no class.
    """
    if isinstance(value, Mapping):
        return {str(name): _entry("environment_factory", each) for name, each in value.items()} or None
    return None if value is None else _entry("environment_factory", value)


def _entry(argument: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    name = getattr(value, "__qualname__", None)
    if name is None:
        raise ValueError(f"{argument}: {type(value).__name__} is neither a function or class nor FILE:NAME")
    # A process that imported the script would train once more, and nothing finds what a function has made.
    is_found = getattr(value, "__module__", None) != "__main__" and name.isidentifier()
    try:
        file = inspect.getsourcefile(value) if is_found else None
    except TypeError:
        file = None
    if file is None:
        raise ValueError(
            f"{argument}: `{name}` is in no file that a process of its own can import. Put it at the top level of a "
            f"file beside the script and import it from there, or name it, 'FILE.py:{name}'"
        )
    return f"{file}:{name}"
