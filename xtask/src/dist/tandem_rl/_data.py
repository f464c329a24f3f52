"""Datasets of Python as files that Tandem reads (docs/data.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterable, Mapping, Union

from tandem_rl.config import plain


def located(argument: str, dataset: Any, folder: Path) -> Union[None, str, list]:
    """The path or name of a dataset; rows in memory are written into `folder` first, as the file `argument`.

    Raises:
        TypeError: a dataset of a kind that is not known, or a value in a row that JSON does not have.
        ValueError: rows that no file has.
    """
    if not is_in_memory(dataset):
        return _named(dataset)
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset))
        raise TypeError(f"`{argument}` is a mapping of datasets ({splits}): give one of them, dataset[NAME]")
    if isinstance(dataset, (list, tuple)):
        return _written(argument, folder, ".jsonl", lambda path: _write_rows(argument, dataset, path))
    if hasattr(dataset, "to_parquet") and hasattr(dataset, "__len__"):
        return _written(argument, folder, ".parquet", lambda path: _write_table(argument, dataset, path))
    if hasattr(dataset, "__iter__"):
        raise TypeError(
            f"`{argument}` is {type(dataset).__name__}, of which nobody knows where it ends: take as many rows as you "
            "want, list(dataset.take(N))"
        )
    raise TypeError(f"`{argument}` is {type(dataset).__name__}, and no path, name, datasets.Dataset or list of rows")


def is_in_memory(dataset: Any) -> bool:
    """Whether a dataset is given by its rows, and not by a path or name."""
    return dataset is not None and _named(dataset) is None


def _named(dataset: Any) -> Union[None, str, list]:
    """A path or name, or a list of them; None for any other dataset."""
    if isinstance(dataset, (str, os.PathLike)):
        return os.fspath(dataset)
    if isinstance(dataset, (list, tuple)) and dataset and all(isinstance(each, (str, os.PathLike)) for each in dataset):
        return [os.fspath(each) for each in dataset]
    return None


def _written(argument: str, folder: Path, ending: str, write: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{argument}.partial"
    try:
        write(os.fspath(partial))
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    path = folder / f"{argument}{ending}"
    os.replace(partial, path)
    return os.fspath(path)


def _write_table(argument: str, table: Any, path: str) -> None:
    try:
        table.to_parquet(path)
    except UnicodeEncodeError as error:
        # It has the text without a place.
        plain(f"`{argument}`", error.object)
        raise


def _write_rows(argument: str, rows: Iterable[Any], path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise TypeError(f"`{argument}`: row {index} is {type(row).__name__}, and no mapping of columns")
            cells = {}
            for name, value in row.items():
                place = f"`{argument}`: row {index}, column `{name}`"
                cells[_cell(place, str(name))] = _cell(place, value)
            file.write("{" + ", ".join(f"{name}: {cell}" for name, cell in cells.items()) + "}\n")


def _cell(place: str, value: Any) -> str:
    """A value in JSON."""
    value = plain(place, value)
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        raise ValueError(f"{place} has a number that is not finite: write None") from error
