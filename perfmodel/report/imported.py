"""What an import found, as the file that it becomes: a measurement table, a system file, or what else there is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.errors import SpecError
from perfmodel.measure.csv_io import csv_text as table_text
from perfmodel.measure.importers.base import Imported
from perfmodel.report.output import csv_text, json_text
from perfmodel.specs.files import yaml_text

__all__ = ["imported_document", "imported_text"]


def imported_text(found: Imported, *, as_yaml: bool = False) -> str:
    """Return the system as YAML, else the rows as a table, else operators as CSV, else facts as JSON.

    Raises MeasurementError where rows lack a column that nobody stated, SpecError where YAML is asked for and the file
    describes no system.
    """
    if as_yaml or (found.system is not None and not found.rows):
        if found.system is None:
            why = found.warnings[0] if found.warnings else "it holds measurements"
            raise SpecError(f"a {found.format} file gives no system file", got=why, expected="a topology with --device")
        return yaml_text(dict(found.system))
    if found.rows:
        return table_text(found.table())
    if found.operators:
        return csv_text(_plain(dataclasses.asdict(operator)) for operator in found.operators)
    return json_text(_plain(found.facts)) + "\n"


def imported_document(found: Imported) -> dict[str, Any]:
    """Return everything that was found as plain data with stable keys."""
    return {
        "format": found.format,
        "rows": [_plain(row.cells()) for row in found.rows],
        "operators": [_plain(dataclasses.asdict(operator)) for operator in found.operators],
        "facts": _plain(found.facts),
        "system": _plain(found.system) if found.system is not None else None,
        "missing": list(found.missing),
        "warnings": list(found.warnings),
        "usable_for_fit": found.usable_for_fit,
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: no NaN, no infinity, no tuples or objects."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)
