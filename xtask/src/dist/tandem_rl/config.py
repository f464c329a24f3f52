"""The arguments of a run, by TRL's names and by those of `run.toml`.

No option, default of one or rule is written here: `tandem schema` has all options, and `tandem import-config`
translates TRL's arguments. The package asks both programs.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import difflib
import enum
import functools
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from tandem_rl import _trl
from tandem_rl._programs import ask

# Arguments about the calling process, with their defaults.
_LOCAL = {"disable_tqdm": False}
# Digits that a number with a fraction keeps.
_MOST_DIGITS = 17


@functools.lru_cache(maxsize=None)
def _schema() -> Dict[str, Dict[str, Any]]:
    """The description of each option; another name of an option has a `$ref` to it."""
    described = json.loads(ask("schema"))["properties"]
    # A table for `tandem sweep`, which a run does not have.
    described.pop("sweep", None)
    return described


def _option(name: str) -> Optional[str]:
    """The option that a name stands for."""
    described = _schema().get(name)
    return described and described.get("$ref", name).rsplit("/", 1)[-1]


def _names() -> List[str]:
    return [*_schema(), *_LOCAL, *_trl.DEFAULTS]


def _default(name: str) -> Any:
    """The value of an argument that is not given; its own copy, which may be changed."""
    option = _option(name)
    if option is not None:
        return copy.deepcopy(_schema()[option].get("default"))
    return copy.deepcopy({**_trl.DEFAULTS, **_LOCAL}[name])


@functools.lru_cache(maxsize=None)
def _dataclass() -> type:
    """A dataclass with a field for each argument. `dataclasses.replace` hands `_source` on beside these."""
    fields: List[Any] = [("_source", dataclasses.InitVar[Any], None)]
    for name in _names():
        if _option(name) in (None, name):
            value = _default(name)
            is_plain = value is None or isinstance(value, (str, bool, int, float))
            field = dataclasses.field(default=value) if is_plain else _with_factory(name)
            fields.append((name, Any, field))
    return dataclasses.make_dataclass("GRPOConfig", fields, init=False, repr=False, eq=False)


def _with_factory(name: str) -> Any:
    return dataclasses.field(default_factory=functools.partial(_default, name))


class _OfDataclass:
    """What `dataclasses` looks for in a class. It takes the options of Tandem, so it is made at its first use."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: Optional[type] = None) -> Any:
        return getattr(_dataclass(), self._name)


class Translation:
    """Arguments as options of `run.toml`."""

    def __init__(self, arguments: Mapping[str, Any]):
        arguments = {name: value for name, value in arguments.items() if not _trl.says_nothing(name, arguments)}
        said = translated(arguments) if arguments else {}
        #: Values by option.
        self.options: Dict[str, Any] = said.get("options", {})
        #: Lines about arguments without an effect, and about converted numbers.
        self.remarks: List[str] = [f"{name}: {why}" for name, why in said.get("left_out", {}).items()]
        self.remarks += said.get("notes", [])
        _refuse(said.get("unknown", {}), said.get("refused", {}))


def translated(arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """What `tandem import-config` says of arguments of TRL."""
    with tempfile.TemporaryDirectory(prefix="tandem-rl-") as folder:
        path = os.path.join(folder, "arguments.json")
        with open(path, "w") as file:
            json.dump(arguments, file)
        return json.loads(ask("import-config", "--from", "trl", "--json", path))


def _refuse(unknown: Mapping[str, str], refused: Mapping[str, str]) -> None:
    """Raises if an argument is not known, or has a value that cannot be taken over."""
    if unknown:
        # Of a mapping, every key is looked at.
        names, known = dict.fromkeys(name.split(".")[0] for name in unknown), _names()
        raise TypeError("; ".join(_no_mapping(name) if name in known else _no_argument(name) for name in names))
    if refused:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in refused.items()))


def _no_argument(name: str) -> str:
    return f"GRPOConfig has no argument `{name}`{nearest(name)}"


def _no_mapping(name: str) -> str:
    return f"`{name}` of GRPOConfig takes no mapping"


def nearest(name: str) -> str:
    """Words on the argument that has the most similar name."""
    found = difflib.get_close_matches(name, _names(), 1, 0.7)
    return f" (the nearest is `{found[0]}`)" if found else " (docs/configuration.md has all options)"


def plain(place: str, value: Any) -> Any:
    """A value as JSON has it: paths and members of enumerations as texts, numbers of any library as Python's, arrays as
    lists, and what files of data have besides as docs/data.md says. `place` begins the message of an error.

    Raises:
        TypeError: a value that JSON does not have.
        ValueError: what cannot be a text in UTF-8.
    """
    if isinstance(value, enum.Enum):
        return plain(place, value.value)
    if isinstance(value, str):
        return _text(place, value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, os.PathLike):
        return plain(place, os.fspath(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _decoded(place, bytes(value))
    if isinstance(value, Mapping):
        return {_text(place, str(key)): plain(place, inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(place, inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        values = [plain(place, inner) for inner in value]
        try:
            return sorted(values)
        except TypeError as error:
            raise TypeError(f"{place} has a set whose values have no order: write a list") from error
    if type(value).__name__ in ("NAType", "NaTType"):
        # The missing values of pandas.
        return None
    if isinstance(value, decimal.Decimal):
        return _number(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return _moment(value)
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).rsplit(".", 1)[-1]
    if getattr(getattr(value, "dtype", None), "kind", None) in ("M", "m"):
        return _times(place, value)
    for method in ("tolist", "item"):
        if hasattr(value, method):
            listed = getattr(value, method)()
            if type(listed) is type(value):
                break
            return plain(place, listed)
    raise TypeError(
        f"{place} has a value of the type {type(value).__name__}: write a text, a number, a truth value or None, or a "
        "list or mapping of these"
    )


def _text(place: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = ascii(text[max(error.start - 20, 0) : error.start + 20])
        raise ValueError(
            f"{place} has half of a character in the text {near}, which UTF-8 does not have: write the whole one, or "
            "TEXT.encode(errors='replace').decode()"
        ) from None
    return text


def _decoded(place: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{place} has bytes that are no UTF-8: write a text, or leave them out") from None


def _number(value: decimal.Decimal) -> Any:
    """A decimal as a number, or as a text if a number does not keep its digits."""
    if not value.is_finite():
        return math.nan
    text = f"{value:f}"
    if len(text.lstrip("-").replace(".", "").strip("0")) > _MOST_DIGITS:
        return text
    return float(text) if "." in text else int(text)


def _moment(value: Any) -> str:
    """A date or a time as a text, in UTC if it has a time zone."""
    zoned = isinstance(value, datetime.datetime) and value.utcoffset() is not None
    if zoned:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return _in_thousandths(value.isoformat()) + ("Z" if zoned else "")


def _in_thousandths(text: str) -> str:
    """A time whose fraction of a second has three, six or nine digits, or none."""
    while "." in text and text.endswith("000"):
        text = text[:-3]
    return text.rstrip(".")


def _times(place: str, value: Any) -> Any:
    """Times of numpy, which `tolist` makes numbers of."""
    if getattr(value, "ndim", 0):
        return [plain(place, inner) for inner in value]
    if value.dtype.kind == "m":
        raise TypeError(f"{place} has a span of time: write a number or a text")
    text = str(value)
    return None if text == "NaT" else _in_thousandths(text)


class GRPOConfig:
    """The arguments of a run: TRL's, and all options of `run.toml` (docs/configuration.md).

    An argument of TRL means what `tandem import-config` reads it as (docs/importing.md): some have another name or unit
    in Tandem, and some have no effect, which the start of a run says. Attributes have the values that were given, else
    the defaults of Tandem, and those of TRL where an argument is no option of Tandem. To assign an attribute gives the
    argument. `dataclasses.replace`, `fields` and `asdict` take a configuration as they take TRL's.

    Args:
        output_dir: folder of the run.
        **arguments: everything else, by name. `disable_tqdm` shows lines in the place of a progress bar.

    Raises:
        TypeError: an argument that neither TRL nor Tandem has; the message has the nearest name.
        ValueError: a value that cannot be used, with the reason.
    """

    __dataclass_fields__ = _OfDataclass("__dataclass_fields__")
    __dataclass_params__ = _OfDataclass("__dataclass_params__")

    def __init__(self, output_dir: Optional[str] = None, **arguments: Any):
        object.__setattr__(self, "_given", {})
        object.__setattr__(self, "_local", dict(_LOCAL))
        if output_dir is not None:
            arguments = {"output_dir": output_dir, **arguments}
        source = arguments.pop("_source", None)
        if source is not None:
            # `dataclasses.replace` gives every argument, also those that the source has by itself.
            object.__setattr__(self, "_given", source._given)
            object.__setattr__(self, "_local", source._local)
            arguments = {name: value for name, value in arguments.items() if source._differs(name, value)}
        self._take(arguments)

    @property
    def _source(self) -> GRPOConfig:
        return self

    def _differs(self, name: str, value: Any) -> bool:
        """Whether an argument has another value here, or none."""
        return not hasattr(self, name) or plain(f"`{name}`", value) != getattr(self, name)

    def __replace__(self, **changes: Any) -> GRPOConfig:
        return dataclasses.replace(self, **changes)

    def _take(self, arguments: Mapping[str, Any]) -> None:
        local = {name: value for name, value in arguments.items() if name in _LOCAL}
        given = {name: plain(f"`{name}`", value) for name, value in arguments.items() if name not in _LOCAL}
        # Another name of the same option no longer counts.
        options = {_option(name) for name in given} - {None}
        kept = {name: value for name, value in self._given.items() if name in given or _option(name) not in options}
        given = {**kept, **given}
        object.__setattr__(self, "_translation", Translation(given))
        object.__setattr__(self, "_given", given)
        # A copy shares what is not replaced.
        object.__setattr__(self, "_local", {**self._local, **local})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for values in (self._given, self._local):
            if name in values:
                return values[name]
        option = _option(name)
        if option is None and name not in _trl.DEFAULTS:
            raise AttributeError(_no_argument(name))
        options = self._translation.options
        return options[option] if option in options else _default(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._take({name: value})

    def __repr__(self) -> str:
        given = {**self._given, **{name: value for name, value in self._local.items() if value != _LOCAL[name]}}
        return f"GRPOConfig({', '.join(f'{name}={value!r}' for name, value in given.items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GRPOConfig) and (self._given, self._local) == (other._given, other._local)

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> Dict[str, Any]:
        """Every argument that was given, and every other option with its default."""
        taken = {_option(name) for name in self._given}
        defaults = {name: getattr(self, name) for name in _schema() if _option(name) == name and name not in taken}
        return {**defaults, **self._given, **self._local}

    def _with(self, more: Mapping[str, Any]) -> Translation:
        """The options of these arguments and more."""
        return Translation({**self._given, **more}) if more else self._translation


def flags(options: Mapping[str, Any]) -> List[str]:
    """Options as words of `tandem train`; those without a value are left out."""

    def text(value: Any) -> str:
        if isinstance(value, (str, Path)):
            return str(value)
        return json.dumps(value, ensure_ascii=False)

    return [f"--{name}={text(value)}" for name, value in options.items() if value is not None]
