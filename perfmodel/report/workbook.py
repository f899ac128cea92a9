"""Rows as sheets of an .xlsx file, for people who go on calculating; openpyxl is only asked for here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from perfmodel.errors import SpecError
from perfmodel.report.output import placed

__all__ = ["checked_workbook", "saved_workbook"]

Rows = Sequence[Mapping[str, Any]]

_WIDEST: Final = 60
_SAMPLED: Final = 200
"""Rows that the width of a column is made for."""


def checked_workbook(path: Path | None) -> Path | None:
    """Return the path as it is; raises SpecError where no workbook can stand there, or openpyxl is not installed."""
    if path is None:
        return None
    if path.suffix.lower() != ".xlsx":
        got = f"suffix {path.suffix or 'none'}"
        raise SpecError(f"a workbook cannot be written as {path.name}", got=got, expected=".xlsx")
    try:
        import openpyxl  # noqa: F401
    except ImportError as error:
        raise SpecError(
            f"{path.name} cannot be written", got="openpyxl is not installed", cure="pip install 'perfmodel[files]'"
        ) from error
    return placed(path)


def saved_workbook(path: Path, sheets: Mapping[str, Rows]) -> Path:
    """Write one sheet for each name, with a header that stays in sight and filters, and return the path.

    Columns are those of all rows in order of first use. Raises SpecError where the file cannot be written.
    """
    checked_workbook(path)
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font, PatternFill
    from openpyxl.utils import get_column_letter

    book = Workbook()
    book.remove(book.worksheets[0])
    for title, rows in sheets.items():
        sheet = book.create_sheet(title[:31])
        columns = list(dict.fromkeys(key for row in rows for key in row))
        sheet.append(columns)
        for row in rows:
            sheet.append([_cell(row.get(name)) for name in columns])
        for i, name in enumerate(columns, start=1):
            head = sheet.cell(row=1, column=i)
            head.font, head.fill = Font(bold=True, color="FFFFFF"), PatternFill("solid", fgColor="1F3A5F")
            head.alignment = Alignment(vertical="top", wrap_text=True)
            texts = [name, *(_shown(row.get(name)) for row in rows[:_SAMPLED])]
            sheet.column_dimensions[get_column_letter(i)].width = min(_WIDEST, max(map(len, texts)) + 2)
            for cell in sheet[get_column_letter(i)][1:]:
                if isinstance(cell.value, float):
                    cell.number_format = _number_format(name)
        sheet.freeze_panes = "A2"
        if rows:
            sheet.auto_filter.ref = sheet.dimensions
    try:
        book.save(path)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written", got=error.strerror or str(error), expected="a writable place"
        ) from error
    return path


def _cell(value: Any) -> Any:
    """Return what a cell can hold; text is never taken for a formula."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, str) and value.startswith("="):
        return f"'{value}"
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value or "")


def _number_format(name: str) -> str:
    if "probability" in name or "_frac" in name:
        return "0.0%"
    is_time = "tokens" not in name and "requests" not in name and (name.endswith("_s") or "_s_" in name)
    return "0.000000" if is_time else "#,##0.00"
