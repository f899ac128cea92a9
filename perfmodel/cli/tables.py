"""Measurement tables as commands take them: each once, checked against physics, and never written over."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from perfmodel.errors import SpecError
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue

__all__ = ["checked_tables", "not_a_source"]


def checked_tables(paths: Sequence[Path], catalogue: Catalogue, *, is_question: bool = False) -> list[Table]:
    """Return the tables in files; what breaks physics or is in no catalogue is marked, and told on stderr.

    Raises SpecError where one file is named twice: its rows would count twice.
    """
    from perfmodel.measure.physics import checked_table, physics_notes

    seen: dict[Path, Path] = {}
    for path in paths:
        if (first := seen.setdefault(path.resolve(), path)) is not path:
            both = f"{first} and {path}" if first != path else str(path)
            raise SpecError(
                "a table is named twice", got=both, expected="each table once", cure="Its rows would count twice."
            )
    tables = []
    for path in paths:
        table, report = checked_table(path, catalogue, is_question=is_question)
        for note in physics_notes(table, report, catalogue):
            print(f"note: {note}", file=sys.stderr)
        tables.append(table)
    return tables


def not_a_source(outputs: Iterable[Path | None], sources: Iterable[Path]) -> None:
    """Raise SpecError where an output is one of the tables that are read, or the sidecar of one."""
    from perfmodel.measure.csv_io import sidecar_path

    named = list(sources)
    read = [path for path in (*named, *(sidecar_path(p) for p in named if p.suffix == ".csv")) if path.exists()]
    for output in outputs:
        if output is not None and output.exists() and any(output.samefile(path) for path in read):
            raise SpecError("the output is a file that is read", got=str(output), expected="another file")
