"""The measurement tables of the catalogue's homes, and several tables read as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from perfmodel.errors import MeasurementError
from perfmodel.measure.csv_io import read_table
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue

__all__ = ["one_table", "read_all", "shipped_tables"]


def shipped_tables(catalogue: Catalogue) -> tuple[Path, ...]:
    """Return the measurement tables in the catalogue's homes by name; earlier homes hide later ones."""
    found: dict[str, Path] = {}
    for home in reversed(catalogue.homes):
        found |= {path.stem: path for path in (home / "hardware" / "measurements").glob("*.csv")}
    if not found:
        raise MeasurementError("no measurement table is shipped", expected="tables in hardware/measurements")
    return tuple(path for _, path in sorted(found.items()))


def read_all(paths: Iterable[Path], *, usable_only: bool = True) -> Table:
    """Return several tables as one, the constants of each sidecar filled in; usable rows only unless all are asked."""
    return one_table([read_table(path) for path in paths], usable_only=usable_only)


def one_table(tables: Sequence[Table], *, usable_only: bool = True) -> Table:
    """Return the rows of several tables in one; usable rows only unless all are asked for."""
    if not tables:
        raise MeasurementError("no table is named")
    kept = [table.where() if usable_only else table for table in tables]
    whole = reduce(Table.joined, kept)
    ids = whole["id"]
    return whole if len(np.unique(ids.astype(str))) == len(ids) else _renamed(whole, kept)


def _renamed(whole: Table, tables: Iterable[Table]) -> Table:
    """Return the whole with each id behind the name of its table, where two tables use one id."""
    ids = [f"{Path(table.name).stem}:{row_id}" for table in tables for row_id in table["id"]]
    return Table({**whole.columns, "id": np.array([*ids, None], dtype=object)[:-1]}, len(whole), whole.sidecar)
