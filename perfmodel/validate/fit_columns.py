"""Columns of a measurement table made ready for a curve fit."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.errors import FitError, UnknownNameError
from perfmodel.fit.data import FitData, data_from_arrays
from perfmodel.measure.physics import checked_table, physics_notes
from perfmodel.measure.schema import COLUMNS
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue

__all__ = ["data_from_table", "is_measurement_table"]

_HEADER_BYTES = 65536


def is_measurement_table(path: Path) -> bool:
    """Tell whether the header of a CSV file says that it is a measurement table: `kind` and schema columns only."""
    try:
        with path.open("rb") as file:
            lines = file.read(_HEADER_BYTES).decode("utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise FitError(
            f"{path.name} cannot be read", got=error.strerror or str(error), expected="a CSV file"
        ) from error
    try:
        header = [name.strip() for name in next(csv.reader(lines[:1]), [])]
    except csv.Error as error:
        raise FitError(f"{path.name} is no table", where="line 1", got=str(error), expected="a CSV header") from error
    return (
        "value" in header and set(header) <= set(COLUMNS) and ("kind" in header or "metric" in header or "id" in header)
    )


def data_from_table(
    path: Path,
    x: Sequence[str],
    y: str,
    *,
    stderr: str | None = None,
    group: str | None = None,
    where: Mapping[str, str] | None = None,
) -> FitData:
    """Return checked columns of the usable rows of a measurement table.

    `y` is a numeric column, or an op or a metric whose `value` is meant. Without --where all rows must be of one kind
    and op: values of different things make no curve.
    """
    catalogue = Catalogue.standard()
    whole, report = checked_table(path, catalogue)
    table = whole.where()
    chosen = dict(where or {})
    if y not in COLUMNS:
        key = next((name for name in ("op", "metric") if np.any(table[name] == y)), None)
        if key is None:
            words = sorted({*table.counts("op"), *table.counts("metric")} - {""})
            raise UnknownNameError.of("column, op or metric", y, [*table.columns, *words])
        chosen.setdefault(key, y)
        y = "value"
    for name, word in chosen.items():
        table = _selected(table, name, word)
    for name in (*x, y, *([stderr] if stderr else [])):
        if name not in COLUMNS or COLUMNS[name].cell == "text":
            numbers = [c for c in table.columns if COLUMNS[c].cell != "text"]
            raise UnknownNameError.of("number column", name, numbers, f"There are {', '.join(numbers)}.")
    if group is not None and group not in COLUMNS:
        raise UnknownNameError.of("column", group, list(COLUMNS))
    for name in ("kind", "op", "metric") if y == "value" else ():
        several = table.counts(name)
        if len(several) > 1:
            cure = f"Choose with --where {name}=..."
            raise FitError(f"{path.name} holds several {name}s", got=", ".join(several), expected="one", cure=cure)
    name_of_y = chosen.get("op") or (str(table["op"][0]) if len(table) and y == "value" else "") or y
    data = data_from_arrays(
        {name: table[name] for name in x},
        table[y],
        y_name=name_of_y,
        stderr=table[stderr] if stderr else None,
        group=[str(word) for word in table[group]] if group else None,
        source=path.name,
        file_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )
    return replace(data, notes=(*physics_notes(whole, report, catalogue), *data.notes))


def _selected(table: Table, name: str, word: str) -> Table:
    column = table[name]
    if COLUMNS[name].cell == "text":
        mask = column == word
    else:
        try:
            mask = column == float(word)
        except ValueError as error:
            raise FitError(f"column {name} holds numbers", got=repr(word), expected="a number") from error
    if not mask.any():
        known = ", ".join(sorted({str(c) for c in column} - {""})[:12])
        raise FitError(f"no row has {name} = {word}", expected=f"one of {known}" if known else "a filled column")
    return table.selected(np.asarray(mask, dtype=bool))
