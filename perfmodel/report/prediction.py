"""A predicted table as CSV or JSON, and what it amounts to in a sentence."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.measure.schema import COLUMNS
from perfmodel.report.output import whole_file
from perfmodel.validate.predict import Predictions

__all__ = ["ADDED", "prediction_csv", "prediction_rows", "prediction_summary", "written_whole"]

ADDED: Final = ("predicted", "low", "high", "bound", "calibration", "error", "reason", "remark")
_MOST_REASONS: Final = 8


def _cells(found: Predictions) -> dict[str, list[Any]]:
    """Return every column as a list of text or numbers, None where there is nothing."""
    table = found.table
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        if name in table.columns:
            columns[name] = _listed(table[name])
    for name in ADDED:
        columns[name] = _listed(getattr(found, name))
    return columns


def _listed(column: Any) -> list[Any]:
    if column.dtype == object:
        return list(column)
    whole = np.isfinite(column) & (np.abs(column) < 1e15) & (column == np.floor(column))
    return [
        None if v != v else int(v) if is_whole else v
        for v, is_whole in zip(column.tolist(), whole.tolist(), strict=True)
    ]


def prediction_csv(found: Predictions) -> str:
    """Return the table with the predicted columns behind its own."""
    columns = _cells(found)
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def prediction_rows(found: Predictions) -> list[dict[str, Any]]:
    """Return the table as rows with stable keys; what a row does not state is left out, predictions are null."""
    columns = _cells(found)
    rows: Iterable[tuple[Any, ...]] = zip(*columns.values(), strict=True)
    return [
        {
            name: _finite(cell)
            for name, cell in zip(columns, row, strict=True)
            if name in ADDED or cell not in (None, "")
        }
        for row in rows
    ]


def _finite(cell: Any) -> Any:
    return "inf" if isinstance(cell, float) and np.isinf(cell) else cell


def prediction_summary(found: Predictions) -> str:
    """Return how many rows were predicted, how far off they are, and why others were not."""
    n, n_done = len(found.table), int(np.count_nonzero(found.reason == ""))
    text = f"predicted {n_done} of {n} rows"
    error = found.error[np.isfinite(found.error)]
    if len(error):
        median, p90 = np.median(np.abs(error)), np.percentile(np.abs(error), 90)
        inside = np.mean(found.covered[np.isfinite(found.error)])
        text += (
            f"; {len(error)} measured ones are off by {100 * median:.1f} % (median), {100 * p90:.1f} % (P90), "
            f"{100 * inside:.0f} % inside their 80 % band"
        )
    reasons = Counter(str(reason) for reason in found.reason if reason)
    lines = [f"  {count} x {reason}" for reason, count in reasons.most_common(_MOST_REASONS)]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"  and {len(reasons) - _MOST_REASONS} further reasons")
    return "\n".join([text, *lines])


def written_whole(path: Path, text: str) -> Path:
    """Write text to a file, whole or not at all, and return its path; raises SpecError where that cannot be done."""
    with whole_file(path) as file:
        file.write(text)
    return path
