"""Measurement tables to and from CSV, with the YAML sidecar beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import MeasurementError
from perfmodel.measure.schema import COLUMNS
from perfmodel.measure.sidecar import Sidecar, read_sidecar, sidecar_text
from perfmodel.measure.table import Columns, Table, Where, near, noted_faults
from perfmodel.measure.text import Faults, file_text

__all__ = ["csv_text", "read_table", "sidecar_path", "table_from_text", "write_table"]

_CELL_LIMIT = 2**24
_CHUNK_ROWS = 1000
_FREE_TEXT = tuple(name for name, rule in COLUMNS.items() if rule.cell == "text")
_WORDS_FOR_NOTHING = ("", "nan", "na", "n/a", "none", "null", "-")


def sidecar_path(path: Path) -> Path:
    """Return where the sidecar of a table stands: the same name with .yaml."""
    return path.with_suffix(".yaml")


def read_table(path: Path | str, *, sidecar: Sidecar | None = None, is_question: bool = False) -> Table:
    """Return the checked table in a CSV file, with the sidecar of the same name unless one is given.

    A question is a table whose values are still to be predicted: value, metric, runtime, source and id may be empty.

    Raises MeasurementError that lists every fault of the table by line and column, SpecError for those of the sidecar.
    """
    file = Path(path)
    text = file_text(file)
    if sidecar is None and sidecar_path(file).is_file() and sidecar_path(file) != file:
        sidecar = read_sidecar(sidecar_path(file))
    return table_from_text(text, name=str(file), sidecar=sidecar, is_question=is_question)


def table_from_text(
    text: str, *, name: str = "table", sidecar: Sidecar | None = None, is_question: bool = False
) -> Table:
    """Return the checked table that CSV text holds; see `read_table`."""
    beside = sidecar or Sidecar()
    faults = Faults()
    parsed = _parsed(text.removeprefix("\ufeff"), name, faults)
    if faults:
        raise faults.raised(f"{name} is no table of measurements")
    n_rows = len(parsed.lines)
    columns: dict[str, NDArray[Any]] = {}
    for column, words in zip(parsed.header, parsed.words, strict=True):
        read = _column(column, words, faults, parsed.where)
        if read is not None:
            columns[column] = read
    filled = _with_constants(columns, beside.columns(), n_rows)
    noted_faults(faults, filled, n_rows, parsed.where, is_question=is_question)
    if faults:
        raise faults.raised(f"{name} is no valid table of measurements")
    return Table({c: filled[c] for c in COLUMNS if c in filled}, n_rows, beside, name)


class _Words(dict[str, int]):
    """The distinct words of a column, each with the number of its first occurrence; "" is number 0."""

    def __init__(self) -> None:
        super().__init__({"": 0})
        self.codes: list[int] = []

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]

    def extend(self, cells: Sequence[str]) -> None:
        """Note further cells."""
        self.codes.extend(map(self.__getitem__, cells) if any(cells) else repeat(0, len(cells)))


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A CSV file by column: header, line on which each row ends, and words."""

    header: list[str]
    lines: list[int]
    words: list[_Words]

    def where(self, row: int, column: str) -> str:
        """Return line and column of a cell in words."""
        place = f"column {self.header.index(column) + 1} ({column})" if column in self.header else f"column {column}"
        return f"line {self.lines[row]}, {place}"


def _parsed(text: str, name: str, faults: Faults) -> _Parsed:
    """Return the cells of CSV text; tables repeat themselves, so that each word is kept once."""
    csv.field_size_limit(_CELL_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [cell.strip() for cell in next(reader, [])]
        _note_header(faults, header)
        found = _Parsed(header, [], [_Words() for _ in header])
        while chunk := [(reader.line_num, row) for row in islice(reader, _CHUNK_ROWS)]:
            if filled := [(line, row) for line, row in chunk if row]:
                _add(found, filled, faults)
    except csv.Error as error:
        cure = "The file may be cut off, or a quote is not closed." if "unexpected end" in str(error) else ""
        where = f"line {reader.line_num}"
        raise MeasurementError(f"{name} is no readable CSV", where=where, got=str(error), cure=cure) from error
    return found


def _add(found: _Parsed, chunk: Sequence[tuple[int, list[str]]], faults: Faults) -> None:
    width = len(found.header)
    for line, row in chunk:
        if len(row) != width:
            cure = "Quote cells that hold a comma." if len(row) > width else "The file may be cut off here."
            faults.add(f"line {line}", f"{len(row)} cells", f"{width}, as in the header", cure)
            row[width:] = []
            row += [""] * (width - len(row))
    found.lines.extend(line for line, _ in chunk)
    for words, cells in zip(found.words, zip(*(row for _, row in chunk), strict=True), strict=True):
        words.extend(cells)


def _note_header(faults: Faults, header: Sequence[str]) -> None:
    if not any(header):
        faults.add("line 1", "nothing", "a header with column names")
        return
    for i, column in enumerate(header):
        if column not in COLUMNS:
            other = next((mark for mark in (";", "\t") if len(header) == 1 and mark in column), "")
            cure = f"Separate cells with commas, not with {other!r}." if other else near(column, COLUMNS)
            faults.add(f"line 1, column {i + 1}", column or "an empty name", "a column of the schema", cure)
        elif column in header[:i]:
            faults.add(f"line 1, column {i + 1}", column, "each column once")


def _column(name: str, words: _Words, faults: Faults, where: Where) -> NDArray[Any] | None:
    """Return one column; None where all cells are empty."""
    stripped = [word.strip() for word in words]
    if not any(stripped):
        return None
    codes = np.array(words.codes, dtype=np.intp)
    if COLUMNS[name].cell == "text":
        return np.array([*stripped, None], dtype=object)[codes]
    numbers = np.full(len(stripped), np.nan)
    for code, word in enumerate(stripped):
        number = _number(word)
        if number is None:
            nothing = word.lower() in _WORDS_FOR_NOTHING
            cure = "Leave the cell empty where a value does not apply." if nothing else _unit_hint(word)
            for i in np.flatnonzero(codes == code):
                faults.add(where(int(i), name), word, "a number in base units", cure)
        else:
            numbers[code] = number
    return numbers[codes]


def _number(word: str) -> float | None:
    if not word:
        return np.nan
    try:
        number = float(word)
    except ValueError:
        return None
    return None if number != number or "_" in word else number


def _unit_hint(word: str) -> str:
    if "," in word:
        return "Write numbers without separators between thousands and with a decimal point."
    return "Write the number alone, without a unit." if word[:1].isdigit() else ""


def _with_constants(
    columns: Columns, constants: Mapping[str, str | int | float], n_rows: int
) -> dict[str, NDArray[Any]]:
    """Return the columns with empty cells filled from the sidecar, and an empty status read as ok."""
    filled = dict(columns)
    for name, value in {"status": "ok", **constants}.items():
        column = filled.get(name)
        if COLUMNS[name].cell == "text":
            whole = np.full(n_rows, value, dtype=object)
            filled[name] = whole if column is None else np.where(column == "", whole, column)
        else:
            number = np.full(n_rows, float(value))
            filled[name] = number if column is None else np.where(np.isnan(column), number, column)
    return filled


def csv_text(table: Table) -> str:
    """Return a table as CSV; columns that the sidecar states for all rows are left out."""
    constants = table.sidecar.columns()
    names = [n for n in COLUMNS if n in table.columns and not _is_constant(table[n], constants.get(n))]
    names = names or ["id"]
    texts = [_cell_texts(n, table[n]) for n in names]
    returns = any("\r" in cell for n, column in zip(names, texts, strict=True) if n in _FREE_TEXT for cell in column)
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL)
    writer.writerow(names)
    writer.writerows(zip(*texts, strict=True))
    return out.getvalue()


def _is_constant(column: NDArray[Any], value: str | int | float | None) -> bool:
    return value is not None and bool(len(column)) and bool(np.all(column == value))


def _cell_texts(name: str, column: NDArray[Any]) -> list[str]:
    if COLUMNS[name].cell == "text":
        return [str(cell) for cell in column]
    return [_number_text(float(cell)) for cell in column]


def _number_text(value: float) -> str:
    if value != value:
        return ""
    return str(int(value)) if abs(value) < 1e15 and value.is_integer() else repr(value)


def write_table(table: Table, path: Path | str) -> tuple[Path, ...]:
    """Write a table and its sidecar, and return the files written.

    >>> from tempfile import mkdtemp
    >>> from perfmodel.measure.row import Row
    >>> row = Row(id="a", kind="bandwidth", device="l4", runtime="nvbandwidth", op="hbm_copy", metric="bytes_per_s")
    >>> from perfmodel.measure.table import table_from_rows
    >>> table = table_from_rows([row.with_columns(value=2.5e11, source="own run")])
    >>> [file.name for file in write_table(table, Path(mkdtemp()) / "copy.csv")]
    ['copy.csv']
    """
    file = Path(path)
    written = [file]
    try:
        file.write_text(csv_text(table), encoding="utf-8", newline="")
        if table.sidecar != Sidecar():
            beside = sidecar_path(file)
            beside.write_text(sidecar_text(table.sidecar), encoding="utf-8", newline="")
            written.append(beside)
    except (OSError, ValueError) as error:
        raise MeasurementError(f"{file} cannot be written", got=str(error)) from error
    return tuple(written)
