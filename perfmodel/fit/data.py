"""Columns to fit: out of arrays or a CSV file, checked, with the hash that a fit is recorded under."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.errors import Fault, FitError
from perfmodel.fit.laws.base import Array, Columns, FitLaw, Mask

__all__ = ["FitData", "data_from_arrays", "data_from_csv", "law_columns", "repeat_groups"]

_MAX_FAULTS: Final = 8
_MAX_BYTES: Final = 512 * 2**20
_LARGEST: Final = 1e30
"""Beyond it the powers and products that a fit takes overflow."""
_SMALLEST: Final = 1e-30
"""Below it, and above 0, they lose their digits: sums of squares become 0."""
_CONTRADICTION_FRAC: Final = 0.25
"""Rows with equal x whose y differ by more than this share are reported: no curve passes near both."""
_CONTRADICTION_SIGMA: Final = 5.0


@dataclass(frozen=True, slots=True)
class FitData:
    """Checked columns: finite, at least two rows, at least one x that varies.

    `rows` are the line numbers of the file (or 1, 2, ...); `notes` say in plain words what is odd but no reason to
    refuse. `sha256` is of the numbers used, whatever the order of columns in the file; `file_sha256` of the file.
    """

    x: Columns
    x_names: tuple[str, ...]
    y: Array
    y_name: str
    stderr: Array | None = None
    group: tuple[str, ...] | None = None
    rows: tuple[int, ...] = ()
    source: str = ""
    sha256: str = ""
    file_sha256: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return int(self.y.size)

    def subset(self, use: Mask) -> FitData:
        """Return the rows where `use` (boolean) holds, unchecked: for left-out fits."""
        index = np.flatnonzero(use)
        return FitData(
            tuple(c[index] for c in self.x),
            self.x_names,
            self.y[index],
            self.y_name,
            None if self.stderr is None else self.stderr[index],
            None if self.group is None else tuple(self.group[i] for i in index),
            tuple(self.rows[i] for i in index),
            self.source,
            self.sha256,
            self.file_sha256,
        )


def data_from_arrays(
    x: Mapping[str, ArrayLike],
    y: ArrayLike,
    *,
    y_name: str = "y",
    stderr: ArrayLike | None = None,
    group: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    source: str = "",
    file_sha256: str = "",
) -> FitData:
    """Return checked data from columns; raises FitError that names each row at fault.

    >>> data_from_arrays({"n": [1, 4, 12]}, [3.2, 2.6, 1.5]).n
    3
    """
    if not x:
        raise FitError("a fit needs an x column", got="none", expected="at least one column of x")
    columns = {name: _column(name, values) for name, values in {**x, y_name: y}.items()} if y_name not in x else None
    if columns is None:
        raise FitError(f"column {y_name!r} is both x and y", expected="different columns", cure="Choose another --y.")
    if stderr is not None:
        columns["stderr of " + y_name] = _column("stderr", stderr)
    lengths = {name: c.size for name, c in columns.items()} | ({} if group is None else {"group": len(group)})
    n = columns[y_name].size
    if len(set(lengths.values())) > 1:
        raise FitError(
            "columns differ in length", got=", ".join(f"{k}: {v}" for k, v in lengths.items()), expected="one length"
        )
    lines = tuple(rows) if rows is not None else tuple(range(1, n + 1))
    _check_finite(columns, lines, source)
    if n < 2:
        raise FitError(
            f"{source or 'the data'}: no curve can be fitted to {n} row{'s' if n != 1 else ''}",
            expected="at least two rows with different x",
            cure="Add measurements.",
        )
    xs = tuple(columns[name] for name in x)
    if all(float(np.ptp(c)) == 0.0 for c in xs):
        raise FitError(
            f"{source or 'the data'}: x is constant",
            where=", ".join(x),
            got=f"{xs[0][0]:g} in all {n} rows",
            expected="at least two different values",
            cure="Measure at other values, or choose another x column.",
        )
    sigma = columns.get("stderr of " + y_name)
    if sigma is not None and not (sigma > 0.0).all():
        bad = np.flatnonzero(~(sigma > 0.0))
        raise FitError(
            f"{source or 'the data'}: a standard error is not above zero",
            where=_row_text([lines[i] for i in bad]),
            got=f"{sigma[bad[0]]:g}",
            expected="numbers > 0",
            cure="Leave the column out where errors are unknown.",
        )
    data = FitData(
        xs,
        tuple(x),
        columns[y_name],
        y_name,
        sigma,
        None if group is None else tuple(group),
        lines,
        source,
        _digest(columns, group),
        file_sha256,
    )
    return replace(data, notes=_oddities(data))


def _column(name: str, values: ArrayLike) -> Array:
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise FitError(f"column {name!r} holds something that is no number", got=str(error)) from error
    if column.ndim != 1:
        raise FitError(
            f"column {name!r} is no column", got=f"an array of shape {column.shape}", expected="one dimension"
        )
    return column


def _check_finite(columns: Mapping[str, Array], lines: tuple[int, ...], source: str) -> None:
    faults = []
    for name, column in columns.items():
        bad = np.flatnonzero(~np.isfinite(column))
        faults += [Fault(f"row {lines[i]}, {name}", f"{column[i]}", "a finite number") for i in bad]
        huge = np.flatnonzero(np.isfinite(column) & (np.abs(column) > _LARGEST))
        faults += [
            Fault(f"row {lines[i]}, {name}", f"{column[i]:g}", f"at most {_LARGEST:g} in size; use a larger unit")
            for i in huge
        ]
        tiny = np.flatnonzero((np.abs(column) < _SMALLEST) & (column != 0))
        faults += [
            Fault(f"row {lines[i]}, {name}", f"{column[i]:g}", f"0, or at least {_SMALLEST:g}; use a smaller unit")
            for i in tiny
        ]
    if faults:
        more = [Fault(f"and {len(faults) - _MAX_FAULTS} more")] if len(faults) > _MAX_FAULTS else []
        raise FitError(
            f"{source or 'the data'}: NaN or infinity cannot be fitted, nor values beyond {_LARGEST:g} "
            f"or within {_SMALLEST:g} of 0 (correct or remove these rows)",
            faults=[*faults[:_MAX_FAULTS], *more],
        )


def _digest(columns: Mapping[str, Array], group: Sequence[str] | None) -> str:
    text = io.StringIO()
    for name in sorted(columns):
        text.write(name + ":" + ",".join(repr(float(v)) for v in columns[name]) + "\n")
    if group is not None:
        text.write("group:" + "\x1f".join(group) + "\n")
    return hashlib.sha256(text.getvalue().encode()).hexdigest()


def repeat_groups(x: Columns) -> Array:
    """Return for each row the number of its group of equal x."""
    _, inverse = np.unique(np.stack(x, axis=1), axis=0, return_inverse=True)
    return np.asarray(inverse, dtype=np.float64).reshape(-1)


def _oddities(data: FitData) -> tuple[str, ...]:
    groups = repeat_groups(data.x).astype(int)
    order = np.lexsort((data.y, groups))
    same = groups[order][1:] == groups[order][:-1]
    equal = same & (data.y[order][1:] == data.y[order][:-1])
    notes = []
    below = np.flatnonzero(data.y < 0.0)
    if below.size and data.y_name.endswith(("_s", "_seconds", "time")):
        notes.append(f"{data.y_name} is below zero in {_row_text([data.rows[i] for i in below])}: no time is negative.")
    if equal.any():
        notes.append(f"{int(equal.sum())} rows repeat another row exactly; each counts as a measurement of its own.")
    low = np.full(groups.max() + 1, np.inf)
    high = np.full(groups.max() + 1, -np.inf)
    np.minimum.at(low, groups, data.y)
    np.maximum.at(high, groups, data.y)
    gap = high - low
    limit = _CONTRADICTION_FRAC * np.maximum(np.abs(low), np.abs(high))
    if data.stderr is not None:
        widest = np.zeros_like(low)
        np.maximum.at(widest, groups, data.stderr)
        limit = np.maximum(limit, _CONTRADICTION_SIGMA * math.sqrt(2.0) * widest)
    bad = np.flatnonzero(gap > limit)
    if bad.size:
        worst = int(bad[np.argmax((gap / np.maximum(limit, 1e-300))[bad])])
        members = [data.rows[i] for i in np.flatnonzero(groups == worst)]
        notes.append(
            f"contradictory rows: at {bad.size} value{'s' if bad.size > 1 else ''} of x the y differ by more than "
            f"{100 * _CONTRADICTION_FRAC:.0f} % (worst: {_row_text(members)}, "
            f"y from {low[worst]:g} to {high[worst]:g}); "
            "no curve of x alone passes near both, so a column may be missing."
        )
    return tuple(notes)


def _row_text(rows: Sequence[int]) -> str:
    shown = ", ".join(str(r) for r in rows[:_MAX_FAULTS])
    return f"row{'s' if len(rows) > 1 else ''} {shown}" + (
        f" and {len(rows) - _MAX_FAULTS} more" if len(rows) > _MAX_FAULTS else ""
    )


def data_from_csv(
    path: Path, x: Sequence[str], y: str, *, stderr: str | None = None, group: str | None = None
) -> FitData:
    """Return checked data from named columns of a CSV file (comma, semicolon or tab; # starts a comment line).

    Raises FitError for a missing file or column, a row of another length, and a cell that is no number, with the line.
    """
    raw = _file_bytes(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FitError(f"{path.name} is not text", where=f"byte {error.start}", expected="UTF-8 text") from error
    lines, cells = _cells(text, path.name)
    if not cells:
        raise FitError(f"{path.name} is empty", expected="a header and rows")
    header = [name.strip() for name in cells[0]]
    wanted = [*x, y, *([stderr] if stderr else []), *([group] if group else [])]
    _check_header(header, wanted, path.name)
    index = {name: header.index(name) for name in wanted}
    body, at = cells[1:], lines[1:]
    short = [
        Fault(f"line {n}", f"{len(c)} cells", f"{len(header)}")
        for n, c in zip(at, body, strict=True)
        if len(c) != len(header)
    ]
    if short:
        raise FitError(f"{path.name}: rows differ in length from the header", faults=short[:_MAX_FAULTS])
    numbers = _numbers(body, at, [name for name in wanted if name != group], index, path.name)
    return data_from_arrays(
        {name: numbers[name] for name in x},
        numbers[y],
        y_name=y,
        stderr=numbers[stderr] if stderr else None,
        group=[row[index[group]].strip() for row in body] if group else None,
        rows=at,
        source=path.name,
        file_sha256=hashlib.sha256(raw).hexdigest(),
    )


def _file_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise FitError(f"{path.name} is a folder", expected="a CSV file")
        if path.stat().st_size > _MAX_BYTES:
            raise FitError(f"{path.name} is too large", expected="a CSV file below 512 MiB")
        return path.read_bytes()
    except OSError as error:
        raise FitError(
            f"{path.name} cannot be read", got=error.strerror or str(error), expected="a CSV file"
        ) from error


def _cells(text: str, name: str) -> tuple[list[int], list[list[str]]]:
    if "\0" in text:
        raise FitError(f"{name} is not text", got="NUL bytes", expected="a CSV file")
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    delimiter = max(",;\t", key=first.count)
    lines, cells = [], []
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        for row in reader:
            if any(cell.strip() for cell in row) and not row[0].startswith("#"):
                lines.append(reader.line_num)
                cells.append(row)
    except csv.Error as error:
        raise FitError(f"{name} is no CSV file", where=f"line {reader.line_num}", got=str(error)) from error
    return lines, cells


def _check_header(header: list[str], wanted: Sequence[str], name: str) -> None:
    repeated = sorted({h for h in header if h and header.count(h) > 1})
    if repeated:
        raise FitError(f"{name}: a column name stands twice", got=", ".join(repeated), expected="different names")
    missing = [w for w in wanted if w not in header]
    if missing:
        raise FitError(f"{name} has no column {', '.join(map(repr, missing))}", expected=f"one of {', '.join(header)}")
    twice = sorted({w for w in wanted if wanted.count(w) > 1})
    if twice:
        raise FitError(f"column {', '.join(map(repr, twice))} is asked for twice", expected="different columns")


def _numbers(
    body: list[list[str]], lines: list[int], names: Sequence[str], index: Mapping[str, int], name: str
) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = {n: [] for n in names}
    faults: list[Fault] = []
    for line, row in zip(lines, body, strict=True):
        for column in names:
            cell = row[index[column]].strip()
            try:
                numbers[column].append(float(cell))
            except ValueError:
                faults.append(
                    Fault(f"line {line}, {column}", repr(cell) if cell else "an empty cell", "a number in base units")
                )
                numbers[column].append(math.nan)
    if faults:
        more = [Fault(f"and {len(faults) - _MAX_FAULTS} more")] if len(faults) > _MAX_FAULTS else []
        raise FitError(f"{name}: not every cell is a number", faults=[*faults[:_MAX_FAULTS], *more])
    return numbers


def law_columns(law: FitLaw, data: FitData) -> Columns:
    """Return the columns of the data in the order of the law's inputs: by name, or by position where no name matches.

    Raises FitError where they cannot be matched, or lie outside the range in which the law makes sense.
    """
    names = tuple(i.name for i in law.inputs)
    if len(names) != len(data.x):
        raise FitError(
            f"law {law.name} reads {len(names)} column{'s' if len(names) > 1 else ''}",
            got=", ".join(data.x_names),
            expected=", ".join(names),
            cure="Give one --x for each.",
        )
    found = set(names) & set(data.x_names)
    if len(names) > 1 and found and found != set(names):
        raise FitError(f"law {law.name} reads other columns", got=", ".join(data.x_names), expected=", ".join(names))
    by_name = dict(zip(data.x_names, data.x, strict=True))
    columns = tuple(by_name[n] for n in names) if found == set(names) else data.x
    for entry, column in zip(law.inputs, columns, strict=True):
        bad = np.flatnonzero((column < entry.low) | (column > entry.high))
        if bad.size:
            raise FitError(
                f"law {law.name}: {entry.name} is outside its range",
                where=_row_text([data.rows[i] for i in bad]),
                got=f"{column[bad[0]]:g}",
                expected=f"{entry.low:g} to {entry.high:g}",
            )
    return columns
