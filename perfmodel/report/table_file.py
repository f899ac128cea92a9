"""Rows into a file, CSV or Parquet by the suffix: at once, or as they come."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from perfmodel.errors import SpecError
from perfmodel.report.output import placed, whole_file

__all__ = ["checked_table_file", "parquet_file", "row_file", "saved_rows"]

_SUFFIXES: Final = (".csv", ".parquet")


def checked_table_file(path: Path | None) -> Path | None:
    """Return the path as it is; raises SpecError where no table can stand there, or Parquet is not installed."""
    if path is None:
        return None
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        got = f"suffix {suffix or 'none'}"
        raise SpecError(f"a table cannot be written as {path.name}", got=got, expected=" or ".join(_SUFFIXES))
    placed(path)
    if suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise SpecError(
                f"{path.name} cannot be written", got="pyarrow is not installed", cure="pip install 'perfmodel[files]'"
            ) from error
    return path


def saved_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write rows of like keys to a file and return its path; raises SpecError where that cannot be done."""
    columns: dict[str, type] = {}
    for row in rows:
        for name, value in row.items():
            if value is not None and columns.get(name, int) in (int, type(value)):
                columns[name] = type(value)
            columns.setdefault(name, str)
    with row_file(path, columns) as write:
        write(rows)
    return path


@contextmanager
def row_file(path: Path, columns: Mapping[str, type]) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    """Give a function that appends rows to a file of these columns, moved to its place when all are written.

    A row may lack columns. Memory holds one batch at a time. Raises SpecError where the file cannot be written.
    """
    checked_table_file(path)
    if path.suffix.lower() == ".csv":
        with whole_file(path) as file:
            writer = csv.DictWriter(file, list(columns), lineterminator="\n")
            writer.writeheader()
            yield writer.writerows
        return
    with parquet_file(path, columns) as write:
        yield lambda rows: write({name: [row.get(name) for row in rows] for name in columns})


@contextmanager
def parquet_file(path: Path, columns: Mapping[str, type]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Give a function that appends columns, sequences or arrays of one length, to a Parquet file; see `row_file`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
    partial = path.with_name(path.name + ".partial")
    try:
        with pq.ParquetWriter(partial, schema) as writer:

            def write(found: Mapping[str, Any]) -> None:
                arrays = [pa.array(found[name], type=schema.field(name).type) for name in columns]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

            yield write
        partial.replace(path)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written", got=error.strerror or str(error), expected="a writable place"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
