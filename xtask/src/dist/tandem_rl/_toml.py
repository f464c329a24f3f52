"""Reads `config.toml` of a run where Python has no `tomllib` (before 3.11)."""

from __future__ import annotations

import re
from typing import Any, Dict, Tuple

try:
    import tomllib
except ImportError:
    tomllib = None  # type: ignore[assignment]

_WORD = re.compile(r"[^,\]}\s#]+")
_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPE = re.compile(r'\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[btnfre"\\])')
_ESCAPED = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}


def loads(text: str) -> Dict[str, Any]:
    """The values of a file that has one key on a line, as Tandem writes it: texts, numbers, truth values, lists and
    tables in one line.

    Raises:
        ValueError: anything else.
    """
    return tomllib.loads(text) if tomllib is not None else _loads(text)


def _loads(text: str) -> Dict[str, Any]:
    values: Dict[str, Any] = {}
    at = _blank(text, 0)
    while at < len(text):
        at = _pair(text, at, values)
        at = _blank(text, at)
    return values


def _blank(text: str, at: int) -> int:
    """The place behind blanks and comments."""
    return re.compile(r"(\s|#[^\n]*)*").match(text, at).end()  # type: ignore[union-attr]


def _pair(text: str, at: int, into: Dict[str, Any]) -> int:
    if text[at] in "\"'":
        key, at = _text(text, at)
    else:
        found = _KEY.match(text, at)
        if found is None:
            raise ValueError(f"no key at character {at}")
        key, at = found.group(), found.end()
    at = _blank(text, at)
    if text[at : at + 1] != "=":
        raise ValueError(f"no `=` behind the key `{key}`")
    into[key], at = _value(text, _blank(text, at + 1))
    return at


def _value(text: str, at: int) -> Tuple[Any, int]:
    first = text[at : at + 1]
    if first and first in "\"'":
        return _text(text, at)
    if first == "[":
        return _several(text, at, "]")
    if first == "{":
        return _several(text, at, "}")
    found = _WORD.match(text, at)
    if found is None:
        raise ValueError(f"no value at character {at}")
    word = found.group()
    if word in ("true", "false"):
        return word == "true", found.end()
    number = word.replace("_", "")
    return (int(number) if re.fullmatch(r"[+-]?\d+", number) else float(number)), found.end()


def _several(text: str, at: int, end: str) -> Tuple[Any, int]:
    """A list or a table."""
    items: Any = {} if end == "}" else []
    at = _blank(text, at + 1)
    while text[at : at + 1] != end:
        if end == "}":
            at = _pair(text, at, items)
        else:
            item, at = _value(text, at)
            items.append(item)
        at = _blank(text, at)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        elif text[at : at + 1] != end:
            raise ValueError(f"`,` or `{end}` is missing at character {at}")
    return items, at + 1


def _text(text: str, at: int) -> Tuple[str, int]:
    mark = text[at]
    long = text.startswith(mark * 3, at)
    opening = mark * 3 if long else mark
    begin = at + len(opening)
    end = begin
    while not text.startswith(opening, end):
        if end >= len(text):
            raise ValueError(f"the text at character {at} has no end")
        end += 2 if mark == '"' and text[end] == "\\" else 1
    while long and text.startswith(mark, end + 3):
        end += 1
    inner = text[begin:end]
    if long and inner.startswith("\n"):
        inner = inner[1:]
    if mark == '"':
        inner = _ESCAPE.sub(lambda found: _ESCAPED.get(found[1]) or chr(int(found[1][1:], 16)), inner)
    return inner, end + len(opening)
