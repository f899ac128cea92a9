"""Columns into a file: CSV or Parquet by the suffix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, whole_file

__all__ = ["checked_table_file", "saved_rows"]

_SUFFIXES: Final = (".csv", ".parquet")


def checked_table_file(path: Path | None) -> Path | None:
    """Return the path as it is; raises SpecError for a suffix that no table has, or where Parquet is not installed."""
    if path is None:
        return None
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        got = f"suffix {suffix or 'none'}"
        raise SpecError(f"a table cannot be written as {path.name}", got=got, expected=" or ".join(_SUFFIXES))
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
    checked_table_file(path)
    if path.suffix.lower() == ".csv":
        with whole_file(path) as file:
            file.write(csv_text(rows))
        return path
    import pyarrow as pa
    import pyarrow.parquet as pq

    partial = path.with_name(path.name + ".partial")
    try:
        pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), partial)
        partial.replace(path)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written", got=error.strerror or str(error), expected="a writable place"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return path
